//! Tests with full, or nearly full, device memory.

use warptile::plan::Choice;
use warptile::{Backend, ElementType, gpu::Gpu};
use warptile_check::Case;
use warptile_driver::{DeviceBuffer, Driver, Stream};

use crate::{alone, families};

const LAUNCHES: usize = 1_000;
/// Bytes left for the launches once everything else is taken.
const LEFT: usize = 256 << 20;

/// Allocates until the device refuses, in blocks that get smaller, and gives `LEFT` bytes back.
fn take_nearly_all(stream: &Stream) -> Vec<DeviceBuffer<u8>> {
    let mut taken = Vec::new();
    for block in [4 << 30, LEFT] {
        while let Ok(buffer) = DeviceBuffer::uninit(stream, block) {
            taken.push(buffer);
        }
    }
    assert!(taken.len() > 2, "the device has no memory to take");
    taken.pop();
    stream.synchronize().unwrap();
    taken
}

/// Bitwise equality, poison included.
fn same_bits<T: bytemuck::NoUninit>(a: &[T], b: &[T]) -> bool {
    bytemuck::cast_slice::<T, u8>(a) == bytemuck::cast_slice::<T, u8>(b)
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_thousand_launches_while_memory_is_full_and_busy() {
    let _alone = alone();
    let gpu = Gpu::new(&Driver::load().unwrap(), 0).unwrap();
    let cases = [
        "b2 h8 q512 k512 d64 f16 seed=1",
        "b2 h6/2 q203 k317 d128 f16 mask=causal seed=2",
        "h4 packed=300x300,0x7,65x200 d64 f16 mask=causal seed=3",
    ]
    .map(|text| text.parse::<Case>().unwrap());
    let busy = Stream::new(gpu.stream().context()).unwrap();
    let source = DeviceBuffer::<u8>::zeroed(&busy, 64 << 20).unwrap();
    let mut target = DeviceBuffer::<u8>::zeroed(&busy, 64 << 20).unwrap();
    let taken = take_nearly_all(&busy);

    for family in families(ElementType::F16) {
        for case in &cases {
            assert_eq!(case.element, ElementType::F16);
            let plan = case.plan(&gpu, &Choice::Family(family)).unwrap();
            let inputs = case.inputs::<half::f16>();
            let first = case.run_on_gpu(&inputs, &gpu, &plan).unwrap();
            case.check(&inputs, &first).unwrap();
            let mut on_gpu = case.upload(&inputs, &gpu, &plan).unwrap();
            for launch in 1..=LAUNCHES {
                target.copy_from(&source).unwrap();
                on_gpu.launch().unwrap();
                if launch % 100 == 0 {
                    let again = on_gpu.result().unwrap();
                    assert!(
                        same_bits(&first.out, &again.out) && same_bits(&first.lse, &again.lse),
                        "{case} on {family}, launch {launch}"
                    );
                    on_gpu.poison().unwrap();
                }
            }
        }
    }
    drop(taken);
    busy.synchronize().unwrap();
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn out_of_memory_leaks_nothing_and_the_context_stays_usable() {
    let _alone = alone();
    let backend = Backend::cuda(0).unwrap();
    let stream = backend.gpu().unwrap().stream();
    stream.synchronize().unwrap();
    let (free_before, total) = stream.context().memory_info().unwrap();
    let error = DeviceBuffer::<u8>::uninit(stream, total + (1 << 30)).unwrap_err();
    assert!(
        error.to_string().to_lowercase().contains("memory"),
        "{error}"
    );
    stream.synchronize().unwrap();
    let (free_after, _) = stream.context().memory_info().unwrap();
    assert!(
        free_before.saturating_sub(free_after) < total / 8,
        "{free_before} before, {free_after} after"
    );
    let case: Case = "b2 h2 q100 k100 d64 f16 seed=1".parse().unwrap();
    let gpu = backend.gpu().unwrap();
    let plan = case.plan(gpu, &Choice::Best).unwrap();
    let inputs = case.inputs::<half::f16>();
    let result = case.run_on_gpu(&inputs, gpu, &plan).unwrap();
    case.check(&inputs, &result).unwrap();
}
