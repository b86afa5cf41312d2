//! Bars for a terminal.

use crate::text;

/// A bar with what is written above and behind it.
pub(crate) struct Bar {
    pub(crate) title: String,
    pub(crate) value: f64,
    pub(crate) shown: String,
}

/// Columns of the longest bar, where nothing limits a line.
const LONGEST: usize = 60;

/// The bars below their titles, the largest value as long as fits into `width` columns.
pub(crate) fn bars(bars: &[Bar], width: usize) -> String {
    /// Eighths of a column, from 1.
    const PARTS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    let behind = bars.iter().map(|bar| bar.shown.len()).max().unwrap_or(0);
    let longest = width.saturating_sub(3 + behind).clamp(8, LONGEST);
    let largest = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    let mut lines = String::new();
    for bar in bars {
        lines.push_str(&text::wrapped(&bar.title, width, 4));
        lines.push_str("\n  ");
        let share = match largest > 0.0 {
            true => bar.value / largest,
            false => 0.0,
        };
        let eighths = (share * 8.0 * longest as f64).round() as usize;
        lines.extend(std::iter::repeat_n('█', eighths / 8));
        lines.extend((eighths % 8).checked_sub(1).map(|part| PARTS[part]));
        lines.push_str(&format!(" {}\n", bar.shown));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_values() {
        let bar = |value| Bar {
            title:
                "b1 q8 k8 h1 d64 f16 mask=causal, graph, wgmma_d64_192x128_w16_s3 and more words"
                    .to_owned(),
            value,
            shown: format!("{value} TFLOP/s"),
        };
        let drawn = bars(&[bar(100.0), bar(50.0), bar(0.0)], 40);
        assert!(
            drawn.lines().all(|line| line.chars().count() <= 40),
            "{drawn}"
        );
        let lengths: Vec<usize> = drawn
            .lines()
            .filter(|line| line.contains("TFLOP/s"))
            .map(|line| line.chars().filter(|c| ('█'..='▏').contains(c)).count())
            .collect();
        assert_eq!(lengths, [26, 13, 0]);
        assert!(!bars(&[bar(0.0)], 80).contains('█'));
    }
}
