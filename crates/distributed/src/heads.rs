//! The scheme `heads`: each rank gets all rows of some heads, computes one call, and gives the output's rows back to their owners. Each
//! value is one that a single device would compute.

use std::collections::BTreeMap;
use std::ops::Range;
use std::slice;

use warptile::driver::Rows;
use warptile::ops::sum_into;
use warptile::spec::Heads;
use warptile::{Attention, Element, GradientsInto, Keys, Layout, Queries, Tensor};

use crate::error::{Error, OfRank, Result};
use crate::group::all_or_none;
use crate::lse::{Piece, ShardedLse};
use crate::shard::{RowMap, part};
use crate::shards::{Gradients, Output, Shards};
use crate::stage::{Source, Staged, fetched, position, rows_of_heads, staged_rows};
use crate::sums::check_parts;

/// The query heads of a rank, and the key/value heads that they share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) queries: Range<usize>,
    pub(crate) keys: Range<usize>,
}

impl Share {
    /// The share of each rank.
    ///
    /// # Errors
    /// [`Error::Argument`] if there are more ranks than query heads.
    pub(crate) fn all(ranks: usize, heads: Heads) -> Result<Vec<Self>> {
        let query = heads.query;
        if query < ranks {
            return Err(Error::Argument {
                rank: query,
                rule: format!("{ranks} ranks need at least as many query heads, not {query}"),
            });
        }
        let share = |rank| Share::of(rank, ranks, [query, heads.key_value]);
        Ok((0..ranks).map(share).collect())
    }

    /// Whole key/value heads. If there are more ranks than these, some of the query heads of one, which several ranks then have.
    fn of(rank: usize, ranks: usize, [heads, kv_heads]: [usize; 2]) -> Self {
        let shared_by = heads / kv_heads;
        if kv_heads >= ranks {
            let keys = part(kv_heads, rank, ranks);
            return Share {
                queries: keys.start * shared_by..keys.end * shared_by,
                keys,
            };
        }
        // The head whose ranks this one is among.
        let head = (0..kv_heads)
            .find(|head| part(ranks, *head, kv_heads).contains(&rank))
            .unwrap_or(0);
        let with = part(ranks, head, kv_heads);
        let queries = part(shared_by, rank - with.start, with.len());
        Share {
            queries: head * shared_by + queries.start..head * shared_by + queries.end,
            keys: head..head + 1,
        }
    }
}

/// The heads of so many of the ranks.
///
/// # Errors
/// As [`Share::all`]; [`Error::Argument`] for options with numbers for each head.
pub(crate) fn shares<T: Element>(
    shards: &Shards<'_>,
    ranks: usize,
    attention: &Attention,
    q: &[Tensor<T>],
    k: &[Tensor<T>],
) -> Result<Vec<Share>> {
    let heads = Heads::new(q[0].shape()[2], k[0].shape()[3]).key_value(k[0].shape()[2]);
    let shares = Share::all(ranks, heads)?;
    if attention.has_numbers() {
        return Err(Error::Argument {
            rank: shards.group().local_ranks().start,
            rule: "options with numbers for each head are for the scheme gather".to_owned(),
        });
    }
    Ok(shares)
}

pub(crate) fn forward<T: Element>(
    shards: &Shards<'_>,
    attention: &Attention,
    q: &[Tensor<T>],
    [k, v]: [&[Tensor<T>]; 2],
) -> Result<Output<T>> {
    let shares = shares(shards, shards.map().ranks(), attention, q, k)?;
    let offsets = offsets(shards)?;
    let all_rows = 0..shards.map().len();
    let group = shards.group();
    let shapes = [q[0].shape(), k[0].shape(), v[0].shape()];
    shards.agreed::<T, _>("forward", attention, shapes, || {
        let [q, k, v] = [q, k, v].map(|of| Source::lend_all(group, of));
        let (q, k, v) = (q?, k?, v?);
        let [q_heads, kv_heads] = heads_of(&shares);
        let compute = |rank: usize, [q, k, v]: [warptile::Result<Tensor<T>>; 3]| {
            let queries = &shares[rank].queries;
            let (q, k, v) = (q?, k?, v?);
            let mut out = group.output(rank, &q, &v)?;
            let lse = attention.wants_lse();
            let lse = lse.then(|| group.uninit_lse(rank, out.shape()));
            let mut lse = lse.transpose()?;
            let (queries_of, keys) = of_call(&offsets, &q, [&k, &v]);
            let attention = of_heads(attention, queries);
            attention.forward_into(queries_of, keys, &mut out, lse.as_mut())?;
            let pieces = lse.into_iter().map(|lse| Piece {
                chunks: vec![(all_rows.clone(), 0)],
                heads: queries.clone(),
                lse,
            });
            warptile::Result::Ok((out, pieces.collect()))
        };
        let computed = group.each(|rank| {
            let of = [(&q_heads[..], &q[..]), (&kv_heads, &k), (&kv_heads, &v)];
            compute(rank, all_rows_of(shards, rank, of)?).of_rank(rank)
        });
        [q, k, v].into_iter().try_for_each(Source::end_all)?;
        let computed = all_or_none(group, computed)?;
        let (computed, lse): (Vec<_>, Vec<Vec<_>>) = computed.into_iter().unzip();
        let out = given_back(shards, &computed, &q_heads, |_| slice::from_ref(&all_rows))?;
        Ok(Output::new(out, attention, lse))
    })
}

/// Each rank computes the gradients of its heads, and gives the rows back. Where ranks share a key/value head, its gradients are added.
pub(crate) fn backward<T: Element>(
    shards: &Shards<'_>,
    attention: &Attention,
    d_out: &[Tensor<T>],
    q: &[Tensor<T>],
    [k, v]: [&[Tensor<T>]; 2],
    (out, lse): (&[Tensor<T>], &ShardedLse),
) -> Result<Gradients<T>> {
    let shares = shares(shards, shards.map().ranks(), attention, q, k)?;
    let [_, _, kv_heads, dim] = k[0].shape();
    let dims = [dim, v[0].shape()[3]];
    let offsets = offsets(shards)?;
    let all_rows = 0..shards.map().len();
    let group = shards.group();
    let is_shared = kv_heads < shares.len();
    for head in 0..kv_heads {
        let sharing = { shares.iter() }.filter(|share| is_shared && share.keys.start == head);
        check_parts(0, sharing.count())?;
    }
    let [q_heads, all_kv_heads] = heads_of(&shares);
    let shapes = [q[0].shape(), k[0].shape(), v[0].shape()];
    shards.agreed::<T, _>("backward", attention, shapes, || {
        let [q, k, v, out, d_out] = [q, k, v, out, d_out].map(|of| Source::lend_all(group, of));
        let (q, k, v, out, d_out) = (q?, k?, v?, out?, d_out?);
        let computed = group.each(|rank| {
            let Share { queries, keys } = &shares[rank];
            let lse =
                lse.of_launch([rank, group.place(rank)], &[(all_rows.clone(), 0)], queries)?;
            let of = [
                (&all_kv_heads[..], &k[..]),
                (&all_kv_heads, &v),
                (&q_heads, &q),
                (&q_heads, &out),
                (&q_heads, &d_out),
            ];
            let [k, v, q, out, d_out] = all_rows_of(shards, rank, of)?;
            let compute = || {
                let (k, v, q, out, d_out) = (k?, v?, q?, out?, d_out?);
                let layout =
                    |heads: &Range<usize>, dim| Layout::bhsd([1, heads.len(), all_rows.len(), dim]);
                let mut dq = group.uninit(rank, layout(queries, dims[0]))?;
                let (queries, given) = of_call(&offsets, &q, [&k, &v]);
                let into = GradientsInto::new().dq(&mut dq);
                let output = (&out, &lse);
                let attention = of_heads(attention, &shares[rank].queries);
                let dkv = match is_shared {
                    true => {
                        let mut dk = group.zeros(rank, layout(keys, dims[0]))?;
                        let mut dv = group.zeros(rank, layout(keys, dims[1]))?;
                        let into = into.key_sums(&mut dk, &mut dv);
                        attention.backward_into(&d_out, queries, given, output, into)?;
                        OfKeys::Sums([dk, dv])
                    }
                    false => {
                        let mut dk = group.uninit(rank, layout(keys, dims[0]))?;
                        let mut dv = group.uninit(rank, layout(keys, dims[1]))?;
                        let into = into.dk(&mut dk).dv(&mut dv);
                        attention.backward_into(&d_out, queries, given, output, into)?;
                        OfKeys::Rounded([dk, dv])
                    }
                };
                warptile::Result::Ok((dq, dkv))
            };
            compute().of_rank(rank)
        });
        [q, k, v, out, d_out]
            .into_iter()
            .try_for_each(Source::end_all)?;
        let (mut dq, mut sums, mut rounded) = (Vec::new(), [vec![], vec![]], [vec![], vec![]]);
        for (of_rank, of_keys) in all_or_none(group, computed)? {
            dq.push(of_rank);
            match of_keys {
                OfKeys::Sums(dkv) => {
                    { sums.iter_mut().zip(dkv) }.for_each(|(all, of)| all.push(of))
                }
                OfKeys::Rounded(dkv) => {
                    { rounded.iter_mut().zip(dkv) }.for_each(|(all, of)| all.push(of));
                }
            }
        }
        let of_all = |_| slice::from_ref(&all_rows);
        let of_keys = |at: usize| match is_shared {
            true => added(shards, &sums[at], &shares, kv_heads),
            false => given_back(shards, &rounded[at], &all_kv_heads, of_all),
        };
        let dq = given_back(shards, &dq, &q_heads, of_all)?;
        let gradients = [dq, of_keys(0)?, of_keys(1)?];
        Ok(Gradients::new(gradients, Vec::new()))
    })
}

/// Gradients of a rank's keys and values.
enum OfKeys<T: Element> {
    Rounded([Tensor<T>; 2]),
    /// Shares of one head.
    Sums([Tensor<f32>; 2]),
}

/// The query heads of all ranks, and their key/value heads.
fn heads_of(shares: &[Share]) -> [Vec<Range<usize>>; 2] {
    let queries = shares.iter().map(|share| share.queries.clone());
    let keys = shares.iter().map(|share| share.keys.clone());
    [queries.collect(), keys.collect()]
}

/// The heads of all ranks, and a tensor that they are of.
pub(crate) type OfHeads<'a, 's, T> = (&'a [Range<usize>], &'s [Source<'s, T>]);

/// All rows of a rank's heads of each tensor.
pub(crate) fn all_rows_of<'s, T: Element, const N: usize>(
    shards: &'s Shards<'_>,
    rank: usize,
    of: [OfHeads<'_, 's, T>; N],
) -> Result<[warptile::Result<Tensor<T>>; N]> {
    let span = 0..shards.map().len();
    let spans = slice::from_ref(&span);
    let heads = of.map(|(heads, _)| heads);
    let from = of.map(|(_, from)| from);
    let staged = rows_of_heads(shards, rank, from, |at, reader| (spans, &heads[at][reader]))?;
    Ok(staged.map(Staged::into_tensor))
}

/// The options of a call of some query heads.
fn of_heads(attention: &Attention, heads: &Range<usize>) -> Attention {
    attention.clone().of_part([0, heads.start as u32, 0, 0])
}

fn of_call<'a, T: Element>(
    offsets: &'a Option<Vec<i32>>,
    q: &'a Tensor<T>,
    [k, v]: [&'a Tensor<T>; 2],
) -> (Queries<'a, T>, Keys<'a, T>) {
    let (queries, keys) = (Queries::new(q), Keys::new(k, v));
    match offsets {
        Some(offsets) => (queries.packed(offsets), keys.packed(offsets)),
        None => (queries, keys),
    }
}

/// The rows of each rank, of all heads, from tensors that have the rows of some spans of some heads each.
pub(crate) fn given_back<'r, T: Element>(
    shards: &Shards<'_>,
    computed: &[Tensor<T>],
    heads: &[Range<usize>],
    spans: impl Fn(usize) -> &'r [Range<usize>] + Sync,
) -> Result<Vec<Tensor<T>>> {
    let all_heads = heads.iter().map(|heads| heads.end).max().unwrap_or(0);
    let (group, map) = (shards.group(), shards.map());
    let parts = Source::lend_all(group, computed)?;
    let [.., dim] = parts[0].tensor.shape();
    let of = |reader: usize| {
        let rows = heads.iter().enumerate().flat_map(|(owner, heads)| {
            let rows = rows_back(map, reader, heads.clone(), dim, spans(owner)).into_iter();
            rows.map(move |rows| (owner, rows))
        });
        rows.collect()
    };
    let outputs = group.each(|rank| {
        let layout = Layout::bhsd([1, all_heads, map.local_len(rank), dim]);
        let [out] = fetched(group, rank, [&parts[..]], [layout], |_, reader| of(reader))?;
        out.into_tensor().of_rank(rank)
    });
    let outputs = outputs.into_iter().collect();
    Source::end_all(parts)?;
    outputs
}

/// As [`given_back`], of key/value heads that several ranks have a share of: added in the order of the ranks.
fn added<T: Element>(
    shards: &Shards<'_>,
    computed: &[Tensor<f32>],
    shares: &[Share],
    kv_heads: usize,
) -> Result<Vec<Tensor<T>>> {
    let one_each: Vec<_> = (0..shares.len()).map(|rank| rank..rank + 1).collect();
    let group = shards.group();
    let all_rows = 0..shards.map().len();
    let all = given_back(shards, computed, &one_each, |_| slice::from_ref(&all_rows))?;
    let outputs = group.each(|rank| {
        let all = &all[group.place(rank)];
        let [_, rows, _, dim] = all.shape();
        let add = || {
            let mut out = group.uninit(rank, Layout::bhsd([1, kv_heads, rows, dim]))?;
            for head in 0..kv_heads {
                let sharing = shares.iter().zip(&one_each);
                let parts = { sharing.filter(|(share, _)| share.keys.start == head) }
                    .map(|(_, of)| all.heads(of.clone()));
                let parts = parts.collect::<warptile::Result<Vec<_>>>()?;
                let parts: Vec<_> = parts.iter().collect();
                out.with_part(0..rows, head..head + 1, |out| sum_into(&parts, out))??;
            }
            warptile::Result::Ok(out)
        };
        add().of_rank(rank)
    });
    outputs.into_iter().collect()
}

/// The rows of a rank in a tensor that has the rows of `spans` of some heads, and in the rank's tensor of all heads.
fn rows_back(
    map: &RowMap,
    rank: usize,
    heads: Range<usize>,
    dim: usize,
    spans: &[Range<usize>],
) -> Vec<Rows> {
    let (local_rows, mut local) = (map.local_len(rank), 0);
    let rows = map.chunks(rank).iter().filter_map(|chunk| {
        let to = heads.start * local_rows + local;
        local += chunk.rows.len();
        let first = chunk.rows.start;
        let has = |span: &Range<usize>| span.contains(&first);
        spans.iter().any(has).then(|| Rows {
            count: heads.len(),
            len: chunk.rows.len() * dim,
            from: position(spans, first) * dim,
            from_pitch: staged_rows(spans) * dim,
            to: to * dim,
            to_pitch: local_rows * dim,
        })
    });
    rows.collect()
}

/// Where the documents begin and end, unless there is only the first.
fn offsets(shards: &Shards<'_>) -> Result<Option<Vec<i32>>> {
    let map = shards.map();
    let chunks = (0..map.ranks()).flat_map(|rank| map.chunks(rank));
    let ends: BTreeMap<_, _> = { chunks.map(|chunk| (chunk.number, chunk.document.end)) }.collect();
    let last = ends.last_key_value().map_or(0, |(number, _)| *number);
    if last == 0 {
        return Ok(None);
    }
    let mut end = 0;
    let offsets = (0..=last).map(|number| {
        // A document without rows ends where it begins.
        end = *ends.get(&number).unwrap_or(&end);
        i32::try_from(end)
    });
    let offsets = { [Ok(0)].into_iter().chain(offsets) }.collect::<Result<_, _>>();
    offsets
        .map(Some)
        .map_err(|_| Error::Sharding("documents have more rows than 31 bits count".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::Share;

    #[test]
    fn every_query_head_has_one_rank_and_the_key_head_that_it_shares() {
        for [heads, kv_heads] in [[8, 8], [32, 8], [12, 3], [6, 1], [10, 2], [7, 7], [40, 5]] {
            for ranks in 1..=heads {
                let mut next = 0;
                for rank in 0..ranks {
                    let share = Share::of(rank, ranks, [heads, kv_heads]);
                    assert_eq!(
                        share.queries.start, next,
                        "{heads}/{kv_heads}, {ranks} ranks"
                    );
                    assert!(
                        !share.queries.is_empty()
                            && share.queries.len().is_multiple_of(share.keys.len())
                    );
                    let shared_by = heads / kv_heads;
                    assert_eq!(share.queries.start / shared_by, share.keys.start);
                    assert_eq!((share.queries.end - 1) / shared_by, share.keys.end - 1);
                    next = share.queries.end;
                }
                assert_eq!(next, heads);
            }
        }
    }
}
