//! Problems without data: how they are drawn and made smaller.

use warptile::{AlibiShape, Align, ElementType, Layout, MAX_LEN, Mask, Problem};

use crate::data::Random;
use crate::error::{Result, limited};

/// How the tensors of a [`Case`] are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LayoutKind {
    /// `[batch, length, heads, head size]`.
    Bshd,
    /// `[batch, heads, length, head size]`.
    Bhsd,
    /// BSHD with unused elements after every head, row and batch entry.
    Gaps,
}

/// Sequence lengths of a [`Case`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lengths {
    /// All sequences have the same lengths.
    Dense {
        /// Sequences.
        batch: usize,
        /// Queries of each.
        query: usize,
        /// Keys of each.
        key: usize,
    },
    /// Queries and keys of each sequence, packed one after the other, with unused rows behind the last.
    Packed(Vec<(usize, usize)>),
}

/// A problem without data: prints on a line and parses back.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// Sequence lengths.
    pub lengths: Lengths,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Head size.
    pub head_dim: usize,
    /// Element type.
    pub element: ElementType,
    /// Mask.
    pub mask: Mask,
    /// Factor of `q.k`; `None` for the default.
    pub scale: Option<f32>,
    /// Softcap.
    pub softcap: Option<f32>,
    /// ALiBi slopes.
    pub alibi: Option<AlibiShape>,
    /// How the tensors are stored.
    pub layout: LayoutKind,
    /// Whether tensors start, and with [`LayoutKind::Gaps`] also step, at odd multiples of an element: what a kernel must not
    /// touch with 16-byte copies.
    pub unaligned: bool,
    /// What the data follows from.
    pub seed: u64,
}

/// Unused rows behind the last packed sequence.
const PACKED_PADDING: usize = 3;

/// Most elements of a tensor, gaps included, and most heads of all sequences together.
const MAX_ELEMENTS: u128 = 1 << 31;

/// Multiplications a random case may ask of the reference: a fraction of a second on one core.
const WORK: usize = 40_000_000;

impl Case {
    /// A plain case: one sequence, one head, full attention in `f32`, BSHD.
    #[must_use]
    pub fn new(query: usize, key: usize, head_dim: usize) -> Self {
        Case {
            lengths: Lengths::Dense {
                batch: 1,
                query,
                key,
            },
            heads: 1,
            kv_heads: 1,
            head_dim,
            element: ElementType::F32,
            mask: Mask::None,
            scale: None,
            softcap: None,
            alibi: None,
            layout: LayoutKind::Bshd,
            unaligned: false,
            seed: 0,
        }
    }

    /// The case that follows from `seed`; no length exceeds `max_len` (at least 1).
    #[must_use]
    pub fn random(seed: u64, max_len: usize) -> Self {
        let mut random = Random::new(seed);
        let (heads, kv_heads) =
            random.pick(&[(1, 1), (2, 2), (6, 6), (6, 2), (8, 1), (4, 2), (3, 1)]);
        let head_dim = match random.below(3) {
            0 => random.pick(&[32, 64, 128]),
            1 => random.pick(&[8, 40, 96, 104, 160, 192, 224, 256]),
            _ => 8 * (1 + random.below(32)),
        };
        // Sequences share the work that a case may cost.
        let batch = 1 + random.below(4);
        let budget = WORK / (batch * heads * head_dim);
        let max_len = max_len.clamp(1, MAX_LEN);
        let lengths = if random.below(4) == 0 {
            Lengths::Packed(
                (0..batch)
                    .map(|_| (random.length(max_len), random.length(max_len)))
                    .map(|lengths| within(lengths, budget))
                    .collect(),
            )
        } else {
            let (query, key) = within((random.length(max_len), random.length(max_len)), budget);
            Lengths::Dense { batch, query, key }
        };
        let side = |random: &mut Random| match random.below(3) {
            0 => None,
            1 => Some(random.below(5) as u32),
            _ => Some(random.below(max_len) as u32),
        };
        let mask = match random.below(5) {
            0 => Mask::None,
            1 | 2 => Mask::causal(),
            3 => Mask::Causal {
                align: Align::TopLeft,
            },
            _ => Mask::Window {
                left: side(&mut random),
                right: side(&mut random),
            },
        };
        Case {
            lengths,
            heads,
            kv_heads,
            head_dim,
            element: random.pick(&[ElementType::F16, ElementType::Bf16, ElementType::F32]),
            mask,
            scale: match random.below(8) {
                0 => Some(0.0),
                1 => Some(-0.25),
                2 => Some(0.7),
                _ => None,
            },
            softcap: (random.below(4) == 0).then(|| random.pick(&[1.0, 15.0, 50.0])),
            alibi: match random.below(6) {
                0 => Some(AlibiShape::PerHead),
                1 => Some(AlibiShape::PerBatchHead),
                _ => None,
            },
            layout: random.pick(&[LayoutKind::Bshd, LayoutKind::Bhsd, LayoutKind::Gaps]),
            unaligned: random.below(4) == 0,
            seed,
        }
    }

    /// Sequences.
    #[must_use]
    pub fn batch(&self) -> usize {
        match &self.lengths {
            Lengths::Dense { batch, .. } => *batch,
            Lengths::Packed(lengths) => lengths.len(),
        }
    }

    /// Row offsets of queries and keys, if packed.
    #[must_use]
    pub fn cu_seqlens(&self) -> Option<(Vec<i32>, Vec<i32>)> {
        let Lengths::Packed(lengths) = &self.lengths else {
            return None;
        };
        let offsets = |length: fn(&(usize, usize)) -> usize| {
            let mut end = 0_usize;
            let ends = lengths.iter().map(|lengths| {
                end = end.saturating_add(length(lengths));
                // Beyond the range of an offset there is no problem, only an error.
                i32::try_from(end).unwrap_or(i32::MAX)
            });
            std::iter::once(0).chain(ends).collect()
        };
        Some((offsets(|lengths| lengths.0), offsets(|lengths| lengths.1)))
    }

    /// Layouts of q and of k and v. The output's is that of q.
    #[must_use]
    pub fn layouts(&self) -> (Layout, Layout) {
        let (batch, query, key) = match &self.lengths {
            Lengths::Dense { batch, query, key } => (*batch, *query, *key),
            Lengths::Packed(lengths) => {
                let rows = |length: fn(&(usize, usize)) -> usize| {
                    let lengths = lengths.iter().map(length);
                    lengths.fold(PACKED_PADDING, usize::saturating_add)
                };
                (1, rows(|lengths| lengths.0), rows(|lengths| lengths.1))
            }
        };
        (
            self.tensor_layout([batch, query, self.heads, self.head_dim]),
            self.tensor_layout([batch, key, self.kv_heads, self.head_dim]),
        )
    }

    fn tensor_layout(&self, shape: [usize; 4]) -> Layout {
        match self.layout {
            LayoutKind::Bshd => Layout::bshd(shape),
            LayoutKind::Bhsd => Layout::bhsd(shape),
            LayoutKind::Gaps => {
                // 8 elements keep 16-byte alignment in every type, 3 break it.
                let gap = if self.unaligned { 3 } else { 8 };
                let step =
                    |extent: usize, inner: usize| extent.saturating_mul(inner).saturating_add(gap);
                let head = step(shape[3], 1);
                let row = step(shape[2], head);
                Layout::new(shape, [step(shape[1], row), row, head, 1])
            }
        }
    }

    /// The problem this case describes.
    ///
    /// # Panics
    /// If the fields were set to something that [`try_problem`](Self::try_problem) refuses, such as a head size of 7. Cases
    /// that are drawn, shrunk or parsed never are.
    #[must_use]
    pub fn problem(&self) -> Problem {
        match self.try_problem() {
            Ok(problem) => problem,
            Err(error) => panic!("case `{self}`: {error}"),
        }
    }

    /// The problem this case describes, for a case whose fields were set by hand.
    ///
    /// # Errors
    /// When no [`Problem`] is like this, or its data would not fit into the memory of an ordinary machine.
    pub fn try_problem(&self) -> Result<Problem> {
        let (q, kv) = self.layouts();
        for layout in [&q, &kv] {
            let elements = layout.required_len().unwrap_or(usize::MAX);
            limited("elements in a tensor", elements as u128, MAX_ELEMENTS)?;
        }
        // Slopes, rows of an empty tensor: whatever a problem without elements still has.
        let rows = self.batch() as u128 * self.heads.max(1) as u128;
        limited("heads in all sequences", rows, MAX_ELEMENTS)?;
        let cu_seqlens = self.cu_seqlens();
        let mut builder = Problem::builder(&q, &kv, &kv, self.element)
            .mask(self.mask)
            .out(q);
        if let Some((q, k)) = &cu_seqlens {
            builder = builder.packed(q, k);
        }
        if let Some(scale) = self.scale {
            builder = builder.scale(scale);
        }
        if let Some(softcap) = self.softcap {
            builder = builder.softcap(softcap);
        }
        if let Some(alibi) = self.alibi {
            builder = builder.alibi(alibi);
        }
        if self.unaligned {
            builder = builder.unaligned_addresses();
        }
        Ok(builder.build()?)
    }

    /// Smaller and plainer cases, the boldest first. Repeatedly taking the first that still fails ends at a case of which
    /// nothing can be taken away.
    #[must_use]
    pub fn shrink(&self) -> Vec<Case> {
        let mut smaller: Vec<Case> = Vec::new();
        let mut push = |edit: &dyn Fn(&mut Case)| {
            let mut case = self.clone();
            edit(&mut case);
            if case != *self {
                smaller.push(case);
            }
        };
        push(&|case| case.mask = Mask::None);
        push(&|case| case.softcap = None);
        push(&|case| case.alibi = None);
        push(&|case| case.scale = None);
        push(&|case| case.unaligned = false);
        push(&|case| case.layout = LayoutKind::Bshd);
        push(&|case| (case.heads, case.kv_heads) = (1, 1));
        push(&|case| case.kv_heads = case.heads);
        push(&|case| case.head_dim = 8.max(case.head_dim / 2 / 8 * 8));
        push(&|case| case.head_dim = 8.max(case.head_dim - 8));
        for lengths in self.lengths.shrink() {
            push(&|case| case.lengths = lengths.clone());
        }
        smaller
    }
}

impl Lengths {
    fn shrink(&self) -> Vec<Lengths> {
        let shorter = |length: usize| [length / 2, length.saturating_sub(1)];
        match self {
            Lengths::Dense { batch, query, key } => {
                let (batch, query, key) = (*batch, *query, *key);
                let dense = |batch, query, key| Lengths::Dense { batch, query, key };
                let mut all = vec![dense(batch.min(1), query, key)];
                all.extend(shorter(query).map(|query| dense(batch, query, key)));
                all.extend(shorter(key).map(|key| dense(batch, query, key)));
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
                    let queries = shorter(query).map(|query| (query, key));
                    let keys = shorter(key).map(|key| (query, key));
                    all.extend(queries.into_iter().chain(keys).map(|shorter| {
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

/// Lengths cut down, the longer side first, until each of them and their product fit the budget.
fn within((query, key): (usize, usize), budget: usize) -> (usize, usize) {
    let (mut query, mut key) = (query.min(budget), key.min(budget));
    while query.saturating_mul(key) > budget {
        if query > key {
            query /= 2;
        } else {
            key /= 2;
        }
    }
    (query, key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quickcheck::quickcheck;

    quickcheck! {
        fn random_cases_are_valid_and_so_is_what_they_shrink_to(seed: u64) -> bool {
            let case = Case::random(seed, 600);
            let _ = case.problem();
            case.shrink().iter().all(|case| case.try_problem().is_ok())
        }
    }

    #[test]
    fn shrinking_ends_at_the_smallest_case_that_fails() {
        // A "bug" at more than 100 keys under a causal mask.
        let fails = |case: &Case| case.mask == Mask::causal() && case.problem().key_len() > 100;
        let mut case = (0..)
            .map(|seed| Case::random(seed, 500))
            .find(fails)
            .unwrap();
        while let Some(smaller) = case.shrink().into_iter().find(fails) {
            case = smaller;
        }
        let expected = Case {
            mask: Mask::causal(),
            element: case.element,
            seed: case.seed,
            ..Case::new(0, 101, 8)
        };
        assert_eq!(case, expected);
    }

    #[test]
    fn lengths_and_heads_of_any_size_are_an_error_or_a_problem() {
        let huge = [0, 1, 1 << 30, 1 << 32, usize::MAX];
        for layout in [LayoutKind::Bshd, LayoutKind::Bhsd, LayoutKind::Gaps] {
            for unaligned in [false, true] {
                for (a, b) in huge.iter().flat_map(|&a| huge.map(|b| (a, b))) {
                    for lengths in [
                        Lengths::Packed(vec![(a, b), (b, a), (1, 1)]),
                        Lengths::Dense {
                            batch: a,
                            query: b,
                            key: 1,
                        },
                        Lengths::Dense {
                            batch: 1,
                            query: a,
                            key: b,
                        },
                    ] {
                        for (heads, head_dim) in huge.iter().flat_map(|&h| [(h, 8), (1, h)]) {
                            let case = Case {
                                lengths: lengths.clone(),
                                layout,
                                unaligned,
                                heads,
                                kv_heads: heads,
                                ..Case::new(1, 1, head_dim)
                            };
                            let _ = case.try_problem();
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn any_length_may_be_asked_of_random_cases() {
        for max_len in [0, 1, usize::MAX] {
            for seed in 0..50 {
                let _ = Case::random(seed, max_len).problem();
            }
        }
    }

    #[test]
    fn every_feature_is_drawn() {
        let cases: Vec<Case> = (0..300).map(|seed| Case::random(seed, 300)).collect();
        let some = |property: fn(&Case) -> bool| assert!(cases.iter().any(property));
        some(|case| matches!(case.lengths, Lengths::Packed(_)));
        some(|case| matches!(case.mask, Mask::Window { left: Some(_), .. }));
        some(|case| case.alibi == Some(AlibiShape::PerBatchHead));
        some(|case| case.softcap.is_some() && case.alibi.is_some());
        some(|case| case.layout == LayoutKind::Gaps && case.unaligned);
        some(|case| case.head_dim > 128 && case.heads > case.kv_heads);
        some(|case| case.problem().key_len() == 0);
        some(|case| case.problem().query_len() == 0);
    }
}
