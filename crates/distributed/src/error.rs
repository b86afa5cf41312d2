//! Errors of a group.

use std::time::Duration;

use crate::nccl::failure::Failure;

/// A failure of a call over several ranks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A group needs at least two ranks.
    #[error("a group needs at least 2 ranks, not {0}; one device needs no group")]
    TooFewRanks(usize),
    /// Ranks on the CPU and on GPUs do not mix.
    #[error(
        "rank {rank} is on {found}, but rank 0 is on {first}: ranks are either all on GPUs or all on the CPU"
    )]
    MixedBackends {
        /// The rank.
        rank: usize,
        /// Its backend.
        found: String,
        /// The backend of rank 0.
        first: String,
    },
    /// Two GPUs cannot reach each other's memory.
    #[error("rank {from} has no peer access to rank {to}: {why}")]
    NoPeerAccess {
        /// The rank that reads.
        from: usize,
        /// The rank whose memory is read.
        to: usize,
        /// The driver's answer.
        why: String,
    },
    /// NCCL cannot be used.
    #[error(transparent)]
    Nccl(#[from] warptile_nccl_sys::LoadError),
    /// The environment does not say who this process is.
    #[error("the processes of this job: {0}")]
    World(String),
    /// The processes have not found each other.
    #[error("the ranks have not met: {0}")]
    Rendezvous(String),
    /// The group has failed, for all ranks alike; it is of no more use.
    #[error(transparent)]
    Failure(#[from] Failure),
    /// The call is for ranks that are all of one process.
    #[error("{0} needs all ranks in one process, as of Group::local")]
    OneProcess(&'static str),
    /// The threads of the ranks could not be started.
    #[error("no threads for the ranks: {0}")]
    NoThreads(String),
    /// The sharding cannot be used.
    #[error("sharding: {0}")]
    Sharding(String),
    /// An argument does not fit the sharding.
    #[error("rank {rank}: {rule}")]
    Argument {
        /// The rank whose argument it is.
        rank: usize,
        /// The rule it breaks.
        rule: String,
    },
    /// A rank's own call failed.
    #[error("rank {rank}: {source}")]
    Rank {
        /// The rank.
        rank: usize,
        /// The failure.
        source: warptile::Error,
    },
    /// A rank did not finish in time.
    #[error("rank {rank} did not finish within {waited:?}")]
    TimedOut {
        /// The first such rank.
        rank: usize,
        /// The bound.
        waited: Duration,
    },
}

/// The result of a call over several ranks.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Names the rank of a failure.
pub(crate) trait OfRank<T> {
    fn of_rank(self, rank: usize) -> Result<T>;
}

impl<T, E: Into<warptile::Error>> OfRank<T> for Result<T, E> {
    fn of_rank(self, rank: usize) -> Result<T> {
        self.map_err(|error| Error::Rank {
            rank,
            source: error.into(),
        })
    }
}
