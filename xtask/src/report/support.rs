//! Which kernels there are for which GPU.

use std::collections::{BTreeMap, BTreeSet};

use super::checks::{self, Checks};
use super::markdown_table;
use crate::manifest::ManifestEntry;

/// Head size and name, in this order so that kernels come by head size.
type Kernels<'a> = BTreeSet<(u32, &'a str)>;

/// One row per target, family and set of kernels: the element types that have them, the head sizes they take, and how many
/// of the images a GPU has proven.
pub(super) fn table(images: &[ManifestEntry], checks: &[&Checks]) -> String {
    if images.is_empty() {
        return "No images are embedded.\n".to_owned();
    }
    let mut of_element: BTreeMap<(&str, &str, &str), Vec<&ManifestEntry>> = BTreeMap::new();
    for image in images {
        let key = (
            image.target.as_str(),
            image.family.as_str(),
            image.element.as_str(),
        );
        of_element.entry(key).or_default().push(image);
    }
    let mut rows: BTreeMap<_, Row<'_>> = BTreeMap::new();
    for ((target, family, element), images) in of_element {
        let kernels: Kernels<'_> = images
            .iter()
            .map(|image| (image.tiling.head_dim, image.kernel.as_str()))
            .collect();
        let row = rows
            .entry((order(target), target, family, kernels))
            .or_default();
        row.elements.push(element);
        row.images.extend(images);
    }
    markdown_table(
        &[
            "Image",
            "Runs on",
            "Family",
            "Element types",
            "Head sizes",
            "Kernels",
            "Proven images",
        ],
        rows.into_iter().map(|((_, target, family, kernels), row)| {
            let tiles: BTreeSet<u32> = kernels.iter().map(|(head_dim, _)| *head_dim).collect();
            let largest = tiles.last().copied().unwrap_or_default();
            let tiles: Vec<String> = tiles.iter().map(u32::to_string).collect();
            vec![
                format!("`{target}`"),
                devices(target),
                family.to_owned(),
                row.elements.join(", "),
                match largest {
                    0 => "any".to_owned(),
                    // A tile takes every smaller head size: the columns beyond it are zero on chip.
                    _ => format!("8 to {largest} in steps of 8"),
                },
                match largest {
                    0 => kernels.len().to_string(),
                    _ => format!("{} (tiles for {})", kernels.len(), tiles.join(", ")),
                },
                checks::proven_share(&row.images, checks),
            ]
        }),
    )
}

/// Element types that have the same kernels, and their images.
#[derive(Default)]
struct Row<'a> {
    elements: Vec<&'a str>,
    images: Vec<&'a ManifestEntry>,
}

/// Cubins by architecture, then PTX.
fn order(target: &str) -> (bool, u32, bool) {
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
        "compute_89" => {
            "newer GPUs, compiled by the driver, before `compute_80`; every kernel fits \
                         the 99 KB of shared memory of an 8.9 GPU"
                .to_owned()
        }
        other => match other.strip_prefix("compute_") {
            Some(_) => "newer GPUs, compiled by the driver".to_owned(),
            None => other.to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::checks::tests::image;

    #[test]
    fn images_are_grouped_by_target_and_family() {
        let images = [
            image("scalar", "compute_80", "f16", 64),
            image("scalar", "sm_100", "f16", 64),
            image("scalar", "sm_100", "bf16", 64),
            image("scalar", "sm_80", "f16", 64),
            image("scalar", "sm_80", "f32", 64),
            image("scalar", "sm_80", "f16", 128),
            image("merge", "sm_80", "f16", 0),
        ];
        let table = table(&images, &[&Checks::default()]);
        let rows: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(rows.len(), 5, "{table}");
        assert!(table.contains("merge | f16 | any | 1 |"), "{table}");
        assert!(
            rows[0].contains("`sm_80`") && rows[1].contains("`sm_80`"),
            "{table}"
        );
        assert!(
            table.contains("f16 | 8 to 128 in steps of 8 | 2 (tiles for 64, 128)"),
            "{table}"
        );
        assert!(
            table.contains("f32 | 8 to 64 in steps of 8 | 1 (tiles for 64)"),
            "{table}"
        );
        assert!(
            rows[3].contains("`sm_100`") && rows[3].contains("bf16, f16"),
            "{table}"
        );
        assert!(rows[4].starts_with("| `compute_80` |"), "{table}");
    }

    #[test]
    fn the_newer_ptx_comes_last_and_says_what_it_is_for() {
        let images = [
            image("mma", "compute_89", "f16", 64),
            image("mma", "compute_80", "f16", 64),
            image("mma", "sm_120", "f16", 64),
        ];
        let table = table(&images, &[&Checks::default()]);
        let rows: Vec<&str> = table.lines().skip(2).collect();
        assert!(
            rows[1].starts_with("| `compute_80` | newer GPUs"),
            "{table}"
        );
        assert!(
            rows[2].starts_with("| `compute_89` | newer GPUs")
                && rows[2].contains("before `compute_80`"),
            "{table}"
        );
    }
}
