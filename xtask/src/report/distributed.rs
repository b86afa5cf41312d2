//! Several GPUs against one.

use super::peers::error;
use super::record::OURS;
use super::{markdown_table, number, ratio};

/// A length on some GPUs, as `warptile bench --devices` writes it.
#[derive(Debug, serde::Deserialize)]
pub(super) struct Row {
    backend: String,
    /// Rows of one run were measured one after the other, on the same GPUs.
    run: String,
    engine: String,
    ranks: u32,
    key_len: u64,
    /// Not of peers.
    problem: Option<String>,
    direction: String,
    /// How rows are dealt out: `pages after N` of a cache whose first N pages the first GPU has besides. Peers have no such word.
    sharding: Option<String>,
    one_us: f64,
    median_us: f64,
    expected_us: Option<f64>,
    /// Not looked at of peers.
    same_bits_again: Option<bool>,
    one_error: Option<f64>,
    error: f64,
}

impl Row {
    /// The direction, with the lead of the first GPU, the window's keys or the number of documents.
    fn what(&self) -> String {
        let lead = { self.sharding.iter() }.find_map(|dealt| dealt.strip_prefix("pages after "));
        let words = || self.problem.iter().flat_map(|words| words.split(' '));
        let window = words().find_map(|word| word.strip_prefix("mask=window,")?.split(',').next());
        let window = window.and_then(|left| left.parse::<u64>().ok());
        let documents = words().find_map(|word| word.strip_prefix("packed="));
        let direction = &self.direction;
        match (lead, window, documents) {
            (Some(pages), ..) => format!("{direction}, lead of {pages} pages"),
            (_, Some(left), _) => format!("{direction}, window of {} keys", left + 1),
            (.., Some(lengths)) => format!("{direction}, {} documents", lengths.split(',').count()),
            _ => direction.clone(),
        }
    }

    /// One GPU's time over that of all GPUs together.
    fn efficiency(&self) -> f64 {
        self.one_us / self.median_us / f64::from(self.ranks)
    }
}

/// The least efficient first.
pub(super) fn table(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "Nothing is measured yet.\n".to_owned();
    }
    let (ours, peers): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.backend == OURS);
    let fastest_peer = |row: &Row| {
        let kind = |row: &Row| {
            (
                row.run.clone(),
                row.ranks,
                row.key_len,
                row.direction.clone(),
            )
        };
        let alike = peers.iter().filter(|peer| kind(peer) == kind(row));
        alike.map(|peer| peer.median_us).min_by(f64::total_cmp)
    };
    let mut rows = ours;
    rows.sort_by(|a, b| a.efficiency().total_cmp(&b.efficiency()));
    let line = |row: &Row| {
        vec![
            row.ranks.to_string(),
            row.engine.clone(),
            row.what(),
            row.key_len.to_string(),
            format!("{:.0}", row.one_us),
            format!("{:.0}", row.median_us),
            number(row.expected_us, 0),
            format!("{:.2}", row.efficiency()),
            number(fastest_peer(row), 0),
            ratio(fastest_peer(row).map(|peer| peer / row.median_us)),
            error(row.one_error),
            error(Some(row.error)),
            { row.same_bits_again }
                .map_or("-", |same| if same { "yes" } else { "no" })
                .to_owned(),
            row.run.clone(),
        ]
    };
    let header = [
        "GPUs",
        "engine",
        "direction",
        "length",
        "one GPU, us",
        "all, us",
        "predicted, us",
        "efficiency",
        "PyTorch, us",
        "ratio",
        "one GPU's error",
        "error",
        "same bits again",
        "run",
    ];
    markdown_table(&header, rows.into_iter().map(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(backend: &str, ranks: u32, median_us: f64) -> Row {
        Row {
            backend: backend.to_owned(),
            run: "first".to_owned(),
            engine: "peers".to_owned(),
            ranks,
            key_len: 1024,
            problem: None,
            direction: "forward".to_owned(),
            sharding: Some("zigzag".to_owned()),
            one_us: 100.0,
            median_us,
            expected_us: (ranks == 2).then_some(50.0),
            same_bits_again: Some(ranks == 2),
            one_error: Some(0.0),
            error: 0.0,
        }
    }

    #[test]
    fn the_least_efficient_row_comes_first_beside_the_fastest_peer_of_its_run() {
        let elsewhere = Row {
            run: "second".to_owned(),
            ..row("other", 4, 20.0)
        };
        let text = table(&[
            row("warptile", 2, 60.0),
            row("warptile", 4, 50.0),
            row("peer", 2, 90.0),
            row("slow", 2, 99.0),
            elsewhere,
        ]);
        let lines: Vec<_> = text.lines().skip(2).collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].starts_with("| 4 |") && lines[0].contains("| - | 0.50 | - | - |"));
        assert!(lines[0].ends_with("| no | first |"), "{text}");
        assert!(lines[1].contains("| 0.83 | 90 | **1.50** |"), "{text}");
        let ahead = Row {
            direction: "decode".to_owned(),
            sharding: Some("pages after 213".to_owned()),
            ..row("warptile", 2, 60.0)
        };
        assert!(table(&[ahead]).contains("| decode, lead of 213 pages | 1024 |"));
        for (problem, what) in [
            ("q1024 h8 d64 bf16 mask=window,127,0", "window of 128 keys"),
            ("packed=512x512,512x512 h8 d64 bf16", "2 documents"),
        ] {
            let row = Row {
                problem: Some(problem.to_owned()),
                ..row("warptile", 2, 60.0)
            };
            assert_eq!(row.what(), format!("forward, {what}"));
        }
        assert_eq!(table(&[]), "Nothing is measured yet.\n");
    }
}
