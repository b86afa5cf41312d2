//! Measured speed, as tables.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

pub(super) use super::record::Row as BenchRow;
use super::record::{OURS, method_text};
use super::{checks, markdown_table};

/// How far a result is from float64, as `benches/peers --errors` writes it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct ErrorRow {
    pub(super) backend: String,
    pub(super) problem: String,
    pub(super) error_rms: f64,
    pub(super) error_max: f64,
}

impl BenchRow {
    /// Who computed: `warptile scalar`, or the peer.
    pub(super) fn contestant(&self) -> String {
        if self.backend == OURS {
            format!("warptile {}", self.family)
        } else {
            self.backend.clone()
        }
    }

    pub(super) fn shape(&self) -> String {
        let len = if self.query_len == self.key_len {
            self.query_len.to_string()
        } else {
            format!("{}x{}", self.query_len, self.key_len)
        };
        let (heads, sizes) = (self.heads.counts(), self.heads.sizes());
        let mut words = self.problem.split(' ');
        let scale = { words.find_map(|word| word.strip_prefix("scale=")) }
            .map_or_else(String::new, |scale| format!(", scale {scale}"));
        format!("({}, {heads}, {len}, {sizes}){scale}", self.batch)
    }

    /// The problem as tables name it.
    pub(super) fn name(&self) -> String {
        format!("{}, {}, {}", self.shape(), self.element, self.mask)
    }
}

/// One table per setting: shapes down, contestants across; a later measurement of the same replaces an earlier one.
pub(super) fn tables(rows: &[BenchRow]) -> String {
    if rows.is_empty() {
        return "Nothing is measured yet.\n".to_owned();
    }
    let mut text = String::new();
    let mut settings: BTreeMap<[&str; 4], Vec<&BenchRow>> = BTreeMap::new();
    for row in rows {
        let setting = [&row.device, &row.element, &row.mask, &row.method].map(String::as_str);
        settings.entry(setting).or_default().push(row);
    }
    for ([device, element, mask, method], rows) in settings {
        let method = method_text(method);
        let mask = if mask == "none" { "no mask" } else { mask };
        let contestants: BTreeSet<String> = rows.iter().map(|row| row.contestant()).collect();
        let mut shapes: BTreeMap<(usize, usize, String), BTreeMap<String, &BenchRow>> =
            BTreeMap::new();
        for row in &rows {
            shapes
                .entry((row.heads.dim, row.key_len, row.shape()))
                .or_default()
                .insert(row.contestant(), row);
        }
        let header: Vec<&str> = std::iter::once("(batch, heads, length, head size)")
            .chain(contestants.iter().map(String::as_str))
            .collect();
        let table = markdown_table(
            &header,
            shapes.into_iter().map(|((_, _, shape), cells)| {
                let cell = |name: &String| {
                    cells
                        .get(name)
                        .map_or_else(|| "-".to_owned(), |row| measured(row))
                };
                std::iter::once(shape)
                    .chain(contestants.iter().map(cell))
                    .collect()
            }),
        );
        let days: BTreeSet<&str> = rows.iter().map(|row| checks::day(&row.date)).collect();
        let drivers: BTreeSet<&str> = rows.iter().map(|row| row.driver.as_str()).collect();
        text.push_str(&format!(
            "**{device}, {element}, {mask}: {method}**\nMedian (90th percentile) in microseconds, speed at the median; driver {}, measured {}.\n\n{table}\n",
            Vec::from_iter(drivers).join(", "),
            Vec::from_iter(days).join(", "),
        ));
    }
    text
}

fn measured(row: &BenchRow) -> String {
    let speed = if row.tflops < 1.0 {
        format!("{:.1} GFLOP/s", row.tflops * 1000.0)
    } else {
        format!("{:.1} TFLOP/s", row.tflops)
    };
    format!("{:.1} ({:.1}), {speed}", row.median_us, row.p90_us)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::report) fn row(backend: &str, head_dim: u64, len: u64, tflops: f64) -> BenchRow {
        let json = serde_json::json!({
            "backend": backend, "family": "scalar", "kernel": "scalar_d64_32x64_w4_s2", "batch": 1024 / len, "heads": 8,
            "kv_heads": 8, "query_len": len, "key_len": len, "head_dim": head_dim, "element": "f16", "mask": "none",
            "method": "graph", "samples": 50, "median_us": 100.0 / tflops, "p90_us": 15.0, "tflops": tflops,
            "device": "NVIDIA H200", "driver": "CUDA 13.0", "date": "2026-11-21T06:29:07Z",
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn contestants_stand_side_by_side() {
        let row = |backend, len, tflops| BenchRow {
            median_us: 12.34,
            ..row(backend, 64, len, tflops)
        };
        let text = tables(&[
            row("warptile", 1024, 25.04),
            row("cuDNN", 512, 0.5),
            row("warptile", 512, 24.0),
            row("warptile", 512, 23.0),
            BenchRow {
                problem: "b2 q512 k512 h8 d64 f16 scale=0.5".to_owned(),
                ..row("warptile", 512, 22.0)
            },
        ]);
        let table: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(
            table,
            [
                "| (batch, heads, length, head size) | cuDNN | warptile scalar |",
                "| --- | --- | --- |",
                "| (2, 8, 512, 64) | 12.3 (15.0), 500.0 GFLOP/s | 12.3 (15.0), 23.0 TFLOP/s |",
                "| (2, 8, 512, 64), scale 0.5 | - | 12.3 (15.0), 22.0 TFLOP/s |",
                "| (1, 8, 1024, 64) | - | 12.3 (15.0), 25.0 TFLOP/s |",
            ]
        );
        assert!(
            text.contains("driver CUDA 13.0, measured 2026-11-21."),
            "{text}"
        );
    }
}
