//! The resource report: every image with its registers, stack, spills, shared memory, tensor-core instructions and size, and
//! what each pack embeds.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::build_kernels::{CRATE_LIMIT, EMBEDDED_LIMIT};
use crate::manifest::{Manifest, ManifestEntry};
use crate::packs;

const COLUMNS: [&str; 8] = [
    "image",
    "registers",
    "stack",
    "spills",
    "static shared",
    "dynamic shared",
    "tensor instr.",
    "bytes",
];

const PACK_COLUMNS: [&str; 4] = ["pack", "images", "bytes", "embedded"];

fn row(entry: &ManifestEntry) -> [String; COLUMNS.len()] {
    // Machine code of a PTX image is made by the driver: not 0, but unknown.
    let machine = |value: u32| match entry.target.starts_with("compute_") {
        true => "-".to_owned(),
        false => value.to_string(),
    };
    [
        entry.name.clone(),
        machine(entry.registers),
        machine(entry.stack_bytes),
        machine(entry.spill_bytes),
        entry.static_shared_bytes.to_string(),
        entry.dynamic_shared_bytes.to_string(),
        machine(entry.tensor_instructions),
        entry.len.to_string(),
    ]
}

/// One row per pack.
fn pack_rows(
    manifest: &Manifest,
    packed_bytes: &BTreeMap<String, u64>,
) -> Vec<[String; PACK_COLUMNS.len()]> {
    let mut packs: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for entry in &manifest.images {
        let (images, bytes) = packs.entry(&entry.pack).or_default();
        *images += 1;
        *bytes += entry.len;
    }
    packs
        .into_iter()
        .map(|(pack, (images, bytes))| {
            let embedded = packed_bytes.get(pack).copied().unwrap_or_default();
            [
                pack.to_owned(),
                images.to_string(),
                bytes.to_string(),
                embedded.to_string(),
            ]
        })
        .collect()
}

fn totals(manifest: &Manifest, packed_bytes: &BTreeMap<String, u64>) -> String {
    let embedded: u64 = packed_bytes.values().sum();
    let of_crates = packs::ARCHITECTURES.map(|architecture| {
        let bytes = packs::bytes_of(architecture, packed_bytes);
        format!("{bytes} in warptile-images-{architecture}")
    });
    format!(
        "{} images, {embedded} bytes embedded: {:.1}% of the {} that may be; {}, where {} may be in each",
        manifest.images.len(),
        embedded as f64 * 100.0 / EMBEDDED_LIMIT as f64,
        EMBEDDED_LIMIT,
        of_crates.join(", "),
        CRATE_LIMIT,
    )
}

/// For the documentation.
pub fn markdown(manifest: &Manifest, packed_bytes: &BTreeMap<String, u64>) -> String {
    let mut text = String::from(
        "# Resources of every image\n\n\
         Written by `cargo xtask build-kernels`; the numbers are the compiler's. Registers, stack and spills are per \
         thread, shared memory per CTA, sizes in bytes. \"Tensor instr.\" counts HMMA and HGMMA in the machine code. A `-` \
         stands where the driver compiles the image (PTX).\n\n",
    );
    markdown_table(&mut text, &COLUMNS, manifest.images.iter().map(row));
    text.push_str(
        "\n## Packs\n\nThe images of a kernel that one cargo feature brings are compressed together.\n\n",
    );
    markdown_table(&mut text, &PACK_COLUMNS, pack_rows(manifest, packed_bytes));
    let _ = writeln!(text, "\n{}.", totals(manifest, packed_bytes));
    text
}

/// A table whose first column is text and whose others are numbers.
fn markdown_table<const N: usize>(
    text: &mut String,
    columns: &[&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) {
    let mut line = |cells: &[String]| {
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    };
    line(&columns.map(str::to_owned));
    line(&std::array::from_fn::<_, N, _>(|i| {
        if i == 0 { "---" } else { "---:" }.to_owned()
    }));
    for row in rows {
        line(&row);
    }
}
