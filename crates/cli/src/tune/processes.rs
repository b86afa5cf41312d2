//! The parts of `tune` that run in separate processes: the repeats of trials, and the verification of winners.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::slice::from_ref;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};
use warptile::gpu::Gpu;

use super::measure::{compare, plan_of};
use super::no_gpu;
use super::state::Candidate;
use super::watchdog::{self, Lost, PATIENCE, watched};
use crate::again::this_program;
use crate::cases;
use crate::failure::{self, Failure};
use crate::interrupt;
use crate::machine;
use crate::options::Device;

/// The repeats of trials in a process of their own: requests as JSON on standard input, a line of ratios for each on standard output.
#[derive(Debug, Args)]
pub(crate) struct TrialsArgs {
    #[arg(long)]
    device: Device,

    #[arg(long, default_value_t = PATIENCE)]
    patience: u32,
}

/// A trial that is to be repeated.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) case: String,
    pub(super) old: Candidate,
    pub(super) new: Candidate,
    pub(super) blocks: usize,
}

/// The most seconds that the verification of a winner may take.
const VERIFYING: Duration = Duration::from_secs(180);

/// This program, on the same GPU, in another process.
fn again(gpu: &Gpu, command: &str) -> Result<Command, Failure> {
    let program = this_program()
        .map_err(|error| Failure::Device(format!("cannot start another process: {error}")))?;
    let mut again = Command::new(program);
    again
        .arg(command)
        .args(["--device", &format!("cuda:{}", gpu.ordinal())]);
    Ok(again)
}

/// Runs trials in a fresh process; the ratios of each that was finished.
pub(super) fn in_fresh_process(
    gpu: &Gpu,
    requests: &[Request],
    patience: u32,
) -> Result<Vec<Vec<f64>>, Failure> {
    let failed =
        |what: &str| Failure::Device(format!("the repeats in a process of their own: {what}"));
    let mut child = again(gpu, "tune-trials")?
        .args(["--patience", &patience.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(&error.to_string()))?;
    let text = serde_json::to_vec(requests).map_err(std::io::Error::from)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A child that ends early says why itself.
        let _ = stdin.write_all(&text);
    }
    let output = { child.wait_with_output() }.map_err(|error| failed(&error.to_string()))?;
    let ratios = { output.stdout.split(|&byte| byte == b'\n') }
        .map_while(|line| serde_json::from_slice(line).ok())
        .collect();
    match output.status.success() || interrupt::requested() {
        true => Ok(ratios),
        false => Err(failed(&output.status.to_string())),
    }
}

/// Runs the trials that standard input asks for.
pub(crate) fn run_trials(args: &TrialsArgs, console: &mut dyn Write) -> Result<(), Failure> {
    let requests: Vec<Request> = serde_json::from_reader(std::io::stdin().lock())
        .map_err(|error| Failure::Input(format!("standard input: {error}")))?;
    let backend = args.device.open()?;
    let gpu = backend.gpu().ok_or_else(|| no_gpu(args.device))?;
    interrupt::watch(from_ref(&backend));
    let machine = machine::describe(&backend);
    let file = Lost::path(&machine.device).filter(|file| file.parent().is_some_and(Path::is_dir));
    watchdog::start(&machine, args.patience, file);
    for request in requests {
        let case = cases::parse_attention(&request.case).map_err(Failure::Input)?;
        let problem = case.problem_of_programs()?;
        let plan = |one: &Candidate| plan_of(gpu, gpu.rates(), problem, one);
        let (old, new) = (plan(&request.old)?, plan(&request.new)?);
        let ratios = watched(&case, &problem.line(), gpu, |bench| {
            compare(bench, &old, &new, request.blocks)
        })?;
        let line = serde_json::to_string(&ratios).map_err(std::io::Error::from)?;
        writeln!(console, "{line}")?;
        console.flush()?;
    }
    Ok(())
}

/// How a process ended, or that it was killed: it did not end in time, or before Ctrl-C.
fn ended_in_time(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    while start.elapsed() < limit && !interrupt::requested() {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(Duration::from_millis(10));
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

/// How the verification of a candidate ended.
enum Ended {
    Right,
    Wrong,
    /// The device or the process failed, or gave no answer in time.
    Broken,
    /// By Ctrl-C.
    Interrupted,
}

/// Checks that a candidate computes problems correctly on this GPU, leaves the device as it was and ends; `None` after Ctrl-C.
///
/// # Errors
/// [`Failure::Device`] if that cannot be told: `old`, the choice so far, breaks the device or the process as the candidate does.
pub(super) fn passes_verification(
    gpu: &Gpu,
    candidate: &Candidate,
    old: &Candidate,
    problems: &[&str],
) -> Result<Option<bool>, Failure> {
    let mut ended = verification(gpu, candidate, problems)?;
    if let Ended::Broken = ended {
        ended = match verification(gpu, old, problems)? {
            Ended::Right | Ended::Wrong => Ended::Broken,
            Ended::Broken => {
                return Err(Failure::Device(format!(
                    "cannot verify {candidate}: `warptile verify` does not end regularly with the present choice, {old}, either; \
                     nothing is recorded of it, and the same command goes on from here"
                )));
            }
            Ended::Interrupted => Ended::Interrupted,
        };
    }
    Ok(match ended {
        Ended::Right => Some(true),
        Ended::Wrong | Ended::Broken => Some(false),
        Ended::Interrupted => None,
    })
}

/// Runs `warptile verify` on a candidate in a process of its own.
fn verification(gpu: &Gpu, candidate: &Candidate, problems: &[&str]) -> Result<Ended, Failure> {
    let failed = |error| Failure::Device(format!("cannot verify {candidate}: {error}"));
    let mut child = again(gpu, "verify")?
        .args(candidate.options())
        .args(problems)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let status = ended_in_time(&mut child, VERIFYING).map_err(failed)?;
    match status.map(|status| status.code()) {
        _ if interrupt::requested() => Ok(Ended::Interrupted),
        Some(Some(0)) => Ok(Ended::Right),
        Some(Some(failure::WRONG)) => Ok(Ended::Wrong),
        // Killed, by a signal, or what the candidate did to the device.
        None | Some(None | Some(failure::DEVICE)) => Ok(Ended::Broken),
        Some(Some(code)) => Err(Failure::Device(format!(
            "cannot verify {candidate}: `warptile verify` ended with exit code {code}"
        ))),
    }
}
