//! Problems as a line of text: [`Case`] as command lines take it, and everything else that makes and judges cases.

pub(crate) use warptile::accept::Verdict;
pub(crate) use warptile::testing::{
    Buffer, Case, Failure, Inputs, LayoutKind, Lengths, OnGpu, Report, ResultBuffers,
};

/// The grammar, as `--help` prints it.
pub(crate) const GRAMMAR: &str = "\
A problem is a line of words, such as \"b2 q113 k203 h8/2 d64 f16 mask=causal softcap=30\":
  bN qN kN        sequences, query length, key length [1 each]
  packed=QxK,...  in place of these: lengths of packed sequences
  hH or hH/K      query heads, and key/value heads if they are fewer [1]
  dN              head size [64]
  f16, bf16, f32  element type [f32]
  mask=M          none, causal, causal-top-left or window,LEFT,RIGHT (-1: no limit) [none]
  scale=X         factor of the scores [1/sqrt(head size)]
  softcap=X       bound of the scores [no bound]
  alibi=A         head or batch: random slopes per head, or per sequence and head [no ALiBi]
  layout=L        bshd, bhsd or gaps: with unused elements after each head and row [bshd]
  unaligned       tensors begin at odd multiples of an element
  seed=N          what the random values follow from [0]";

/// Most elements one tensor of a problem may have: beyond it the inputs don't fit an ordinary machine's memory.
const MAX_ELEMENTS: usize = 1 << 31;

/// Most sequences times heads: each is visited, also where it has no rows.
const MAX_HEADS: usize = 1 << 20;

/// Parses a problem, and refuses one that would not fit into memory.
///
/// # Errors
/// What is wrong with the text, in words.
pub(crate) fn parse(text: &str) -> Result<Case, String> {
    let case: Case = text.parse().map_err(|error| format!("{error}"))?;
    let (q, kv) = case.layouts();
    let fits = |layout: &warptile::Layout| {
        layout
            .required_len()
            .is_some_and(|elements| elements <= MAX_ELEMENTS)
    };
    if !fits(&q) || !fits(&kv) {
        return Err(format!(
            "the problem has more than {MAX_ELEMENTS} elements in a tensor"
        ));
    }
    if case.batch().saturating_mul(case.heads) > MAX_HEADS {
        return Err(format!(
            "the problem has more than {MAX_HEADS} heads in all its sequences"
        ));
    }
    Ok(case)
}

/// The problem as a line of text, but for what its random values follow from.
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
    fn problems_that_fit_no_memory_are_refused() {
        for text in [
            "b1073741824 h8 d64",
            "q1073741824 k1 h8 d64 f16",
            "q1 k1073741824 h8 d64 f16",
        ] {
            let error = parse(text).unwrap_err();
            assert!(
                error.contains("more than 2147483648 elements"),
                "{text}: {error}"
            );
        }
        assert!(parse("q16384 k16384 h32 d128").is_ok());
        let endless = parse("b1073741824 q0 k0 h1073741824 d8").unwrap_err();
        assert!(endless.contains("more than 1048576 heads"), "{endless}");
    }

    #[test]
    fn the_seed_is_left_out() {
        let case =
            parse("q3 k4 d8 f16 mask=causal softcap=30 layout=gaps unaligned seed=7").unwrap();
        assert_eq!(
            without_seed(&case),
            "b1 q3 k4 h1 d8 f16 mask=causal softcap=30 layout=gaps unaligned"
        );
    }
}
