//! The search as a picture: each candidate by generation and gain, joined to its parents.

use std::collections::BTreeMap;

use super::archive::{Candidate, Plan, State};

/// Size of the picture, and of its margins, in pixels.
const SIZE: (f64, f64) = (860.0, 460.0);
const MARGIN: (f64, f64) = (70.0, 60.0);

/// Height of the strip at the bottom for what has no gain.
const STRIP: f64 = 90.0;

/// Colours of Okabe and Ito's palette, with their names in the legend.
const COLOURS: [(&str, &str, &[State]); 5] = [
    ("shipped", "#0072b2", &[State::Shipped]),
    ("won", "#009e73", &[State::Won, State::Promoted]),
    ("lost", "#e69f00", &[State::Lost]),
    (
        "not measured",
        "#6e6e6e",
        &[State::Compiled, State::Proposed],
    ),
    (
        "refused or wrong",
        "#d55e00",
        &[State::Refused, State::Wrong],
    ),
];

fn text(x: f64, y: f64, attributes: &str, text: &str) -> String {
    let text = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\"{attributes}>{text}</text>\n")
}

fn line((x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str) -> String {
    format!(
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\" stroke-width=\"0.7\"/>\n"
    )
}

fn circle((x, y): (f64, f64), colour: &str, title: &str) -> String {
    format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\" fill=\"{colour}\">{title}</circle>\n")
}

/// The picture as SVG. What was shipped is drawn at a gain of 1: it is what gains are over.
pub(super) fn svg<'a>(plan: &Plan, candidates: impl Iterator<Item = &'a Candidate>) -> String {
    let candidates = Vec::from_iter(candidates);
    let gain = |one: &Candidate| match one.verdict.state {
        State::Shipped => Some(1.0),
        _ => one.verdict.gain(),
    };
    let generations = candidates
        .iter()
        .map(|one| one.generation)
        .fold(1, u32::max);
    let gains = || candidates.iter().filter_map(|one| gain(one));
    let (low, high) = (gains().fold(0.9, f64::min), gains().fold(1.1, f64::max));
    let (width, height) = (SIZE.0 - 2.0 * MARGIN.0, SIZE.1 - 2.0 * MARGIN.1 - STRIP);
    let x_of = |generation: u32, within: f64| {
        MARGIN.0 + width * (f64::from(generation) + within) / f64::from(generations + 1)
    };
    let y_of = |gain: f64| MARGIN.1 + height * (high - gain) / (high - low);
    let (wide, tall) = SIZE;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{wide}\" height=\"{tall}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{wide}\" height=\"{tall}\" fill=\"white\"/>\n"
    );
    let title = format!(
        "{} for {}: gain over the kernel in use",
        plan.family, plan.target
    );
    svg += &text(MARGIN.0, 24.0, " font-size=\"15\"", &title);
    for (at, (name, colour, _)) in COLOURS.iter().enumerate() {
        let x = MARGIN.0 + 130.0 * at as f64;
        svg += &circle((x, 40.0), colour, "");
        svg += &text(x + 10.0, 44.0, "", name);
    }
    for step in 0..=4 {
        let gain = low + (high - low) * f64::from(step) / 4.0;
        let (left, y) = (MARGIN.0, y_of(gain));
        svg += &line((left, y), (left + width, y), "#dddddd");
        svg += &text(
            left - 8.0,
            y + 4.0,
            " text-anchor=\"end\"",
            &format!("{gain:.2}"),
        );
    }
    // Those of one generation side by side.
    let mut places: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for generation in 0..=generations {
        let name = format!("generation {generation}");
        svg += &text(
            x_of(generation, 0.5),
            tall - 14.0,
            " text-anchor=\"middle\"",
            &name,
        );
        let mut these = candidates.clone();
        these.retain(|one| one.generation == generation);
        for (index, one) in these.iter().enumerate() {
            let within = (index as f64 + 0.5) / these.len() as f64;
            let below = MARGIN.1 + height + 30.0 + 14.0 * (index % 4) as f64;
            let place = (
                x_of(generation, 0.1 + 0.8 * within),
                gain(one).map_or(below, y_of),
            );
            places.insert(&one.kernel, place);
        }
    }
    for one in &candidates {
        for parent in
            { one.lineage.parents.iter() }.filter_map(|parent| places.get(parent.as_str()))
        {
            svg += &line(*parent, places[one.kernel.as_str()], "#bbbbbb");
        }
    }
    for one in &candidates {
        let state = one.verdict.state;
        let colour = COLOURS.iter().find(|(.., states)| states.contains(&state));
        let title = format!("<title>{}: {state}</title>", one.kernel);
        svg += &circle(
            places[one.kernel.as_str()],
            colour.map_or("black", |(_, colour, _)| colour),
            &title,
        );
    }
    svg + "</svg>\n"
}
