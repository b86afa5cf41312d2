//! The totals that `verify` counts, prints and writes.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use warptile_check::Case;
use warptile_kernels::Image;

use super::check::{Checked, Error64, Errors, Ran, Repeat};
use super::coverage::Coverage;
use super::phases::Phases;
use crate::machine::Machine;
use crate::text::{self, say};

/// Failures described one by one; the rest are only counted.
const FAILURES_SHOWN: usize = 10;

/// The JSON that `--json` writes.
#[derive(Debug, Default, Serialize)]
pub(super) struct Totals {
    #[serde(flatten)]
    machine: Machine,
    seed: u64,
    /// The devices that computed each problem together, if there were several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) devices: Option<String>,
    /// The engine that moved the bytes between them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) engine: Option<&'static str>,
    /// True if this is not everything that was asked for: Ctrl-C came, or the command still runs.
    pub(super) cut_short: bool,
    /// How often each problem was launched again, if it was.
    launches: Option<Repeat>,
    /// Problems computed: passed plus failed.
    pub(super) count: u64,
    passed: u64,
    pub(super) failed: u64,
    /// Problems drawn that no kernel takes; not counted above.
    pub(super) not_applicable: u64,
    /// The number of these that were planned for a number of multiprocessors other than the device's.
    few_multiprocessors: u64,
    /// Passed problems in which a persistent kernel drew tiles from the counter.
    drew_tiles: u64,
    /// Problems whose reference was computed on the host, and on the GPU.
    host_references: u64,
    gpu_references: u64,
    seconds: f64,
    problems_per_second: f64,
    /// How many threads computed problems side by side.
    threads: usize,
    /// Seconds of all these threads together.
    phases: Phases,
    /// Images that could have been used: those asked for, or all that run on the device.
    pub(super) runnable: usize,
    /// By name. The CPU path has no image and no entry.
    images: BTreeMap<&'static str, ImageTotals>,
    coverage: Coverage,
    /// The results nearest to their bounds.
    worst_out: Option<Worst>,
    worst_lse: Option<Worst>,
    /// The problems that were given or made for an image; random ones have no rows.
    problems: Vec<Row>,
    failures: Vec<FailedProblem>,
    /// A command that computes the smallest failing problem found, if any failed.
    pub(super) repeat: Option<String>,
}

/// How one image did.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ImageTotals {
    sha256: String,
    /// True if its CTAs stay and draw tiles. Then `drew_tiles` must not be 0 if its record is to prove anything.
    persistent: bool,
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// Passed problems in which it drew tiles from the counter.
    drew_tiles: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Worst {
    pub(crate) ratio: f64,
    #[serde(flatten)]
    pub(crate) error: Error64,
    pub(crate) problem: String,
    pub(crate) image: Option<String>,
}

#[derive(Debug, Serialize)]
struct Row {
    problem: String,
    image: Option<&'static str>,
    kernel: Option<&'static str>,
    sha256: Option<&'static str>,
    /// Planned for this many multiprocessors, if not for the device's.
    multiprocessors: Option<u32>,
    drew_tiles: bool,
    /// True if the kernel, or any, takes the problem. If not it was not computed.
    applicable: bool,
    passed: bool,
    #[serde(flatten)]
    errors: Option<Errors>,
    /// Why it failed, or why no kernel takes it.
    reason: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FailedProblem {
    pub(crate) problem: String,
    image: Option<String>,
    pub(crate) reason: String,
}

impl Totals {
    pub(super) fn new(
        machine: Machine,
        seed: u64,
        launches: Option<Repeat>,
        threads: usize,
    ) -> Self {
        Totals {
            machine,
            seed,
            cut_short: true,
            launches,
            threads,
            ..Totals::default()
        }
    }

    /// Records that the present totals were added after this time.
    pub(super) fn after(&mut self, time: Duration) {
        self.seconds = time.as_secs_f64();
        self.problems_per_second = self.count as f64 / self.seconds.max(f64::MIN_POSITIVE);
    }

    /// Counts a problem, and what its phases took.
    pub(super) fn add(&mut self, case: &Case, checked: Checked, seconds: Phases) {
        self.phases += seconds;
        let Checked::Ran(Ran {
            image,
            way,
            drew_tiles,
            gpu_reference,
            outcome,
        }) = checked
        else {
            self.not_applicable += 1;
            return;
        };
        self.count += 1;
        self.coverage.add(case, image, way);
        let passed = outcome.is_ok();
        self.few_multiprocessors += u64::from(case.multiprocessors.is_some());
        self.drew_tiles += u64::from(passed && drew_tiles);
        self.host_references += u64::from(!gpu_reference);
        self.gpu_references += u64::from(gpu_reference);
        if let Some(image) = image {
            let totals = self.images.entry(image.name).or_insert(ImageTotals {
                sha256: image.sha256.to_owned(),
                persistent: image.schedule.is_persistent(),
                passed: 0,
                failed: 0,
                drew_tiles: 0,
            });
            totals.passed += u64::from(passed);
            totals.failed += u64::from(!passed);
            totals.drew_tiles += u64::from(passed && drew_tiles);
        }
        let image = image.map(|image| image.name.to_owned());
        match outcome {
            Ok(errors) => {
                self.passed += 1;
                worse(&mut self.worst_out, errors.out, case, image.clone());
                worse(&mut self.worst_lse, errors.lse, case, image);
            }
            Err(reason) => {
                self.failed += 1;
                self.failures.push(FailedProblem {
                    problem: case.to_string(),
                    image,
                    reason,
                });
            }
        }
    }

    /// Keeps the problem itself, next to the totals.
    pub(super) fn add_row(
        &mut self,
        case: &Case,
        forced: Option<&'static Image>,
        checked: &Checked,
    ) {
        let (image, drew_tiles, errors, reason) = match checked {
            Checked::NotApplicable(why) => (forced, false, None, Some(why.clone())),
            Checked::Ran(ran) => (
                ran.image,
                ran.drew_tiles,
                ran.outcome.as_ref().ok().copied(),
                ran.outcome.as_ref().err().cloned(),
            ),
        };
        self.problems.push(Row {
            problem: case.to_string(),
            image: image.map(|image| image.name),
            kernel: image.map(|image| image.kernel),
            sha256: image.map(|image| image.sha256),
            multiprocessors: case.multiprocessors,
            drew_tiles,
            applicable: matches!(checked, Checked::Ran(_)),
            passed: errors.is_some(),
            errors,
            reason,
        });
    }

    pub(super) fn print(&self, backend: &str, console: &mut dyn Write) -> io::Result<()> {
        // Results without an image.
        let place = self.devices.as_deref().unwrap_or("cpu");
        for failure in self.failures.iter().take(FAILURES_SHOWN) {
            say!(
                console,
                "failed   {}: {}",
                failure.image.as_deref().unwrap_or(place),
                failure.problem
            )?;
            say!(console, "         {}", failure.reason)?;
        }
        if let Some(more @ 1..) = self.failures.len().checked_sub(FAILURES_SHOWN) {
            writeln!(console, "         and {more} more")?;
        }
        for (name, image) in &self.images {
            let drew = match image.persistent {
                true => format!(", {} drew tiles", image.drew_tiles),
                false => String::new(),
            };
            say!(
                console,
                "image    {name}: {} passed, {} failed{drew}",
                image.passed,
                image.failed
            )?;
        }
        for (what, worst) in [("out", &self.worst_out), ("lse", &self.worst_lse)] {
            if let Some(worst) = worst
                && worst.error.bound > 0.0
            {
                say!(
                    console,
                    "worst    {what}: {:.2} of its bound ({:.1e} of {:.1e}), {}: {}",
                    worst.ratio,
                    worst.error.error,
                    worst.error.bound,
                    worst.image.as_deref().unwrap_or(place),
                    worst.problem
                )?;
            }
        }
        for line in self.coverage.lines() {
            say!(console, "{line}")?;
        }
        if self.runnable > 0 {
            let persistent = || self.images.values().filter(|image| image.persistent);
            writeln!(
                console,
                "coverage {} of {} images; {} of {} persistent ones drew tiles",
                self.images.len(),
                self.runnable,
                persistent().filter(|image| image.drew_tiles > 0).count(),
                persistent().count(),
            )?;
        }
        let more = match self.not_applicable {
            0 => String::new(),
            more => format!(" ({more} more drawn that no kernel takes)"),
        };
        say!(
            console,
            "verified {} on {backend} in {:.1} s: {} passed, {} failed{more}",
            text::count(self.count, "problem"),
            self.seconds,
            self.passed,
            self.failed
        )
    }
}

/// Keeps the result that is nearer to its bound.
fn worse(worst: &mut Option<Worst>, error: Error64, case: &Case, image: Option<String>) {
    let ratio = error.ratio();
    if worst.as_ref().is_none_or(|worst| worst.ratio < ratio) {
        *worst = Some(Worst {
            ratio,
            error,
            problem: case.to_string(),
            image,
        });
    }
}
