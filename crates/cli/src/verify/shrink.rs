//! From a failing case to a small one that still fails.

use warptile::Mask;

use crate::case::{Case, Lengths, Slopes, Storage, Values};

/// Cases that are a little smaller or simpler than `case`, the boldest steps first.
fn simpler(case: &Case) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut push = |change: &dyn Fn(&mut Case)| {
        let mut simpler = case.clone();
        change(&mut simpler);
        if simpler != *case {
            cases.push(simpler);
        }
    };

    match &case.lengths {
        Lengths::Dense { batch, query, key } => {
            let (batch, query, key) = (*batch, *query, *key);
            let dense = |batch, query, key| Lengths::Dense { batch, query, key };
            for fewer in smaller(batch, 1) {
                push(&|case| case.lengths = dense(fewer, query, key));
            }
            for shorter in smaller(query.max(key), 0) {
                push(&|case| {
                    case.lengths = dense(batch, query.min(shorter), key.min(shorter));
                });
            }
            for shorter in smaller(query, 0) {
                push(&|case| case.lengths = dense(batch, shorter, key));
            }
            for shorter in smaller(key, 0) {
                push(&|case| case.lengths = dense(batch, query, shorter));
            }
        }
        Lengths::Packed(sequences) => {
            // A single sequence may fail as a dense batch just as well.
            if let [(query, key)] = sequences[..] {
                push(&|case| {
                    case.lengths = Lengths::Dense {
                        batch: 1,
                        query,
                        key,
                    };
                });
            }
            for index in 0..sequences.len() {
                let mut fewer = sequences.clone();
                fewer.remove(index);
                push(&|case| case.lengths = Lengths::Packed(fewer.clone()));
            }
            for (index, &(query, key)) in sequences.iter().enumerate() {
                let with = |changed: (usize, usize)| {
                    let mut sequences = sequences.clone();
                    sequences[index] = changed;
                    Lengths::Packed(sequences)
                };
                for shorter in smaller(query, 0) {
                    push(&|case| case.lengths = with((shorter, key)));
                }
                for shorter in smaller(key, 0) {
                    push(&|case| case.lengths = with((query, shorter)));
                }
            }
        }
    }

    push(&|case| (case.heads, case.kv_heads) = (1, 1));
    push(&|case| case.heads = case.kv_heads);
    for fewer in smaller(case.kv_heads, 1) {
        let group = case.heads.checked_div(case.kv_heads).unwrap_or(1);
        push(&|case| (case.heads, case.kv_heads) = (group * fewer, fewer));
    }
    for eighths in smaller(case.head_dim / 8, 1) {
        push(&|case| case.head_dim = 8 * eighths);
    }
    push(&|case| case.slopes = Slopes::None);
    push(&|case| case.softcap = None);
    push(&|case| case.scale = None);
    push(&|case| case.mask = Mask::none());
    if matches!(case.mask, Mask::Window { .. }) {
        push(&|case| case.mask = Mask::causal());
    }
    push(&|case| case.values = Values::Normal);
    push(&|case| case.layout = Storage::Bshd);
    cases
}

/// Numbers below `value` but at least `least`: the least, then by halves, then one less.
fn smaller(value: usize, least: usize) -> Vec<usize> {
    let mut numbers = vec![least, value / 2, value - value / 4, value.saturating_sub(1)];
    numbers.retain(|&number| number >= least && number < value);
    numbers.dedup();
    numbers
}

/// Takes simpler cases for as long as one `fails`, asking at most `tries` times; the last that failed.
///
/// # Errors
/// Whatever `fails` returns when it can't tell.
pub(crate) fn shrink<E>(
    case: &Case,
    mut tries: usize,
    mut fails: impl FnMut(&Case) -> Result<bool, E>,
) -> Result<Case, E> {
    let mut smallest = case.clone();
    'simpler: loop {
        for candidate in simpler(&smallest) {
            if tries == 0 {
                return Ok(smallest);
            }
            tries -= 1;
            if fails(&candidate)? {
                smallest = candidate;
                continue 'simpler;
            }
        }
        return Ok(smallest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn shrunk(case: &str, fails: impl Fn(&Case) -> bool) -> String {
        let case: Case = case.parse().unwrap();
        assert!(fails(&case));
        let Ok(smallest) = shrink(&case, 10_000, |case| Ok::<_, Infallible>(fails(case)));
        assert!(fails(&smallest));
        smallest.to_string()
    }

    #[test]
    fn only_what_matters_is_left() {
        let fails = |case: &Case| case.rows().1 >= 65 && case.mask != Mask::none();
        assert_eq!(
            shrunk(
                "batch=3 len=1024x799 heads=8/2 d=128 mask=window:3,9 softcap=20 alibi=heads layout=bhsd seed=5",
                fails
            ),
            "batch=1 len=0x65 heads=1/1 d=8 element=f16 mask=causal seed=5"
        );
    }

    #[test]
    fn packed_sequences_are_dropped_one_by_one() {
        let fails = |case: &Case| match &case.lengths {
            Lengths::Packed(sequences) => {
                sequences.contains(&(0, 0)) && sequences.iter().any(|s| s.1 > 10)
            }
            Lengths::Dense { .. } => false,
        };
        assert_eq!(
            shrunk("packed=3x5,7x0,0x0,100x200,1x1 d=64 heads=6/3", fails),
            "packed=0x0,0x11 heads=1/1 d=8 element=f16 seed=0"
        );
    }

    #[test]
    fn grouped_heads_stay_grouped() {
        let fails = |case: &Case| case.heads > case.kv_heads;
        assert_eq!(
            shrunk("heads=32/8 d=8 len=0 batch=0", fails),
            "batch=0 len=0x0 heads=4/1 d=8 element=f16 seed=0"
        );
    }

    #[test]
    fn it_ends_when_nothing_simpler_fails_or_the_tries_are_used_up() {
        let case: Case = "len=100 d=64".parse().unwrap();
        let Ok(same) = shrink(&case, 10_000, |_| Ok::<_, Infallible>(false));
        assert_eq!(same, case);
        let Ok(same) = shrink(&case, 0, |_| Ok::<_, Infallible>(true));
        assert_eq!(same, case);
    }
}
