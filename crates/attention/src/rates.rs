//! How fast each kernel is, for choosing among those that apply.

use warptile_kernels::{Family, Image};

use crate::Problem;
use crate::device::DeviceProfile;

/// Throughput of a kernel on full tiles, in TFLOP/s of one H200.
///
/// Only ratios matter: on another device the same order is expected.
fn full_rate(image: &Image) -> f64 {
    match image.family {
        Family::Wgmma => 600.0,
        Family::Mma => 300.0,
        Family::Wmma => 150.0,
        _ => 20.0,
    }
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
