//! Gradients: speeds next to the fastest peer's, and errors.

use std::collections::BTreeSet;

use super::bench::BenchRow;
use super::peers::{self, error, tflops};
use super::{markdown_table, plot, ratio};

/// Peers of the table, in its order.
const PEERS: [&str; 5] = ["fa2", "cudnn", "fa3", "fa3-deterministic", "fa4"];

/// Our contestant in plots, whichever kernels compute.
pub(super) const OURS: &str = "warptile gradients";

/// The rows of plots.
pub(super) fn plotted(rows: &[BenchRow]) -> impl Iterator<Item = BenchRow> {
    let graphs = rows.iter().filter(|row| row.method == "graph");
    graphs.map(|row| BenchRow {
        family: "gradients".to_owned(),
        ..row.clone()
    })
}

/// A length as people say it.
fn length(length: usize) -> String {
    match length % 1024 {
        0 if length > 0 => format!("{}k", length / 1024),
        _ => length.to_string(),
    }
}

/// Problems in which a peer is faster come first; the others follow in the order of the measurement.
pub(super) fn table(rows: &[BenchRow]) -> String {
    let mut lines = peers::lines(rows);
    let Some(last) = lines.last().map(|line| line.ours) else {
        return "Nothing is measured yet.\n".to_owned();
    };
    lines.sort_by_key(|line| line.ratio().is_none_or(|times| times >= 1.0));
    let peers = peers::measured(&lines, &PEERS);
    let cells = lines.iter().map(|line| {
        let row = line.ours;
        let (sizes, length) = (row.heads.sizes(), length(row.query_len));
        let mut cells = vec![format!("{sizes}, {length}, {}", row.mask)];
        cells.extend(peers.iter().map(|peer| tflops(line.of(peer))));
        cells.extend([tflops(Some(row)), ratio(line.ratio()), error(row.error_rms)]);
        cells.extend((!peers.is_empty()).then(|| error(line.least_error())));
        cells
    });
    let values_of = |of: &dyn Fn(&BenchRow) -> String| {
        let values: BTreeSet<String> = lines.iter().map(|line| of(line.ours)).collect();
        Vec::from_iter(values).join(" or ")
    };
    let mut header = vec!["head size, length, mask"];
    header.extend(peers.iter().map(|peer| peers::name(peer)));
    header.extend(["Warptile", "ratio", "error"]);
    header.extend((!peers.is_empty()).then_some("peers'"));
    let mut text = format!(
        "{} Operations are counted as 2.5 times those of the output, as usual. {}, {} rows and {} elements a row. *Ratio* is to the fastest peer of the row; rows in which a peer is faster come first. *Error* is the root mean square of dq, dk and dv against float64 on normally distributed inputs, beside the smallest of the peers'.{}\n\n{}",
        peers::measured_as("TFLOP/s", "launch", last),
        values_of(&|row| row.element.clone()),
        values_of(&|row| (row.batch * row.query_len).to_string()),
        values_of(&|row| (row.heads.query * row.heads.dim).to_string()),
        peers::versions(rows),
        markdown_table(&header, cells),
    );
    if !peers.is_empty() {
        text += &peers::means(&lines);
        text += &format!("\n{}", plot::links(&Vec::from_iter(plotted(rows))));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::bench::tests::row;
    use super::*;

    fn gradients(backend: &str, len: u64, tflops: f64, error_rms: Option<f64>) -> BenchRow {
        BenchRow {
            problem: format!("q{len} backward"),
            error_rms,
            ..row(backend, 64, len, tflops)
        }
    }

    #[test]
    fn lost_rows_come_first_and_errors_stand_beside_speeds() {
        let text = table(&[
            gradients("warptile", 512, 200.0, Some(2e-4)),
            gradients("fa2", 512, 50.0, Some(3e-4)),
            gradients("cudnn", 512, 100.0, Some(2.5e-4)),
            gradients("warptile", 1024, 50.0, None),
            gradients("cudnn", 1024, 100.0, None),
        ]);
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(
            lines,
            [
                "| head size, length, mask | FA2 | cuDNN | Warptile | ratio | error | peers' |",
                "| --- | --- | --- | --- | --- | --- | --- |",
                "| 64, 1k, none | - | 100 | 50 | 0.50 | - | - |",
                "| 64, 512, none | 50 | 100 | 200 | **2.00** | 2.00e-4 | 2.50e-4 |",
            ]
        );
        assert!(lines.iter().all(|line| line.len() <= 80), "{text}");
        assert!(
            text.contains("mean of the 2 ratios 1.000, the lowest 0.50, at least 1.00 in 1."),
            "{text}"
        );
        assert!(text.contains("graph-backward.svg)"), "{text}");
        assert_eq!(table(&[]), "Nothing is measured yet.\n");
    }
}
