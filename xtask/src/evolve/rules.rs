//! Rules of a family's knobs: comparisons of whole numbers, such as `block_m % (16 * warps) == 0`.

use serde::Deserialize;

/// A rule as `instances.toml` has it, parsed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Rule {
    text: String,
    left: Expression,
    comparison: Comparison,
    right: Expression,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    AtMost,
    AtLeast,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Expression {
    Number(u64),
    Name(String),
    Of(Box<Expression>, char, Box<Expression>),
}

impl Rule {
    /// Whether it holds of the numbers that `value` gives to names. One that cannot be computed does not: it divides by 0.
    #[must_use]
    pub fn holds(&self, value: &dyn Fn(&str) -> Option<u64>) -> bool {
        let (Some(left), Some(right)) = (self.left.value(value), self.right.value(value)) else {
            return false;
        };
        match self.comparison {
            Comparison::Equal => left == right,
            Comparison::AtMost => left <= right,
            Comparison::AtLeast => left >= right,
        }
    }

    /// As it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl Expression {
    fn value(&self, of: &dyn Fn(&str) -> Option<u64>) -> Option<u64> {
        match self {
            Expression::Number(number) => Some(*number),
            Expression::Name(name) => of(name),
            Expression::Of(left, operator, right) => {
                let (left, right) = (left.value(of)?, right.value(of)?);
                match operator {
                    '+' => left.checked_add(right),
                    '*' => left.checked_mul(right),
                    '/' => left.checked_div(right),
                    _ => left.checked_rem(right),
                }
            }
        }
    }
}

/// What a rule may name.
const NAMES: [&str; 5] = ["head_dim", "block_m", "block_n", "warps", "stages"];

impl TryFrom<String> for Rule {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let comparisons = [
            ("==", Comparison::Equal),
            ("<=", Comparison::AtMost),
            (">=", Comparison::AtLeast),
        ];
        let split = comparisons.into_iter().find_map(|(sign, comparison)| {
            let (left, right) = text.split_once(sign)?;
            Some((left, comparison, right))
        });
        let (left, comparison, right) =
            split.ok_or_else(|| format!("`{text}` has none of == <= >="))?;
        let parse = |side: &str| {
            let mut rest = side.trim();
            let expression = sum(&mut rest)?;
            match rest.is_empty() {
                true => Ok(expression),
                false => Err(format!("`{text}`: nothing is expected at `{rest}`")),
            }
        };
        Ok(Rule {
            left: parse(left)?,
            comparison,
            right: parse(right)?,
            text,
        })
    }
}

fn sum(rest: &mut &str) -> Result<Expression, String> {
    chain(rest, &['+'], product)
}

fn product(rest: &mut &str) -> Result<Expression, String> {
    chain(rest, &['*', '/', '%'], operand)
}

/// Operands joined by operators of one rank, from the left.
fn chain(
    rest: &mut &str,
    operators: &[char],
    operand: fn(&mut &str) -> Result<Expression, String>,
) -> Result<Expression, String> {
    let mut left = operand(rest)?;
    while let Some(operator) = rest.chars().next().filter(|c| operators.contains(c)) {
        *rest = rest[1..].trim_start();
        left = Expression::Of(Box::new(left), operator, Box::new(operand(rest)?));
    }
    Ok(left)
}

fn operand(rest: &mut &str) -> Result<Expression, String> {
    if let Some(inner) = rest.strip_prefix('(') {
        *rest = inner.trim_start();
        let expression = sum(rest)?;
        let after = rest.strip_prefix(')');
        *rest = after.ok_or("a bracket is not closed")?.trim_start();
        return Ok(expression);
    }
    let end = rest
        .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .unwrap_or(rest.len());
    let (word, after) = rest.split_at(end);
    *rest = after.trim_start();
    match word.parse() {
        Ok(number) => Ok(Expression::Number(number)),
        Err(_) if NAMES.contains(&word) => Ok(Expression::Name(word.to_owned())),
        Err(_) => Err(format!("`{word}` is not a number or one of {NAMES:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(text: &str) -> bool {
        let rule = Rule::try_from(text.to_owned()).unwrap();
        assert_eq!(rule.text(), text);
        rule.holds(&|name| {
            let values = [64, 32, 128, 8, 2];
            let at = NAMES.iter().position(|known| *known == name)?;
            values.get(at).copied()
        })
    }

    #[test]
    fn rules_are_computed_by_the_usual_ranks() {
        for (text, expected) in [
            ("block_m == 32", true),
            ("block_m % 16 == 0", true),
            ("block_n % (warps / (block_m / 16) * 16) == 0", true),
            ("warps + 2 * 3 == 14", true),
            ("(warps + 2) * 3 == 30", true),
            ("stages * head_dim <= 127", false),
            ("head_dim >= 64", true),
            ("block_n / warps / 2 == 8", true),
            // Divides by 0.
            ("block_n / (warps / 16) >= 0", false),
        ] {
            assert_eq!(holds(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for text in [
            "block_m",
            "block_m < 3",
            "rows == 3",
            "(block_m == 3",
            "block_m + == 3",
            "block_m 3 == 3",
            "block_m == 3)",
        ] {
            assert!(Rule::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}
