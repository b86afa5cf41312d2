//! The capacity of a multiprocessor, a device and a launch.

use warptile_kernels::Image;

use crate::plan::device::DeviceProfile;
use crate::plan::split_tiles::PARTS_A_CTA;

/// Shared memory of a CTA in bytes.
pub(super) fn shared_bytes(image: &Image) -> u32 {
    image.resources.static_shared_bytes + image.resources.dynamic_shared_bytes
}

/// The system keeps 1 KiB of shared memory for each resident CTA (CUDA C++ Programming Guide, "Shared Memory").
const RESERVED_SHARED_BYTES: u32 = 1024;

/// Dynamic shared memory with which a multiprocessor holds one CTA of `image`, if it holds several with what the image asks for and they
/// stay for a whole launch.
pub(crate) fn alone_bytes(image: &Image, device: &DeviceProfile) -> Option<u32> {
    /// A multiple of what shared memory is handed out in.
    const UNIT: u32 = 1024;
    if !image.schedule.is_persistent() || occupancy(image, device) == 1 {
        return None;
    }
    let too_much_for_two = device.shared_bytes_per_multiprocessor / 2 / UNIT * UNIT + UNIT;
    let others = RESERVED_SHARED_BYTES + image.resources.static_shared_bytes;
    let bytes = too_much_for_two.saturating_sub(others);
    let most = { device.shared_bytes_per_cta }.saturating_sub(image.resources.static_shared_bytes);
    (image.resources.dynamic_shared_bytes..=most)
        .contains(&bytes)
        .then_some(bytes)
}

/// CTAs that a multiprocessor of any compute capability can hold (CUDA C++ Programming Guide, "Technical Specifications per Compute
/// Capability").
const MAX_CTAS_PER_MULTIPROCESSOR: u32 = 32;

/// CTAs of `image` a multiprocessor holds at once, by shared memory, threads and registers; at least 1.
pub(super) fn occupancy(image: &Image, device: &DeviceProfile) -> u32 {
    let threads = 32 * image.tiling.warps;
    let by_shared =
        device.shared_bytes_per_multiprocessor / (shared_bytes(image) + RESERVED_SHARED_BYTES);
    let by_threads = device.threads_per_multiprocessor / threads;
    // Registers are handed out per warp in steps of 8 a thread; a PTX image has no count before the driver compiles it.
    let registers = image.resources.registers.max(1).next_multiple_of(8);
    let by_registers = device.registers_per_multiprocessor / (registers * threads);
    by_shared
        .min(by_threads)
        .min(by_registers)
        .clamp(1, MAX_CTAS_PER_MULTIPROCESSOR)
}

/// CTAs that a device can hold at once, at most.
const MAX_RESIDENT: u64 =
    DeviceProfile::MAX_MULTIPROCESSORS as u64 * MAX_CTAS_PER_MULTIPROCESSOR as u64;

/// The most tiles of a launch: what a grid can have along x (CUDA C++ Programming Guide, "Technical Specifications per Compute
/// Capability"), less the parts that persistent CTAs have of split tiles, and the numbers that they draw when nothing is left.
pub(crate) const MAX_TILES: u64 = (1 << 31) - 1 - (PARTS_A_CTA as u64 + 1) * MAX_RESIDENT;
