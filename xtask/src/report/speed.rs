//! Speed in short: this project's kernels against the fastest peer, row by row, and its families against each other.

use std::collections::BTreeMap;

use super::bench::BenchRow;
use super::{checks, markdown_table};

/// What the rows of one problem have in common, in the order of the tables.
type Problem = (String, String, u64, u64, String);

fn problem(row: &BenchRow) -> Problem {
    (
        row.element.clone(),
        row.mask.clone(),
        row.head_dim,
        row.key_len,
        row.shape(),
    )
}

/// The rows measured as GPU time, by problem, the later of two measurements of the same contestant in place of the earlier.
fn by_problem(
    rows: &[BenchRow],
    contestant: impl Fn(&BenchRow) -> String,
) -> BTreeMap<Problem, BTreeMap<String, &BenchRow>> {
    let mut problems: BTreeMap<Problem, BTreeMap<String, &BenchRow>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.method == "graph") {
        problems
            .entry(problem(row))
            .or_default()
            .insert(contestant(row), row);
    }
    problems
}

const OURS: &str = "warptile";

/// Peers of the table, in its order; the memory-efficient kernel is never the fastest.
const PEERS: [&str; 3] = ["fa2", "cudnn", "fa3"];

/// TFLOP/s of this project and its peers on every problem, the ratio to the fastest peer, and the geometric mean of the
/// ratios.
pub(super) fn against_peers(rows: &[BenchRow]) -> String {
    let problems = by_problem(rows, |row| row.backend.clone());
    let mut ratios: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut lines = Vec::new();
    for ((element, mask, _, _, shape), cells) in &problems {
        let Some(ours) = cells.get(OURS) else {
            continue;
        };
        let speed = |name: &str| cells.get(name).map(|row| row.tflops);
        let fastest = PEERS
            .iter()
            .filter_map(|peer| speed(peer))
            .max_by(f64::total_cmp);
        let ratio = fastest.map(|fastest| ours.tflops / fastest);
        ratios.entry(element).or_default().extend(ratio);
        let number = |value: Option<f64>| value.map_or("-".to_owned(), |x| format!("{x:.0}"));
        let mut line = vec![format!("{shape}, {element}, {mask}")];
        line.extend(PEERS.iter().map(|peer| number(speed(peer))));
        line.push(number(Some(ours.tflops)));
        line.push(ratio.map_or("-".to_owned(), |ratio| match ratio < 1.0 {
            true => format!("{ratio:.2}"),
            false => format!("**{ratio:.2}**"),
        }));
        line.push(format!("`{}`", ours.kernel));
        lines.push(line);
    }
    let Some(last) = rows.iter().rfind(|row| row.backend == OURS) else {
        return "Nothing is measured yet.\n".to_owned();
    };
    let header = [
        "(batch, heads, length, head size), element, mask",
        "FA2",
        "cuDNN",
        "FA3",
        "Warptile",
        "ratio",
        "kernel",
    ];
    let mut text = format!(
        "TFLOP/s on {}, GPU time of one launch in a replayed graph; driver {}, {}. *Ratio* is to the fastest peer of the row.\n\n{}",
        last.device,
        last.driver,
        checks::day(&last.date),
        markdown_table(&header, lines),
    );
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
    text
}

/// How f16 compares with bf16 where both were measured.
fn halves(problems: &BTreeMap<Problem, BTreeMap<String, &BenchRow>>) -> String {
    let ratios: Vec<f64> = problems
        .iter()
        .filter(|((element, ..), _)| element == "f16")
        .filter_map(|((_, mask, head_dim, key_len, shape), cells)| {
            let bf16 = (
                "bf16".to_owned(),
                mask.clone(),
                *head_dim,
                *key_len,
                shape.clone(),
            );
            let bf16 = problems.get(&bf16)?.get(OURS)?;
            Some(cells.get(OURS)?.tflops / bf16.tflops)
        })
        .collect();
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
fn geometric_mean(values: &[f64]) -> Option<f64> {
    let logs: f64 = values.iter().map(|value| value.ln()).sum();
    (!values.is_empty()).then(|| (logs / values.len() as f64).exp())
}

/// Microseconds of each family's best kernel on every problem beside FlashAttention-2's, and whether the planner took the
/// fastest family. `chosen` has the planner's choices and the peers.
pub(super) fn families(families: &[BenchRow], chosen: &[BenchRow]) -> String {
    const FAMILIES: [&str; 3] = ["scalar", "wmma", "wgmma"];
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
        let (element, mask, _, _, shape) = &key;
        let mut line = vec![format!("{shape}, {element}, {mask}")];
        line.extend(FAMILIES.iter().map(|&family| {
            let time = cells.get(family).map(|row| format!("{:.1}", row.median_us));
            match time {
                Some(time) if family == fastest => format!("**{time}**"),
                Some(time) => time,
                None => "-".to_owned(),
            }
        }));
        let fa2 = chosen.get(&key).and_then(|cells| cells.get("fa2"));
        line.push(fa2.map_or("-".to_owned(), |row| format!("{:.1}", row.median_us)));
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
        "wmma",
        "wgmma",
        "FA2",
        "the planner's choice",
    ];
    format!(
        "Microseconds of GPU time of each family's best kernel.\n\n{}\nThe planner's choice is of the fastest family in {right} of {count} rows.\n",
        markdown_table(&header, lines)
    )
}

#[cfg(test)]
mod tests {
    use super::super::bench::tests::row;
    use super::*;

    #[test]
    fn the_ratio_is_to_the_fastest_peer_and_losing_rows_stay() {
        let text = against_peers(&[
            row("warptile", 64, 1024, 200.0),
            row("fa2", 64, 1024, 50.0),
            row("cudnn", 64, 1024, 100.0),
            row("warptile", 64, 512, 50.0),
            row("cudnn", 64, 512, 100.0),
            row("cudnn", 128, 512, 100.0),
        ]);
        assert!(
            text.contains("| (2, 8, 512, 64), f16, none | - | 100 | - | 50 | 0.50 |"),
            "{text}"
        );
        assert!(
            text.contains("| (1, 8, 1024, 64), f16, none | 50 | 100 | - | 200 | **2.00** |"),
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
    fn halves_are_compared_where_both_were_measured() {
        let mut bf16 = row("warptile", 64, 512, 100.0);
        bf16.element = "bf16".to_owned();
        let text = against_peers(&[
            bf16,
            row("warptile", 64, 512, 99.0),
            row("warptile", 64, 1024, 50.0),
        ]);
        assert!(
            text.contains("f16 has 0.990 to 0.990 of bf16's speed in the 1 problems"),
            "{text}"
        );
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
            family("wmma", 512, 5.0),
            family("wmma", 1024, 5.0),
            family("wgmma", 1024, 7.0),
        ];
        let text = families(
            &measured,
            &[family("wmma", 512, 5.0), family("wgmma", 1024, 7.0)],
        );
        assert!(text.contains("| 9.0 | **5.0** | - | - |"), "{text}");
        assert!(text.contains("in 1 of 2 rows"), "{text}");
    }
}
