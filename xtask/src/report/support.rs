//! Which kernels there are for which GPU.

use std::collections::{BTreeMap, BTreeSet};

use super::markdown_table;
use crate::manifest::ManifestEntry;

/// One row per target and family: which element types and head sizes, with how many kernels.
pub(super) fn table(images: &[ManifestEntry]) -> String {
    if images.is_empty() {
        return "No images are embedded.\n".to_owned();
    }
    let mut groups: BTreeMap<(&str, &str), Vec<&ManifestEntry>> = BTreeMap::new();
    for image in images {
        groups
            .entry((&image.target, &image.family))
            .or_default()
            .push(image);
    }
    let mut rows: Vec<_> = groups.into_iter().collect();
    rows.sort_by_key(|((target, family), _)| (newest_last(target), *family));
    markdown_table(
        &[
            "Image",
            "Runs on",
            "Family",
            "Element types",
            "Head sizes",
            "Kernels",
        ],
        rows.into_iter().map(|((target, family), images)| {
            let elements: BTreeSet<&str> =
                images.iter().map(|image| image.element.as_str()).collect();
            let head_dims: BTreeSet<u32> = images.iter().map(|image| image.head_dim).collect();
            let kernels: BTreeSet<&str> =
                images.iter().map(|image| image.kernel.as_str()).collect();
            let largest = head_dims.last().copied().unwrap_or_default();
            vec![
                format!("`{target}`"),
                devices(target),
                family.to_owned(),
                Vec::from_iter(elements).join(", "),
                // A tile takes every smaller head size: the columns beyond it are zero on chip.
                format!("8 to {largest} in steps of 8"),
                format!(
                    "{} (tiles for {})",
                    kernels.len(),
                    head_dims
                        .iter()
                        .map(u32::to_string)
                        .collect::<Vec<_>>()
                        .join(", ")
                ),
            ]
        }),
    )
}

/// Cubins by architecture, then PTX.
fn newest_last(target: &str) -> (bool, u32, bool) {
    let digits: String = target.chars().filter(char::is_ascii_digit).collect();
    (
        target.starts_with("compute_"),
        digits.parse().unwrap_or_default(),
        target.ends_with('a'),
    )
}

/// Compute capabilities an image runs on, with the best known GPUs of them.
fn devices(target: &str) -> String {
    match target {
        "sm_80" => "8.x: A100, RTX 30, A10, L4, L40, RTX 40".to_owned(),
        "sm_86" => "8.6 and 8.9: RTX 30, A10, L4, L40, RTX 40".to_owned(),
        "sm_89" => "8.9: L4, L40, RTX 40".to_owned(),
        "sm_90" => "9.0: H100, H200".to_owned(),
        "sm_90a" => "9.0 only: H100, H200".to_owned(),
        "sm_100" => "10.x: B200, GB200".to_owned(),
        "sm_120" => "12.x: RTX 50".to_owned(),
        other => match other.strip_prefix("compute_") {
            Some(_) => "newer GPUs, compiled by the driver".to_owned(),
            None => other.to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(family: &str, target: &str, element: &str, head_dim: u32) -> ManifestEntry {
        let json = serde_json::json!({
            "name": "", "kernel": format!("{family}_d{head_dim}"), "entry": "", "family": family, "target": target,
            "element": element, "block_m": 0, "block_n": 0, "head_dim": head_dim, "stages": 0, "warps": 0, "k_stride": 0,
            "v_stride": 0, "registers": 0, "stack_bytes": 0, "spill_bytes": 0, "static_shared_bytes": 0,
            "dynamic_shared_bytes": 0, "tensor_instructions": 0, "param_bytes": 0, "toolchain": "", "flags": "",
            "source_hash": "", "sha256": "", "len": 0,
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn images_are_grouped_by_target_and_family() {
        let table = table(&[
            image("scalar", "compute_80", "f16", 64),
            image("scalar", "sm_100", "f16", 64),
            image("scalar", "sm_80", "f16", 64),
            image("scalar", "sm_80", "f32", 64),
            image("scalar", "sm_80", "f16", 128),
        ]);
        let rows: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(rows.len(), 3);
        assert!(rows[0].starts_with("| `sm_80` |"), "{}", rows[0]);
        assert!(
            rows[0].contains("f16, f32 | 8 to 128 in steps of 8 | 2 (tiles for 64, 128)"),
            "{}",
            rows[0]
        );
        assert!(rows[2].starts_with("| `compute_80` |"), "{}", rows[2]);
    }
}
