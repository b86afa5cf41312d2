//! A winner among the shipped kernels.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::archive::{Candidate, Measured, Plan};
use super::problem::Shape;
use super::{EvolveError, refused};
use crate::files;
use crate::instances;
use crate::report;

/// What is measured of kernels, by kernel: TFLOP/s of the rates files that the library embeds.
pub(super) fn rates(root: &Path) -> Result<BTreeMap<String, f64>, EvolveError> {
    let mut rates = BTreeMap::new();
    for path in files::list(&directory(root))? {
        let text = files::read_text(&path)?;
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let ["kernel", kernel, tflops, _] = words[..]
                && let Ok(tflops) = tflops.parse()
            {
                rates.insert(kernel.to_owned(), tflops);
            }
        }
    }
    Ok(rates)
}

fn directory(root: &Path) -> PathBuf {
    root.join("crates/attention/rates")
}

/// The rates file of a GPU, and what it says of the end of the tiles of `kernel`.
fn rates_of(
    root: &Path,
    device: &str,
    kernel: &str,
) -> Result<(PathBuf, String, String), EvolveError> {
    for path in files::list(&directory(root))? {
        let text = files::read_text(&path)?;
        if !text
            .lines()
            .any(|line| line.trim() == format!("device {device}"))
        {
            continue;
        }
        let end = text.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            let is_its = words.next() == Some("kernel") && words.next() == Some(kernel);
            words.nth(1).filter(|_| is_its).map(str::to_owned)
        });
        return match end {
            Some(end) => Ok((path, text, end)),
            None => refused(format!("{} does not know {kernel}", path.display())),
        };
    }
    refused(format!(
        "crates/attention/rates has no file of {device}: a rate needs a place to go"
    ))
}

/// TFLOP/s on the unmasked problem with the most work, and the kernel that it was timed against there. Rows that fill up a tile
/// count, as they do in the planner's estimate.
fn rate(
    plan: &Plan,
    candidate: &Candidate,
    measured: &Measured,
) -> Result<(f64, String), EvolveError> {
    let genes = &candidate.genes;
    let mut best: Option<(f64, f64, &str)> = None;
    for (text, found) in &measured.problems {
        let shape = Shape::parse(text).map_err(EvolveError::Refused)?;
        if !shape.unmasked || found.microseconds <= 0.0 {
            continue;
        }
        let rows = shape.tiles(&plan.family, genes.block_m) * u64::from(genes.block_m);
        let flops = 4.0 * rows as f64 * shape.k as f64 * f64::from(genes.head_dim);
        if best.is_none_or(|(most, ..)| flops > most) {
            best = Some((flops, found.microseconds, &found.baseline));
        }
    }
    match best {
        Some((flops, microseconds, baseline)) => {
            Ok((flops / microseconds / 1e6, baseline.to_owned()))
        }
        None => refused("a rate is of a problem without a mask, and none was measured"),
    }
}

/// What the gains of a candidate make of the stored speeds of the GPU relative to the best peer, in lines.
///
/// # Errors
/// [`EvolveError::Refused`] if one of them falls by more than sessions differ by: a gain over all problems may hide a loss on one.
fn against_baseline(root: &Path, kernel: &str, measured: &Measured) -> Result<String, EvolveError> {
    let gains =
        { measured.problems.iter() }.map(|(problem, found)| (problem.as_str(), found.ratio));
    let Some(expected) = report::expected(root, &measured.device, gains)? else {
        return Ok(format!("{}: no stored baseline\n", measured.device));
    };
    if let Some(loss) = expected.iter().find(|one| one.is_loss()) {
        return refused(format!(
            "{kernel}: `{}` would fall from {:.3} of the best peer's speed, which is stored, to {:.3}",
            loss.problem, loss.before, loss.after
        ));
    }
    let mut text = String::new();
    for (problem, found) in &measured.problems {
        let _ = match expected.iter().find(|one| one.problem == *problem) {
            Some(one) => writeln!(
                text,
                "{problem}: {:.3} of the best peer's speed, {:.3} with {kernel} in place of {}",
                one.before, one.after, found.baseline
            ),
            None => writeln!(text, "{problem}: not in the stored baseline"),
        };
    }
    Ok(text)
}

/// Writes the row and the rate; says what is to be done next.
pub(super) fn promote(
    root: &Path,
    plan: &Plan,
    element: &str,
    candidate: &Candidate,
    measured: &Measured,
) -> Result<String, EvolveError> {
    let (tflops, baseline) = rate(plan, candidate, measured)?;
    let (rates, text, end) = rates_of(root, &measured.device, &baseline)?;
    // A shipped kernel has no suffix: its flags are in its row.
    let genes = &candidate.genes;
    let kernel = format!(
        "{}_d{}_{}x{}_w{}_s{}",
        plan.family, genes.head_dim, genes.block_m, genes.block_n, genes.warps, genes.stages
    );
    let line = format!("kernel {kernel:<28} {tflops:>5.1} {end}");
    let known = { text.lines() }.find(|line| line.split_whitespace().nth(1) == Some(&kernel));
    // The same line is what an interrupted promotion left.
    if known.is_some_and(|known| known != line) {
        return refused(format!(
            "{kernel} is shipped with other flags or variants; change its row by hand, and its rate in {}",
            rates.display()
        ));
    }
    let compared = against_baseline(root, &kernel, measured)?;
    let path = root.join("kernels/instances.toml");
    let declared = files::read_text(&path)?;
    let promoted = with_row(&declared, plan, element, candidate)?;
    instances::parse(&promoted)?;
    files::write(&path, promoted.as_bytes())?;
    if known.is_none() {
        let text = format!("{}\n{line}\n", text.trim_end());
        files::write(&rates, text.as_bytes())?;
    }
    Ok(format!(
        "{compared}{}: a row for {kernel}\n{}: {line}\nnext: cargo xtask build-kernels --family {}; then measure it among the others, and let `cargo xtask report` \
         hold the speeds against the stored baseline\n",
        path.display(),
        rates.display(),
        plan.family,
    ))
}

/// `instances.toml` with one row more in the family, if it does not have it.
fn with_row(
    declared: &str,
    plan: &Plan,
    element: &str,
    candidate: &Candidate,
) -> Result<String, EvolveError> {
    let genes = &candidate.genes;
    let flags = match genes.switches.is_empty() {
        true => String::new(),
        false => format!(", flags = {:?}", genes.switches),
    };
    let variants = match plan.variant {
        None => String::new(),
        Some(variant) => format!(", variants = [\"{variant}\"]"),
    };
    let row = format!(
        "    {{ head_dim = {}, block_m = {}, block_n = {}, warps = {}, stages = {}, elements = [{element:?}], targets = [{:?}]{flags}{variants} }},\n",
        genes.head_dim, genes.block_m, genes.block_n, genes.warps, genes.stages, plan.target
    );
    let family = format!("name = {:?}", plan.family);
    let place = declared.find(&family).and_then(|at| {
        let list = at + declared[at..].find("tilings = [\n")?;
        Some((list, list + declared[list..].find("\n]\n")? + 1))
    });
    match place {
        Some((list, end)) if declared[list..end].contains(&row) => Ok(declared.to_owned()),
        Some((_, end)) => Ok(format!("{}{row}{}", &declared[..end], &declared[end..])),
        None => refused(format!(
            "instances.toml has no list of tilings of {}",
            plan.family
        )),
    }
}
