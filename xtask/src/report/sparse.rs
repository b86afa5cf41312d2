//! Lists of blocks: speeds next to those of the same work without a list.

use super::bench::BenchRow;
use super::peers::{self, tflops};
use super::{markdown_table, number};

const LISTED: &str = "blocks=";

/// In the order of the measurement. The work of a list is that of the blocks that it has.
pub(super) fn table(rows: &[BenchRow]) -> String {
    let graphs = || rows.iter().filter(|row| row.method == "graph");
    let Some(last) = graphs().next_back() else {
        return "Nothing is measured yet.\n".to_owned();
    };
    let cells = |row: &BenchRow| {
        let sizes = row.heads.sizes();
        let dense = graphs().find(|one| {
            !one.problem.contains(LISTED)
                && one.heads.sizes() == sizes
                && one.query_len == row.query_len
        });
        vec![
            row.problem.clone(),
            number(Some(row.median_us), 0),
            tflops(Some(row)),
            number(dense.map(|dense| row.tflops / dense.tflops), 2),
            format!("`{}`", row.kernel),
        ]
    };
    let listed = graphs().filter(|row| row.problem.contains(LISTED));
    format!(
        "{} *Of dense*: speed over that of as many keys as rows of blocks of 128 see, without a list.\n\n{}",
        peers::measured_as("Microseconds", "launch", last),
        markdown_table(
            &["problem", "microseconds", "TFLOP/s", "of dense", "kernel"],
            listed.map(cells)
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::super::bench;

    #[test]
    fn speeds_are_beside_those_of_the_same_work_without_a_list() {
        let row = |problem: &str, tflops| bench::BenchRow {
            problem: problem.to_owned(),
            ..bench::tests::row("warptile", 64, 512, tflops)
        };
        let rows = [
            row("b1 q512 k512 h8 d64 f16 blocks=64x64,head,4", 300.0),
            row("b1 q512 k256 h8 d64 f16", 600.0),
        ];
        let text = super::table(&rows);
        assert!(text.contains("| 300 | 0.50 |"), "{text}");
        assert!(!text.contains("| 600 |"), "{text}");
        assert!(super::table(&[]).contains("Nothing"));
    }
}
