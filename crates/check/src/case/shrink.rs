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

    /// Sets other lengths, and limits the used rows to them.
    fn set_lengths(&mut self, lengths: Lengths) {
        if let Used::Each(used) = &mut self.used {
            let each = lengths.each();
            let most = each.iter().zip(used.iter());
            *used = most.map(|(a, b)| (a.0.min(b.0), a.1.min(b.1))).collect();
        }
        let packed = matches!(lengths, Lengths::Packed(_));
        if !packed && self.used == Used::All && self.pages.is_none() {
            self.device_lengths = false;
        }
        self.lengths = lengths;
    }
}

impl Lengths {
    fn shrink(&self) -> Vec<Lengths> {
        match self {
            Lengths::Dense { batch, query, key } => {
                let dense = |batch, (query, key)| Lengths::Dense { batch, query, key };
                let mut all = vec![dense((*batch).min(1), (*query, *key))];
                all.extend(shorter(*query, *key).map(|lengths| dense(*batch, lengths)));
                all
            }
            Lengths::Packed(lengths) => {
                let mut all: Vec<Lengths> = lengths
                    .iter()
                    .map(|&(query, key)| Lengths::Dense {
                        batch: 1,
                        query,
                        key,
                    })
                    .collect();
                for (index, &(query, key)) in lengths.iter().enumerate() {
                    let mut without = lengths.clone();
                    without.remove(index);
                    all.push(Lengths::Packed(without));
                    all.extend(shorter(query, key).map(|shorter| {
                        let mut lengths = lengths.clone();
                        lengths[index] = shorter;
                        Lengths::Packed(lengths)
                    }));
                }
                all
            }
        }
    }
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
            let valid = |case: &Case| case.try_call().is_ok() && case.call_on_gpu().is_ok();
            valid(&case) && case.shrink().iter().all(valid)
        }
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
