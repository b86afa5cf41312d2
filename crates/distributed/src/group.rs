//! The devices that compute together.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};
use rayon::{ThreadPool, ThreadPoolBuilder};
use warptile::Backend;
use warptile::cpu::Stop;
use warptile::driver::{Context, Stream};
use warptile_nccl_sys::NcclApi;

use crate::error::{Error, OfRank, Result};
use crate::nccl::Nccl;
use crate::nccl::world::World;
use crate::shard::{RowMap, Sharding};
use crate::shards::Shards;

/// The ranks that compute together. Those of one process are GPUs of one host that reach each other's memory, or the CPU several times over,
/// where a GPU may have several ranks; of several processes each has one.
///
/// When a group of several processes is dropped, it waits for messages under way, each within [`World::timeout`]; for kernels before them,
/// until five times that has passed; and then for NCCL to end. If the group has failed while messages were under way, and no caller has
/// been told, the next wait for the device returns [`DriverError::Ended`](warptile::driver::DriverError::Ended).
#[derive(Debug)]
pub struct Group {
    /// Those of the ranks of this process.
    backends: Vec<Backend>,
    /// The other processes.
    nccl: Option<Nccl>,
    /// The streams of each rank on a GPU.
    streams: Vec<Streams>,
    /// A thread for each rank, which submits its work.
    threads: ThreadPool,
}

/// The streams of a rank. A copy within a GPU may have to wait until kernels leave some multiprocessors, and on one stream all copies
/// behind it would wait, too.
#[derive(Debug)]
pub(crate) struct Streams {
    /// The backend's own.
    pub(crate) kernels: Stream,
    /// Copies from other GPUs: of short ones a link is not full, so keys and values have a stream each. Over NCCL there is one.
    pub(crate) far: Vec<Stream>,
    /// Copies within the GPU.
    pub(crate) near: Stream,
}

/// How long a wait keeps a core busy, and how often it asks after that.
const AT_ONCE: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_micros(100);

impl Group {
    /// A group of at least two backends; their order is that of the ranks. Opens the memory of each GPU to all others.
    ///
    /// # Errors
    /// [`Error::TooFewRanks`], [`Error::MixedBackends`], [`Error::NoPeerAccess`], [`Error::NoThreads`]; what the driver reports.
    pub fn local(backends: impl IntoIterator<Item = Backend>) -> Result<Self> {
        let backends: Vec<_> = backends.into_iter().collect();
        if backends.len() < 2 {
            return Err(Error::TooFewRanks(backends.len()));
        }
        if let Some(rank) =
            { backends.iter() }.position(|other| other.is_gpu() != backends[0].is_gpu())
        {
            return Err(Error::MixedBackends {
                rank,
                found: backends[rank].to_string(),
                first: backends[0].to_string(),
            });
        }
        let contexts: Vec<_> = { backends.iter() }
            .filter_map(|backend| backend.gpu().map(|gpu| gpu.context().clone()))
            .collect();
        for (from, reader) in contexts.iter().enumerate() {
            for (to, owner) in contexts.iter().enumerate() {
                if reader.device().ordinal() != owner.device().ordinal() {
                    open([from, to], reader, owner)?;
                }
            }
        }
        let streams = { backends.iter().filter_map(Backend::gpu).enumerate() }
            .map(|(rank, gpu)| Streams::new(gpu.stream(), (0, 2)).of_rank(rank))
            .collect::<Result<_>>()?;
        let threads = threads(0..backends.len())?;
        Ok(Group {
            backends,
            nccl: None,
            streams,
            threads,
        })
    }

    /// A group of processes, each of which has one rank on a GPU of its own. Waits until all have called this. [`World::timeout`] bounds
    /// each of three steps: until rank 0 can be reached, until rank 0 has been reached by all, and until NCCL has connected them.
    ///
    /// # Errors
    /// [`Error::Nccl`], which says where NCCL was looked for; [`Error::TooFewRanks`]; [`Error::Rendezvous`]; [`Error::Failure`] with the
    /// rank that has failed.
    pub fn nccl(world: &World, backend: &Backend) -> Result<Self> {
        Group::nccl_with(&warptile_nccl_sys::load()?, world, backend)
    }

    /// As [`Group::nccl`], with a library that has been opened.
    ///
    /// # Errors
    /// As [`Group::nccl`].
    pub fn nccl_with(nccl: &Arc<NcclApi>, world: &World, backend: &Backend) -> Result<Self> {
        if world.ranks() < 2 {
            return Err(Error::TooFewRanks(world.ranks()));
        }
        let rank = world.rank();
        let (nccl, streams) = Nccl::new(nccl, world, backend)?;
        Ok(Group {
            backends: vec![backend.clone()],
            nccl: Some(nccl),
            streams: vec![streams],
            threads: threads(rank..rank + 1)?,
        })
    }

    /// The ranks of this process.
    pub fn local_ranks(&self) -> Range<usize> {
        let first = self.nccl.as_ref().map_or(0, Nccl::rank);
        first..first + self.backends.len()
    }

    /// How many ranks there are in all processes.
    pub fn ranks(&self) -> usize {
        self.nccl.as_ref().map_or(self.backends.len(), Nccl::ranks)
    }

    /// The backends of this process, by rank.
    pub fn backends(&self) -> &[Backend] {
        &self.backends
    }

    /// The backend of a rank of this process.
    pub(crate) fn backend(&self, rank: usize) -> &Backend {
        &self.backends[self.place(rank)]
    }

    pub(crate) fn streams(&self, rank: usize) -> Option<&Streams> {
        self.streams.get(self.place(rank))
    }

    /// The place of a rank of this process among these.
    pub(crate) fn place(&self, rank: usize) -> usize {
        rank - self.local_ranks().start
    }

    pub(crate) fn processes(&self) -> Option<&Nccl> {
        self.nccl.as_ref()
    }

    /// Refuses a call that has not been written for several processes.
    pub(crate) fn one_process(&self, what: &'static str) -> Result<()> {
        match self.nccl {
            Some(_) => Err(Error::OneProcess(what)),
            None => Ok(()),
        }
    }

    /// Calls `f` for each rank of this process, on a thread of the rank's own, within the caller's [`Stop`].
    pub(crate) fn each<R: Send>(&self, f: impl Fn(usize) -> R + Sync) -> Vec<R> {
        let first = self.local_ranks().start;
        let stop = Stop::current();
        let call = |rank| stop.during(|| f(rank));
        self.threads
            .broadcast(|thread| call(first + thread.index()))
    }

    /// As [`each`](Self::each), with an item for each rank.
    pub(crate) fn each_of<S: Send, R: Send>(
        &self,
        items: impl IntoIterator<Item = S>,
        f: impl Fn(usize, S) -> R + Sync,
    ) -> Vec<R> {
        let items: Vec<_> = items.into_iter().collect();
        let stop = Stop::current();
        let all = || items.into_par_iter().enumerate().with_max_len(1);
        let first = self.local_ranks().start;
        let call = |(place, item)| stop.during(|| f(first + place, item));
        (self.threads).install(|| all().map(call).collect())
    }

    /// Deals `len` rows to the ranks.
    ///
    /// # Errors
    /// As [`RowMap::new`].
    pub fn shards(&self, sharding: &Sharding, len: usize) -> Result<Shards<'_>> {
        let map = RowMap::new(sharding, len, self.ranks())?;
        Ok(Shards::new(self, map))
    }

    /// Waits until the ranks of this process have done what was submitted to them, at most `timeout`.
    ///
    /// # Errors
    /// [`Error::TimedOut`] with the first rank that has not; [`Error::Rank`] with what its device reports; [`Error::Failure`], as which it
    /// must be asked before results of several processes count.
    pub fn synchronize(&self, timeout: Duration) -> Result<()> {
        let start = Instant::now();
        let check = || self.nccl.as_ref().map_or(Ok(()), Nccl::check);
        let gpus = { self.local_ranks().zip(&self.backends) }
            .filter_map(|(rank, backend)| Some((rank, backend.gpu()?)));
        let mut waiting: Vec<_> = gpus.collect();
        loop {
            // All of them each time: one may wait for another that has failed.
            let mut late = Vec::new();
            for (rank, gpu) in waiting {
                if !gpu.stream().query().of_rank(rank)? {
                    late.push((rank, gpu));
                }
            }
            waiting = late;
            check()?;
            let Some(&(rank, _)) = waiting.first() else {
                return Ok(());
            };
            if start.elapsed() > timeout {
                return Err(Error::TimedOut {
                    rank,
                    waited: timeout,
                });
            }
            // At first they are asked at once, so that a short call is not found late.
            match start.elapsed() < AT_ONCE {
                true => std::thread::yield_now(),
                false => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Refuses a call that would be captured from the stream of a rank of this process.
    pub(crate) fn refuse_capture(&self) -> Result<()> {
        for (rank, streams) in self.local_ranks().zip(&self.streams) {
            if streams.kernels.is_capturing().of_rank(rank)? {
                let rule = "a call over several ranks cannot be captured".to_owned();
                return Err(Error::Argument { rank, rule });
            }
        }
        Ok(())
    }
}

/// The results of this process's ranks. Of several processes, the others wait for what one has computed: its failure is that of all.
pub(crate) fn all_or_none<R>(group: &Group, computed: Vec<Result<R>>) -> Result<Vec<R>> {
    let computed = computed.into_iter().collect();
    match group.processes() {
        Some(nccl) => nccl.or_fail(computed),
        None => computed,
    }
}

impl Streams {
    /// Copies from other GPUs have `count` streams of the given priority.
    pub(crate) fn new(
        kernels: &Stream,
        (priority, count): (i32, usize),
    ) -> warptile::driver::Result<Self> {
        let far = |_| Stream::with_priority(kernels.context(), priority);
        Ok(Streams {
            kernels: kernels.clone(),
            far: (0..count).map(far).collect::<Result<_, _>>()?,
            near: Stream::new(kernels.context())?,
        })
    }
}

/// A thread for each of these ranks.
fn threads(ranks: Range<usize>) -> Result<ThreadPool> {
    let first = ranks.start;
    ThreadPoolBuilder::new()
        .num_threads(ranks.len())
        .thread_name(move |at| format!("rank {}", first + at))
        .build()
        .map_err(|error| Error::NoThreads(error.to_string()))
}

/// Opens the memory of `owner` to `reader`.
fn open([from, to]: [usize; 2], reader: &Context, owner: &Context) -> Result<()> {
    let refused = |why: String| Error::NoPeerAccess { from, to, why };
    match reader.device().can_access_peer(owner.device()) {
        Ok(true) => {}
        Ok(false) => {
            return Err(refused(
                "the driver says that these devices have none".to_owned(),
            ));
        }
        Err(error) => return Err(refused(error.to_string())),
    }
    { reader.enable_peer_access(owner) }.map_err(|error| refused(error.to_string()))
}
