//! The devices that compute together.

use std::time::{Duration, Instant};

use warptile::Backend;
use warptile::driver::{Context, Stream};

use crate::error::{Error, OfRank, Result};
use crate::plan::MAX_GROUPS;
use crate::shard::{RowMap, Sharding};
use crate::shards::Shards;

/// The ranks of one process: GPUs of one host that reach each other's memory, or the CPU several times over. A GPU may have several ranks.
#[derive(Debug)]
pub struct Group {
    backends: Vec<Backend>,
    /// The streams of each rank on a GPU.
    streams: Vec<Streams>,
}

/// The streams of a rank besides that of its kernels.
#[derive(Debug)]
pub(crate) struct Streams {
    /// Orders the keys and values that other ranks read, so that a copy does not wait for kernels.
    pub(crate) keys: Stream,
    /// Copies into staging memory, one stream for each group of heads.
    pub(crate) pull: Vec<Stream>,
}

impl Group {
    /// A group of at least two backends; their order is that of the ranks. Opens the memory of each GPU to all others.
    ///
    /// # Errors
    /// [`Error::TooFewRanks`], [`Error::MixedBackends`], [`Error::NoPeerAccess`]; what the driver reports.
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
        let streams = { contexts.iter().enumerate() }
            .map(|(rank, context)| Streams::new(context).of_rank(rank))
            .collect::<Result<_>>()?;
        Ok(Group { backends, streams })
    }

    /// The backends, by rank.
    pub fn backends(&self) -> &[Backend] {
        &self.backends
    }

    pub(crate) fn streams(&self, rank: usize) -> Option<&Streams> {
        self.streams.get(rank)
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
    fn new(context: &Context) -> warptile::driver::Result<Self> {
        let stream = || -> warptile::driver::Result<Stream> {
            let stream = Stream::new(context)?;
            stream.keep_spares();
            Ok(stream)
        };
        Ok(Streams {
            keys: stream()?,
            pull: (0..MAX_GROUPS)
                .map(|_| stream())
                .collect::<Result<_, _>>()?,
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
