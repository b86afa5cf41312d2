//! As much of a problem's text as a search has to know.

use anyhow::{Context as _, Result, ensure};

use crate::instances::Element;
use warptile_spec::Heads;

/// The numbers of `b4 q4096 k4096 h32/8 d128 bf16 mask=causal`; the program reads the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Batch, 1 if it is not given.
    pub(crate) batch: u64,
    /// Queries.
    pub(crate) q: u64,
    /// Keys.
    pub(crate) k: u64,
    /// Heads, one if they are not given, and one size of all.
    pub(crate) heads: Heads,
    /// Element type.
    pub(crate) element: Element,
    /// True if every query sees every key.
    pub(crate) unmasked: bool,
}

impl Shape {
    /// Reads a problem.
    ///
    /// # Errors
    /// A description of the missing part.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let (mut lengths, mut heads, mut element) = ([1, 0, 0], Heads::new(1, 0), None);
        for word in text.split_whitespace() {
            element = element.or(word.parse().ok());
            let numbered =
                |(_, rest): &(&str, &str)| rest.starts_with(|c: char| c.is_ascii_digit());
            let Some((letter, number)) = word.split_at_checked(1).filter(numbered) else {
                continue;
            };
            let read = match "bqk".find(letter) {
                Some(at) => number.parse().map(|length| lengths[at] = length).ok(),
                None if "hd".contains(letter) => heads.parse_word(word),
                None => Some(()),
            };
            ensure!(
                read.is_some(),
                "problem `{text}`: {letter} is not like {letter}64"
            );
        }
        let [batch, q, k] = lengths;
        let of_heads = [heads.query, heads.key_value, heads.dim];
        ensure!(
            !lengths.contains(&0) && !of_heads.contains(&0),
            "problem `{text}` needs q, k, h and d above 0, such as q512 k512 h8 d64"
        );
        ensure!(
            !heads.values_differ(),
            "problem `{text}`: a search has one head size for keys and values"
        );
        Ok(Self {
            batch,
            q,
            k,
            heads,
            element: element.with_context(|| format!("problem `{text}` names no element type"))?,
            unmasked: !text.contains("mask="),
        })
    }

    /// CTAs of a kernel with tiles of `block_m` rows; `None` of a family whose CTAs share keys, of which there are always enough.
    pub(crate) fn ctas(&self, family: &str, block_m: u32) -> Option<u64> {
        (family != "decode").then(|| self.tiles(family, block_m))
    }

    /// Tiles of rows: of a head's queries, or where heads share keys and a tile, of all of theirs.
    pub(crate) fn tiles(&self, family: &str, block_m: u32) -> u64 {
        let (heads, rows) = match family {
            "decode" | "mma" => (
                self.heads.key_value,
                self.q * self.heads.group_size() as u64,
            ),
            _ => (self.heads.query, self.q),
        };
        self.batch * heads as u64 * rows.div_ceil(u64::from(block_m.max(1)))
    }
}

/// The problems of a search. They have one element type and one head size: a candidate has to compute each of them.
///
/// # Errors
/// A description of the error.
pub(crate) fn shapes<'a>(
    problems: impl IntoIterator<Item = &'a String>,
) -> Result<Vec<(&'a str, Shape)>> {
    let mut shapes: Vec<(&str, Shape)> = Vec::new();
    for text in problems {
        let shape = Shape::parse(text)?;
        let setting = |shape: &Shape| (shape.element, shape.heads.dim);
        if let Some((first, other)) = shapes.first() {
            ensure!(
                setting(other) == setting(&shape),
                "`{first}` and `{text}` need searches of their own: element types or head sizes differ"
            );
        }
        shapes.push((text, shape));
    }
    ensure!(!shapes.is_empty(), "there is no problem");
    Ok(shapes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read_and_tiled() {
        let shape = Shape::parse("b2 q100 k300 h8/2 d64 bf16 mask=causal").unwrap();
        assert_eq!((shape.batch, shape.q, shape.k), (2, 100, 300));
        assert_eq!(shape.heads, Heads::new(8, 64).key_value(2));
        assert!(!shape.unmasked);
        assert_eq!(shape.ctas("wmma", 64), Some(2 * 8 * 2));
        assert_eq!(shape.ctas("mma", 64), Some(2 * 2 * 7));
        assert_eq!(shape.ctas("decode", 16), None);
        let plain = Shape::parse("q1 k8192 d128 f16").unwrap();
        assert_eq!((plain.batch, plain.heads), (1, Heads::new(1, 128)));
        for text in [
            "k3 d4 f16",
            "q3 k3 f16",
            "qx k3 d4 f16",
            "q0 k3 d4 f16",
            "q3 k3 d0 f16",
            "q3 k3 d4 h8/0 f16",
            "q3 k3 d4 h8/x f16",
        ] {
            assert!(Shape::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn problems_have_one_setting() {
        let of = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
            match shapes(&texts) {
                Ok(shapes) => format!("{} {}", shapes[0].1.element, shapes[0].1.heads.dim),
                Err(error) => error.to_string(),
            }
        };
        assert_eq!(of(&["q1 k1 d8 bf16", "q2 k2 d8 bf16"]), "bf16 8");
        for other in ["q2 k2 d16 bf16", "q2 k2 d8 f16"] {
            let error = of(&["q1 k1 d8 bf16", other]);
            assert!(error.contains("searches of their own"), "{error}");
        }
        let error = of(&["q1 k1 d192/128 bf16"]);
        assert!(
            error.contains("one head size for keys and values"),
            "{error}"
        );
        assert!(of(&["q1 k1 d8"]).contains("no element type"));
        assert!(of(&[]).contains("no problem"));
    }
}
