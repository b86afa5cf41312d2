//! Measured speed, as plots: for each setting one picture of small plots, masks across and head sizes down, of every
//! contestant's speed relative to the best peer against length. A phone shows a picture at three fifths of its size.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::bench::BenchRow;
use super::{gradients, in_a_name};
use warptile_spec::Heads;

/// Width and height of one small plot in pixels.
const PANEL: (u32, u32) = (300, 220);

/// Heights of the title's two lines and of a line of the legend.
const TITLE: u32 = 62;
const LEGEND: u32 = 26;

/// Font sizes. In a picture a font is four fifths of this in pixels.
const LARGE: u32 = 23;
const SMALL: u32 = 21;

/// A contestant's name in rows and in the legend, and its colour, which is the same in every plot. Distinguishable on white,
/// also with the common colour-vision deficiencies (Okabe and Ito's palette, without its yellow, and
/// an indigo darker than its blues).
const CONTESTANTS: [(&str, &str, RGBColor); 10] = [
    (gradients::OURS, "Warptile", RGBColor(180, 60, 0)),
    ("warptile wgmma", "Warptile wgmma", RGBColor(213, 94, 0)),
    ("warptile mma", "Warptile mma", RGBColor(230, 159, 0)),
    (
        "warptile scalar",
        "Warptile scalar",
        RGBColor(170, 170, 170),
    ),
    ("fa4", "FlashAttention-4", RGBColor(51, 34, 136)),
    ("fa3", "FlashAttention-3", RGBColor(0, 114, 178)),
    (
        "fa3-deterministic",
        "FlashAttention-3, deterministic",
        RGBColor(140, 100, 75),
    ),
    ("cudnn", "cuDNN", RGBColor(0, 158, 115)),
    ("fa2", "FlashAttention-2", RGBColor(86, 180, 233)),
    ("efficient", "memory-efficient", RGBColor(110, 110, 110)),
];

/// Whoever is not listed above.
const OTHER: RGBColor = BLACK;

fn shown(contestant: &str) -> (&str, RGBColor) {
    CONTESTANTS
        .iter()
        .find(|(name, ..)| *name == contestant)
        .map_or((contestant, OTHER), |&(_, shown, color)| (shown, color))
}

/// Place of a contestant in the legend.
fn rank(contestant: &str) -> usize {
    let listed = CONTESTANTS
        .iter()
        .position(|(name, ..)| *name == contestant);
    listed.unwrap_or(CONTESTANTS.len())
}

/// Lines of a small plot: points of (length, speed relative to the best peer), by contestant.
type Lines = BTreeMap<String, BTreeMap<usize, f64>>;

/// The setting that the points of a small plot share: only then is the amount of work per length comparable.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Sweep {
    heads: Heads,
    /// Batch times length.
    rows: usize,
}

/// The setting that the small plots of a picture share.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Setting {
    device: String,
    element: String,
    method: String,
    /// Gradients instead of outputs.
    backward: bool,
}

impl Setting {
    /// The title and what it is about.
    fn title(&self) -> [String; 2] {
        let method = match self.method.as_str() {
            "graph" => "GPU time of one launch",
            "call" => "one call between events",
            "wall" => "one call by the clock",
            other => other,
        };
        let what = if self.backward { ", gradients" } else { "" };
        [
            format!("Speed relative to the best peer by length{what}"),
            format!("{}, {}, {method}", self.device, self.element),
        ]
    }

    fn file_name(&self) -> String {
        let what = if self.backward { " backward" } else { "" };
        let words = format!("{} {} {}{what}", self.device, self.element, self.method);
        in_a_name(&words) + ".svg"
    }
}

/// One picture: its small plots by sweep and mask.
struct Picture {
    setting: Setting,
    panels: BTreeMap<(Sweep, String), Lines>,
}

impl Picture {
    fn sweeps(&self) -> Vec<&Sweep> {
        let sweeps: BTreeSet<&Sweep> = self.panels.keys().map(|(sweep, _)| sweep).collect();
        sweeps.into_iter().collect()
    }

    /// No mask first.
    fn masks(&self) -> Vec<&str> {
        let masks: BTreeSet<(bool, &str)> = self
            .panels
            .keys()
            .map(|(_, mask)| (mask != "none", mask.as_str()))
            .collect();
        masks.into_iter().map(|(_, mask)| mask).collect()
    }

    fn contestants(&self) -> Vec<&str> {
        let names: BTreeSet<(usize, &str)> = self
            .panels
            .values()
            .flat_map(BTreeMap::keys)
            .map(|name| (rank(name), name.as_str()))
            .collect();
        names.into_iter().map(|(_, name)| name).collect()
    }
}

/// File name and SVG text of every picture.
pub(super) fn all(rows: &[BenchRow]) -> Result<Vec<(String, String)>> {
    pictures(rows)
        .into_iter()
        .map(|picture| {
            let name = picture.setting.file_name();
            let svg = draw(&picture).map_err(|error| anyhow!("cannot draw {name}: {error}"))?;
            Ok((name, svg))
        })
        .collect()
}

/// The pictures as images of a Markdown document in `docs/`.
pub(super) fn links(rows: &[BenchRow]) -> String {
    let pictures = pictures(rows);
    if pictures.is_empty() {
        return "Nothing is measured yet.\n".to_owned();
    }
    pictures
        .iter()
        .map(|Picture { setting, .. }| {
            let title = setting.title().join(": ");
            format!("![{title}](plots/{})\n", setting.file_name())
        })
        .collect()
}

/// A small plot is worth drawing where someone was measured at two lengths or more, and a ratio needs a peer.
fn pictures(rows: &[BenchRow]) -> Vec<Picture> {
    type Speeds = BTreeMap<usize, BTreeMap<String, f64>>;
    let mut settings: BTreeMap<Setting, BTreeMap<(Sweep, String), Speeds>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.query_len == row.key_len) {
        let setting = Setting {
            device: row.device.clone(),
            element: row.element.clone(),
            method: row.method.clone(),
            backward: row.problem.split(' ').any(|word| word == "backward"),
        };
        let sweep = Sweep {
            heads: row.heads,
            rows: row.batch * row.query_len,
        };
        settings
            .entry(setting)
            .or_default()
            .entry((sweep, row.mask.clone()))
            .or_default()
            .entry(row.key_len)
            .or_default()
            .insert(row.contestant(), row.tflops);
    }
    let picture = |(setting, panels): (Setting, BTreeMap<_, Speeds>)| {
        let panels: BTreeMap<_, Lines> = panels
            .into_iter()
            .map(|(panel, speeds)| (panel, relative(&speeds)))
            .filter(|(_, lines)| lines.values().any(|points| points.len() > 1))
            .collect();
        (!panels.is_empty()).then_some(Picture { setting, panels })
    };
    settings.into_iter().filter_map(picture).collect()
}

/// Every speed over that of the fastest peer at the same length.
fn relative(speeds: &BTreeMap<usize, BTreeMap<String, f64>>) -> Lines {
    let mut lines = Lines::new();
    for (&length, of_length) in speeds {
        let peers = of_length
            .iter()
            .filter(|(name, _)| !name.starts_with("warptile "));
        let Some(best) = peers.map(|(_, &speed)| speed).max_by(f64::total_cmp) else {
            continue;
        };
        for (name, speed) in of_length {
            lines
                .entry(name.clone())
                .or_default()
                .insert(length, speed / best);
        }
    }
    lines
}

type Drawn<T> = Result<T, Box<dyn std::error::Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw(picture: &Picture) -> Drawn<String> {
    let (sweeps, masks) = (picture.sweeps(), picture.masks());
    let width = PANEL.0 * masks.len().max(2) as u32;
    let legend = legend(picture, width as i32);
    let strip = TITLE + LEGEND * legend.last().map_or(0, |&(_, line, _)| line + 1);
    let size = (width, strip + PANEL.1 * sweeps.len() as u32);
    let ratios = || picture.panels.values().flat_map(BTreeMap::values).flatten();
    let highest = ratios().map(|(_, &ratio)| ratio).fold(1.0, f64::max);

    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE)?;
        let (strip, panels) = area.split_vertically(strip);
        heading(&strip, picture, &legend)?;
        let panels = panels.split_evenly((sweeps.len(), masks.len()));
        let places = sweeps
            .iter()
            .flat_map(|sweep| masks.iter().map(move |mask| (*sweep, *mask)));
        for ((sweep, mask), area) in places.zip(&panels) {
            if let Some(lines) = picture.panels.get(&(sweep.clone(), mask.to_owned())) {
                panel(area, sweep, mask, lines, highest * 1.05)?;
            }
        }
        area.present()?;
    }
    Ok(svg)
}

/// The contestants, each with its line of the legend and its place there.
fn legend(picture: &Picture, width: i32) -> Vec<(&str, u32, i32)> {
    let (mut x, mut line) = (14, 0);
    let mut places = Vec::new();
    for contestant in picture.contestants() {
        // Nine pixels are what a letter of this size takes on average.
        let needed = 40 + 9 * shown(contestant).0.len() as i32;
        if x > 14 && x + needed > width {
            (x, line) = (14, line + 1);
        }
        places.push((contestant, line, x));
        x += needed;
    }
    places
}

/// Title and legend, above all curves.
fn heading(area: &Area<'_>, picture: &Picture, legend: &[(&str, u32, i32)]) -> Drawn<()> {
    for (line, text) in (0..).zip(picture.setting.title()) {
        let title = ("sans-serif", LARGE).into_font();
        area.draw(&Text::new(text, (14, 8 + 26 * line), title))?;
    }
    let font = ("sans-serif", SMALL)
        .into_text_style(area)
        .pos(Pos::new(HPos::Left, VPos::Center));
    for &(contestant, line, x) in legend {
        let (name, color) = shown(contestant);
        let y = (TITLE + LEGEND * line + LEGEND / 2) as i32;
        let line = PathElement::new([(x, y), (x + 18, y)], color.stroke_width(4));
        area.draw(&line)?;
        area.draw(&Text::new(name, (x + 23, y), font.clone()))?;
    }
    Ok(())
}

/// One small plot. Lengths double from point to point, so their axis is logarithmic.
fn panel(area: &Area<'_>, sweep: &Sweep, mask: &str, lines: &Lines, top: f64) -> Drawn<()> {
    let lengths = || lines.values().flat_map(BTreeMap::keys).copied();
    let shortest = lengths().min().unwrap_or(1) as f64;
    let longest = lengths().max().unwrap_or(1) as f64;
    let (heads, sizes) = (sweep.heads.counts(), sweep.heads.sizes());
    let mask = if mask == "none" { "no mask" } else { mask };
    let caption = format!("head size {sizes}, {heads} heads, {mask}");
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", SMALL))
        .margin(8)
        .margin_right(20)
        .x_label_area_size(30)
        .y_label_area_size(36)
        .build_cartesian_2d((shortest..longest).log_scale().base(2.0), 0.0..top)?;
    chart
        .configure_mesh()
        .label_style(("sans-serif", SMALL))
        .light_line_style(TRANSPARENT)
        .x_labels(6)
        .y_labels(4)
        .y_label_formatter(&|ratio| format!("{ratio:.1}"))
        .x_label_formatter(&|&length| match length {
            ..1024.0 => format!("{length:.0}"),
            _ => format!("{:.0}k", length / 1024.0),
        })
        .draw()?;
    let best = [(shortest, 1.0), (longest, 1.0)];
    chart.draw_series(LineSeries::new(best, BLACK.mix(0.4).stroke_width(1)))?;
    // Ours last, on top.
    let mut names: Vec<&String> = lines.keys().collect();
    names.sort_by_key(|name| std::cmp::Reverse(rank(name)));
    for name in names {
        let (_, color) = shown(name);
        let points = lines[name]
            .iter()
            .map(|(&length, &ratio)| (length as f64, ratio));
        let style = color.filled().stroke_width(2);
        chart.draw_series(LineSeries::new(points, style).point_size(2))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::bench::tests::row;

    fn rows() -> Vec<BenchRow> {
        vec![
            row("warptile", 64, 512, 20.0),
            row("warptile", 64, 1024, 25.0),
            row("cudnn", 64, 512, 400.0),
            row("fa2", 64, 512, 100.0),
            row("fa2", 64, 1024, 100.0),
            row("warptile", 128, 512, 20.0),
        ]
    }

    #[test]
    fn a_picture_per_setting_with_a_small_plot_per_sweep() {
        let pictures = all(&rows()).unwrap();
        let names: Vec<&str> = pictures.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["nvidia-h200-f16-graph.svg"]);
        let svg = &pictures[0].1;
        assert!(svg.contains("head size 64, 8 heads, no mask"), "{svg}");
        assert!(!svg.contains("head size 128"), "one point is no line");
        for name in ["Warptile scalar", "cuDNN", "FlashAttention-2"] {
            assert!(svg.contains(name), "{name}: {svg}");
        }
        assert_eq!(
            all(&rows()).unwrap(),
            pictures,
            "the same rows give the same bytes"
        );
        assert!(links(&rows()).contains("](plots/nvidia-h200-f16-graph.svg)"));
    }

    #[test]
    fn ratios_are_to_the_fastest_peer_of_each_length() {
        let picture = &super::pictures(&rows())[0];
        let lines = picture.panels.values().next().unwrap();
        assert_eq!(lines["warptile scalar"], [(512, 0.05), (1024, 0.25)].into());
        assert_eq!(lines["fa2"], [(512, 0.25), (1024, 1.0)].into());
        assert_eq!(lines["cudnn"], [(512, 1.0)].into());
    }

    #[test]
    fn a_contestant_keeps_its_color_whoever_else_is_there() {
        let color = |svg: &str| {
            let RGBColor(r, g, b) = shown("fa2").1;
            svg.contains(&format!("#{r:02X}{g:02X}{b:02X}"))
        };
        let alone: Vec<BenchRow> = rows()
            .into_iter()
            .filter(|row| row.backend == "fa2")
            .collect();
        assert!(color(&all(&rows()).unwrap()[0].1) && color(&all(&alone).unwrap()[0].1));
        let colors: BTreeSet<_> = CONTESTANTS
            .iter()
            .map(|(.., color)| (color.0, color.1, color.2))
            .collect();
        assert_eq!(colors.len(), CONTESTANTS.len());
    }
}
