//! Our measurements beside those of peers.

use std::collections::{BTreeMap, BTreeSet};

use super::bench::BenchRow;
use super::record::{OURS, READ, geometric_mean};
use super::{checks, number};

/// Ours once more, with keys cut at multiples of 512.
pub(super) const FIXED: &str = "warptile splits=512";

/// Our own calls next to the one with options: without them, and with lengths in place of padding.
pub(super) const OTHER_CALLS: [&str; 2] = ["plain", "lengths"];

/// The rows of one problem.
#[derive(Debug)]
pub(super) struct Line<'a> {
    pub(super) ours: &'a BenchRow,
    all: BTreeMap<&'a str, &'a BenchRow>,
}

/// The problems that we were measured on in replayed graphs, in the order of the rows. A later row of a contestant takes the place of an
/// earlier one.
pub(super) fn lines<'a>(rows: impl IntoIterator<Item = &'a BenchRow>) -> Vec<Line<'a>> {
    let mut problems: Vec<(String, BTreeMap<&str, &BenchRow>)> = Vec::new();
    for row in rows.into_iter().filter(|row| row.method == "graph") {
        let key = row.problem();
        match problems.iter_mut().find(|(of, _)| *of == key) {
            Some((_, all)) => all.insert(&row.backend, row),
            None => {
                problems.push((key, BTreeMap::from([(&row.backend[..], row)])));
                None
            }
        };
    }
    let line = |(_, all): (_, BTreeMap<&'a str, &'a BenchRow>)| {
        let ours = *all.get(OURS)?;
        Some(Line { ours, all })
    };
    problems.into_iter().filter_map(line).collect()
}

impl<'a> Line<'a> {
    /// The row of a contestant.
    pub(super) fn of(&self, backend: &str) -> Option<&'a BenchRow> {
        self.all.get(backend).copied()
    }

    /// All rows of peers.
    pub(super) fn peers(&self) -> impl Iterator<Item = &'a BenchRow> {
        let is_peer = |row: &&BenchRow| {
            let backend = row.backend.as_str();
            ![OURS, FIXED, READ].contains(&backend) && !OTHER_CALLS.contains(&backend)
        };
        self.all.values().copied().filter(is_peer)
    }

    /// The fastest peer.
    pub(super) fn best(&self) -> Option<&'a BenchRow> {
        self.peers()
            .min_by(|a, b| a.median_us.total_cmp(&b.median_us))
    }

    /// Our speed over that of the fastest peer.
    pub(super) fn ratio(&self) -> Option<f64> {
        self.best().map(|best| self.times(best))
    }

    /// Our speed over that of another row.
    pub(super) fn times(&self, other: &BenchRow) -> f64 {
        other.median_us / self.ours.median_us
    }

    /// The smallest error of the peers.
    pub(super) fn least_error(&self) -> Option<f64> {
        let errors = self.peers().filter_map(|row| row.error_rms);
        errors.min_by(f64::total_cmp)
    }
}

/// Those of the peers that have rows.
pub(super) fn measured<'a>(lines: &[Line<'_>], peers: &[&'a str]) -> Vec<&'a str> {
    let has_rows = |peer: &&str| lines.iter().any(|line| line.of(peer).is_some());
    peers.iter().copied().filter(has_rows).collect()
}

/// The contestant as people write it.
pub(super) fn name(backend: &str) -> &str {
    match backend {
        "fa2" => "FA2",
        "fa3" => "FA3",
        "fa3-deterministic" => "FA3 det.",
        "fa4" => "FA4",
        "efficient" => "memory-efficient",
        "cudnn" => "cuDNN",
        "flashinfer" => "FlashInfer",
        "torch" => "PyTorch",
        other => other,
    }
}

/// The sentence that says what a table has, and where it was measured.
pub(super) fn measured_as(numbers: &str, what: &str, row: &BenchRow) -> String {
    format!(
        "{numbers} on {}, GPU time of one {what} in a replayed graph; driver {}, {}.",
        row.device,
        row.driver,
        checks::day(&row.date)
    )
}

/// A sentence that names the peers of a table, those that have rows; empty if no row says it.
pub(super) fn versions<'a>(rows: impl IntoIterator<Item = &'a BenchRow>) -> String {
    let rows: Vec<_> = rows.into_iter().collect();
    let has_rows =
        |what: &str| what == "torch" || rows.iter().any(|row| row.backend.starts_with(what));
    let mut all: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let named = { rows.iter() }.flat_map(|row| &row.versions);
    for (what, version) in named.filter(|(what, _)| has_rows(what)) {
        let version = match version.parse::<u32>() {
            // As its library counts.
            Ok(number) if what == "cudnn" => {
                let (major, rest) = (number / 10_000, number % 10_000);
                format!("{major}.{}.{}", rest / 100, rest % 100)
            }
            _ => version.clone(),
        };
        all.entry(what).or_default().insert(version);
    }
    let texts: Vec<String> = { all.into_iter() }
        .map(|(what, versions)| {
            format!("{} {}", name(what), Vec::from_iter(versions).join(" and "))
        })
        .collect();
    match texts.is_empty() {
        true => String::new(),
        false => format!(" Peers: {}; FA2 is PyTorch's.", texts.join(", ")),
    }
}

/// A paragraph for each element type about the ratios of its problems.
pub(super) fn means(lines: &[Line<'_>]) -> String {
    let mut of_elements: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for line in lines {
        let ratios = of_elements.entry(&line.ours.element).or_default();
        ratios.extend(line.ratio());
    }
    let text = |(element, ratios): (&str, Vec<f64>)| {
        let mean = geometric_mean(&ratios)?;
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let ahead = ratios.iter().filter(|&&ratio| ratio >= 1.0).count();
        Some(format!(
            "\n{element}: geometric mean of the {} ratios {mean:.3}, the lowest {least:.2}, at least 1.00 in {ahead}.\n",
            ratios.len()
        ))
    };
    of_elements.into_iter().filter_map(text).collect()
}

/// The cell of a row's speed in TFLOP/s.
pub(super) fn tflops(row: Option<&BenchRow>) -> String {
    number(row.map(|row| row.tflops), 0)
}

/// The cell of a row's time in microseconds.
pub(super) fn us(row: Option<&BenchRow>) -> String {
    number(row.map(|row| row.median_us), 1)
}

/// The cell of an error.
pub(super) fn error(error: Option<f64>) -> String {
    error.map_or("-".to_owned(), |error| format!("{error:.2e}"))
}

#[cfg(test)]
mod tests {
    use super::super::bench::tests::row;
    use super::*;

    #[test]
    fn versions_of_all_peers_are_named_once() {
        let row_with = |backend, of: &[(&str, &str)]| {
            let named = of.iter().map(|(what, version)| (*what, *version));
            BenchRow {
                versions: named.map(|(a, b)| (a.to_owned(), b.to_owned())).collect(),
                ..row(backend, 64, 512, 1.0)
            }
        };
        let all = [
            row_with("cudnn", &[("torch", "2.11.0"), ("cudnn", "92800")]),
            row_with("fa2", &[]),
            // One that was there and computed nothing.
            row_with(
                "fa4",
                &[("cudnn", "92800"), ("fa4", "4.0.0b36"), ("fa3", "3")],
            ),
        ];
        assert_eq!(
            versions(&all),
            " Peers: cuDNN 9.28.0, FA4 4.0.0b36, PyTorch 2.11.0; FA2 is PyTorch's."
        );
        assert_eq!(versions(&all[1..2]), "");
    }
}
