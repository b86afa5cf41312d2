//! The account of a build for a terminal: images that are new, changed or gone, the space that is left, and the next step.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::build_kernels::Outcome;
use crate::manifest::{Manifest, ManifestEntry};

/// How many images are named; the rest is counted.
const NAMED: usize = 20;

fn by_name(manifest: &Manifest) -> BTreeMap<&str, &ManifestEntry> {
    let entries = manifest.images.iter();
    entries.map(|entry| (entry.name.as_str(), entry)).collect()
}

/// One line for each image whose machine code or PTX differs from the committed one.
fn changes(outcome: &Outcome) -> Vec<String> {
    let (old, new) = (by_name(&outcome.before), by_name(&outcome.manifest));
    let gone = old.iter().filter(|(name, _)| !new.contains_key(*name));
    let gone = gone.map(|(name, entry)| format!("gone     {name}  {} bytes", entry.len));
    let made = new.iter().filter_map(|(name, now)| match old.get(name) {
        None => Some(format!("new      {name}  {} bytes", now.len)),
        Some(before) if before.sha256 != now.sha256 => {
            let (was, is) = (before.registers, now.registers);
            Some(format!(
                "changed  {name}  {} bytes, {} before; {is} registers, {was} before",
                now.len, before.len
            ))
        }
        Some(_) => None,
    });
    made.chain(gone).collect()
}

/// The whole account of a build, a few lines long. `partial` says that only a family or a target was built.
pub fn summary(outcome: &Outcome, partial: bool) -> String {
    let changes = changes(outcome);
    let mut text = format!("compiled {} images", outcome.compiled.len());
    text += match (outcome.compiled.len(), changes.len()) {
        (0, 0) => ": all are up to date\n",
        (_, 0) => ": all have the bytes that they had before\n",
        _ => "\n",
    };
    for line in changes.iter().take(NAMED) {
        let _ = writeln!(text, "{line}");
    }
    if changes.len() > NAMED {
        let _ = writeln!(text, "         and {} more", changes.len() - NAMED);
    }
    for (what, bytes, limit) in outcome.sizes() {
        let _ = writeln!(
            text,
            "size     {what}: {:.1} of {} MB ({:.0}%)",
            bytes as f64 / 1e6,
            limit / 1_000_000,
            bytes as f64 * 100.0 / limit as f64
        );
    }
    text += match (outcome.compiled.is_empty() && changes.is_empty(), partial) {
        (true, false) => "next     nothing to do\n",
        (_, true) => {
            "next     `git diff docs/resources.md`, measure (CONTRIBUTING.md), then build without --family and --arch\n"
        }
        (false, false) => {
            "next     `git diff docs/resources.md`, then `cargo xtask bundle` (CONTRIBUTING.md)\n"
        }
    };
    text
}
