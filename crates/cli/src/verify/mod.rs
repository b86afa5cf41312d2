//! `warptile verify`: random problems against the float64 reference.

mod check;
mod generate;
mod shrink;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use warptile::{Backend, ElementType, Image};

use self::check::{Checked, check};
use self::generate::{KernelChoice, random_case};
use crate::case::{Case, GRAMMAR};
use crate::failure::Failure;
use crate::machine::{self, Machine};
use crate::options::Device;
use crate::random::Random;

/// Compute random problems and hold them against the float64 reference.
///
/// Each problem runs twice: both results must be equal to the bit, and right: no further from float64 than twice the plain,
/// unfused computation in the element type (three times with a softcap), plus a rounding error. The first failing
/// problem is made as small as it can be and printed as a command that repeats it.
#[derive(Debug, Args)]
#[command(after_help = GRAMMAR)]
pub(crate) struct VerifyArgs {
    /// How many problems to compute
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,

    /// Seed of the problems: the same seed gives the same problems
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Spread the problems over all kernels of this family that the device has, such as scalar
    #[arg(long, conflicts_with_all = ["kernel", "case"])]
    family: Option<String>,

    /// Compute every problem with the kernel of this name
    #[arg(long, value_name = "NAME", conflicts_with = "case")]
    kernel: Option<String>,

    /// Compute this one problem instead of random ones
    #[arg(long, value_name = "PROBLEM", conflicts_with_all = ["count", "seed"])]
    case: Option<Case>,

    /// Where to compute: auto (the best GPU, else the CPU), cpu or cuda:N
    #[arg(long, default_value_t = Device::Auto)]
    device: Device,

    /// Write the totals to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Simpler cases tried before the smallest failing one is printed.
const SHRINK_TRIES: usize = 400;

/// Cases drawn for each one that a kernel takes, before we conclude that none will.
const DRAWS_PER_CASE: u64 = 50;

/// Failures described one by one; the rest are only counted.
const FAILURES_SHOWN: usize = 10;

/// The JSON that `--json` writes.
#[derive(Debug, Serialize)]
struct Totals {
    #[serde(flatten)]
    machine: Machine,
    seed: u64,
    family: Option<String>,
    kernel: Option<String>,
    /// Problems computed: passed plus failed.
    count: u64,
    passed: u64,
    failed: u64,
    /// Problems drawn that no kernel takes; not counted above.
    not_applicable: u64,
    seconds: f64,
    images: Vec<ImageTotals>,
    failures: Vec<FailedCase>,
    /// The smallest failing problem, if any failed.
    smallest: Option<String>,
}

/// How one image did. The CPU path has no image and no entry.
#[derive(Debug, Serialize)]
struct ImageTotals {
    image: &'static str,
    sha256: &'static str,
    passed: u64,
    failed: u64,
}

#[derive(Debug, Serialize)]
struct FailedCase {
    case: String,
    reason: String,
}

/// Runs the command.
pub(crate) fn run(args: &VerifyArgs, console: &mut impl Write) -> Result<(), Failure> {
    let backend = args.device.open()?;
    let mut totals = Totals {
        machine: machine::describe(&backend),
        seed: args.seed,
        family: args.family.clone(),
        kernel: args.kernel.clone(),
        count: 0,
        passed: 0,
        failed: 0,
        not_applicable: 0,
        seconds: 0.0,
        images: Vec::new(),
        failures: Vec::new(),
        smallest: None,
    };
    let start = Instant::now();
    let failing = match &args.case {
        Some(case) => one_case(case, &backend, &mut totals)?,
        None => many_cases(args, &backend, &mut totals)?,
    };
    totals.seconds = start.elapsed().as_secs_f64();
    report(args, &backend, failing, &mut totals, console)
}

fn one_case(
    case: &Case,
    backend: &Backend,
    totals: &mut Totals,
) -> Result<Option<Case>, Failure> {
    totals.seed = case.seed;
    totals.kernel.clone_from(&case.kernel);
    let mut images = BTreeMap::new();
    match check(case, backend)? {
        Checked::NotApplicable(reasons) => return Err(Failure::Input(reasons)),
        checked => totals.add(case, checked, &mut images),
    }
    totals.images = images.into_values().collect();
    Ok((totals.failed > 0).then(|| case.clone()))
}

/// The first case that failed, if any did.
fn many_cases(
    args: &VerifyArgs,
    backend: &Backend,
    totals: &mut Totals,
) -> Result<Option<Case>, Failure> {
    let kernels = kernels(args, backend)?;
    let mut random = Random::new(args.seed);
    let mut images = BTreeMap::new();
    let mut failing = None;
    let bar = ProgressBar::new(args.count).with_style(
        ProgressStyle::with_template("{bar:40} {pos}/{len} problems, {msg}, {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let mut last_reasons = String::new();
    while totals.count < args.count {
        let case = random_case(&mut random, &kernels);
        let checked = check(&case, backend).map_err(|error| stopped(error, &case, args.device))?;
        if let Checked::NotApplicable(reasons) = &checked {
            last_reasons.clone_from(reasons);
            if totals.not_applicable > DRAWS_PER_CASE * (totals.count + 1) {
                return Err(Failure::Input(format!(
                    "hardly any random problem has a kernel; the last one: {last_reasons}"
                )));
            }
        }
        totals.add(&case, checked, &mut images);
        if failing.is_none() && totals.failed > 0 {
            failing = Some(case);
        }
        bar.set_position(totals.count);
        bar.set_message(format!("{} failed", totals.failed));
    }
    bar.finish_and_clear();
    totals.images = images.into_values().collect();
    Ok(failing)
}

/// A device error ends the command: after it, the device's answers mean nothing.
fn stopped(error: warptile::Error, case: &Case, device: Device) -> Failure {
    match Failure::from(error) {
        Failure::Device(message) => Failure::Device(format!(
            "{message}\nwhile computing: {}",
            repeat_command(case, device)
        )),
        other => Failure::Input(format!("{other}\nwhile computing: {case}")),
    }
}

fn repeat_command(case: &Case, device: Device) -> String {
    format!("warptile verify --device {device} --case \"{case}\"")
}

impl Totals {
    fn add(
        &mut self,
        case: &Case,
        checked: Checked,
        images: &mut BTreeMap<&'static str, ImageTotals>,
    ) {
        let mut of_image = |image: Option<&'static Image>, passed, failed| {
            if let Some(image) = image {
                let totals = images.entry(image.name).or_insert(ImageTotals {
                    image: image.name,
                    sha256: image.sha256,
                    passed: 0,
                    failed: 0,
                });
                totals.passed += passed;
                totals.failed += failed;
            }
        };
        match checked {
            Checked::Passed(image) => {
                of_image(image, 1, 0);
                self.passed += 1;
                self.count += 1;
            }
            Checked::Failed { image, reason } => {
                of_image(image, 0, 1);
                self.failed += 1;
                self.count += 1;
                self.failures.push(FailedCase {
                    case: case.to_string(),
                    reason,
                });
            }
            Checked::NotApplicable(_) => self.not_applicable += 1,
        }
    }
}

/// The kernels to draw cases for.
fn kernels(args: &VerifyArgs, backend: &Backend) -> Result<Vec<KernelChoice>, Failure> {
    let wanted = |image: &Image| match (&args.family, &args.kernel) {
        (Some(family), _) => image.family.to_string() == *family,
        (None, Some(kernel)) => image.kernel == kernel,
        (None, None) => false,
    };
    if args.family.is_none() && args.kernel.as_deref().is_none_or(|name| name == "cpu") {
        return Ok([ElementType::F16, ElementType::Bf16, ElementType::F32]
            .map(|element| KernelChoice {
                name: None,
                element,
                head_dim: warptile::MAX_HEAD_DIM,
            })
            .to_vec());
    }
    let asked = args.family.as_deref().or(args.kernel.as_deref()).unwrap_or_default();
    let Some(gpu) = backend.gpu() else {
        return Err(Failure::Input(format!(
            "{asked} needs a GPU; the problems would run on {backend}"
        )));
    };
    let profile = gpu.profile();
    let mut kernels: Vec<KernelChoice> = Vec::new();
    for image in warptile_kernels::catalog() {
        let choice = KernelChoice {
            name: Some(image.kernel),
            element: image.element,
            head_dim: image.tiling.head_dim as usize,
        };
        let runs = image.target.runs_on(profile.major, profile.minor);
        if wanted(image) && runs && !kernels.contains(&choice) {
            kernels.push(choice);
        }
    }
    if kernels.is_empty() {
        return Err(Failure::Input(format!(
            "no kernel or family {asked} runs on {backend}; `warptile info` lists what there is"
        )));
    }
    Ok(kernels)
}

fn report(
    args: &VerifyArgs,
    backend: &Backend,
    failing: Option<Case>,
    totals: &mut Totals,
    console: &mut impl Write,
) -> Result<(), Failure> {
    for failure in totals.failures.iter().take(FAILURES_SHOWN) {
        writeln!(console, "failed   {}\n         {}", failure.case, failure.reason)?;
    }
    if totals.failures.len() > FAILURES_SHOWN {
        writeln!(console, "... and {} more", totals.failures.len() - FAILURES_SHOWN)?;
    }
    let smallest = match failing {
        Some(case) => Some(shrink::shrink(&case, SHRINK_TRIES, |case| {
            check(case, backend)
                .map(|checked| matches!(checked, Checked::Failed { .. }))
                .map_err(|error| stopped(error, case, args.device))
        })?),
        None => None,
    };
    totals.smallest = smallest.as_ref().map(Case::to_string);
    for image in &totals.images {
        writeln!(console, "image    {}: {} passed, {} failed", image.image, image.passed, image.failed)?;
    }
    writeln!(
        console,
        "verified {} problems on {backend} in {:.1} s: {} passed, {} failed{}",
        totals.count,
        totals.seconds,
        totals.passed,
        totals.failed,
        match totals.not_applicable {
            0 => String::new(),
            skipped => format!(" ({skipped} more drawn that no kernel takes)"),
        }
    )?;
    if let Some(path) = &args.json {
        crate::json::write(path, totals)?;
    }
    match smallest {
        None => Ok(()),
        Some(case) => Err(Failure::Wrong(format!(
            "{} of {} problems failed; the smallest:\n  {}",
            totals.failed,
            totals.count,
            repeat_command(&case, args.device)
        ))),
    }
}
