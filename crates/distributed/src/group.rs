//! The devices that compute together.

use std::time::{Duration, Instant};

use rayon::{ThreadPool, ThreadPoolBuilder};
use warptile::Backend;
use warptile::driver::{Context, Stream};

use crate::error::{Error, OfRank, Result};
use crate::shard::{RowMap, Sharding};
use crate::shards::Shards;

/// The ranks of one process: GPUs of one host that reach each other's memory, or the CPU several times over. A GPU may have several ranks.
#[derive(Debug)]
pub struct Group {
    backends: Vec<Backend>,
    /// The streams of each rank on a GPU.
    streams: Vec<Streams>,
    /// A thread for each rank, which submits its work.
    threads: ThreadPool,
}

/// The streams of a rank. A copy within a GPU waits until kernels leave some multiprocessors, and on one stream all copies behind it would
/// with it.
#[derive(Debug)]
pub(crate) struct Streams {
    /// That of the backend.
    pub(crate) kernels: Stream,
    /// Copies from other GPUs.
    pub(crate) far: Stream,
    /// Copies within the GPU.
    pub(crate) near: Stream,
}

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
            .map(|(rank, gpu)| Streams::new(gpu.stream()).of_rank(rank))
            .collect::<Result<_>>()?;
        let threads = ThreadPoolBuilder::new().num_threads(backends.len());
        let threads = { threads.thread_name(|rank| format!("rank {rank}")) }
            .build()
            .map_err(|error| Error::NoThreads(error.to_string()))?;
        Ok(Group {
            backends,
            streams,
            threads,
        })
    }

    /// The backends, by rank.
    pub fn backends(&self) -> &[Backend] {
        &self.backends
    }

    pub(crate) fn streams(&self, rank: usize) -> Option<&Streams> {
        self.streams.get(rank)
    }

    /// What `f` gives for each rank, called on a thread of the rank's own.
    pub(crate) fn each<R: Send>(&self, f: impl Fn(usize) -> R + Sync) -> Vec<R> {
        self.threads.broadcast(|thread| f(thread.index()))
    }

    /// Deals `len` rows to the ranks.
    ///
    /// # Errors
    /// As [`RowMap::new`].
    pub fn shards(&self, sharding: &Sharding, len: usize) -> Result<Shards<'_>> {
        let map = RowMap::new(sharding, len, self.backends.len())?;
        Ok(Shards::new(self, map))
    }

    /// Waits until all ranks have done what was submitted to them, at most `timeout`.
    ///
    /// # Errors
    /// [`Error::TimedOut`] with the first rank that has not; [`Error::Rank`] with what its device reports.
    pub fn synchronize(&self, timeout: Duration) -> Result<()> {
        let start = Instant::now();
        for (rank, backend) in self.backends.iter().enumerate() {
            let Some(gpu) = backend.gpu() else { continue };
            while !gpu.stream().query().of_rank(rank)? {
                if start.elapsed() > timeout {
                    return Err(Error::TimedOut {
                        rank,
                        waited: timeout,
                    });
                }
                std::thread::yield_now();
            }
        }
        Ok(())
    }
}

impl Streams {
    fn new(kernels: &Stream) -> warptile::driver::Result<Self> {
        Ok(Streams {
            kernels: kernels.clone(),
            far: Stream::new(kernels.context())?,
            near: Stream::new(kernels.context())?,
        })
    }
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
