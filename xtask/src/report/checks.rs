//! The checks that ran on a GPU: tests, random problems, repeated launches, sanitizer tools, hardware counters.
//! docs/evidence.md describes the files.

mod counters;
mod summary;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;
use serde::Deserialize;

use super::acceptance::Acceptance;
use super::{optional_rows, read_optional};
use crate::manifest::ManifestEntry;
use counters::Profiles;

pub(super) use counters::counters;
pub(super) use summary::summary;

/// All evidence except benchmarks. A missing file counts as empty.
#[derive(Debug, Default)]
pub(super) struct Checks {
    device: Device,
    tests: Vec<Test>,
    launches: Launches,
    invariance: Option<Invariance>,
    verify: Vec<Verified>,
    tiles: Vec<ReadTile>,
    pub(super) acceptance: Acceptance,
    examples: Vec<Example>,
    sanitizer: Sanitizer,
    images: ImageFile,
    ncu: Profiles,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Device {
    date: String,
    gpu: BTreeMap<String, String>,
    commit: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Test {
    gpu: bool,
    passed: bool,
}

/// Batches whose sequences were compared, bit for bit, with what each gives alone.
#[derive(Debug, Deserialize)]
struct Invariance {
    compositions: u64,
    /// `None`: the test did not come to its end.
    differing_bits: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Verified {
    family: String,
    /// The length of the longest sequence; cases of an operation other than forward have none.
    max_len: Option<u64>,
    /// True if keys and values are in pages in all of them.
    #[serde(default)]
    paged: bool,
    /// True if their gradients were computed.
    #[serde(default)]
    gradients: bool,
    count: u64,
    failed: u64,
}

/// Launches of every kernel, by how they were waited for.
#[derive(Debug, Default, Deserialize)]
struct Launches {
    matrix: Vec<Launched>,
}

#[derive(Debug, Deserialize)]
struct Launched {
    sync: String,
    launches: u64,
    problems: u64,
    passed: u64,
    /// Hashes by name.
    images: BTreeMap<String, String>,
}

/// One tile of an image.
#[derive(Debug, Deserialize)]
struct ReadTile {
    passed: bool,
    /// Why the image takes no tile, if so: its rows are those of several heads, or its keys are quantized. The part fails for any other.
    reason: Option<String>,
    /// Nearest to their bounds; `None` if the tile is wrong.
    score: Option<Ratio>,
    weight: Option<Ratio>,
}

#[derive(Debug, Deserialize)]
struct Ratio {
    ratio: f64,
}

#[derive(Debug, Deserialize)]
struct Sanitized {
    tool: String,
    family: String,
    /// `None` where the tool gave no answer.
    errors: Option<u64>,
    /// Hashes by name.
    images: BTreeMap<String, String>,
}

/// Runs under sanitizer tools, and which tools caught their broken kernels.
#[derive(Debug, Default, Deserialize)]
struct Sanitizer {
    rows: Vec<Sanitized>,
    controls: Vec<Control>,
}

#[derive(Debug, Deserialize)]
struct Control {
    tool: String,
    caught: bool,
}

/// An example, which compares its own results.
#[derive(Debug, Deserialize)]
struct Example {
    example: String,
    passed: bool,
}

/// Random problems an image computed.
#[derive(Debug, Deserialize)]
struct ImageRuns {
    sha256: String,
    passed: u64,
    failed: u64,
    /// True if its CTAs stay and draw tiles where there are more tiles than CTAs.
    persistent: bool,
    /// Passed problems in which they did.
    drew_tiles: u64,
}

#[derive(Debug, Default, Deserialize)]
struct ImageFile {
    images: BTreeMap<String, ImageRuns>,
}

impl Checks {
    /// Reads what is there of it under `evidence`.
    pub(super) fn read(evidence: &Path) -> Result<Self> {
        let file = |name: &str| evidence.join(name);
        Ok(Self {
            device: read_optional(&file("device.json"))?,
            tests: [
                optional_rows(&file("tests.json"))?,
                optional_rows(&file("alone.json"))?,
            ]
            .into_iter()
            .flatten()
            .collect(),
            launches: read_optional(&file("launches.json"))?,
            invariance: read_optional(&file("invariance.json"))?,
            verify: optional_rows(&file("verify.json"))?,
            tiles: optional_rows(&file("tile.json"))?,
            acceptance: read_optional(&file("acceptance.json"))?,
            examples: optional_rows(&file("examples.json"))?,
            sanitizer: read_optional(&file("sanitizer.json"))?,
            images: read_optional(&file("images.json"))?,
            ncu: read_optional(&file("ncu.json"))?,
        })
    }

    /// Returns true if exactly these bytes computed random problems on a GPU, all of them rightly, and a persistent kernel's CTAs drew
    /// tiles in some of them.
    pub(super) fn is_proven(&self, image: &ManifestEntry) -> bool {
        self.images.images.get(&image.name).is_some_and(|runs| {
            runs.sha256 == image.sha256
                && runs.passed > 0
                && runs.failed == 0
                && (!runs.persistent || runs.drew_tiles > 0)
        })
    }

    fn gpu(&self) -> &str {
        self.device.gpu.get("name").map_or("a GPU", String::as_str)
    }
}

/// The images that no GPU has proven, shortly where a whole target has never run.
pub(super) fn unproven(images: &[ManifestEntry], checks: &[&Checks]) -> String {
    let mut text = String::new();
    let targets: BTreeSet<&str> = images.iter().map(|image| image.target.as_str()).collect();
    for target in targets {
        let of_target: Vec<&ManifestEntry> = images
            .iter()
            .filter(|image| image.target == target)
            .collect();
        let unproven: Vec<&str> = { of_target.iter() }
            .filter(|image| !checks.iter().any(|gpu| gpu.is_proven(image)))
            .map(|image| image.name.as_str())
            .collect();
        if unproven.is_empty() {
            continue;
        }
        if unproven.len() == of_target.len() {
            text.push_str(&format!(
                "- `{target}`: compiled, no run on record ({} images)\n",
                of_target.len()
            ));
            continue;
        }
        text.push_str(&format!(
            "- `{target}`: {} of {} images: {}\n",
            unproven.len(),
            of_target.len(),
            named(&unproven)
        ));
    }
    match (text.is_empty(), images.is_empty()) {
        (_, true) => "No images are embedded.\n".to_owned(),
        (true, false) => "Every image has run on a GPU and passed.\n".to_owned(),
        (false, false) => text,
    }
}

/// A few images by name; of more, how many each family has.
fn named(images: &[&str]) -> String {
    const FEW: usize = 12;
    if images.len() <= FEW {
        let names = images.iter().map(|name| format!("`{name}`"));
        return names.collect::<Vec<_>>().join(", ");
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for name in images {
        let family = name.split('_').next().unwrap_or_default();
        *counts.entry(family).or_default() += 1;
    }
    let counts = { counts.iter() }.map(|(family, count)| format!("{count} of `{family}`"));
    counts.collect::<Vec<_>>().join(", ")
}

/// The images that a GPU has proven and that are other machine code now, and how many are the same.
pub(super) fn changed(images: &[ManifestEntry], gpu: &Checks) -> String {
    let now: BTreeMap<&str, &str> = { images.iter() }
        .map(|image| (image.name.as_str(), image.sha256.as_str()))
        .collect();
    let (mut same, mut gone, mut changed) = (0, 0, Vec::new());
    for (name, ran) in &gpu.images.images {
        match now.get(name.as_str()) {
            Some(sha256) if *sha256 == ran.sha256 => same += 1,
            Some(_) => changed.push(name.as_str()),
            None => gone += 1,
        }
    }
    let names = match changed.is_empty() {
        true => String::new(),
        false => format!(": {}", named(&changed)),
    };
    format!(
        "Of the {} images that ran on {}, {same} are the same machine code now, {gone} have gone, and {} are other machine code{names}.\n",
        gpu.images.images.len(),
        gpu.gpu(),
        changed.len()
    )
}

/// `39 of 39 on NVIDIA H200`, of the given images, for each GPU.
pub(super) fn proven_share(images: &[&ManifestEntry], checks: &[&Checks]) -> String {
    let on_gpu = |gpu: &&Checks| {
        let proven = images.iter().filter(|image| gpu.is_proven(image)).count();
        (proven > 0).then(|| format!("{proven} of {} on {}", images.len(), gpu.gpu()))
    };
    let on_gpus: Vec<String> = checks.iter().filter_map(on_gpu).collect();
    match on_gpus.is_empty() {
        true => "compiled, no run on record".to_owned(),
        false => on_gpus.join(", "),
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
        ManifestEntry::with(serde_json::json!({
            "name": format!("{family}_d{head_dim}_{element}_{target}"), "kernel": format!("{family}_d{head_dim}"), "family": family, "target": target,
            "element": element, "head_dim": head_dim, "sha256": "ab",
        }))
    }

    fn ran(runs: &[(&str, &str, u64, u64)]) -> Checks {
        let images = runs.iter().map(|&(name, sha256, passed, failed)| {
            let sha256 = sha256.to_owned();
            let runs = ImageRuns {
                sha256,
                passed,
                failed,
                persistent: false,
                drew_tiles: 0,
            };
            (name.to_owned(), runs)
        });
        let images = images.collect();
        Checks {
            images: ImageFile { images },
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
            unproven(&images, &[&checks]),
            "- `sm_80`: compiled, no run on record (1 images)\n\
             - `sm_90`: 3 of 4 images: `scalar_d64_f16_sm_90`, `scalar_d96_f16_sm_90`, `scalar_d128_f16_sm_90`\n"
        );
        assert_eq!(
            unproven(&images[..1], &[&checks]),
            "Every image has run on a GPU and passed.\n"
        );
    }

    #[test]
    fn images_that_have_changed_since_they_ran_are_named() {
        let images = [
            image("scalar", "sm_90", "f16", 32),
            image("scalar", "sm_90", "f16", 64),
        ];
        let gpu = ran(&[
            ("scalar_d32_f16_sm_90", "ab", 10, 0),
            ("scalar_d64_f16_sm_90", "cd", 10, 0),
            ("scalar_d96_f16_sm_90", "ab", 10, 0),
        ]);
        assert_eq!(
            changed(&images, &gpu),
            "Of the 3 images that ran on a GPU, 1 are the same machine code now, 1 have gone, and 1 are other machine code: \
             `scalar_d64_f16_sm_90`.\n"
        );
        // Of many it says the families: a page is to be read.
        let many: Vec<String> = (0..13)
            .map(|at| format!("{}_{at}", ["mma", "dq"][at % 2]))
            .collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(named(&many), "6 of `dq`, 7 of `mma`");
    }

    #[test]
    fn a_persistent_image_is_proven_only_if_it_drew_tiles() {
        let image = image("wgmma", "sm_90a", "f16", 64);
        for (drew_tiles, proven) in [(0, false), (1, true)] {
            let mut checks = ran(&[(&image.name, "ab", 10, 0)]);
            let runs = checks.images.images.get_mut(&image.name).unwrap();
            (runs.persistent, runs.drew_tiles) = (true, drew_tiles);
            assert_eq!(checks.is_proven(&image), proven);
        }
    }

    #[test]
    fn files_that_say_what_they_are_about_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, content: serde_json::Value| {
            let mut file = serde_json::json!({
                "commit": "0123456789abcdef", "date": "2026-11-22T07:00:00Z", "device": "NVIDIA H200", "driver": "580",
            });
            for (key, value) in content.as_object().unwrap() {
                file[key] = value.clone();
            }
            std::fs::write(directory.path().join(name), file.to_string()).unwrap();
        };
        let hashes = serde_json::json!({ "a_sm_90": "ab", "b_sm_90": "cd" });
        write(
            "device.json",
            serde_json::json!({ "gpu": { "name": "NVIDIA H200" }, "tools": {} }),
        );
        write(
            "tests.json",
            serde_json::json!({ "rows": [
            { "executable": "driver", "test": "a", "gpu": true, "passed": true },
        ] }),
        );
        write(
            "launches.json",
            serde_json::json!({ "matrix": [
            { "sync": "tenth", "launches": 500, "problems": 4, "passed": 4, "failed": 0, "images": hashes },
        ] }),
        );
        write(
            "sanitizer.json",
            serde_json::json!({
                "controls": [{ "tool": "memcheck", "errors": 1, "caught": true }, { "tool": "racecheck", "errors": 0, "caught": false }],
                "rows": [{ "tool": "memcheck", "family": "wmma", "target": "sm_90", "errors": 0, "images": hashes }],
            }),
        );
        write(
            "acceptance.json",
            serde_json::json!({ "rows": [
            { "family": "wmma", "shared_kib": 99, "problem": "b1 q512 k512 h8 d64 f16 seed=7", "kernel": "wmma_d64",
              "passed": true, "out": { "error": 1e-4, "bound": 2e-4 }, "lse": { "error": 1e-6, "bound": 1e-5 } },
            { "family": "scalar", "shared_kib": null, "problem": "b1 f16", "kernel": "scalar_d64", "passed": false },
        ] }),
        );
        write(
            "examples.json",
            serde_json::json!({ "rows": [
            { "example": "decoder", "arguments": [], "exit_code": 0, "passed": true, "same": [] },
            { "example": "captured_step", "arguments": [], "exit_code": 1, "passed": false, "same": [] },
        ] }),
        );
        write(
            "images.json",
            serde_json::json!({ "images": {
            "wgmma_d64_f16_sm_90a": { "sha256": "ab", "persistent": true, "passed": 3, "failed": 0, "drew_tiles": 0 },
        } }),
        );
        let checks = Checks::read(directory.path()).unwrap();
        assert!(!checks.is_proven(&image("wgmma", "sm_90a", "f16", 64)));
        let text = summary(&checks);
        for line in [
            "On NVIDIA H200, 2026-11-22, commit 0123456789ab:",
            "| GPU tests | all families | 1 of 1 passed |",
            "| 500 launches in a row, waiting after every tenth | 2 images | 4 of 4 problems passed |",
            "on the spot | `decoder` | the same |",
            "on the spot | `captured_step` | FAILED |",
            "| compute-sanitizer errors | wmma, 2 images | memcheck 0 |",
            "| one for each tool | caught by memcheck; NOT by racecheck |",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let text = checks.acceptance.text();
        assert!(text.starts_with("1 of 2 passed."), "{text}");
        assert!(
            text.contains("| `wmma_d64`, within 99 KiB | 1.0e-4 |"),
            "{text}"
        );
    }

    #[test]
    fn failures_and_missing_answers_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        write(
            "device.json",
            r#"{"date": "2026-11-21T07:00:00Z", "gpu": {"name": "NVIDIA H200"}, "tools": {}, "commit": null}"#,
        );
        write(
            "tests.json",
            r#"{"rows": [{"executable": "driver", "test": "a", "gpu": true, "passed": true},
                {"executable": "driver", "test": "b", "gpu": true, "passed": false},
                {"executable": "driver", "test": "c", "gpu": false, "passed": true}]}"#,
        );
        write(
            "verify.json",
            r#"{"rows": [{"family": "scalar", "count": 2000, "passed": 1999, "failed": 1, "not_applicable": 0, "seed": 1},
                {"family": "wmma", "max_len": 4096, "count": 200, "passed": 200, "failed": 0},
                {"family": "decode", "max_len": 1024, "paged": true, "count": 7, "passed": 7, "failed": 0},
                {"family": "dq", "max_len": 1024, "gradients": true, "count": 8, "passed": 8, "failed": 0}]}"#,
        );
        write(
            "sanitizer.json",
            r#"{"controls": [], "rows": [
                {"tool": "memcheck", "family": "scalar", "errors": 0, "images": {"a": "ab"}},
                {"tool": "racecheck", "family": "scalar", "errors": null, "images": {}}]}"#,
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
            summary.contains("| Random problems against float64 | scalar | 1999 of 2000 passed |")
                && summary.contains("float64, lengths to 4096 | wmma | 200 of 200 passed |")
                && summary
                    .contains("float64, in pages, lengths to 1024 | decode | 7 of 7 passed |")
                && summary.contains("float64, gradients, lengths to 1024 | dq | 8 of 8 passed |"),
            "{summary}"
        );
        assert!(
            summary.contains("| scalar, 1 images | memcheck 0, racecheck no answer |"),
            "{summary}"
        );
        assert!(
            counters(&checks).contains("| time (`m.sum`) | 31.2 us |"),
            "{}",
            counters(&checks)
        );
    }
}
