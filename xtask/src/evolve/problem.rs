//! As much of a problem's text as a search has to know.

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
    /// Heads, one if they are not given.
    pub(crate) heads: Heads,
    /// Whether every query sees every key.
    pub(crate) unmasked: bool,
}

impl Shape {
    /// Reads a problem.
    ///
    /// # Errors
    /// What is missing, in words.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let number = |letter: char| {
            text.split_whitespace()
                .filter_map(|word| word.strip_prefix(letter))
                .find(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        let needed = |letter: char| {
            number(letter)
                .and_then(|rest| rest.parse().ok())
                .filter(|&value: &u64| value > 0)
                .ok_or_else(|| format!("problem `{text}`: no {letter}, such as {letter}64"))
        };
        let mut heads = Heads::new(1, 0);
        for (letter, rest) in [('h', number('h')), ('d', number('d'))] {
            let word = rest.map(|rest| format!("{letter}{rest}"));
            if word.is_some_and(|word| heads.parse_word(&word).is_none()) {
                return Err(format!("problem `{text}`: {letter} is not like {letter}64"));
            }
        }
        if [heads.query, heads.key_value, heads.dim, heads.value_dim].contains(&0) {
            return Err(format!("problem `{text}`: no heads, such as h8 d64"));
        }
        Ok(Self {
            batch: number('b').map_or(Ok(1), |_| needed('b'))?,
            q: needed('q')?,
            k: needed('k')?,
            heads,
            unmasked: !text.contains("mask="),
        })
    }

    /// CTAs of a kernel with tiles of `block_m` rows; `None` of a family whose CTAs share keys, of which there are always enough.
    #[must_use]
    pub(crate) fn ctas(&self, family: &str, block_m: u32) -> Option<u64> {
        (family != "decode").then(|| self.tiles(family, block_m))
    }

    /// Tiles of rows: of a head's queries, or where heads share keys and a tile, of all of theirs.
    #[must_use]
    pub(crate) fn tiles(&self, family: &str, block_m: u32) -> u64 {
        let block_m = u64::from(block_m.max(1));
        match family {
            "decode" | "mma" => {
                let rows = self.q * self.heads.group_size() as u64;
                self.batch * self.heads.key_value as u64 * rows.div_ceil(block_m)
            }
            _ => self.batch * self.heads.query as u64 * self.q.div_ceil(block_m),
        }
    }
}

/// The element type that all problems have.
///
/// # Errors
/// What is wrong, in words.
pub(crate) fn element(problems: &[String]) -> Result<&'static str, String> {
    let of = |text: &String| {
        let known = ["f16", "bf16", "f32"];
        known
            .into_iter()
            .find(|name| text.split_whitespace().any(|word| word == *name))
            .ok_or_else(|| format!("problem `{text}` names no element type"))
    };
    let first = problems.first().ok_or("there is no problem")?;
    let element = of(first)?;
    match problems.iter().map(of).find(|one| *one != Ok(element)) {
        None => Ok(element),
        Some(other) => Err(format!(
            "problems of {element} and {} need searches of their own",
            other?
        )),
    }
}

/// The head size that all problems have: a candidate has to compute each of them.
///
/// # Errors
/// What is wrong, in words.
pub(crate) fn head_dim(problems: &[String]) -> Result<usize, String> {
    let mut sizes = Vec::new();
    for problem in problems {
        let heads = Shape::parse(problem)?.heads;
        if heads.values_differ() {
            return Err(format!(
                "problem `{problem}`: a search has one head size for keys and values"
            ));
        }
        sizes.push(heads.dim);
    }
    sizes.dedup();
    match sizes[..] {
        [size] => Ok(size),
        _ => Err(format!("head sizes {sizes:?} need searches of their own")),
    }
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
            "k3 d4",
            "q3 k3",
            "qx k3 d4",
            "q0 k3 d4",
            "q3 k3 d0",
            "q3 k3 d4 h8/0",
            "q3 k3 d4 h8/x",
        ] {
            assert!(Shape::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn problems_have_one_head_size() {
        let of = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
            head_dim(&texts)
        };
        assert_eq!(of(&["q1 k1 d8 bf16", "q2 k2 d8 bf16"]), Ok(8));
        assert!(of(&["q1 k1 d8 bf16", "q2 k2 d16 bf16"]).is_err());
        let error = of(&["q1 k1 d192/128 bf16"]).unwrap_err();
        assert!(
            error.contains("one head size for keys and values"),
            "{error}"
        );
    }

    #[test]
    fn problems_have_one_element_type() {
        let of = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
            element(&texts).map(str::to_owned)
        };
        assert_eq!(of(&["q1 k1 d8 bf16", "q2 k2 d8 bf16"]).unwrap(), "bf16");
        for texts in [&["q1 bf16", "q1 f16"][..], &["q1"], &[]] {
            assert!(of(texts).is_err());
        }
    }
}
