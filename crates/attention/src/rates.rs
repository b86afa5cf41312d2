//! How fast each kernel is, for choosing among those that apply.

use warptile_kernels::{Family, Image};

use crate::device::DeviceProfile;
use crate::{Mask, Problem};

/// What was measured of each kernel on one H200 (driver 580, 2026-11-21; the notebooks in docs/ tell how). Only ratios
/// matter: on another device the same order is expected.
struct Measured {
    kernel: &'static str,
    /// TFLOP/s on long unmasked sequences; of `wgmma` without the ends of tiles, fitted with these to the times at lengths
    /// from 512 to 16384, where the kernel the estimate prefers is within 1% of the fastest of its family.
    tflops: f64,
    /// What the beginning and end of a tile cost, in blocks of keys; of `wmma` 160 keys' worth in all, by the four tilings
    /// measured at short and at long lengths.
    tile_end: f64,
}

const fn measured(kernel: &'static str, tflops: f64, tile_end: f64) -> Measured {
    Measured {
        kernel,
        tflops,
        tile_end,
    }
}

const MEASURED: &[Measured] = &[
    measured("scalar_d32_32x64_w4_s2", 30.0, 0.0),
    measured("scalar_d64_16x64_w4_s2", 29.2, 0.0),
    measured("scalar_d64_32x128_w4_s2", 36.5, 0.0),
    measured("scalar_d64_32x32_w4_s2", 29.5, 0.0),
    measured("scalar_d64_32x64_w4_s1", 31.8, 0.0),
    measured("scalar_d64_32x64_w4_s2", 32.6, 0.0),
    measured("scalar_d64_48x64_w8_s2", 28.7, 0.0),
    measured("scalar_d64_64x64_w4_s2", 37.5, 0.0),
    measured("scalar_d64_64x64_w8_s2", 32.1, 0.0),
    measured("scalar_d96_64x32_w4_s2", 32.0, 0.0),
    measured("scalar_d128_32x64_w4_s1", 32.7, 0.0),
    measured("scalar_d128_48x32_w8_s2", 28.4, 0.0),
    measured("scalar_d192_32x32_w4_s1", 29.3, 0.0),
    measured("scalar_d256_32x32_w4_s1", 29.2, 0.0),
    measured("wmma_d32_128x64_w4_s2", 181.0, 2.5),
    measured("wmma_d64_128x64_w4_s2", 274.0, 2.5),
    measured("wmma_d64_16x64_w4_s2", 97.0, 2.5),
    measured("wmma_d64_32x32_w4_s2", 149.0, 5.0),
    measured("wmma_d64_32x64_w4_s1", 155.0, 2.5),
    measured("wmma_d64_32x64_w4_s2", 179.0, 2.5),
    measured("wmma_d64_48x64_w8_s2", 88.0, 2.5),
    measured("wmma_d64_64x64_w4_s2", 230.0, 2.5),
    measured("wmma_d64_64x64_w4_s3", 234.0, 2.5),
    measured("wmma_d64_64x64_w8_s2", 187.5, 2.5),
    measured("wmma_d96_64x64_w4_s2", 239.0, 2.5),
    measured("wmma_d96_128x32_w4_s2", 275.0, 5.0),
    measured("wmma_d128_128x32_w4_s2", 319.0, 5.0),
    measured("wmma_d128_48x32_w8_s2", 66.0, 5.0),
    measured("wmma_d128_64x64_w4_s1", 253.0, 2.5),
    measured("wmma_d160_64x64_w4_s1", 227.0, 2.5),
    measured("wmma_d192_64x64_w4_s1", 273.0, 2.5),
    measured("wmma_d256_64x64_w4_s1", 268.0, 2.5),
    measured("wmma_d256_64x32_w4_s1", 205.0, 5.0),
    measured("wgmma_d64_256x64_w20_s6", 561.0, 2.3),
    measured("wgmma_d64_192x128_w16_s3", 610.0, 1.7),
    measured("wgmma_d64_128x128_w12_s2", 489.0, 2.1),
    measured("wgmma_d64_64x128_w8_s2", 486.0, 2.3),
    measured("wgmma_d96_192x96_w16_s3", 727.0, 2.3),
    measured("wgmma_d96_128x128_w12_s2", 636.0, 1.9),
    measured("wgmma_d96_64x128_w8_s2", 444.0, 2.4),
    measured("wgmma_d128_192x64_w16_s4", 757.0, 1.5),
    measured("wgmma_d128_192x80_w16_s3", 806.0, 2.3),
    measured("wgmma_d128_128x128_w12_s2", 756.0, 1.8),
    measured("wgmma_d128_64x128_w8_s2", 536.0, 2.1),
    measured("wgmma_d192_128x64_w12_s3", 821.0, 3.4),
    measured("wgmma_d192_128x112_w12_s2", 901.0, 3.1),
    measured("wgmma_d192_64x112_w8_s2", 687.0, 3.1),
    measured("wgmma_d256_128x64_w12_s2", 851.0, 3.5),
];

/// A guess for kernels that were not measured on long sequences: a tile reloads keys and values once for all its rows, so
/// fewer rows mean more traffic for the same arithmetic.
fn unmeasured(image: &Image) -> Measured {
    let tall = match image.family {
        Family::Wgmma => 600.0,
        Family::Mma => 300.0,
        Family::Wmma => 270.0,
        _ => 30.0,
    };
    let rows = f64::from(image.tiling.block_m);
    measured(image.kernel, tall * rows / (rows + 10.0), 1.0)
}

/// Fixed cost of a launch and of filling the first tiles, in microseconds.
const LAUNCH_US: f64 = 3.0;

/// Expected GPU time of `image` on `problem`, in microseconds.
///
/// The slowest multiprocessor decides. It works through its tiles of query rows, each against the blocks of keys it can
/// see, and pays for the end of each. Where every tile is a CTA of its own, or all are equally long, some
/// multiprocessors have one tile more than others; drawn tiles of different lengths even out, but take no less than the
/// longest. While a multiprocessor holds fewer CTAs than it could, it runs slower by the share of latency left unhidden.
pub(crate) fn estimate_us(
    problem: &Problem,
    image: &Image,
    device: &DeviceProfile,
    tiles: u32,
    ctas_per_multiprocessor: u32,
) -> f64 {
    let guess;
    let kernel = match MEASURED.iter().find(|row| row.kernel == image.kernel) {
        Some(row) => row,
        None => {
            guess = unmeasured(image);
            &guess
        }
    };
    let tiling = image.tiling;
    let (block_m, block_n) = (f64::from(tiling.block_m), f64::from(tiling.block_n));
    let rows = (problem
        .sequences()
        .map(|sequence| sequence.q_len as u64)
        .sum::<u64>())
    .max(1);
    let visible_keys = problem.visible_pairs() as f64 / rows as f64;
    // A tile loads what any of its rows sees. Beside what each sees on average that is half a tile's height of keys where
    // the mask has one edge, and a whole one where it has two.
    let bounds = problem.mask().bounds();
    let beside = match (bounds.left, bounds.right) {
        (None, None) => 0.0,
        (Some(_), Some(_)) => block_m,
        _ => block_m / 2.0,
    };
    let uneven = problem.mask() != Mask::None || problem.is_packed();
    let all = (problem.key_len() as f64 / block_n).ceil().max(1.0);
    let blocks = (visible_keys + beside) / block_n;
    let blocks = if uneven { blocks } else { blocks.ceil() };
    let tile = blocks.clamp(1.0, all) + kernel.tile_end;
    let longest = ((widest_row(problem) as f64 + beside) / block_n)
        .ceil()
        .clamp(1.0, all);

    let per_multiprocessor = f64::from(tiles) / f64::from(device.multiprocessors.max(1));
    let turns = per_multiprocessor.ceil().max(1.0);
    let blocks = if image.family == Family::Wgmma && uneven {
        (per_multiprocessor * tile).max(longest + kernel.tile_end)
    } else {
        turns * tile
    };
    let held = turns.min(f64::from(ctas_per_multiprocessor));
    let unhidden = (f64::from(ctas_per_multiprocessor) / held).sqrt();
    let block_flops = 4.0 * block_m * block_n * f64::from(tiling.head_dim);
    let rate_per_multiprocessor = kernel.tflops * 1e6 / 132.0; // FLOP per microsecond
    LAUNCH_US + blocks * block_flops * unhidden / rate_per_multiprocessor
}

/// About the most keys that a row of the problem sees: of the first, middle and last row of each sequence. Under a mask
/// with one edge it is the first or the last, under a window any that has the whole of it.
fn widest_row(problem: &Problem) -> usize {
    let keys = |q_len: usize, k_len: usize| {
        let visible = |row| problem.mask().visible(row, q_len, k_len).len();
        [0, q_len / 2, q_len.saturating_sub(1)]
            .map(visible)
            .into_iter()
            .max()
            .unwrap_or(0)
    };
    problem
        .sequences()
        .filter(|sequence| sequence.q_len > 0)
        .map(|sequence| keys(sequence.q_len, sequence.k_len))
        .max()
        .unwrap_or(0)
}
