//! Speed in short: this project's kernels against the fastest peer, row by row, and its families against each other.

use std::collections::{BTreeMap, BTreeSet};

use super::bench::{BenchRow, ErrorRow, peers_text};
use super::{checks, decode, markdown_table, number, ratio};

/// The key that the rows of one problem share, in the order of the tables.
type Problem = (String, String, usize, usize, String);

fn problem(row: &BenchRow) -> Problem {
    (
        row.element.clone(),
        row.mask.clone(),
        row.heads.dim,
        row.key_len,
        row.shape(),
    )
}

/// Rows by problem and contestant.
type Problems<'a> = BTreeMap<Problem, BTreeMap<String, &'a BenchRow>>;

/// The rows measured as GPU time, by problem, the later of two measurements of the same contestant in place of the earlier.
fn by_problem(rows: &[BenchRow], contestant: impl Fn(&BenchRow) -> String) -> Problems<'_> {
    let mut problems = Problems::new();
    for row in rows.iter().filter(|row| row.method == "graph") {
        problems
            .entry(problem(row))
            .or_default()
            .insert(contestant(row), row);
    }
    problems
}

pub(super) const OURS: &str = "warptile";

/// Peers of the table, in its order; the memory-efficient kernel is never the fastest.
const PEERS: [&str; 4] = ["fa2", "cudnn", "fa3", "fa4"];

/// Peers of problems that not all of those take.
const OTHER_PEERS: [&str; 5] = ["fa2", "cudnn", "fa3", "fa4", "efficient"];

/// The row of one problem.
struct Line<'a> {
    ours: &'a BenchRow,
    peers: Vec<Option<&'a BenchRow>>,
}

impl Line<'_> {
    /// Our speed over that of the fastest peer.
    fn ratio(&self) -> Option<f64> {
        let fastest = self.peers.iter().flatten().map(|row| row.tflops);
        fastest
            .max_by(f64::total_cmp)
            .map(|fastest| self.ours.tflops / fastest)
    }

    /// Our error and the smallest of the peers', by one measure.
    fn error(&self, errors: &[ErrorRow], measure: fn(&ErrorRow) -> f64) -> Option<String> {
        let problem = self.ours.problem();
        let of_problem = || errors.iter().filter(|row| row.problem == problem);
        let ours = of_problem().find(|row| row.backend == OURS).map(measure)?;
        let peers = of_problem().filter(|row| OTHER_PEERS.contains(&row.backend.as_str()));
        Some(match peers.map(measure).min_by(f64::total_cmp) {
            Some(best) => format!("{ours:.2e} ({best:.2e})"),
            None => format!("{ours:.2e}"),
        })
    }

    /// Speeds and the ratio.
    fn cells(&self) -> Vec<String> {
        let speed = |row: Option<&BenchRow>| number(row.map(|row| row.tflops), 0);
        let mut cells = vec![self.ours.name()];
        cells.extend(self.peers.iter().map(|row| speed(*row)));
        cells.extend([speed(Some(self.ours)), ratio(self.ratio())]);
        cells
    }

    /// Errors, each with the smallest of the peers', and the kernel.
    fn more_cells(&self, errors: &[ErrorRow]) -> Vec<String> {
        let measures = [
            |row: &ErrorRow| row.error_rms,
            |row: &ErrorRow| row.error_max,
        ];
        let of = |measure| {
            self.error(errors, measure)
                .unwrap_or_else(|| "-".to_owned())
        };
        let mut cells = vec![self.ours.name()];
        cells.extend(measures.map(of));
        cells.push(format!("`{}`", self.ours.kernel));
        cells
    }
}

/// The problems that this project was measured on.
fn lines<'a>(problems: &Problems<'a>, peers: &[&str]) -> Vec<Line<'a>> {
    let line = |cells: &BTreeMap<String, &'a BenchRow>| {
        let peers = peers.iter().map(|peer| cells.get(*peer).copied());
        Some(Line {
            ours: cells.get(OURS)?,
            peers: peers.collect(),
        })
    };
    problems.values().filter_map(line).collect()
}

/// Our speed over that of each peer, by problem and peer. Three digits: more would be noise.
pub(super) fn ratios(rows: Vec<BenchRow>) -> BTreeMap<String, BTreeMap<String, f64>> {
    let problems = by_problem(&rows, |row| row.backend.clone());
    let of_line = |line: &Line<'_>| {
        let peers = line.peers.iter().flatten().map(|peer| {
            let ratio = line.ours.tflops / peer.tflops;
            (peer.backend.clone(), (ratio * 1e3).round() / 1e3)
        });
        (line.ours.problem(), peers.collect())
    };
    lines(&problems, &PEERS).iter().map(of_line).collect()
}

/// Speeds, and what they mean.
fn table(rows: &[BenchRow], ours: &BenchRow, lines: &[&Line<'_>], peers: &[&str]) -> String {
    let mut header = vec!["problem"];
    header.extend(peers.iter().map(|peer| decode::name(peer)));
    header.extend(["Warptile", "ratio"]);
    format!(
        "TFLOP/s on {}, GPU time of one launch in a replayed graph; driver {}, {}. A problem is (batch, heads, length, head size), element type, mask. *Ratio* is to the fastest peer of the row.{}\n\n{}",
        ours.device,
        ours.driver,
        checks::day(&ours.date),
        peers_text(rows),
        markdown_table(&header, lines.iter().map(|line| line.cells())),
    )
}

/// Errors and kernels, folded.
fn more(lines: &[Line<'_>], errors: &[ErrorRow]) -> String {
    let header = ["problem", "rms error", "largest error", "kernel"];
    format!(
        "\n<details><summary>Errors and kernels</summary>\n\nErrors are against float64 on normally distributed inputs, \
         with the smallest of the peers' in parentheses.\n\n{}\n</details>\n",
        markdown_table(&header, lines.iter().map(|line| line.more_cells(errors)))
    )
}

/// Six problems of the sweep, which differ in head size and mask, and the geometric means over all. The errors and kernels are in the
/// long table.
pub(super) fn in_short(rows: &[BenchRow]) -> String {
    let in_short = |line: &&Line<'_>| {
        let row = line.ours;
        row.element == "bf16"
            && (row.query_len, row.key_len) == (4096, 4096)
            && row.heads.group_size() == 1
            && [64, 128, 256].contains(&row.heads.dim)
    };
    summary(rows, None, &PEERS, in_short)
}

/// TFLOP/s of this project and its peers on every problem, the ratio to the fastest peer, and the geometric mean of the
/// ratios.
pub(super) fn against_peers(rows: &[BenchRow], errors: &[ErrorRow]) -> String {
    summary(rows, Some(errors), &PEERS, |_| true)
}

/// The table of problems outside of the sweep, which not every peer takes.
pub(super) fn others(rows: &[BenchRow], errors: &[ErrorRow]) -> String {
    summary(rows, Some(errors), &OTHER_PEERS, |_| true)
}

fn summary(
    rows: &[BenchRow],
    errors: Option<&[ErrorRow]>,
    peers: &[&str],
    shown: impl Fn(&&Line<'_>) -> bool,
) -> String {
    let problems = by_problem(rows, |row| row.backend.clone());
    let lines = lines(&problems, peers);
    let Some(last) = rows.iter().rfind(|row| row.backend == OURS) else {
        return "Nothing is measured yet.\n".to_owned();
    };
    let shown: Vec<&Line<'_>> = lines.iter().filter(shown).collect();
    let mut text = table(rows, last, &shown, peers);
    let mut ratios: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for line in &lines {
        ratios
            .entry(&line.ours.element)
            .or_default()
            .extend(line.ratio());
    }
    for (element, ratios) in &ratios {
        if let Some(mean) = geometric_mean(ratios) {
            let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
            let ahead = ratios.iter().filter(|&&ratio| ratio >= 1.0).count();
            text.push_str(&format!(
                "\n{element}: geometric mean of the {} ratios {mean:.3}, the lowest {least:.2}, at least 1.00 in {ahead}.\n",
                ratios.len()
            ));
        }
    }
    text.push_str(&halves(&problems));
    if let Some(errors) = errors {
        text.push_str(&more(&lines, errors));
    }
    text
}

/// How f16 compares with bf16 where both were measured.
fn halves(problems: &Problems<'_>) -> String {
    let ratio = |(problem, cells): (&Problem, &BTreeMap<String, &BenchRow>)| {
        let mut problem = problem.clone();
        let element = std::mem::replace(&mut problem.0, "bf16".to_owned());
        let bf16 = problems.get(&problem).filter(|_| element == "f16")?;
        Some(cells.get(OURS)?.tflops / bf16.get(OURS)?.tflops)
    };
    let ratios: Vec<f64> = problems.iter().filter_map(ratio).collect();
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let most = ratios.iter().copied().fold(0.0, f64::max);
    match ratios.len() {
        0 => String::new(),
        count => format!(
            "\nf16 has {least:.3} to {most:.3} of bf16's speed in the {count} problems measured in both.\n"
        ),
    }
}

/// `None` for no values.
pub(super) fn geometric_mean(values: &[f64]) -> Option<f64> {
    let logs: f64 = values.iter().map(|value| value.ln()).sum();
    (!values.is_empty()).then(|| (logs / values.len() as f64).exp())
}

/// Microseconds of each family's best kernel on every problem next to FlashAttention-2's, and whether the planner took the
/// fastest family. `chosen` has the planner's choices and the peers.
pub(super) fn families(families: &[BenchRow], chosen: &[BenchRow]) -> String {
    const FAMILIES: [&str; 3] = ["scalar", "mma", "wgmma"];
    let chosen = by_problem(chosen, |row| row.backend.clone());
    let mut lines = Vec::new();
    let mut right = 0;
    for (key, cells) in by_problem(families, |row| row.family.clone()) {
        let Some(choice) = chosen.get(&key).and_then(|cells| cells.get(OURS)) else {
            continue;
        };
        let fastest = cells
            .values()
            .min_by(|a, b| a.median_us.total_cmp(&b.median_us))
            .map_or("-", |row| &row.family);
        right += usize::from(fastest == choice.family);
        let mut line = vec![choice.name()];
        line.extend(FAMILIES.iter().map(|&family| {
            let time = cells.get(family).map(|row| format!("{:.1}", row.median_us));
            match time {
                Some(time) if family == fastest => format!("**{time}**"),
                Some(time) => time,
                None => "-".to_owned(),
            }
        }));
        let fa2 = chosen.get(&key).and_then(|cells| cells.get("fa2"));
        line.push(number(fa2.map(|row| row.median_us), 1));
        line.push(format!("`{}`", choice.kernel));
        lines.push(line);
    }
    if lines.is_empty() {
        return "Nothing is measured yet.\n".to_owned();
    }
    let count = lines.len();
    let header = [
        "(batch, heads, length, head size), element, mask",
        "scalar",
        "mma",
        "wgmma",
        "FA2",
        "the planner's choice",
    ];
    format!(
        "Microseconds of GPU time of each family's best kernel.\n\n{}\nThe planner's choice is of the fastest family in {right} of {count} rows.\n",
        markdown_table(&header, lines)
    )
}

/// Problems, square and not, in which the best peer is faster.
pub(super) fn behind(rows: &[BenchRow], decode: &[BenchRow]) -> String {
    let problems = by_problem(rows, |row| row.backend.clone());
    let mut behind: Vec<Vec<String>> = lines(&problems, &OTHER_PEERS)
        .iter()
        .filter_map(|line| {
            let ratio = line.ratio().filter(|&ratio| ratio < decode::BEHIND)?;
            let peers = line.peers.iter().flatten();
            let best = peers.max_by(|a, b| a.tflops.total_cmp(&b.tflops))?;
            let peer = decode::name(&best.backend).to_owned();
            Some(vec![line.ours.problem(), peer, format!("{ratio:.2}")])
        })
        .collect();
    behind.extend(decode::behind(decode));
    let measured = lines(&problems, &OTHER_PEERS).len();
    match rows.iter().rfind(|row| row.backend == OURS) {
        None => "Nothing is measured yet.\n".to_owned(),
        Some(last) => format!(
            "Of {measured} square problems, and those with few queries, measured on {}; *ratio* is our speed over the peer's.\n\n{}",
            last.device,
            markdown_table(&["problem", "fastest", "ratio"], behind)
        ),
    }
}

/// The CPU path and its peer: a table for each kind of processor, the latest first; rows with the lowest ratio come first.
pub(super) fn on_cpu(rows: &[BenchRow]) -> String {
    let mut of_device: BTreeMap<(&str, &str), Vec<&BenchRow>> = BTreeMap::new();
    for row in rows {
        let device = (row.date.as_str(), row.device.as_str());
        of_device.entry(device).or_default().push(row);
    }
    let tables = of_device.into_values().rev().map(|rows| on_one_cpu(&rows));
    match rows.is_empty() {
        true => "Nothing is measured yet.\n".to_owned(),
        false => tables.collect::<Vec<_>>().join("\n"),
    }
}

fn on_one_cpu(rows: &[&BenchRow]) -> String {
    let milliseconds = |row: Option<&BenchRow>| number(row.map(|row| row.median_us / 1e3), 2);
    let mut ours: Vec<(&BenchRow, Option<&BenchRow>, Option<f64>)> = { rows.iter() }
        .filter(|row| row.backend == OURS)
        .map(|&ours| {
            let same = |row: &&&BenchRow| row.backend != OURS && row.problem() == ours.problem();
            let peer = rows.iter().find(same).copied();
            (ours, peer, peer.map(|peer| peer.median_us / ours.median_us))
        })
        .collect();
    // Stable: the rest stays in the order of the measurement.
    ours.sort_by_key(|(.., ratio)| ratio.is_none_or(|ratio| ratio >= 1.0));
    let ratios: Vec<f64> = ours.iter().filter_map(|(.., ratio)| *ratio).collect();
    let lines = ours.iter().map(|(ours, peer, ratio)| {
        vec![
            ours.name(),
            milliseconds(Some(ours)),
            milliseconds(*peer),
            number(*ratio, 2),
            number(peer.and_then(|peer| Some(peer.min_us? / ours.min_us?)), 2),
            number(ours.read_us.map(|read| read / ours.median_us), 2),
        ]
    });
    let peers: BTreeSet<&str> = { rows.iter() }
        .filter(|row| row.backend != OURS)
        .map(|row| row.kernel.as_str())
        .collect();
    format!(
        "Milliseconds of one call by the clock, median, on {}, {}; in turn with {}. *Ratio*: our speed over PyTorch's, \
         geometric mean {}; \
         *shortest*: the same of the shortest call of each, which what else the machine did disturbed least. *Reading*: our speed over that of only reading keys and values.\n\n{}",
        rows[0].device,
        checks::day(&rows[0].date),
        Vec::from_iter(peers).join(", "),
        number(geometric_mean(&ratios), 2),
        markdown_table(
            &[
                "(batch, heads, length, head size), element, mask",
                "Warptile",
                "PyTorch",
                "ratio",
                "shortest",
                "reading"
            ],
            lines
        )
    )
}

/// Times of sequences of very different lengths packed together, next to the times of the parts.
pub(super) fn uneven(rows: &[BenchRow]) -> String {
    let rows = rows.iter().filter(|row| row.method == "graph");
    let mut of_mask: BTreeMap<&str, Vec<&BenchRow>> = BTreeMap::new();
    for row in rows {
        of_mask.entry(&row.mask).or_default().push(row);
    }
    let mut lines = Vec::new();
    for (mask, mut rows) in of_mask.into_iter().rev() {
        // The whole has more sequences than any part.
        rows.sort_by_key(|row| std::cmp::Reverse(row.batch));
        let parts: f64 = rows.iter().skip(1).map(|row| row.median_us).sum();
        lines.extend(rows.iter().enumerate().map(|(i, row)| {
            let share = match (i, rows.len()) {
                (0, 3..) => format!("{:.2}", row.median_us / parts),
                _ => String::new(),
            };
            let cells =
                [mask, &row.batch.to_string(), &row.query_len.to_string()].map(String::from);
            [&cells[..], &[format!("{:.1}", row.median_us), share]].concat()
        }));
    }
    if lines.is_empty() {
        return "Nothing is measured yet.\n".to_owned();
    }
    let header = [
        "mask",
        "sequences",
        "longest",
        "microseconds",
        "of its parts' sum",
    ];
    markdown_table(&header, lines)
}

#[cfg(test)]
mod tests {
    use super::super::bench::tests::row;
    use super::*;

    #[test]
    fn the_ratio_is_to_the_fastest_peer_and_losing_rows_stay() {
        let text = against_peers(
            &[
                row("warptile", 64, 1024, 200.0),
                row("fa2", 64, 1024, 50.0),
                row("cudnn", 64, 1024, 100.0),
                row("warptile", 64, 512, 50.0),
                row("cudnn", 64, 512, 100.0),
                row("cudnn", 128, 512, 100.0),
            ],
            &[],
        );
        assert!(
            text.contains("| (2, 8, 512, 64), f16, none | - | 100 | - | - | 50 | 0.50 |"),
            "{text}"
        );
        assert!(
            text.contains("| (1, 8, 1024, 64), f16, none | 50 | 100 | - | - | 200 | **2.00** |"),
            "{text}"
        );
        assert!(
            text.contains(
                "f16: geometric mean of the 2 ratios 1.000, the lowest 0.50, at least 1.00 in 1."
            ),
            "{text}"
        );
    }

    #[test]
    fn errors_stand_beside_speeds() {
        let error = |backend: &str, error_rms| ErrorRow {
            backend: backend.to_owned(),
            problem: "b2 q512 k512 h8 d64 f16".to_owned(),
            error_rms,
            error_max: 10.0 * error_rms,
        };
        let text = against_peers(
            &[
                row("warptile", 64, 512, 50.0),
                row("warptile", 64, 1024, 50.0),
            ],
            &[
                error("warptile", 2e-4),
                error("fa3", 1.5e-4),
                error("fa2", 3e-4),
            ],
        );
        assert!(
            text.contains("f16, none | 2.00e-4 (1.50e-4) | 2.00e-3 (1.50e-3) | `scalar"),
            "{text}"
        );
        assert!(text.contains("f16, none | - | - | `scalar"), "{text}");
    }

    #[test]
    fn the_short_table_has_its_six_rows_and_the_means_of_all() {
        let mut rows = Vec::new();
        for mask in ["none", "causal"] {
            for head_dim in [32, 64, 128, 256] {
                for len in [512, 4096] {
                    for (backend, speed) in [("warptile", 20.0), ("fa3", 10.0)] {
                        let mut row = row(backend, head_dim, len, speed);
                        row.element = "bf16".to_owned();
                        row.mask = mask.to_owned();
                        rows.push(row);
                    }
                }
            }
        }
        let text = in_short(&rows);
        assert_eq!(text.matches("**2.00**").count(), 6, "{text}");
        assert!(
            text.contains("bf16: geometric mean of the 16 ratios 2.000"),
            "{text}"
        );
    }

    #[test]
    fn what_is_lost_is_named_with_the_peer() {
        let rows = [
            row("warptile", 64, 512, 90.0),
            row("fa3", 64, 512, 100.0),
            row("cudnn", 64, 512, 95.0),
            row("warptile", 64, 1024, 100.0),
            row("fa3", 64, 1024, 100.0),
        ];
        let text = behind(&rows, &[]);
        assert!(text.contains(" | FA3 | 0.90 |"), "{text}");
        assert_eq!(text.matches("FA3").count(), 1, "{text}");
        assert!(text.starts_with("Of 2 square problems"), "{text}");
    }

    #[test]
    fn the_cpu_is_compared_with_its_peer_on_the_same_problem() {
        let of = |backend: &str, len, us| BenchRow {
            kernel: backend.to_owned(),
            median_us: us,
            ..row(backend, 64, len, 1.0)
        };
        let rows = [
            of("warptile", 512, 2_000.0),
            of("pytorch", 512, 3_000.0),
            of("warptile", 1024, 8_000.0),
        ];
        let text = on_cpu(&rows);
        assert!(
            text.contains("none | 2.00 | 3.00 | 1.50 | - | - |"),
            "{text}"
        );
        assert!(text.contains("none | 8.00 | - | - | - | - |"), "{text}");
        assert!(text.contains("in turn with pytorch."), "{text}");
        assert!(text.contains("geometric mean 1.50;"), "{text}");
        assert_eq!(on_cpu(&[]), "Nothing is measured yet.\n");
    }

    #[test]
    fn halves_are_compared_where_both_were_measured() {
        let mut bf16 = row("warptile", 64, 512, 100.0);
        bf16.element = "bf16".to_owned();
        let text = against_peers(
            &[
                bf16,
                row("warptile", 64, 512, 99.0),
                row("warptile", 64, 1024, 50.0),
            ],
            &[],
        );
        assert!(
            text.contains("f16 has 0.990 to 0.990 of bf16's speed in the 1 problems"),
            "{text}"
        );
    }

    #[test]
    fn a_batch_is_compared_with_its_parts() {
        let part = |batch, len, us| {
            let mut row = row("warptile", 128, len, 1.0);
            row.batch = batch;
            row.median_us = us;
            row
        };
        let text = uneven(&[part(64, 900, 12.0), part(1, 900, 10.0), part(63, 8, 5.0)]);
        assert!(text.contains("| none | 64 | 900 | 12.0 | 0.80 |"), "{text}");
        assert!(text.contains("| none | 63 | 8 | 5.0 |  |"), "{text}");
    }

    #[test]
    fn a_choice_of_a_slower_family_is_counted() {
        let family = |name: &str, len, us| {
            let mut row = row("warptile", 64, len, 1.0);
            row.family = name.to_owned();
            row.median_us = us;
            row
        };
        let measured = [
            family("scalar", 512, 9.0),
            family("mma", 512, 5.0),
            family("mma", 1024, 5.0),
            family("wgmma", 1024, 7.0),
        ];
        let text = families(
            &measured,
            &[family("mma", 512, 5.0), family("wgmma", 1024, 7.0)],
        );
        assert!(text.contains("| 9.0 | **5.0** | - | - |"), "{text}");
        assert!(text.contains("in 1 of 2 rows"), "{text}");
    }
}
