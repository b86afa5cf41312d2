//! `warptile verify`: random problems against the float64 reference.

mod check;
mod coverage;
mod side_by_side;
mod tile;
mod totals;

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use warptile::gpu::Gpu;
use warptile::{Backend, Choice, MAX_HEAD_DIM, Mask, Scoring, Settings};
use warptile_check::Case;
use warptile_kernels::{Features, Image, Role, Schedule, images_for};

use self::check::{
    Checked, HOST_CAN, HOST_SHOULD, Lane, Phases, Place, Repeat, SharedReference, Sync, check,
};
use self::side_by_side::in_order;
use self::totals::Totals;
use crate::cases;
use crate::failure::Failure;
use crate::images;
use crate::interrupt;
use crate::json;
use crate::machine;
use crate::options::{self, Device};
use crate::progress;

/// Compute random problems and compare them with a float64 reference.
///
/// Each problem runs twice: both results must be bit-for-bit identical, and right: no further from float64 than twice the plain,
/// unfused computation in the element type (three times with a softcap), plus a rounding error. Nothing may be written
/// outside the result, and NaN around the inputs must not reach it. On a GPU every other problem is planned as if the GPU
/// had only 1 to 5 multiprocessors, so that persistent kernels draw their tiles from the counter. The reference of small
/// problems, and of every 17th of the others, is computed on the host; that of the rest on the GPU, which is faster. A failing
/// problem is made as small as it can be and printed as a command that repeats it.
///
/// Ctrl-C ends the verification and keeps its totals.
#[derive(Debug, Args)]
#[command(after_help = cases::help(&[
    "verify --count 2000 --seed 1 --json verify.json",
    "verify --device cuda:0 --each-kernel --kernel wgmma --repeat 100",
    "verify --case \"b2 q113 k203 h8/2 d64 f16 mask=causal softcap=30\"",
    "verify --device cuda:0 --kernel wmma --tile",
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
    #[arg(long, conflicts_with = "case")]
    paged: bool,

    /// Spread the problems over the images that run on the device of a family such as scalar, or of a kernel, or use one
    /// image, by its name; best: what the planner chooses
    #[arg(long, value_name = "NAME")]
    kernel: Option<Choice>,

    /// Only images compiled for this target, such as sm_90 or compute_80
    #[arg(long)]
    target: Option<String>,

    /// First compute two problems on every image: several tiles, full and ragged, drawn from the counter by persistent kernels
    #[arg(long, conflicts_with_all = ["case", "best", "multiprocessors"])]
    each_kernel: bool,

    /// Instead of problems compute one tile on every image, and compare each of its scores and weights with float64: names the first
    /// that is wrong by row and column, and where its value belongs
    #[arg(long, conflicts_with_all = ["count", "max_len", "paged", "case", "best", "each_kernel", "multiprocessors", "repeat", "settings"])]
    tile: bool,

    /// Let the planner choose among the images, instead of computing with each of them
    #[arg(long)]
    best: bool,

    /// Compute this problem instead of random ones; may be given several times
    #[arg(long, value_name = "PROBLEM", value_parser = cases::parse, conflicts_with_all = ["count", "seed", "max_len"])]
    case: Vec<Case>,

    /// Plan every problem as if the GPU had only N multiprocessors
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    multiprocessors: Option<u32>,

    /// Plan every problem as if a CTA could have only N KiB of shared memory
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    shared_kib: Option<u32>,

    /// Launch with these settings where a kernel can have them: at-once=N, ranges=N and ctas=N, as `warptile tune` finds them
    #[arg(long, value_name = "WORDS", value_parser = options::settings, requires = "kernel")]
    settings: Option<Settings>,

    /// Then launch each problem N times in the same buffers; every result looked at must equal the first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: Option<u32>,

    /// When repeated launches are waited for
    #[arg(long, value_enum, default_value_t = Sync::End, requires = "repeat")]
    sync: Sync,

    /// Threads that compute problems side by side, each on a stream of its own [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,

    /// Where to compute: auto (the best GPU, else the CPU), cpu or cuda:N
    #[arg(long, default_value_t = Device::Auto)]
    device: Device,

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

/// Simpler cases tried before the smallest failing one is printed.
const SHRINK_TRIES: usize = 500;

/// Problems drawn for each one that an image takes, before we conclude that none will.
const DRAWS_PER_PROBLEM: u64 = 50;

/// The largest number of multiprocessors that every other random problem is planned for.
const FEW_MULTIPROCESSORS: u64 = 5;

/// At one of so many turns of an image the host computes the reference if it can. A prime, so that this goes with each number
/// of multiprocessors.
const TURNS_TO_HOST: u64 = 17;

/// At one of so many turns an image that shares keys cuts them at fixed places. Odd, as above.
const TURNS_TO_SPLITS: u64 = 3;

/// Runs the command.
pub(crate) fn run(args: &VerifyArgs, console: &mut dyn Write) -> Result<(), Failure> {
    if let Some(json) = &args.json {
        json.check()?;
    }
    let backend = limited(args, args.device.open()?)?;
    let images = images(args, &backend)?;
    let verify = Verify {
        args,
        repeat: args.repeat.map(|launches| Repeat {
            launches,
            sync: args.sync,
        }),
        runnable: runnable(&backend),
        images,
        backend: &backend,
        reference: SharedReference::default(),
        start: Instant::now(),
        lost: Mutex::default(),
    };
    interrupt::watch();
    if args.tile {
        return tile::run(&verify, console);
    }
    let seed = args.case.first().map_or(args.seed, |case| case.seed);
    let lanes = verify.lanes()?;
    let mut totals = Totals::new(
        machine::describe(&backend),
        seed,
        verify.repeat,
        lanes.len(),
    );
    let failing = verify
        .all(&lanes, &mut totals)
        .map_err(|failure| verify.with_commands(failure))?;
    totals.after(verify.start.elapsed());
    totals.cut_short = interrupt::requested();
    totals.runnable = match &verify.images {
        Some(images) => images.len(),
        None => verify.runnable.len(),
    };
    totals.print(&backend.to_string(), console)?;
    let repeat = match failing {
        Some(trial) => {
            let smallest = verify.smallest(&lanes[0], trial);
            let smallest = smallest.map_err(|failure| verify.with_commands(failure))?;
            Some(verify.repeat_command(&smallest))
        }
        None => None,
    };
    totals.repeat.clone_from(&repeat);
    if let Some(json) = &args.json {
        json.write(&totals)?;
    }
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

/// The images that run on the device.
fn runnable(backend: &Backend) -> Vec<&'static Image> {
    let Some(gpu) = backend.gpu() else {
        return Vec::new();
    };
    let profile = gpu.profile();
    let runs = |image: &&Image| image.target.runs_on(profile.major, profile.minor);
    images_for(Role::Forward).filter(runs).collect()
}

/// The same GPU, planned for as if a CTA could have only so much shared memory.
fn limited(args: &VerifyArgs, backend: Backend) -> Result<Backend, Failure> {
    let (Some(gpu), Some(kib)) = (backend.gpu(), args.shared_kib) else {
        return Ok(backend);
    };
    let mut profile = gpu.profile().clone();
    profile.shared_bytes_per_cta = (kib << 10).min(profile.shared_bytes_per_cta);
    let gpu = Gpu::on_stream(gpu.stream())?
        .with_profile(profile)
        .with_named_images(images::named()?.iter().copied());
    Ok(Backend::from_gpu(Arc::new(gpu)))
}

/// The images to spread problems over: those asked for that run on the device. `None` if none were asked for.
fn images(args: &VerifyArgs, backend: &Backend) -> Result<Option<Vec<&'static Image>>, Failure> {
    let kernel = match &args.kernel {
        Some(Choice::Best) | None => None,
        Some(choice) => Some(choice),
    };
    let option = match (kernel, &args.target) {
        (Some(choice), _) => format!("--kernel {choice}"),
        (None, Some(target)) => format!("--target {target}"),
        _ if args.each_kernel => "--each-kernel".to_owned(),
        _ if args.multiprocessors.is_some() => "--multiprocessors".to_owned(),
        _ if args.shared_kib.is_some() => "--shared-kib".to_owned(),
        _ => return Ok(None),
    };
    if !backend.is_gpu() {
        return Err(Failure::Input(format!(
            "{option} needs a GPU; the problems would run on {backend}"
        )));
    }
    if kernel.is_none() && args.target.is_none() && !args.each_kernel {
        return Ok(None);
    }
    let is_chosen = |image: &Image| match kernel {
        Some(Choice::Family(family)) => image.family == *family,
        // The name of an image from a folder was parsed as that of a kernel.
        Some(Choice::Kernel(name) | Choice::Image(name)) => {
            image.kernel == name || image.name == name
        }
        _ => true,
    };
    let target = args.target.as_deref();
    let is_of_target = |image: &Image| target.is_none_or(|name| image.target.to_string() == name);
    let mut images = runnable(backend);
    if let (Some(choice), Some(gpu)) = (kernel, backend.gpu()) {
        let (major, minor) = (gpu.profile().major, gpu.profile().minor);
        let named = images::chosen(choice)?.into_iter();
        images.extend(named.filter(|image| image.target.runs_on(major, minor)));
    }
    images.retain(|image| is_chosen(image) && is_of_target(image));
    if images.is_empty() {
        let mut asked: Vec<String> = kernel
            .iter()
            .map(|choice| format!("kernel {choice}"))
            .collect();
        asked.extend(target.map(|target| format!("target {target}")));
        return Err(Failure::Input(format!(
            "no image of {} runs on {backend}; `warptile info --kernels` lists what there is",
            asked.join(" and ")
        )));
    }
    Ok(Some(images))
}

/// A problem and where to compute it.
#[derive(Debug, Clone)]
struct Trial {
    case: Case,
    /// Forced; `None`: the planner's choice.
    image: Option<&'static Image>,
    /// Multiply-adds up to which the host computes the reference.
    host_work: u128,
}

/// Longest sequences of the problems whose reference the host can compute.
const HOST_LEN: usize = 1024;

/// Multiply-adds of each product of a longer random problem, whose reference is computed on the GPU: 4096 x 4096 scores of
/// 64 heads of size 128.
const GPU_WORK: usize = 1 << 37;

struct Verify<'a> {
    args: &'a VerifyArgs,
    repeat: Option<Repeat>,
    /// What the problems are spread over.
    images: Option<Vec<&'static Image>>,
    runnable: Vec<&'static Image>,
    backend: &'a Backend,
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
        let threads = self.args.threads.map_or_else(machine::threads, usize::from);
        let lane = |_| match self.backend.gpu() {
            None => Ok(None),
            Some(gpu) => Ok(Some(Lane::new(gpu, &self.reference)?)),
        };
        (0..threads).map(lane).collect()
    }

    /// Checks one problem. A device error ends the command: after it, the device's answers mean nothing.
    fn check(&self, lane: &MaybeLane<'_>, trial: &Trial) -> Result<(Checked, Phases), Failure> {
        let choice = match trial.image {
            Some(image) => Choice::Image(image.name.to_owned()),
            None => Choice::Best,
        };
        let place = match lane {
            None => Place::Cpu,
            Some(lane) => Place::Gpu {
                lane,
                images: self.images.as_deref(),
                choice: &choice,
                settings: self.args.settings,
                host_work: trial.host_work,
            },
        };
        let mut seconds = Phases::default();
        match check(&trial.case, place, self.repeat, &mut seconds) {
            Ok(checked) => Ok((checked, seconds)),
            Err(error) => {
                let failure = Failure::from(error);
                if let Failure::Device(_) = failure {
                    let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
                    lost.push(self.repeat_command(trial));
                }
                Err(failure)
            }
        }
    }

    /// A device's failure with what was being computed. It takes the problems of all threads along, whoever caused it.
    fn with_commands(&self, failure: Failure) -> Failure {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        match (failure, &lost[..]) {
            (Failure::Device(message), [command]) => {
                Failure::Device(format!("{message}\nwhile computing: {command}"))
            }
            (Failure::Device(message), [_, ..]) => Failure::Device(format!(
                "{message}\nwhile computing all of these; one of them may be the cause:\n{}",
                lost.join("\n")
            )),
            (failure, _) => failure,
        }
    }

    /// Everything that was asked for; the first problem that failed, if any did.
    fn all(&self, lanes: &[MaybeLane<'_>], totals: &mut Totals) -> Result<Option<Trial>, Failure> {
        let mut failing = None;
        if self.args.case.is_empty() {
            if self.args.each_kernel {
                self.each(lanes, self.two_for_each_image(), totals, &mut failing)?;
            }
            if interrupt::requested() {
                return Ok(failing);
            }
            self.random(lanes, totals, &mut failing)?;
            return Ok(failing);
        }
        let trials = self.args.case.iter().flat_map(|case| {
            let trial = |image| Trial {
                case: Case {
                    multiprocessors: self.args.multiprocessors.or(case.multiprocessors),
                    ..case.clone()
                },
                image,
                host_work: HOST_CAN,
            };
            match &self.images {
                Some(images) if !self.args.best => {
                    images.iter().map(|&image| trial(Some(image))).collect()
                }
                _ => vec![trial(None)],
            }
        });
        let reasons = self.each(lanes, trials.collect(), totals, &mut failing)?;
        if totals.count == 0 && !interrupt::requested() {
            return Err(Failure::Input(reasons));
        }
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
        let mut written = None;
        let bar = progress::problems(trials.len() as u64);
        let check = |lane: &_, trial: &_| self.check(lane, trial);
        in_order(
            lanes,
            trials.into_iter(),
            check,
            |trial, (checked, seconds)| {
                if let Checked::NotApplicable(why) = &checked {
                    reasons.clone_from(why);
                }
                totals.add_row(&trial.case, trial.image, &checked);
                note(&trial, &checked, failing);
                totals.add(&trial.case, checked, seconds);
                bar.inc(1);
                bar.set_message(format!("({} failed),", totals.failed));
                self.keep(totals, &mut written)?;
                Ok(match interrupt::requested() {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                })
            },
        )?;
        bar.finish_and_clear();
        Ok(reasons)
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

    /// For each image a problem of three tiles of rows for each of two heads, and one whose rows, keys and columns end in the
    /// middle of their tiles. One multiprocessor holds fewer CTAs than there are tiles, so a persistent kernel draws.
    fn two_for_each_image(&self) -> Vec<Trial> {
        let images = self.images.iter().flatten();
        images
            .flat_map(|&image| {
                two_cases(image, self.args.seed).map(|case| Trial {
                    case,
                    image: Some(image),
                    host_work: HOST_CAN,
                })
            })
            .collect()
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
        let bar = progress::problems(count);
        let check = |lane: &_, trial: &_| self.check(lane, trial);
        let mut written = None;
        let drawn = (0..).map(|index| self.draw(index));
        in_order(lanes, drawn, check, |trial, (checked, seconds)| {
            if let Checked::NotApplicable(reasons) = &checked
                && totals.not_applicable - skipped > DRAWS_PER_PROBLEM * (totals.count - before + 1)
            {
                return Err(Failure::Input(format!(
                    "hardly any random problem has a kernel; the last one: {reasons}"
                )));
            }
            note(&trial, &checked, failing);
            totals.add(&trial.case, checked, seconds);
            bar.set_position(totals.count - before);
            bar.set_message(format!("({} failed),", totals.failed));
            self.keep(totals, &mut written)?;
            Ok(
                match totals.count - before < count && !interrupt::requested() {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                },
            )
        })?;
        bar.finish_and_clear();
        Ok(())
    }

    /// The `index`th random problem. Images take turns, each with problems that its tiles can hold; every other turn is
    /// planned for a few multiprocessors, and some cut keys at fixed places.
    fn draw(&self, index: u64) -> Trial {
        // Far apart, so that two runs with neighbouring seeds share no problem.
        let seed = self.args.seed.wrapping_mul(1 << 32).wrapping_add(index);
        let max_len = usize::from(self.args.max_len);
        let mut case = match self.backend.gpu() {
            Some(_) if max_len > HOST_LEN => Case::random_with_work(seed, max_len, GPU_WORK),
            _ => Case::random(seed, max_len),
        };
        if self.args.paged && case.pages.is_none() {
            case = case.with_pages();
        }
        let images = match &self.images {
            Some(images) if !self.args.best => &images[..],
            _ => &[],
        };
        let count = images.len().max(1) as u64;
        let (turn, position) = (index / count, index % count);
        let image = images.get(position as usize).copied();
        if let Some(image) = image {
            let widest = (image.tiling.head_dim as usize).min(MAX_HEAD_DIM);
            case.head_dim = case.head_dim.min(widest);
            let widest_values = (image.tiling.value_dim as usize).min(MAX_HEAD_DIM);
            case.value_dim = case.value_dim.min(widest_values);
            case.element = image.element;
            case.e4m3 = image.reads_e4m3();
            if case.e4m3 {
                // Others are not aligned, whatever their strides.
                case.head_dim = case.head_dim.next_multiple_of(16).min(widest);
                case.value_dim = case.value_dim.next_multiple_of(16).min(widest_values);
            }
            if image.schedule == Schedule::SharedKeys && turn % TURNS_TO_SPLITS == 0 {
                case = case.with_splits();
            }
        }
        case.multiprocessors = match self.args.multiprocessors {
            None if self.backend.is_gpu() && turn % 2 == 1 => {
                Some((1 + turn / 2 % FEW_MULTIPROCESSORS) as u32)
            }
            given => given,
        };
        // Not the same turn of all images, so that few problems have their share of it, too.
        let host_work = match (turn + position) % TURNS_TO_HOST {
            0 => HOST_CAN,
            _ => HOST_SHOULD,
        };
        Trial {
            case,
            image,
            host_work,
        }
    }

    /// The last of ever simpler problems that still fails.
    fn smallest(&self, lane: &MaybeLane<'_>, trial: Trial) -> Result<Trial, Failure> {
        let case = shrink(trial.case.clone(), SHRINK_TRIES, |case| {
            // What there is must do.
            if interrupt::requested() {
                return Ok(false);
            }
            let simpler = Trial {
                case: case.clone(),
                ..trial.clone()
            };
            Ok::<_, Failure>(match self.check(lane, &simpler)?.0 {
                Checked::Ran(ran) => ran.outcome.is_err(),
                Checked::NotApplicable(_) => false,
            })
        })?;
        Ok(Trial { case, ..trial })
    }

    fn repeat_command(&self, trial: &Trial) -> String {
        let mut command = format!("warptile verify --device {}", self.args.device);
        let mut option = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                command.push_str(&format!(" --{name} {value}"));
            }
        };
        match trial.image {
            Some(image) => option("kernel", Some(image.name.to_owned())),
            None => {
                option("kernel", self.args.kernel.as_ref().map(Choice::to_string));
                option("target", self.args.target.clone());
            }
        }
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        option("shared-kib", number(self.args.shared_kib));
        let settings = self.args.settings.map(|settings| format!("\"{settings}\""));
        option("settings", settings);
        if let Some(repeat) = self.repeat {
            option("repeat", number(Some(repeat.launches)));
            option("sync", Some(repeat.sync.to_string()));
        }
        if trial.image.is_none() && self.args.best {
            command.push_str(" --best");
        }
        format!("{command} --case \"{}\"", trial.case)
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

/// See [`Verify::two_for_each_image`].
fn two_cases(image: &Image, seed: u64) -> [Case; 2] {
    let tiling = &image.tiling;
    let (rows, keys) = (tiling.block_m as usize, tiling.block_n as usize);
    let [head_dim, value_dim] =
        [tiling.head_dim, tiling.value_dim].map(|size| (size as usize).min(MAX_HEAD_DIM));
    // One multiprocessor, so that CTAs draw tiles; or four, with one CTA each or two, and enough keys that two of ten tiles are split.
    let persistent = image.schedule.is_persistent();
    let serving = persistent && image.features.contains(Features::PAGED);
    let (multiprocessors, tiles, keys) = match serving {
        true => (4, 5, 8 * keys),
        false => (1, 3, keys),
    };
    // Of keys in e4m3, so many are aligned, too.
    let narrower = if image.reads_e4m3() { 16 } else { 8 };
    let less = |size: usize, by: usize| size.saturating_sub(by).max(narrower);
    let case = |query, key, head_dim, value_dim, mask| Case {
        value_dim,
        heads: 2,
        kv_heads: 1,
        element: image.element,
        e4m3: image.reads_e4m3(),
        scoring: Scoring::new().mask(mask),
        pages: serving.then_some(32),
        multiprocessors: persistent.then_some(multiprocessors),
        seed,
        ..Case::new(query, key, head_dim)
    };
    [
        case(tiles * rows, 3 * keys, head_dim, value_dim, Mask::none()),
        case(
            (tiles - 1) * rows + 5,
            2 * keys + 9,
            less(head_dim, narrower),
            less(value_dim, 2 * narrower),
            Mask::causal(),
        ),
    ]
}

/// Takes the first simpler case that `fails`, again and again, until none does or `tries` cases were tried.
fn shrink<E>(
    mut case: Case,
    mut tries: usize,
    mut fails: impl FnMut(&Case) -> Result<bool, E>,
) -> Result<Case, E> {
    'simpler: loop {
        for candidate in case.shrink() {
            if tries == 0 {
                return Ok(case);
            }
            tries -= 1;
            if fails(&candidate)? {
                case = candidate;
                continue 'simpler;
            }
        }
        return Ok(case);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn shrunk(tries: usize, fails: impl Fn(&Case) -> bool) -> String {
        let case: Case =
            "b3 q400 k300 h6/2 d128 f16 mask=window,3,9 softcap=15 alibi=head layout=gaps seed=5"
                .parse()
                .unwrap();
        let Ok(smallest) = shrink(case, tries, |case| Ok::<_, Infallible>(fails(case)));
        smallest.to_string()
    }

    #[test]
    fn only_what_matters_is_left() {
        let fails = |case: &Case| case.call().key_len() >= 65 && case.scoring.mask != Mask::none();
        assert_eq!(
            shrunk(10_000, fails),
            "b1 q0 k65 h1 d8 f16 mask=window,3,9 seed=5"
        );
    }

    #[test]
    fn shrinking_ends_when_the_tries_do() {
        assert_eq!(
            shrunk(1, |_| true),
            "b3 q400 k300 h6/2 d128 f16 softcap=15 alibi=head layout=gaps seed=5"
        );
    }
}
