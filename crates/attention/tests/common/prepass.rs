//! Random pre-passes of the backward pass, and what their results must be.

use warptile::backward::Prepass;
use warptile::spec::{Numbers, Operand};
use warptile::{Element, Layout};

use crate::draw::{Memory, Random};

/// An output, its gradient and its lse, and the lengths of the sequences.
pub(crate) struct PrepassCase<T> {
    pub(crate) out: Memory<T>,
    pub(crate) d_out: Memory<T>,
    pub(crate) lse: Vec<f32>,
    pub(crate) d_lse: Option<Vec<f32>>,
    /// First row and number of rows of each sequence.
    sequences: Vec<(usize, usize)>,
    pub(crate) offsets: Option<Vec<i32>>,
    pub(crate) lengths: Option<Vec<i32>>,
}

/// Where a pre-pass is computed: `delta` and the scaled lse, each with some numbers more than the pre-pass has.
pub(crate) trait Prepasses<T> {
    fn prepass(&mut self, case: &PrepassCase<T>, results: &mut [Vec<f32>; 2]);
}

/// Numbers after the results, which must stay unchanged.
const BEHIND: usize = 7;
const MARK: f32 = -77.0;

impl<T: Element> PrepassCase<T> {
    pub(crate) fn random(seed: u64) -> Self {
        let mut random = Random(seed);
        let head_dim = random.pick(&[8, 16, 24, 40, 64, 64, 72, 96, 128, 128, 136, 192, 200, 256]);
        let heads = random.within(1, 4);
        let batch = random.within(0, 4);
        let longest = random.pick(&[1, 5, 64, 70, 200]);
        let is_packed = random.once_in(2);
        let mut lengths: Vec<usize> = (0..batch).map(|_| random.within(0, longest)).collect();
        let (mut offsets, mut row_count) = (None, random.within(0, longest));
        let mut firsts = vec![0; batch];
        if is_packed {
            let mut end = 0;
            for (first, len) in firsts.iter_mut().zip(&lengths) {
                *first = end;
                end += len;
            }
            row_count = end + random.pick(&[0, 3]);
            let ends = firsts.iter().copied().chain([end]);
            offsets = Some(ends.map(|end| end as i32).collect::<Vec<_>>());
        } else {
            lengths.fill(row_count);
        }
        let used = random.once_in(3).then(|| {
            for len in &mut lengths {
                *len = random.within(0, *len);
            }
            lengths.iter().map(|&len| len as i32).collect::<Vec<_>>()
        });
        let sequences: Vec<_> = firsts.into_iter().zip(lengths).collect();
        let entries = if is_packed { 1 } else { batch };
        let shape = [entries, row_count, heads, head_dim];
        let exists = |entry: usize, row: usize| match is_packed {
            true => { sequences.iter() }.any(|&(first, len)| (first..first + len).contains(&row)),
            false => row < sequences[entry].1,
        };
        // Rows past the end of a sequence hold anything.
        let mut tensor = || {
            let mut numbers = Random(random.next());
            let layout = random.layout(shape);
            Memory::<T>::new(
                &mut random,
                layout,
                f32::NAN,
                |[entry, row, ..]| match exists(entry, row) {
                    true => numbers.unit(),
                    false => f32::NAN,
                },
            )
        };
        let (out, d_out) = (tensor(), tensor());
        let lse = (0..entries * heads * row_count)
            .map(
                |index| match exists(index / (heads * row_count), index % row_count) {
                    true if random.once_in(6) => {
                        random.pick(&[f32::NEG_INFINITY, f32::MIN, -1.7e38, -1e9])
                    }
                    true => random.unit() * 30.0,
                    false => f32::NAN,
                },
            )
            .collect();
        let d_lse = { random.once_in(2) }.then(|| {
            let mut numbers = Random(random.next());
            (0..entries * heads * row_count)
                .map(|_| numbers.unit())
                .collect()
        });
        PrepassCase {
            out,
            d_out,
            lse,
            d_lse,
            sequences,
            offsets,
            lengths: used,
        }
    }

    /// The description with the lengths on the host or on the device.
    pub(crate) fn described(&self, on_device: bool) -> Prepass {
        let (out, d_out): (&Layout, &Layout) = (&self.out.layout, &self.d_out.layout);
        let mut builder = Prepass::builder(T::TYPE, out, d_out).d_lse(self.d_lse.is_some());
        for (operand, list) in self.lists() {
            let numbers = match on_device {
                true => Numbers::Device(list.len()),
                false => Numbers::Host(list),
            };
            builder = builder.numbers(operand, numbers);
        }
        builder.build().unwrap()
    }

    pub(crate) fn lists(&self) -> impl Iterator<Item = (Operand, &[i32])> {
        let lists = [
            (Operand::QueryOffsets, &self.offsets),
            (Operand::QueryLengths, &self.lengths),
        ];
        { lists.into_iter() }.filter_map(|(operand, list)| Some((operand, list.as_deref()?)))
    }

    /// Computes and holds the results against float64; and once more, which must give the same bits.
    pub(crate) fn verify(&self, place: &mut impl Prepasses<T>) -> Result<(), String> {
        let prepass = self.described(false);
        let len = prepass.len();
        let [first, again] = [(), ()].map(|()| {
            let mut results = [(), ()].map(|()| {
                let mut result = vec![f32::NAN; len + BEHIND];
                result[len..].fill(MARK);
                result
            });
            place.prepass(self, &mut results);
            results
        });
        for (first, again) in first.iter().zip(&again) {
            let bits = |list: &[f32]| list.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            if bits(first) != bits(again) {
                return Err("a second pre-pass gave other bits".to_owned());
            }
            if first[len..] != [MARK; BEHIND] {
                return Err("wrote behind the results".to_owned());
            }
        }
        self.check(&prepass, &first[0][..len], &first[1][..len])
    }

    fn check(&self, prepass: &Prepass, delta: &[f32], scaled: &[f32]) -> Result<(), String> {
        let [_, row_count, heads, head_dim] = self.out.layout.shape;
        let mut is_padding = vec![true; delta.len()];
        for (batch, &(first, len)) in self.sequences.iter().enumerate() {
            let entry = if self.offsets.is_some() { 0 } else { batch };
            for head in 0..heads {
                let start = prepass.start(batch, head);
                if !start.is_multiple_of(Prepass::TILE) {
                    return Err(format!("sequence {batch} begins at {start}"));
                }
                for row in 0..len {
                    let at = start + row;
                    let failed = |what: String| Err(format!("{what} at {:?}", [batch, row, head]));
                    if !std::mem::take(&mut is_padding[at]) {
                        return failed("two rows share a number".to_owned());
                    }
                    let row_of = |memory: &Memory<T>| {
                        let row = memory.row(entry, first + row, head);
                        row.iter().map(|x| x.to_f64()).collect::<Vec<_>>()
                    };
                    let products = { row_of(&self.out).into_iter() }
                        .zip(row_of(&self.d_out))
                        .map(|(x, y)| x * y);
                    let lse = self.lse[(entry * heads + head) * row_count + first + row];
                    let of_lse = match &self.d_lse {
                        Some(d_lse) if lse.abs() <= Prepass::LARGEST_LSE => {
                            f64::from(d_lse[(entry * heads + head) * row_count + first + row])
                        }
                        _ => 0.0,
                    };
                    let size = products.clone().map(f64::abs).sum::<f64>() + of_lse.abs();
                    let expected = products.sum::<f64>() - of_lse;
                    // Each of the additions rounds a part of the sum.
                    let allowed = head_dim as f64 * 6e-8 * size;
                    let found = f64::from(delta[at]);
                    if (found - expected).abs() > allowed || found.is_nan() {
                        return failed(format!("delta is {found}, not {expected}"));
                    }
                    let found = f64::from(scaled[at]);
                    let expected = match lse.abs() > Prepass::LARGEST_LSE {
                        true => f64::INFINITY,
                        false => f64::from(lse) * std::f64::consts::LOG2_E,
                    };
                    // Only infinity itself is near infinity.
                    let is_near =
                        expected.is_finite() && (found - expected).abs() <= 1.8e-7 * expected.abs();
                    if !(found == expected || is_near) {
                        return failed(format!("the scaled lse is {found}, not {expected}"));
                    }
                }
            }
        }
        for (at, _) in is_padding
            .iter()
            .enumerate()
            .filter(|(_, padding)| **padding)
        {
            if delta[at].to_bits() != 0 || scaled[at] != f32::INFINITY {
                return Err(format!("padding at {at} is {}, {}", delta[at], scaled[at]));
            }
        }
        Ok(())
    }
}

/// Verifies a case of a seed in each element type.
pub(crate) fn verify_all<P>(seed: u64, place: &mut P) -> quickcheck::TestResult
where
    P: Prepasses<half::f16> + Prepasses<half::bf16> + Prepasses<f32>,
{
    let all = PrepassCase::<half::f16>::random(seed)
        .verify(place)
        .and(PrepassCase::<half::bf16>::random(seed).verify(place))
        .and(PrepassCase::<f32>::random(seed).verify(place));
    match all {
        Ok(()) => quickcheck::TestResult::passed(),
        Err(failure) => quickcheck::TestResult::error(format!("seed {seed}: {failure}")),
    }
}
