//! Speed relative to the best peer, as it once was on a GPU: what a change may not lose.
//!
//! Ratios, not times: a ratio is of one session, in which clocks and temperature touched both sides alike.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::bench::BenchRow;
use super::{ReportError, read_json, speed};
use crate::files;

/// The share of a ratio that may be lost: what two sessions differ by.
const TOLERANCE: f64 = 0.03;

/// `evidence/baseline-{gpu}.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Baseline {
    device: String,
    driver: String,
    date: String,
    /// What was measured, where that is known.
    commit: Option<String>,
    ratios: Ratios,
}

/// Our speed over that of each peer, by problem. Only peers that both sessions had are compared: one more would make the same
/// speed a smaller ratio to the best.
type Ratios = BTreeMap<String, BTreeMap<String, f64>>;

/// A ratio that fell.
#[derive(Debug, Clone, PartialEq)]
pub struct Loss {
    /// The file with the ratio as it was.
    pub baseline: PathBuf,
    /// The problem, as `warptile bench` takes it.
    pub problem: String,
    /// The ratio then; `None` now if the problem is no longer measured.
    pub before: f64,
    /// The ratio now.
    pub now: Option<f64>,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}: {:.3} of the best peer's speed",
            self.problem, self.before
        )?;
        match self.now {
            Some(now) => write!(f, " in {}, now {now:.3}", self.baseline.display()),
            None => write!(f, " in {}, now not measured", self.baseline.display()),
        }
    }
}

/// What a gain makes of a ratio.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Expected {
    /// The problem.
    pub(crate) problem: String,
    /// Our speed over that of the best peer, as it is stored.
    pub(crate) before: f64,
    /// The same times the gain.
    pub(crate) after: f64,
}

impl Expected {
    /// Whether more is lost than two sessions differ by.
    pub(crate) fn is_loss(&self) -> bool {
        self.after < self.before * (1.0 - TOLERANCE)
    }
}

/// What gains, by problem, would make of the baseline of a GPU; `None` if it has none. Problems that are not in it are left out.
pub(crate) fn expected<'a>(
    root: &Path,
    device: &str,
    gains: impl Iterator<Item = (&'a str, f64)>,
) -> Result<Option<Vec<Expected>>, ReportError> {
    let path = path(root, device);
    if !path.exists() {
        return Ok(None);
    }
    let stored = read_json::<Baseline>(&path)?.ratios;
    let of_stored = |(problem, gain): (&str, f64)| {
        let ratios = stored.get(problem)?;
        let before = to_the_best(ratios, ratios)?;
        Some(Expected {
            problem: problem.to_owned(),
            before,
            after: before * gain,
        })
    };
    Ok(Some(gains.filter_map(of_stored).collect()))
}

fn path(root: &Path, device: &str) -> PathBuf {
    let words: Vec<String> = device
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    root.join(format!("evidence/baseline-{}.json", words.join("-")))
}

/// Ratios by device.
fn measured(rows: &[BenchRow]) -> BTreeMap<&str, Ratios> {
    let mut devices: BTreeMap<&str, Ratios> = BTreeMap::new();
    for row in rows {
        devices.entry(&row.device).or_default();
    }
    for (device, ratios) in &mut devices {
        let of_device = rows.iter().filter(|row| row.device == *device);
        *ratios = speed::ratios(of_device.cloned().collect());
    }
    devices
}

/// The ratio to the best of the peers that `others` has, too; `None` if there is none.
fn to_the_best(ratios: &BTreeMap<String, f64>, others: &BTreeMap<String, f64>) -> Option<f64> {
    let common = ratios.iter().filter(|(peer, _)| others.contains_key(*peer));
    common.map(|(_, &ratio)| ratio).min_by(f64::total_cmp)
}

/// Every ratio that is more than 3% below the baseline of its GPU. A GPU without a baseline has nothing to lose.
pub(super) fn losses(root: &Path, rows: &[BenchRow]) -> Result<Vec<Loss>, ReportError> {
    let mut losses = Vec::new();
    for (device, ratios) in measured(rows) {
        let baseline = path(root, device);
        if !baseline.exists() {
            continue;
        }
        let before = read_json::<Baseline>(&baseline)?.ratios;
        losses.extend(before.into_iter().filter_map(|(problem, before)| {
            let none = BTreeMap::new();
            let present = ratios.get(&problem).unwrap_or(&none);
            let now = to_the_best(present, &before);
            let before = to_the_best(&before, if now.is_some() { present } else { &before })?;
            now.is_none_or(|now| now < before * (1.0 - TOLERANCE))
                .then(|| Loss {
                    baseline: baseline.clone(),
                    problem,
                    before,
                    now,
                })
        }));
    }
    Ok(losses)
}

/// Writes what the rows say as the baselines of their GPUs.
pub(super) fn store(root: &Path, rows: &[BenchRow]) -> Result<Vec<PathBuf>, ReportError> {
    let mut written = Vec::new();
    for (device, ratios) in measured(rows) {
        let Some(row) = rows.iter().find(|row| row.device == device) else {
            continue;
        };
        let baseline = Baseline {
            device: device.to_owned(),
            driver: row.driver.clone(),
            date: row.date.clone(),
            commit: row.commit.clone(),
            ratios,
        };
        let path = path(root, device);
        let mut text =
            serde_json::to_string_pretty(&baseline).map_err(|source| ReportError::Json {
                path: path.clone(),
                source,
            })?;
        text.push('\n');
        files::write(&path, text.as_bytes())?;
        written.push(path);
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::super::bench::tests::row;
    use super::*;

    #[test]
    fn a_ratio_may_fall_by_three_percent_and_no_more() {
        let root = tempfile::tempdir().unwrap();
        let rows = |speed| {
            [
                row("warptile", 64, 512, speed),
                row("fa2", 64, 512, 50.0),
                row("fa3", 64, 512, 100.0),
            ]
        };
        assert_eq!(losses(root.path(), &rows(1.0)).unwrap(), []);
        let stored = store(root.path(), &rows(104.0)).unwrap();
        assert_eq!(
            stored,
            [root.path().join("evidence/baseline-nvidia-h200.json")]
        );
        let lost = |rows: &[BenchRow]| -> Vec<String> {
            let losses = losses(root.path(), rows).unwrap();
            losses.iter().map(ToString::to_string).collect()
        };
        assert_eq!(lost(&rows(101.0)), [""; 0]);
        let text = lost(&rows(100.0)).join("\n");
        assert!(
            text.starts_with("b2 q512 k512 h8 d64 f16: 1.040 of the best peer's speed in ")
                && text.ends_with("now 1.000"),
            "{text}"
        );
        // One more peer, however fast, takes nothing from what we had.
        let mut more = rows(104.0).to_vec();
        more.push(row("cudnn", 64, 512, 1000.0));
        assert_eq!(lost(&more), [""; 0]);
        // A problem that is left out has not become faster by it.
        let other = [row("warptile", 128, 512, 1.0), row("fa3", 128, 512, 1.0)];
        assert!(lost(&other)[0].ends_with("now not measured"));
    }
}
