//! The scheme `hybrid`: a host as a whole has the rows of its ranks. A rank gets these rows of some heads from the ranks of its host, as in
//! [`heads`](crate::heads), fetches the keys that they see from the ranks of all hosts, as in [`gather`](crate::gather), and gives the
//! output's rows back. So each row of keys goes to a host once for each head, however many ranks the host has.

use std::ops::Range;

use warptile::{Attention, Element, Layout, Tensor};

use crate::error::{OfRank, Result};
use crate::gather::{Given, Needs, Rank};
use crate::group::all_or_none;
use crate::heads::{Share, given_back, shares};
use crate::lse::ShardedLse;
use crate::shards::{Gradients, Output, Shards};
use crate::stage::{Source, Staged, rows_of_heads};
use crate::sums::{self, Home, Routes};

/// The ranks by hosts.
struct Hosts {
    /// How many ranks each has.
    ranks: usize,
    /// The heads of each rank of a host.
    shares: Vec<Share>,
    /// The rows of each host, and what they need.
    rows: Vec<Vec<Range<usize>>>,
    needs: Vec<Needs>,
}

impl Hosts {
    fn of<T: Element>(
        shards: &Shards<'_>,
        hosts: usize,
        attention: &Attention,
        q: &[Tensor<T>],
        k: &[Tensor<T>],
    ) -> Result<Self> {
        let (ranks, map) = shards.map().of_hosts(hosts)?;
        let shares = shares(shards, ranks, attention, q, k)?;
        let of_host = |host| {
            map.chunks(host)
                .iter()
                .map(|chunk| chunk.rows.clone())
                .collect()
        };
        Ok(Hosts {
            ranks,
            shares,
            rows: (0..hosts).map(of_host).collect(),
            needs: Needs::all_fetched(&map, shards.map().ranks(), attention)?,
        })
    }

    fn share(&self, rank: usize) -> &Share {
        &self.shares[rank % self.ranks]
    }

    fn rows(&self, rank: usize) -> &[Range<usize>] {
        &self.rows[rank / self.ranks]
    }

    fn needs(&self, rank: usize) -> &Needs {
        &self.needs[rank / self.ranks]
    }

    /// The heads of each rank: those of queries, or of keys.
    fn heads(&self, of: impl Fn(&Share) -> &Range<usize>) -> Vec<Range<usize>> {
        let ranks = 0..self.rows.len() * self.ranks;
        ranks.map(|rank| of(self.share(rank)).clone()).collect()
    }

    fn rank<'a>(&'a self, shards: &'a Shards<'a>, rank: usize) -> Rank<'a> {
        Rank {
            shards,
            rank,
            local: shards.group().place(rank),
            needs: self.needs(rank),
            first_head: self.share(rank).queries.start,
        }
    }

    /// The rows of a rank's host, of its query heads.
    fn of_host<'s, T: Element, const N: usize>(
        &self,
        shards: &'s Shards<'_>,
        rank: usize,
        from: [&'s [Source<'s, T>]; N],
    ) -> Result<[Tensor<T>; N]> {
        let staged = rows_of_heads(shards, rank, from, |_, reader| {
            (self.rows(reader), &self.share(reader).queries)
        })?;
        let tensors = staged.into_iter().map(Staged::into_tensor);
        let tensors = { tensors.collect::<warptile::Result<Vec<_>>>() }.of_rank(rank)?;
        match <[_; N]>::try_from(tensors) {
            Ok(tensors) => Ok(tensors),
            Err(_) => unreachable!("there is one for each source"),
        }
    }

    /// The keys and values that these rows see, of the rank's heads.
    fn keys<'s, T: Element>(
        &self,
        shards: &'s Shards<'_>,
        rank: usize,
        kv: [&'s [Source<'s, T>]; 2],
    ) -> Result<[Staged<'s, T>; 2]> {
        rows_of_heads(shards, rank, kv, |_, reader| {
            (&self.needs(reader).spans, &self.share(reader).keys)
        })
    }
}

/// No rows of some heads: all keys are fetched.
fn no_rows<T: Element>(
    shards: &Shards<'_>,
    rank: usize,
    heads: usize,
    dims: [usize; 2],
) -> warptile::Result<[Tensor<T>; 2]> {
    let none = |dim| {
        shards
            .group()
            .uninit(rank, Layout::bhsd([1, heads, 0, dim]))
    };
    Ok([none(dims[0])?, none(dims[1])?])
}

pub(crate) fn forward<T: Element>(
    shards: &Shards<'_>,
    hosts: usize,
    attention: &Attention,
    q: &[Tensor<T>],
    kv: [&[Tensor<T>]; 2],
) -> Result<Output<T>> {
    let hosts = Hosts::of(shards, hosts, attention, q, kv[0])?;
    let shapes = [q[0].shape(), kv[0][0].shape(), kv[1][0].shape()];
    let dims = [shapes[1][3], shapes[2][3]];
    let group = shards.group();
    shards.agreed::<T, _>("forward", attention, shapes, || {
        let [q, k, v] = [q, kv[0], kv[1]].map(|of| Source::lend_all(group, of));
        let (q, k, v) = (q?, k?, v?);
        let computed = group.each(|rank| {
            let heads = &hosts.share(rank).keys;
            let [q] = hosts.of_host(shards, rank, [&q[..]])?;
            let staged = hosts.keys(shards, rank, [&k, &v])?;
            let own = no_rows(shards, rank, heads.len(), dims).of_rank(rank)?;
            let staged = std::iter::once((0..heads.len(), staged));
            { hosts.rank(shards, rank) }
                .forward(attention, &q, own.each_ref(), staged)
                .of_rank(rank)
        });
        [q, k, v].into_iter().try_for_each(Source::end_all)?;
        let computed = all_or_none(group, computed)?;
        let (computed, lse): (Vec<_>, Vec<_>) = computed.into_iter().unzip();
        let heads = hosts.heads(|share| &share.queries);
        let out = given_back(shards, &computed, &heads, |rank| hosts.rows(rank))?;
        Ok(Output::new(out, attention, lse))
    })
}

/// A rank gives the gradients of queries back, and in `f32` its share of those of the keys that its host's queries see, which the owners of
/// the keys add up.
pub(crate) fn backward<T: Element>(
    shards: &Shards<'_>,
    hosts: usize,
    attention: &Attention,
    d_out: &[Tensor<T>],
    q: &[Tensor<T>],
    kv: [&[Tensor<T>]; 2],
    (out, lse): (&[Tensor<T>], &ShardedLse),
) -> Result<Gradients<T>> {
    let hosts = Hosts::of(shards, hosts, attention, q, kv[0])?;
    let shapes = [q[0].shape(), kv[0][0].shape(), kv[1][0].shape()];
    let (dims, kv_heads) = ([shapes[1][3], shapes[2][3]], shapes[1][2]);
    let group = shards.group();
    let of_ranks = hosts.heads(|share| &share.keys);
    // Ranks that share a head follow each other on each host.
    let mut distinct = of_ranks[..hosts.ranks].to_vec();
    distinct.dedup();
    let routes = distinct.into_iter().map(|heads| {
        // All ranks take part, those with other heads without rows.
        let seen = { of_ranks.iter().enumerate() }.map(|(rank, of)| match *of == heads {
            true => hosts.needs(rank).summed(attention),
            false => Vec::new(),
        });
        let routes = Routes::new(shards, seen)?;
        Ok((heads, routes))
    });
    let routes = routes.collect::<Result<Vec<_>>>()?;
    shards.agreed::<T, _>("backward", attention, shapes, || {
        let of_all = [q, kv[0], kv[1], out, d_out];
        let [q, k, v, out, d_out] = of_all.map(|of| Source::lend_all(group, of));
        let (q, k, v, out, d_out) = (q?, k?, v?, out?, d_out?);
        let zeros = |rank: usize, heads: &Range<usize>, rows: usize| -> warptile::Result<_> {
            let of = |dim| group.zeros::<f32>(rank, Layout::bhsd([1, heads.len(), rows, dim]));
            Ok([of(dims[0])?, of(dims[1])?])
        };
        let computed = group.each(|rank| {
            let heads = &hosts.share(rank).keys;
            let [q, out, d_out] = hosts.of_host(shards, rank, [&q, &out, &d_out])?;
            let staged = hosts.keys(shards, rank, [&k, &v])?;
            let begin = || {
                let parts = hosts.needs(rank).summed(attention);
                let rows = parts.len() * sums::rows_of_part(&parts);
                let dq = group.uninit(rank, *q.layout())?;
                let own = no_rows(shards, rank, heads.len(), dims)?;
                warptile::Result::Ok((dq, zeros(rank, heads, rows)?, own))
            };
            let (mut dq, mut sums, own) = begin().of_rank(rank)?;
            let given = Given {
                attention,
                d_out: &d_out,
                q: &q,
                kv: own.each_ref(),
                out: &out,
                lse,
            };
            let to = (&mut dq, &mut [][..]);
            let all = 0..heads.len();
            { hosts.rank(shards, rank) }.gradients(&given, &all, staged, to, &mut sums)?;
            Ok((dq, sums))
        });
        [q, k, v, out, d_out]
            .into_iter()
            .try_for_each(Source::end_all)?;
        let computed = all_or_none(group, computed)?;
        let (dq, sums): (Vec<_>, Vec<_>) = computed.into_iter().unzip();
        let heads = hosts.heads(|share| &share.queries);
        let dq = given_back(shards, &dq, &heads, |rank| hosts.rows(rank))?;

        // Each row of keys is seen by a query, or it has no gradient.
        let of_keys = { group.local_ranks() }.map(|rank| {
            let layout = |dim| Layout::bhsd([1, kv_heads, shards.map().local_len(rank), dim]);
            let of = |dim| group.zeros(rank, layout(dim)).of_rank(rank);
            Ok([of(dims[0])?, of(dims[1])?])
        });
        let mut of_keys = of_keys.collect::<Result<Vec<[Tensor<T>; 2]>>>()?;
        for (heads, routes) in routes {
            let sums = { group.local_ranks().zip(&sums) }.map(|(rank, sums)| {
                match of_ranks[rank] == heads {
                    true => Ok(sums.clone()),
                    false => zeros(rank, &heads, 0).of_rank(rank),
                }
            });
            let sums = sums.collect::<Result<Vec<_>>>()?;
            Home::fetch(shards, &routes, heads, &sums)?.add_up(&routes, of_keys.iter_mut())?;
        }
        let (dk, dv) = { of_keys.into_iter() }.map(<(_, _)>::from).unzip();
        Ok(Gradients::new([dq, dk, dv], Vec::new()))
    })
}
