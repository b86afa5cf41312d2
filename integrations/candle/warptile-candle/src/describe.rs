//! From candle's tensors to a call of warptile: what is the same on every device.

use candle_core::{DType, DeviceLocation, Layout, Result};
use warptile::Mask;
use warptile::kernels::{Count, Kind};
use warptile::spec::{Backward, Call, CallBuilder, Operand, Request, Scoring, TableLayout, Types};

use crate::attention::Attention;
use crate::caller::Sizes;

/// The tensors of a call in warptile's words.
pub(crate) struct Described {
    types: Types,
    pub(crate) q: warptile::Layout,
    k: warptile::Layout,
    v: warptile::Layout,
    pub(crate) out: warptile::Layout,
    scoring: Scoring,
}

impl Attention {
    /// Checks all that can be known without reading what is in the tensors.
    pub(crate) fn describe(
        &self,
        dtypes: [DType; 3],
        layouts: [&Layout; 3],
        place: &DeviceLocation,
    ) -> Result<Described> {
        let caller = self.caller;
        let [q, k, v] = ["q", "k", "v"];
        let [q_type, k_type, v_type] = [0, 1, 2].map(|index| ([q, k, v][index], dtypes[index]));
        let types = match self.has(Operand::KScale) {
            true => Types::of(caller.element(&[q_type])?).keys(caller.scaled([k_type, v_type])?),
            false => Types::of(caller.element(&[q_type, k_type, v_type])?),
        };
        let key_rule = match self.is_paged() {
            true => "(pages, page rows, heads, head size)",
            false => "(batch, length, heads, head size)",
        };
        let layout = |name, layout, offsets, rule| match self.has(offsets) {
            true => caller.packed(name, layout),
            false => caller.dense(name, layout, rule),
        };
        let rule = "(batch, length, heads, head size)";
        let q = layout(q, layouts[0], Operand::QueryOffsets, rule)?;
        let k = layout(k, layouts[1], Operand::KeyOffsets, key_rule)?;
        let v = layout(v, layouts[2], Operand::KeyOffsets, key_rule)?;
        let sequences = match &self.tensors[Operand::QueryOffsets] {
            None => q.batch(),
            Some(offsets) => caller.sequences(offsets)?,
        };
        let sizes = Sizes {
            sequences,
            heads: q.heads(),
            rows: 0,
        };
        for (operand, tensor) in self.tensors.given() {
            caller.check_list(operand, tensor, ("q", place), sizes)?;
        }
        let key_bound = self.longest[1].unwrap_or(k.rows());
        Ok(Described {
            types,
            out: warptile::Layout::bshd(q.shape).dense_with(v.head_dim()),
            q,
            k,
            v,
            scoring: self.scoring.mask(self.mask(key_bound)),
        })
    }

    /// The mask for keys of at most this length.
    pub(crate) fn mask(&self, key_bound: usize) -> Mask {
        // Beyond the longest key length there is nothing to hide, and candle's functions take such a number for no limit.
        let limit = |side: Option<usize>| side.filter(|&keys| keys <= key_bound);
        // A key length above u32's is refused by the call.
        let keys = |keys: usize| keys.min(u32::MAX as usize) as u32;
        let [left, right] = self.window.map(|side| limit(side).map(keys));
        Mask::window(left, right)
    }

    /// The gradients of a call, each contiguous.
    pub(crate) fn backward(
        &self,
        described: &Described,
        call: CallBuilder<'_>,
    ) -> warptile::Result<Backward> {
        let Described { q, k, v, .. } = described;
        let gradients = [(Operand::DQ, q), (Operand::DK, k), (Operand::DV, v)];
        let mut builder = Backward::builder(call.build()?);
        for (operand, layout) in gradients {
            builder = builder.layout(operand, warptile::Layout::bshd(layout.shape));
        }
        Ok(builder.build()?)
    }

    /// The call with its lists: numbers in host memory, or how many there are on the device.
    pub(crate) fn call<'a>(
        &self,
        described: &Described,
        lists: impl Iterator<Item = (Operand, Request<'a>)>,
        want_lse: bool,
    ) -> CallBuilder<'a> {
        let Described { q, k, v, types, .. } = described;
        let mut builder = Call::builder(q, k, v, *types)
            .scoring(described.scoring)
            .out(described.out)
            .want_lse(want_lse);
        for (operand, list) in lists {
            builder = builder.given(operand, list);
            let (Kind::List(Count::Table), Some(table)) = (operand.kind(), &self.tensors[operand])
            else {
                continue;
            };
            if let (&[sequences, columns], &[stride, _]) = (table.dims(), table.stride()) {
                // Numbers in host memory are read row by row.
                let stride = if list.on_device() { stride } else { columns };
                builder = builder.table_layout(TableLayout::new([sequences, columns], stride));
            }
        }
        builder
    }
}
