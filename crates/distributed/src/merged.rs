//! Attention of the same queries to keys that stay with the ranks, such as the pages of a cache that is spread over them.

use warptile::bytemuck::Pod;
use warptile::driver::{self, DeviceBuffer, DeviceSlice, Loan, Rows, Stream};
use warptile::ops::merge;
use warptile::spec::{LseBase, Merge};
use warptile::{Backend, Element, Layout, Lse, Output, Tensor};

use crate::error::{Error, OfRank, Result};
use crate::group::{Group, Streams};
use crate::nccl::Nccl;
use crate::nccl::control::FIELD;

impl Group {
    /// Copies a tensor to every rank, such as the queries of a step of decoding. On GPUs the call returns when the copies are submitted;
    /// they wait for what computes the tensor.
    ///
    /// # Errors
    /// [`Error::Argument`] if the tensor is not on a rank's device; [`Error::Rank`] with the rank that has no memory, or what its device
    /// reports.
    pub fn broadcast<T: Element>(&self, tensor: &Tensor<T>) -> Result<Vec<Tensor<T>>> {
        self.one_process("broadcast")?;
        self.refuse_capture()?;
        let is_home = |backend: &Backend| backend.is_same(tensor.backend());
        if !self.backends().iter().any(is_home) {
            return Err(Error::Argument {
                rank: 0,
                rule: format!("the tensor is on {}, which no rank is on", tensor.backend()),
            });
        }
        { self.backends().iter().enumerate() }
            .map(|(rank, backend)| {
                let (Some(streams), Some(slice), false) =
                    (self.streams(rank), tensor.device_slice(), is_home(backend))
                else {
                    return Ok(tensor.clone());
                };
                let copy = sent(slice, streams).of_rank(rank)?;
                Tensor::from_device(backend, copy, *tensor.layout()).of_rank(rank)
            })
            .collect()
    }

    /// Merges what the ranks got for the same queries, each from keys of its own, on rank 0 and in the order of the ranks: the same parts
    /// give the same bits. Over several processes each of them gives its own part, and gets the result. The parts are as [`merge`] takes
    /// them. Of keys that are dealt out by pages, row `i` of a sequence is with rank `i / page_rows % ranks`; a rank without keys gives an
    /// output whose lse is `-inf`.
    ///
    /// # Errors
    /// [`Error::Argument`] for a part that is not on its rank or has no lse of its shape; [`Error::Rank`] as [`merge`], and with what a device
    /// reports.
    pub fn merge<T: Element>(&self, parts: &[Output<T>]) -> Result<(Tensor<T>, Lse)> {
        self.merge_of("merge", parts)
    }

    /// Merges on rank 0 what each rank of this one process computes of the same queries, with the output in a layout. A rank on another
    /// device reads them from rank 0's memory and writes its part there, so that each of both streams waits for the other once.
    pub(crate) fn merge_of_each<T: Element>(
        &self,
        q: &Tensor<T>,
        layout: Layout,
        compute: impl Fn(usize, &Tensor<T>, &mut Tensor<T>, &mut Lse) -> warptile::Result<()>,
    ) -> Result<(Tensor<T>, Lse)> {
        let home = &self.backends()[0];
        let q = match (q.backend().is_same(home), q.device_slice(), self.streams(0)) {
            (false, ..) => self.broadcast(q)?.swap_remove(0),
            // Other ranks may not reach the memory, or it is ordered by another stream than that of the loan.
            (true, Some(memory), Some(streams))
                if memory.is_borrowed() || !memory.stream().is_same(&streams.kernels) =>
            {
                let copy = sent(memory, streams).of_rank(0)?;
                Tensor::from_device(home, copy, *q.layout()).of_rank(0)?
            }
            _ => q.clone(),
        };
        let part = |_| Ok((self.uninit(0, layout)?, self.uninit_lse(0, layout.shape)?));
        let parts = (0..self.ranks()).map(part);
        let mut parts = parts.collect::<warptile::Result<Vec<_>>>().of_rank(0)?;
        let owners = { parts.iter() }
            .flat_map(|(out, lse)| {
                [
                    out.device_slice().map(|of| of.owner()),
                    lse.device_slice().map(|of| of.owner()),
                ]
            })
            .chain([q.device_slice().map(|of| of.owner())]);
        let owners: Vec<_> = owners.flatten().collect();
        let loan = self.streams(0).map(|streams| streams.kernels.lend(owners));
        let loan = loan.transpose().of_rank(0)?;
        // Rank 0 comes last, as it has nothing to wait for.
        let each = parts.iter_mut().enumerate().rev();
        let computed = each.map(|(rank, (out, lse))| {
            let backend = &self.backends()[rank];
            let computed = match (&loan, self.streams(rank)) {
                (Some(loan), Some(Streams { kernels, .. })) if !backend.is_same(home) => {
                    let computed = || {
                        // SAFETY: the group has opened what is allocated on a device, as all of these are, to all others. They are of the
                        // stream whose loan orders this use, and the owners are kept until it has ended.
                        let (q, mut out, mut lse) = unsafe {
                            (
                                at(&q, backend, kernels)?,
                                at(out, backend, kernels)?,
                                lse_at(lse, backend, kernels)?,
                            )
                        };
                        // SAFETY: calls on tensors of the rank's backend are queued on its stream, and these are of the loan's memory.
                        unsafe { kernels.use_loan(loan, || compute(rank, &q, &mut out, &mut lse)) }?
                    };
                    computed()
                }
                _ => compute(rank, &q, out, lse),
            };
            computed.of_rank(rank)
        });
        let computed: Vec<Result<()>> = computed.collect();
        loan.map_or(Ok(()), Loan::end).of_rank(0)?;
        // The first rank's error, as many are those of all.
        computed.into_iter().rev().collect::<Result<()>>()?;
        let parts: Vec<_> = parts.iter().map(|(out, lse)| (out, lse)).collect();
        merged(&parts).of_rank(0)
    }

    /// The merge of a call that several processes compare.
    pub(crate) fn merge_of<T: Element>(
        &self,
        call: &str,
        parts: &[Output<T>],
    ) -> Result<(Tensor<T>, Lse)> {
        self.refuse_capture()?;
        let home = &self.backends()[0];
        if parts.len() != self.backends().len() {
            return Err(Error::Argument {
                rank: self.local_ranks().start + parts.len().min(self.backends().len()),
                rule: format!("{} parts for {} ranks", parts.len(), self.backends().len()),
            });
        }
        let mut parts_here = Vec::with_capacity(parts.len());
        for (rank, (Output { out, lse, .. }, backend)) in
            { self.local_ranks() }.zip(parts.iter().zip(self.backends()))
        {
            let refused = |rule: String| Error::Argument { rank, rule };
            let Some(lse) = lse else {
                return Err(refused(
                    "its output has no lse: it must not be turned off".to_owned(),
                ));
            };
            if !out.backend().is_same(backend) {
                return Err(refused(format!(
                    "its output is on {}, not on {backend}",
                    out.backend()
                )));
            }
            let [batch, rows, heads, _] = out.shape();
            let expected = [batch, heads, rows];
            if lse.shape() != expected || !lse.backend().is_same(backend) {
                let (shape, of) = (lse.shape(), lse.backend());
                return Err(refused(format!(
                    "its lse is {shape:?} on {of}, not {expected:?} on {backend}"
                )));
            }
            if let Some(nccl) = self.processes() {
                return self.merge_of_all(nccl, call, out, lse);
            }
            let memory = (self.streams(0), out.device_slice(), lse.device_slice());
            parts_here.push(match memory {
                (Some(streams), Some(out_slice), Some(lse_slice)) if !backend.is_same(home) => {
                    let out_copy = sent(out_slice, streams).of_rank(rank)?;
                    let lse_copy = sent(lse_slice, streams).of_rank(rank)?;
                    (
                        Tensor::from_device(home, out_copy, *out.layout()).of_rank(rank)?,
                        Lse::from_device(home, lse_copy, lse.shape()).of_rank(rank)?,
                    )
                }
                _ => (out.clone(), lse.clone()),
            });
        }
        let parts: Vec<_> = parts_here.iter().map(|(out, lse)| (out, lse)).collect();
        merged(&parts).of_rank(0)
    }

    /// Merges the parts of all processes on this one's device.
    fn merge_of_all<T: Element>(
        &self,
        nccl: &Nccl,
        call: &str,
        out: &Tensor<T>,
        lse: &Lse,
    ) -> Result<(Tensor<T>, Lse)> {
        let (home, rank) = (&self.backends()[0], nccl.rank());
        let memory = (self.streams(rank), out.device_slice(), lse.device_slice());
        let (Some(streams), Some(out_slice), Some(lse_slice)) = memory else {
            return Err(Error::OneProcess("the CPU"));
        };
        let call = [
            call.to_owned(),
            format!("merge of {:?}", out.layout()),
            format!("elements of {}", std::any::type_name::<T>()),
        ];
        nccl.agreed(&call.join(&FIELD.to_string()), || {
            let outs = nccl.gather(streams, out_slice)?;
            let parts = outs.into_iter().zip(nccl.gather(streams, lse_slice)?);
            let part = |(of_out, of_lse)| match (of_out, of_lse) {
                (Some(of_out), Some(of_lse)) => Ok((
                    Tensor::from_device(home, of_out, *out.layout())?,
                    Lse::from_device(home, of_lse, lse.shape())?,
                )),
                _ => Ok((out.clone(), lse.clone())),
            };
            let parts: warptile::Result<Vec<_>> = parts.map(part).collect();
            let parts = parts.of_rank(rank)?;
            let parts: Vec<_> = parts.iter().map(|(out, lse)| (out, lse)).collect();
            merged(&parts).of_rank(rank)
        })
    }
}

/// Merges any number of parts, in groups as large as one merge takes.
fn merged<T: Element>(parts: &[(&Tensor<T>, &Lse)]) -> warptile::Result<(Tensor<T>, Lse)> {
    if parts.len() <= Merge::MAX_PARTS {
        return merge(parts, LseBase::Natural);
    }
    let groups = parts.chunks(Merge::MAX_PARTS).map(merged);
    let groups = groups.collect::<warptile::Result<Vec<_>>>()?;
    let groups: Vec<_> = groups.iter().map(|(out, lse)| (out, lse)).collect();
    merged(&groups)
}

/// A tensor as another backend sees it.
///
/// # Safety
/// The backend's device reaches the memory, and uses are ordered with those of the tensor.
unsafe fn at<T: Element>(
    tensor: &Tensor<T>,
    backend: &Backend,
    stream: &Stream,
) -> warptile::Result<Tensor<T>> {
    let Some(memory) = tensor.device_slice() else {
        return Ok(tensor.clone());
    };
    // SAFETY: the caller's.
    let memory =
        unsafe { DeviceBuffer::borrow(stream, memory.pointer(), memory.len(), memory.owner()) };
    Tensor::from_device(backend, memory?, *tensor.layout())
}

/// As [`at`].
///
/// # Safety
/// As for [`at`].
unsafe fn lse_at(lse: &Lse, backend: &Backend, stream: &Stream) -> warptile::Result<Lse> {
    let Some(memory) = lse.device_slice() else {
        return Ok(lse.clone());
    };
    // SAFETY: the caller's.
    let memory =
        unsafe { DeviceBuffer::borrow(stream, memory.pointer(), memory.len(), memory.owner()) };
    Lse::from_device(backend, memory?, lse.shape())
}

/// A copy on another device, for the kernels of its rank. The memory's own stream makes it, so that only one stream waits for another.
fn sent<T: Pod>(from: DeviceSlice<'_, T>, to: &Streams) -> driver::Result<DeviceBuffer<T>> {
    let len = from.len();
    let row = Rows {
        count: 1,
        len,
        from: 0,
        from_pitch: len,
        to: 0,
        to_pitch: len,
    };
    let by = from.stream().clone();
    let lent = from.lend()?;
    let mut copy = DeviceBuffer::uninit(&to.kernels, len)?.lend()?;
    copy.copy_rows(&by, &[(&lent, row)])?;
    lent.end()?;
    copy.into_buffer()
}
