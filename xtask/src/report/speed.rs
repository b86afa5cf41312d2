//! Speed in short: this project's kernels against the fastest peer, row by row, and its families against each other.

use std::collections::{BTreeMap, BTreeSet};

use super::bench::{BenchRow, ErrorRow};
use super::peers::{self, Line, tflops, us};
use super::record::{OURS, geometric_mean};
use super::{checks, decode, markdown_table, number, ratio};

/// The problems that we were measured on, in the order of the tables.
fn lines<'a>(rows: impl IntoIterator<Item = &'a BenchRow>) -> Vec<Line<'a>> {
    let mut lines = peers::lines(rows);
    lines.sort_by_cached_key(|line| (line.ours.element.clone(), among_elements(line.ours)));
    lines
}

/// The problem without its element type.
fn among_elements(row: &BenchRow) -> (String, usize, usize, String) {
    let BenchRow { mask, key_len, .. } = row;
    (mask.clone(), row.heads.dim, *key_len, row.shape())
}

/// Peers of the table, in its order; the memory-efficient kernel is never the fastest.
const PEERS: [&str; 4] = ["fa2", "cudnn", "fa3", "fa4"];

/// Peers of problems that not all of those take.
const OTHER_PEERS: [&str; 5] = ["fa2", "cudnn", "fa3", "fa4", "efficient"];

/// Our error and the smallest of the peers', by one measure.
fn error(line: &Line<'_>, errors: &[ErrorRow], measure: fn(&ErrorRow) -> f64) -> String {
    let problem = line.ours.problem();
    let of_problem = || errors.iter().filter(|row| row.problem == problem);
    let Some(ours) = of_problem().find(|row| row.backend == OURS).map(measure) else {
        return "-".to_owned();
    };
    let peers = of_problem().filter(|row| OTHER_PEERS.contains(&row.backend.as_str()));
    match peers.map(measure).min_by(f64::total_cmp) {
        Some(best) => format!("{ours:.2e} ({best:.2e})"),
        None => format!("{ours:.2e}"),
    }
}

/// Our speed over that of each peer, by problem and peer. Three digits: more would be noise.
pub(super) fn ratios<'a>(
    rows: impl IntoIterator<Item = &'a BenchRow>,
) -> BTreeMap<String, BTreeMap<String, f64>> {
    let of_line = |line: &Line<'_>| {
        let peers = PEERS.iter().filter_map(|peer| line.of(peer));
        let ratio = |peer: &BenchRow| (line.times(peer) * 1e3).round() / 1e3;
        let ratios = peers.map(|peer| (peer.backend.clone(), ratio(peer)));
        (line.ours.problem(), ratios.collect())
    };
    lines(rows).iter().map(of_line).collect()
}

/// Errors and kernels, folded.
fn more(lines: &[Line<'_>], errors: &[ErrorRow]) -> String {
    let header = ["problem", "rms error", "largest error", "kernel"];
    let cells = lines.iter().map(|line| {
        let (rms, max) = (
            |row: &ErrorRow| row.error_rms,
            |row: &ErrorRow| row.error_max,
        );
        vec![
            line.ours.name(),
            error(line, errors, rms),
            error(line, errors, max),
            format!("`{}`", line.ours.kernel),
        ]
    });
    format!(
        "\n<details><summary>Errors and kernels</summary>\n\nErrors are against float64 on normally distributed inputs, \
         with the smallest of the peers' in parentheses.\n\n{}\n</details>\n",
        markdown_table(&header, cells)
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
    let lines = lines(rows);
    let Some(last) = rows.iter().rfind(|row| row.backend == OURS) else {
        return "Nothing is measured yet.\n".to_owned();
    };
    let mut header = vec!["problem"];
    header.extend(peers.iter().map(|peer| peers::name(peer)));
    header.extend(["Warptile", "ratio"]);
    let cells = lines.iter().filter(shown).map(|line| {
        let mut cells = vec![line.ours.name()];
        cells.extend(peers.iter().map(|peer| tflops(line.of(peer))));
        cells.extend([tflops(Some(line.ours)), ratio(line.ratio())]);
        cells
    });
    let mut text = format!(
        "{} A problem is (batch, heads, length, head size), element type, mask. *Ratio* is to the fastest peer of the row.{}\n\n{}",
        peers::measured_as("TFLOP/s", "launch", last),
        peers::versions(rows),
        markdown_table(&header, cells),
    );
    text += &peers::means(&lines);
    text += &halves(&lines);
    if let Some(errors) = errors {
        text += &more(&lines, errors);
    }
    text
}

/// How f16 compares with bf16 where both were measured.
fn halves(lines: &[Line<'_>]) -> String {
    let of = |element| { lines.iter() }.filter(move |line| line.ours.element == element);
    let ratio = |f16: &Line<'_>| {
        let problem = among_elements(f16.ours);
        let bf16 = of("bf16").find(|bf16| among_elements(bf16.ours) == problem)?;
        Some(f16.ours.tflops / bf16.ours.tflops)
    };
    let ratios: Vec<f64> = of("f16").filter_map(ratio).collect();
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let most = ratios.iter().copied().fold(0.0, f64::max);
    match ratios.len() {
        0 => String::new(),
        count => format!(
            "\nf16 has {least:.3} to {most:.3} of bf16's speed in the {count} problems measured in both.\n"
        ),
    }
}

/// Microseconds of each family's best kernel on every problem next to FlashAttention-2's, and whether the planner took the
/// fastest family. `chosen` has the planner's choices and the peers.
pub(super) fn families(families: &[BenchRow], chosen: &[BenchRow]) -> String {
    const FAMILIES: [&str; 3] = ["scalar", "mma", "wgmma"];
    let families = || families.iter().filter(|row| row.method == "graph");
    let mut lines = Vec::new();
    let mut right = 0;
    for chosen in self::lines(chosen) {
        let (choice, problem) = (chosen.ours, chosen.ours.problem());
        let of_problem: BTreeMap<&str, &BenchRow> = { families() }
            .filter(|row| row.problem() == problem)
            .map(|row| (row.family.as_str(), row))
            .collect();
        let fastest = { of_problem.values() }.min_by(|a, b| a.median_us.total_cmp(&b.median_us));
        let Some(fastest) = fastest.map(|row| row.family.as_str()) else {
            continue;
        };
        right += usize::from(fastest == choice.family);
        let mut line = vec![choice.name()];
        line.extend(FAMILIES.map(|family| {
            let time = us(of_problem.get(family).copied());
            match family == fastest {
                true => format!("**{time}**"),
                false => time,
            }
        }));
        line.extend([us(chosen.of("fa2")), format!("`{}`", choice.kernel)]);
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
    let lines = lines(rows);
    let mut behind: Vec<Vec<String>> = { lines.iter() }
        .filter_map(|line| {
            let ratio = line.ratio().filter(|&ratio| ratio < decode::BEHIND)?;
            let peer = peers::name(&line.best()?.backend).to_owned();
            Some(vec![line.ours.problem(), peer, format!("{ratio:.2}")])
        })
        .collect();
    behind.extend(decode::behind(decode));
    match rows.iter().rfind(|row| row.backend == OURS) {
        None => "Nothing is measured yet.\n".to_owned(),
        Some(last) => format!(
            "Of {} square problems, and those with few queries, measured on {}; *ratio* is our speed over the peer's.\n\n{}",
            lines.len(),
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
