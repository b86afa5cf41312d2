//! The ranks of `--devices`: one group of all, or over NCCL a group of each on a thread of its own.

use std::net::TcpListener;
use std::thread;

use warptile::cache::KvCacheBuilder;
use warptile::{Attention, Backend, Element, Tensor};
use warptile_distributed::{Gradients, Group, Output, ShardedCache, Shards, World, nccl_sys};

use crate::devices::{Dealt, PATIENCE};
use crate::failure::Failure;

/// The groups of all ranks, in the order of these.
pub(crate) struct Team(Vec<Group>);

impl Team {
    /// Ranks that copy from each other's memory.
    ///
    /// # Errors
    /// As [`Group::local`].
    pub(crate) fn local(backends: Vec<Backend>) -> Result<Self, Failure> {
        Ok(Team(vec![Group::local(backends)?]))
    }

    /// Ranks that NCCL connects.
    ///
    /// # Errors
    /// As [`Group::nccl`].
    pub(crate) fn nccl(backends: &[Backend]) -> Result<Self, Failure> {
        let api = nccl_sys::load().map_err(warptile_distributed::Error::from)?;
        // Rank 0 listens there in a moment.
        let address = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let address = address.map_err(|error| Failure::Device(error.to_string()))?;
        let group = |rank: usize| {
            let world = World::new(rank, backends.len(), address.to_string());
            Group::nccl_with(&api, &world, &backends[rank])
        };
        let (group, ranks) = (&group, 0..backends.len());
        let groups = thread::scope(|scope| {
            let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || group(rank))).collect();
            threads.into_iter().map(joined).collect::<Vec<_>>()
        });
        let (mut all, mut failed) = (Vec::new(), None);
        for group in groups {
            match group {
                Ok(group) => all.push(group),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let team = Team(all);
        failed.map_or(Ok(team), |error| Err(error.into()))
    }

    /// The backends of all ranks.
    pub(crate) fn backends(&self) -> Vec<Backend> {
        { self.0.iter() }
            .flat_map(Group::backends)
            .cloned()
            .collect()
    }

    /// Calls `f` with the place of each group and the group: at the same time, as they wait for each other.
    ///
    /// # Errors
    /// The first one's.
    pub(crate) fn each<R: Send>(
        &self,
        f: impl Fn(usize, &Group) -> Result<R, Failure> + Sync,
    ) -> Result<Vec<R>, Failure> {
        if let [group] = &self.0[..] {
            return Ok(vec![f(0, group)?]);
        }
        side_by_side(self.0.iter().enumerate(), |(place, group)| f(place, group))
    }

    /// A cache of each group, whose pages are dealt out to all ranks after so many rows of rank 0's.
    ///
    /// # Errors
    /// As [`Group::cache_with_lead`].
    pub(crate) fn caches<T: Element>(
        &self,
        builder: &KvCacheBuilder<T>,
        lead: usize,
    ) -> Result<Vec<ShardedCache<'_, T>>, Failure> {
        let caches = { self.0.iter() }.map(|group| Ok(group.cache_with_lead(builder, lead)?));
        caches.collect()
    }

    /// Waits for what was submitted.
    ///
    /// # Errors
    /// As [`Group::synchronize`].
    pub(crate) fn synchronize(&self) -> Result<(), Failure> {
        self.each(|_, group| Ok(group.synchronize(PATIENCE)?))?;
        Ok(())
    }
}

/// Groups over NCCL wait for each other's end.
impl Drop for Team {
    fn drop(&mut self) {
        let groups = self.0.drain(..);
        thread::scope(|scope| groups.for_each(|group| drop(scope.spawn(|| drop(group)))));
    }
}

/// Runs `f` on all items at the same time.
pub(crate) fn side_by_side<I: Send, R: Send>(
    items: impl Iterator<Item = I>,
    f: impl Fn(I) -> Result<R, Failure> + Sync,
) -> Result<Vec<R>, Failure> {
    let f = &f;
    thread::scope(|scope| {
        let threads: Vec<_> = items.map(|item| scope.spawn(move || f(item))).collect();
        threads.into_iter().map(joined).collect()
    })
}

/// The result of a thread, or its panic.
fn joined<R>(thread: thread::ScopedJoinHandle<'_, R>) -> R {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Tensors of each group.
pub(crate) type Split<T> = Vec<Vec<Tensor<T>>>;

/// A problem on a team.
pub(crate) struct OnTeam<'a, T: Element> {
    team: &'a Team,
    shards: Vec<Shards<'a>>,
    attention: Attention,
    q: Split<T>,
    k: Split<T>,
    v: Split<T>,
}

impl<'a, T: Element> OnTeam<'a, T> {
    /// Deals out queries, keys and values, each stored as `[length, heads, head size]`, with heads and head size.
    ///
    /// # Errors
    /// As [`Shards::split`].
    pub(crate) fn new(
        team: &'a Team,
        dealt: &Dealt,
        attention: Attention,
        [q, k, v]: [(&[T], [usize; 2]); 3],
    ) -> Result<Self, Failure> {
        let shards = team.0.iter().map(|group| dealt.shards(group));
        let shards: Vec<_> = shards.collect::<Result<_, _>>()?;
        Ok(OnTeam {
            team,
            attention,
            q: split(&shards, q)?,
            k: split(&shards, k)?,
            v: split(&shards, v)?,
            shards,
        })
    }

    /// Deals out a tensor of the queries' rows.
    ///
    /// # Errors
    /// As [`Shards::split`].
    pub(crate) fn split(&self, data: (&[T], [usize; 2])) -> Result<Split<T>, Failure> {
        split(&self.shards, data)
    }

    /// The rows of each rank.
    pub(crate) fn map(&self) -> &warptile_distributed::RowMap {
        self.shards[0].map()
    }

    /// Submits the outputs of the group at a place.
    ///
    /// # Errors
    /// As [`Shards::forward`].
    pub(crate) fn forward_of(&self, place: usize) -> Result<Output<T>, Failure> {
        let (k, v) = (&self.k[place], &self.v[place]);
        Ok(self.shards[place].forward(&self.attention, &self.q[place], (k, v))?)
    }

    /// Submits the gradients of the group at a place, which gave `output`.
    ///
    /// # Errors
    /// As [`Shards::backward`].
    pub(crate) fn backward_of(
        &self,
        place: usize,
        d_out: &Split<T>,
        output: &Output<T>,
    ) -> Result<Gradients<T>, Failure> {
        let (q, kv) = (&self.q[place], (&self.k[place][..], &self.v[place][..]));
        Ok(self.shards[place].backward(&self.attention, &d_out[place], q, kv, output)?)
    }

    /// The outputs of all groups.
    ///
    /// # Errors
    /// As [`Shards::forward`].
    pub(crate) fn forward(&self) -> Result<Vec<Output<T>>, Failure> {
        self.team.each(|place, _| self.forward_of(place))
    }

    /// The gradients of all groups, from their outputs.
    ///
    /// # Errors
    /// As [`Shards::backward`].
    pub(crate) fn backward(
        &self,
        d_out: &Split<T>,
        outputs: &[Output<T>],
    ) -> Result<Vec<Gradients<T>>, Failure> {
        { self.team }.each(|place, _| self.backward_of(place, d_out, &outputs[place]))
    }

    /// Joins a tensor of all groups on the host, as `[length, heads, head size]`.
    ///
    /// # Errors
    /// A failure that a device reports.
    pub(crate) fn join<'t>(
        &self,
        parts: impl Iterator<Item = &'t Vec<Tensor<T>>>,
    ) -> Result<Vec<T>, Failure> {
        let (mut rows, mut sizes) = (Vec::new(), [0; 2]);
        for tensor in parts.flatten() {
            let [_, _, heads, head_dim] = tensor.shape();
            sizes = [heads, head_dim];
            rows.push(tensor.to_vec()?);
        }
        Ok(self.map().join(&rows, sizes[0], sizes[1]))
    }

    /// Joins the log-sum-exp of all rows on the host, as `[length, heads]`; `None` if several groups have it.
    ///
    /// # Errors
    /// As [`Shards::join_lse`].
    pub(crate) fn join_lse(&self, outputs: &[Output<T>]) -> Result<Option<Vec<f32>>, Failure> {
        match (&self.shards[..], outputs) {
            ([shards], [Output { lse: Some(lse), .. }]) => Ok(Some(shards.join_lse(lse)?)),
            _ => Ok(None),
        }
    }
}

fn split<T: Element>(
    shards: &[Shards<'_>],
    (data, [heads, head_dim]): (&[T], [usize; 2]),
) -> Result<Split<T>, Failure> {
    let split = |shards: &Shards<'_>| Ok(shards.split(data, heads, head_dim)?);
    shards.iter().map(split).collect()
}
