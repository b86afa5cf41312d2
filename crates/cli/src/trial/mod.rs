//! `warptile trial`: what `cargo xtask evolve pack` asks a GPU host for. For maintainers; `--help` does not list it.

mod counters;
mod format;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use warptile::plan::Choice;
use warptile_check::trial::{Rules, ratio};

use self::format::{CONTROL, Check, Results, Run, TASK, Task};
use crate::again::this_program;
use crate::bench::blocks::{self, LAUNCHES, Pair};
use crate::bench::gpu::with_bench;
use crate::cases;
use crate::failure::{self, Failure};
use crate::images;
use crate::json;
use crate::machine;
use crate::options::Device;
use crate::text;

/// Check and time the candidates of a folder, each against the kernel in use.
///
/// Every candidate computes random problems first, in a process of its own; one that is wrong is not timed. Times are
/// taken in blocks, twice, in two processes. What is measured is written after each problem: run the command again to
/// go on.
#[derive(Debug, Args)]
pub(crate) struct TrialArgs {
    /// The folder that `cargo xtask evolve pack` made
    folder: PathBuf,

    /// Where the results go
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// Where to compute: auto or cuda:N
    #[arg(long, default_value_t = Device::Auto)]
    device: Device,

    /// Times of this pass only; the command starts itself for each
    #[arg(long, hide = true)]
    pass: Option<u32>,
}

/// Launches of each candidate whose results must equal the first.
const REPEATED: &str = "25";

/// Candidates whose counters are taken: as many as a generation is bred from.
const COUNTED: usize = 3;

/// Longest sequence of a random problem.
const MAX_LEN: &str = "512";

/// Runs the command.
pub(crate) fn run(args: &TrialArgs, console: &mut dyn Write) -> Result<(), Failure> {
    let mut trial = Trial::new(args, json::read(&args.folder.join(TASK))?)?;
    match args.pass {
        Some(pass) => trial.time(pass, console),
        None => trial.all(console),
    }
}

struct Trial<'a> {
    args: &'a TrialArgs,
    backend: warptile::Backend,
    results: Results,
}

impl<'a> Trial<'a> {
    /// With what an earlier run left, if it was of this task on this device.
    fn new(args: &'a TrialArgs, task: Task) -> Result<Self, Failure> {
        let backend = args.device.open()?;
        if !backend.is_gpu() {
            return Err(Failure::Device(
                "candidates are timed on a GPU, and none was found".into(),
            ));
        }
        let machine = machine::describe(&backend);
        let begun = Results {
            device: machine.device,
            driver: machine.driver,
            program: machine.program.to_owned(),
            date: machine.date,
            cut_short: true,
            checks: BTreeMap::new(),
            runs: Vec::new(),
            counters: BTreeMap::new(),
            task,
        };
        let results = match args.out.exists() {
            false => begun,
            true => {
                let earlier: Results = json::read(&args.out)?;
                let is_same = earlier.task == begun.task
                    && earlier.device == begun.device
                    && earlier.driver == begun.driver
                    && earlier.program == begun.program;
                if !is_same {
                    return Err(Failure::Input(format!(
                        "{} is of another task, GPU, driver or program; move it away",
                        args.out.display()
                    )));
                }
                Results {
                    date: begun.date,
                    ..earlier
                }
            }
        };
        Ok(Trial {
            args,
            backend,
            results,
        })
    }

    fn write(&self) -> Result<(), Failure> {
        json::Target::File(self.args.out.clone()).write(&self.results)
    }

    fn all(&mut self, console: &mut dyn Write) -> Result<(), Failure> {
        self.write()?;
        let mut unchecked = None;
        for asked in self.results.task.candidates.clone() {
            if self.results.checks.contains_key(&asked.kernel) {
                continue;
            }
            let check = match self.check(&asked.image) {
                Ok(check) => check,
                Err(failure) => {
                    unchecked = unchecked.or(Some(failure));
                    continue;
                }
            };
            let said = check.wrong.as_deref().unwrap_or("right");
            writeln!(console, "{}: {said}", asked.kernel)?;
            self.results.checks.insert(asked.kernel, check);
            self.write()?;
        }
        if let Some(failure) = unchecked {
            return Err(failure);
        }
        for pass in [1, 2] {
            let mut command = self.subcommand("trial")?;
            command.arg(&self.args.folder).arg("--out");
            command.arg(&self.args.out);
            let status = command.args(["--pass", &pass.to_string()]).status()?;
            if !status.success() {
                return Err(Failure::Device(format!(
                    "pass {pass} ended with {status}; run the command again to go on"
                )));
            }
        }
        self.results = json::read(&self.args.out)?;
        self.count(console)?;
        self.results.cut_short = false;
        self.write()?;
        Ok(writeln!(
            console,
            "written: {}",
            text::path(&self.args.out)
        )?)
    }

    /// A subcommand of this program, which knows the images of the folder.
    fn subcommand(&self, name: &str) -> Result<Command, Failure> {
        let mut command = Command::new(this_program()?);
        command.env(images::VARIABLE, &self.args.folder).args([
            name,
            "--device",
            &self.args.device.to_string(),
        ]);
        Ok(command)
    }

    /// Computes random problems with an image: ragged and full tiles, drawn from the counter by kernels that do, among NaN and canaries,
    /// twice and then often. In a process of its own, which an image that breaks its context takes along.
    fn check(&self, image: &str) -> Result<Check, Failure> {
        let task = &self.results.task;
        let mut command = self.subcommand("verify")?;
        command.args(["--kernel", image, "--each-kernel", "--max-len", MAX_LEN]);
        command.args(["--count", &task.checks.to_string()]);
        command.args(["--seed", &task.seed.to_string()]);
        command.args(["--repeat", REPEATED, "--sync", "end"]);
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        let said = match said.trim() {
            "" => format!("ended with {}", output.status),
            said => said.to_owned(),
        };
        // Anything else, such as a full disk or the end of the host, says nothing of the results.
        let wrong = match output.status.code() {
            Some(0) => None,
            Some(failure::WRONG | failure::DEVICE) => Some(said),
            _ => {
                return Err(Failure::Device(format!(
                    "the verification of {image} ended with {}; run the command again to go on: {said}",
                    output.status
                )));
            }
        };
        Ok(Check {
            problems: task.checks,
            wrong,
        })
    }

    /// Takes the counters of the fastest candidates and of what is in use, on the problem with the most work. A host
    /// may be unable to: what is bred next goes by times alone then.
    fn count(&mut self, console: &mut dyn Write) -> Result<(), Failure> {
        let mut largest: Option<(u128, &String)> = None;
        for problem in &self.results.task.problems {
            let case = cases::parse_attention(problem).map_err(Failure::Input)?;
            let flops = case.try_call()?.flops();
            if largest.is_none_or(|(most, _)| flops > most) {
                largest = Some((flops, problem));
            }
        }
        let Some(problem) = largest.map(|(_, problem)| problem.clone()) else {
            return Ok(());
        };
        for kernel in self.counted(&problem) {
            if self.results.counters.contains_key(&kernel) {
                continue;
            }
            let asked = { self.results.task.candidates.iter() }.find(|one| one.kernel == kernel);
            let name = asked.map_or(&kernel, |asked| &asked.image);
            let mut command = self.subcommand("bench")?;
            command.args(["--samples", "1", "--shape", &problem, "--kernel", name]);
            match counters::of_launch(&command) {
                Ok(counters) => {
                    self.results.counters.insert(kernel, counters);
                    self.write()?;
                }
                Err(why) => return Ok(writeln!(console, "no counters of {kernel}: {why}")?),
            }
        }
        Ok(())
    }

    /// The kernel in use at a problem, and the candidates that may be bred from.
    fn counted(&self, problem: &str) -> Vec<String> {
        let task = &self.results.task;
        let first = |kernel: &str| {
            let ratios = self.results.ratios(kernel, 1, &task.problems, ratio)?;
            Some(Rules::of_tried(1).judge(&ratios).median)
        };
        let mut ranked: Vec<(f64, &String)> = { task.candidates.iter() }
            .filter_map(|asked| Some((first(&asked.kernel)?, &asked.kernel)))
            .collect();
        ranked.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let control = |run: &&Run| run.kernel == CONTROL && run.problem == problem;
        let in_use = self.results.runs.iter().find(control);
        in_use
            .map(|run| run.baseline.clone())
            .into_iter()
            .chain(
                ranked
                    .into_iter()
                    .take(COUNTED)
                    .map(|(_, kernel)| kernel.clone()),
            )
            .collect()
    }

    /// Times the control and everything that computed right.
    fn time(&mut self, pass: u32, console: &mut dyn Write) -> Result<(), Failure> {
        let process = SystemTime::now().duration_since(UNIX_EPOCH);
        let process = process.map_or(0, |since| since.as_nanos() as u64);
        let pass = Pass {
            number: pass,
            process,
        };
        let task = self.results.task.clone();
        let control = Timed {
            kernel: CONTROL,
            image: None,
        };
        let right = { task.candidates.iter() }.filter(|asked| {
            let check = self.results.checks.get(&asked.kernel);
            check.is_some_and(|check| check.wrong.is_none())
        });
        // A candidate that lost once is not measured again.
        let again = right.filter(|asked| pass.number == 1 || self.wins(&asked.kernel, 1));
        let timed: Vec<Timed<'_>> = again
            .map(|asked| Timed {
                kernel: &asked.kernel,
                image: Some(&asked.image),
            })
            .collect();
        let all: Vec<Timed<'_>> = [&[control], &timed[..]].concat();
        self.of_problems(&all, pass, &task.problems, false)?;
        let winners: Vec<Timed<'_>> = { timed.iter().copied() }
            .filter(|one| self.wins(one.kernel, pass.number))
            .collect();
        self.of_problems(&winners, pass, &task.held_out, true)?;
        for one in timed {
            let said = match self.wins(one.kernel, pass.number) {
                true => "a gain",
                false => "no certain gain",
            };
            writeln!(console, "{}, pass {}: {said}", one.kernel, pass.number)?;
        }
        Ok(())
    }

    fn wins(&self, kernel: &str, pass: u32) -> bool {
        let task = &self.results.task;
        let ratios = self.results.ratios(kernel, pass, &task.problems, ratio);
        let rules = Rules::of_tried(task.tried.max(task.candidates.len()));
        ratios.is_some_and(|ratios| rules.judge(&ratios).wins())
    }

    /// Times kernels on the problems that they were not timed on in this pass, one problem after the other.
    fn of_problems(
        &mut self,
        all: &[Timed<'_>],
        pass: Pass,
        problems: &[String],
        held_out: bool,
    ) -> Result<(), Failure> {
        let Some(gpu) = self.backend.gpu().cloned() else {
            return Ok(());
        };
        let family = &self.results.task.family;
        let family = match family.parse() {
            Ok(choice @ Choice::Family(_)) => choice,
            _ => {
                let family = text::name(family);
                return Err(Failure::Input(format!("{family}: there is no such family")));
            }
        };
        for problem in problems {
            let is_done = |one: &&Timed<'_>| {
                self.results.runs.iter().any(|run| {
                    run.kernel == one.kernel && run.pass == pass.number && run.problem == *problem
                })
            };
            let missing: Vec<&Timed<'_>> = all.iter().filter(|one| !is_done(one)).collect();
            if missing.is_empty() {
                continue;
            }
            let case = cases::parse_attention(problem).map_err(Failure::Input)?;
            let of_call = case.try_call()?.problem();
            let in_use = gpu.plan(of_call, &family)?;
            with_bench(&case, &gpu, |bench| {
                let launches = bench.launches().next_multiple_of(LAUNCHES);
                Ok(missing.into_iter().try_for_each(|one| {
                    let (new, launches_of_b) = match one.image {
                        Some(image) => {
                            let choice = Choice::Image(image.to_owned());
                            (gpu.plan(of_call, &choice)?, launches)
                        }
                        None => (
                            in_use.clone(),
                            launches / LAUNCHES * self.results.task.control_launches,
                        ),
                    };
                    let pair = Pair {
                        plans: [&in_use, &new],
                        launches: [launches, launches_of_b],
                        blocks: self.results.task.blocks,
                    };
                    let blocks = blocks::measure(bench, &pair)?;
                    self.results.runs.push(Run {
                        kernel: one.kernel.to_owned(),
                        pass: pass.number,
                        process: pass.process,
                        problem: problem.clone(),
                        held_out,
                        baseline: in_use.kernel_name().to_owned(),
                        blocks,
                    });
                    self.write()
                }))
            })??;
        }
        Ok(())
    }
}

/// A kernel that is timed against the one in use.
#[derive(Debug, Clone, Copy)]
struct Timed<'a> {
    kernel: &'a str,
    /// `None` for the control.
    image: Option<&'a str>,
}

/// One of the two passes, each in a process of its own.
#[derive(Debug, Clone, Copy)]
struct Pass {
    number: u32,
    process: u64,
}
