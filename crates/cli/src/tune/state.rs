//! The measurements of a search so far, in a file, so that it can go on after an interruption.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use warptile::plan::{Rates, Settings};

use super::remove;
use crate::failure::Failure;
use crate::lock::Lock;
use crate::machine::Machine;
use crate::output::Replacement;

/// A kernel with the settings of its launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Candidate {
    pub(crate) kernel: String,
    /// As words; empty where all is as the planner has it.
    settings: String,
}

impl Candidate {
    pub(crate) fn new(kernel: &str, settings: Settings) -> Self {
        Candidate {
            kernel: kernel.to_owned(),
            settings: settings.to_string(),
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        for word in self.settings.split_whitespace() {
            // A file of another making may have other words: they mean nothing.
            let _ = settings.parse_word(word);
        }
        settings
    }

    /// Options of `warptile verify` that have it compute with this kernel in such launches.
    pub(crate) fn options(&self) -> Vec<&str> {
        let mut options = vec!["--kernel", &self.kernel];
        if !self.settings.is_empty() {
            options.extend(["--settings", &self.settings]);
        }
        options
    }
}

impl std::fmt::Display for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let space = if self.settings.is_empty() { "" } else { " " };
        write!(f, "{}{space}{}", self.kernel, self.settings)
    }
}

/// A candidate's median time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Screened {
    #[serde(flatten)]
    pub(crate) candidate: Candidate,
    pub(crate) microseconds: f64,
}

/// One problem of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The line that rates know the problem by.
    pub(crate) problem: String,
    /// As it is measured.
    pub(crate) case: String,
    /// The planner's earlier choice.
    pub(crate) old: Candidate,
    /// All that were timed, the planner's choice first; none as long as it was not.
    pub(crate) screened: Vec<Screened>,
    /// Ratios of the blocks of the first trial and of its repeat: of the fastest against the planner's choice.
    pub(crate) first: Option<Vec<f64>>,
    pub(crate) repeat: Option<Vec<f64>>,
    /// True if the fastest passed `warptile verify`; `None` before it was run.
    pub(crate) verified: Option<bool>,
}

impl Entry {
    pub(crate) fn old_us(&self) -> Option<f64> {
        self.screened.first().map(|one| one.microseconds)
    }

    /// The fastest of those that are not the planner's choice.
    pub(crate) fn fastest(&self) -> Option<&Screened> {
        let others = self.screened.iter().skip(1);
        others.min_by(|a, b| a.microseconds.total_cmp(&b.microseconds))
    }
}

/// A search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    device: String,
    driver: String,
    program: String,
    multiprocessors: u32,
    pub(crate) entries: Vec<Entry>,
}

impl State {
    pub(crate) fn new(machine: &Machine, multiprocessors: u32, entries: Vec<Entry>) -> Self {
        State {
            device: machine.device.clone(),
            driver: machine.driver.clone(),
            program: machine.program.to_owned(),
            multiprocessors,
            entries,
        }
    }

    /// Beside the rates of the GPU.
    pub(crate) fn path(device: &str) -> Option<PathBuf> {
        Rates::user_file(device).map(|rates| rates.with_extension("state.json"))
    }

    /// Takes over what an earlier search measured of the same problems, if it was on the same device with as many multiprocessors, with the same
    /// driver and program, and started from the same choices. Anything else in the file counts as nothing.
    pub(crate) fn resume(&mut self, path: &Path) -> usize {
        let earlier = self.entries_at(path);
        let mut found = 0;
        for entry in &mut self.entries {
            let same = |one: &&Entry| one.problem == entry.problem && one.old == entry.old;
            if let Some(earlier) = earlier.iter().find(same) {
                *entry = earlier.clone();
                found += 1;
            }
        }
        found
    }

    /// The problems in a file that were measured on the same device, all or the same part of it, with the same driver and program; none if
    /// it is no such file.
    fn entries_at(&self, path: &Path) -> Vec<Entry> {
        let origin = |state: &State| {
            (
                state.device.clone(),
                state.driver.clone(),
                state.program.clone(),
                state.multiprocessors,
            )
        };
        let found = fs::read(path)
            .ok()
            .and_then(|text| serde_json::from_slice::<State>(&text).ok())
            .filter(|found| origin(found) == origin(self));
        let entries = found.map_or_else(Vec::new, |found| found.entries);
        let measured = entries.into_iter().filter(|one| !one.screened.is_empty());
        measured.collect()
    }

    /// The problems of other searches in the file, which may be under way.
    fn of_others(&self, path: &Path) -> Vec<Entry> {
        let mut others = self.entries_at(path);
        others.retain(|other| self.entries.iter().all(|own| own.problem != other.problem));
        others
    }

    /// Replaces the file by one with all that is known now. Problems of other searches stay.
    pub(crate) fn save(&self, path: &Path) -> Result<(), Failure> {
        let _lock = Lock::of(path)?;
        let mut all = self.clone();
        all.entries.extend(self.of_others(path));
        all.write(path)
    }

    /// Takes this search's problems out of the file, and removes a file with no others.
    pub(crate) fn forget(&self, path: &Path) -> Result<(), Failure> {
        let _lock = Lock::of(path)?;
        let others = State {
            entries: self.of_others(path),
            ..self.clone()
        };
        match others.entries.is_empty() {
            true => remove(path).map(drop),
            false => others.write(path),
        }
    }

    fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_vec_pretty(self).map_err(std::io::Error::from)?;
        Replacement::begin(path)?.finish(&text)
    }
}
