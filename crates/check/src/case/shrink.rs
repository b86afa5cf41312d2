//! Smaller cases.

use warptile::Splits;
use warptile::spec::Scoring;

use super::{Case, LayoutKind, Lengths, Used};

impl Case {
    /// Smaller and plainer cases, the boldest first. Repeatedly taking the first that still fails ends at a case of which
    /// nothing can be taken away.
    pub fn shrink(&self) -> Vec<Case> {
        let mut smaller: Vec<Case> = Vec::new();
        let mut push = |edit: &dyn Fn(&mut Case)| {
            let mut case = self.clone();
            edit(&mut case);
            case.device_lengths &= case.has_lists();
            if case != *self {
                smaller.push(case);
            }
        };
        for word in Scoring::words() {
            push(&|case| case.remove(word));
        }
        push(&|case| case.padding = false);
        push(&|case| case.broadcast = None);
        push(&|case| case.splits = Splits::Even);
        push(&|case| case.quantized = None);
        push(&|case| case.device_lengths = false);
        push(&|case| (case.pages, case.runs) = (None, 1));
        push(&|case| case.runs = 1);
        push(&|case| case.pages = case.pages.map(|rows| (rows / 2).max(1)));
        push(&|case| case.used = Used::All);
        push(&|case| {
            if case.used == Used::Ragged {
                case.used = Used::Each(case.used_lengths());
            }
        });
        push(&|case| case.backward = false);
        push(&|case| case.d_bias = false);
        push(&|case| case.multiprocessors = None);
        push(&|case| case.unaligned = false);
        push(&|case| case.layout = LayoutKind::Bshd);
        push(&|case| (case.heads.query, case.heads.key_value) = (1, 1));
        push(&|case| case.heads.key_value = case.heads.query);
        let key_heads = self.heads.key_value;
        let group = self.heads.query.checked_div(key_heads).unwrap_or(0);
        for (group, key_heads) in [
            (group, key_heads / 2),
            (group / 2, key_heads),
            (group, key_heads.saturating_sub(1)),
            (group.saturating_sub(1), key_heads),
        ] {
            if group > 0 && key_heads > 0 {
                push(&|case| {
                    (case.heads.query, case.heads.key_value) = (group * key_heads, key_heads);
                });
            }
        }
        let [dim, values] = self.heads.dims();
        push(&|case| case.heads = case.heads.with_dims([dim; 2]));
        let smaller_sizes = |size: usize| [8.max(size / 2 / 8 * 8), 8.max(size - 8)];
        let differ = self.heads.values_differ();
        for size in smaller_sizes(dim) {
            let both = [size, if differ { values } else { size }];
            push(&|case| case.heads = case.heads.with_dims(both));
        }
        for size in smaller_sizes(values).into_iter().filter(|_| differ) {
            push(&|case| case.heads = case.heads.with_dims([dim, size]));
        }
        // Where nothing tells sequences of equal lengths apart, it matters only how many are left.
        let alike =
            matches!(self.lengths, Lengths::Dense { .. }) && !matches!(self.used, Used::Each(_));
        for kept in fewer(self.batch(), alike) {
            push(&|case| case.keep(&kept));
        }
        for lengths in self.lengths.shrink() {
            push(&|case| case.set_lengths(lengths.clone()));
        }
        if let Used::Each(used) = &self.used {
            for (index, &(query, key)) in used.iter().enumerate() {
                for shorter in shorter(query, key) {
                    let mut used = used.clone();
                    used[index] = shorter;
                    push(&|case| case.used = Used::Each(used.clone()));
                }
            }
        }
        smaller
    }

    /// Leaves out all sequences but these.
    fn keep(&mut self, kept: &[usize]) {
        let of = |all: &[(usize, usize)]| -> Vec<(usize, usize)> {
            kept.iter().map(|&index| all[index]).collect()
        };
        if let Used::Each(used) = &self.used {
            self.used = Used::Each(of(used));
        }
        let lengths = match (&self.lengths, kept) {
            (Lengths::Packed(lengths), &[one]) => {
                let (query, key) = lengths[one];
                Lengths::Dense {
                    batch: 1,
                    query,
                    key,
                }
            }
            (Lengths::Packed(lengths), _) => Lengths::Packed(of(lengths)),
            (&Lengths::Dense { query, key, .. }, _) => Lengths::Dense {
                batch: kept.len(),
                query,
                key,
            },
        };
        self.set_lengths(lengths);
    }

    /// Sets other lengths of as many sequences, and limits the used rows to them.
    fn set_lengths(&mut self, lengths: Lengths) {
        if let Used::Each(used) = &mut self.used {
            let each = lengths.each();
            let most = each.iter().zip(used.iter());
            *used = most.map(|(a, b)| (a.0.min(b.0), a.1.min(b.1))).collect();
        }
        self.lengths = lengths;
    }
}

impl Lengths {
    /// Shorter ones of as many sequences.
    fn shrink(&self) -> Vec<Lengths> {
        match self {
            &Lengths::Dense { batch, query, key } => shorter(query, key)
                .map(|(query, key)| Lengths::Dense { batch, query, key })
                .collect(),
            Lengths::Packed(lengths) => { lengths.iter().enumerate() }
                .flat_map(|(index, &(query, key))| {
                    shorter(query, key).map(move |shorter| {
                        let mut lengths = lengths.clone();
                        lengths[index] = shorter;
                        Lengths::Packed(lengths)
                    })
                })
                .collect(),
        }
    }
}

/// The sequences that are left in smaller batches, the smallest batches first: each alone, half of them, and all but one. Where sequences
/// are `alike`, only one batch of each size.
fn fewer(batch: usize, alike: bool) -> Vec<Vec<usize>> {
    let half = batch / 2;
    let alone = (0..batch).map(|one| vec![one]);
    if batch < 2 {
        return alone.collect();
    }
    if alike {
        return [1, half, batch - 1].map(|left| (0..left).collect()).into();
    }
    let halves = [0..half, half..batch].map(Iterator::collect);
    let without = (0..batch).map(|one| (0..batch).filter(|other| *other != one).collect());
    alone.chain(halves).chain(without).collect()
}

/// Shorter lengths of one sequence.
fn shorter(query: usize, key: usize) -> impl Iterator<Item = (usize, usize)> {
    let shorter = |length: usize| [length / 2, length.saturating_sub(1)];
    let queries = shorter(query).map(|query| (query, key));
    let keys = shorter(key).map(|key| (query, key));
    queries.into_iter().chain(keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quickcheck::quickcheck;
    use warptile::Mask;
    use warptile::spec::Heads;

    quickcheck! {
        fn random_cases_are_valid_and_so_is_what_they_shrink_to(seed: u64) -> bool {
            let case = Case::random(seed, 600);
            let valid = |case: &Case| {
                let lengths_are_somewhere = !case.device_lengths || case.has_lists();
                lengths_are_somewhere && case.try_call().is_ok() && case.call_on_gpu().is_ok()
            };
            valid(&case) && valid(&case.differentiable()) && case.shrink().iter().all(valid)
        }
    }

    /// The case that is left of one if `fails` is a bug.
    fn smallest(text: &str, fails: impl Fn(&Case) -> bool) -> String {
        let mut case: Case = text.parse().unwrap();
        assert!(fails(&case), "{text}");
        while let Some(smaller) = case.shrink().into_iter().find(&fails) {
            case = smaller;
        }
        case.to_string()
    }

    #[test]
    fn batches_and_heads_shrink_to_as_few_as_fail() {
        let text = "b7 q3 k5 h12/4 d8 f32 seed=1";
        let of_two = |case: &Case| case.batch() >= 2;
        assert_eq!(smallest(text, of_two), "b2 q0 k0 h1 d8 f32 seed=1");
        let of_heads = |query, key_value| {
            move |case: &Case| case.heads.query >= query && case.heads.key_value >= key_value
        };
        for (query, key_value, left) in [
            (1, 1, "h1"),
            (2, 1, "h2"),
            (2, 2, "h2"),
            (3, 2, "h3"),
            (5, 3, "h5"),
        ] {
            let left = format!("b1 q0 k0 {left} d8 f32 seed=1");
            assert_eq!(smallest(text, of_heads(query, key_value)), left);
        }
        let shared = |case: &Case| case.heads.group_size() > 1 && case.heads.key_value > 1;
        assert_eq!(smallest(text, shared), "b1 q0 k0 h4/2 d8 f32 seed=1");
    }

    #[test]
    fn a_sequence_that_is_left_keeps_its_used_lengths() {
        let third = |case: &Case| case.used_lengths().contains(&(2, 1));
        for text in [
            "b3 q4 k4 h1 d8 f32 used=0x4,3x3,2x1 seed=1",
            "packed=4x4,4x4,4x4 h1 d8 f32 used=0x4,3x3,2x1 seed=1",
        ] {
            assert_eq!(smallest(text, third), "b1 q2 k1 h1 d8 f32 seed=1");
        }
        // Two of three, and not the first two.
        let both = |case: &Case| {
            let used = case.used_lengths();
            used.contains(&(2, 1)) && used.contains(&(0, 4))
        };
        let dense = "b3 q4 k4 h1 d8 f32 used=0x4,3x3,2x1 seed=1";
        let left = smallest(dense, both);
        assert!(
            left.starts_with("b2 ") && left.ends_with("used=0x4,2x1 seed=1"),
            "{left}"
        );
    }

    #[test]
    fn shrinking_ends_at_the_smallest_case_that_fails() {
        // A "bug" at more than 100 used keys under a causal mask.
        let fails =
            |case: &Case| case.scoring.mask == Mask::causal() && case.call().key_len() > 100;
        for start in (0..400).map(|seed| Case::random(seed, 500)).filter(fails) {
            let mut case = start;
            while let Some(smaller) = case.shrink().into_iter().find(fails) {
                case = smaller;
            }
            let expected = Case {
                element: case.element,
                scoring: Scoring::new().mask(Mask::causal()),
                seed: case.seed,
                ..Case::new(0, 101, Heads::new(1, 8))
            };
            assert_eq!(case, expected);
        }
    }
}
