//! The tilings of the original kernel, which it had names for: their times in both families that have them.

use super::bench::BenchRow;
use super::record::OURS;
use super::{checks, markdown_table};

/// The five that its search began with, and its two with 8 warps.
const TILINGS: [&str; 7] = [
    "d64_32x64_w4_s2",
    "d64_32x32_w4_s2",
    "d64_48x64_w8_s2",
    "d64_32x64_w4_s1",
    "d64_16x64_w4_s2",
    "d64_64x64_w8_s2",
    "d128_48x32_w8_s2",
];

/// Microseconds of each tiling as `scalar` and as `wmma`, next to PyTorch. `kernels` are ours, `default` what PyTorch chooses by itself,
/// `peers` its kernels.
pub(super) fn table(kernels: &[BenchRow], default: &[BenchRow], peers: &[BenchRow]) -> String {
    let kernels: Vec<&BenchRow> = { kernels.iter() }
        .filter(|row| row.method == "graph" && row.backend == OURS)
        .collect();
    let Some(last) = kernels.last() else {
        return "Nothing is measured yet.\n".to_owned();
    };
    let mut problems: Vec<&BenchRow> = Vec::new();
    for row in &kernels {
        if !problems
            .iter()
            .any(|problem| problem.problem() == row.problem())
        {
            problems.push(row);
        }
    }
    let mut lines = Vec::new();
    for problem in problems {
        let on_problem = |row: &&BenchRow| row.problem() == problem.problem();
        let time = |found: Option<&BenchRow>| match found {
            Some(row) => format!("{:.1}", row.median_us),
            None => "not measured".to_owned(),
        };
        let of_backend = |rows: &'_ [BenchRow], backend: &str| {
            let of_backend = |row: &&BenchRow| row.method == "graph" && row.backend == backend;
            time(rows.iter().filter(on_problem).rfind(of_backend))
        };
        let (by_itself, fa2) = (of_backend(default, "default"), of_backend(peers, "fa2"));
        for tiling in TILINGS {
            let of_family = |family: &str| {
                let kernel = format!("{family}_{tiling}");
                let mut of_kernel = kernels.iter().copied().filter(on_problem);
                of_kernel.rfind(|row| row.kernel == kernel)
            };
            let ours = ["scalar", "wmma"].map(of_family);
            // A tiling takes no head size above its own.
            if ours.iter().all(Option::is_none) {
                continue;
            }
            let mut line = vec![
                format!("{}, {}", problem.shape(), problem.element),
                format!("`{tiling}`"),
            ];
            line.extend(ours.map(time));
            line.extend([by_itself.clone(), fa2.clone()]);
            lines.push(line);
        }
    }
    let header = [
        "(batch, heads, length, head size), element",
        "Tiling",
        "scalar",
        "wmma",
        "PyTorch's default",
        "PyTorch's FA2",
    ];
    format!(
        "Microseconds of GPU time on {}, {}.\n\n{}",
        last.device,
        checks::day(&last.date),
        markdown_table(&header, lines)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::bench::tests::row;

    #[test]
    fn families_stand_side_by_side_and_what_is_missing_is_said() {
        let ours = |family: &str, time: f64| BenchRow {
            family: family.to_owned(),
            kernel: format!("{family}_d64_32x64_w4_s2"),
            median_us: time,
            ..row("warptile", 64, 512, 1.0)
        };
        let peer = |backend: &str, time: f64| BenchRow {
            median_us: time,
            ..row(backend, 64, 512, 1.0)
        };
        let kernels = [ours("scalar", 40.0), ours("wmma", 16.5)];
        let line = |text: String| {
            let line = text.lines().find(|line| line.contains("d64_32x64_w4_s2"));
            let cells = line.unwrap().split(" | ").skip(2);
            cells.map(str::to_owned).collect::<Vec<_>>().join(" | ")
        };
        let text = table(&kernels, &[], &[peer("fa2", 12.75)]);
        assert_eq!(line(text), "40.0 | 16.5 | not measured | 12.8 |");
        let text = table(&kernels[..1], &[peer("default", 9.3)], &[]);
        assert_eq!(line(text), "40.0 | not measured | 9.3 | not measured |");
        assert_eq!(table(&[], &[], &[]), "Nothing is measured yet.\n");
    }
}
