//! The search as a picture: each candidate by generation and gain, joined to its parents.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::archive::{Candidate, Plan, Verdict};
use super::gain;

/// Size of the picture, and of its margins, in pixels.
const SIZE: (f64, f64) = (860.0, 460.0);
const MARGIN: (f64, f64) = (70.0, 60.0);

/// Height of the strip at the bottom for what has no gain.
const STRIP: f64 = 90.0;

/// Colours of Okabe and Ito's palette.
fn colour(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Shipped => "#0072b2",
        Verdict::Won(_) | Verdict::Promoted(_) => "#009e73",
        Verdict::Lost(_) => "#e69f00",
        Verdict::Compiled | Verdict::Proposed => "#6e6e6e",
        Verdict::Refused { .. } | Verdict::Wrong { .. } => "#d55e00",
    }
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;")
}

/// The picture as SVG. What was shipped is drawn at a gain of 1: it is what gains are over.
#[must_use]
pub(crate) fn svg(plan: &Plan, candidates: &[&Candidate]) -> String {
    let of = |one: &Candidate| match one.verdict {
        Verdict::Shipped => Some(1.0),
        _ => gain(one),
    };
    let generations = { candidates.iter() }
        .map(|one| one.generation)
        .max()
        .unwrap_or(0)
        .max(1);
    let gains: Vec<f64> = candidates.iter().filter_map(|one| of(one)).collect();
    let low = gains.iter().copied().fold(0.9, f64::min);
    let high = gains.iter().copied().fold(1.1, f64::max);
    let (width, height) = (SIZE.0 - 2.0 * MARGIN.0, SIZE.1 - 2.0 * MARGIN.1 - STRIP);
    let y_of = |gain: f64| MARGIN.1 + height * (high - gain) / (high - low);
    // Those of one generation side by side.
    let mut places: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for generation in 0..=generations {
        let these: Vec<&&Candidate> = { candidates.iter() }
            .filter(|one| one.generation == generation)
            .collect();
        for (index, one) in these.iter().enumerate() {
            let column = width / f64::from(generations + 1);
            let within = (index as f64 + 0.5) / these.len() as f64;
            let x = MARGIN.0 + column * (f64::from(generation) + 0.1 + 0.8 * within);
            let row = index % 4;
            let below = MARGIN.1 + height + 30.0 + 14.0 * row as f64;
            places.insert(&one.kernel, (x, of(one).map_or(below, y_of)));
        }
    }
    let (wide, tall) = SIZE;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{wide}\" height=\"{tall}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{wide}\" height=\"{tall}\" fill=\"white\"/>\n\
         <text x=\"{}\" y=\"24\" font-size=\"15\">{} for {}: gain over the kernel in use</text>\n",
        MARGIN.0,
        escaped(&plan.family),
        escaped(&plan.target),
    );
    let mut legend = MARGIN.0;
    for (name, colour) in [
        ("shipped", "#0072b2"),
        ("won", "#009e73"),
        ("lost", "#e69f00"),
        ("not measured", "#6e6e6e"),
        ("refused or wrong", "#d55e00"),
    ] {
        let _ = writeln!(
            svg,
            "<circle cx=\"{legend}\" cy=\"40\" r=\"5\" fill=\"{colour}\"/><text x=\"{}\" y=\"44\">{name}</text>",
            legend + 10.0
        );
        legend += 130.0;
    }
    for step in 0..=4 {
        let gain = low + (high - low) * f64::from(step) / 4.0;
        let y = y_of(gain);
        let _ = writeln!(
            svg,
            "<line x1=\"{}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{gain:.2}</text>",
            MARGIN.0,
            MARGIN.0 + width,
            MARGIN.0 - 8.0,
            y + 4.0
        );
    }
    for generation in 0..=generations {
        let x = MARGIN.0 + width * (f64::from(generation) + 0.5) / f64::from(generations + 1);
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">generation {generation}</text>",
            tall - 14.0
        );
    }
    for one in candidates {
        for parent in &one.lineage.parents {
            let ends = places
                .get(parent.as_str())
                .zip(places.get(one.kernel.as_str()));
            if let Some(((x1, y1), (x2, y2))) = ends {
                let _ = writeln!(
                    svg,
                    "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#bbbbbb\" stroke-width=\"0.7\"/>"
                );
            }
        }
    }
    for one in candidates {
        if let Some((x, y)) = places.get(one.kernel.as_str()) {
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\" fill=\"{}\"><title>{}: {}</title></circle>",
                colour(&one.verdict),
                escaped(&one.kernel),
                one.verdict.word()
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}
