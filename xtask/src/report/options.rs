//! Options of scores: times next to the fastest peer's and to our own calls without them, and errors.

use super::bench::BenchRow;
use super::peers::{self, Line, OTHER_CALLS, error, us};
use super::{markdown_table, number, ratio};

/// Peers of the table, in its order.
const PEERS: [&str; 4] = ["fa2", "cudnn", "efficient", "fa3"];

/// The words of a problem behind its element type, except those that say how tensors are stored.
fn words(row: &BenchRow) -> String {
    let all = row.problem.split_whitespace();
    let behind = all.skip_while(|word| *word != row.element).skip(1);
    let told: Vec<&str> = behind.filter(|word| !word.starts_with("layout=")).collect();
    told.join(" ")
}

/// Problems in which a peer is faster come first, the slowest of them first; the others follow in the order of the measurement.
pub(super) fn table(rows: &[BenchRow]) -> String {
    let mut lines = peers::lines(rows);
    let Some(last) = lines.last().map(|line| line.ours) else {
        return "Nothing is measured yet.\n".to_owned();
    };
    lines.sort_by(|one, other| {
        let lost = |line: &Line<'_>| line.ratio().unwrap_or(1.0).min(1.0);
        lost(one).total_cmp(&lost(other))
    });
    let peers = peers::measured(&lines, &PEERS);
    let cells = lines.iter().map(|line| {
        let row = line.ours;
        let mut cells = vec![format!("{}, {}, {}", row.shape(), row.element, words(row))];
        cells.extend(peers.iter().map(|peer| us(line.of(peer))));
        cells.extend([us(Some(row)), ratio(line.ratio())]);
        let other_calls = OTHER_CALLS.map(|call| line.of(call).map(|other| line.times(other)));
        cells.extend(other_calls.map(|times| number(times, 2)));
        cells.extend([row.error_rms, line.least_error()].map(error));
        cells
    });
    let mut header = vec!["problem"];
    header.extend(peers.iter().map(|peer| peers::name(peer)));
    header.extend([
        "Warptile",
        "ratio",
        "of plain",
        "of lengths",
        "error",
        "peers'",
    ]);
    format!(
        "{} A problem is (batch, heads, length, head size), element type, options. *Ratio* is to the fastest peer of the row; rows in which a peer is faster come first. *Of plain* is our speed as a part of that of our own call without the option, *of lengths* of the call with as many keys as a padding mask shows. *Error* is the root mean square of the output against float64 on normally distributed inputs, beside the smallest of the peers'. ALiBi is a bias to the peers.{}\n\n{}",
        peers::measured_as("Microseconds", "call", last),
        peers::versions(rows),
        markdown_table(&header, cells)
    )
}

#[cfg(test)]
mod tests {
    use super::super::bench::tests::row;
    use super::*;

    fn measured(backend: &str, options: &str, median_us: f64, error_rms: Option<f64>) -> BenchRow {
        let one = row(backend, 64, 512, 100.0);
        let problem = format!("b2 q512 k512 h8 d64 {} {options} layout=bhsd", one.element);
        BenchRow {
            problem,
            median_us,
            error_rms,
            ..one
        }
    }

    #[test]
    fn lost_rows_come_first_and_our_own_calls_stand_beside_them() {
        let text = table(&[
            measured("warptile", "bias", 50.0, Some(2e-4)),
            measured("plain", "bias", 40.0, None),
            measured("cudnn", "bias", 100.0, Some(3e-4)),
            measured("warptile", "keymask=padding", 50.0, None),
            measured("lengths", "keymask=padding", 49.0, None),
            measured("cudnn", "keymask=padding", 25.0, None),
            measured("efficient", "keymask=padding", 75.0, None),
        ]);
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        let element = row("cudnn", 64, 512, 1.0).element;
        let name = row("cudnn", 64, 512, 1.0).shape();
        assert_eq!(
            lines,
            [
                "| problem | cuDNN | memory-efficient | Warptile | ratio | of plain | of lengths | error | peers' |".to_owned(),
                "| --- | --- | --- | --- | --- | --- | --- | --- | --- |".to_owned(),
                format!("| {name}, {element}, keymask=padding | 25.0 | 75.0 | 50.0 | 0.50 | - | 0.98 | - | - |"),
                format!("| {name}, {element}, bias | 100.0 | - | 50.0 | **2.00** | 0.80 | - | 2.00e-4 | 3.00e-4 |"),
            ]
        );
        assert_eq!(table(&[]), "Nothing is measured yet.\n");
    }
}
