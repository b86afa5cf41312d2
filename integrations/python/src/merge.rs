//! `merge`: attention over disjoint sets of keys, merged into attention over all of them.

use pyo3::prelude::*;
use warptile::Layout;
use warptile::cpu::raw;
use warptile::gpu::Addresses;
use warptile::plan::Choice;
use warptile::spec::{LseBase, Merge};

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
    /// True if the rows of all sequences lie one after the other, with one dimension less.
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
                let made = { self.reader }.making(py, || {
                    library::output(like, self.order, layout, packed, fill)
                })?;
                self.reader.array("out", &made)?
            }
        };
        let lse = match self.lse.take() {
            Some(lse) => lse,
            None => {
                let made =
                    { self.reader }.making(py, || library::lse(like, layout, packed, fill))?;
                self.reader.array("lse", &made)?
            }
        };
        match self.reader.device() {
            Device::Cpu => self.run_on_cpu(py, &out.is, &lse.is)?,
            Device::Cuda(ordinal) => self.run_on_gpu(py, ordinal, &out.is, &lse.is)?,
        }
        let finished = |array: Array<'py>, into_jax| match into_jax {
            true => library::into_jax(array.object, &self.parts[0][0]),
            false => Ok(array.object),
        };
        Ok((finished(out, jax_out)?, finished(lse, jax_lse)?))
    }

    fn run_on_cpu(&self, py: Python<'_>, out: &Described, lse: &Described) -> Result<()> {
        let merge = &self.merge;
        let memory = |array: &Described, layout: &Layout| {
            cpu::memory(array, layout.required_len().unwrap_or(usize::MAX))
        };
        let parts = { self.parts.iter().enumerate() }
            .filter_map(|(index, part)| Some((part, merge.part(index)?)))
            .map(|([out, lse], (out_layout, lse_layout))| {
                Ok([memory(&out.is, out_layout)?, memory(&lse.is, lse_layout)?])
            })
            .collect::<Result<Vec<_>>>()?;
        let out = memory(out, merge.out())?;
        let lse = merge.lse().map(|layout| memory(lse, layout)).transpose()?;
        // SAFETY: the arrays are held until after the call, so their libraries keep the elements; that nobody changes them meanwhile
        // is what `merge` asks of its caller, as every function does that computes without the GIL.
        Ok(py.detach(|| unsafe { raw::merge(merge, &parts, out, lse) })?)
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
        let addresses = Addresses::merge(out.address, lse.address, &parts);
        let (merge, stream) = (&self.merge, self.reader.stream());
        // SAFETY: as for `attention`'s launch.
        py.detach(|| unsafe { gpu::launch(ordinal, stream, merge, &Choice::Best, addresses, 0) })
    }
}
