//! Problems as a line of text: [`Case`] as command lines take it.

use warptile::ElementType;
use warptile::kernels::{Count, Kind};
use warptile::spec::{Operand, Scoring};
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
  seed=N          seed of the random values [0]";

/// Examples for `--help`: command lines without the name of the program.
pub(crate) fn examples(lines: &[&str]) -> String {
    lines.iter().fold("Examples:".to_owned(), |text, line| {
        text + "\n  warptile " + line
    })
}

/// The help of commands that take problems: the grammar follows.
pub(crate) fn help(lines: &[&str]) -> String {
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
    let grammar = { GRAMMAR.replace("{OPTIONS}", &options.collect::<String>()) }.replace(
        "{CACHE}",
        &format!("{:<16}", "cache=".to_owned() + &scaled.join("|")),
    );
    format!("{}\n\n{grammar}", examples(lines))
}

/// Parses a problem, for command lines.
///
/// # Errors
/// A description of the error in the text.
pub(crate) fn parse(text: &str) -> Result<Case, String> {
    let case: Case = { text.parse() }.map_err(|error: ParseCaseError| error.to_string())?;
    match case.d_bias && !case.backward {
        true => Err("`dbias` is one of the gradients of `backward`".to_owned()),
        false => Ok(case),
    }
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
    fn the_seed_is_left_out() {
        let case =
            parse("q3 k4 d8 f16 mask=causal scale=0.5 layout=gaps unaligned seed=7").unwrap();
        assert_eq!(
            without_seed(&case),
            "b1 q3 k4 h1 d8 f16 mask=causal scale=0.5 layout=gaps unaligned"
        );
    }
}
