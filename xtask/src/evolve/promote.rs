//! A winner among the shipped kernels.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use super::Search;
use super::archive::{Candidate, Genes, Measured, NUMBERS};
use super::problem::Shape;
use crate::files;
use crate::instances;
use crate::report;

/// The rates files that the library embeds, and what they say.
fn rates_files(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let paths = files::list(&root.join("crates/attention/rates"))?;
    let read = |path: PathBuf| Ok((path.clone(), files::read_text(&path)?));
    paths.into_iter().map(read).collect()
}

/// The kernels of a rates file, with their TFLOP/s and the end of their tiles.
fn rates_in(text: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["kernel", kernel, tflops, end] => Some((kernel, tflops, end)),
            _ => None,
        }
    })
}

/// The measured speeds by kernel: TFLOP/s of all rates files.
pub(super) fn rates(root: &Path) -> Result<BTreeMap<String, f64>> {
    let mut rates = BTreeMap::new();
    for (_, text) in rates_files(root)? {
        let numbers = rates_in(&text)
            .map(|(kernel, tflops, _)| Some((kernel.to_owned(), tflops.parse().ok()?)));
        rates.extend(numbers.flatten());
    }
    Ok(rates)
}

/// TFLOP/s on the unmasked problem with the most work, and the kernel that it was timed against there. Rows that fill up a tile
/// count, as they do in the planner's estimate.
fn rate<'a>(family: &str, genes: &Genes, measured: &'a Measured) -> Result<(f64, &'a str)> {
    let mut rates = Vec::new();
    for (text, found) in &measured.problems {
        let shape = Shape::parse(text)?;
        if shape.unmasked && found.microseconds > 0.0 {
            let rows = shape.tiles(family, genes.block_m()) * u64::from(genes.block_m());
            let flops = 4.0 * rows as f64 * shape.k as f64 * f64::from(genes.head_dim);
            rates.push((
                flops,
                flops / found.microseconds / 1e6,
                found.baseline.as_str(),
            ));
        }
    }
    let most = rates.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
    let (_, tflops, baseline) =
        most.context("a rate is of a problem without a mask, and none was measured")?;
    Ok((tflops, baseline))
}

/// The stored speeds of the GPU relative to the best peer, with the gains of a candidate applied, in lines.
///
/// # Errors
/// If one of them falls by more than sessions differ by: a gain over all problems may hide a loss on one.
fn against_baseline(root: &Path, kernel: &str, measured: &Measured) -> Result<String> {
    let Some(stored) = report::Stored::read(root, &measured.device)? else {
        return Ok(format!("{}: no stored baseline\n", measured.device));
    };
    let mut text = String::new();
    for (problem, found) in &measured.problems {
        let Some(before) = stored.to_the_best(problem) else {
            let _ = writeln!(text, "{problem}: not in the stored baseline");
            continue;
        };
        let after = before * found.ratio;
        ensure!(
            !report::is_loss(before, after),
            "{kernel}: `{problem}` would fall from {before:.3} of the best peer's speed, which is stored, to {after:.3}"
        );
        let _ = writeln!(
            text,
            "{problem}: {before:.3} of the best peer's speed, {after:.3} with {kernel} in place of {}",
            found.baseline
        );
    }
    Ok(text)
}

/// Writes the row and the rate; says what is to be done next.
pub(super) fn promote(
    search: &Search,
    candidate: &Candidate,
    measured: &Measured,
) -> Result<String> {
    let (root, family) = (&search.root, &search.plan.family);
    let (tflops, baseline) = rate(family, &candidate.genes, measured)?;
    let device = format!("device {}", measured.device);
    let of_device = |(_, text): &(PathBuf, String)| text.lines().any(|line| line.trim() == device);
    let (rates, text) = { rates_files(root)?.into_iter() }
        .find(of_device)
        .with_context(|| {
            format!(
                "crates/attention/rates has no file of {}: a rate needs a place to go",
                measured.device
            )
        })?;
    let (.., end) = { rates_in(&text).find(|(kernel, ..)| *kernel == baseline) }
        .with_context(|| format!("{} does not know {baseline}", rates.display()))?;
    // A shipped kernel has no suffix: its flags are in its row.
    let plain = Genes {
        switches: Vec::new(),
        ..candidate.genes.clone()
    };
    let kernel = search.instance(&plain)?.kernel();
    let line = format!("kernel {kernel:<28} {tflops:>5.1} {end}");
    let known = { text.lines() }.find(|line| line.split_whitespace().nth(1) == Some(&kernel));
    // An identical line was left by an interrupted promotion.
    ensure!(
        known.is_none_or(|known| known == line),
        "{kernel} is shipped with other flags or variants; change its row by hand, and its rate in {}",
        rates.display()
    );
    let compared = against_baseline(root, &kernel, measured)?;
    let path = root.join("kernels/instances.toml");
    let promoted = with_row(&files::read_text(&path)?, search, &candidate.genes)?;
    instances::parse(&promoted)?;
    files::write(&path, promoted.as_bytes())?;
    if known.is_none() {
        let text = format!("{}\n{line}\n", text.trim_end());
        files::write(&rates, text.as_bytes())?;
    }
    Ok(format!(
        "{compared}{}: a row for {kernel}\n{}: {line}\nnext: cargo xtask build-kernels --family {family}; then measure it among the others, and let `cargo xtask report` \
         hold the speeds against the stored baseline\n",
        path.display(),
        rates.display(),
    ))
}

/// `instances.toml` with one row more in the family, if it does not have it.
fn with_row(declared: &str, search: &Search, genes: &Genes) -> Result<String> {
    let plan = &search.plan;
    let mut row = format!("    {{ head_dim = {}", genes.head_dim);
    for (name, number) in NUMBERS.iter().zip(genes.numbers) {
        let _ = write!(row, ", {name} = {number}");
    }
    let _ = write!(
        row,
        ", elements = [\"{}\"], targets = [\"{}\"]",
        search.element()?,
        plan.target
    );
    if !genes.switches.is_empty() {
        let _ = write!(row, ", flags = {:?}", genes.switches);
    }
    if let Some(variant) = &plan.variant {
        let _ = write!(row, ", variants = [\"{variant}\"]");
    }
    row.push_str(" },\n");
    let family = format!("name = {:?}", plan.family);
    let place = declared.find(&family).and_then(|at| {
        let list = at + declared[at..].find("tilings = [\n")?;
        Some((list, list + declared[list..].find("\n]\n")? + 1))
    });
    match place {
        Some((list, end)) if declared[list..end].contains(&row) => Ok(declared.to_owned()),
        Some((_, end)) => Ok(format!("{}{row}{}", &declared[..end], &declared[end..])),
        None => bail!("instances.toml has no list of tilings of {}", plan.family),
    }
}
