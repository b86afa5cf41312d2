//! Tests that take the device's memory or count what is free. In an executable of their own, and one at a time: no other test
//! could allocate meanwhile.

#[path = "common/device.rs"]
mod device;

use std::sync::{Mutex, MutexGuard, PoisonError};

use warptile_driver::{DeviceBuffer, Stream};

use device::first_context;

/// Held by the one test that runs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn out_of_memory_leaves_the_context_usable() {
    let _alone = alone();
    let context = first_context();
    let stream = Stream::new(&context).unwrap();
    let total = context.device().total_memory().unwrap();
    let error = DeviceBuffer::<u8>::uninit(&stream, total * 2).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    let buffer = DeviceBuffer::from_slice(&stream, &[1_u32; 100]).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [1; 100]);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn memory_is_kept_up_to_a_limit_until_it_is_trimmed() {
    let _alone = alone();
    let context = first_context();
    let stream = Stream::new(&context).unwrap();
    let total = context.device().total_memory().unwrap();
    let limit = (total / 16).max((1 << 30).min(total / 4));
    let noise = limit / 2; // what else lives on the device
    let free = || context.memory_info().unwrap().0;
    let had_and_dropped = |bytes| {
        drop(DeviceBuffer::<u8>::uninit(&stream, bytes).unwrap());
        stream.synchronize().unwrap();
        free()
    };
    context.trim_memory(0).unwrap();
    let before = free();
    let kept = had_and_dropped(limit / 4 * 3);
    assert!(kept + noise < before, "{before} before, {kept} after");
    let too_much = before / 4 * 3;
    let kept = had_and_dropped(too_much);
    assert!(
        kept + (too_much / 2).max(limit + noise) > before,
        "{before} before, {kept} after"
    );
    context.trim_memory(0).unwrap();
    let trimmed = free();
    assert!(trimmed + noise > before, "{before} before, {trimmed} after");
}
