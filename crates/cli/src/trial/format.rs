//! The requests of `cargo xtask evolve` to a GPU host, and the answers of `warptile trial`. Compiled into both.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The file of a pack that holds a [`Task`].
pub(crate) const TASK: &str = "trial.json";

/// The name of the control among the runs: the kernel in use, slowed by launches that are not counted.
pub(crate) const CONTROL: &str = "control";

/// The counter that says how busy shared memory is, in percent of its peak.
pub(crate) const SHARED_MEMORY: &str = "shared_memory_percent";

/// The measurements asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Task {
    /// The family searched. Candidates are timed against its kernel that the planner takes.
    pub(crate) family: String,
    /// Blocks of each trial: decided before the first is measured.
    pub(crate) blocks: usize,
    /// Launches of the control that are counted as 50.
    pub(crate) control_launches: usize,
    /// Candidates that the search will have timed after this task, for the correction of the confidence.
    pub(crate) tried: usize,
    /// Random problems that a candidate must compute right before it is timed.
    pub(crate) checks: u64,
    /// Seed of these.
    pub(crate) seed: u64,
    /// Problems that count.
    pub(crate) problems: Vec<String>,
    /// Problems that are measured only of a candidate that won on the others.
    pub(crate) held_out: Vec<String>,
    /// The candidates.
    pub(crate) candidates: Vec<Asked>,
}

/// A candidate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked {
    /// Its kernel.
    pub(crate) kernel: String,
    /// Its image, in the manifest of the pack.
    pub(crate) image: String,
    /// SHA-256 of the image.
    pub(crate) sha256: String,
}

/// The measurements of a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Results {
    /// The task, so that results of another are not taken for its own.
    pub(crate) task: Task,
    /// Name of the GPU.
    pub(crate) device: String,
    /// Version of its driver.
    pub(crate) driver: String,
    /// Version and commit of the program.
    pub(crate) program: String,
    /// Day and time of the last run.
    pub(crate) date: String,
    /// True if something is missing.
    pub(crate) cut_short: bool,
    /// How each candidate computed, by kernel.
    pub(crate) checks: BTreeMap<String, Check>,
    /// Times, in the order in which they were measured.
    pub(crate) runs: Vec<Run>,
    /// Hardware counters of the fastest candidates and of the kernel in use, by kernel and name; none from a host without `ncu`.
    #[serde(default)]
    pub(crate) counters: BTreeMap<String, Counters>,
}

/// Hardware counters by name.
pub(crate) type Counters = BTreeMap<String, f64>;

/// How a candidate computed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Check {
    /// Problems that were computed.
    pub(crate) problems: u64,
    /// The first wrong problem; `null` if all were right.
    pub(crate) wrong: Option<String>,
}

/// The blocks of one candidate, or of the control, on one problem in one process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    /// The kernel, or [`CONTROL`].
    pub(crate) kernel: String,
    /// 1, or 2 for the repeat.
    pub(crate) pass: u32,
    /// Tells processes apart: when it began, in nanoseconds since 1970.
    pub(crate) process: u64,
    /// The problem.
    pub(crate) problem: String,
    /// True if the search does not see it.
    pub(crate) held_out: bool,
    /// The kernel in use, which this one was timed against.
    pub(crate) baseline: String,
    /// Microseconds of one launch: of the kernel in use, of this one twice, of the kernel in use.
    pub(crate) blocks: Vec<[f64; 4]>,
}

impl Results {
    /// The ratios of a trial over several problems: block by block the geometric mean of the problems' ratios, by `ratio`. `None` if one
    /// of the problems was not measured in this pass, or not with as many blocks as the task asks for.
    pub(crate) fn ratios(
        &self,
        kernel: &str,
        pass: u32,
        problems: &[String],
        ratio: fn([f64; 4]) -> f64,
    ) -> Option<Vec<f64>> {
        let blocks = self.task.blocks;
        let of_problem = |problem: &String| {
            { self.runs.iter() }
                .find(|run| run.kernel == kernel && run.pass == pass && run.problem == *problem)
                .filter(|run| run.blocks.len() == blocks)
        };
        let of_problems: Vec<&Run> = problems.iter().map(of_problem).collect::<Option<_>>()?;
        let mean = |block: usize| {
            let ratios = of_problems.iter().map(|run| ratio(run.blocks[block]).ln());
            (ratios.sum::<f64>() / of_problems.len() as f64).exp()
        };
        (!of_problems.is_empty()).then(|| (0..blocks).map(mean).collect())
    }
}
