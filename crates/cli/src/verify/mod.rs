//! `warptile verify`: random problems against the float64 reference.

mod backward;
mod check;
mod choose;
mod coverage;
mod devices;
mod failing;
mod known;
mod phases;
mod side_by_side;
mod tile;
pub(crate) mod totals;

use std::io::Write;
use std::slice::from_ref;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use warptile::plan::{Choice, Settings};
use warptile::{Backend, with_element};
use warptile_check::Case;
use warptile_kernels::Image;

use self::check::{Checked, Lane, Place, Ran, Repeat, Runs, SharedReference, Sync, check};
use self::choose::{Trial, images, limited, runnable};
use self::known::KnownProblems;
use self::phases::Phases;
use self::side_by_side::in_order;
use self::totals::Totals;
use crate::cases;
use crate::devices::{Devices, SeveralArgs};
use crate::failure::Failure;
use crate::interrupt;
use crate::json;
use crate::machine;
use crate::options::{self, Device};
use crate::progress;
use crate::team::Team;

/// Compute random problems and compare them with a float64 reference.
///
/// Each problem runs twice. Both results must be bit-for-bit identical. Their error against float64 must pass the rule of FlashAttention's
/// tests: a small multiple of that of the plain, unfused computation in the element type, plus a rounding error. Nothing may be written
/// outside the result, and the NaNs around the inputs must not reach it. On a GPU, every other problem is planned as if the GPU had only 1
/// to 5 multiprocessors, so that persistent kernels draw their tiles from the counter. The host computes the reference of small problems
/// and of every 17th large one. The GPU, which is faster, computes the others. A failing problem is made as small as possible and printed
/// as a command that repeats it.
///
/// With --devices, each problem is computed by several devices together. Results are compared with float64 as those of one device are,
/// except the log-sum-exp over NCCL.
///
/// Ctrl-C ends the verification and keeps its totals. A second Ctrl-C ends the program at once.
#[derive(Debug, Args)]
#[command(after_help = cases::help(&[
    "verify --count 2000 --seed 1 --json verify.json",
    "verify --device cuda:0 --each-kernel --kernel wgmma --repeat 100",
    "verify --case \"b2 q113 k203 h8/2 d64 f16 mask=window,64,0\"",
    "verify --device cuda:0 --kernel wmma --tile",
    "verify --device cuda:0 --backward --kernel dqkv --count 500",
    "verify --devices 0,1 --count 1000",
]))]
pub(crate) struct VerifyArgs {
    /// How many random problems to compute [default: 200; with --each-kernel: none]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Seed of the problems: the same seed gives the same problems
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Longest sequence of a random problem
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u16).range(1..))]
    max_len: u16,

    /// Only random problems whose keys and values are in pages
    #[arg(long, conflicts_with_all = ["case", "devices"])]
    paged: bool,

    /// Gradients of random problems instead of their outputs
    #[arg(long, conflicts_with_all = ["case", "paged", "tile", "settings"])]
    backward: bool,

    /// Kernels to verify: a family such as scalar, or the name of a kernel or an image; best: the planner's choice
    ///
    /// The problems are spread over all images of the family or the kernel that run on the device.
    #[arg(long, value_name = "NAME", conflicts_with = "devices")]
    kernel: Option<Choice>,

    /// Only images compiled for this target, such as sm_90 or compute_80
    #[arg(long, conflicts_with = "devices")]
    target: Option<String>,

    /// First compute two problems on every image: several tiles, full and ragged, drawn from the counter by persistent kernels
    #[arg(long, conflicts_with_all = ["case", "best", "multiprocessors", "devices"])]
    each_kernel: bool,

    /// Instead of problems, compute one tile on every image, and compare each of its scores and weights with float64
    ///
    /// The first wrong one is named by row and column, with the place where its value belongs.
    #[arg(long, conflicts_with_all = ["count", "max_len", "paged", "case", "best", "each_kernel", "multiprocessors", "repeat", "settings", "devices"])]
    tile: bool,

    /// Let the planner choose among the images, instead of computing with each of them
    #[arg(long, conflicts_with = "devices")]
    best: bool,

    /// Compute this problem instead of random ones; may be given several times
    #[arg(long, value_name = "PROBLEM", value_parser = cases::parse, conflicts_with_all = ["count", "seed", "max_len"])]
    case: Vec<Case>,

    /// Plan every problem as if the GPU had only N multiprocessors
    #[arg(long, value_name = "N", value_parser = options::multiprocessors(), conflicts_with = "devices")]
    multiprocessors: Option<u32>,

    /// Plan every problem as if a CTA could have only N KiB of shared memory
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), conflicts_with = "devices")]
    shared_kib: Option<u32>,

    /// Launch with these settings where a kernel can have them: at-once=N (or all), ranges=N and ctas=N, as `warptile tune` finds them
    #[arg(long, value_name = "WORDS", value_parser = options::settings, requires = "kernel", conflicts_with = "devices")]
    settings: Option<Settings>,

    /// Run each problem once, without the second run that must give the same bits: for tools that make launches slow
    #[arg(long, conflicts_with_all = ["repeat", "tile"])]
    once: bool,

    /// Then launch each problem N times in the same buffers; every result that is read must equal the first
    ///
    /// Gradients have new buffers at each launch, and each is waited for and read.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "devices")]
    repeat: Option<u32>,

    /// When to wait for repeated launches of outputs and read a result [default: end]
    #[arg(long, value_enum, requires = "repeat", conflicts_with_all = ["once", "tile", "devices"])]
    sync: Option<Sync>,

    /// Threads that compute problems in parallel, each on its own stream [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), conflicts_with = "devices")]
    threads: Option<u16>,

    /// Where to compute: auto (the best GPU, else the CPU), cpu or cuda:N
    #[arg(long, default_value_t = Device::Auto, conflicts_with = "devices")]
    device: Device,

    #[command(flatten)]
    several: SeveralArgs,

    /// Write the totals to this file, as JSON, after the first problem, every ten seconds, and at the end; - for standard output, at the
    /// end
    ///
    /// Until the end, and after Ctrl-C, "cut_short" is true.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<json::Target>,
}

/// After so long the totals are written again.
const WRITE_EVERY: Duration = Duration::from_secs(10);

/// Random problems if no number is given.
const COUNT: u64 = 200;

/// Problems drawn for each one that an image takes, before we conclude that none will.
const DRAWS_PER_PROBLEM: u64 = 50;

/// Runs the command.
pub(crate) fn run(args: &VerifyArgs, console: &mut dyn Write) -> Result<(), Failure> {
    args.several.check()?;
    if args.several.devices.is_some() {
        { args.case.iter() }.try_for_each(|case| args.several.deal(case).map(drop))?;
    }
    let gradients = args.backward || args.case.iter().any(|case| case.backward);
    let sync = match (args.sync, gradients) {
        (Some(_), true) => {
            return Err(Failure::Input(
                "--sync is for outputs: each launch of gradients is waited for and read".into(),
            ));
        }
        (None, true) => Sync::Each,
        (given, false) => given.unwrap_or(Sync::End),
    };
    let team = args.several.open()?;
    let backend = match &team {
        Some(team) => team.backends().remove(0),
        None => limited(args, args.device.open()?)?,
    };
    let images = images(args, &backend)?;
    let verify = Verify {
        args,
        runs: Runs {
            once: args.once,
            repeat: { args.repeat }.map(|launches| Repeat { launches, sync }),
        },
        runnable: match team {
            Some(_) => Vec::new(),
            None => runnable(args, &backend),
        },
        team: team.as_ref(),
        images,
        backend: &backend,
        reference: SharedReference::default(),
        start: Instant::now(),
        lost: Mutex::default(),
    };
    match &team {
        Some(team) => interrupt::watch(&team.backends()),
        None => interrupt::watch(from_ref(&backend)),
    }
    if args.tile {
        return tile::run(&verify, console);
    }
    let seed = args.case.first().map_or(args.seed, |case| case.seed);
    let lanes = verify.lanes()?;
    let mut totals = Totals::new(
        machine::describe(&backend),
        seed,
        verify.runs.repeat,
        lanes.len(),
    );
    let failing = verify
        .all(&lanes, &mut totals)
        .map_err(|failure| verify.with_commands(failure))?;
    totals.devices = { args.several.devices.as_ref() }.map(Devices::to_string);
    totals.engine = args.several.engine();
    totals.after(verify.start.elapsed());
    totals.cut_short = interrupt::requested();
    totals.runnable = match &verify.images {
        Some(images) => images.len(),
        None => verify.runnable.len(),
    };
    let place = match &totals.devices {
        Some(devices) => format!("devices {devices}"),
        None => backend.to_string(),
    };
    totals.print(&place, console)?;
    let repeat = match failing {
        Some(trial) => {
            // The simpler problems may break the device.
            let cut_short = std::mem::replace(&mut totals.cut_short, true);
            verify.keep(&mut totals, &mut None)?;
            totals.cut_short = cut_short;
            let smallest = verify.smallest(&lanes[0], trial);
            let smallest = smallest.map_err(|failure| verify.with_commands(failure))?;
            Some(verify.repeat_command(&smallest))
        }
        None => None,
    };
    totals.repeat.clone_from(&repeat);
    json::write(&args.json, &totals)?;
    match repeat {
        None if totals.cut_short => Err(Failure::Interrupted(
            "cut short: Ctrl-C came before the last problem".into(),
        )),
        None => Ok(()),
        Some(command) => Err(Failure::Wrong(format!(
            "{} of {} problems failed; the smallest found: {command}",
            totals.failed, totals.count
        ))),
    }
}

struct Verify<'a> {
    args: &'a VerifyArgs,
    runs: Runs,
    /// The images that the problems are spread over.
    images: Option<Vec<&'static Image>>,
    runnable: Vec<&'static Image>,
    backend: &'a Backend,
    /// Several devices, if they compute.
    team: Option<&'a Team>,
    /// For problems that would take the host long.
    reference: SharedReference,
    start: Instant,
    /// Commands that compute what was under way on a device that failed.
    lost: Mutex<Vec<String>>,
}

/// A thread's part of the device; `None`: the CPU path, which keeps nothing.
type MaybeLane<'a> = Option<Lane<'a>>;

impl Verify<'_> {
    /// One for each thread.
    fn lanes(&self) -> Result<Vec<MaybeLane<'_>>, Failure> {
        let threads = match (self.team, self.args.threads) {
            // The ranks have threads of their own.
            (Some(_), _) => return Ok(vec![None]),
            (None, Some(threads)) => usize::from(threads),
            (None, None) => machine::threads(),
        };
        let lane = |_| match self.backend.gpu() {
            None => Ok(None),
            Some(gpu) => Ok(Some(Lane::new(gpu, &self.reference)?)),
        };
        (0..threads).map(lane).collect()
    }

    /// Where a thread computes: with this image, or with what the planner chooses. `host_work` as [`Trial::host_work`].
    fn place<'a>(
        &'a self,
        lane: &'a MaybeLane<'a>,
        image: Option<&'static Image>,
        host_work: u128,
    ) -> Place<'a> {
        match lane {
            None => Place::Cpu,
            Some(lane) => Place::Gpu {
                lane,
                images: self.images.as_deref(),
                image,
                settings: self.args.settings,
                host_work,
            },
        }
    }

    /// Checks one problem. A device error ends the command: after it, the device's answers mean nothing.
    ///
    /// Problems that are `known` are made once for all images.
    fn check(
        &self,
        lane: &MaybeLane<'_>,
        trial: &Trial,
        known: Option<&KnownProblems>,
    ) -> Result<(Checked, Phases), Failure> {
        let place = self.place(lane, trial.image, trial.host_work);
        let mut seconds = Phases::default();
        let (case, runs) = (&trial.case, self.runs);
        let checked = match self.team {
            Some(team) => {
                let dealt = self.args.several.draw(case)?;
                with_element!(case.element, T => match case.backward {
                    true => devices::check_gradients::<T>(case, &dealt, team, runs, &mut seconds),
                    false => devices::check::<T>(case, &dealt, team, runs, &mut seconds),
                })
            }
            None => with_element!(case.element, T => match case.backward {
                true => backward::check::<T>(case, place, runs, &mut seconds),
                false => check::<T>(case, place, runs, known, &mut seconds),
            })
            .map_err(Failure::from),
        };
        match checked {
            // What was compared then may be a part of the data.
            Ok(Checked::Ran(Ran {
                outcome: Err(_), ..
            })) if interrupt::requested() => Err(warptile::Error::Stopped.into()),
            Ok(checked) => Ok((checked, seconds)),
            Err(failure) => {
                if let Failure::Device(_) = failure {
                    let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
                    lost.push(self.repeat_command(trial));
                }
                Err(failure)
            }
        }
    }

    /// Everything that was asked for; the first problem that failed, if any did.
    fn all(&self, lanes: &[MaybeLane<'_>], totals: &mut Totals) -> Result<Option<Trial>, Failure> {
        let mut failing = None;
        if self.args.case.is_empty() {
            if self.args.each_kernel {
                let reasons = self.each(lanes, self.two_for_each_image(), totals, &mut failing)?;
                if self.args.count.is_none() {
                    something(totals, reasons)?;
                }
            }
            if interrupt::requested() {
                return Ok(failing);
            }
            self.random(lanes, totals, &mut failing)?;
            return Ok(failing);
        }
        let reasons = self.each(lanes, self.given(), totals, &mut failing)?;
        something(totals, reasons)?;
        Ok(failing)
    }

    /// Checks the given problems and keeps a row for each; why the last one had no kernel.
    fn each(
        &self,
        lanes: &[MaybeLane<'_>],
        trials: Vec<Trial>,
        totals: &mut Totals,
        failing: &mut Option<Trial>,
    ) -> Result<String, Failure> {
        let mut reasons = String::new();
        let (count, known) = (trials.len() as u64, KnownProblems::default());
        let look = |totals: &mut Totals, trial: &Trial, checked: &Checked| {
            if let Checked::NotApplicable(why) = checked {
                reasons.clone_from(why);
            }
            totals.add_row(&trial.case, trial.image, checked);
            Ok(())
        };
        let trials = trials.into_iter();
        self.through(lanes, (trials, Some(&known)), count, totals, failing, look)?;
        Ok(reasons)
    }

    /// Checks problems, the `known` ones made once for all images, until so many were computed or there are no more. `look` is called before
    /// each is counted.
    fn through(
        &self,
        lanes: &[MaybeLane<'_>],
        (trials, known): (impl Iterator<Item = Trial> + Send, Option<&KnownProblems>),
        count: u64,
        totals: &mut Totals,
        failing: &mut Option<Trial>,
        mut look: impl FnMut(&mut Totals, &Trial, &Checked) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (before, mut written) = (totals.count, None);
        let bar = progress::problems(count);
        let check = |lane: &_, trial: &_| self.check(lane, trial, known);
        let ended = in_order(lanes, trials, check, |trial, (checked, seconds)| {
            look(totals, &trial, &checked)?;
            note(&trial, &checked, failing);
            totals.add(&trial.case, checked, seconds);
            bar.set_position(totals.count - before);
            bar.set_message(format!("({} failed),", totals.failed));
            self.keep(totals, &mut written)?;
            Ok(totals.count - before < count && !interrupt::requested())
        });
        interrupt::tolerate(ended)?;
        bar.finish_and_clear();
        Ok(())
    }

    /// Writes what there is, so that little is lost if the rest never comes.
    fn keep(&self, totals: &mut Totals, written: &mut Option<Instant>) -> Result<(), Failure> {
        let Some(json @ json::Target::File(_)) = &self.args.json else {
            return Ok(());
        };
        if written.is_some_and(|last| last.elapsed() < WRITE_EVERY) {
            return Ok(());
        }
        totals.after(self.start.elapsed());
        *written = Some(Instant::now());
        json.write(totals)
    }

    /// Random problems.
    fn random(
        &self,
        lanes: &[MaybeLane<'_>],
        totals: &mut Totals,
        failing: &mut Option<Trial>,
    ) -> Result<(), Failure> {
        let count = match self.args.count {
            Some(count) => count,
            None if self.args.each_kernel => return Ok(()),
            None => COUNT,
        };
        let (before, skipped) = (totals.count, totals.not_applicable);
        let look = |totals: &mut Totals, _: &Trial, checked: &Checked| match checked {
            Checked::NotApplicable(reasons)
                if totals.not_applicable - skipped
                    > DRAWS_PER_PROBLEM * (totals.count - before + 1) =>
            {
                Err(Failure::Input(format!(
                    "hardly any random problem has a kernel; the last one: {reasons}"
                )))
            }
            _ => Ok(()),
        };
        let drawn = (0..).map(|index| self.draw(index));
        self.through(lanes, (drawn, None), count, totals, failing, look)
    }
}

/// Nothing verified is no success, and `reasons` say why: no kernel took the last problem.
fn something(totals: &Totals, reasons: String) -> Result<(), Failure> {
    match totals.count == 0 && !interrupt::requested() {
        true => Err(Failure::Input(reasons)),
        false => Ok(()),
    }
}

/// Keeps the first problem that failed.
fn note(trial: &Trial, checked: &Checked, failing: &mut Option<Trial>) {
    if let Checked::Ran(ran) = checked
        && ran.outcome.is_err()
        && failing.is_none()
    {
        *failing = Some(trial.clone());
    }
}
