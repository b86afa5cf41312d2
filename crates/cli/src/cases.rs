//! Problems as a line of text: [`Case`] as command lines take it.

use warptile::kernels::{Count, Kind};
use warptile::spec::{Operand, Scoring};
use warptile::{Diagonal, ElementType};
use warptile_check::{Case, ParseCaseError};

use crate::text;

/// The grammar, as `--help` prints it.
const GRAMMAR: &str = "\
A problem is a line of words, such as
\"b2 q113 k203 h8/2 d64 f16 mask=causal scale=0.5\":
  bN qN kN        sequences, query length, key length [b1, q1, as many keys as
                  queries]; one of the lengths must be there
  packed=QxK,...  instead of these: lengths of packed sequences; QxK*N stands
                  for N of them
  hH or hH/K      query heads, and key/value heads if they are fewer [1]
  dN or dN/M      head size, and that of values and output if it differs [64]
  f16, bf16, f32  element type [f32]
  mask=M          none, causal or window,LEFT,RIGHT (-1: no limit) [none]
  diagonal=D      alignment of the mask's diagonal: bottom-right (it ends at the
                  last key), top-left, or the index of the key where it begins
                  [bottom-right]
  blocks=QxK      random lists of the blocks of K keys that each block of Q
                  queries sees, of 64 or 128 each; then ,batch and ,head for
                  lists of each of these, and ,N for N blocks a row
{OPTIONS}  broadcast=D,... dimensions that a bias and a key mask do not depend on: batch,
                  queries, heads and keys, or none [as the seed has it]
  used=QxK,...    numbers of queries and keys of each sequence that are used
  lengths=K,...   numbers of keys of each sequence that are used; bN and kN
                  default to their count and their maximum
  lengths=ragged  a random number of keys of each sequence, from an eighth to
                  all of them
  splits=N        keys are split at multiples of N, a power of two, so that a
                  sequence has the same result in every batch; even splits them
                  in the fastest way [even]
  pages=N         keys and values are in pages of N rows [not in pages]
  runs=N          a sequence's pages are neighbours in runs of N; the runs are
                  in random order [1]
  device-lengths  on a GPU, offsets, used lengths, the block table and lists of
                  blocks are in its memory
  {CACHE}type of keys and values, with random scales [that of q]
  layout=L        bshd, bhsd, gaps (unused elements after each head and row), or
                  interleaved (k and v in one tensor, entry by entry or page by
                  page) [bshd]
  unaligned       tensors begin at odd multiples of an element
  sms=N           plan as if the GPU had N multiprocessors
  backward        gradients instead of the output, for `bench`, `plan` and
                  `verify`
  dbias           that of the bias, too, with `backward`
  seed=N          seed of the random values, from 0 to 2^64 - 1 [0]";

/// Examples for `--help`: command lines without the name of the program.
pub(crate) fn examples(lines: &[&str]) -> String {
    lines.iter().fold("Examples:".to_owned(), |text, line| {
        text + "\n  warptile " + line
    })
}

/// The help of commands that take problems: the grammar follows.
pub(crate) fn help(lines: &[&str]) -> String {
    format!("{}\n\n{}", examples(lines), grammar())
}

/// All words of problems.
fn grammar() -> String {
    let numbers = { Scoring::NUMBERS.into_iter() }.map(|(word, help)| (format!("{word}=X"), help));
    let operands = Operand::of_scores().filter_map(|operand| {
        let of_shape = if operand.kind() == Kind::List(Count::Slopes) {
            "=A"
        } else {
            ""
        };
        Some((operand.word()?.to_owned() + of_shape, operand.help()))
    });
    let padding = (
        "keymask=padding".to_owned(),
        "a key mask of shape [batch, 1, 1, keys] that hides the keys behind those that lengths=ragged has",
    );
    let options = { numbers.chain(operands) }
        .chain([padding])
        .map(|(word, help)| text::wrapped(&format!("  {word:<16}{help}"), 80, 18) + "\n");
    let scaled: Vec<String> = ElementType::scaled().map(|one| one.to_string()).collect();
    { GRAMMAR.replace("{OPTIONS}", &options.collect::<String>()) }.replace(
        "{CACHE}",
        &format!("{:<16}", "cache=".to_owned() + &scaled.join("|")),
    )
}

/// The lines of the help about a word whose value is wrong: those of its name before `=`, or of the letter before a number. `None` if no
/// word is called so.
fn help_of(word: &str) -> Option<String> {
    let grammar = grammar();
    let mut entries: Vec<(&str, String)> = Vec::new();
    for line in grammar.lines() {
        match (line.split_at_checked(18), entries.last_mut()) {
            (Some((key, help)), _) if key.starts_with("  ") && !key.trim().is_empty() => {
                entries.push((key.trim(), help.to_owned()));
            }
            (Some((_, more)), Some((_, help))) => *help += &format!(" {more}"),
            _ => {}
        }
    }
    let is_about = |key: &str| match (word.split_once('='), word.split_at_checked(1)) {
        (Some((name, _)), _) => key.split('=').next() == Some(name),
        (None, Some((letter, number))) => {
            let of_letter = |one: &str| {
                one.strip_prefix(letter) == Some(&letter.to_uppercase())
                    || one.strip_prefix(letter) == Some("N")
            };
            number.starts_with(|first: char| first.is_ascii_digit() || first == '-')
                && key.split(' ').any(of_letter)
        }
        _ => false,
    };
    let lines: Vec<String> = { entries.iter() }
        .filter(|(key, _)| is_about(key))
        .map(|(key, help)| format!("`{key}`: {help}"))
        .collect();
    (!lines.is_empty()).then(|| lines.join("; "))
}

/// The error in the text of a problem. If a word is known and its value is not, the error says which values the word takes.
fn described(error: &ParseCaseError) -> String {
    if let ParseCaseError::Word { word, .. } = error
        && let Some(help) = help_of(word)
    {
        return format!("`{word}` is not valid; expected {help}");
    }
    error.to_string()
}

/// Parses a problem, for command lines.
///
/// # Errors
/// A description of the error in the text.
pub(crate) fn parse(text: &str) -> Result<Case, String> {
    checked(text.parse())
}

/// Parses a problem of a command that makes no tensors.
///
/// # Errors
/// As [`parse`], but there may be any number of elements.
pub(crate) fn parse_to_plan(text: &str) -> Result<Case, String> {
    checked(Case::parse_to_plan(text))
}

fn checked(parsed: Result<Case, ParseCaseError>) -> Result<Case, String> {
    let case = parsed.map_err(|error| described(&error))?;
    if case.d_bias && !case.backward {
        return Err("`dbias` is one of the gradients of `backward`".to_owned());
    }
    let mask = case.scoring.mask;
    if mask.hides_nothing() && mask.diagonal != Diagonal::default() {
        return Err(format!(
            "`diagonal={}` says where the mask runs, so it needs `mask=causal` or `mask=window,LEFT,RIGHT`",
            mask.diagonal
        ));
    }
    Ok(case)
}

/// Parses a problem of a command that knows no gradients.
///
/// # Errors
/// As [`parse`]; if the problem asks for gradients.
pub(crate) fn parse_attention(text: &str) -> Result<Case, String> {
    match parse(text)? {
        case if case.backward => Err(
            "`backward` is for `bench`, `plan` and `verify`: this command computes no gradients"
                .to_owned(),
        ),
        case => Ok(case),
    }
}

/// Returns true if this is a word of problems.
pub(crate) fn is_word(text: &str) -> bool {
    !matches!(text.parse::<Case>(), Err(ParseCaseError::Word { .. }))
}

/// The problem as a line of text, except for what its random values follow from.
pub(crate) fn without_seed(case: &Case) -> String {
    let text = case.to_string();
    match text.rsplit_once(" seed=") {
        Some((problem, _)) => problem.to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_word_with_a_wrong_value_says_what_it_takes() {
        for (word, expected) in [
            (
                "splits=-256",
                "`splits=N`: keys are split at multiples of N, a power of two, so",
            ),
            (
                "seed=-1",
                "`seed=N`: seed of the random values, from 0 to 2^64 - 1 [0]",
            ),
            (
                "cache=f16",
                "`cache=e4m3`: type of keys and values, with random scales",
            ),
            (
                "mask=window,-2,0",
                "`mask=M`: none, causal or window,LEFT,RIGHT (-1: no limit)",
            ),
            (
                "diagonal=x",
                "`diagonal=D`: alignment of the mask's diagonal: bottom-right (",
            ),
            ("dropout=x", "`dropout=X`: drop weights with probability X"),
            ("alibi=x", "`alibi=A`: "),
            ("keymask=x", "; `keymask=padding`: a key mask of shape"),
            (
                "lengths=1,",
                "`lengths=K,...`: numbers of keys of each sequence that are used;",
            ),
            (
                "q99999999999999999999999",
                "`bN qN kN`: sequences, query length, key length [b1,",
            ),
            ("k-1", "`bN qN kN`: "),
            ("h8/x", "`hH or hH/K`: query heads, and"),
            (
                "d1.5",
                "`dN or dN/M`: head size, and that of values and output if it differs [64]",
            ),
            (
                "unaligned=1",
                "`unaligned`: tensors begin at odd multiples of an element",
            ),
        ] {
            let error = parse(word).unwrap_err();
            let start = format!("`{word}` is not valid; expected `");
            assert!(
                error.starts_with(&start) && error.contains(expected),
                "{error}"
            );
        }
        for other in [
            "zebra",
            "s512",
            "causal=true",
            "fp16",
            "é=1",
            "Q512",
            "=",
            "dx",
        ] {
            let error = parse(other).unwrap_err();
            assert!(error.contains("is not part of a problem"), "{error}");
        }
    }

    #[test]
    fn a_diagonal_needs_a_mask() {
        for text in ["q16 diagonal=3", "q16 mask=window,-1,-1 diagonal=top-left"] {
            for error in [parse(text), parse_to_plan(text)] {
                let error = error.unwrap_err();
                assert!(error.contains("it needs `mask=causal` or"), "{error}");
            }
        }
        assert!(parse("q16 diagonal=3 mask=causal").is_ok());
    }

    #[test]
    fn the_seed_is_left_out() {
        let case =
            parse("q3 k4 d8 f16 mask=causal scale=0.5 layout=gaps unaligned seed=7").unwrap();
        assert_eq!(
            without_seed(&case),
            "b1 q3 k4 h1 d8 f16 mask=causal scale=0.5 layout=gaps unaligned"
        );
    }
}
