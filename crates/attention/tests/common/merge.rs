//! Random merges, and what their results must be.

use warptile::spec::{LseBase, Merge};
use warptile::{Element, Layout};

use crate::draw::{Memory, Random};

/// Results to be merged, and memory for what comes of them.
pub(crate) struct MergeCase<T> {
    pub(crate) merge: Merge,
    pub(crate) parts: Vec<(Memory<T>, Memory<f32>)>,
    pub(crate) out: Memory<T>,
    pub(crate) lse: Option<Memory<f32>>,
}

/// Where a merge is computed: reads the parts and writes output and lse.
pub(crate) trait Merges<T> {
    fn merge(&mut self, case: &MergeCase<T>, out: &mut Memory<T>, lse: Option<&mut Memory<f32>>);
}

impl<T: Element> MergeCase<T> {
    pub(crate) fn random(seed: u64) -> Self {
        let mut random = Random(seed);
        let shape = [
            random.within(0, 3),
            random.within(1, 5),
            random.within(1, 5),
            random.pick(&[8, 64, 128, 1, 7, 24, 40]),
        ];
        let count = random.pick(&[1, 2, 2, 3, 5, 32]);
        let lse_shape = [shape[0], shape[1], shape[2], 1];
        let base = random.pick(&[LseBase::Natural, LseBase::Two]);
        let far = random.pick(&[1.0, 10.0, 1e4]);
        let layouts: Vec<(Layout, Layout)> = (0..count)
            .map(|_| (random.layout(shape), random.layout(lse_shape)))
            .collect();
        let parts = layouts
            .iter()
            .map(|&(out, lse)| {
                let mut numbers = Random(random.next());
                let lse: Memory<f32> = Memory::new(&mut random, lse, f32::NAN, |_| {
                    match numbers.within(0, 15) {
                        0..4 => f32::NEG_INFINITY,
                        4 => f32::INFINITY,
                        5 if numbers.once_in(8) => f32::NAN,
                        _ => numbers.unit() * far,
                    }
                });
                // Where nothing was seen, anything may stand.
                let out = Memory::new(
                    &mut random,
                    out,
                    f32::NAN,
                    |[entry, row, head, _]| match lse.row(entry, row, head)[0].is_infinite() {
                        true => numbers.pick(&[f32::NAN, f32::INFINITY, 1.0]),
                        false => numbers.unit(),
                    },
                );
                (out, lse)
            })
            .collect();
        let (outs, lses): (Vec<_>, Vec<_>) = layouts.into_iter().unzip();
        let (out, lse) = (random.layout(shape), random.layout(lse_shape));
        let want_lse = !random.once_in(4);
        let merge = Merge::builder(T::TYPE, &outs)
            .lse_layouts(&lses)
            .base(base)
            .out(out)
            .lse(lse)
            .want_lse(want_lse)
            .build()
            .unwrap();
        let out = Memory::new(&mut random, out, -77.0, |_| f32::NAN);
        let lse = want_lse.then(|| Memory::new(&mut random, lse, -77.0, |_| f32::NAN));
        MergeCase {
            merge,
            parts,
            out,
            lse,
        }
    }

    /// Merges and holds the result against float64; and once more, which must give the same bits.
    pub(crate) fn verify(&self, place: &mut impl Merges<T>) -> Result<(), String> {
        let (mut out, mut lse) = (self.out.clone(), self.lse.clone());
        place.merge(self, &mut out, lse.as_mut());
        self.check(&out, lse.as_ref())?;
        let (mut again, mut lse_again) = (self.out.clone(), self.lse.clone());
        place.merge(self, &mut again, lse_again.as_mut());
        let bits = |memory: &Memory<T>| bytemuck::cast_slice::<T, u8>(&memory.data).to_vec();
        match bits(&out) == bits(&again) {
            true => Ok(()),
            false => Err("a second merge gave other bits".to_owned()),
        }
    }

    fn check(&self, out: &Memory<T>, lse: Option<&Memory<f32>>) -> Result<(), String> {
        if !out.gaps_are_those_of(&self.out) {
            return Err("wrote between the rows of out".to_owned());
        }
        if let (Some(lse), Some(before)) = (lse, &self.lse)
            && !lse.gaps_are_those_of(before)
        {
            return Err("wrote between the rows of lse".to_owned());
        }
        let [batch, rows, heads, _] = self.merge.out().shape;
        for entry in 0..batch {
            for row in 0..rows {
                for head in 0..heads {
                    let lse = lse.map(|lse| lse.row(entry, row, head)[0]);
                    self.check_row([entry, row, head], out.row(entry, row, head), lse)
                        .map_err(|what| format!("{what} at {:?}", [entry, row, head]))?;
                }
            }
        }
        Ok(())
    }

    fn check_row(
        &self,
        [entry, row, head]: [usize; 3],
        out: &[T],
        lse: Option<f32>,
    ) -> Result<(), String> {
        let one = match self.merge.base() {
            LseBase::Natural => 1.0,
            LseBase::Two => std::f64::consts::LN_2,
        };
        let seen: Vec<(&[T], f64)> = self
            .parts
            .iter()
            .map(|(out, lse)| {
                let lse = lse.row(entry, row, head)[0];
                (out.row(entry, row, head), f64::from(lse))
            })
            .filter(|(_, lse)| !lse.is_infinite())
            .collect();
        if seen.is_empty() {
            let zeros = out.iter().all(|value| value.to_f32() == 0.0);
            return match zeros && lse.is_none_or(|lse| lse == f32::NEG_INFINITY) {
                true => Ok(()),
                false => Err(format!("nothing was seen, but {out:?}, {lse:?}")),
            };
        }
        if seen.iter().any(|(_, lse)| lse.is_nan()) {
            let nan = out.iter().all(|value| value.to_f32().is_nan());
            return match nan && lse.is_none_or(f32::is_nan) {
                true => Ok(()),
                false => Err(format!("a lse is NaN, but {out:?}, {lse:?}")),
            };
        }
        let greatest = seen
            .iter()
            .fold(f64::NEG_INFINITY, |m, &(_, lse)| m.max(lse));
        let weight = |lse: f64| ((lse - greatest) * one).exp();
        let sum: f64 = seen.iter().map(|&(_, lse)| weight(lse)).sum();
        // Rounding of the result, and of exponents up to 20 and sums in fp32.
        let rounding = match size_of::<T>() {
            4 => 6e-8,
            _ if T::TYPE == warptile::ElementType::F16 => 4.9e-4,
            _ => 3.92e-3,
        };
        for (column, found) in out.iter().enumerate() {
            let total: f64 = seen
                .iter()
                .map(|(out, lse)| weight(*lse) * out[column].to_f64())
                .sum();
            let (found, expected) = (found.to_f64(), total / sum);
            let allowed = rounding * expected.abs() + 4e-6;
            if !near(found, expected, allowed) {
                return Err(format!("column {column} is {found}, not {expected}"));
            }
        }
        let expected = greatest + sum.ln() / one;
        match lse {
            Some(lse) if !near(f64::from(lse), expected, 1e-6 + 1.2e-7 * expected.abs()) => {
                Err(format!("lse is {lse}, not {expected}"))
            }
            _ => Ok(()),
        }
    }
}

/// Tensors to be added, and memory for the sums.
pub(crate) struct SumCase<T> {
    pub(crate) merge: Merge,
    pub(crate) addends: Vec<Memory<f32>>,
    pub(crate) out: Memory<T>,
}

impl<T: Element> SumCase<T> {
    pub(crate) fn random(seed: u64) -> Self {
        let mut random = Random(seed);
        let shape = [
            random.within(0, 2),
            random.within(1, 5),
            random.within(1, 5),
            random.pick(&[8, 64, 128, 1, 7, 24, 40]),
        ];
        let count = random.pick(&[1, 2, 3, 5, 32]);
        let layouts: Vec<Layout> = (0..count).map(|_| random.layout(shape)).collect();
        let mut numbers = Random(random.next());
        let addends = { layouts.iter() }
            .map(|layout| Memory::new(&mut random, *layout, f32::NAN, |_| numbers.unit()))
            .collect();
        let out = random.layout(shape);
        let merge = Merge::builder(T::TYPE, &layouts).out(out).sums();
        SumCase {
            merge: merge.build().unwrap(),
            addends,
            out: Memory::new(&mut random, out, -77.0, |_| f32::NAN),
        }
    }

    /// The bits of additions in f32, in order, rounded once.
    pub(crate) fn verify(&self, sum: impl FnOnce(&Self, &mut Memory<T>)) -> Result<(), String> {
        let mut out = self.out.clone();
        sum(self, &mut out);
        let mut expected = self.out.clone();
        let [batch, rows, heads, head_dim] = out.layout.shape;
        for at in 0..batch * rows * heads {
            let (entry, row, head) = (at / heads / rows, at / heads % rows, at % heads);
            let start = out.offset + out.layout.offset(entry, row, head);
            for column in 0..head_dim {
                let addends = self.addends.iter();
                let sum = addends.fold(0.0, |sum, of| sum + of.row(entry, row, head)[column]);
                expected.data[start + column] = T::from_f32(sum);
            }
        }
        let bits = |memory: &Memory<T>| bytemuck::cast_slice::<T, u8>(&memory.data).to_vec();
        match bits(&out) == bits(&expected) {
            true => Ok(()),
            false => Err(format!("other sums, of {:?}", self.merge)),
        }
    }
}

/// Not for NaN.
fn near(found: f64, expected: f64, allowed: f64) -> bool {
    (found - expected).abs() <= allowed
}
