//! Rules of a family's knobs: comparisons of whole numbers, such as `block_m % (16 * warps) == 0`.

use serde::Deserialize;

use super::archive::NUMBERS;

/// A rule as `instances.toml` has it, which is known to be one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Rule(String);

/// The numbers that a rule names; `None` of what has no such name.
type Numbers<'a> = &'a dyn Fn(&str) -> Option<u64>;

impl Rule {
    /// Returns true if it holds of the numbers that `value` gives to names. One that cannot be computed does not: it divides by 0.
    pub fn holds(&self, value: Numbers<'_>) -> bool {
        holds(&self.0, value) == Ok(true)
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Rule {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let is_known = |name: &str| name == "head_dim" || NUMBERS.contains(&name);
        holds(&text, &|name| is_known(name).then_some(1))?;
        Ok(Rule(text))
    }
}

fn holds(text: &str, numbers: Numbers<'_>) -> Result<bool, String> {
    let side = |mut rest: &str| {
        rest = rest.trim();
        let value = chain(&mut rest, 0, numbers)?;
        match rest {
            "" => Ok(value),
            rest => Err(format!("`{text}`: nothing is expected at `{rest}`")),
        }
    };
    let signs = ["==", "<=", ">="];
    let split = |sign| Some((sign, text.split_once(sign)?));
    let (sign, (left, right)) = { signs.into_iter().find_map(split) }
        .ok_or_else(|| format!("`{text}` has none of == <= >="))?;
    let values = side(left)?.zip(side(right)?);
    Ok(values.is_some_and(|(left, right)| match sign {
        "==" => left == right,
        "<=" => left <= right,
        _ => left >= right,
    }))
}

/// Operators of one rank, the weaker first.
const RANKS: [&str; 2] = ["+", "*/%"];

/// Operands joined by operators of one rank, from the left. `None` if they have no value.
fn chain(rest: &mut &str, rank: usize, numbers: Numbers<'_>) -> Result<Option<u64>, String> {
    let Some(operators) = RANKS.get(rank) else {
        return operand(rest, numbers);
    };
    let mut left = chain(rest, rank + 1, numbers)?;
    while let Some(operator) = rest.chars().next().filter(|&c| operators.contains(c)) {
        *rest = rest[1..].trim_start();
        let right = chain(rest, rank + 1, numbers)?;
        left = left.zip(right).and_then(|(left, right)| match operator {
            '+' => left.checked_add(right),
            '*' => left.checked_mul(right),
            '/' => left.checked_div(right),
            _ => left.checked_rem(right),
        });
    }
    Ok(left)
}

fn operand(rest: &mut &str, numbers: Numbers<'_>) -> Result<Option<u64>, String> {
    if let Some(inner) = rest.strip_prefix('(') {
        *rest = inner.trim_start();
        let value = chain(rest, 0, numbers)?;
        let after = rest.strip_prefix(')');
        *rest = after.ok_or("a bracket is not closed")?.trim_start();
        return Ok(value);
    }
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
    *rest = after.trim_start();
    match word.parse().ok().or_else(|| numbers(word)) {
        Some(number) => Ok(Some(number)),
        None => Err(format!(
            "`{word}` is not a number, head_dim or one of {NUMBERS:?}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(text: &str) -> bool {
        let rule = Rule::try_from(text.to_owned()).unwrap();
        assert_eq!(rule.text(), text);
        rule.holds(&|name| {
            let values = [32, 128, 8, 2];
            let at = NUMBERS.iter().position(|known| *known == name);
            at.map_or((name == "head_dim").then_some(64), |at| Some(values[at]))
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
