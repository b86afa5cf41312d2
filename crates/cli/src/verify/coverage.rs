//! Coverage of the random problem space.

use std::collections::BTreeMap;

use serde::Serialize;
use warptile::spec::{Heads, MAX_HEAD_DIM, Scoring};
use warptile::{Diagonal, ElementType, Splits};
use warptile_check::{Case, LayoutKind, Lengths, Used};
use warptile_kernels::Image;

/// In how many computed problems something occurred. What can occur and did not has the count 0.
#[derive(Debug, Serialize)]
pub(super) struct Coverage {
    /// `cpu`, the family of the kernel, or how several devices computed together.
    families: BTreeMap<String, u64>,
    elements: BTreeMap<String, u64>,
    features: BTreeMap<&'static str, u64>,
    head_dims: BTreeMap<usize, u64>,
}

/// The words of the grammar of problems, and what shapes can have.
fn features(case: &Case) -> impl Iterator<Item = (&'static str, bool)> {
    let scoring = case.scoring;
    let mask = &scoring.mask;
    let others = [
        ("causal", mask.is_causal()),
        ("window", !mask.is_causal() && !mask.hides_nothing()),
        ("top-left", mask.diagonal == Diagonal::TopLeft),
        ("diagonal", matches!(mask.diagonal, Diagonal::At(_))),
        ("fewer key heads", case.heads.group_size() > 1),
        ("other value sizes", case.heads.values_differ()),
        ("packed", matches!(case.lengths, Lengths::Packed(_))),
        ("used", case.used != Used::All),
        ("pages", case.pages.is_some()),
        ("device-lengths", case.device_lengths),
        ("splits", case.splits != Splits::Even),
        ("cache", case.quantized.is_some()),
        ("bhsd", case.layout == LayoutKind::Bhsd),
        ("gaps", case.layout == LayoutKind::Gaps),
        ("interleaved", case.layout == LayoutKind::Interleaved),
        ("unaligned", case.unaligned),
        ("padding", case.padding),
        ("backward", case.backward),
        ("dbias", case.d_bias),
    ];
    let options = { Scoring::words() }
        .filter(|word| !["mask", "diagonal"].contains(word))
        .map(move |word| (word, scoring.uses(word)));
    others.into_iter().chain(options)
}

impl Default for Coverage {
    fn default() -> Self {
        let elements = [ElementType::F16, ElementType::Bf16, ElementType::F32];
        Coverage {
            families: BTreeMap::new(),
            elements: elements.map(|one| (one.to_string(), 0)).into(),
            features: features(&Case::new(1, 1, Heads::new(1, 8)))
                .map(|(name, _)| (name, 0))
                .collect(),
            head_dims: (8..=MAX_HEAD_DIM)
                .step_by(8)
                .map(|size| (size, 0))
                .collect(),
        }
    }
}

impl Coverage {
    /// Counts a problem that an image computed, several devices in some way, or else the CPU.
    pub(super) fn add(&mut self, case: &Case, image: Option<&Image>, way: Option<String>) {
        let family = image.map(|image| image.family.to_string()).or(way);
        let family = family.unwrap_or_else(|| "cpu".to_owned());
        *self.families.entry(family).or_default() += 1;
        *self.elements.entry(case.element.to_string()).or_default() += 1;
        *self.head_dims.entry(case.heads.dim).or_default() += 1;
        for (name, occurs) in features(case) {
            *self.features.entry(name).or_default() += u64::from(occurs);
        }
    }

    /// For people.
    pub(super) fn lines(&self) -> [String; 3] {
        let families = self
            .families
            .iter()
            .map(|(name, count)| (&name[..], *count));
        let elements = self
            .elements
            .iter()
            .map(|(name, count)| (&name[..], *count));
        let features = || self.features.iter().map(|(name, count)| (*name, *count));
        let mut with_features = format!("features {}", counts(features()));
        let never: Vec<&str> = features()
            .filter(|(_, count)| *count == 0)
            .map(|(name, _)| name)
            .collect();
        if !never.is_empty() {
            with_features.push_str(&format!("; never {}", never.join(", ")));
        }
        let sizes = self.head_dims.iter().filter(|(_, count)| **count > 0);
        let sizes: Vec<String> = sizes.map(|(size, _)| size.to_string()).collect();
        [
            format!("families {}; {}", counts(families), counts(elements)),
            with_features,
            format!(
                "heads    {} of {} head sizes: {}",
                sizes.len(),
                self.head_dims.len(),
                sizes.join(" ")
            ),
        ]
    }
}

/// The values that occurred, with their counts.
fn counts<'a>(counts: impl Iterator<Item = (&'a str, u64)>) -> String {
    let occurred = counts.filter(|(_, count)| *count > 0);
    let words: Vec<String> = occurred
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    match words.is_empty() {
        true => "none".to_owned(),
        false => words.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warptile::kernels::Kind;
    use warptile::spec::Operand;

    #[test]
    fn what_occurs_is_counted_and_what_never_does_is_named() {
        let mut coverage = Coverage::default();
        let dense = |operand: &Operand| operand.kind() == Kind::Scores;
        let options = |mut scoring: Scoring, are_dense| {
            let these = Operand::of_scores().filter(|operand| dense(operand) == are_dense);
            these.for_each(|operand| scoring = scoring.with(operand));
            scoring.to_string()
        };
        let numbers = Scoring::NUMBERS.map(|(word, _)| format!("{word}=0.5"));
        let each = [
            "q1 d8 f16 mask=causal h4/2".to_owned(),
            "q1 d8 f32 mask=causal diagonal=top-left layout=gaps unaligned backward".to_owned(),
            format!(
                "q1 d64 bf16 layout=interleaved {}",
                options(Scoring::new().mask(warptile::Mask::window(1, 1)), true)
            ),
            format!(
                "packed=3x3 d16 f16 device-lengths layout=bhsd splits=512 {} {}",
                options(Scoring::new(), false),
                numbers.join(" ")
            ),
            "q1 d8/16 f16 pages=16 lengths=9,4 mask=causal diagonal=2".to_owned(),
            "q3 d8 f16 keymask=padding bias dbias".to_owned(),
            "q3 d16 f16 blocks=64x64 cache=e4m3".to_owned(),
        ];
        for problem in &each[..2] {
            coverage.add(&problem.parse().unwrap(), None, None);
        }
        let [families, features, heads] = coverage.lines();
        assert_eq!(families, "families cpu 2; f16 1, f32 1");
        assert!(
            features.contains("causal 2, ") && features.contains("top-left 1, "),
            "{features}"
        );
        assert!(
            { Operand::of_scores().filter_map(Operand::word) }.all(|word| {
                let (_, never) = features.split_once("; never ").unwrap();
                never.split(", ").any(|name| name == word)
            }),
            "{features}"
        );
        assert!(features.contains(", cache, "), "{features}");
        assert_eq!(heads, "heads    1 of 64 head sizes: 8");
        for problem in &each[2..] {
            coverage.add(&problem.parse().unwrap(), None, None);
        }
        assert!(
            !coverage.lines()[1].contains("never"),
            "{:?}",
            coverage.lines()
        );
    }
}
