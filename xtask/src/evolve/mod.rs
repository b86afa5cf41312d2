//! `cargo xtask evolve`: the search over what is compiled. docs/evolve.md tells how it is used, and by what rules it selects.
//!
//! Everything known of a search lies in `evidence/evolution/FAMILY`: `search.json`, and a file for each candidate. Each is written
//! whole or not at all, so a search that was interrupted goes on from there.

pub mod archive;
pub(crate) mod picture;
mod problem;
mod promote;
mod propose;
pub mod rules;
mod select;

#[path = "../../../crates/cli/src/trial/format.rs"]
mod format;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::build_kernels::{BuildError, Compiler, Layout, Progress};
use crate::files::{self, FileError};
use crate::folder;
use crate::instances::{self, Element, FamilyDeclaration, Instance, InstancesError, Target};
use crate::manifest::Manifest;
use crate::report::ReportError;
use crate::trial::Rules;
use archive::{Candidate, Genes, How, Lineage, Report, Verdict};
use format::{Asked, Results, TASK, Task};
use problem::Shape;
use propose::Draw;

pub use archive::Plan;

/// Blocks of a trial, at least; of more candidates it takes more for any to win.
const LEAST_BLOCKS: usize = 41;

/// Launches of the control that are counted as 50: it is 2% slower.
const CONTROL_LAUNCHES: usize = 51;

/// Random problems that a candidate must compute right before it is timed.
const CHECKS: u64 = 300;

/// Why a step of a search was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvolveError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// `instances.toml` is refused.
    #[error(transparent)]
    Instances(#[from] InstancesError),
    /// Nothing could be compiled.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The stored baseline cannot be read.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// A file of the search is not what this program writes.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// What was asked for does not fit what there is.
    #[error("{0}")]
    Refused(String),
}

/// A sentence for [`EvolveError::Refused`].
fn refused<T>(why: impl Into<String>) -> Result<T, EvolveError> {
    Err(EvolveError::Refused(why.into()))
}

/// The search of a family.
#[derive(Debug)]
pub struct Search {
    root: PathBuf,
    plan: Plan,
    candidates: BTreeMap<String, Candidate>,
}

impl Search {
    fn directory(root: &Path, family: &str) -> PathBuf {
        root.join("evidence/evolution").join(family)
    }

    /// Where compiled candidates wait: not committed, as they can be compiled again.
    fn images(&self) -> PathBuf {
        self.root.join(".cache/evolve").join(&self.plan.family)
    }

    /// Begins a search: what the family ships for the target, the element type and the head sizes of the problems is generation 0.
    ///
    /// # Errors
    /// [`EvolveError`]; also if there is a search already, the family has no knobs, or a problem is not understood.
    pub fn start(root: &Path, plan: Plan) -> Result<Self, EvolveError> {
        let directory = Self::directory(root, &plan.family);
        if directory.join("search.json").exists() {
            return refused(format!(
                "{} has a search; delete it to begin anew",
                directory.display()
            ));
        }
        let known: BTreeSet<&String> = plan.problems.iter().collect();
        if let Some(seen) = plan.held_out.iter().find(|problem| known.contains(problem)) {
            return refused(format!("`{seen}` cannot be held out and counted"));
        }
        let all = [&plan.problems[..], &plan.held_out[..]].concat();
        problem::element(&all).map_err(EvolveError::Refused)?;
        let searched = problem::head_dim(&all).map_err(EvolveError::Refused)?;
        let mut search = Self {
            root: root.to_owned(),
            plan,
            candidates: BTreeMap::new(),
        };
        let Some(knobs) = search.declaration()?.knobs else {
            return refused(format!(
                "instances.toml gives {} no knobs",
                search.plan.family
            ));
        };
        let manifest = Layout::of_repository(root).manifest();
        let manifest: Manifest = read_json(&manifest)?;
        let entries: BTreeMap<&str, _> = { manifest.images.iter() }
            .map(|entry| (entry.name.as_str(), entry))
            .collect();
        for instance in instances::load(&root.join("kernels/instances.toml"))? {
            let is_searched = instance.family == search.plan.family
                && instance.target.to_string() == search.plan.target
                && instance.element.to_string() == search.element()?
                && instance.variant == search.plan.variant;
            let head_dim = instance.tiling.head_dim;
            // Genes have one head size.
            let is_searched = is_searched && instance.tiling.value_dim() == head_dim;
            if !is_searched || head_dim as usize != searched {
                continue;
            }
            let Some(entry) = entries.get(instance.image().as_str()) else {
                continue;
            };
            search.add(Candidate {
                kernel: instance.kernel(),
                generation: 0,
                genes: Genes {
                    head_dim,
                    block_m: instance.tiling.block_m,
                    block_n: instance.tiling.block_n,
                    warps: instance.tiling.warps,
                    stages: instance.tiling.stages,
                    switches: { knobs.switches.iter() }
                        .filter(|switch| instance.extra_flags.contains(switch))
                        .cloned()
                        .collect(),
                },
                lineage: Lineage {
                    how: How::Seed,
                    parents: Vec::new(),
                    why: "shipped when the search began".to_owned(),
                },
                report: Some(Report::from(*entry)),
                ctas: BTreeMap::new(),
                counters: BTreeMap::new(),
                verdict: Verdict::Shipped,
            })?;
        }
        if search.candidates.is_empty() {
            return refused("the family ships nothing for this target and these problems");
        }
        // Last: a directory with this file has all of generation 0.
        write_json(&directory.join("search.json"), &search.plan)?;
        Ok(search)
    }

    /// Opens the search of a family.
    ///
    /// # Errors
    /// [`EvolveError`] if there is none, or a file of it is not what this program writes.
    pub fn open(root: &Path, family: &str) -> Result<Self, EvolveError> {
        let directory = Self::directory(root, family);
        let plan: Plan = read_json(&directory.join("search.json"))?;
        let mut candidates = BTreeMap::new();
        for path in files::list(&directory.join("candidates"))? {
            if path
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                let candidate: Candidate = read_json(&path)?;
                candidates.insert(candidate.kernel.clone(), candidate);
            }
        }
        Ok(Self {
            root: root.to_owned(),
            plan,
            candidates,
        })
    }

    /// Archives a candidate, in place of what was known of it.
    fn add(&mut self, mut candidate: Candidate) -> Result<(), EvolveError> {
        let (family, block_m) = (&self.plan.family, candidate.genes.block_m);
        candidate.ctas = { self.shapes()?.into_iter() }
            .filter_map(|(text, shape)| Some((text.to_owned(), shape.ctas(family, block_m)?)))
            .collect();
        let directory = Self::directory(&self.root, family).join("candidates");
        let path = directory.join(format!("{}.json", candidate.kernel));
        write_json(&path, &candidate)?;
        self.candidates.insert(candidate.kernel.clone(), candidate);
        Ok(())
    }

    fn shapes(&self) -> Result<Vec<(&str, Shape)>, EvolveError> {
        { self.plan.problems.iter() }
            .map(|text| {
                let shape = Shape::parse(text).map_err(EvolveError::Refused)?;
                Ok((text.as_str(), shape))
            })
            .collect()
    }

    fn element(&self) -> Result<&'static str, EvolveError> {
        problem::element(&self.plan.problems).map_err(EvolveError::Refused)
    }

    fn declaration(&self) -> Result<FamilyDeclaration, EvolveError> {
        let path = self.root.join("kernels/instances.toml");
        Ok(instances::declaration(&path, &self.plan.family)?)
    }

    /// Candidates that were timed.
    fn tried(&self) -> usize {
        let candidates = self.candidates.values();
        candidates
            .filter(|candidate| candidate.verdict.measured().is_some())
            .count()
    }

    fn instance(&self, genes: &Genes) -> Result<Instance, EvolveError> {
        let target: Target = { self.plan.target.parse() }.map_err(EvolveError::Refused)?;
        let refused = |error: serde::de::value::Error| EvolveError::Refused(error.to_string());
        let element: Element = self.element()?.parse().map_err(refused)?;
        Ok(self.declaration()?.instance(
            genes.row(),
            element,
            self.plan.variant,
            target,
            genes.suffix(),
            &genes.switches,
        ))
    }

    /// What the rates that were measured before say of each candidate on the problems that count: a rate counts the rows that fill up a
    /// tile, so it is divided by all rows of the tiles. Only the order means anything.
    fn expected_speeds(&self) -> Result<BTreeMap<String, f64>, EvolveError> {
        let rates = promote::rates(&self.root)?;
        let shapes = self.shapes()?;
        let speed = |candidate: &Candidate| {
            let rate: f64 = *rates.get(&candidate.kernel)?;
            let block_m = candidate.genes.block_m;
            let times = shapes.iter().map(|(_, shape)| {
                let rows = shape.tiles(&self.plan.family, block_m) * u64::from(block_m);
                (rows as f64 / rate).ln()
            });
            Some((-times.sum::<f64>() / shapes.len() as f64).exp())
        };
        Ok({ self.candidates.values() }
            .filter_map(|candidate| Some((candidate.kernel.clone(), speed(candidate)?)))
            .collect())
    }

    /// Proposes a generation.
    ///
    /// # Errors
    /// [`EvolveError`]; also if nobody knows of any candidate how fast it is.
    pub fn propose(&mut self, count: usize) -> Result<String, EvolveError> {
        let Some(knobs) = self.declaration()?.knobs else {
            return refused(format!(
                "instances.toml gives {} no knobs",
                self.plan.family
            ));
        };
        let speeds = self.expected_speeds()?;
        let parents = propose::parents(self.candidates.values(), &speeds);
        if parents.is_empty() {
            return refused("no shipped kernel has a rate, and nothing was measured");
        }
        // What is shipped has no suffix: its flags are in its row. So the name of the same without them is taken.
        let plain = |candidate: &Candidate| Genes {
            switches: Vec::new(),
            ..candidate.genes.clone()
        };
        let shipped = { self.candidates.values() }.filter(|one| one.verdict == Verdict::Shipped);
        let known: BTreeSet<Genes> = { self.candidates.values() }
            .map(|candidate| candidate.genes.clone())
            .chain(shipped.map(plain))
            .collect();
        let latest = { self.candidates.values() }
            .map(|candidate| candidate.generation)
            .max()
            .unwrap_or(0);
        let of_latest: Vec<&Candidate> = { self.candidates.values() }
            .filter(|candidate| candidate.generation == latest)
            .collect();
        // One of which nothing is compiled may be what an interrupted proposal left: its draws begin anew and find what is missing.
        let is_open = of_latest.iter().all(|one| one.verdict == Verdict::Proposed);
        let (generation, count) = match is_open {
            true => (latest, count.saturating_sub(of_latest.len())),
            false => (latest + 1, count),
        };
        if count == 0 {
            return refused(format!("generation {generation} is proposed: compile it"));
        }
        let mut draw = Draw(self.plan.seed.wrapping_add(u64::from(generation) << 32));
        let made = propose::generation(
            &parents,
            &known,
            &knobs,
            self.plan.multiprocessors,
            count,
            &mut draw,
        );
        let mut text = String::new();
        for (genes, lineage) in made {
            let kernel = self.instance(&genes)?.kernel();
            let _ = writeln!(text, "{kernel}: {}", lineage.why);
            self.add(Candidate {
                kernel,
                generation,
                genes,
                lineage,
                report: None,
                ctas: BTreeMap::new(),
                counters: BTreeMap::new(),
                verdict: Verdict::Proposed,
            })?;
        }
        match text.is_empty() {
            true => refused("the neighbourhood of the three best holds nothing new"),
            false => Ok(text),
        }
    }

    /// Compiles what was proposed, one candidate after the other, so that little is lost if it is interrupted.
    ///
    /// # Errors
    /// [`EvolveError`] if nothing can be compiled at all; what a gate refuses is archived.
    pub fn compile(
        &mut self,
        compiler: &Compiler,
        progress: &dyn Progress,
    ) -> Result<String, EvolveError> {
        let layout = Layout::of_repository(&self.root);
        let proposed: Vec<Candidate> = { self.candidates.values() }
            .filter(|candidate| candidate.verdict == Verdict::Proposed)
            .cloned()
            .collect();
        let mut text = String::new();
        for candidate in proposed {
            let instance = self.instance(&candidate.genes)?;
            let images = self.images().join(&candidate.kernel);
            let (manifest, failures) =
                folder::build(&layout, compiler, &[instance], &images, progress)?;
            let report = manifest.images.first().map(Report::from);
            let verdict = match &report {
                Some(_) => Verdict::Compiled,
                None => Verdict::Refused {
                    reasons: failures
                        .into_iter()
                        .flat_map(|failure| failure.reasons)
                        .map(|reason| without_paths(&reason, &self.root))
                        .collect(),
                },
            };
            let _ = writeln!(text, "{}: {}", candidate.kernel, verdict.word());
            self.add(Candidate {
                report,
                verdict,
                ..candidate
            })?;
        }
        Ok(text)
    }

    /// Packs what was compiled and not measured, with a program if there is one to go along: several packs may share theirs.
    ///
    /// # Errors
    /// [`EvolveError`]; also if there is nothing to pack, or an image is not the one that was archived.
    pub fn pack(&self, out: &Path, program: Option<&Path>) -> Result<String, EvolveError> {
        let mut manifest = Manifest::default();
        let mut candidates = Vec::new();
        for candidate in self.candidates.values() {
            let (Verdict::Compiled, Some(report)) = (&candidate.verdict, &candidate.report) else {
                continue;
            };
            let folder = self.images().join(&candidate.kernel);
            let compiled: Manifest = read_json(&folder.join("manifest.json"))?;
            let entry = { compiled.images.into_iter() }.find(|one| one.sha256 == report.sha256);
            let Some(entry) = entry else {
                return refused(format!(
                    "{}: the image in {} is not the archived one; delete its file in the archive and propose again",
                    candidate.kernel,
                    folder.display()
                ));
            };
            let image = files::read(&folder.join(&entry.pack))?;
            files::write(&out.join(&entry.pack), &image)?;
            candidates.push(Asked {
                kernel: candidate.kernel.clone(),
                image: entry.name.clone(),
                sha256: entry.sha256.clone(),
            });
            manifest.images.push(entry);
        }
        if candidates.is_empty() {
            return refused("nothing is compiled that was not measured: propose and compile first");
        }
        let tried = self.tried() + candidates.len();
        let task = Task {
            family: self.plan.family.clone(),
            // Twice what can win at all: a few blocks may be bad.
            blocks: LEAST_BLOCKS.max(2 * Rules::of_tried(tried).fewest_blocks()),
            control_launches: CONTROL_LAUNCHES,
            tried,
            checks: CHECKS,
            seed: self.plan.seed,
            problems: self.plan.problems.clone(),
            held_out: self.plan.held_out.clone(),
            candidates,
        };
        if let Some(program) = program {
            let bytes = files::read(program)?;
            files::write(&out.join("warptile"), &bytes)?;
            files::make_executable(&out.join("warptile"))?;
        }
        files::write(&out.join("run.sh"), RUN.as_bytes())?;
        files::make_executable(&out.join("run.sh"))?;
        write_json(&out.join("manifest.json"), &manifest)?;
        write_json(&out.join(TASK), &task)?;
        Ok(format!(
            "{}: {} candidates, {} blocks each. On the GPU host: {}/run.sh; then bring results.json back\n",
            out.display(),
            task.candidates.len(),
            task.blocks,
            out.file_name().unwrap_or_default().to_string_lossy(),
        ))
    }

    /// Takes the results of a host.
    ///
    /// # Errors
    /// [`EvolveError`]; also if they are not of this search's images, or the session saw too little.
    pub fn take(&mut self, path: &Path) -> Result<String, EvolveError> {
        let results: Results = read_json(path)?;
        self.check_task(&results.task)?;
        let verdicts = select::verdicts(&results).map_err(EvolveError::Refused)?;
        let mut text = String::new();
        for (kernel, counters) in &results.counters {
            if let Some(candidate) = self.candidates.get(kernel)
                && candidate.counters != *counters
            {
                let _ = writeln!(text, "{kernel}: {} counters", counters.len());
                self.add(Candidate {
                    counters: counters.clone(),
                    ..candidate.clone()
                })?;
            }
        }
        for asked in &results.task.candidates {
            let Some(candidate) = self.candidates.get(&asked.kernel) else {
                continue;
            };
            let Some(verdict) = verdicts.get(&asked.kernel) else {
                let _ = writeln!(text, "{}: not measured to the end", asked.kernel);
                continue;
            };
            // Results that were taken before change nothing.
            if candidate.verdict != Verdict::Compiled {
                continue;
            }
            let _ = writeln!(text, "{}: {}", asked.kernel, verdict.word());
            self.add(Candidate {
                verdict: verdict.clone(),
                ..candidate.clone()
            })?;
        }
        Ok(text)
    }

    /// Results count only for this search's own problems and images, and for no fewer candidates than were tried.
    fn check_task(&self, task: &Task) -> Result<(), EvolveError> {
        if task.family != self.plan.family
            || task.problems != self.plan.problems
            || task.held_out != self.plan.held_out
        {
            return refused("these results are of another search");
        }
        for asked in &task.candidates {
            let archived = { self.candidates.get(&asked.kernel) }
                .and_then(|candidate| candidate.report.as_ref());
            if archived.map(|report| &report.sha256) != Some(&asked.sha256) {
                return refused(format!(
                    "{}: what was measured is not the archived image",
                    asked.kernel
                ));
            }
        }
        let pending = { task.candidates.iter() }
            .filter_map(|asked| self.candidates.get(&asked.kernel))
            .filter(|candidate| candidate.verdict == Verdict::Compiled)
            .count();
        let tried = self.tried() + pending;
        match task.tried >= tried && task.blocks >= Rules::of_tried(tried).fewest_blocks() {
            true => Ok(()),
            false => refused(format!(
                "the task was packed for {} candidates tried, and there are {tried}: pack again",
                task.tried
            )),
        }
    }

    /// The search as a table, best first.
    #[must_use]
    pub fn table(&self) -> String {
        let mut candidates: Vec<&Candidate> = self.candidates.values().collect();
        candidates.sort_by(|a, b| {
            gain(b)
                .unwrap_or(0.0)
                .total_cmp(&gain(a).unwrap_or(0.0))
                .then((a.generation, &a.kernel).cmp(&(b.generation, &b.kernel)))
        });
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        table.set_header(["kernel", "gen", "regs", "shared", "gain", "verdict"]);
        for one in candidates {
            let number = |of: fn(&Report) -> u32| {
                one.report
                    .as_ref()
                    .map_or("-".to_owned(), |report| of(report).to_string())
            };
            table.add_row([
                one.kernel.clone(),
                one.generation.to_string(),
                number(|report| report.registers),
                number(|report| report.shared_bytes),
                gain(one).map_or("-".to_owned(), |gain| format!("{gain:.3}")),
                one.verdict.word().to_owned(),
            ]);
        }
        format!("{table}\n")
    }

    /// The table, and the picture beside the archive.
    ///
    /// # Errors
    /// [`EvolveError::File`].
    pub fn show(&self) -> Result<String, EvolveError> {
        let path = Self::directory(&self.root, &self.plan.family).join("search.svg");
        let all: Vec<&Candidate> = self.candidates.values().collect();
        files::write(&path, picture::svg(&self.plan, &all).as_bytes())?;
        Ok(format!("{}{}\n", self.table(), path.display()))
    }

    /// Adds a winner to `instances.toml` and its rate to the rates of the GPU, if it takes nothing from the stored baseline.
    ///
    /// # Errors
    /// [`EvolveError`]; also if the candidate did not win, none of the problems can give a rate, or one of the baseline would lose.
    pub fn promote(&mut self, kernel: &str) -> Result<String, EvolveError> {
        let Some(candidate) = self.candidates.get(kernel).cloned() else {
            return refused(format!("the search has no candidate {kernel}"));
        };
        let Verdict::Won(measured) = &candidate.verdict else {
            return refused(format!(
                "{kernel}: {}; only what won can be promoted",
                candidate.verdict.word()
            ));
        };
        let measured = measured.clone();
        let text = promote::promote(
            &self.root,
            &self.plan,
            self.element()?,
            &candidate,
            &measured,
        )?;
        self.add(Candidate {
            verdict: Verdict::Promoted(measured),
            ..candidate
        })?;
        Ok(text)
    }
}

/// The median gain of the first trial.
fn gain(candidate: &Candidate) -> Option<f64> {
    let measured = candidate.verdict.measured()?;
    measured.trials.first().map(|one| one.median)
}

/// What a pack runs.
const RUN: &str = "#!/bin/sh
# Checks and times the candidates of this folder; needs an NVIDIA driver and a program only: the one in this folder, or $WARPTILE. Run it again if
# it was interrupted.
here=$(cd \"$(dirname \"$0\")\" && pwd) || exit 1
exec \"${WARPTILE:-$here/warptile}\" trial \"$here\" --out \"${1:-$here/results.json}\"
";

/// What a compiler says, without the paths of this machine.
fn without_paths(reason: &str, root: &Path) -> String {
    let root = format!("{}/", root.display());
    let mut text = reason.replace(&root, "");
    text.truncate(
        text.char_indices()
            .nth(2000)
            .map_or(text.len(), |(at, _)| at),
    );
    text
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, EvolveError> {
    let text = files::read_text(path)?;
    serde_json::from_str(&text).map_err(|source| EvolveError::Json {
        path: path.to_owned(),
        source,
    })
}

/// Readable, with a final line break, and whole: a temporary file takes the place of the old one.
fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), EvolveError> {
    let mut text = serde_json::to_string_pretty(value).map_err(|source| EvolveError::Json {
        path: path.to_owned(),
        source,
    })?;
    text.push('\n');
    Ok(files::write(path, text.as_bytes())?)
}

#[cfg(test)]
mod tests;
