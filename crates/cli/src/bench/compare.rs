//! Rows of now against rows that were measured earlier.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::row::Row;
use crate::failure::Failure;
use crate::machine::Machine;

/// A row may take this share of its earlier time longer: what two measurements of the same program differ by.
const TOLERANCE: f64 = 0.03;

/// The rows alone, as `--json` writes them, or as the evidence script does, beside what they are about.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum File {
    Bare(Vec<EarlierRow>),
    Stamped { rows: Vec<EarlierRow> },
}

/// Rows of a file that was written earlier.
#[derive(Debug)]
pub(super) struct Earlier {
    path: PathBuf,
    rows: Vec<EarlierRow>,
}

#[derive(Debug, Deserialize)]
struct EarlierRow {
    backend: String,
    kernel: String,
    problem: String,
    method: String,
    median_us: f64,
    device: String,
}

impl Earlier {
    /// Reads the rows of `path`.
    ///
    /// # Errors
    /// [`Failure::File`] or [`Failure::Json`].
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let bytes = std::fs::read(path).map_err(|source| Failure::read(path, source))?;
        let file = serde_json::from_slice(&bytes).map_err(|source| Failure::Json {
            path: path.to_owned(),
            source,
        })?;
        Ok(Earlier {
            path: path.to_owned(),
            rows: match file {
                File::Bare(rows) | File::Stamped { rows } => rows,
            },
        })
    }

    /// Before anything is measured.
    ///
    /// # Errors
    /// [`Failure::Input`] if the rows were measured on another kind of device.
    pub(super) fn check_device(&self, machine: &Machine) -> Result<(), Failure> {
        match self.rows.iter().find(|row| row.device != machine.device) {
            None => Ok(()),
            Some(row) => Err(Failure::Input(format!(
                "{}: its rows were measured on {}, but these would be on {}",
                self.path.display(),
                row.device,
                machine.device
            ))),
        }
    }

    /// Prints how each row's time compares with the earlier one, that of the same kernel if kernels were named.
    ///
    /// # Errors
    /// [`Failure::Wrong`] if a row is slower, [`Failure::Input`] if the files have no row in common.
    pub(super) fn compare(
        &self,
        rows: &[Row],
        by_kernel: bool,
        console: &mut dyn Write,
    ) -> Result<(), Failure> {
        let kernel = |kernel: &str| by_kernel.then(|| kernel.to_owned());
        let earlier: BTreeMap<_, f64> = self
            .rows
            .iter()
            .filter(|row| row.backend == "warptile")
            .map(|row| {
                (
                    (&row.problem, &row.method[..], kernel(&row.kernel)),
                    row.median_us,
                )
            })
            .collect();
        let (mut compared, mut slower) = (0, 0);
        for row in rows {
            let key = (&row.problem, row.method.name(), kernel(&row.kernel));
            let Some(before) = earlier.get(&key) else {
                continue;
            };
            compared += 1;
            let ratio = before / row.median_us;
            let is_slower = ratio < 1.0 - TOLERANCE;
            slower += usize::from(is_slower);
            writeln!(
                console,
                "compare  {}, {}: {:.3} of the earlier speed{}",
                row.problem,
                row.method.name(),
                ratio,
                if is_slower { ", SLOWER" } else { "" }
            )?;
        }
        match (compared, slower) {
            (0, _) => Err(Failure::Input(format!(
                "{}: none of its rows is about a problem measured here",
                self.path.display()
            ))),
            (_, 0) => Ok(()),
            _ => Err(Failure::Wrong(format!(
                "{slower} of {compared} rows are more than {:.0}% slower than in {}",
                TOLERANCE * 100.0,
                self.path.display()
            ))),
        }
    }
}
