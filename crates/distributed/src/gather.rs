//! The scheme `gather`: each rank fetches the keys that its queries see, one group of heads after the other, while the group before is
//! computed. Of outputs only bytes travel; gradients of keys are sums of what several ranks computed.

use std::ops::Range;

use warptile::spec::{DropoutState, Operand};
use warptile::{Attention, Element, GradientsInto, Layout, Lse, Mask, Tensor};

use crate::call::{Call, Documents};
use crate::error::{Error, OfRank, Result};
use crate::group::{Streams, all_or_none};
use crate::lse::{Piece, ShardedLse, joined, of_parts};
use crate::need::{Part, are_alike, cut, own_keys, pairs, parts, parts_of, staged, summed};
use crate::plan;
use crate::shard::RowMap;
use crate::shards::{Gradients, Output, Shards};
use crate::stage::{self, Source, Staged, position, staged_rows};
use crate::sums;

pub(crate) fn forward<T: Element>(
    shards: &Shards<'_>,
    attention: &Attention,
    q: &[Tensor<T>],
    kv: [&[Tensor<T>]; 2],
) -> Result<Output<T>> {
    let all_needs = Needs::all(shards, attention)?;
    let in_one_group = attention.has_numbers() || all_needs.iter().all(Needs::hides_copies);
    let group = shards.group();
    let shapes = [q[0].shape(), kv[0][0].shape(), kv[1][0].shape()];
    shards.agreed::<T, _>("forward", attention, shapes, || {
        // Lent before any kernel is submitted, and until all are: so copies wait for what computed the keys, but not for kernels of this call,
        // and no kernel of it waits for copies of other ranks.
        let (k, v) = (
            Source::lend_all(group, kv[0])?,
            Source::lend_all(group, kv[1])?,
        );
        let kv = [&k[..], &v[..]];
        // Work that a rank's thread submits waits for nothing that another one submits later.
        let outputs = group.each(|rank| {
            let local = group.place(rank);
            let rank_of = Rank::of(shards, rank, &all_needs[rank]);
            let own = kv.map(|from| from[local].tensor);
            let kv_heads = k[0].tensor.shape()[2];
            let is_alone = group.processes().is_none() && all_needs[rank].spans.is_empty();
            let groups = plan::groups(kv_heads, in_one_group || is_alone);
            let staged = groups
                .iter()
                .map(|heads| staged_keys(shards, rank, &all_needs, heads, kv));
            let staged = staged.collect::<Result<Vec<_>>>()?;
            { rank_of.forward(attention, &q[local], own, groups.into_iter().zip(staged)) }
                .of_rank(rank)
        });
        let outputs = outputs.into_iter().collect::<Result<Vec<_>>>();
        Source::end_all(k)?;
        Source::end_all(v)?;
        let (out, lse) = outputs?.into_iter().unzip();
        Ok(Output::new(out, attention, lse))
    })
}

/// The keys and values that a rank fetches, of some heads.
fn staged_keys<'s, T: Element>(
    shards: &'s Shards<'_>,
    rank: usize,
    all_needs: &[Needs],
    heads: &Range<usize>,
    kv: [&'s [Source<'s, T>]; 2],
) -> Result<[Staged<'s, T>; 2]> {
    stage::rows_of_heads(shards, rank, kv, |_, reader| {
        (&all_needs[reader].spans, heads)
    })
}

/// Each rank computes the gradients of its queries, and in `f32` their share of the gradients of the keys that they see. The shares travel
/// to the owners of the keys, those of one group of heads while the next is computed.
pub(crate) fn backward<T: Element>(
    shards: &Shards<'_>,
    attention: &Attention,
    d_out: &[Tensor<T>],
    q: &[Tensor<T>],
    kv: [&[Tensor<T>]; 2],
    output: (&[Tensor<T>], &ShardedLse),
) -> Result<Gradients<T>> {
    let [_, _, kv_heads, dim] = kv[0][0].shape();
    let dims = [dim, kv[1][0].shape()[3]];
    let group = shards.group();
    let groups = plan::groups_of_gradients(kv_heads, attention.has_numbers());
    let all_needs = Needs::all(shards, attention)?;
    let summed = all_needs.iter().map(|needs| needs.summed(attention));
    let routes = sums::Routes::new(shards, summed)?;
    if attention.gradients_of_numbers().next().is_some() {
        sums::check_parts(0, group.ranks())?;
    }
    let shapes = [q[0].shape(), kv[0][0].shape(), kv[1][0].shape()];
    shards.agreed::<T, _>("backward", attention, shapes, || {
        let (k, v) = (
            Source::lend_all(group, kv[0])?,
            Source::lend_all(group, kv[1])?,
        );
        let lent = [&k[..], &v[..]];
        let begin = |rank: usize, staged: &mut [[Staged<'_, T>; 2]]| -> warptile::Result<_> {
            let local = shards.map().local_len(rank);
            let mut staged = staged.iter_mut().flatten();
            staged.try_for_each(Staged::copy_own)?;
            let zeros = |heads: usize, rows: usize, dim: usize| {
                group.zeros::<f32>(rank, Layout::bhsd([1, heads, rows, dim]))
            };
            let is_one_call = all_needs[rank].one_call(attention).is_some();
            let sums = { groups.iter() }.map(|heads| {
                let sums = |dim| {
                    let layout = Layout::bhsd([1, heads.len(), routes.rows(rank), dim]);
                    match is_one_call {
                        true => group.uninit(rank, layout),
                        false => group.zeros(rank, layout),
                    }
                };
                Ok([sums(dims[0])?, sums(dims[1])?])
            });
            let sums = sums.collect::<warptile::Result<Vec<_>>>()?;
            let of_keys = |dim| {
                let layout = Layout::bhsd([1, kv_heads, local, dim]);
                match routes.leave_gaps(rank) {
                    true => group.zeros(rank, layout),
                    false => group.uninit(rank, layout),
                }
            };
            let q = &q[group.place(rank)];
            let numbers = attention.gradients_of_numbers();
            let numbers = numbers.map(|_| zeros(q.shape()[2], 1, 1));
            let to = To {
                dq: group.uninit(rank, *q.layout())?,
                dkv: [of_keys(dims[0])?, of_keys(dims[1])?],
                numbers: numbers.collect::<warptile::Result<_>>()?,
            };
            Ok((sums, to))
        };
        let begun = group.each(|rank| {
            let staged = groups
                .iter()
                .map(|heads| staged_keys(shards, rank, &all_needs, heads, lent));
            let mut staged = staged.collect::<Result<Vec<_>>>()?;
            let (sums, to) = begin(rank, &mut staged).of_rank(rank)?;
            Ok((staged, sums, to))
        });
        let (mut to, mut staged, mut sums) = (Vec::new(), Vec::new(), Vec::new());
        for begun in all_or_none(group, begun)? {
            staged.push(begun.0.into_iter());
            sums.push(begun.1.into_iter());
            to.push(begun.2);
        }
        let rank_of = |rank| Rank::of(shards, rank, &all_needs[rank]);
        let given_to = |rank| {
            let local = group.place(rank);
            Given {
                attention,
                d_out: &d_out[local],
                q: &q[local],
                kv: lent.map(|from| from[local].tensor),
                out: &output.0[local],
                lse: output.1,
            }
        };
        let documents = group.each_of(&mut to, |rank, to| {
            rank_of(rank).documents_to(&given_to(rank), to)
        });
        all_or_none(group, documents)?;
        let mut sums: Vec<Vec<[Tensor<f32>; 2]>> = { groups.iter() }
            .map(|_| sums.iter_mut().filter_map(Iterator::next).collect())
            .collect();
        let mut before: Option<sums::Home<'_, 2>> = None;
        for (heads, sums) in groups.iter().zip(&mut sums) {
            let items = { to.iter_mut().zip(&mut staged) }.zip(sums.iter_mut());
            let computed = group.each_of(items, |rank, ((to, staged), sums)| {
                let staged = staged.next();
                let (dq, numbers) = (&mut to.dq, &mut to.numbers[..]);
                staged.map_or(Ok(()), |kv| {
                    rank_of(rank).gradients(&given_to(rank), heads, kv, (dq, numbers), sums)
                })
            });
            all_or_none(group, computed)?;
            // Behind the kernels of this group, so that these wait for no copy of the sums.
            if let Some(before) = before.take() {
                before.add_up(&routes, to.iter_mut().map(|to| &mut to.dkv))?;
            }
            before = Some(sums::Home::fetch(shards, &routes, heads.clone(), sums)?);
        }
        if let Some(before) = before {
            before.add_up(&routes, to.iter_mut().map(|to| &mut to.dkv))?;
        }
        Source::end_all(k)?;
        Source::end_all(v)?;
        let numbers = { attention.gradients_of_numbers().enumerate() }.map(|(at, gradient)| {
            let of_ranks = to.iter().map(|to| to.numbers[at].clone());
            Ok(sums::of_numbers(shards, of_ranks)?.map(|sum| (gradient, sum)))
        });
        let numbers = { numbers.filter_map(Result::transpose) }.collect::<Result<Vec<_>>>()?;
        let (dq, dkv) = { to.into_iter() }.map(|to| (to.dq, to.dkv.into())).unzip();
        let (dk, dv) = { <Vec<(_, _)>>::into_iter(dkv) }.unzip();
        Ok(Gradients::new([dq, dk, dv], numbers))
    })
}

/// The arguments of a backward pass on a rank. The keys and values are its own.
pub(crate) struct Given<'a, T: Element> {
    pub(crate) attention: &'a Attention,
    pub(crate) d_out: &'a Tensor<T>,
    pub(crate) q: &'a Tensor<T>,
    pub(crate) kv: [&'a Tensor<T>; 2],
    pub(crate) out: &'a Tensor<T>,
    pub(crate) lse: &'a ShardedLse,
}

/// The gradients of a rank's rows.
struct To<T: Element> {
    dq: Tensor<T>,
    dkv: [Tensor<T>; 2],
    /// Those of [`Attention::gradients_of_numbers`], from its queries.
    numbers: Vec<Tensor<f32>>,
}

/// Adds the gradients of numbers to where others are written.
fn with_numbers<'a, T: Element>(
    into: GradientsInto<'a, T>,
    attention: &Attention,
    numbers: &'a mut [Tensor<f32>],
) -> GradientsInto<'a, T> {
    { attention.gradients_of_numbers().zip(numbers) }
        .fold(into, |into, (gradient, to)| into.numbers(gradient, to))
}

/// The keys that a rank's queries see, by where these are.
pub(crate) struct Needs {
    /// Documents that are the rank's as a whole.
    documents: Option<Documents>,
    /// Parts that need no rows of other ranks, and their rows among those of the rank.
    own: Vec<(Part, Range<usize>)>,
    /// All other parts.
    fetched: Vec<Part>,
    /// The keys of these.
    pub(crate) spans: Vec<Range<usize>>,
    /// How many ranks may add to the gradients of a key.
    ranks: usize,
    /// True if a part ends with another key than its last query's own. A call takes distances from where its last row is that of its last
    /// key.
    is_apart: bool,
}

impl Needs {
    /// The needs of all ranks.
    fn all(shards: &Shards<'_>, attention: &Attention) -> Result<Vec<Needs>> {
        let of = |rank| Needs::of(shards, rank, attention);
        Self::checked((0..shards.map().ranks()).map(of), 1, attention)
    }

    /// As [`all`](Self::all) of hosts, which have `ranks` ranks together, where none has keys that it need not fetch. Each rank may add to the
    /// gradients of a key.
    pub(crate) fn all_fetched(
        map: &RowMap,
        ranks: usize,
        attention: &Attention,
    ) -> Result<Vec<Needs>> {
        let of = |rank| {
            let fetched = parts(map, rank, attention.mask_set())?;
            Ok(Needs {
                documents: None,
                own: Vec::new(),
                spans: staged(&fetched),
                ranks,
                is_apart: is_apart(&fetched),
                fetched,
            })
        };
        let of_each = ranks / map.ranks();
        Self::checked((0..map.ranks()).map(of), of_each, attention)
    }

    /// Each of `all` is of so many ranks.
    fn checked(
        all: impl Iterator<Item = Result<Needs>>,
        ranks: usize,
        attention: &Attention,
    ) -> Result<Vec<Needs>> {
        let all = all.collect::<Result<Vec<_>>>()?;
        let aligned = |first: &usize| first.is_multiple_of(DropoutState::ALIGNMENT as usize);
        if attention.has(Operand::DropoutState)
            && let Some(at) = { all.iter() }.position(|needs| {
                !needs
                    .parts()
                    .all(|(part, _)| part.first[1..].iter().all(aligned))
            })
        {
            let rule = format!(
                "with dropout its chunks must begin at multiples of {} in their document, or use Scheme::Heads",
                DropoutState::ALIGNMENT
            );
            let rank = at * ranks;
            return Err(Error::Argument { rank, rule });
        }
        if attention.has(Operand::Slopes)
            && let Some(at) = all.iter().position(|needs| needs.is_apart)
        {
            let rule = "ALiBi over parts of a sequence needs a causal mask, or a window up to the query's own key";
            return Err(Error::Argument {
                rank: at * ranks,
                rule: rule.to_owned(),
            });
        }
        Ok(all)
    }

    /// All parts except whole documents that share a call, with their keys among the rank's rows if they need no others.
    fn parts(&self) -> impl Iterator<Item = (&Part, Option<&Range<usize>>)> {
        let own = self.own.iter().map(|(part, rows)| (part, Some(rows)));
        own.chain(self.fetched.iter().map(|part| (part, None)))
    }

    /// One call of all parts, for gradients. Their keys are among those that the rank fetches.
    fn one_call(&self, attention: &Attention) -> Option<Call> {
        match self.summed(attention).len() {
            1 => None,
            _ => Call::of_all(&self.in_order(), 0),
        }
    }

    /// The keys that each sum of gradients of the rank is of: each part of one call has its own.
    pub(crate) fn summed(&self, attention: &Attention) -> Vec<Vec<Range<usize>>> {
        let parts = self.in_order();
        let are_fetched = match &self.spans[..] {
            [span] => { parts.iter() }
                .all(|part| span.start <= part.keys.start && part.keys.end <= span.end),
            _ => false,
        };
        match are_fetched && !attention.has(Operand::DropoutState) {
            true => summed(&parts, self.ranks),
            false => vec![self.seen()],
        }
    }

    /// Returns true if the rank is busy with its own keys while the others are on their way. Whole documents are not counted.
    fn hides_copies(&self) -> bool {
        pairs(self.own.iter().map(|(part, _)| part)) >= pairs(&self.fetched)
    }

    /// All parts except whole documents that share a call, in the order of their queries.
    fn in_order(&self) -> Vec<Part> {
        let mut parts: Vec<_> = self.parts().map(|(part, _)| part.clone()).collect();
        parts.sort_by_key(|part| part.local.start);
        parts
    }

    /// The keys that these parts see.
    fn seen(&self) -> Vec<Range<usize>> {
        let parts: Vec<_> = self.parts().map(|(part, _)| part.clone()).collect();
        staged(&parts)
    }

    fn of(shards: &Shards<'_>, rank: usize, attention: &Attention) -> Result<Needs> {
        let map = shards.map();
        // Those of a rank don't have the numbers of neighbours, which dropout would count.
        let has_dropout = attention.has(Operand::DropoutState);
        let mask = attention.mask_set();
        let chunks = cut(map.chunks(rank), mask);
        let documents = { (!has_dropout).then(|| Documents::of(&chunks)) }.flatten();
        let (mut own, mut fetched) = (Vec::new(), Vec::new());
        let parts = parts_of(&chunks, mask)?;
        let is_apart = is_apart(&parts);
        for (at, part) in parts.into_iter().enumerate() {
            // Before its pieces are looked for, among all chunks.
            if documents.as_ref().is_some_and(|all| all.has(at)) {
                continue;
            }
            match own_keys(map, rank, &part) {
                Some(rows) => own.push((part, rows)),
                None => fetched.push(part),
            }
        }
        let mut needs = Needs {
            documents,
            own,
            spans: staged(&fetched),
            fetched,
            ranks: map.ranks(),
            is_apart,
        };
        // One launch of all is faster than one of its own keys while the others are on their way, and then one of the rest. On the CPU each
        // part has a call of its own.
        let is_gpu = shards.group().backends()[0].is_gpu();
        let (all, has_both) = (
            needs.in_order(),
            !needs.own.is_empty() && !needs.fetched.is_empty(),
        );
        let is_long = |part: &Part| part.local.len() >= Call::WITH_OWN_FROM_ROWS;
        if is_gpu && has_both && !has_dropout && are_alike(&all) && all.iter().all(is_long) {
            needs.own.clear();
            (needs.spans, needs.fetched) = (staged(&all), all);
        }
        Ok(needs)
    }
}

/// Returns true if a part's keys end with another than its last query's own.
fn is_apart(parts: &[Part]) -> bool {
    parts.iter().any(|part| part.rows.end != part.keys.end)
}

/// One rank's part of a call.
pub(crate) struct Rank<'a> {
    pub(crate) shards: &'a Shards<'a>,
    pub(crate) rank: usize,
    /// Its place among the ranks of this process.
    pub(crate) local: usize,
    pub(crate) needs: &'a Needs,
    /// The number of its first query head.
    pub(crate) first_head: usize,
}

impl<'a> Rank<'a> {
    /// A rank that has all heads.
    fn of(shards: &'a Shards<'a>, rank: usize, needs: &'a Needs) -> Self {
        Rank {
            shards,
            rank,
            local: shards.group().place(rank),
            needs,
            first_head: 0,
        }
    }

    /// The rows of `q` by the keys and values of its own and those that it has fetched.
    pub(crate) fn forward<'s, T: Element>(
        &self,
        attention: &Attention,
        q: &Tensor<T>,
        own: [&Tensor<T>; 2],
        staged: impl Iterator<Item = (Range<usize>, [Staged<'s, T>; 2])>,
    ) -> warptile::Result<(Tensor<T>, Vec<Piece>)> {
        let mut staged: Vec<_> = staged.collect();
        let Needs { fetched, spans, .. } = self.needs;
        let heads = q.shape()[2];
        let kv_heads = own[1].shape()[2];
        let group = self.shards.group();
        let mut out = group.output(self.rank, q, own[1])?;
        let wants_lse = attention.wants_lse();
        let lse_of = |rows: usize| {
            let lse = || group.uninit_lse(self.rank, [1, rows, heads, 1]);
            wants_lse.then(lse).transpose()
        };
        let shared_by = heads / kv_heads;
        let compute = |out: &mut Tensor<T>,
                       (call, lse): (&Call, &mut Option<Lse>),
                       heads: &Range<usize>,
                       [k, v]: [&Tensor<T>; 2]| {
            let of = heads.start * shared_by..heads.end * shared_by;
            let q = q.rows(call.local.clone())?.heads(of.clone())?;
            let attention = of_part(
                attention,
                call.mask,
                (call.first, self.first_head + of.start),
            );
            out.with_part(call.local.clone(), of.clone(), |out| {
                let mut submit = |lse: Option<&mut Lse>| {
                    self.call(call, &q, [k, v], |queries, keys| {
                        attention.forward_into(queries, keys, out, lse)
                    })
                };
                match lse {
                    Some(lse) => lse.with_part(0, of, |lse| submit(Some(lse)))?,
                    None => submit(None),
                }
            })??;
            warptile::Result::Ok(())
        };
        // Copies from others are submitted by now, so they are behind no kernel.
        for (_, tensors) in &mut staged {
            tensors.iter_mut().try_for_each(Staged::copy_own)?;
        }
        let mut pieces = Vec::new();
        let all_heads = self.first_head..self.first_head + heads;
        let mut piece = |chunks, lse: Option<Lse>| {
            let heads = all_heads.clone();
            pieces.extend(lse.map(|lse| Piece { chunks, heads, lse }));
        };
        // Parts of several documents are one call on a GPU, like the chunks of one document.
        let has_dropout = attention.has(Operand::DropoutState);
        let is_gpu = self.streams().is_some() && !has_dropout;
        let joins_documents = is_gpu && !attention.has(Operand::Slopes);
        let pieces_of = |call: &Call, lse: Option<Lse>| {
            let parts = lse.map(|lse| of_parts(lse, &call.rows)).transpose()?;
            let parts = call.rows.iter().zip(parts.into_iter().flatten());
            let pieces = parts.map(|((rows, _), lse)| (vec![(rows.clone(), 0)], Some(lse)));
            warptile::Result::Ok(pieces.collect::<Vec<_>>())
        };
        let own_parts = { self.needs.own.iter() }.map(|(part, rows)| (part, rows.start));
        let of_documents = { joins_documents.then(|| Call::of_documents(own_parts)) }.flatten();
        let calls = match of_documents {
            Some(call) => vec![(call, 0..q.shape()[1])],
            None => { self.needs.own.iter() }
                .map(|(part, rows)| (Call::of(part), rows.clone()))
                .collect(),
        };
        for (call, rows) in calls {
            let [k, v] = own.map(|tensor| tensor.rows(rows.clone()));
            let mut lse = lse_of(call.local.len())?;
            compute(&mut out, (&call, &mut lse), &(0..kv_heads), [&k?, &v?])?;
            pieces_of(&call, lse)?
                .into_iter()
                .for_each(|(rows, lse)| piece(rows, lse));
        }
        if let Some(documents) = &self.needs.documents {
            let (queries, keys) = documents.of_call(q, own);
            let mut lse = lse_of(q.shape()[1])?;
            attention.forward_into(queries, keys, &mut out, lse.as_mut())?;
            piece(documents.chunks.clone(), lse);
        }
        let staged_parts = { fetched.iter() }.map(|part| (part, position(spans, part.keys.start)));
        let of_documents = { joins_documents.then(|| Call::of_documents(staged_parts)) }.flatten();
        let of_all = || { is_gpu.then(|| Call::of_all(fetched, Call::FROM_ROWS)) }.flatten();
        let calls = of_documents.or_else(of_all);
        let calls = calls.map_or_else(|| fetched.iter().map(Call::of).collect(), |call| vec![call]);
        let calls = calls.into_iter().map(|call| {
            let lse = lse_of(call.local.len())?;
            warptile::Result::Ok((call, lse))
        });
        let mut calls = calls.collect::<warptile::Result<Vec<_>>>()?;
        for (heads, [k, v]) in staged {
            let (k, v) = (k.into_tensor()?, v.into_tensor()?);
            for (call, lse) in &mut calls {
                let at = position(spans, call.keys.start);
                let keys = match call.sequences {
                    Some(_) => 0..staged_rows(spans),
                    None => at..at + call.keys.len(),
                };
                let (k, v) = (k.rows(keys.clone())?, v.rows(keys)?);
                compute(&mut out, (call, lse), &heads, [&k, &v])?;
            }
        }
        for (call, lse) in calls {
            pieces_of(&call, lse)?
                .into_iter()
                .for_each(|(rows, lse)| piece(rows, lse));
        }
        Ok((out, pieces))
    }

    /// Computes the gradients of documents that are its own as a whole.
    fn documents_to<T: Element>(&self, given: &Given<'_, T>, to: &mut To<T>) -> Result<()> {
        let Some(documents) = &self.needs.documents else {
            return Ok(());
        };
        let (rank, q) = (self.rank, given.q);
        let heads = 0..q.shape()[2];
        let of = [rank, self.local];
        let lse = given.lse.of_launch(of, &documents.chunks, &heads)?;
        let (queries, keys) = documents.of_call(q, given.kv);
        let [dk, dv] = &mut to.dkv;
        let into = GradientsInto::new().dq(&mut to.dq).dk(dk).dv(dv);
        let into = with_numbers(into, given.attention, &mut to.numbers);
        let output = (given.out, &lse);
        { given.attention }
            .backward_into(given.d_out, queries, keys, output, into)
            .of_rank(rank)?;
        Ok(())
    }

    /// Computes the gradients of all other parts, of a group of heads, and adds those of keys to `sums`, which have the rows that the parts
    /// see.
    pub(crate) fn gradients<T: Element>(
        &self,
        given: &Given<'_, T>,
        heads: &Range<usize>,
        [k, v]: [Staged<'_, T>; 2],
        (dq, numbers): (&mut Tensor<T>, &mut [Tensor<f32>]),
        [dk, dv]: &mut [Tensor<f32>; 2],
    ) -> Result<()> {
        let rank = self.rank;
        let Needs { spans, .. } = self.needs;
        let seen = self.needs.seen();
        let q = given.q;
        let shared_by = q.shape()[2] / given.kv[0].shape()[2];
        let of = heads.start * shared_by..heads.end * shared_by;
        let of_all = self.first_head + of.start..self.first_head + of.end;
        let lse_of = |rows: &Range<usize>| {
            let chunks = [(rows.clone(), 0)];
            given.lse.of_launch([rank, self.local], &chunks, &of_all)
        };
        let mut compute = |call: &Call, [k, v]: [warptile::Result<Tensor<T>>; 2]| {
            let lse = call.rows.iter().map(|(rows, _)| lse_of(rows));
            let lse = lse.collect::<Result<Vec<_>>>()?;
            let parts = call.ends.len();
            let compute = || {
                let (k, v) = (k?, v?);
                let rows =
                    |of_rows: &Tensor<T>| of_rows.rows(call.local.clone())?.heads(of.clone());
                let (out, q, d_out) = (rows(given.out)?, rows(q)?, rows(given.d_out)?);
                let lse = joined(&lse)?;
                let attention = of_part(given.attention, call.mask, (call.first, of_all.start));
                let sums = match parts {
                    0 => {
                        let at = position(&seen, call.keys.start);
                        at..at + call.keys.len()
                    }
                    // All of them.
                    parts => 0..parts * call.keys.len(),
                };
                dq.with_part(call.local.clone(), of.clone(), |dq| {
                    with_sums(dk, &sums, parts, |dk| {
                        with_sums(dv, &sums, parts, |dv| {
                            let into = GradientsInto::new().dq(dq);
                            let into = match parts {
                                0 => into.key_sums(dk, dv),
                                _ => into.key_parts(dk, dv),
                            };
                            let into = with_numbers(into, given.attention, numbers);
                            self.call(call, &q, [&k, &v], |queries, keys| {
                                attention.backward_into(&d_out, queries, keys, (&out, &lse), into)
                            })
                        })
                    })
                })????;
                warptile::Result::Ok(())
            };
            compute().of_rank(rank)
        };
        let one_call = self.needs.one_call(given.attention);
        if one_call.is_none() {
            for (part, rows) in &self.needs.own {
                let rows = |of: &Tensor<T>| of.rows(rows.clone())?.heads(heads.clone());
                compute(&Call::of(part), given.kv.map(rows))?;
            }
        }
        // Kernels of own keys wait for no copies.
        let fetched = [
            k.into_tensor().of_rank(rank)?,
            v.into_tensor().of_rank(rank)?,
        ];
        let calls = match one_call {
            Some(call) => vec![call],
            None => self.needs.fetched.iter().map(Call::of).collect(),
        };
        for call in &calls {
            let at = position(spans, call.keys.start);
            let rows = |of: &Tensor<T>| of.rows(at..at + call.keys.len());
            compute(call, fetched.each_ref().map(rows))?;
        }
        Ok(())
    }

    /// Has `compute` submit a call, by its queries and the keys from its first one on.
    fn call<T: Element, R>(
        &self,
        call: &Call,
        q: &Tensor<T>,
        [k, v]: [&Tensor<T>; 2],
        compute: impl FnOnce(warptile::Queries<'_, T>, warptile::Keys<'_, T>) -> warptile::Result<R>,
    ) -> warptile::Result<R> {
        if let (Some(sequences), Some(streams)) = (&call.sequences, self.streams()) {
            let list = |list| self.shards.on_device(self.rank, streams, list);
            let [q_at, q_len, k_at, k_len] = sequences.lists.each_ref().map(|one| list(one));
            let (q_at, q_len, k_at, k_len) = (q_at?, q_len?, k_at?, k_len?);
            let [longest, most_keys] = sequences.longest;
            let queries = warptile::Queries::new(q).packed_on_device(q_at.as_slice(), longest);
            let keys = warptile::Keys::new(k, v).packed_on_device(k_at.as_slice(), most_keys);
            return compute(
                queries.lengths_on_device(q_len.as_slice()),
                keys.lengths_on_device(k_len.as_slice()),
            );
        }
        let entries = call.ends.len();
        if entries == 0 {
            return compute(q.into(), (k, v).into());
        }
        let shared = |of: &Tensor<T>| of.view_as(shared(of.layout(), entries));
        let (k, v) = (shared(k)?, shared(v)?);
        let (queries, keys) = (warptile::Queries::new(q), warptile::Keys::new(&k, &v));
        let Some(streams) = self.streams() else {
            return compute(queries.packed(&call.offsets), keys.lengths(&call.ends));
        };
        let list = |list| self.shards.on_device(self.rank, streams, list);
        let (offsets, ends) = (list(&call.offsets)?, list(&call.ends)?);
        let longest = call.local.len() / entries;
        let queries = queries.packed_on_device(offsets.as_slice(), longest);
        compute(queries, keys.lengths_on_device(ends.as_slice()))
    }

    fn streams(&self) -> Option<&Streams> {
        self.shards.group().streams(self.rank)
    }
}

/// The options of a part, by the numbers of its document, first query and key, and by its first query head.
fn of_part(attention: &Attention, mask: Mask, (first, head): ([usize; 3], usize)) -> Attention {
    let [document, query, key] = first.map(|number| number as u32);
    let attention = attention.clone().mask(mask);
    attention.of_part([document, head as u32, query, key])
}

/// Runs `f` on rows of a tensor, of several parts as those of as many batch entries, one behind the other.
fn with_sums<R>(
    sums: &mut Tensor<f32>,
    rows: &Range<usize>,
    parts: usize,
    f: impl FnOnce(&mut Tensor<f32>) -> R,
) -> warptile::Result<R> {
    let heads = 0..sums.shape()[2];
    sums.with_part(rows.clone(), heads, |sums| {
        let entries = parts.max(1);
        let Layout {
            mut shape,
            mut strides,
        } = *sums.layout();
        (shape[0], shape[1]) = (entries, shape[1] / entries);
        strides[0] = shape[1] * strides[1];
        sums.with_layout(Layout { shape, strides }, f)
    })?
}

/// Batch entries of the same rows.
fn shared(layout: &Layout, entries: usize) -> Layout {
    let (mut shape, mut strides) = (layout.shape, layout.strides);
    (shape[0], strides[0]) = (entries, 0);
    Layout { shape, strides }
}

#[cfg(test)]
mod tests {
    use warptile::Backend;
    use warptile::driver::Driver;
    use warptile_fake_cuda::FakeDriver;

    use super::*;
    use crate::group::Group;
    use crate::shard::Sharding;

    #[test]
    fn a_chunk_of_own_keys_joins_the_launch_of_long_chunks() {
        let fake = FakeDriver::open();
        fake.set_device_count(2);
        {
            // SAFETY: the library is the stand-in, with the driver's signatures.
            let driver = unsafe { Driver::load_from(fake.path()) }.unwrap();
            let gpus = [0, 1].map(|at| Backend::cuda_with(&driver, at).unwrap());
            let [gpus, cpus] =
                [gpus, [Backend::cpu(), Backend::cpu()]].map(|of| Group::local(of).unwrap());
            let needs = |group: &Group, len: usize, mask: Mask| {
                let shards = group.shards(&Sharding::Zigzag, len).unwrap();
                let all = Needs::all(&shards, &Attention::new().mask(mask)).unwrap();
                all.iter()
                    .map(|needs| [needs.own.len(), needs.fetched.len()])
                    .collect::<Vec<_>>()
            };
            assert_eq!(needs(&gpus, 16384, Mask::causal()), [[1, 1], [0, 2]]);
            assert_eq!(needs(&gpus, 32768, Mask::causal()), [[0, 2], [0, 2]]);
            // Chunks whose keys begin at different places have no launch in common. Rows of own keys have one of their own.
            let window = Mask::window(10_000, 0);
            assert_eq!(needs(&gpus, 32768, window), [[1, 1], [0, 2]]);
            let window = Mask::window(100, 0);
            assert_eq!(needs(&gpus, 32768, window), [[2, 1], [1, 1]]);
            // Without a launch to join, own keys need no copy.
            assert_eq!(needs(&cpus, 32768, Mask::causal()), [[1, 1], [0, 2]]);
        }
        fake.assert_clean();
    }
}
