//! The scheme `heads`: each rank gets all rows of some heads, computes one call, and gives the output's rows back to their owners. Each
//! value is one that a single device would compute.

use std::ops::Range;

use warptile::driver::Rows;
use warptile::spec::Heads;
use warptile::{Attention, Element, Keys, Layout, Queries, Tensor};

use crate::error::{Error, OfRank, Result};
use crate::shard::part;
use crate::shards::Shards;
use crate::stage::{Source, put_together, rows_of_heads};

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

    /// Whole key/value heads, or where there are more ranks than these, some of the query heads of one, which then is with several ranks.
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

pub(crate) fn forward<T: Element>(
    shards: &Shards<'_>,
    attention: &Attention,
    q: &[Tensor<T>],
    [k, v]: [&[Tensor<T>]; 2],
) -> Result<Vec<Tensor<T>>> {
    let ranks = shards.map().ranks();
    let [_, _, heads, _] = q[0].shape();
    let [_, _, kv_heads, value_dim] = v[0].shape();
    let [_, _, _, dim] = k[0].shape();
    let shares = Share::all(
        ranks,
        Heads::new(heads, dim)
            .key_value(kv_heads)
            .value_dim(value_dim),
    )?;
    if attention.has_numbers() {
        return Err(Error::Argument {
            rank: 0,
            rule: "options with numbers for each head are for the scheme gather".to_owned(),
        });
    }
    let [q, k, v] = [q, k, v].map(Source::lend_all);
    let (q, k, v) = (q?, k?, v?);
    let offsets = offsets(shards)?;
    let all_rows = 0..shards.map().len();
    let spans = std::slice::from_ref(&all_rows);
    let group = shards.group();
    // All rows of a rank's heads.
    let computed = group.each(|rank| {
        let Share { queries, keys } = &shares[rank];
        let staged = |heads, from| rows_of_heads(shards, rank, spans, heads, from);
        let mut staged = [staged(queries, &q)?, staged(keys, &k)?, staged(keys, &v)?];
        staged.iter_mut().try_for_each(|tensor| tensor.copy_own())?;
        let [q, k, v] = staged.map(|tensor| tensor.into_tensor());
        let (q, k, v) = (q?, k?, v?);
        let layout = Layout::bhsd([1, queries.len(), all_rows.len(), value_dim]);
        let mut out = group.uninit(rank, layout)?;
        let (queries, keys) = (Queries::new(&q), Keys::new(&k, &v));
        let (queries, keys) = match &offsets {
            Some(offsets) => (queries.packed(offsets), keys.packed(offsets)),
            None => (queries, keys),
        };
        attention.forward_into(queries, keys, &mut out, None)?;
        warptile::Result::Ok(out)
    });
    let computed = { computed.into_iter().enumerate() }.map(|(rank, out)| out.of_rank(rank));
    let computed = computed.collect::<Result<Vec<_>>>();
    [q, k, v].into_iter().try_for_each(Source::end_all)?;
    let computed = computed?;
    // The rows of a rank, of all heads.
    let parts = Source::lend_all(&computed)?;
    let outputs = group.each(|rank| {
        let local_rows = shards.map().local_len(rank);
        let copies = shares.iter().zip(&parts).flat_map(|(share, source)| {
            let mut local = 0;
            shards.map().chunks(rank).iter().map(move |chunk| {
                let rows = Rows {
                    count: share.queries.len(),
                    len: chunk.rows.len() * value_dim,
                    from: chunk.rows.start * value_dim,
                    from_pitch: source.tensor.shape()[1] * value_dim,
                    to: (share.queries.start * local_rows + local) * value_dim,
                    to_pitch: local_rows * value_dim,
                };
                local += chunk.rows.len();
                (source, rows)
            })
        });
        let layout = Layout::bhsd([1, heads, local_rows, value_dim]);
        let mut out = put_together(group, rank, layout, copies)?;
        out.copy_own()?;
        out.into_tensor()
    });
    let outputs = { outputs.into_iter().enumerate() }.map(|(rank, out)| out.of_rank(rank));
    let outputs = outputs.collect();
    Source::end_all(parts)?;
    outputs
}

/// Where the documents begin and end, if there are several.
fn offsets(shards: &Shards<'_>) -> Result<Option<Vec<i32>>> {
    let map = shards.map();
    let chunks = (0..map.ranks()).flat_map(|rank| map.chunks(rank));
    let mut ends: Vec<_> = chunks.map(|chunk| chunk.document.end).collect();
    ends.sort_unstable();
    ends.dedup();
    if ends.len() < 2 {
        return Ok(None);
    }
    let offsets = [0]
        .into_iter()
        .chain(ends)
        .map(i32::try_from)
        .collect::<Result<_, _>>();
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
