//! Kernels whose CTAs come in clusters of two.

use warptile::gpu::Gpu;
use warptile::kernels::abi::Declared;
use warptile::kernels::{External, Image, Schedule};
use warptile::plan::Choice;
use warptile::spec::{Call, Scoring};
use warptile::{ElementType, Layout, Mask};
use warptile_driver::sys::CUresult;
use warptile_fake_cuda::FakeDriver;

use crate::{Buffers, MAPPED, block, gpu};

/// An embedded image whose record says that its CTAs come in pairs: the stand-in runs no kernel, and the host goes by the record.
fn image() -> &'static Image {
    let plain = { warptile::kernels::catalog().iter() }
        .filter(|image| image.kernel == MAPPED && image.element == ElementType::F16)
        .min_by_key(|image| image.features.iter().count())
        .unwrap();
    let mut bytes = plain.bytes().unwrap();
    // In front of the hash of the block lie magic, role, schedule and features.
    let hash = warptile::kernels::abi::ForwardTma::HASH.to_le_bytes();
    let at = { bytes.windows(8) }
        .position(|window| window == hash)
        .unwrap();
    bytes[at - 8..at - 4].copy_from_slice(&Schedule::Pairs.number().to_le_bytes());
    let external = External {
        name: format!("{}_as_pairs", plain.name),
        kernel: format!("{MAPPED}_as_pairs"),
        entry: plain.entry.to_owned(),
        family: plain.family,
        target: plain.target,
        element: plain.element,
        registers: plain.resources.registers,
        static_shared_bytes: plain.resources.static_shared_bytes,
        toolchain: plain.toolchain.to_owned(),
        source_hash: plain.source_hash.to_owned(),
        sha256: plain.sha256.to_owned(),
        bytes,
    };
    // SAFETY: nothing executes it.
    unsafe { external.into_image() }.unwrap()
}

fn call(heads: usize, mask: Mask) -> Call {
    let q = Layout::bshd([1, 300, heads, 64]);
    let k = Layout::bshd([1, 500, 2, 64]);
    Call::builder(&q, &k, &k, ElementType::F16)
        .scoring(Scoring::new().mask(mask))
        .build()
        .unwrap()
}

fn with_pairs(fake: &FakeDriver) -> (Gpu, Choice) {
    let image = image();
    let choice = Choice::Image(image.name.to_owned());
    (gpu(fake).with_named_images([image]), choice)
}

#[test]
fn a_launch_has_clusters_of_two_and_no_more_than_the_device_holds() {
    let fake = FakeDriver::open();
    let (gpu, choice) = with_pairs(&fake);
    for (heads, mask, tiles, grid) in [
        // 5 tiles of each of 4 pairs of heads: more than the 16 clusters that the stand-in holds.
        (8, Mask::causal(), 20, 32),
        (4, Mask::causal(), 10, 20),
        // Three pairs of tiles for each of 6 heads; the last pair has only one tile.
        (6, Mask::none(), 18, 32),
        (2, Mask::none(), 6, 12),
    ] {
        let call = call(heads, mask);
        let prepared = gpu.prepare(call.problem(), &choice).unwrap();
        let mut buffers = Buffers::new(gpu.stream(), &call);
        let launches = fake.launches().len();
        prepared
            .launch(gpu.stream(), &call, &buffers.bindings())
            .unwrap();
        gpu.stream().synchronize().unwrap();
        let launch = &fake.launches()[launches];
        assert_eq!(
            (launch.cluster, launch.grid),
            ([2, 1, 1], [grid, 1, 1]),
            "{call}"
        );
        let work = block(launch).work;
        assert_eq!(work.tiles, tiles, "{call}");
        // Tiles are drawn if there are more than clusters.
        assert_eq!(work.counter != 0, 2 * tiles as u32 > grid, "{call}");
    }
}

#[test]
fn what_can_fail_is_reported_with_the_kernel() {
    let fake = FakeDriver::open();
    let (gpu, choice) = with_pairs(&fake);
    // Two heads with a key/value head each see other keys.
    let refused = gpu.prepare(call(2, Mask::causal()).problem(), &choice);
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("computes pairs of tiles"), "{message}");

    let call = call(4, Mask::causal());
    let failing = |symbol: &str| fake.fail(Some(symbol), 1, CUresult::ERROR_OUT_OF_MEMORY.0);
    failing("cuOccupancyMaxActiveClusters");
    let message = { gpu.prepare(call.problem(), &choice) }
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("cuOccupancyMaxActiveClusters"),
        "{message}"
    );
    let prepared = gpu.prepare(call.problem(), &choice).unwrap();
    let mut buffers = Buffers::new(gpu.stream(), &call);
    failing("cuLaunchKernelEx");
    let launched = prepared.launch(gpu.stream(), &call, &buffers.bindings());
    let message = launched.unwrap_err().to_string();
    assert!(message.contains("_as_pairs"), "{message}");
    prepared
        .launch(gpu.stream(), &call, &buffers.bindings())
        .unwrap();
}
