//! The state of a search: its plan, and of every candidate lineage, hash, resources and verdict.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::instances::TilingRow;
use crate::manifest::ManifestEntry;
use crate::target::Target;

/// The plan of a search, fixed when it begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The family, such as `wmma`; instances.toml says what may vary
    pub family: String,
    /// The target to compile for
    #[arg(long, default_value = "sm_90")]
    pub target: Target,
    /// Search among images of this variant, such as `serving`, in place of plain ones
    #[arg(long)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// A problem that counts, such as "b4 q4096 k4096 h32 d64 bf16"; all of one element type
    #[arg(long = "problem", value_name = "PROBLEM", required = true)]
    pub problems: Vec<String>,
    /// A problem that the search does not see: a winner must gain there as well
    #[arg(long, value_name = "PROBLEM", required = true)]
    pub held_out: Vec<String>,
    /// Multiprocessors of the GPU
    #[arg(long, default_value_t = 132)]
    pub multiprocessors: u32,
    /// Seed of what is drawn
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// The numbers that a search may vary, as `instances.toml` calls them.
pub(crate) const NUMBERS: [&str; 4] = ["block_m", "block_n", "warps", "stages"];

/// The genes of a candidate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Genes {
    /// Head size of the tile.
    pub head_dim: u32,
    /// Query rows, keys, warps of the CTA, and K/V tiles in flight.
    pub numbers: [u32; 4],
    /// Compiler flags that it has, of those that the family may have.
    pub switches: Vec<String>,
}

impl Genes {
    /// The number that a rule names.
    pub fn value(&self, name: &str) -> Option<u64> {
        let number = match name {
            "head_dim" => self.head_dim,
            _ => self.numbers[NUMBERS.iter().position(|number| *number == name)?],
        };
        Some(u64::from(number))
    }

    /// Query rows of a tile.
    pub(crate) fn block_m(&self) -> u32 {
        self.numbers[0]
    }

    /// As a row of `instances.toml`.
    pub fn row(&self) -> TilingRow {
        TilingRow::of(self.head_dim, self.numbers)
    }

    /// End of the kernel's name: switches have no place in the tiling's.
    pub fn suffix(&self) -> Option<String> {
        let all = self.switches.join(" ");
        let hash = crate::files::sha256(all.as_bytes());
        (!all.is_empty()).then(|| format!("x{}", &hash[..8]))
    }
}

/// How a candidate came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// It was shipped when the search began.
    Seed,
    /// One of its parent's numbers was changed for a reason.
    Hint,
    /// One of its parent's numbers was changed.
    Mutation,
    /// Each number is that of one of two parents.
    Crossover,
}

/// Where a candidate comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lineage {
    /// How it came about.
    pub how: How,
    /// Kernels that it was made from.
    pub parents: Vec<String>,
    /// The change and its reason.
    pub why: String,
}

/// The compiler's report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Name of the image.
    pub image: String,
    /// Registers per thread.
    pub registers: u32,
    /// Shared memory of a CTA, static and dynamic.
    pub shared_bytes: u32,
    /// Stack frame per thread.
    pub stack_bytes: u32,
    /// Spills per thread.
    pub spill_bytes: u32,
    /// HMMA and HGMMA in the machine code.
    pub tensor_instructions: u32,
    /// Size of the image.
    pub bytes: usize,
    /// Compiler and version.
    pub toolchain: String,
    /// Compiler flags.
    pub flags: String,
    /// SHA-256 over sources, flags, gates and toolchain.
    pub source_hash: String,
    /// SHA-256 of the image.
    pub sha256: String,
}

impl From<&ManifestEntry> for Report {
    fn from(entry: &ManifestEntry) -> Self {
        Self {
            image: entry.name.clone(),
            registers: entry.registers,
            shared_bytes: entry.static_shared_bytes + entry.dynamic_shared_bytes,
            stack_bytes: entry.stack_bytes,
            spill_bytes: entry.spill_bytes,
            tensor_instructions: entry.tensor_instructions,
            bytes: entry.len,
            toolchain: entry.toolchain.clone(),
            flags: entry.flags.clone(),
            source_hash: entry.source_hash.clone(),
            sha256: entry.sha256.clone(),
        }
    }
}

/// Where a candidate stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Shipped when the search began.
    Shipped,
    /// Not compiled yet.
    Proposed,
    /// A gate or the compiler refused it.
    Refused,
    /// Compiled, not measured.
    Compiled,
    /// It computed something wrong, and was not timed.
    Wrong,
    /// It gained too little, or not certainly.
    Lost,
    /// It gained, twice, and on problems that the search did not see.
    Won,
    /// It is in `instances.toml`.
    Promoted,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The verdict on a candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// Where it stands.
    pub state: State,
    /// Why it was refused, is wrong or lost.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// The evaluation of its times, if it was timed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
}

impl Verdict {
    /// The verdict on a candidate that was not timed.
    pub(crate) fn of(state: State, why: impl Into<String>) -> Self {
        Self {
            state,
            why: why.into(),
            measured: None,
        }
    }

    /// The median gain of the first trial.
    pub(crate) fn gain(&self) -> Option<f64> {
        Some(self.measured.as_ref()?.trials.first()?.median)
    }
}

/// The evaluation of a candidate's times, by the rules of trials.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// The GPU.
    pub device: String,
    /// Its driver.
    pub driver: String,
    /// Version and commit of the program.
    pub program: String,
    /// When.
    pub date: String,
    /// Candidates tried, which the confidence follows from.
    pub tried: usize,
    /// Blocks of each trial.
    pub blocks: usize,
    /// Over the problems that count: the first trial, and its repeat in a fresh process.
    pub trials: Vec<Trial>,
    /// Over the problems that the search did not see, likewise; empty if they were not measured.
    pub held_out: Vec<Trial>,
    /// The results of each problem.
    pub problems: BTreeMap<String, OfProblem>,
}

/// The result of one trial.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// Median of the ratios: above 1 where the candidate is faster.
    pub median: f64,
    /// Lower bound of the median.
    pub bound: Option<f64>,
}

/// A candidate on one problem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfProblem {
    /// The kernel it was timed against.
    pub baseline: String,
    /// Median of its ratios in the first trial.
    pub ratio: f64,
    /// Median of its own times there, in microseconds.
    pub microseconds: f64,
}

/// A candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// Name of its kernel.
    pub kernel: String,
    /// 0 for what was shipped.
    pub generation: u32,
    /// The genes of the candidate.
    pub genes: Genes,
    /// Where it comes from.
    pub lineage: Lineage,
    /// The compiler's report; `null` if it did not get so far.
    pub report: Option<Report>,
    /// Hardware counters by name, of what was among the fastest where the host could take them.
    #[serde(default)]
    pub counters: BTreeMap<String, f64>,
    /// The verdict on the candidate.
    pub verdict: Verdict,
}
