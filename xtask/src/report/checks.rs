//! What was checked on a GPU: tests, random problems, repeated launches, sanitizer tools, hardware counters.
//! docs/evidence.md describes the files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use super::{ReportError, markdown_table, read_optional};
use crate::manifest::ManifestEntry;

/// The evidence but for benchmarks. A file that is not there has nothing in it.
#[derive(Debug, Default)]
pub(super) struct Checks {
    device: Device,
    tests: Vec<Test>,
    launches: Vec<Test>,
    verify: Vec<Verified>,
    sanitizer: Vec<Sanitized>,
    images: BTreeMap<String, ImageRuns>,
    ncu: Profiles,
}

#[derive(Debug, Default, Deserialize)]
struct Device {
    #[serde(default)]
    date: String,
    #[serde(default)]
    gpu: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct Test {
    gpu: bool,
    passed: bool,
}

#[derive(Debug, Deserialize)]
struct Verified {
    family: String,
    count: u64,
    failed: u64,
}

#[derive(Debug, Deserialize)]
struct Sanitized {
    tool: String,
    family: String,
    /// `None` where the tool gave no answer.
    errors: Option<u64>,
}

/// Random problems an image computed.
#[derive(Debug, Deserialize)]
struct ImageRuns {
    sha256: String,
    passed: u64,
    failed: u64,
}

#[derive(Debug, Default, Deserialize)]
struct Profiles {
    meaning: BTreeMap<String, String>,
    profiles: Vec<Profile>,
}

#[derive(Debug, Deserialize)]
struct Profile {
    shape: String,
    kernel: String,
    metrics: BTreeMap<String, Metric>,
}

#[derive(Debug, Deserialize)]
struct Metric {
    value: f64,
    unit: String,
}

impl Checks {
    /// Reads what is there of it under `evidence`.
    pub(super) fn read(evidence: &Path) -> Result<Self, ReportError> {
        let file = |name: &str| evidence.join(name);
        Ok(Self {
            device: read_optional(&file("device.json"))?,
            tests: read_optional(&file("tests.json"))?,
            launches: read_optional(&file("launches.json"))?,
            verify: read_optional(&file("verify.json"))?,
            sanitizer: read_optional(&file("sanitizer.json"))?,
            images: read_optional(&file("images.json"))?,
            ncu: read_optional(&file("ncu.json"))?,
        })
    }

    /// Whether exactly these bytes computed random problems on a GPU, all of them rightly.
    pub(super) fn is_proven(&self, image: &ManifestEntry) -> bool {
        self.images
            .get(&image.name)
            .is_some_and(|runs| runs.sha256 == image.sha256 && runs.passed > 0 && runs.failed == 0)
    }

    fn gpu(&self) -> &str {
        self.device.gpu.get("name").map_or("a GPU", String::as_str)
    }
}

/// One line per kind of check.
pub(super) fn summary(checks: &Checks) -> String {
    if checks.tests.is_empty() && checks.verify.is_empty() {
        return "Nothing has run on a GPU yet.\n".to_owned();
    }
    let mut rows = Vec::new();
    let mut row =
        |check: &str, of: String, result: String| rows.push(vec![check.to_owned(), of, result]);
    for (what, tests) in [
        ("GPU tests", &checks.tests),
        ("Repeated launches", &checks.launches),
    ] {
        let passed = tests.iter().filter(|test| test.gpu && test.passed).count();
        let total = tests.iter().filter(|test| test.gpu).count();
        row(
            what,
            "all families".to_owned(),
            format!("{passed} of {total} passed"),
        );
    }
    for Verified {
        family,
        count,
        failed,
    } in &checks.verify
    {
        row(
            "Random problems against float64",
            family.clone(),
            format!("{} of {count} passed", count - failed),
        );
    }
    let families: BTreeSet<&str> = checks
        .sanitizer
        .iter()
        .map(|row| row.family.as_str())
        .collect();
    for family in families {
        let results: Vec<String> = checks
            .sanitizer
            .iter()
            .filter(|row| row.family == family)
            .map(|row| match row.errors {
                Some(errors) => format!("{} {errors}", row.tool),
                None => format!("{} no answer", row.tool),
            })
            .collect();
        row(
            "compute-sanitizer errors",
            family.to_owned(),
            results.join(", "),
        );
    }
    let table = markdown_table(&["Check", "Of", "Result"], rows);
    format!(
        "On {}, {}:\n\n{table}",
        checks.gpu(),
        day(&checks.device.date)
    )
}

/// The images that no GPU has proven, shortly where a whole target has never run.
pub(super) fn unproven(images: &[ManifestEntry], checks: &Checks) -> String {
    let mut text = String::new();
    let targets: BTreeSet<&str> = images.iter().map(|image| image.target.as_str()).collect();
    for target in targets {
        let of_target: Vec<&ManifestEntry> = images
            .iter()
            .filter(|image| image.target == target)
            .collect();
        let unproven: Vec<&&ManifestEntry> = of_target
            .iter()
            .filter(|image| !checks.is_proven(image))
            .collect();
        if unproven.is_empty() {
            continue;
        }
        if unproven.len() == of_target.len() {
            text.push_str(&format!(
                "- `{target}`: compiled, never run ({} images)\n",
                of_target.len()
            ));
            continue;
        }
        text.push_str(&format!(
            "- `{target}`: {} of {} images\n",
            unproven.len(),
            of_target.len()
        ));
        for image in unproven {
            text.push_str(&format!("  - `{}`\n", image.name));
        }
    }
    match (text.is_empty(), images.is_empty()) {
        (_, true) => "No images are embedded.\n".to_owned(),
        (true, false) => "Every image has run on a GPU and passed.\n".to_owned(),
        (false, false) => text,
    }
}

/// `39 of 39 on NVIDIA H200`, of the given images.
pub(super) fn proven_share(images: &[&ManifestEntry], checks: &Checks) -> String {
    match images
        .iter()
        .filter(|image| checks.is_proven(image))
        .count()
    {
        0 => "compiled, never run".to_owned(),
        proven => format!("{proven} of {} on {}", images.len(), checks.gpu()),
    }
}

/// Hardware counters, metrics down, kernels across.
pub(super) fn counters(checks: &Checks) -> String {
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
        let cell = |profile: &Profile| match profile.metrics.get(metric) {
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

fn number(value: f64) -> String {
    if value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

/// The day of an ISO 8601 time.
pub(super) fn day(date: &str) -> &str {
    date.get(..10).unwrap_or(date)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::report) fn image(
        family: &str,
        target: &str,
        element: &str,
        head_dim: u32,
    ) -> ManifestEntry {
        let json = serde_json::json!({
            "name": format!("{family}_d{head_dim}_{element}_{target}"), "kernel": format!("{family}_d{head_dim}"),
            "entry": "", "family": family, "target": target, "element": element, "block_m": 0, "block_n": 0,
            "head_dim": head_dim, "stages": 0, "warps": 0, "k_stride": 0, "v_stride": 0, "registers": 0, "stack_bytes": 0,
            "spill_bytes": 0, "static_shared_bytes": 0, "dynamic_shared_bytes": 0, "tensor_instructions": 0,
            "param_bytes": 0, "toolchain": "", "flags": "", "source_hash": "", "sha256": "ab", "pack": "", "offset": 0, "len": 0,
        });
        serde_json::from_value(json).unwrap()
    }

    fn ran(runs: &[(&str, &str, u64, u64)]) -> Checks {
        let images = runs.iter().map(|&(name, sha256, passed, failed)| {
            let sha256 = sha256.to_owned();
            let runs = ImageRuns {
                sha256,
                passed,
                failed,
            };
            (name.to_owned(), runs)
        });
        Checks {
            images: images.collect(),
            ..Checks::default()
        }
    }

    #[test]
    fn only_the_same_bytes_without_a_failure_are_proven() {
        let images = [
            image("scalar", "sm_90", "f16", 32),
            image("scalar", "sm_90", "f16", 64),
            image("scalar", "sm_90", "f16", 96),
            image("scalar", "sm_90", "f16", 128),
            image("scalar", "sm_80", "f16", 32),
        ];
        let checks = ran(&[
            ("scalar_d32_f16_sm_90", "ab", 10, 0),
            ("scalar_d64_f16_sm_90", "cd", 10, 0),
            ("scalar_d96_f16_sm_90", "ab", 10, 1),
            ("scalar_d128_f16_sm_90", "ab", 0, 0),
        ]);
        assert_eq!(
            unproven(&images, &checks),
            "- `sm_80`: compiled, never run (1 images)\n\
             - `sm_90`: 3 of 4 images\n  \
               - `scalar_d64_f16_sm_90`\n  \
               - `scalar_d96_f16_sm_90`\n  \
               - `scalar_d128_f16_sm_90`\n"
        );
        assert_eq!(
            unproven(&images[..1], &checks),
            "Every image has run on a GPU and passed.\n"
        );
    }

    #[test]
    fn files_of_the_evidence_script_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        write(
            "device.json",
            r#"{"date": "2026-11-21T07:00:00Z", "gpu": {"name": "NVIDIA H200"}, "tools": {}, "commit": null}"#,
        );
        write(
            "tests.json",
            r#"[{"executable": "driver", "test": "a", "gpu": true, "passed": true},
                {"executable": "driver", "test": "b", "gpu": true, "passed": false},
                {"executable": "driver", "test": "c", "gpu": false, "passed": true}]"#,
        );
        write(
            "verify.json",
            r#"[{"family": "scalar", "count": 2000, "passed": 1999, "failed": 1, "not_applicable": 0, "seed": 1}]"#,
        );
        write(
            "sanitizer.json",
            r#"[{"tool": "memcheck", "family": "scalar", "errors": 0, "exit_code": 0, "last_line": ""},
                {"tool": "racecheck", "family": "scalar", "errors": null, "exit_code": 1, "last_line": ""}]"#,
        );
        write(
            "ncu.json",
            r#"{"meaning": {"m.sum": "time"},
                "profiles": [{"shape": "b2", "family": "scalar", "kernel": "scalar_d64",
                              "metrics": {"m.sum": {"value": 31.25, "unit": "us"}}}]}"#,
        );
        let checks = Checks::read(directory.path()).unwrap();
        let summary = summary(&checks);
        assert!(
            summary.starts_with("On NVIDIA H200, 2026-11-21:\n"),
            "{summary}"
        );
        assert!(
            summary.contains("| GPU tests | all families | 1 of 2 passed |"),
            "{summary}"
        );
        assert!(
            summary.contains("| scalar | 1999 of 2000 passed |"),
            "{summary}"
        );
        assert!(
            summary.contains("| scalar | memcheck 0, racecheck no answer |"),
            "{summary}"
        );
        assert!(
            counters(&checks).contains("| time (`m.sum`) | 31.2 us |"),
            "{}",
            counters(&checks)
        );
    }
}
