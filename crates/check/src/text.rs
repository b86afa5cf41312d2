//! Cases as a line of text, such as `b2 q113 k203 h8/2 d64 f16 mask=causal softcap=30 layout=bhsd seed=7`.

use std::fmt;
use std::str::FromStr;

use warptile::{AlibiShape, Align, ElementType, Mask};

use crate::case::{Case, LayoutKind, Lengths};

/// What is wrong with the text of a case.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseCaseError {
    /// A word is not understood. It is given without control characters, and only its beginning if it is long.
    #[error(
        "`{0}` is not part of a case; a case reads like `b2 q113 k203 h8/2 d64 f16 mask=causal softcap=30 scale=0.5 alibi=head layout=gaps unaligned seed=7`, or `packed=3x5,4x4` in place of b, q and k"
    )]
    Word(String),
    /// The words describe nothing that can be computed.
    #[error("no such problem: {0}")]
    Problem(String),
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.lengths {
            Lengths::Dense { batch, query, key } => write!(f, "b{batch} q{query} k{key}")?,
            Lengths::Packed(lengths) => {
                let lengths: Vec<String> =
                    lengths.iter().map(|(q, k)| format!("{q}x{k}")).collect();
                write!(f, "packed={}", lengths.join(","))?;
            }
        }
        write!(f, " h{}", self.heads)?;
        if self.kv_heads != self.heads {
            write!(f, "/{}", self.kv_heads)?;
        }
        write!(f, " d{} {}", self.head_dim, self.element)?;
        let side = |side: Option<u32>| side.map_or("-1".to_owned(), |keys| keys.to_string());
        match self.mask {
            Mask::None => {}
            Mask::Causal {
                align: Align::BottomRight,
            } => f.write_str(" mask=causal")?,
            Mask::Causal {
                align: Align::TopLeft,
            } => f.write_str(" mask=causal-top-left")?,
            Mask::Window { left, right } => {
                write!(f, " mask=window,{},{}", side(left), side(right))?;
            }
            // What the grammar has no word for yet is printed in words that it refuses.
            other => write!(f, " mask={other}")?,
        }
        if let Some(scale) = self.scale {
            write!(f, " scale={scale}")?;
        }
        if let Some(softcap) = self.softcap {
            write!(f, " softcap={softcap}")?;
        }
        match self.alibi {
            None => {}
            Some(AlibiShape::PerHead) => f.write_str(" alibi=head")?,
            Some(AlibiShape::PerBatchHead) => f.write_str(" alibi=batch")?,
            Some(other) => write!(f, " alibi={other:?}")?,
        }
        match self.layout {
            LayoutKind::Bshd => {}
            LayoutKind::Bhsd => f.write_str(" layout=bhsd")?,
            LayoutKind::Gaps => f.write_str(" layout=gaps")?,
        }
        if self.unaligned {
            f.write_str(" unaligned")?;
        }
        write!(f, " seed={}", self.seed)
    }
}

impl FromStr for Case {
    type Err = ParseCaseError;

    /// Parses what `Display` prints. Words may come in any order; missing ones mean one sequence of one query and one key,
    /// one head of size 64, `f32`, and no feature.
    fn from_str(text: &str) -> Result<Self, ParseCaseError> {
        let mut case = Case::new(1, 1, 64);
        let mut kv_heads = None;
        for word in text.split_whitespace() {
            parse_word(&mut case, &mut kv_heads, word)
                .ok_or_else(|| ParseCaseError::Word(printable(word)))?;
        }
        case.kv_heads = kv_heads.unwrap_or(case.heads);
        if let Lengths::Packed(lengths) = &case.lengths {
            // Row offsets are 32-bit integers.
            let rows = lengths.iter().flat_map(|&(query, key)| [query, key]);
            let total = rows.fold(0_usize, usize::saturating_add);
            if i32::try_from(total).is_err() {
                return Err(ParseCaseError::Problem(format!("{total} packed rows")));
            }
        }
        case.try_problem()
            .map_err(|error| ParseCaseError::Problem(error.to_string()))?;
        Ok(case)
    }
}

/// A word as an error message may show it: what a terminal would obey is escaped, and what would fill it is cut off.
fn printable(word: &str) -> String {
    const LONGEST: usize = 40;
    let mut text = String::new();
    for (index, symbol) in word.chars().enumerate() {
        match symbol {
            _ if index == LONGEST => {
                text.push('…');
                break;
            }
            '\'' | '"' | '\\' => text.push(symbol),
            _ => text.extend(symbol.escape_debug()),
        }
    }
    text
}

/// Applies one word to the case; `None` if it means nothing.
fn parse_word(case: &mut Case, kv_heads: &mut Option<usize>, word: &str) -> Option<()> {
    if let Some((name, value)) = word.split_once('=') {
        match name {
            "packed" => case.lengths = Lengths::Packed(parse_lengths(value)?),
            "mask" => case.mask = parse_mask(value)?,
            "scale" => case.scale = Some(value.parse().ok()?),
            "softcap" => case.softcap = Some(value.parse().ok()?),
            "alibi" => {
                case.alibi = Some(match value {
                    "head" => AlibiShape::PerHead,
                    "batch" => AlibiShape::PerBatchHead,
                    _ => return None,
                });
            }
            "layout" => {
                case.layout = match value {
                    "bshd" => LayoutKind::Bshd,
                    "bhsd" => LayoutKind::Bhsd,
                    "gaps" => LayoutKind::Gaps,
                    _ => return None,
                };
            }
            "seed" => case.seed = value.parse().ok()?,
            _ => return None,
        }
        return Some(());
    }
    match word {
        "f16" => case.element = ElementType::F16,
        "bf16" => case.element = ElementType::Bf16,
        "f32" => case.element = ElementType::F32,
        "unaligned" => case.unaligned = true,
        _ => {
            let (name, value) = word.split_at_checked(1)?;
            if name == "h" {
                let (heads, kv) = value.split_once('/').unwrap_or((value, value));
                case.heads = heads.parse().ok()?;
                *kv_heads = Some(kv.parse().ok()?);
                return Some(());
            }
            let number = value.parse().ok()?;
            match (name, &mut case.lengths) {
                ("d", _) => case.head_dim = number,
                ("b", Lengths::Dense { batch, .. }) => *batch = number,
                ("q", Lengths::Dense { query, .. }) => *query = number,
                ("k", Lengths::Dense { key, .. }) => *key = number,
                _ => return None,
            }
        }
    }
    Some(())
}

fn parse_lengths(value: &str) -> Option<Vec<(usize, usize)>> {
    if value.is_empty() {
        return Some(Vec::new());
    }
    value
        .split(',')
        .map(|pair| {
            let (query, key) = pair.split_once('x')?;
            Some((query.parse().ok()?, key.parse().ok()?))
        })
        .collect()
}

fn parse_mask(value: &str) -> Option<Mask> {
    let side = |text: &str| match text {
        "-1" => Some(None),
        keys => keys.parse().ok().map(Some),
    };
    match value {
        "none" => Some(Mask::None),
        "causal" => Some(Mask::causal()),
        "causal-top-left" => Some(Mask::Causal {
            align: Align::TopLeft,
        }),
        _ => {
            let (left, right) = value.strip_prefix("window,")?.split_once(',')?;
            Some(Mask::Window {
                left: side(left)?,
                right: side(right)?,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quickcheck::quickcheck;

    quickcheck! {
        fn text_round_trips(seed: u64) -> bool {
            let case = Case::random(seed, 600);
            case.to_string().parse() == Ok(case)
        }

        fn any_text_is_an_error_or_a_case(text: String) -> bool {
            let _ = text.parse::<Case>();
            true
        }
    }

    #[test]
    fn reads_like_the_problem() {
        let text = "packed=3x5,0x7 h8/2 d64 bf16 mask=window,-1,4 scale=0.5 softcap=30 alibi=batch layout=bhsd unaligned seed=7";
        assert_eq!(text.parse::<Case>().unwrap().to_string(), text);
        let text = "b2 q113 k203 h6 d40 f16 mask=causal-top-left seed=0";
        assert_eq!(text.parse::<Case>().unwrap().to_string(), text);
    }

    #[test]
    fn says_what_it_does_not_understand() {
        let error = |text: &str| text.parse::<Case>().unwrap_err().to_string();
        assert!(error("b1 q2 k3 zebra").starts_with("`zebra` is not part of a case"));
        assert!(error("mask=window,1").starts_with("`mask=window,1`"));
        assert!(error("h6/4").starts_with("no such problem: q has 6 heads"));
        assert!(
            error("packed=9999999999x1").starts_with("no such problem: 10000000000 packed rows")
        );
        assert!(error("é").starts_with("`é`"));
    }

    #[test]
    fn what_a_terminal_would_obey_is_escaped_and_long_words_are_cut() {
        let error = |text: &str| text.parse::<Case>().unwrap_err().to_string();
        assert!(error("\u{1b}[31mred\u{7}").starts_with("`\\u{1b}[31mred\\u{7}` is not"));
        assert!(error("a\u{202e}b").starts_with("`a\\u{202e}b` is not"));
        let long = error(&"x".repeat(1_000_000));
        assert!(long.starts_with(&format!("`{}…` is not", "x".repeat(40))));
        let long = error(&"\u{1b}".repeat(1_000_000));
        assert!(long.len() < 600, "{long}");
    }

    #[test]
    fn cases_beyond_memory_are_refused() {
        let error = |text: &str| text.parse::<Case>().unwrap_err().to_string();
        for text in [
            "b1073741824 h8 d64",
            "q1073741824 k1 h8 d64 f16",
            "q1 k1073741824 h8 d64 f16",
            "q1 k1 h18446744073709551615 layout=gaps",
        ] {
            let error = error(text);
            assert!(
                error.contains("elements in a tensor; the limit is 2147483648"),
                "{error}"
            );
        }
        assert_eq!(
            error("b1073741824 q0 k0 h1073741824 d8"),
            "no such problem: the problem has 1152921504606846976 heads in all sequences; the limit is 2147483648"
        );
        assert!("q16384 k16384 h32 d128".parse::<Case>().is_ok());
    }
}
