//! From candle's tensors to a call of warptile: what is the same on every device.

use candle_core::{DType, DeviceLocation, Layout, Result, Tensor};
use warptile::{AlibiShape, Call, CallBuilder, ElementType, Mask, Quantization, Scoring};

use crate::attention::{Attention, Keys, Packed, Queries};
use crate::quantized::{DTYPES, quantized};

/// The tensors of a call in warptile's words.
pub(crate) struct Described {
    element: ElementType,
    pub(crate) q: warptile::Layout,
    pub(crate) k: warptile::Layout,
    pub(crate) v: warptile::Layout,
    pub(crate) out: warptile::Layout,
    scoring: Scoring,
    quantized: Option<Quantization>,
    pub(crate) batch: usize,
}

impl Described {
    /// The call but for its lengths.
    pub(crate) fn builder<'a>(&self, want_lse: bool) -> CallBuilder<'a> {
        Call::builder(&self.q, &self.k, &self.v, self.element)
            .scoring(self.scoring)
            .quantized(self.quantized)
            .out(self.out)
            .want_lse(want_lse)
    }
}

impl Attention {
    /// Checks all that can be known without reading what is in the tensors.
    pub(crate) fn describe(
        &self,
        types: [DType; 3],
        layouts: [&Layout; 3],
        place: &DeviceLocation,
    ) -> Result<Described> {
        let (element, quantized) = self.check_types(types, place)?;
        let packed = |name, layout| self.caller.packed(name, layout);
        let dense = |name, layout| {
            self.caller
                .dense(name, layout, "(batch, length, heads, head size)")
        };
        let paged = |name, layout| {
            self.caller
                .dense(name, layout, "(pages, page rows, heads, head size)")
        };
        let q = match self.queries {
            Queries::Dense => dense("q", layouts[0]),
            Queries::Packed(_) => packed("q", layouts[0]),
        }?;
        let keys = |name, layout| match self.keys {
            Keys::Dense => dense(name, layout),
            Keys::Packed(_) => packed(name, layout),
            Keys::Paged { .. } => paged(name, layout),
        };
        let (k, v) = (keys("k", layouts[1])?, keys("v", layouts[2])?);
        for (name, tensor) in [("alibi_slopes", &self.alibi_slopes), ("sinks", &self.sinks)] {
            if let Some(tensor) = tensor {
                self.caller.check_place(name, tensor, "q", place)?;
                self.caller.check_type(name, tensor, &[DType::F32])?;
                self.caller
                    .check_shape(name, tensor, &[q.heads()], "one entry per query head")?;
            }
        }
        let batch = self.check_lengths(&q, place)?;
        let key_bound = match &self.keys {
            Keys::Dense => k.rows(),
            Keys::Packed(Packed { longest, .. }) | Keys::Paged { longest, .. } => *longest,
        };
        Ok(Described {
            element,
            q,
            k,
            v,
            out: warptile::Layout::bshd(q.shape).dense_with(v.head_dim()),
            scoring: self.scoring(key_bound)?,
            quantized,
            batch,
        })
    }

    /// The element type of the queries, and how keys and values are quantized.
    fn check_types(
        &self,
        [q, k, v]: [DType; 3],
        place: &DeviceLocation,
    ) -> Result<(ElementType, Option<Quantization>)> {
        let Some(scales) = &self.scales else {
            for (name, dtype) in [("k", k), ("v", v)] {
                if quantized(dtype).is_some() {
                    return Err(self.caller.broken(format_args!(
                        "{name} has dtype {}, which needs scales; use Attention::scales",
                        dtype.as_str()
                    )));
                }
            }
            let element = self.caller.element([("q", q), ("k", k), ("v", v)])?;
            return Ok((element, None));
        };
        let element = self.caller.element([("q", q); 3])?;
        let of_keys = quantized(k);
        for (name, dtype) in [("k", k), ("v", v)] {
            if of_keys.is_none() || quantized(dtype) != of_keys {
                let dtypes = DTYPES.map(|dtype| dtype.as_str()).join(" or ");
                return Err(self.caller.broken(format_args!(
                    "{name} has dtype {}, but must be {dtypes}, because scales are given",
                    dtype.as_str()
                )));
            }
        }
        let of = |element| scales.quantization(self.caller, element, "q", place);
        Ok((element, of_keys.map(of).transpose()?))
    }

    /// The mask and the other numbers, for keys of at most this length.
    fn scoring(&self, key_bound: usize) -> Result<Scoring> {
        // Beyond the longest key length there is nothing to hide, and candle's functions take such a number for no limit.
        let limit = |side: Option<usize>| side.filter(|&keys| keys <= key_bound);
        let [left, right] = self.window.map(limit);
        let mask = match (left, right) {
            (None, None) => Mask::none(),
            (None, Some(0)) => Mask::causal(),
            _ => {
                // A key length above u32's is refused by the call.
                let keys =
                    |side: Option<usize>| side.map(|keys| keys.min(u32::MAX as usize) as u32);
                Mask::window(keys(left), keys(right))
            }
        };
        let mut scoring = Scoring::new().mask(mask).scale(self.softmax_scale);
        scoring.softcap = self.softcap.filter(|&softcap| softcap != 0.0);
        scoring.alibi = self.alibi_slopes.as_ref().map(|_| AlibiShape::PerHead);
        scoring.sinks = self.sinks.is_some();
        scoring
            .validate()
            .map_err(|error| self.caller.failed(error))?;
        Ok(scoring)
    }

    /// Checks the tensors of lengths; returns the number of sequences.
    fn check_lengths(&self, q: &warptile::Layout, place: &DeviceLocation) -> Result<usize> {
        let batch = match &self.queries {
            Queries::Dense => q.batch(),
            Queries::Packed(Packed { offsets, .. }) => match *offsets.dims() {
                [entries] if entries >= 2 => entries - 1,
                _ => {
                    let rule = "(sequences + 1), of at least one sequence";
                    return Err(self.caller.wrong_shape("seqlens_q", offsets.dims(), rule));
                }
            },
        };
        for (name, tensor) in self.lists() {
            self.caller.check_place(name, tensor, "q", place)?;
            self.caller
                .check_type(name, tensor, &[DType::U32, DType::I32])?;
        }
        match &self.keys {
            Keys::Dense => {}
            Keys::Packed(Packed { offsets, .. }) => {
                let rule = "as many entries as there are sequences of queries, and one more";
                self.caller
                    .check_shape("seqlens_k", offsets, &[batch + 1], rule)?;
            }
            Keys::Paged { table, lengths, .. } => {
                match *table.dims() {
                    [rows, _] if rows == batch => {}
                    ref dims => {
                        let rule = format!("({batch} sequences, pages of the longest)");
                        return Err(self.caller.wrong_shape("block_table", dims, &rule));
                    }
                }
                self.caller.check_shape(
                    "key_lengths",
                    lengths,
                    &[batch],
                    "one entry per sequence",
                )?;
            }
        }
        Ok(batch)
    }

    /// Every list of numbers that the call brings along.
    fn lists(&self) -> impl Iterator<Item = (&'static str, &Tensor)> {
        let queries = match &self.queries {
            Queries::Dense => None,
            Queries::Packed(Packed { offsets, .. }) => Some(("seqlens_q", offsets)),
        };
        let keys = match &self.keys {
            Keys::Dense => [None, None],
            Keys::Packed(Packed { offsets, .. }) => [Some(("seqlens_k", offsets)), None],
            Keys::Paged { table, lengths, .. } => {
                [Some(("key_lengths", lengths)), Some(("block_table", table))]
            }
        };
        queries.into_iter().chain(keys.into_iter().flatten())
    }
}
