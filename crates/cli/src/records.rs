//! Rows of measurements that `bench --json`, benches/peers or the evidence script wrote.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::bench::row::Row;
use crate::failure::Failure;
use crate::json;
use crate::machine::Machine;
use crate::text;

/// A row may take this percentage of its earlier time longer: what two measurements of the same program differ by.
pub(crate) const TOLERANCE: f64 = 3.0;

/// Rows next to what they are about.
#[derive(Debug, Deserialize)]
struct Stamped {
    #[serde(default)]
    cut_short: bool,
    commit: Option<String>,
    rows: Vec<Row>,
}

/// The rows of one file.
pub(crate) struct Record {
    pub(crate) path: PathBuf,
    /// True if rows are missing because the measurement was ended early.
    pub(crate) cut_short: bool,
    /// The commit that the whole file is about.
    commit: Option<String>,
    pub(crate) rows: Vec<Row>,
}

impl Record {
    /// Reads the rows of `path`.
    ///
    /// # Errors
    /// [`Failure::File`] or [`Failure::Json`]; [`Failure::Input`] if a time makes no sense.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let Stamped {
            cut_short,
            commit,
            rows,
        } = stamped(json::read(path)?).map_err(|source| Failure::json(path, source))?;
        let is_time = |time: f64| time > 0.0 && time.is_finite();
        if let Some(row) = rows.iter().find(|row| !is_time(row.median_us)) {
            return Err(Failure::Input(format!(
                "{}: the time of {} is {} us",
                path.display(),
                text::message(&row.problem),
                row.median_us
            )));
        }
        Ok(Record {
            path: path.to_owned(),
            cut_short,
            commit,
            rows,
        })
    }

    /// The machines and programs of the rows, in order and without repeats.
    pub(crate) fn origin(&self) -> Origin {
        let of = |value: &dyn Fn(&Row) -> Option<String>| -> BTreeSet<String> {
            let values = self.rows.iter().filter_map(value);
            let values = values.filter(|value| !value.is_empty());
            values.map(|value| text::message(&value)).collect()
        };
        let ours = |row: &Row| match row.backend.as_str() {
            "warptile" => row.program.clone(),
            _ => None,
        };
        let mut program = of(&ours);
        if program.is_empty() {
            program.extend(self.commit.as_deref().map(|commit| {
                let commit = text::message(commit);
                format!("commit {commit}")
            }));
        }
        Origin {
            device: of(&|row| Some(row.device.clone())),
            driver: of(&|row| Some(row.driver.clone())),
            program,
        }
    }

    /// Before anything is measured to be compared with it.
    ///
    /// # Errors
    /// [`Failure::Input`] if the rows were measured on another kind of device.
    pub(crate) fn check_device(&self, machine: &Machine) -> Result<(), Failure> {
        match self.rows.iter().find(|row| row.device != machine.device) {
            None => Ok(()),
            Some(row) => Err(Failure::Input(format!(
                "{}: its rows were measured on {}, but these would be on {}",
                self.path.display(),
                text::name(&row.device),
                machine.device
            ))),
        }
    }
}

/// The rows alone, as `bench --json` writes them, or next to what they are about.
fn stamped(value: Value) -> serde_json::Result<Stamped> {
    match value {
        Value::Array(_) => Ok(Stamped {
            cut_short: false,
            commit: None,
            rows: serde_json::from_value(value)?,
        }),
        value => serde_json::from_value(value),
    }
}

/// Where rows come from; a set has several values if the rows do not agree, and none if they do not say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) device: BTreeSet<String>,
    pub(crate) driver: BTreeSet<String>,
    pub(crate) program: BTreeSet<String>,
}

impl Origin {
    /// The origin of what is measured now.
    pub(crate) fn of(machine: &Machine) -> Self {
        let one = |value: &str| BTreeSet::from([value.to_owned()]);
        Origin {
            device: one(&machine.device),
            driver: one(&machine.driver),
            program: one(machine.program),
        }
    }

    /// A line for each thing in which `self`, the earlier one, differs from `now`.
    pub(crate) fn differences(&self, now: &Origin) -> String {
        let words = |values: &BTreeSet<String>| match values.is_empty() {
            true => "unknown".to_owned(),
            false => values.iter().cloned().collect::<Vec<_>>().join(", "),
        };
        let mut lines = String::new();
        for (what, before, now) in [
            ("device", &self.device, &now.device),
            ("driver", &self.driver, &now.driver),
            ("program", &self.program, &now.program),
        ] {
            if before != now {
                let (before, now) = (words(before), words(now));
                let line = format!("differs  {what}: {before}, then {now}");
                lines += &(text::wrapped(&line, text::columns(), 9) + "\n");
            }
        }
        lines
    }
}

/// One problem in two records.
pub(crate) struct Compared<'a> {
    pub(crate) before: &'a Row,
    pub(crate) now: &'a Row,
}

impl Compared<'_> {
    /// Speed over the earlier speed.
    pub(crate) fn ratio(&self) -> f64 {
        self.before.median_us / self.now.median_us
    }

    pub(crate) fn title(&self) -> String {
        let Row {
            backend,
            problem,
            method,
            kernel,
            ..
        } = self.now;
        // A peer's kernel has its name.
        let who = match (&backend[..], &kernel[..]) {
            ("warptile", "") => "warptile",
            ("warptile", kernel) => kernel,
            (backend, _) => backend,
        };
        text::message(&format!("{problem}, {method}, {who}"))
    }
}

/// Two records, row by row.
pub(crate) struct Comparison<'a> {
    pub(crate) rows: Vec<Compared<'a>>,
    /// How many rows have no counterpart in the other record.
    pub(crate) only_before: usize,
    pub(crate) only_now: usize,
    /// Percent.
    tolerance: f64,
}

/// Who, problem, method, and the kernel where it matters.
type Key<'a> = (&'a str, &'a str, &'a str, Option<&'a str>);

impl<'a> Comparison<'a> {
    /// Kernels of a problem are told apart only if one of the records has several for it: else a kernel's successor is compared
    /// with it.
    pub(crate) fn new(before: &[&'a Row], now: &[&'a Row], tolerance: f64) -> Self {
        let mut repeats: BTreeSet<Key<'_>> = BTreeSet::new();
        for rows in [before, now] {
            let mut seen = BTreeSet::new();
            let keys = rows.iter().map(|row| key(row, false));
            repeats.extend(keys.filter(|key| !seen.insert(*key)));
        }
        let key = |row: &'a Row| key(row, repeats.contains(&key(row, false)));
        let mut earlier: BTreeMap<Key<'_>, &Row> =
            before.iter().map(|row| (key(row), *row)).collect();
        let mut comparison = Comparison {
            rows: Vec::new(),
            only_before: 0,
            only_now: 0,
            tolerance,
        };
        for &now in now {
            match earlier.remove(&key(now)) {
                Some(before) => comparison.rows.push(Compared { before, now }),
                None => comparison.only_now += 1,
            }
        }
        comparison.only_before = earlier.len();
        comparison
    }

    fn is_slower(&self, row: &Compared<'_>) -> bool {
        row.ratio() < 1.0 - self.tolerance / 100.0
    }

    /// A table of all rows of at most `width` columns, where no word is wider, and what became of the others.
    pub(crate) fn table(&self, width: usize) -> String {
        let mut lines = "  ratio   before us      now us  problem, method, kernel\n".to_owned();
        for row in &self.rows {
            let mark = if self.is_slower(row) { "SLOWER " } else { "" };
            let line = format!(
                "{:>7.3}{:>12.1}{:>12.1}  {mark}{}",
                row.ratio(),
                row.before.median_us,
                row.now.median_us,
                row.title()
            );
            lines.push_str(&text::wrapped(&line, width, 33));
            lines.push('\n');
        }
        for (count, which) in [(self.only_before, "earlier"), (self.only_now, "later")] {
            if count > 0 {
                let rows = if count == 1 { "row is" } else { "rows are" };
                // Writing to a string can't fail.
                let _ = writeln!(lines, "{count} {rows} only in the {which} record");
            }
        }
        if !self.rows.is_empty() {
            let logs = self.rows.iter().map(|row| row.ratio().ln());
            let mean = (logs.sum::<f64>() / self.rows.len() as f64).exp();
            let _ = writeln!(
                lines,
                "ratio: speed over the earlier speed; geometric mean {mean:.3}"
            );
        }
        lines
    }

    /// Checks that the later record is as fast.
    ///
    /// # Errors
    /// [`Failure::Wrong`] if a row is slower, [`Failure::Input`] if the records have no row in common.
    pub(crate) fn verdict(&self, earlier: &Path) -> Result<(), Failure> {
        let slower = self.rows.iter().filter(|row| self.is_slower(row)).count();
        match (self.rows.len(), slower) {
            (0, _) => Err(Failure::Input(format!(
                "{}: none of its rows is about a problem of the later record",
                earlier.display()
            ))),
            (_, 0) => Ok(()),
            (compared, _) => Err(Failure::Wrong(format!(
                "{slower} of {compared} rows are more than {}% slower than in {}",
                self.tolerance,
                earlier.display()
            ))),
        }
    }
}

fn key(row: &Row, by_kernel: bool) -> Key<'_> {
    let kernel = by_kernel.then_some(&row.kernel[..]);
    (&row.backend, &row.problem, &row.method, kernel)
}

/// A percentage, for command lines.
///
/// # Errors
/// A description of the error in the text.
pub(crate) fn percentage(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (0.0..100.0).contains(&value) => Ok(value),
        _ => Err("a tolerance is a percentage from 0 to below 100".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(problem: &str, kernel: &str, median_us: f64) -> Row {
        let row = serde_json::json!({
            "backend": "warptile", "family": "", "kernel": kernel, "problem": problem, "batch": 1, "heads": 1, "kv_heads": 1,
            "query_len": 1, "key_len": 1, "head_dim": 8, "element": "f32", "mask": "none", "method": "graph", "median_us": median_us,
            "p90_us": median_us, "tflops": 1.0, "device": "",
        });
        serde_json::from_value(row).unwrap()
    }

    #[test]
    fn a_kernels_successor_is_compared_with_it_unless_kernels_were_told_apart() {
        let before = [timing("p", "a", 10.0)];
        let now = [timing("p", "b", 20.0)];
        let comparison = Comparison::new(&before.each_ref(), &now.each_ref(), 3.0);
        assert_eq!(comparison.rows.len(), 1);
        assert_eq!(comparison.rows[0].ratio(), 0.5);
        assert!(comparison.verdict(Path::new("old")).is_err());
        let now = [timing("p", "b", 20.0), timing("p", "a", 10.2)];
        let comparison = Comparison::new(&before.each_ref(), &now.each_ref(), 3.0);
        assert_eq!((comparison.rows.len(), comparison.only_now), (1, 1));
        assert!(comparison.verdict(Path::new("old")).is_ok());
    }

    #[test]
    fn kernels_are_told_apart_only_for_problems_that_have_several() {
        let same = [timing("p", "a", 1.0), timing("p", "b", 1.0)];
        let [of_a, of_b] = &same;
        let (before, now) = (timing("q", "a", 10.0), timing("q", "c", 20.0));
        let (before, now) = ([of_a, of_b, &before], [of_a, of_b, &now]);
        let comparison = Comparison::new(&before, &now, 3.0);
        assert_eq!(comparison.rows.len(), 3);
        assert_eq!((comparison.only_before, comparison.only_now), (0, 0));
        assert!(comparison.verdict(Path::new("old")).is_err());
    }

    #[test]
    fn a_comparison_fits_eighty_columns() {
        let long = "b2 q4096 k4096 h32/8 d128 bf16 mask=window,1023,1023 scale=0.125 layout=gaps unaligned";
        let before = [
            timing(long, "wgmma_d128_128x128_w12_s2", 1e6),
            timing("p", "", 1.0),
        ];
        let now = [timing(long, "wgmma_d128_192x128_w12_s2", 2e6)];
        let table = Comparison::new(&before.each_ref(), &now.each_ref(), 3.0).table(80);
        assert!(
            table.lines().all(|line| line.chars().count() <= 80),
            "{table}"
        );
        assert!(
            table.contains("0.500") && table.contains("SLOWER"),
            "{table}"
        );
        assert!(
            table.contains("1 row is only in the earlier record"),
            "{table}"
        );
    }
}
