//! Gradients: speeds next to the fastest peer's, and errors.

use std::collections::BTreeSet;

use super::bench::{BenchRow, peers_text};
use super::in_turn::{InTurn, Row, error, least_error};
use super::{checks, markdown_table, number, plot, ratio, speed};

/// Peers of the table, in its order.
const PEERS: [&str; 5] = ["fa2", "cudnn", "fa3", "fa3-deterministic", "fa4"];

/// Our contestant in plots, whichever kernels compute.
pub(super) const OURS: &str = "warptile gradients";

/// The rows of plots.
pub(super) fn plotted(rows: &[Row]) -> impl Iterator<Item = BenchRow> {
    let graphs = rows.iter().filter(|one| one.row.method == "graph");
    graphs.map(|one| BenchRow {
        family: "gradients".to_owned(),
        ..one.row.clone()
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
pub(super) fn table(rows: &[Row]) -> String {
    let all = InTurn::new(rows, &PEERS);
    let ours: Vec<&Row> = all.ours().collect();
    let Some(last) = ours.last() else {
        return "Nothing is measured yet.\n".to_owned();
    };
    let has_peers = all.names().next().is_some();
    let mut lines: Vec<(Option<f64>, Vec<String>)> = Vec::new();
    for one in &ours {
        let row = &one.row;
        let of_peers = all.of_peers(&row.problem);
        let fastest = of_peers.iter().flatten().map(|peer| peer.row.tflops);
        let times = fastest.max_by(f64::total_cmp).map(|peer| row.tflops / peer);
        let mut cells = vec![format!(
            "{}, {}, {}",
            row.heads.sizes(),
            length(row.query_len),
            row.mask
        )];
        cells.extend(
            of_peers
                .iter()
                .map(|peer| number(peer.map(|peer| peer.row.tflops), 0)),
        );
        cells.extend([
            number(Some(row.tflops), 0),
            ratio(times),
            error(one.error_rms),
        ]);
        if has_peers {
            cells.push(least_error(&of_peers));
        }
        lines.push((times, cells));
    }
    lines.sort_by_key(|(times, _)| times.is_none_or(|times| times >= 1.0));
    let ratios: Vec<f64> = lines.iter().filter_map(|(times, _)| *times).collect();
    let values_of = |of: &dyn Fn(&BenchRow) -> String| {
        let values: BTreeSet<String> = ours.iter().map(|one| of(&one.row)).collect();
        Vec::from_iter(values).join(" or ")
    };
    let mut header = vec!["head size, length, mask"];
    header.extend(all.names());
    header.extend(["Warptile", "ratio", "error"]);
    if has_peers {
        header.push("peers'");
    }
    let text = format!(
        "TFLOP/s on {}, GPU time of one launch in a replayed graph, by the usual count of 2.5 times the operations of the output; driver {}, {}. {}, {} rows and {} elements a row. *Ratio* is to the fastest peer of the row; rows in which a peer is faster come first. *Error* is the root mean square of dq, dk and dv against float64 on normally distributed inputs, beside the smallest of the peers'.{}",
        last.row.device,
        last.row.driver,
        checks::day(&last.row.date),
        values_of(&|row| row.element.clone()),
        values_of(&|row| (row.batch * row.query_len).to_string()),
        values_of(&|row| (row.heads.query * row.heads.dim).to_string()),
        peers_text(&all.measured()),
    );
    let mut text = format!(
        "{text}\n\n{}",
        markdown_table(&header, lines.into_iter().map(|(_, cells)| cells))
    );
    let pictures: Vec<BenchRow> = plotted(rows).collect();
    if let Some(mean) = speed::geometric_mean(&ratios) {
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let ahead = ratios.iter().filter(|&&ratio| ratio >= 1.0).count();
        text.push_str(&format!(
            "\nGeometric mean of the {} ratios {mean:.3}, the lowest {least:.2}, at least 1.00 in {ahead}.\n",
            ratios.len()
        ));
        text.push_str(&format!("\n{}", plot::links(&pictures)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::bench::tests::row;
    use super::*;

    fn gradients(backend: &str, len: u64, tflops: f64, error_rms: Option<f64>) -> Row {
        let row = BenchRow {
            problem: format!("q{len} backward"),
            ..row(backend, 64, len, tflops)
        };
        Row { row, error_rms }
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
