//! The processes of a job.

use std::time::Duration;

use crate::error::{Error, Result};

/// This process among those of a job: one for each GPU, on one host or several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct World {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) local_rank: Option<usize>,
    pub(crate) address: String,
    pub(crate) job: String,
    pub(crate) timeout: Duration,
    pub(crate) silence: Duration,
}

/// Names of variables, the innermost launcher's first: rank, number of ranks, rank within the host.
const LAUNCHERS: [[&str; 3]; 5] = [
    ["RANK", "WORLD_SIZE", "LOCAL_RANK"],
    [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ],
    ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"],
    // Cray's PALS.
    ["PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK"],
    ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"],
];

/// The longest bound. Clocks cannot add all that a [`Duration`] can say.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The variable with the address at which ranks find rank 0.
const RENDEZVOUS: &str = "WARPTILE_RENDEZVOUS";

impl World {
    /// Rank `rank` of `ranks`. Rank 0 listens at the port of `address`, such as `host:29501`, and the others connect to it.
    pub fn new(rank: usize, ranks: usize, address: impl Into<String>) -> World {
        World {
            rank,
            ranks,
            local_rank: None,
            address: address.into(),
            job: String::new(),
            timeout: Duration::from_secs(60),
            silence: Duration::from_secs(5),
        }
    }

    /// The world that torchrun, an MPI, or SLURM describes by variables of the environment: the first of these whose rank is
    /// there, of an MPI by PMI if all of its variables are. The address is `WARPTILE_RENDEZVOUS`, or the host of `MASTER_ADDR` and the port behind `MASTER_PORT`.
    ///
    /// # Errors
    /// [`Error::World`] with the variables that are missing or wrong.
    pub fn from_env() -> Result<World> {
        World::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<World> {
        let number = |name: &str| {
            let text = variable(name)
                .ok_or_else(|| Error::World(format!("the variable {name} is not set")))?;
            { text.trim().parse::<usize>() }
                .map_err(|_| Error::World(format!("{name}={text} is not a number")))
        };
        let is_set = |name: &&str| variable(name).is_some();
        // SLURM's plugins set two of PMI's. Of the others the one that has begun says what is missing.
        let has_begun = |names: &[&str; 3]| match names[0] {
            "PMI_RANK" => names.iter().all(is_set),
            rank => is_set(&rank),
        };
        let [rank, ranks, local_rank] = { LAUNCHERS.into_iter() }
            .find(has_begun)
            .or_else(|| LAUNCHERS.into_iter().find(|[rank, ..]| is_set(rank)))
            .ok_or_else(|| {
                let mut names = LAUNCHERS.map(|[rank, ..]| rank).to_vec();
                names.dedup();
                let names = names.join(", ");
                Error::World(format!(
                    "none of the variables {names} is set: start the program by torchrun, mpirun or srun, or use World::new"
                ))
            })?;
        let (rank, ranks, local_rank) = (number(rank)?, number(ranks)?, number(local_rank)?);
        if rank >= ranks {
            return Err(Error::World(format!("rank {rank} is not among {ranks}")));
        }
        let address = match (variable(RENDEZVOUS), variable("MASTER_ADDR")) {
            (Some(address), _) => address,
            // The launcher may listen at the port itself.
            (None, Some(host)) => {
                let port = number("MASTER_PORT")? + 1;
                let host = if host.contains(':') {
                    format!("[{host}]")
                } else {
                    host
                };
                format!("{host}:{port}")
            }
            (None, None) => {
                return Err(Error::World(format!(
                    "neither {RENDEZVOUS} nor MASTER_ADDR says where rank 0 is"
                )));
            }
        };
        let job = ["TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"].map(&variable);
        Ok(World {
            local_rank: Some(local_rank),
            job: job.into_iter().flatten().next().unwrap_or_default(),
            ..World::new(rank, ranks, address)
        })
    }

    /// Sets how long each step may take by which the ranks find each other ([`Group::nccl`](crate::Group::nccl) has three), a rank to make a
    /// call that others have made, and the messages of a call to arrive: at most a year. Default: 60 seconds.
    ///
    /// The time for messages begins when this rank's GPU has done what precedes them, and includes a wait for the GPUs of other ranks. A
    /// kernel that hangs is not found by this bound, but by that of [`Group::synchronize`](crate::Group::synchronize).
    pub fn timeout(self, timeout: Duration) -> World {
        let timeout = timeout.min(LONGEST);
        World { timeout, ..self }
    }

    /// Sets after how long without a sign of life a rank is lost: at most a year. Default: 5 seconds. Time in which this process itself
    /// stands still, such as in a job that is suspended as a whole, counts for no bound between ranks once the group has begun, if it is
    /// longer than half of the shorter one.
    pub fn silence(self, silence: Duration) -> World {
        let silence = silence.min(LONGEST);
        World { silence, ..self }
    }

    /// This process's rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The number of this process on its host, which is that of its GPU, as the environment has it; `None` after [`World::new`].
    pub fn local_rank(&self) -> Option<usize> {
        self.local_rank
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(variables: &[(&str, &str)]) -> Result<World> {
        World::from_variables(|name| {
            let mut found = variables.iter().filter(|(known, _)| *known == name);
            found.next().map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn launchers_are_understood() {
        let master = [("MASTER_ADDR", "node0"), ("MASTER_PORT", "29500")];
        for launcher in LAUNCHERS {
            let mut variables = master.to_vec();
            variables.extend(launcher.into_iter().zip(["5", "8", "1"]));
            let world = world(&variables).unwrap();
            assert_eq!((world.rank, world.ranks), (5, 8));
            assert_eq!(world.local_rank(), Some(1));
            assert_eq!(world.address, "node0:29501");
        }
        // `srun --mpi=pmi2` sets two of the variables of another launcher.
        let slurm = world(&[
            ("PMI_RANK", "1"),
            ("PMI_SIZE", "2"),
            ("SLURM_PROCID", "1"),
            ("SLURM_NTASKS", "2"),
            ("SLURM_LOCALID", "0"),
            ("WARPTILE_RENDEZVOUS", "h:1"),
        ])
        .unwrap();
        assert_eq!(
            (slurm.rank, slurm.ranks, slurm.local_rank()),
            (1, 2, Some(0))
        );
        // The second host's first GPU, which the rank does not say.
        assert_eq!(World::new(8, 16, "h:1").local_rank(), None);
        // torchrun under srun: SLURM counts torchrun's processes.
        let nested = world(&[
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "1"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_JOB_ID", "77"),
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_RANK", "3"),
            ("WARPTILE_RENDEZVOUS", "[::1]:4000"),
        ])
        .unwrap();
        assert_eq!((nested.rank, nested.ranks), (3, 4));
        assert_eq!(
            (nested.address.as_str(), nested.job.as_str()),
            ("[::1]:4000", "77")
        );
    }

    #[test]
    fn errors_name_the_variables() {
        for (variables, expected) in [
            (&[][..], "none of the variables RANK, "),
            (&[("RANK", "1")], "the variable WORLD_SIZE is not set"),
            (
                &[
                    ("RANK", "1"),
                    ("WORLD_SIZE", "2"),
                    ("SLURM_PROCID", "0"),
                    ("SLURM_NTASKS", "1"),
                    ("SLURM_LOCALID", "0"),
                ],
                "the variable LOCAL_RANK is not set",
            ),
            (
                &[("PMI_RANK", "1"), ("PMI_SIZE", "2")],
                "the variable MPI_LOCALRANKID is not set",
            ),
            (&[("RANK", "x")], "RANK=x is not a number"),
            (
                &[("RANK", "2"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")],
                "rank 2 is not among 2",
            ),
            (
                &[("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")],
                "neither WARPTILE_RENDEZVOUS nor MASTER_ADDR",
            ),
        ] {
            let error = world(variables).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
