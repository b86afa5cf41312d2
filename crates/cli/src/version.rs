//! `warptile --version`: what a bug report needs.

use std::collections::BTreeSet;
use std::io::Write;

use warptile_kernels::{Target, catalog};

use crate::failure::Failure;
use crate::info;
use crate::machine::PROGRAM;
use crate::text::say;

/// Prints the program's version and commit, what it was built for, and what it finds here.
pub(crate) fn print(console: &mut dyn Write) -> Result<(), Failure> {
    let images = catalog();
    let targets: BTreeSet<Target> = images.iter().map(|image| image.target).collect();
    let targets: Vec<String> = targets.iter().map(Target::to_string).collect();
    writeln!(console, "{PROGRAM}")?;
    writeln!(
        console,
        "built    for {}, {}",
        env!("WARPTILE_TARGET"),
        env!("WARPTILE_PROFILE")
    )?;
    say!(
        console,
        "kernels  {} images for {}",
        images.len(),
        targets.join(" ")
    )?;
    info::print_machine_of_report(console)
}
