//! `warptile verify`: random problems against the float64 reference.

mod check;
mod totals;

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use warptile::{Backend, MAX_HEAD_DIM};
use warptile_check::Case;
use warptile_kernels::{Image, catalog};

use self::check::{Checked, Place, check};
use self::totals::Totals;
use crate::cases::{self, GRAMMAR};
use crate::failure::Failure;
use crate::machine;
use crate::options::Device;

/// Compute random problems and hold them against the float64 reference.
///
/// Each problem runs twice: both results must be equal to the bit, and right: no further from float64 than twice the plain,
/// unfused computation in the element type (three times with a softcap), plus a rounding error. Nothing may be written
/// outside the result, and NaN around the inputs must not reach it. A failing problem is made as small as it can be
/// and printed as a command that repeats it.
#[derive(Debug, Args)]
#[command(after_help = GRAMMAR)]
pub(crate) struct VerifyArgs {
    /// How many problems to compute
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,

    /// Seed of the problems: the same seed gives the same problems
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Longest sequence of a random problem
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u16).range(1..))]
    max_len: u16,

    /// Spread the problems over all images of this kernel family that run on the device, such as scalar
    #[arg(long, conflicts_with_all = ["kernel", "image"])]
    family: Option<String>,

    /// Spread the problems over all images of this kernel that run on the device
    #[arg(long, value_name = "NAME", conflicts_with = "image")]
    kernel: Option<String>,

    /// Compute every problem with this image
    #[arg(long, value_name = "NAME")]
    image: Option<String>,

    /// Compute this one problem instead of random ones
    #[arg(long, value_name = "PROBLEM", value_parser = cases::parse, conflicts_with_all = ["count", "seed", "max_len"])]
    case: Option<Case>,

    /// Where to compute: auto (the best GPU, else the CPU), cpu or cuda:N
    #[arg(long, default_value_t = Device::Auto)]
    device: Device,

    /// Write the totals to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Simpler cases tried before the smallest failing one is printed.
const SHRINK_TRIES: usize = 500;

/// Problems drawn for each one that an image takes, before we conclude that none will.
const DRAWS_PER_PROBLEM: u64 = 50;

/// Runs the command.
pub(crate) fn run(args: &VerifyArgs, console: &mut impl Write) -> Result<(), Failure> {
    let backend = args.device.open()?;
    let verify = Verify {
        args,
        images: images(args, &backend)?,
        backend: &backend,
    };
    let mut totals = Totals::new(
        machine::describe(&backend),
        args.case.as_ref().map_or(args.seed, |case| case.seed),
    );
    let start = Instant::now();
    let failing = match &args.case {
        Some(case) => verify.one(case, &mut totals)?,
        None => verify.many(&mut totals)?,
    };
    totals.seconds = start.elapsed().as_secs_f64();
    totals.print(&backend.to_string(), console)?;
    let smallest = match failing {
        Some((case, image)) => Some((verify.smallest(case, image)?, image)),
        None => None,
    };
    let repeat = smallest.map(|(case, image)| verify.repeat_command(&case, image));
    totals.repeat.clone_from(&repeat);
    if let Some(path) = &args.json {
        crate::json::write(path, &totals)?;
    }
    match repeat {
        None => Ok(()),
        Some(command) => Err(Failure::Wrong(format!(
            "{} of {} problems failed; the smallest found: {command}",
            totals.failed, totals.count
        ))),
    }
}

/// The images to spread problems over: those asked for that run on the device. Empty if none were asked for.
fn images(args: &VerifyArgs, backend: &Backend) -> Result<Vec<&'static Image>, Failure> {
    let asked = [
        ("family", &args.family),
        ("kernel", &args.kernel),
        ("image", &args.image),
    ];
    let Some((what, name)) = asked
        .iter()
        .find_map(|(what, name)| name.as_deref().map(|name| (*what, name)))
    else {
        return Ok(Vec::new());
    };
    let Some(gpu) = backend.gpu() else {
        return Err(Failure::Input(format!(
            "--{what} {name} needs a GPU; the problems would run on {backend}"
        )));
    };
    let profile = gpu.profile();
    let images: Vec<&Image> = catalog()
        .iter()
        .filter(|image| match what {
            "family" => image.family.to_string() == name,
            "kernel" => image.kernel == name,
            _ => image.name == name,
        })
        .filter(|image| image.target.runs_on(profile.major, profile.minor))
        .collect();
    if images.is_empty() {
        return Err(Failure::Input(format!(
            "no {what} {name} runs on {backend}; `warptile info` lists what there is"
        )));
    }
    Ok(images)
}

/// A problem that failed, and the image it was forced on, if it was.
type FailedCase = (Case, Option<&'static Image>);

struct Verify<'a> {
    args: &'a VerifyArgs,
    images: Vec<&'static Image>,
    backend: &'a Backend,
}

impl Verify<'_> {
    /// Checks one case. A device error ends the command: after it, the device's answers mean nothing.
    fn check(&self, case: &Case, image: Option<&'static Image>) -> Result<Checked, Failure> {
        let place = match self.backend.gpu() {
            Some(gpu) => Place::Gpu { gpu, image },
            None => Place::Cpu,
        };
        check(case, place).map_err(|error| match Failure::from(error) {
            Failure::Device(message) => Failure::Device(format!(
                "{message}\nwhile computing: {}",
                self.repeat_command(case, image)
            )),
            other => other,
        })
    }

    /// The given case, on every image asked for.
    fn one(&self, case: &Case, totals: &mut Totals) -> Result<Option<FailedCase>, Failure> {
        let mut failing = None;
        let mut reasons = String::new();
        let mut images: Vec<Option<&'static Image>> =
            self.images.iter().copied().map(Some).collect();
        if images.is_empty() {
            images.push(None);
        }
        for image in images {
            let checked = self.check(case, image)?;
            match &checked {
                Checked::NotApplicable(why) => reasons.clone_from(why),
                Checked::Failed { .. } if failing.is_none() => {
                    failing = Some((case.clone(), image))
                }
                _ => {}
            }
            totals.add(case, checked);
        }
        if totals.count == 0 {
            return Err(Failure::Input(reasons));
        }
        Ok(failing)
    }

    /// Random cases; the first that failed, if any did.
    fn many(&self, totals: &mut Totals) -> Result<Option<FailedCase>, Failure> {
        let mut failing = None;
        let bar = ProgressBar::new(self.args.count).with_style(
            ProgressStyle::with_template("{bar:40} {pos}/{len} problems, {msg}, {eta} left")
                .unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        let mut drawn = 0;
        while totals.count < self.args.count {
            let (case, image) = self.draw(drawn);
            drawn += 1;
            let checked = self.check(&case, image)?;
            match &checked {
                Checked::NotApplicable(reasons)
                    if totals.not_applicable > DRAWS_PER_PROBLEM * (totals.count + 1) =>
                {
                    return Err(Failure::Input(format!(
                        "hardly any random problem has a kernel; the last one: {reasons}"
                    )));
                }
                Checked::Failed { .. } if failing.is_none() => {
                    failing = Some((case.clone(), image));
                }
                _ => {}
            }
            totals.add(&case, checked);
            bar.set_position(totals.count);
            bar.set_message(format!("{} failed", totals.failed));
        }
        bar.finish_and_clear();
        Ok(failing)
    }

    /// The `index`th random case. Images take turns, each with cases that its tiles can hold.
    fn draw(&self, index: u64) -> FailedCase {
        // Far apart, so that two runs with neighbouring seeds share no problem.
        let seed = self.args.seed.wrapping_mul(1 << 32).wrapping_add(index);
        let case = Case::random(seed, usize::from(self.args.max_len));
        let images = self.images.len() as u64;
        match self
            .images
            .get(index.checked_rem(images).unwrap_or(0) as usize)
        {
            None => (case, None),
            Some(&image) => {
                let widest = (image.tiling.head_dim as usize).min(MAX_HEAD_DIM);
                let case = Case {
                    head_dim: case.head_dim.min(widest),
                    element: image.element,
                    ..case
                };
                (case, Some(image))
            }
        }
    }

    /// The last of ever simpler cases that still fails.
    fn smallest(&self, case: Case, image: Option<&'static Image>) -> Result<Case, Failure> {
        shrink(case, SHRINK_TRIES, |case| {
            Ok(matches!(self.check(case, image)?, Checked::Failed { .. }))
        })
    }

    fn repeat_command(&self, case: &Case, image: Option<&'static Image>) -> String {
        let device = self.args.device;
        let image = image.map_or(String::new(), |image| format!(" --image {}", image.name));
        format!("warptile verify --device {device}{image} --case \"{case}\"")
    }
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
    use warptile::Mask;

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
        let fails = |case: &Case| case.problem().key_len() >= 65 && case.mask != Mask::none();
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
