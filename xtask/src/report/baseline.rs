//! Speed relative to the best peer, as it once was on a GPU: what a change may not lose.
//!
//! Ratios, not times: a ratio is of one session, in which clocks and temperature touched both sides alike.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::bench::BenchRow;
use super::{in_a_name, read_optional, speed};
use crate::files;

/// The share of a ratio that may be lost: what two sessions differ by.
const TOLERANCE: f64 = 0.03;

/// `evidence/baseline-{gpu}.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Baseline {
    device: String,
    driver: String,
    date: String,
    /// The commit that was measured, if it is known.
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

/// Returns true if more is lost than two sessions differ by.
pub(crate) fn is_loss(before: f64, now: f64) -> bool {
    now < before * (1.0 - TOLERANCE)
}

/// The stored ratios of a GPU.
pub(crate) struct Stored(Ratios);

impl Stored {
    /// Reads them; `None` if it has none.
    pub(crate) fn read(root: &Path, device: &str) -> Result<Option<Self>> {
        let stored: Option<Baseline> = read_optional(&path(root, device))?;
        Ok(stored.map(|baseline| Self(baseline.ratios)))
    }

    /// Our speed over that of the best peer on a problem; `None` if it is not among them.
    pub(crate) fn to_the_best(&self, problem: &str) -> Option<f64> {
        let ratios = self.0.get(problem)?;
        to_the_best(ratios, ratios)
    }
}

fn path(root: &Path, device: &str) -> PathBuf {
    root.join(format!("evidence/baseline-{}.json", in_a_name(device)))
}

/// Ratios by device.
fn measured(rows: &[BenchRow]) -> BTreeMap<&str, Ratios> {
    let mut devices: BTreeMap<&str, Ratios> = BTreeMap::new();
    for row in rows {
        devices.entry(&row.device).or_default();
    }
    for (device, ratios) in &mut devices {
        let of_device = rows.iter().filter(|row| row.device == *device);
        *ratios = speed::ratios(of_device);
    }
    devices
}

/// The ratio to the best of the peers that `others` has, too; `None` if there is none.
fn to_the_best(ratios: &BTreeMap<String, f64>, others: &BTreeMap<String, f64>) -> Option<f64> {
    let common = ratios.iter().filter(|(peer, _)| others.contains_key(*peer));
    common.map(|(_, &ratio)| ratio).min_by(f64::total_cmp)
}

/// Every ratio that is more than 3% below the baseline of its GPU, of which there may be no rows any more. A GPU without a baseline has
/// nothing to lose.
pub(super) fn losses(root: &Path, rows: &[BenchRow]) -> Result<Vec<Loss>> {
    let mut losses = Vec::new();
    let measured = measured(rows);
    for path in files::list(&root.join("evidence"))? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with("baseline-") || !name.ends_with(".json") {
            continue;
        }
        let before: Baseline = files::read_json(&path)?;
        let ratios = measured.get(&before.device[..]);
        losses.extend(before.ratios.into_iter().filter_map(|(problem, before)| {
            let none = BTreeMap::new();
            let present = ratios.and_then(|ratios| ratios.get(&problem));
            let present = present.unwrap_or(&none);
            let now = to_the_best(present, &before);
            let before = to_the_best(&before, if now.is_some() { present } else { &before })?;
            now.is_none_or(|now| is_loss(before, now)).then(|| Loss {
                baseline: path.clone(),
                problem,
                before,
                now,
            })
        }));
    }
    Ok(losses)
}

/// Writes what the rows say as the baselines of their GPUs.
pub(super) fn store(root: &Path, rows: &[BenchRow]) -> Result<Vec<PathBuf>> {
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
        files::write_json(&path, &baseline)?;
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
        // Nor has a GPU whose rows are all gone.
        assert!(lost(&[])[0].ends_with("now not measured"));
    }
}
