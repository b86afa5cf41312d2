//! The driver crate on a real GPU.

#[path = "../common/device.rs"]
mod device;
#[path = "../common/kernel.rs"]
mod kernel;
#[path = "../common/work.rs"]
mod work;

use std::time::Duration;

use bytemuck::{Pod, Zeroable};
use warptile_driver::sys::CUresult;
use warptile_driver::{
    Context, DeviceAttribute, DeviceBuffer, Driver, DriverError, Event, Kernel, KernelOptions,
    LaunchConfig, Module, Stream, TensorMap, TensorMapElement,
};

use device::first_context;
use kernel::{Increment, PTX, increment, launch};

macro_rules! on_a_gpu {
    ($($name:ident,)*) => {$(
        #[test]
        #[ignore = "needs an NVIDIA GPU"]
        fn $name() {
            work::$name(&first_context(), 1 << 20);
        }
    )*};
}
work::all_work!(on_a_gpu);

/// Finds errors that happen once in many times, such as a write to memory that is somebody else's by then.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn everything_works_at_once_and_many_times() {
    work::everything_at_once(&first_context(), 1 << 16, 40);
}

/// The parameters of `through_shared`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ThroughShared {
    address: u64,
    bytes: u32,
    value: u32,
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_device_can_be_described() {
    let driver = Driver::load().unwrap();
    for device in driver.devices().unwrap() {
        assert!(!device.name().unwrap().is_empty());
        assert!(device.compute_capability().unwrap() >= (5, 0));
        assert!(device.multiprocessors().unwrap() > 0);
        assert!(device.total_memory().unwrap() > 1 << 28);
        assert!(device.max_shared_bytes_per_block().unwrap() >= 48 << 10);
        assert_eq!(device.attribute(DeviceAttribute::WARP_SIZE).unwrap(), 32);
        assert_ne!(device.uuid().unwrap(), [0; 16]);
        assert!(device.pci_bus_id().unwrap().contains(':'));
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn parameter_blocks_of_another_size_are_refused() {
    let context = first_context();
    let module = Module::load(&context, PTX).unwrap();
    if context.driver().version().0 >= 12_040 {
        let error = Kernel::<u64>::load(&module, "increment", &KernelOptions::new()).unwrap_err();
        assert!(
            matches!(error, DriverError::ParameterBlock { .. }),
            "{error}"
        );
    }
    let options = KernelOptions::new().param_bytes(8);
    let error = Kernel::<Increment>::load(&module, "increment", &options).unwrap_err();
    assert!(
        matches!(error, DriverError::ParameterBlock { .. }),
        "{error}"
    );
    let nothing = Kernel::<()>::load(&module, "nothing", &KernelOptions::new()).unwrap();
    let stream = Stream::new(&context).unwrap();
    // SAFETY: it does nothing.
    unsafe { nothing.launch(&stream, &LaunchConfig::new([3, 1, 1], [64, 1, 1]), &()) }.unwrap();
    stream.synchronize().unwrap();
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn all_the_shared_memory_of_the_device_can_be_used() {
    let context = first_context();
    let stream = Stream::new(&context).unwrap();
    let most = context.device().max_shared_bytes_per_block().unwrap();
    let module = Module::load(&context, PTX).unwrap();
    let load = |bytes| {
        let options = KernelOptions::new().dynamic_shared_bytes(bytes);
        Kernel::<ThroughShared>::load(&module, "through_shared", &options)
    };
    let kernel = load(most).unwrap();
    let result = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    let params = ThroughShared {
        address: result.pointer(),
        bytes: most,
        value: 12_345,
    };
    let mut configs = vec![LaunchConfig::new([1, 1, 1], [1, 1, 1]).dynamic_shared_bytes(most)];
    configs.push(configs[0].cooperative());
    if context.device().compute_capability().unwrap() >= (9, 0) {
        let pair = LaunchConfig::new([2, 1, 1], [1, 1, 1]).dynamic_shared_bytes(most);
        assert!(
            kernel
                .clusters_on_device(&stream, &pair.cluster([2, 1, 1]))
                .unwrap()
                > 0
        );
        configs.push(pair.cluster([2, 1, 1]));
    }
    for config in configs {
        let mut result = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
        let params = ThroughShared {
            address: result.pointer(),
            ..params
        };
        assert_eq!(kernel.blocks_per_multiprocessor(&config).unwrap(), 1);
        // SAFETY: the parameter block is the kernel's; every block writes the same value.
        unsafe { kernel.launch(&stream, &config, &params) }.unwrap();
        assert_eq!(result.to_vec().unwrap(), [12_345], "{config:?}");
        result.as_slice_mut().fill_bytes(0).unwrap();
    }
    let error = load(most + 1).unwrap_err();
    assert!(error.to_string().contains("through_shared"), "{error}");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn events_measure_device_time() {
    let context = first_context();
    let stream = Stream::new(&context).unwrap();
    let kernel = increment(&context);
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 1 << 24).unwrap();
    let (start, end) = (
        Event::timed(&context).unwrap(),
        Event::timed(&context).unwrap(),
    );
    launch(&kernel, &stream, &buffer);
    stream.record(&start).unwrap();
    for _ in 0..20 {
        launch(&kernel, &stream, &buffer);
    }
    stream.record(&end).unwrap();
    end.synchronize().unwrap();
    let elapsed = end.elapsed_since(&start).unwrap();
    // 20 passes over 64 MiB: more than a microsecond each, less than a second in all.
    assert!(
        elapsed > Duration::from_micros(20) && elapsed < Duration::from_secs(1),
        "{elapsed:?}"
    );
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_ptx_that_does_not_compile_brings_the_compilers_words() {
    let context = first_context();
    let ptx = b".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry k() { nonsense; }\n";
    let error = Module::load(&context, ptx).unwrap_err();
    let DriverError::Module { log, .. } = &error else {
        panic!("unexpected: {error}");
    };
    assert!(log.contains("line 4"), "{error}");
    assert_eq!(error.code(), Some(CUresult::ERROR_INVALID_PTX));
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_tensor_map_is_accepted_by_the_driver() {
    let context = first_context();
    let stream = Stream::new(&context).unwrap();
    let buffer = DeviceBuffer::<u16>::zeroed(&stream, 128 * 256).unwrap();
    if context.device().compute_capability().unwrap() < (9, 0) {
        return;
    }
    let map = TensorMap::tiled(
        TensorMapElement::F16,
        buffer.pointer(),
        &[128, 256],
        &[256],
        &[64, 64],
    )
    .swizzle(warptile_driver::Swizzle::Bytes128)
    .encode_in(&context)
    .unwrap();
    assert_ne!(bytemuck::bytes_of(&map), [0; 128]);
}

/// On a machine with one GPU the two contexts are one.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn two_contexts_mix_on_one_thread() {
    let driver = Driver::load().unwrap();
    let last = driver.device_count().unwrap() - 1;
    let contexts = [0, last].map(|at| Context::new(&driver.device(at).unwrap()).unwrap());
    let streams = [0, 1].map(|at| Stream::new(&contexts[at]).unwrap());
    let kernels = [0, 1].map(|at| increment(&contexts[at]));
    let mut buffers = [0, 1].map(|at| DeviceBuffer::<u32>::zeroed(&streams[at], 1000).unwrap());
    for _ in 0..10 {
        for at in [0, 1] {
            launch(&kernels[at], &streams[at], &buffers[at]);
        }
    }
    let [first, second] = &mut buffers;
    assert_eq!(second.to_vec().unwrap(), [10; 1000]);
    launch(&kernels[0], &streams[0], first);
    second.copy_from(first).unwrap();
    assert_eq!(second.to_vec().unwrap(), [11; 1000]);
}
