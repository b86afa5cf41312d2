//! How fast each kernel is, for choosing among those that apply.

use warptile_kernels::{Family, Image};

use crate::Problem;
use crate::device::DeviceProfile;

/// Throughput on full tiles of long unmasked sequences, in TFLOP/s of one H200 (driver 580, 2026-11-21; the notebooks in
/// docs/ tell how). Only ratios matter: on another device the same order is expected.
const MEASURED: &[(&str, f64)] = &[
    ("scalar_d32_32x64_w4_s2", 30.0),
    ("scalar_d64_16x64_w4_s2", 29.2),
    ("scalar_d64_32x128_w4_s2", 36.5),
    ("scalar_d64_32x32_w4_s2", 29.5),
    ("scalar_d64_32x64_w4_s1", 31.8),
    ("scalar_d64_32x64_w4_s2", 32.6),
    ("scalar_d64_48x64_w8_s2", 28.7),
    ("scalar_d64_64x64_w4_s2", 37.5),
    ("scalar_d64_64x64_w8_s2", 32.1),
    ("scalar_d96_64x32_w4_s2", 32.0),
    ("scalar_d128_32x64_w4_s1", 32.7),
    ("scalar_d128_48x32_w8_s2", 28.4),
    ("scalar_d192_32x32_w4_s1", 29.3),
    ("scalar_d256_32x32_w4_s1", 29.2),
    ("wmma_d32_128x64_w4_s2", 181.0),
    ("wmma_d64_128x64_w4_s2", 274.0),
    ("wmma_d64_16x64_w4_s2", 97.0),
    ("wmma_d64_32x32_w4_s2", 149.0),
    ("wmma_d64_32x64_w4_s1", 155.0),
    ("wmma_d64_32x64_w4_s2", 179.0),
    ("wmma_d64_48x64_w8_s2", 88.0),
    ("wmma_d64_64x64_w4_s2", 230.0),
    ("wmma_d64_64x64_w4_s3", 234.0),
    ("wmma_d64_64x64_w8_s2", 192.0),
    ("wmma_d96_64x64_w4_s2", 239.0),
    ("wmma_d96_128x32_w4_s2", 275.0),
    ("wmma_d128_128x32_w4_s2", 319.0),
    ("wmma_d128_48x32_w8_s2", 66.0),
    ("wmma_d128_64x64_w4_s1", 253.0),
    ("wmma_d160_64x64_w4_s1", 227.0),
    ("wmma_d192_64x64_w4_s1", 273.0),
    ("wmma_d256_64x64_w4_s1", 268.0),
    ("wmma_d256_64x32_w4_s1", 205.0),
    ("wgmma_d64_192x128_w16_s2", 531.0),
    ("wgmma_d64_128x128_w12_s2", 450.0),
    ("wgmma_d64_64x128_w8_s2", 420.0),
    ("wgmma_d96_192x112_w16_s2", 590.0),
    ("wgmma_d96_128x128_w12_s2", 550.0),
    ("wgmma_d96_64x128_w8_s2", 380.0),
    ("wgmma_d128_192x80_w16_s3", 670.0),
    ("wgmma_d128_128x128_w12_s2", 630.0),
    ("wgmma_d128_64x128_w8_s2", 430.0),
    ("wgmma_d192_128x112_w12_s2", 770.0),
    ("wgmma_d192_64x112_w8_s2", 500.0),
    ("wgmma_d256_128x80_w12_s2", 740.0),
];

fn full_rate(image: &Image) -> f64 {
    MEASURED
        .iter()
        .find(|(kernel, _)| *kernel == image.kernel)
        .map_or_else(|| unmeasured_rate(image), |&(_, rate)| rate)
}

/// A guess for kernels that were not measured on long sequences: a tile reloads keys and values once for all its rows, so
/// fewer rows mean more traffic for the same arithmetic.
fn unmeasured_rate(image: &Image) -> f64 {
    let tall = match image.family {
        Family::Wgmma => 600.0,
        Family::Mma => 300.0,
        Family::Wmma => 270.0,
        _ => 30.0,
    };
    let rows = f64::from(image.tiling.block_m);
    tall * rows / (rows + 10.0)
}

/// Fixed cost of a launch and of filling the first tiles, in microseconds.
const LAUNCH_US: f64 = 3.0;

/// Expected GPU time of `image` on `problem`, in microseconds.
///
/// The slowest multiprocessor decides: it works through `ceil(tiles / multiprocessors)` tiles of query rows, each against
/// all keys it can see. While it holds fewer CTAs than it could, it runs slower by the share of latency left unhidden.
pub(crate) fn estimate_us(
    problem: &Problem,
    image: &Image,
    device: &DeviceProfile,
    tiles: u32,
    ctas_per_multiprocessor: u32,
) -> f64 {
    let tiling = image.tiling;
    let rows = (problem
        .sequences()
        .map(|sequence| sequence.q_len as u64)
        .sum::<u64>())
    .max(1);
    let visible_keys = problem.visible_pairs() as f64 / rows as f64;
    let key_tiles = (visible_keys / f64::from(tiling.block_n)).ceil().max(1.0);
    let tile_flops =
        4.0 * f64::from(tiling.block_m) * f64::from(tiling.block_n) * f64::from(tiling.head_dim);

    let multiprocessors = f64::from(device.multiprocessors.max(1));
    let turns = (f64::from(tiles) / multiprocessors).ceil().max(1.0);
    let held = turns.min(f64::from(ctas_per_multiprocessor));
    let unhidden = (f64::from(ctas_per_multiprocessor) / held).sqrt();
    let rate_per_multiprocessor = full_rate(image) * 1e6 / 132.0; // FLOP per microsecond
    LAUNCH_US + turns * key_tiles * tile_flops * unhidden / rate_per_multiprocessor
}
