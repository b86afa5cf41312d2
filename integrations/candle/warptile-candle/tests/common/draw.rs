//! Problems drawn from a seed.

use candle_core::{DType, Device, Result, Tensor};
use quickcheck::{Arbitrary, Gen};

use super::reference::{self, Options};

/// A problem: everything but how its tensors are passed.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    pub(crate) dtype: DType,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_size: usize,
    /// Numbers of queries and keys of each sequence.
    pub(crate) lengths: Vec<(usize, usize)>,
    pub(crate) options: Options,
    pub(crate) seed: u64,
    /// True if the tensors are parts of larger ones that have heads before rows.
    pub(crate) strided: bool,
}

/// One sequence: q, k, v, each `(length, heads, head size)`.
pub(crate) type Sequence = [Tensor; 3];

impl Arbitrary for Problem {
    fn arbitrary(g: &mut Gen) -> Self {
        Problem::drawn(u64::arbitrary(g))
    }
}

impl Problem {
    /// The problem of a seed.
    pub(crate) fn drawn(seed: u64) -> Self {
        let mut random = Random(seed);
        let mut below = |n: u64| (random.next() % n) as usize;
        let kv_heads = 1 + below(3);
        let heads = kv_heads * (1 + below(4));
        let (left, right) = match below(5) {
            0 => (None, None),
            1 | 2 => (None, Some(0)),
            3 => (Some(below(20)), Some(below(20))),
            _ => (Some(below(20)), None),
        };
        let slopes =
            (below(3) == 0).then(|| (0..heads).map(|_| below(100) as f32 / 50.0).collect());
        Problem {
            dtype: [DType::F32, DType::F16, DType::BF16][below(3)],
            heads,
            kv_heads,
            head_size: 8 * (1 + below(12)),
            lengths: (0..=below(3)).map(|_| (below(40), below(70))).collect(),
            options: Options {
                scale: [0.125, 0.3, -0.2][below(3)],
                left,
                right,
                softcap: [0.0, 0.0, 1.5, 30.0][below(4)],
                slopes,
                sinks: None,
                dropout: None,
            },
            seed,
            strided: below(2) == 0,
        }
    }

    /// The tensors of each sequence, on the CPU.
    pub(crate) fn sequences(&self) -> Result<Vec<Sequence>> {
        let mut random = Random(!self.seed);
        let mut tensor = |rows: usize, heads: usize| {
            let values: Vec<f32> = (0..rows * heads * self.head_size)
                .map(|_| random.next() as i16 as f32 / 16384.0)
                .collect();
            Tensor::from_vec(values, (rows, heads, self.head_size), &Device::Cpu)?
                .to_dtype(self.dtype)
        };
        let sequence = |&(queries, keys): &(usize, usize)| {
            Ok([
                tensor(queries, self.heads)?,
                tensor(keys, self.kv_heads)?,
                tensor(keys, self.kv_heads)?,
            ])
        };
        self.lengths.iter().map(sequence).collect()
    }

    /// What every sequence gives: the outputs one after the other, `(rows, heads, head size)`, and the lses, `(heads, rows)`.
    /// `longest` is the largest number that a window may have.
    pub(crate) fn expected(
        &self,
        sequences: &[Sequence],
        longest: usize,
    ) -> Result<(Tensor, Tensor)> {
        let limit = |side: Option<usize>| side.filter(|&keys| keys <= longest);
        let options = Options {
            left: limit(self.options.left),
            right: limit(self.options.right),
            ..self.options.clone()
        };
        let mut outs = Vec::new();
        let mut lses = Vec::new();
        for [q, k, v] in sequences {
            let (out, lse) = reference::attention(q, k, v, &options)?;
            outs.push(out);
            lses.push(lse);
        }
        Ok((Tensor::cat(&outs, 0)?, Tensor::cat(&lses, 1)?))
    }

    /// The same tensor, `(.., rows, heads, head size)`, as a part of a larger one that has heads before rows, if the problem is
    /// strided; the strides stay multiples of 8.
    pub(crate) fn placed(&self, tensor: &Tensor) -> Result<Tensor> {
        if !self.strided {
            return Ok(tensor.clone());
        }
        let rank = tensor.rank();
        let (rows, heads, size) = (rank - 3, rank - 2, rank - 1);
        let larger = tensor.transpose(rows, heads)?.pad_with_zeros(heads, 2, 1)?;
        let larger = larger.pad_with_zeros(size, 8, 0)?.contiguous()?;
        larger
            .narrow(heads, 2, tensor.dim(rows)?)?
            .narrow(size, 8, tensor.dim(size)?)?
            .transpose(rows, heads)
    }

    /// The slopes of ALiBi.
    pub(crate) fn slopes(&self, device: &Device) -> Result<Option<Tensor>> {
        let slopes = self.options.slopes.as_deref();
        slopes.map(|slopes| Tensor::new(slopes, device)).transpose()
    }
}

/// Splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Where each sequence begins, and where the last one ends.
pub(crate) fn offsets(lengths: impl Iterator<Item = usize>) -> Vec<u32> {
    let mut offsets = vec![0];
    for length in lengths {
        offsets.push(offsets[offsets.len() - 1] + length as u32);
    }
    offsets
}
