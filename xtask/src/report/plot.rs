//! Measured speed, as plots: TFLOP/s against length, one plot per setting, head size and number of heads.

use std::collections::BTreeMap;

use plotters::prelude::*;

use super::ReportError;
use super::bench::{BenchRow, Setting};

const SIZE: (u32, u32) = (720, 420);

/// Distinguishable on white, also with the common colour-vision deficiencies (Okabe and Ito's palette, without its yellow).
const COLORS: [RGBColor; 7] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
];

/// A line of a plot: points of (length, TFLOP/s), by length.
type Series = BTreeMap<String, BTreeMap<u64, f64>>;

/// One plot's data.
struct Plot {
    name: String,
    title: String,
    series: Series,
}

/// File name and SVG text of every plot.
pub(super) fn all(rows: &[BenchRow]) -> Result<Vec<(String, String)>, ReportError> {
    plots(rows)
        .into_iter()
        .map(|plot| {
            let svg = draw(&plot).map_err(|error| ReportError::Plot {
                name: plot.name.clone(),
                reason: error.to_string(),
            })?;
            Ok((plot.name, svg))
        })
        .collect()
}

/// The plots as images of a Markdown document in `docs/`.
pub(super) fn links(rows: &[BenchRow]) -> String {
    let plots = plots(rows);
    if plots.is_empty() {
        return "Nothing is measured yet.\n".to_owned();
    }
    plots
        .iter()
        .map(|plot| format!("![{}](plots/{})\n", plot.title, plot.name))
        .collect()
}

/// What the points of a plot have in common: the amount of work per length is comparable only then.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Sweep {
    setting: Setting,
    head_dim: u64,
    heads: u64,
    kv_heads: u64,
    /// Batch times length.
    rows: u64,
}

impl Sweep {
    fn of(row: &BenchRow) -> Option<Self> {
        (row.query_len == row.key_len).then(|| Self {
            setting: row.setting(),
            head_dim: row.head_dim,
            heads: row.heads,
            kv_heads: row.kv_heads,
            rows: row.batch * row.query_len,
        })
    }

    fn heads(&self) -> String {
        if self.heads == self.kv_heads {
            self.heads.to_string()
        } else {
            format!("{}/{}", self.heads, self.kv_heads)
        }
    }

    fn title(&self) -> String {
        let Setting {
            device,
            element,
            mask,
            method,
        } = &self.setting;
        let mask = if mask == "none" { "no mask" } else { mask };
        format!(
            "{device}: head size {}, {} heads, batch x length {}, {element}, {mask} ({method})",
            self.head_dim,
            self.heads(),
            self.rows,
        )
    }

    fn file_name(&self) -> String {
        let Setting {
            device,
            element,
            mask,
            method,
        } = &self.setting;
        let words = format!(
            "{device} d{} h{} n{} {element} {mask} {method}",
            self.head_dim,
            self.heads(),
            self.rows
        );
        let parts: Vec<String> = words
            .split(|c: char| !c.is_ascii_alphanumeric())
            .filter(|part| !part.is_empty())
            .map(str::to_ascii_lowercase)
            .collect();
        format!("{}.svg", parts.join("-"))
    }
}

/// A plot is worth drawing where someone was measured at two lengths or more.
fn plots(rows: &[BenchRow]) -> Vec<Plot> {
    let mut sweeps: BTreeMap<Sweep, Series> = BTreeMap::new();
    for row in rows {
        if let Some(sweep) = Sweep::of(row) {
            let series = sweeps.entry(sweep).or_default();
            series
                .entry(row.contestant())
                .or_default()
                .insert(row.key_len, row.tflops);
        }
    }
    sweeps.retain(|_, series| series.values().any(|points| points.len() > 1));
    sweeps
        .into_iter()
        .map(|(sweep, series)| Plot {
            name: sweep.file_name(),
            title: sweep.title(),
            series,
        })
        .collect()
}

/// Lengths double from point to point, so the axis is logarithmic.
fn draw(plot: &Plot) -> Result<String, Box<dyn std::error::Error>> {
    let points = || plot.series.values().flatten();
    let shortest = points().map(|(&len, _)| len).min().unwrap_or(1) as f64;
    let longest = points().map(|(&len, _)| len).max().unwrap_or(1) as f64;
    let fastest = points().map(|(_, &tflops)| tflops).fold(0.0, f64::max);

    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(&plot.title, ("sans-serif", 16))
            .margin(12)
            .margin_right(36)
            .x_label_area_size(40)
            .y_label_area_size(56)
            .build_cartesian_2d(
                (shortest..longest).log_scale().base(2.0),
                0.0..fastest * 1.1,
            )?;
        chart
            .configure_mesh()
            .x_desc("length")
            .y_desc("TFLOP/s")
            .light_line_style(TRANSPARENT)
            .y_label_formatter(&|tflops| format!("{tflops:.0}"))
            .x_label_formatter(&|len| format!("{len:.0}"))
            .draw()?;
        for (index, (name, points)) in plot.series.iter().enumerate() {
            let color = COLORS[index % COLORS.len()].filled();
            let points: Vec<(f64, f64)> = points
                .iter()
                .map(|(&len, &tflops)| (len as f64, tflops))
                .collect();
            chart
                .draw_series(
                    LineSeries::new(points.clone(), color.color.stroke_width(2)).point_size(3),
                )?
                .label(name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 18, y)], color.color.stroke_width(2))
                });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::bench::tests::row;

    #[test]
    fn a_plot_per_head_size_with_a_line_per_contestant() {
        let rows = [
            row("warptile", 64, 512, 20.0),
            row("warptile", 64, 1024, 25.0),
            row("cuDNN", 64, 512, 400.0),
            row("warptile", 128, 512, 20.0),
        ];
        let plots = all(&rows).unwrap();
        let names: Vec<&str> = plots.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["nvidia-h200-d64-h8-n1024-f16-none-graph.svg"],
            "one point is no line"
        );
        let svg = &plots[0].1;
        assert!(
            svg.contains("warptile scalar") && svg.contains("cuDNN"),
            "{svg}"
        );
        assert_eq!(
            all(&rows).unwrap(),
            plots,
            "the same rows give the same bytes"
        );
        assert!(links(&rows).contains("](plots/nvidia-h200-d64-h8-n1024-f16-none-graph.svg)"));
    }
}
