//! `merge`: attention over disjoint sets of keys, merged into attention over all of them.

use half::{bf16, f16};
use pyo3::prelude::*;
use warptile::gpu::MergeAddresses;
use warptile::{Element, ElementType, Layout, LseBase, Merge, merge_cpu};

use crate::arguments::Reader;
use crate::array::{Array, Described, Device, Dtype, Gradients, Library, Order};
use crate::cpu;
use crate::errors::{Failure, Result};
use crate::gpu;
use crate::library::{self, Fill};

/// Output and lse of a part, or of the result.
pub(crate) type Pair<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

/// One merge with everything that belongs to it.
pub(crate) struct Request<'py> {
    reader: Reader,
    order: Order,
    /// Whether the rows of all sequences lie one after the other: one dimension less.
    packed: bool,
    merge: Merge,
    /// Output and lse of each.
    parts: Vec<[Array<'py>; 2]>,
    out: Option<Array<'py>>,
    lse: Option<Array<'py>>,
}

impl<'py> Request<'py> {
    /// Reads all arguments and checks them against each other.
    pub(crate) fn new(
        parts: &[Pair<'py>],
        [out, lse]: [Option<Bound<'py, PyAny>>; 2],
        base: LseBase,
        layout: Option<&str>,
        stream: Option<u64>,
    ) -> Result<Self> {
        let Some((first, _)) = parts.first() else {
            return Err(Failure::Invalid("parts is empty".to_owned()));
        };
        let reader = Reader::of("parts[].out", Some(first), stream, Gradients::Refused)?;
        let order = Order::parse(layout.unwrap_or("bshd"))?;
        let read = |(out, lse): &Pair<'py>| {
            let (out, lse) = (
                reader.array("parts[].out", out)?,
                reader.array("parts[].lse", lse)?,
            );
            lse.is.expect_dtype(&[Dtype::F32], "float32")?;
            Ok([out, lse])
        };
        let parts = parts.iter().map(read).collect::<Result<Vec<_>>>()?;
        let first = &parts[0][0];
        let (element, packed) = (first.is.element()?, first.is.shape().len() == 3);
        let out = out.map(|out| reader.written("out", &out)).transpose()?;
        let lse = lse.map(|lse| reader.written("lse", &lse)).transpose()?;
        for other in parts.iter().map(|[out, _]| out).chain(&out) {
            if other.is.element()? != element {
                return Err(other
                    .is
                    .wrong_dtype(&format!("{}, as the first part has", first.is.dtype)));
            }
        }
        let outs = parts
            .iter()
            .map(|[out, _]| out.is.tensor(order, packed))
            .collect::<Result<Vec<Layout>>>()?;
        let lses = parts
            .iter()
            .map(|[_, lse]| lse.is.lse(packed))
            .collect::<Result<Vec<Layout>>>()?;
        let mut builder = { Merge::builder(element, &outs) }
            .lse_layouts(&lses)
            .base(base);
        if let Some(out) = &out {
            builder = builder.out(out.is.tensor(order, packed)?);
        }
        if let Some(lse) = &lse {
            lse.is.expect_dtype(&[Dtype::F32], "float32")?;
            builder = builder.lse(lse.is.lse(packed)?);
        }
        Ok(Request {
            merge: builder.build()?,
            reader,
            order,
            packed,
            parts,
            out,
            lse,
        })
    }

    /// Merges; gives the output and the lse.
    pub(crate) fn run(mut self, py: Python<'py>) -> Result<Pair<'py>> {
        let (like, packed) = (&self.parts[0][0], self.packed);
        let jax = like.library == Library::Jax;
        let (jax_out, jax_lse) = (jax && self.out.is_none(), jax && self.lse.is_none());
        let (layout, fill) = (self.merge.out(), Fill::Nothing);
        let out = match self.out.take() {
            Some(out) => out,
            None => {
                let made = library::output(like, self.order, layout, packed, fill)?;
                self.reader.array("out", &made)?
            }
        };
        let lse = match self.lse.take() {
            Some(lse) => lse,
            None => {
                let made = library::lse(like, layout, packed, fill)?;
                self.reader.array("lse", &made)?
            }
        };
        match self.reader.device() {
            Device::Cpu => self.run_on_cpu(py, &out.is, &lse.is)?,
            Device::Cuda(ordinal) => self.run_on_gpu(py, ordinal, &out.is, &lse.is)?,
        }
        let finished = |array: Array<'py>, into_jax| match into_jax {
            true => library::into_jax(array.object),
            false => Ok(array.object),
        };
        Ok((finished(out, jax_out)?, finished(lse, jax_lse)?))
    }

    fn run_on_cpu(&self, py: Python<'_>, out: &Described, lse: &Described) -> Result<()> {
        let parts: Vec<[&Described; 2]> = self
            .parts
            .iter()
            .map(|part| part.each_ref().map(|array| &array.is))
            .collect();
        let merge = &self.merge;
        // SAFETY: the arrays are held until after the call, so their libraries keep the elements; that nobody changes them meanwhile
        // is what `merge` asks of its caller, as every function does that computes without the GIL.
        py.detach(|| unsafe {
            match merge.element() {
                ElementType::F16 => on_cpu::<f16>(merge, &parts, out, lse),
                ElementType::Bf16 => on_cpu::<bf16>(merge, &parts, out, lse),
                ElementType::F32 => on_cpu::<f32>(merge, &parts, out, lse),
                other => Err(Failure::Type(format!("elements of type {other}"))),
            }
        })
    }

    fn run_on_gpu(
        &self,
        py: Python<'_>,
        ordinal: u32,
        out: &Described,
        lse: &Described,
    ) -> Result<()> {
        let parts: Vec<[u64; 2]> = self
            .parts
            .iter()
            .map(|part| part.each_ref().map(|array| array.is.address))
            .collect();
        let addresses = MergeAddresses {
            parts: &parts,
            out: out.address,
            lse: lse.address,
        };
        let (merge, stream) = (&self.merge, self.reader.stream());
        // SAFETY: as for `attention`'s launch.
        py.detach(|| unsafe { gpu::merge(ordinal, stream, merge, &addresses) })
    }
}

/// # Safety
/// Each array's elements are in memory and stay there until this returns, and nobody writes any of them or reads those of `out` and
/// `lse` meanwhile.
unsafe fn on_cpu<T: Element>(
    merge: &Merge,
    parts: &[[&Described; 2]],
    out: &Described,
    lse: &Described,
) -> Result<()> {
    let Some(lse_layout) = merge.lse() else {
        return Err(Failure::Invalid("lse is missing".to_owned()));
    };
    let reach = |layout: &Layout| layout.required_len().unwrap_or(usize::MAX);
    let outputs = [(out, merge.out()), (lse, lse_layout)];
    let inputs: Vec<(&Described, &Layout)> = parts
        .iter()
        .enumerate()
        .filter_map(|(index, arrays)| Some((arrays, merge.part(index)?)))
        .flat_map(|(arrays, (out, lse))| [(arrays[0], out), (arrays[1], lse)])
        .collect();
    let others = inputs.iter().chain(&outputs[1..]);
    let pairs = others
        .map(|other| (outputs[0], *other))
        .chain(inputs.iter().map(|other| (outputs[1], *other)));
    for ((output, layout), (other, other_layout)) in pairs {
        cpu::expect_apart((output, reach(layout)), (other, reach(other_layout)))?;
    }
    // SAFETY: the layouts are those of the arrays, outputs overlap nothing, and the caller's promise.
    unsafe {
        let parts = inputs
            .chunks_exact(2)
            .map(|part| {
                let [(out, out_layout), (lse, lse_layout)] = [part[0], part[1]];
                let out = cpu::slice(out, reach(out_layout))?;
                Ok((out, cpu::slice(lse, reach(lse_layout))?))
            })
            .collect::<Result<Vec<(&[T], &[f32])>>>()?;
        let lse = cpu::slice_mut(lse, reach(lse_layout))?;
        Ok(merge_cpu(
            merge,
            &parts,
            cpu::slice_mut(out, reach(merge.out()))?,
            Some(lse),
        )?)
    }
}
