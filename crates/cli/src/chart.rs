//! Bars, for a terminal and as a picture.

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

/// Draws the bars as an SVG picture: a title, and for each bar a line of text above it. The bars begin at 0.
pub(crate) fn svg(title: &str, bars: &[Bar]) -> String {
    /// In pixels: the picture, its margin, a bar with its text, and the longest bar.
    const WIDTH: usize = 900;
    const MARGIN: usize = 16;
    const ROW: usize = 44;
    const LONGEST: f64 = 480.0;
    let escaped = |text: &str| {
        text.replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;")
    };
    let largest = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    let height = 2 * MARGIN + 28 + ROW * bars.len();
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"{}\" font-size=\"16\">{}</text>\n",
        MARGIN + 12,
        escaped(title)
    );
    for (row, bar) in bars.iter().enumerate() {
        let y = MARGIN + 28 + ROW * row;
        let length = match largest > 0.0 {
            true => LONGEST * bar.value / largest,
            false => 0.0,
        };
        picture.push_str(&format!(
            "<text x=\"{MARGIN}\" y=\"{}\">{}</text>\n\
             <rect x=\"{MARGIN}\" y=\"{}\" width=\"{length:.1}\" height=\"14\" fill=\"#2a6fb0\"/>\n\
             <text x=\"{:.1}\" y=\"{}\" font-size=\"12\">{}</text>\n",
            y + 14,
            escaped(&bar.title),
            y + 20,
            MARGIN as f64 + length + 8.0,
            y + 32,
            escaped(&bar.shown)
        ));
    }
    picture + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_escapes_its_text() {
        let bar = |value: f64| Bar {
            title: "a < b & c".to_owned(),
            value,
            shown: format!("{value} TFLOP/s"),
        };
        let picture = svg("title", &[bar(2.0), bar(1.0), bar(0.0)]);
        assert_eq!(picture.matches("a &lt; b &amp; c").count(), 3);
        for width in ["480.0", "240.0", "0.0"] {
            assert!(picture.contains(&format!("width=\"{width}\"")), "{picture}");
        }
        assert!(svg("", &[]).ends_with("</svg>\n"));
    }

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
