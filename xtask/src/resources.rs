//! The resource report: every image with its registers, stack, spills, shared memory, tensor-core instructions and size.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table};

use crate::build_kernels::EMBEDDED_LIMIT;
use crate::manifest::{Manifest, ManifestEntry};

const COLUMNS: [&str; 9] = [
    "image",
    "registers",
    "stack",
    "spills",
    "static shared",
    "dynamic shared",
    "tensor instr.",
    "bytes",
    "embedded",
];

fn row(entry: &ManifestEntry, packed_bytes: u64) -> [String; COLUMNS.len()] {
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
        packed_bytes.to_string(),
    ]
}

fn rows<'a>(
    manifest: &'a Manifest,
    packed_bytes: &'a BTreeMap<String, u64>,
) -> impl Iterator<Item = [String; COLUMNS.len()]> + 'a {
    manifest.images.iter().map(|entry| {
        row(
            entry,
            packed_bytes.get(&entry.name).copied().unwrap_or_default(),
        )
    })
}

fn totals(manifest: &Manifest, packed_bytes: &BTreeMap<String, u64>) -> String {
    let embedded: u64 = packed_bytes.values().sum();
    format!(
        "{} images, {embedded} bytes embedded: {:.1}% of the {} MiB limit",
        manifest.images.len(),
        embedded as f64 * 100.0 / EMBEDDED_LIMIT as f64,
        EMBEDDED_LIMIT >> 20,
    )
}

/// For a terminal.
#[must_use]
pub fn table(manifest: &Manifest, packed_bytes: &BTreeMap<String, u64>) -> String {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
    table.set_header(COLUMNS);
    table.add_rows(rows(manifest, packed_bytes));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{table}\n{}", totals(manifest, packed_bytes))
}

/// For the documentation.
#[must_use]
pub fn markdown(manifest: &Manifest, packed_bytes: &BTreeMap<String, u64>) -> String {
    let mut text = String::from(
        "# Resources of every image\n\n\
         Written by `cargo xtask build-kernels`; the numbers are the compiler's. Registers, stack and spills are per \
         thread, shared memory per CTA, sizes in bytes. \"Tensor instr.\" counts HMMA and HGMMA in the machine code. A `-` \
         stands where the driver compiles the image (PTX).\n\n",
    );
    let mut line = |cells: &[String]| {
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    };
    line(&COLUMNS.map(str::to_owned));
    line(&COLUMNS.map(|column| if column == COLUMNS[0] { "---" } else { "---:" }.to_owned()));
    for row in rows(manifest, packed_bytes) {
        line(&row);
    }
    let _ = writeln!(text, "\n{}.", totals(manifest, packed_bytes));
    text
}
