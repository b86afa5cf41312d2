//! `cargo xtask evolve`: the search over what is compiled. docs/evolve.md tells how it is used, and by what rules it selects.
//!
//! Everything known of a search lies in `evidence/evolution/FAMILY.json`. Each step writes it whole or not at all, so a search that
//! was interrupted goes on from there.

pub mod archive;
mod picture;
mod problem;
mod promote;
mod propose;
pub mod rules;
pub(crate) mod select;

#[path = "../../../crates/cli/src/trial/format.rs"]
mod format;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::build_kernels::{Compiler, Layout, Progress};
use crate::files;
use crate::folder;
use crate::instances::{self, Element, FamilyDeclaration, Instance, Knobs};
use crate::manifest::{Manifest, ManifestEntry};
use crate::trial::Rules;
use archive::{Candidate, Genes, How, Lineage, Report, State, Verdict};
use format::{Asked, Results, TASK, Task};
use problem::Shape;
use propose::{Draw, Space};

pub use archive::Plan;

/// Blocks of a trial, at least; of more candidates it takes more for any to win.
const LEAST_BLOCKS: usize = 41;

/// Launches of the control that are counted as 50: it is 2% slower.
const CONTROL_LAUNCHES: usize = 51;

/// Random problems that a candidate must compute right before it is timed.
const CHECKS: u64 = 300;

/// The search of a family.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Search {
    #[serde(skip)]
    root: PathBuf,
    pub(crate) plan: Plan,
    pub(crate) candidates: BTreeMap<String, Candidate>,
}

impl Search {
    /// Begins a search: what the family ships for the target, the element type and the head sizes of the problems is generation 0.
    ///
    /// # Errors
    /// If a file cannot be read or written, there is a search already, the family has no knobs, or a problem is not understood.
    pub fn start(root: &Path, plan: Plan) -> Result<Self> {
        let path = archive_of(root, &plan.family);
        ensure!(
            !path.exists(),
            "{} is a search; delete it to begin anew",
            path.display()
        );
        if let Some(seen) = plan.held_out.iter().find(|one| plan.problems.contains(one)) {
            anyhow::bail!("`{seen}` cannot be held out and counted");
        }
        let all = problem::shapes(plan.problems.iter().chain(&plan.held_out))?;
        let Shape { element, heads, .. } = all[0].1;
        let manifest: Manifest = files::read_json(&Layout::of_repository(root).manifest())?;
        let mut search = Self {
            root: root.to_owned(),
            plan: plan.clone(),
            candidates: BTreeMap::new(),
        };
        let knobs = search.knobs()?;
        for instance in instances::load(&root.join("kernels/instances.toml"))? {
            let tiling = &instance.tiling;
            let is_searched = instance.family == plan.family
                && instance.target == plan.target
                && instance.element == element
                && instance.variant == plan.variant
                && tiling.head_dim as usize == heads.dim
                // Genes have one head size.
                && tiling.has_one_size();
            let image = instance.image();
            let entry = manifest
                .images
                .iter()
                .find(|one| is_searched && one.name == image);
            let Some(entry) = entry else {
                continue;
            };
            let is_on = |switch: &&String| instance.extra_flags.contains(switch);
            let genes = Genes {
                head_dim: tiling.head_dim,
                numbers: [tiling.block_m, tiling.block_n, tiling.warps, tiling.stages],
                switches: knobs.switches.iter().filter(is_on).cloned().collect(),
            };
            let lineage = Lineage {
                how: How::Seed,
                parents: Vec::new(),
                why: "shipped when the search began".to_owned(),
            };
            search.add(
                instance.kernel(),
                0,
                (genes, lineage),
                State::Shipped,
                Some(entry),
            );
        }
        ensure!(
            !search.candidates.is_empty(),
            "the family ships nothing for this target, this variant and these problems"
        );
        search.save()?;
        Ok(search)
    }

    /// Opens the search of a family.
    ///
    /// # Errors
    /// If there is none, or its file is not what this program writes.
    pub fn open(root: &Path, family: &str) -> Result<Self> {
        Ok(Self {
            root: root.to_owned(),
            ..files::read_json(&archive_of(root, family))?
        })
    }

    /// All searches, ordered by family.
    pub(crate) fn all(root: &Path) -> Result<Vec<Self>> {
        let paths = files::list_of(&root.join(ARCHIVES), "json")?;
        let families = paths.iter().filter_map(|path| path.file_stem()?.to_str());
        families.map(|family| Self::open(root, family)).collect()
    }

    fn save(&self) -> Result<()> {
        files::write_json(&archive_of(&self.root, &self.plan.family), self)
    }

    /// The picture next to the archive, and its place.
    pub(crate) fn picture(&self) -> (PathBuf, String) {
        let path = archive_of(&self.root, &self.plan.family).with_extension("svg");
        (path, picture::svg(&self.plan, self.candidates.values()))
    }

    /// Where compiled candidates wait: not committed, as they can be compiled again.
    fn images(&self, kernel: &str) -> PathBuf {
        let family = self.root.join(".cache/evolve").join(&self.plan.family);
        family.join(kernel)
    }

    fn add(
        &mut self,
        kernel: String,
        generation: u32,
        (genes, lineage): (Genes, Lineage),
        state: State,
        entry: Option<&ManifestEntry>,
    ) {
        let candidate = Candidate {
            kernel: kernel.clone(),
            generation,
            genes,
            lineage,
            report: entry.map(Report::from),
            counters: BTreeMap::new(),
            verdict: Verdict::of(state, ""),
        };
        self.candidates.insert(kernel, candidate);
    }

    fn shapes(&self) -> Result<Vec<(&str, Shape)>> {
        problem::shapes(&self.plan.problems)
    }

    fn element(&self) -> Result<Element> {
        Ok(self.shapes()?[0].1.element)
    }

    fn declaration(&self) -> Result<FamilyDeclaration> {
        instances::declaration(&self.root.join("kernels/instances.toml"), &self.plan.family)
    }

    fn knobs(&self) -> Result<Knobs> {
        let knobs = self.declaration()?.knobs;
        knobs.with_context(|| format!("instances.toml gives {} no knobs", self.plan.family))
    }

    fn of_state(&self, state: State) -> impl Iterator<Item = &Candidate> {
        let all = self.candidates.values();
        all.filter(move |one| one.verdict.state == state)
    }

    /// Candidates that were timed.
    fn tried(&self) -> usize {
        let all = self.candidates.values();
        all.filter(|one| one.verdict.measured.is_some()).count()
    }

    fn instance(&self, genes: &Genes) -> Result<Instance> {
        Ok(self.declaration()?.instance(
            genes.row(),
            self.element()?,
            self.plan.variant.clone(),
            self.plan.target,
            genes.suffix(),
            &genes.switches,
        ))
    }

    /// What the rates that were measured before say of each candidate on the problems that count: a rate counts the rows that fill up a
    /// tile, so it is divided by all rows of the tiles. Only the order means anything.
    fn expected_speeds(&self, shapes: &[(&str, Shape)]) -> Result<BTreeMap<String, f64>> {
        let rates = promote::rates(&self.root)?;
        let speed = |one: &Candidate| {
            let (rate, block_m) = (rates.get(&one.kernel)?, one.genes.block_m());
            let times = shapes.iter().map(|(_, shape)| {
                let rows = shape.tiles(&self.plan.family, block_m) * u64::from(block_m);
                (rows as f64 / rate).ln()
            });
            let mean = times.sum::<f64>() / shapes.len() as f64;
            Some((one.kernel.clone(), (-mean).exp()))
        };
        Ok(self.candidates.values().filter_map(speed).collect())
    }

    /// Proposes a generation.
    ///
    /// # Errors
    /// If a file cannot be read or written, a generation is proposed already, or nobody knows of any candidate how fast it is.
    pub fn propose(&mut self, count: usize) -> Result<String> {
        let all = self.candidates.values();
        let latest = all.clone().map(|one| one.generation).max().unwrap_or(0);
        ensure!(
            self.of_state(State::Proposed).next().is_none(),
            "generation {latest} is proposed: compile it"
        );
        let (knobs, shapes) = (self.knobs()?, self.shapes()?);
        let speeds = self.expected_speeds(&shapes)?;
        let parents = propose::parents(all.clone(), &speeds);
        ensure!(
            !parents.is_empty(),
            "no shipped kernel has a rate, and nothing was measured"
        );
        // A shipped kernel has no suffix, because its flags are in its row. So its name without the flags is taken.
        let plain = self.of_state(State::Shipped).map(|one| Genes {
            switches: Vec::new(),
            ..one.genes.clone()
        });
        let known: BTreeSet<Genes> = all.map(|one| one.genes.clone()).chain(plain).collect();
        let generation = latest + 1;
        let mut draw = Draw(self.plan.seed.wrapping_add(u64::from(generation) << 32));
        let space = Space {
            knobs: &knobs,
            family: &self.plan.family,
            shapes: &shapes,
            multiprocessors: self.plan.multiprocessors,
        };
        let made = space.generation(&parents, &known, count, &mut draw);
        ensure!(
            !made.is_empty(),
            "the neighbourhood of the three best holds nothing new"
        );
        let mut text = String::new();
        for (genes, lineage) in made {
            let kernel = self.instance(&genes)?.kernel();
            let _ = writeln!(text, "{kernel}: {}", lineage.why);
            self.add(kernel, generation, (genes, lineage), State::Proposed, None);
        }
        self.save()?;
        Ok(text)
    }

    /// Compiles what was proposed, one candidate after the other, so that little is lost if it is interrupted.
    ///
    /// # Errors
    /// If nothing can be compiled at all; what a gate refuses is archived.
    pub fn compile(&mut self, compiler: &Compiler, progress: &dyn Progress) -> Result<String> {
        let layout = Layout::of_repository(&self.root);
        let proposed: Vec<Candidate> = self.of_state(State::Proposed).cloned().collect();
        let mut text = String::new();
        for mut one in proposed {
            let (instance, images) = (self.instance(&one.genes)?, self.images(&one.kernel));
            let (manifest, failures) =
                folder::build(&layout, compiler, &[instance], &images, progress)?;
            one.report = manifest.images.first().map(Report::from);
            one.verdict = match one.report {
                Some(_) => Verdict::of(State::Compiled, ""),
                None => {
                    let reasons = failures.into_iter().flat_map(|failure| failure.reasons);
                    let why = Vec::from_iter(reasons).join("\n");
                    // Without the paths of this machine.
                    let why = why.replace(&format!("{}/", self.root.display()), "");
                    Verdict::of(State::Refused, why.chars().take(2000).collect::<String>())
                }
            };
            let _ = writeln!(text, "{}: {}", one.kernel, one.verdict.state);
            self.candidates.insert(one.kernel.clone(), one);
            self.save()?;
        }
        Ok(text)
    }

    /// Packs what was compiled and not measured, with a program if there is one to go along: several packs may share theirs.
    ///
    /// # Errors
    /// If a file cannot be read or written, there is nothing to pack, or an image is not the one that was archived.
    pub fn pack(&self, out: &Path, program: Option<&Path>) -> Result<String> {
        let mut manifest = Manifest::default();
        let mut candidates = Vec::new();
        for one in self.of_state(State::Compiled) {
            let folder = self.images(&one.kernel);
            let compiled: Manifest = files::read_json(&folder.join("manifest.json"))?;
            let sha256 = one.report.as_ref().map(|report| &report.sha256);
            let mut entries = compiled.images.into_iter();
            let entry = entries.find(|entry| Some(&entry.sha256) == sha256).with_context(|| {
                format!(
                    "{}: the image in {} is not the archived one; delete it in the archive and propose again",
                    one.kernel,
                    folder.display()
                )
            })?;
            let image = files::read(&folder.join(&entry.pack))?;
            files::write(&out.join(&entry.pack), &image)?;
            candidates.push(Asked {
                kernel: one.kernel.clone(),
                image: entry.name.clone(),
                sha256: entry.sha256.clone(),
            });
            manifest.images.push(entry);
        }
        ensure!(
            !candidates.is_empty(),
            "nothing is compiled that was not measured: propose and compile first"
        );
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
        let program = program.map(files::read).transpose()?;
        let run = ("run.sh", Some(RUN.as_bytes().to_vec()));
        for (name, contents) in [("warptile", program), run] {
            if let Some(contents) = contents {
                files::write(&out.join(name), &contents)?;
                files::make_executable(&out.join(name))?;
            }
        }
        files::write_json(&out.join("manifest.json"), &manifest)?;
        files::write_json(&out.join(TASK), &task)?;
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
    /// If a file cannot be read or written, they are not of this search's images, or the session saw too little.
    pub fn take(&mut self, path: &Path) -> Result<String> {
        let results: Results = files::read_json(path)?;
        self.check_task(&results.task)?;
        let mut verdicts = select::verdicts(&results)?;
        let mut text = String::new();
        for (kernel, counters) in results.counters {
            if let Some(one) = self.candidates.get_mut(&kernel)
                && one.counters != counters
            {
                let _ = writeln!(text, "{kernel}: {} counters", counters.len());
                one.counters = counters;
            }
        }
        for Asked { kernel, .. } in &results.task.candidates {
            let Some(one) = self.candidates.get_mut(kernel) else {
                continue;
            };
            match verdicts.remove(kernel) {
                None => drop(writeln!(text, "{kernel}: not measured to the end")),
                // Results that were taken before change nothing.
                Some(_) if one.verdict.state != State::Compiled => {}
                Some(verdict) => {
                    let _ = writeln!(text, "{kernel}: {}", verdict.state);
                    one.verdict = verdict;
                }
            }
        }
        self.save()?;
        Ok(text)
    }

    /// Results count only for this search's own problems and images, and for no fewer candidates than were tried.
    fn check_task(&self, task: &Task) -> Result<()> {
        let plan = &self.plan;
        ensure!(
            (&task.family, &task.problems, &task.held_out)
                == (&plan.family, &plan.problems, &plan.held_out),
            "these results are of another search"
        );
        let mut tried = self.tried();
        for Asked { kernel, sha256, .. } in &task.candidates {
            let archived = self.candidates.get(kernel);
            let report = archived.and_then(|one| one.report.as_ref());
            ensure!(
                report.is_some_and(|report| report.sha256 == *sha256),
                "{kernel}: what was measured is not the archived image"
            );
            let is_pending = |one: &Candidate| one.verdict.state == State::Compiled;
            tried += usize::from(archived.is_some_and(is_pending));
        }
        ensure!(
            task.tried >= tried && task.blocks >= Rules::of_tried(tried).fewest_blocks(),
            "the task was packed for {} candidates tried, and there are {tried}: pack again",
            task.tried
        );
        Ok(())
    }

    /// The search as a table, best first.
    pub fn table(&self) -> String {
        let mut candidates = Vec::from_iter(self.candidates.values());
        candidates.sort_by(|a, b| {
            let gain = |one: &Candidate| one.verdict.gain().unwrap_or(0.0);
            let order = gain(b).total_cmp(&gain(a));
            order.then((a.generation, &a.kernel).cmp(&(b.generation, &b.kernel)))
        });
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        table.set_header(["kernel", "gen", "regs", "shared", "gain", "verdict"]);
        let shown = |text: Option<String>| text.unwrap_or("-".to_owned());
        for one in candidates {
            let report = one.report.as_ref();
            table.add_row([
                one.kernel.clone(),
                one.generation.to_string(),
                shown(report.map(|report| report.registers.to_string())),
                shown(report.map(|report| report.shared_bytes.to_string())),
                shown(one.verdict.gain().map(|gain| format!("{gain:.3}"))),
                one.verdict.state.to_string(),
            ]);
        }
        format!("{table}\n")
    }

    /// The table, and the picture next to the archive.
    ///
    /// # Errors
    /// If the picture cannot be written.
    pub fn show(&self) -> Result<String> {
        let (path, svg) = self.picture();
        files::write(&path, svg.as_bytes())?;
        Ok(format!("{}{}\n", self.table(), path.display()))
    }

    /// Adds a winner to `instances.toml` and its rate to the rates of the GPU, if it takes nothing from the stored baseline.
    ///
    /// # Errors
    /// If a file cannot be read or written, the candidate did not win, none of the problems can give a rate, or one of the baseline
    /// would lose.
    pub fn promote(&mut self, kernel: &str) -> Result<String> {
        let found = self.candidates.get(kernel).cloned();
        let mut one = found.with_context(|| format!("the search has no candidate {kernel}"))?;
        let state = one.verdict.state;
        let measured = one
            .verdict
            .measured
            .as_ref()
            .filter(|_| state == State::Won);
        let measured = measured
            .with_context(|| format!("{kernel}: {state}; only what won can be promoted"))?;
        let text = promote::promote(self, &one, measured)?;
        one.verdict.state = State::Promoted;
        self.candidates.insert(kernel.to_owned(), one);
        self.save()?;
        Ok(text)
    }
}

/// Where the archives lie.
const ARCHIVES: &str = "evidence/evolution";

fn archive_of(root: &Path, family: &str) -> PathBuf {
    root.join(ARCHIVES).join(format!("{family}.json"))
}

/// The script that a pack runs.
const RUN: &str = "#!/bin/sh
# Checks and times the candidates of this folder; needs an NVIDIA driver and a program only: the one in this folder,
# or $WARPTILE. Run it again if it was interrupted.
here=$(cd \"$(dirname \"$0\")\" && pwd) || exit 1
exec \"${WARPTILE:-$here/warptile}\" trial \"$here\" --out \"${1:-$here/results.json}\"
";

#[cfg(test)]
mod tests;
