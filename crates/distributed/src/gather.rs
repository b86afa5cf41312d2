//! The scheme `gather`: each rank fetches the keys that its queries see, one group of heads after the other, while the group before is
//! computed. Only bytes travel; no sum is ever made across ranks.

use std::ops::Range;

use warptile::driver::{DeviceBuffer, Lent, LentBuffer, Rows, Stream};
use warptile::spec::Invalid;
use warptile::{Attention, Backend, Diagonal, Element, Layout, Mask, Tensor};

use crate::error::{OfRank, Result};
use crate::group::Streams;
use crate::need::{Part, parts, staged};
use crate::plan;
use crate::shard::Chunk;
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
    // Lent before any kernel is submitted, and until all are: so copies wait for what computed the keys, but not for kernels of this call,
    // and no kernel of it waits for copies of other ranks.
    let [k, v] = kv.map(|tensors| {
        let lent = tensors.iter().enumerate();
        lent.map(|(rank, tensor)| Keys::lend(tensor).of_rank(rank))
            .collect::<Result<Vec<_>>>()
    });
    let (k, v) = (k?, v?);
    let kv = [&k[..], &v[..]];
    // What a rank's thread submits waits for nothing that another one submits later.
    let outputs = shards.group().each(|rank| {
        let rank_of = Rank {
            shards,
            rank,
            parts: &all_parts[rank],
        };
        rank_of.forward(attention, &q[rank], kv).of_rank(rank)
    });
    let outputs = outputs.into_iter().collect();
    for keys in [k, v] {
        for (rank, Keys { lent, .. }) in keys.into_iter().enumerate() {
            lent.map_or(Ok(()), Lent::end).of_rank(rank)?;
        }
    }
    outputs
}

/// Keys or values of a rank, which all ranks read.
struct Keys<'a, T: Element> {
    tensor: &'a Tensor<T>,
    /// On a GPU.
    lent: Option<Lent<'a, T>>,
}

impl<'a, T: Element> Keys<'a, T> {
    fn lend(tensor: &'a Tensor<T>) -> warptile::Result<Self> {
        let lent = tensor.device_slice().map(|slice| slice.lend());
        let lent = lent.transpose()?;
        Ok(Keys { tensor, lent })
    }
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
        kv: [&[Keys<'_, T>]; 2],
    ) -> warptile::Result<Tensor<T>> {
        let [_, rows, heads, _] = q.shape();
        let [_, _, kv_heads, value_dim] = kv[1][self.rank].tensor.shape();
        let mut out = self.output(Layout::bhsd([1, heads, rows, value_dim]))?;
        let shared_by = heads / kv_heads;
        let compute =
            |out: &mut Tensor<T>, call: &Call, heads: &Range<usize>, [k, v]: [&Tensor<T>; 2]| {
                let of = heads.start * shared_by..heads.end * shared_by;
                let q = q.rows(call.local.clone())?.heads(of.clone())?;
                let attention = attention.clone().mask(call.mask);
                out.with_part(call.local.clone(), of, |out| match self.streams() {
                    Some(streams) if !call.ends.is_empty() => {
                        let q = q.view_as(halves(q.layout()))?;
                        let [k, v] = [k, v].map(|of| of.view_as(twice(of.layout())));
                        let (k, v) = (k?, v?);
                        let keys = warptile::Keys::new(&k, &v);
                        let ends = self.shards.on_device(self.rank, streams, &call.ends)?;
                        let keys = keys.lengths_on_device(ends.as_slice());
                        out.with_layout(halves(out.layout()), |out| {
                            attention.forward_into(&q, keys, out, None)
                        })?
                    }
                    _ => attention.forward_into(&q, (k, v), out, None),
                })??;
                warptile::Result::Ok(())
            };
        let documents = Documents::of(self.shards.map().chunks(self.rank));
        let is_left = |at: usize| documents.as_ref().is_none_or(|all| !all.has(at));
        let (own, fetched): (Vec<_>, Vec<_>) = { self.parts.iter().enumerate() }
            .filter(|(at, _)| is_left(*at))
            .map(|(_, part)| (part, self.own_rows(part)))
            .partition(|(_, own)| own.is_some());
        let fetched: Vec<_> = fetched.into_iter().map(|(part, _)| part.clone()).collect();
        let spans = staged(&fetched);
        let groups = match attention.has_numbers() || fetched.is_empty() {
            true => std::iter::once(0..kv_heads).collect(),
            false => plan::groups(kv_heads),
        };
        let mut staged = Vec::with_capacity(groups.len());
        for heads in &groups {
            staged.push([
                self.stage(&spans, heads, kv[0])?,
                self.stage(&spans, heads, kv[1])?,
            ]);
        }
        // Copies from others are submitted by now, so they are behind no kernel.
        for tensor in staged.first_mut().into_iter().flatten() {
            tensor.copy_own()?;
        }
        for (part, rows) in own {
            let rows = rows.unwrap_or_default();
            let [k, v] = kv.map(|from| from[self.rank].tensor.rows(rows.clone()));
            compute(&mut out, &Call::of(part), &(0..kv_heads), [&k?, &v?])?;
        }
        if let Some(documents) = &documents {
            let [k, v] = kv.map(|from| from[self.rank].tensor);
            documents.forward(attention, q, [k, v], &mut out)?;
        }
        let calls = match fetched[..] {
            [ref first, ref second] if self.streams().is_some() => Call::of_two(first, second),
            _ => None,
        };
        let calls = calls.map_or_else(|| fetched.iter().map(Call::of).collect(), |call| vec![call]);
        for (heads, [mut k, mut v]) in groups.iter().zip(staged) {
            // Later ones here: as the kernels of the group before end, these find multiprocessors.
            k.copy_own()?;
            v.copy_own()?;
            let (k, v) = (k.into_tensor()?, v.into_tensor()?);
            for call in &calls {
                let at = position(&spans, call.keys.start);
                let keys = at..at + call.keys.len();
                let (k, v) = (k.rows(keys.clone())?, v.rows(keys)?);
                compute(&mut out, call, heads, [&k, &v])?;
            }
        }
        Ok(out)
    }

    /// The rows of this rank that are a part's keys, if it needs no others.
    fn own_rows(&self, part: &Part) -> Option<Range<usize>> {
        match &self.shards.map().pieces(part.keys.clone())[..] {
            [piece] if piece.rank == self.rank => Some(piece.local..piece.local + piece.rows.len()),
            _ => None,
        }
    }

    fn streams(&self) -> Option<&Streams> {
        self.shards.group().streams(self.rank)
    }

    /// Uninitialized memory; every row is about to be written.
    fn output<T: Element>(&self, layout: Layout) -> warptile::Result<Tensor<T>> {
        let backend = &self.shards.group().backends()[self.rank];
        match self.streams() {
            Some(streams) => {
                let buffer = DeviceBuffer::uninit(&streams.kernels, layout.reach())?;
                Tensor::from_device(backend, buffer, layout)
            }
            None => Tensor::from_vec(backend, vec![T::zeroed(); layout.reach()], layout),
        }
    }

    /// Fetches the rows of `spans` of some heads, from every rank that has some.
    fn stage<'s, T: Element>(
        &'s self,
        spans: &[Range<usize>],
        heads: &Range<usize>,
        from: &'s [Keys<'s, T>],
    ) -> warptile::Result<Staged<'s, T>> {
        let head_dim = from[self.rank].tensor.shape()[3];
        let rows: usize = spans.iter().map(Range::len).sum();
        let layout = Layout::bhsd([1, heads.len(), rows, head_dim]);
        let pieces = spans
            .iter()
            .flat_map(|span| self.shards.map().pieces(span.clone()));
        let copies = pieces.map(|piece| {
            let source = &from[piece.rank];
            let local_rows = source.tensor.shape()[1];
            let rows = Rows {
                count: heads.len(),
                len: piece.rows.len() * head_dim,
                from: (heads.start * local_rows + piece.local) * head_dim,
                from_pitch: local_rows * head_dim,
                to: position(spans, piece.rows.start) * head_dim,
                to_pitch: rows * head_dim,
            };
            (source, rows)
        });
        let backend = &self.shards.group().backends()[self.rank];
        let Some(streams) = self.streams() else {
            let mut staging = vec![T::zeroed(); layout.reach()];
            for (source, rows) in copies {
                let source = source.tensor.as_slice().ok_or_else(elsewhere)?;
                for row in 0..rows.count {
                    let (to, from) = (
                        rows.to + row * rows.to_pitch,
                        rows.from + row * rows.from_pitch,
                    );
                    staging[to..to + rows.len].copy_from_slice(&source[from..from + rows.len]);
                }
            }
            let tensor = Tensor::from_vec(backend, staging, layout)?;
            return Ok(Staged::Here(tensor));
        };
        let copies =
            copies.map(|(source, rows)| Ok((source.lent.as_ref().ok_or_else(elsewhere)?, rows)));
        let copies = copies.collect::<warptile::Result<Vec<_>>>()?;
        let (own, others): (Vec<_>, Vec<_>) = { copies.into_iter() }
            .partition(|(lent, _)| lent.context().is_same(streams.kernels.context()));
        let mut buffer = DeviceBuffer::uninit(&streams.kernels, layout.reach())?.lend()?;
        buffer.copy_rows(&streams.far, &others)?;
        Ok(Staged::Underway {
            backend,
            buffer,
            layout,
            near: &streams.near,
            own,
        })
    }
}

/// Staged keys or values of some heads, in the order in which queries see them.
enum Staged<'a, T: Element> {
    Here(Tensor<T>),
    /// Copies into them are submitted; kernels don't wait for these yet.
    Underway {
        backend: &'a Backend,
        buffer: LentBuffer<T>,
        layout: Layout,
        near: &'a Stream,
        /// Copies within the GPU that are not submitted yet.
        own: Vec<(&'a Lent<'a, T>, Rows)>,
    },
}

impl<T: Element> Staged<'_, T> {
    /// Submits the copies within the GPU, once.
    fn copy_own(&mut self) -> warptile::Result<()> {
        if let Staged::Underway {
            buffer, near, own, ..
        } = self
        {
            buffer.copy_rows(near, &std::mem::take(own))?;
        }
        Ok(())
    }

    /// The tensor, on whose stream kernels now wait for the copies.
    fn into_tensor(self) -> warptile::Result<Tensor<T>> {
        match self {
            Staged::Here(tensor) => Ok(tensor),
            Staged::Underway {
                backend,
                buffer,
                layout,
                ..
            } => Tensor::from_device(backend, buffer.into_buffer()?, layout),
        }
    }
}

/// The documents that are a rank's as a whole, in one call.
struct Documents {
    /// Of all chunks, among the rank's rows.
    offsets: Vec<i32>,
    /// The rows of each chunk that is a document, 0 of the others.
    lengths: Vec<i32>,
}

impl Documents {
    /// None for a single one.
    fn of(chunks: &[Chunk]) -> Option<Self> {
        let whole = |chunk: &Chunk| chunk.rows == chunk.document;
        if chunks.iter().filter(|chunk| whole(chunk)).count() < 2 {
            return None;
        }
        let (mut offsets, mut lengths) = (vec![0_i32], Vec::new());
        for chunk in chunks {
            let rows = i32::try_from(chunk.rows.len()).ok()?;
            offsets.push(offsets.last()?.checked_add(rows)?);
            lengths.push(if whole(chunk) { rows } else { 0 });
        }
        Some(Documents { offsets, lengths })
    }

    /// Returns true if a chunk is one of them.
    fn has(&self, chunk: usize) -> bool {
        self.lengths[chunk] > 0
    }

    fn forward<T: Element>(
        &self,
        attention: &Attention,
        q: &Tensor<T>,
        [k, v]: [&Tensor<T>; 2],
        out: &mut Tensor<T>,
    ) -> warptile::Result<()> {
        let queries = warptile::Queries::new(q).packed(&self.offsets);
        let keys = warptile::Keys::new(k, v).packed(&self.offsets);
        let (queries, keys) = match self.lengths.contains(&0) {
            true => (queries.lengths(&self.lengths), keys.lengths(&self.lengths)),
            false => (queries, keys),
        };
        attention.forward_into(queries, keys, out, None).map(drop)
    }
}

/// A launch: the keys and mask of one part, or of two.
struct Call {
    local: Range<usize>,
    keys: Range<usize>,
    mask: Mask,
    /// How many of the keys each half of the queries sees, if not all see all.
    ends: Vec<i32>,
}

impl Call {
    fn of(part: &Part) -> Self {
        Call {
            local: part.local.clone(),
            keys: part.keys.clone(),
            mask: part.mask,
            ends: Vec::new(),
        }
    }

    /// Both halves of a zigzag as one call, where that is faster: it leaves multiprocessors idle at its end once instead of twice, but has
    /// one tile for both.
    fn of_two(first: &Part, second: &Part) -> Option<Self> {
        /// Measured on two and four H100.
        const FROM_ROWS: usize = 4096;
        let rows = first.local.len();
        let same_rows = rows == second.local.len() && rows >= FROM_ROWS;
        let same_mask = first.mask == second.mask && first.mask.diagonal == Diagonal::BottomRight;
        let follows = first.local.end == second.local.start;
        if !(same_rows && same_mask && follows && first.keys.start == second.keys.start) {
            return None;
        }
        let (ends, keys) = ([&first.keys, &second.keys], first.keys.start);
        let end = first.keys.end.max(second.keys.end);
        let ends: Option<_> = { ends.into_iter() }
            .map(|keys| i32::try_from(keys.len()).ok())
            .collect();
        Some(Call {
            local: first.local.start..second.local.end,
            keys: keys..end,
            mask: first.mask,
            ends: ends?,
        })
    }
}

/// The rows of a tensor as two batch entries.
fn halves(layout: &Layout) -> Layout {
    let ([_, rows, heads, dim], mut strides) = (layout.shape, layout.strides);
    strides[0] = rows / 2 * strides[1];
    Layout {
        shape: [2, rows / 2, heads, dim],
        strides,
    }
}

/// Two batch entries of the same rows.
fn twice(layout: &Layout) -> Layout {
    let (mut shape, mut strides) = (layout.shape, layout.strides);
    (shape[0], strides[0]) = (2, 0);
    Layout { shape, strides }
}

fn elsewhere() -> Invalid {
    Invalid::presence("k or v", "has rows outside of its device's memory")
}

/// Where a row lies in staging memory.
fn position(spans: &[Range<usize>], row: usize) -> usize {
    { spans.iter() }
        .map(|span| row.clamp(span.start, span.end) - span.start)
        .sum()
}
