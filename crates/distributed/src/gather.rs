//! The scheme `gather`: each rank fetches the keys that its queries see, one group of heads after the other, while the group before is
//! computed. Only bytes travel; no sum is ever made across ranks.

use std::ops::Range;

use warptile::driver::DeviceBuffer;
use warptile::spec::Invalid;
use warptile::{Attention, Element, Layout, Tensor};

use crate::error::{OfRank, Result};
use crate::need::{Part, parts, staged};
use crate::plan;
use crate::shards::Shards;

pub(crate) fn forward<T: Element>(
    shards: &Shards<'_>,
    attention: &Attention,
    q: &[Tensor<T>],
    kv: [&[Tensor<T>]; 2],
) -> Result<Vec<Tensor<T>>> {
    let mask = attention.mask_set();
    let all_parts = (0..q.len())
        .map(|rank| parts(shards.map(), rank, mask))
        .collect::<Result<Vec<_>>>()?;
    // Each device gets its work from a thread of its own; what a thread submits waits for nothing that another one submits later.
    std::thread::scope(|scope| {
        let threads: Vec<_> = { all_parts.iter().enumerate() }
            .map(|(rank, parts)| {
                let run = move || {
                    Rank {
                        shards,
                        rank,
                        parts,
                    }
                    .forward(attention, &q[rank], kv)
                };
                scope.spawn(move || run().of_rank(rank))
            })
            .collect();
        let joined: Vec<_> = { threads.into_iter() }
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect();
        joined.into_iter().collect()
    })
}

/// One rank's part of a call.
struct Rank<'a> {
    shards: &'a Shards<'a>,
    rank: usize,
    parts: &'a [Part],
}

impl Rank<'_> {
    fn forward<T: Element>(
        &self,
        attention: &Attention,
        q: &Tensor<T>,
        kv: [&[Tensor<T>]; 2],
    ) -> warptile::Result<Tensor<T>> {
        let [_, rows, heads, _] = q.shape();
        let [_, _, kv_heads, value_dim] = kv[1][self.rank].shape();
        let mut out = self.output(Layout::bhsd([1, heads, rows, value_dim]))?;
        let groups = match attention.has_numbers() {
            true => std::iter::once(0..kv_heads).collect(),
            false => plan::groups(kv_heads),
        };
        let spans = staged(self.parts);
        // All copies before the first kernel, and their memory until the last one is submitted: a copy waits for what its streams and those
        // of the rank that it reads from have been asked before, which must not be somebody's kernels.
        let stages = { groups.iter().enumerate() }.map(|(group, heads)| {
            let stage = |from| self.stage(group, &spans, heads.clone(), from);
            Ok([stage(kv[0])?, stage(kv[1])?])
        });
        let stages: Vec<_> = stages.collect::<warptile::Result<_>>()?;
        for ([k, v], of_keys) in stages.iter().zip(&groups) {
            let shared_by = heads / kv_heads;
            let of = of_keys.start * shared_by..of_keys.end * shared_by;
            for part in self.parts {
                let at = position(&spans, part.keys.start);
                let keys = at..at + part.keys.len();
                let q = q.rows(part.local.clone())?.heads(of.clone())?;
                let (k, v) = (k.rows(keys.clone())?, v.rows(keys)?);
                let attention = attention.clone().mask(part.mask);
                out.with_part(part.local.clone(), of.clone(), |out| {
                    attention.forward_into(&q, (&k, &v), out, None)
                })??;
            }
        }
        Ok(out)
    }

    /// Uninitialized memory; every row is about to be written.
    fn output<T: Element>(&self, layout: Layout) -> warptile::Result<Tensor<T>> {
        let backend = &self.shards.group().backends()[self.rank];
        match backend.gpu() {
            Some(gpu) => {
                let buffer = DeviceBuffer::uninit(gpu.stream(), layout.reach())?;
                Tensor::from_device(backend, buffer, layout)
            }
            None => Tensor::from_vec(backend, vec![T::zeroed(); layout.reach()], layout),
        }
    }

    /// Fetches the rows of `spans` of some heads, from every rank that has some.
    fn stage<T: Element>(
        &self,
        group: usize,
        spans: &[Range<usize>],
        heads: Range<usize>,
        from: &[Tensor<T>],
    ) -> warptile::Result<Tensor<T>> {
        let head_dim = from[self.rank].shape()[3];
        let rows: usize = spans.iter().map(Range::len).sum();
        let layout = Layout::bhsd([1, heads.len(), rows, head_dim]);
        let pieces: Vec<_> = { spans.iter() }
            .flat_map(|span| self.shards.map().pieces(span.clone()))
            .collect();
        let copies = { heads.enumerate() }.flat_map(|(index, head)| {
            pieces.iter().map(move |piece| -> warptile::Result<_> {
                let at = (index * rows + position(spans, piece.rows.start)) * head_dim;
                let local = piece.local..piece.local + piece.rows.len();
                let source = from[piece.rank].heads(head..head + 1)?.rows(local)?;
                Ok((at..at + source.layout().reach(), source))
            })
        });
        let backend = &self.shards.group().backends()[self.rank];
        let Some(streams) = self.shards.group().streams(self.rank) else {
            let mut staging = vec![T::zeroed(); layout.reach()];
            for copy in copies {
                let (to, source): (Range<usize>, Tensor<T>) = copy?;
                staging[to].copy_from_slice(source.as_slice().unwrap_or_default());
            }
            return Tensor::from_vec(backend, staging, layout);
        };
        let stream = &streams.pull[group];
        if let Some(before) = group.checked_sub(1) {
            // The link serves the group that is needed first.
            stream.wait_for(&streams.pull[before])?;
        }
        let mut staging = DeviceBuffer::uninit(stream, layout.reach())?;
        for copy in copies {
            let (to, source): (Range<usize>, Tensor<T>) = copy?;
            let source = source.device_slice().ok_or_else(|| {
                Invalid::presence("k or v", "has rows outside of its device's memory")
            })?;
            staging.slice_mut(to)?.copy_from(&source)?;
        }
        Tensor::from_device(backend, staging, layout)
    }
}

/// Where a row lies in staging memory.
fn position(spans: &[Range<usize>], row: usize) -> usize {
    { spans.iter() }
        .map(|span| row.clamp(span.start, span.end) - span.start)
        .sum()
}
