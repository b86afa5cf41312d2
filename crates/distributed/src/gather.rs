//! The scheme `gather`: each rank fetches the keys that its queries see, one group of heads after the other, while the group before is
//! computed. Only bytes travel; no sum is ever made across ranks.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use warptile::spec::Operand;
use warptile::{Attention, Diagonal, Element, Layout, Mask, Tensor};

use crate::error::{Error, OfRank, Result};
use crate::group::Streams;
use crate::nccl::control::FIELD;
use crate::need::{Part, parts, staged};
use crate::plan;
use crate::shard::{Chunk, RowMap};
use crate::shards::Shards;
use crate::stage::{self, Source, Staged, position};

pub(crate) fn forward<T: Element>(
    shards: &Shards<'_>,
    attention: &Attention,
    q: &[Tensor<T>],
    kv: [&[Tensor<T>]; 2],
) -> Result<Vec<Tensor<T>>> {
    let mask = attention.mask_set();
    let map = shards.map();
    let all_needs =
        { (0..map.ranks()).map(|rank| Needs::of(map, rank, mask)) }.collect::<Result<Vec<_>>>()?;
    if attention.has(Operand::Slopes)
        && let Some(rank) = all_needs.iter().position(|needs| needs.is_apart)
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
    let group = shards.group();
    let agreed = {
        group
            .processes()
            .zip(group.streams(group.local_ranks().start))
    }
    .map(|(nccl, streams)| nccl.agree(&describe(shards, attention, q, kv), streams))
    .transpose()?;
    let spans: Vec<_> = all_needs.iter().map(|needs| &needs.spans[..]).collect();
    // What a rank's thread submits waits for nothing that another one submits later.
    let outputs = group.each(|rank| {
        let rank_of = Rank {
            shards,
            rank,
            local: group.place(rank),
            needs: &all_needs[rank],
        };
        let kv_heads = k[0].tensor.shape()[2];
        let is_alone = group.processes().is_none() && spans[rank].is_empty();
        let groups = match attention.has_numbers() || is_alone {
            true => std::iter::once(0..kv_heads).collect(),
            false => plan::groups(kv_heads),
        };
        let stage = |heads| match group.processes() {
            Some(nccl) => nccl.exchange(shards, &spans, heads, kv),
            None => {
                let stage = |from| stage::rows_of_heads(shards, rank, spans[rank], heads, from);
                Ok([stage(kv[0]).of_rank(rank)?, stage(kv[1]).of_rank(rank)?])
            }
        };
        let staged = groups.iter().map(stage).collect::<Result<Vec<_>>>()?;
        { rank_of.forward(attention, q, kv, groups.into_iter().zip(staged)) }.of_rank(rank)
    });
    drop(agreed);
    let outputs = outputs.into_iter().collect();
    Source::end_all(k)?;
    Source::end_all(v)?;
    outputs
}

/// A call as ranks compare it before they exchange rows.
fn describe<T: Element>(
    shards: &Shards<'_>,
    attention: &Attention,
    q: &[Tensor<T>],
    [k, v]: [&[Source<'_, T>]; 2],
) -> String {
    let mut sharding = DefaultHasher::new();
    shards.map().hash(&mut sharding);
    let [_, _, heads, head_dim] = q[0].shape();
    let [_, _, kv_heads, value_dim] = v[0].tensor.shape();
    [
        format!("gather of {} rows", shards.map().len()),
        format!("a sharding of digest {:x}", sharding.finish()),
        format!("{heads} query heads for {kv_heads} of keys"),
        format!(
            "head sizes {head_dim}, {} and {value_dim}",
            k[0].tensor.shape()[3]
        ),
        format!("elements of {}", std::any::type_name::<T>()),
        format!("{attention:?}"),
    ]
    .join(&FIELD.to_string())
}

/// The keys that a rank's queries see, by where these are.
struct Needs {
    /// Documents that are the rank's as a whole.
    documents: Option<Documents>,
    /// Parts that need no rows of other ranks, and their rows among those of the rank.
    own: Vec<(Part, Range<usize>)>,
    /// All other parts.
    fetched: Vec<Part>,
    /// The keys of these.
    spans: Vec<Range<usize>>,
    /// True if a part ends with another key than its last query's own. A call takes distances from where its last row is that of its last
    /// key.
    is_apart: bool,
}

impl Needs {
    fn of(map: &RowMap, rank: usize, mask: Mask) -> Result<Needs> {
        let documents = Documents::of(map.chunks(rank));
        let (mut own, mut fetched) = (Vec::new(), Vec::new());
        let parts = parts(map, rank, mask)?;
        let mut chunks = map.chunks(rank).iter().zip(&parts);
        let is_apart = chunks.any(|(chunk, part)| chunk.rows.end != part.keys.end);
        for (at, part) in parts.into_iter().enumerate() {
            match &map.pieces(part.keys.clone())[..] {
                _ if documents.as_ref().is_some_and(|all| all.has(at)) => {}
                [piece] if piece.rank == rank => {
                    own.push((part, piece.local..piece.local + piece.rows.len()));
                }
                _ => fetched.push(part),
            }
        }
        Ok(Needs {
            documents,
            own,
            spans: staged(&fetched),
            fetched,
            is_apart,
        })
    }
}

/// One rank's part of a call.
struct Rank<'a> {
    shards: &'a Shards<'a>,
    rank: usize,
    /// Its place among the ranks of this process.
    local: usize,
    needs: &'a Needs,
}

impl Rank<'_> {
    fn forward<'s, T: Element>(
        &self,
        attention: &Attention,
        q: &[Tensor<T>],
        kv: [&[Source<'_, T>]; 2],
        staged: impl Iterator<Item = (Range<usize>, [Staged<'s, T>; 2])>,
    ) -> warptile::Result<Tensor<T>> {
        let mut staged: Vec<_> = staged.collect();
        let q = &q[self.local];
        let Needs { fetched, spans, .. } = self.needs;
        let [_, rows, heads, _] = q.shape();
        let [_, _, kv_heads, value_dim] = kv[1][self.local].tensor.shape();
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
        // Copies from others are submitted by now, so they are behind no kernel.
        for tensor in staged
            .first_mut()
            .into_iter()
            .flat_map(|(_, tensors)| tensors)
        {
            tensor.copy_own()?;
        }
        for (part, rows) in &self.needs.own {
            let [k, v] = kv.map(|from| from[self.local].tensor.rows(rows.clone()));
            compute(&mut out, &Call::of(part), &(0..kv_heads), [&k?, &v?])?;
        }
        if let Some(documents) = &self.needs.documents {
            let [k, v] = kv.map(|from| from[self.local].tensor);
            documents.forward(attention, q, [k, v], &mut out)?;
        }
        let calls = match fetched[..] {
            [ref first, ref second] if self.streams().is_some() => Call::of_two(first, second),
            _ => None,
        };
        let calls = calls.map_or_else(|| fetched.iter().map(Call::of).collect(), |call| vec![call]);
        for (heads, [mut k, mut v]) in staged {
            // Later ones here: as the kernels of the group before end, these find multiprocessors.
            k.copy_own()?;
            v.copy_own()?;
            let (k, v) = (k.into_tensor()?, v.into_tensor()?);
            for call in &calls {
                let at = position(spans, call.keys.start);
                let keys = at..at + call.keys.len();
                let (k, v) = (k.rows(keys.clone())?, v.rows(keys)?);
                compute(&mut out, call, &heads, [&k, &v])?;
            }
        }
        Ok(out)
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
