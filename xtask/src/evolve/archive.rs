//! What is known of every candidate: one JSON file each, with lineage, hash, resources and verdict.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::instances::{TilingRow, Variant};
use crate::manifest::ManifestEntry;

/// What is searched, decided when the search begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The family.
    pub family: String,
    /// What candidates are compiled for.
    pub target: String,
    /// The variant that all candidates are; plain images without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<Variant>,
    /// Problems that count.
    pub problems: Vec<String>,
    /// Problems that the search does not see.
    pub held_out: Vec<String>,
    /// Multiprocessors of the GPU.
    pub multiprocessors: u32,
    /// Seed of what is drawn.
    pub seed: u64,
}

/// What makes a candidate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Genes {
    /// Head size of the tile.
    pub head_dim: u32,
    /// Query rows.
    pub block_m: u32,
    /// Keys.
    pub block_n: u32,
    /// Warps of the CTA.
    pub warps: u32,
    /// K/V tiles in flight.
    pub stages: u32,
    /// Compiler flags that it has, of those that the family may have.
    pub switches: Vec<String>,
}

impl Genes {
    /// The number that a rule names.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<u64> {
        let number = match name {
            "head_dim" => self.head_dim,
            "block_m" => self.block_m,
            "block_n" => self.block_n,
            "warps" => self.warps,
            "stages" => self.stages,
            _ => return None,
        };
        Some(u64::from(number))
    }

    /// As a row of `instances.toml`.
    #[must_use]
    pub fn row(&self) -> TilingRow {
        TilingRow::of(
            self.head_dim,
            self.block_m,
            self.block_n,
            self.warps,
            self.stages,
        )
    }

    /// End of the kernel's name: switches have no place in the tiling's.
    #[must_use]
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
    /// What was changed and why.
    pub why: String,
}

/// What the compiler reports.
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

/// What became of a candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case", deny_unknown_fields)]
pub enum Verdict {
    /// Shipped when the search began.
    Shipped,
    /// Not compiled yet.
    Proposed,
    /// A gate or the compiler refused it.
    Refused {
        /// Why.
        reasons: Vec<String>,
    },
    /// Compiled, not measured.
    Compiled,
    /// It computed something wrong, and was not timed.
    Wrong {
        /// What.
        what: String,
    },
    /// It gained too little, or not certainly.
    Lost(Measured),
    /// It gained, twice, and on problems that the search did not see.
    Won(Measured),
    /// It is in `instances.toml`.
    Promoted(Measured),
}

impl Verdict {
    /// What was measured, if it was.
    #[must_use]
    pub fn measured(&self) -> Option<&Measured> {
        match self {
            Verdict::Lost(measured) | Verdict::Won(measured) | Verdict::Promoted(measured) => {
                Some(measured)
            }
            _ => None,
        }
    }

    /// A word for tables.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Verdict::Shipped => "shipped",
            Verdict::Proposed => "proposed",
            Verdict::Refused { .. } => "refused",
            Verdict::Compiled => "compiled, not measured",
            Verdict::Wrong { .. } => "wrong",
            Verdict::Lost(_) => "lost",
            Verdict::Won(_) => "won",
            Verdict::Promoted(_) => "promoted",
        }
    }
}

/// What the times of a candidate say, by the rules of trials.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// Of each problem.
    pub problems: BTreeMap<String, OfProblem>,
    /// Why it lost, in words; empty if it won.
    pub why: String,
}

/// What one trial says.
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
    /// What makes it.
    pub genes: Genes,
    /// Where it comes from.
    pub lineage: Lineage,
    /// What the compiler reports; `null` if it did not get so far.
    pub report: Option<Report>,
    /// CTAs of each problem that counts, where that follows from the tile.
    pub ctas: BTreeMap<String, u64>,
    /// Hardware counters by name, of what was among the fastest where the host could take them.
    #[serde(default)]
    pub counters: BTreeMap<String, f64>,
    /// What became of it.
    pub verdict: Verdict,
}
