//! What `verify` counts, prints and writes.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;
use warptile_check::Case;
use warptile_kernels::Image;

use super::check::Checked;
use crate::machine::Machine;

/// Failures described one by one; the rest are only counted.
const FAILURES_SHOWN: usize = 10;

/// The JSON that `--json` writes.
#[derive(Debug, Serialize)]
pub(super) struct Totals {
    #[serde(flatten)]
    machine: Machine,
    seed: u64,
    /// Problems computed: passed plus failed.
    pub(super) count: u64,
    passed: u64,
    pub(super) failed: u64,
    /// Problems drawn that no kernel takes; not counted above.
    pub(super) not_applicable: u64,
    pub(super) seconds: f64,
    /// By name. The CPU path has no image and no entry.
    images: BTreeMap<&'static str, ImageTotals>,
    failures: Vec<FailedProblem>,
    /// A command that computes the smallest failing problem found, if any failed.
    pub(super) repeat: Option<String>,
}

/// How one image did.
#[derive(Debug, Serialize)]
struct ImageTotals {
    sha256: &'static str,
    passed: u64,
    failed: u64,
}

#[derive(Debug, Serialize)]
struct FailedProblem {
    problem: String,
    image: Option<&'static str>,
    reason: String,
}

impl Totals {
    pub(super) fn new(machine: Machine, seed: u64) -> Self {
        Totals {
            machine,
            seed,
            count: 0,
            passed: 0,
            failed: 0,
            not_applicable: 0,
            seconds: 0.0,
            images: BTreeMap::new(),
            failures: Vec::new(),
            repeat: None,
        }
    }

    pub(super) fn add(&mut self, case: &Case, checked: Checked) {
        match checked {
            Checked::NotApplicable(_) => self.not_applicable += 1,
            Checked::Passed(image) => {
                self.count += 1;
                self.passed += 1;
                if let Some(image) = image {
                    self.image(image).passed += 1;
                }
            }
            Checked::Failed { image, reason } => {
                self.count += 1;
                self.failed += 1;
                if let Some(image) = image {
                    self.image(image).failed += 1;
                }
                self.failures.push(FailedProblem {
                    problem: case.to_string(),
                    image: image.map(|image| image.name),
                    reason,
                });
            }
        }
    }

    fn image(&mut self, image: &'static Image) -> &mut ImageTotals {
        self.images.entry(image.name).or_insert(ImageTotals {
            sha256: image.sha256,
            passed: 0,
            failed: 0,
        })
    }

    pub(super) fn print(&self, backend: &str, console: &mut impl Write) -> io::Result<()> {
        for failure in self.failures.iter().take(FAILURES_SHOWN) {
            writeln!(
                console,
                "failed   {}: {}\n         {}",
                failure.image.unwrap_or("cpu"),
                failure.problem,
                failure.reason
            )?;
        }
        if let Some(more @ 1..) = self.failures.len().checked_sub(FAILURES_SHOWN) {
            writeln!(console, "         and {more} more")?;
        }
        for (name, image) in &self.images {
            writeln!(
                console,
                "image    {name}: {} passed, {} failed",
                image.passed, image.failed
            )?;
        }
        write!(
            console,
            "verified {} problems on {backend} in {:.1} s: {} passed, {} failed",
            self.count, self.seconds, self.passed, self.failed
        )?;
        if self.not_applicable > 0 {
            write!(
                console,
                " ({} more drawn that no kernel takes)",
                self.not_applicable
            )?;
        }
        writeln!(console)
    }
}
