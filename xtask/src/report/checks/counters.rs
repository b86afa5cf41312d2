//! Hardware counters of kernels that were profiled.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Checks;
use crate::report::markdown_table;

#[derive(Debug, Default, Deserialize)]
pub(super) struct Profiles {
    meaning: BTreeMap<String, String>,
    profiles: Vec<Profile>,
}

#[derive(Debug, Deserialize)]
struct Profile {
    shape: String,
    family: String,
    kernel: String,
    metrics: BTreeMap<String, Metric>,
}

#[derive(Debug, Deserialize)]
struct Metric {
    value: f64,
    unit: String,
}

/// Hardware counters, metrics down, kernels across.
pub(in crate::report) fn counters(checks: &Checks) -> String {
    let Profiles { meaning, profiles } = &checks.ncu;
    if profiles.is_empty() {
        return "Nothing has been profiled yet.\n".to_owned();
    }
    let header: Vec<String> = std::iter::once("Metric".to_owned())
        .chain(
            profiles
                .iter()
                .map(|profile| format!("{}, `{}`", profile.shape, profile.kernel)),
        )
        .collect();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let rows = meaning.iter().map(|(metric, meaning)| {
        let cell = |profile: &Profile| match profile
            .metrics
            .get(metric)
            .filter(|_| counts(metric, &profile.family))
        {
            Some(Metric { value, unit }) if unit.is_empty() || unit == "%" => number(*value),
            Some(Metric { value, unit }) => format!("{} {unit}", number(*value)),
            None => "-".to_owned(),
        };
        std::iter::once(format!("{meaning} (`{metric}`)"))
            .chain(profiles.iter().map(cell))
            .collect()
    });
    markdown_table(&header, rows)
}

/// Returns true if a metric counts something that the family does: where it has no instructions of a kind, a counter of theirs shows
/// the traffic of another pipe.
fn counts(metric: &str, family: &str) -> bool {
    if metric.contains("_op_hmma") {
        ["wmma", "mma", "decode"].contains(&family)
    } else if metric.contains("_op_gmma") {
        family == "wgmma"
    } else {
        family != "scalar" || !metric.contains("pipe_tensor")
    }
}

fn number(value: f64) -> String {
    if value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_instructions_are_shown_where_a_family_has_them() {
        for (metric, families) in [
            (
                "sm__inst_executed_pipe_tensor_op_hmma.sum",
                &["wmma", "mma"][..],
            ),
            ("sm__inst_executed_pipe_tensor_op_gmma.sum", &["wgmma"]),
            (
                "sm__inst_executed_pipe_tensor.sum",
                &["wmma", "mma", "wgmma"],
            ),
            ("dram__bytes.sum", &["scalar", "wmma", "mma", "wgmma"]),
        ] {
            for family in ["scalar", "wmma", "mma", "wgmma"] {
                assert_eq!(
                    counts(metric, family),
                    families.contains(&family),
                    "{metric}, {family}"
                );
            }
        }
    }
}
