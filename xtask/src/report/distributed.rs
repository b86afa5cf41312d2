//! Several GPUs against one.

use super::markdown_table;

/// A length on some GPUs, as `warptile bench --devices` writes it.
#[derive(Debug, serde::Deserialize)]
pub(super) struct Row {
    engine: String,
    ranks: u32,
    key_len: u64,
    direction: String,
    one_us: f64,
    median_us: f64,
    /// Of gradients there is none.
    expected_us: Option<f64>,
    same_bits_again: bool,
    one_error: f64,
    error: f64,
}

impl Row {
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
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by(|a, b| a.efficiency().total_cmp(&b.efficiency()));
    let line = |row: &Row| {
        vec![
            row.ranks.to_string(),
            row.engine.clone(),
            row.direction.clone(),
            row.key_len.to_string(),
            format!("{:.0}", row.one_us),
            format!("{:.0}", row.median_us),
            { row.expected_us }.map_or("-".to_owned(), |us| format!("{us:.0}")),
            format!("{:.2}", row.efficiency()),
            format!("{:.2e}", row.one_error),
            format!("{:.2e}", row.error),
            if row.same_bits_again { "yes" } else { "no" }.to_owned(),
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
        "one GPU's error",
        "error",
        "same bits again",
    ];
    markdown_table(&header, rows.into_iter().map(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_efficient_row_comes_first() {
        let row = |ranks, median_us| Row {
            engine: "peers".to_owned(),
            ranks,
            key_len: 1024,
            direction: "forward".to_owned(),
            one_us: 100.0,
            median_us,
            expected_us: (ranks == 2).then_some(50.0),
            same_bits_again: ranks == 2,
            one_error: 0.0,
            error: 0.0,
        };
        let text = table(&[row(2, 60.0), row(4, 50.0)]);
        let lines: Vec<_> = text.lines().skip(2).collect();
        assert!(lines[0].starts_with("| 4 |") && lines[0].contains("| - | 0.50 |"));
        assert!(lines[0].ends_with("| no |"), "{text}");
        assert!(lines[1].contains("| 0.83 |") && lines[1].ends_with("| yes |"));
        assert_eq!(table(&[]), "Nothing is measured yet.\n");
    }
}
