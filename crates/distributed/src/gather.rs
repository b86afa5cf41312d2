//! The scheme `gather`: each rank fetches the keys that its queries see, one group of heads after the other, while the group before is
//! computed. Only bytes travel; no sum is ever made across ranks.

use std::ops::Range;

use warptile::spec::Operand;
use warptile::{Attention, Diagonal, Element, Layout, Mask, Tensor};

use crate::error::{Error, OfRank, Result};
use crate::group::Streams;
use crate::need::{Part, parts, staged};
use crate::plan;
use crate::shard::Chunk;
use crate::shards::Shards;
use crate::stage::{self, Source, position};

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
    // A call takes the distance from where its last row is that of its last key.
    let is_apart = |rank: &usize| {
        let chunks = shards.map().chunks(*rank).iter().zip(&all_parts[*rank]);
        chunks
            .into_iter()
            .any(|(chunk, part)| chunk.rows.end != part.keys.end)
    };
    if attention.has(Operand::Slopes)
        && let Some(rank) = (0..all_parts.len()).find(is_apart)
    {
        let rule = "ALiBi over parts of a sequence needs a causal mask, or a window up to the query's own key";
        return Err(Error::Argument {
            rank,
            rule: rule.to_owned(),
        });
    }
    // Lent before any kernel is submitted, and until all are: so copies wait for what computed the keys, but not for kernels of this call,
    // and no kernel of it waits for copies of other ranks.
    let (k, v) = (Source::lend_all(kv[0])?, Source::lend_all(kv[1])?);
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
    Source::end_all(k)?;
    Source::end_all(v)?;
    outputs
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
        kv: [&[Source<'_, T>]; 2],
    ) -> warptile::Result<Tensor<T>> {
        let [_, rows, heads, _] = q.shape();
        let [_, _, kv_heads, value_dim] = kv[1][self.rank].tensor.shape();
        let group = self.shards.group();
        let mut out = group.uninit(self.rank, Layout::bhsd([1, heads, rows, value_dim]))?;
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
            let stage = |from| stage::rows_of_heads(self.shards, self.rank, &spans, heads, from);
            staged.push([stage(kv[0])?, stage(kv[1])?]);
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
