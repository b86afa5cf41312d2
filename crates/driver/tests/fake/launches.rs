//! Kernels: parameters, configurations and limits.

use warptile_driver::{
    Context, DeviceBuffer, DriverError, FunctionAttribute, Kernel, KernelOptions, LaunchConfig,
    LaunchError, Module, Stream,
};
use warptile_fake_cuda::FakeDriver;

use crate::{Increment, PTX, context, driver, increment, launch, open, open_two};

const ONE: [u32; 3] = [1, 1, 1];

#[test]
fn a_launch_reaches_the_driver_as_it_was_given() {
    let (fake, context, stream) = open();
    let module = Module::load(&context, PTX).unwrap();
    let options = KernelOptions::new()
        .param_bytes(16)
        .dynamic_shared_bytes(200_000)
        .large_clusters();
    let kernel = Kernel::<Increment>::load(&module, "increment", &options).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 5).unwrap();
    let config = LaunchConfig::new([32, 2, 3], [64, 2, 1]).dynamic_shared_bytes(199_999);
    let configs = [
        config,
        config.cluster([16, 1, 1]),
        LaunchConfig::new([4, 1, 1], [64, 2, 1]).cooperative(),
        LaunchConfig::new([4, 1, 1], [64, 2, 1])
            .cooperative()
            .cluster([2, 1, 1]),
    ];
    for config in &configs {
        // SAFETY: the stand-in's kernel looks at the buffer only.
        unsafe { kernel.launch(&stream, config, &Increment::of(&buffer)) }.unwrap();
    }
    assert!(fake.launches().is_empty(), "a launch must not wait");
    assert_eq!(buffer.to_vec().unwrap(), [4; 5]);
    let launches = fake.launches();
    assert_eq!(launches.len(), configs.len());
    for (launch, config) in launches.iter().zip(&configs) {
        assert_eq!(launch.name(), "increment");
        assert_eq!(launch.params(), bytemuck::bytes_of(&Increment::of(&buffer)));
        assert_eq!((launch.grid, launch.block), (config.grid, config.block));
        assert_eq!(launch.shared_bytes, config.dynamic_shared_bytes);
        assert_eq!(launch.cluster, config.cluster.unwrap_or_default());
        assert_eq!(launch.cooperative != 0, config.cooperative);
        assert_eq!(launch.stream, stream.raw().0.addr());
    }
}

#[test]
fn a_kernel_without_parameters() {
    let (fake, context, stream) = open();
    let module = Module::load(&context, PTX).unwrap();
    let kernel = Kernel::<()>::load(&module, "nothing", &KernelOptions::new()).unwrap();
    // SAFETY: it does nothing.
    unsafe { kernel.launch(&stream, &LaunchConfig::new(ONE, ONE), &()) }.unwrap();
    stream.synchronize().unwrap();
    assert_eq!(fake.launches()[0].params(), []);
}

#[test]
fn a_parameter_block_of_another_size_is_refused_at_load() {
    let (_fake, context, _stream) = open();
    let module = Module::load(&context, PTX).unwrap();
    let refusals = [
        // By what the image records.
        Kernel::<Increment>::load(&module, "increment", &KernelOptions::new().param_bytes(240))
            .unwrap_err(),
        // By what the driver knows.
        Kernel::<u64>::load(&module, "increment", &KernelOptions::new()).unwrap_err(),
        Kernel::<()>::load(&module, "increment", &KernelOptions::new()).unwrap_err(),
        Kernel::<u64>::load(&module, "nothing", &KernelOptions::new()).unwrap_err(),
    ];
    for error in refusals {
        assert!(
            matches!(error, DriverError::ParameterBlock { .. }),
            "{error}"
        );
    }
    let two = b".version 7.0\n.target sm_75\n.entry two(.param .u64 a, .param .u64 b) { ret; }";
    let module = Module::load(&context, two).unwrap();
    let error = Kernel::<u64>::load(&module, "two", &KernelOptions::new()).unwrap_err();
    assert!(
        error.to_string().contains("more than one parameter"),
        "{error}"
    );
}

#[test]
fn limits_are_refused_by_name_before_the_driver_is_asked() {
    let (fake, context, stream) = open();
    let kernel = increment(&context).unwrap();
    let params = Increment {
        address: 0,
        count: 0,
    };
    let calls = fake.calls();
    let refused = |config: LaunchConfig| {
        // SAFETY: never launched.
        match unsafe { kernel.launch(&stream, &config, &params) } {
            Err(DriverError::Launch { kernel, reason }) => {
                assert_eq!(kernel, "increment");
                reason
            }
            other => panic!("{config:?} gave {other:?}"),
        }
    };
    assert!(matches!(
        refused(LaunchConfig::new([1, 65_536, 1], ONE)),
        LaunchError::TooLarge { what: "grid", .. }
    ));
    assert!(matches!(
        refused(LaunchConfig::new([0, 1, 1], ONE)),
        LaunchError::Empty { .. }
    ));
    assert!(matches!(
        refused(LaunchConfig::new(ONE, [1024, 2, 1])),
        LaunchError::TooManyThreads { threads: 2048, .. }
    ));
    assert!(matches!(
        refused(LaunchConfig::new(ONE, ONE).dynamic_shared_bytes(49_153)),
        LaunchError::TooMuchSharedMemory { limit: 49_152, .. }
    ));
    assert!(matches!(
        refused(LaunchConfig::new([16, 1, 1], ONE).cluster([16, 1, 1])),
        LaunchError::ClusterTooLarge { limit: 8, .. }
    ));
    assert_eq!(fake.calls(), calls);
}

#[test]
fn clusters_need_a_device_that_has_them() {
    let fake = FakeDriver::open();
    fake.set_compute_capability(8, 9);
    let context = context(&fake).unwrap();
    let stream = Stream::new(&context).unwrap();
    let kernel = increment(&context).unwrap();
    let config = LaunchConfig::new([2, 1, 1], ONE).cluster([2, 1, 1]);
    // SAFETY: never launched.
    let error = unsafe {
        kernel.launch(
            &stream,
            &config,
            &Increment {
                address: 0,
                count: 0,
            },
        )
    }
    .unwrap_err();
    assert!(
        matches!(
            error,
            DriverError::Launch {
                reason: LaunchError::NoClusters,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn more_shared_memory_than_the_device_has_fails_at_load_and_names_the_kernel() {
    let (fake, context, stream) = open();
    let module = Module::load(&context, PTX).unwrap();
    let options = KernelOptions::new().dynamic_shared_bytes(300_000);
    let error = Kernel::<Increment>::load(&module, "increment", &options).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("kernel increment") && text.contains("300000"),
        "{text}"
    );
    drop((module, stream, context));
    fake.assert_clean();
}

/// The driver has one function for all kernels of an entry.
#[test]
fn kernels_of_one_entry_have_limits_of_their_own() {
    let (fake, context, stream) = open();
    let module = Module::load(&context, PTX).unwrap();
    let load = |options| Kernel::<Increment>::load(&module, "increment", &options).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
    let plain = load(KernelOptions::new());
    let limited = |bytes| load(KernelOptions::new().dynamic_shared_bytes(bytes));
    let kernels = [
        (49_152, plain),
        (1_024, limited(1_024)),
        (100_000, limited(100_000)),
        (60_000, limited(60_000)),
        (0, limited(1)),
    ];
    for (most, kernel) in &kernels {
        let launch = |bytes| {
            let config = LaunchConfig::new(ONE, [8, 1, 1]).dynamic_shared_bytes(bytes);
            // SAFETY: the parameter block is the kernel's, and the buffer is the stream's.
            unsafe { kernel.launch(&stream, &config, &Increment::of(&buffer)) }
        };
        launch(*most).unwrap();
        let error = launch(most + 2).unwrap_err();
        let DriverError::Launch { reason, .. } = error else {
            panic!("{error}");
        };
        assert!(
            matches!(reason, LaunchError::TooMuchSharedMemory { .. }),
            "{reason}"
        );
    }
    assert_eq!(buffer.to_vec().unwrap(), [kernels.len() as u32; 8]);
    drop((kernels, module, buffer, stream, context));
    fake.assert_clean();
}

#[test]
fn clusters_are_not_counted_on_a_stream_of_another_device() {
    let (_fake, contexts, streams) = open_two();
    let kernel = increment(&contexts[0]).unwrap();
    let config = LaunchConfig::new([2, 1, 1], ONE).cluster([2, 1, 1]);
    assert_eq!(kernel.clusters_on_device(&streams[0], &config).unwrap(), 16);
    let error = kernel.clusters_on_device(&streams[1], &config).unwrap_err();
    assert!(
        matches!(error, DriverError::OtherContext { operation } if operation.contains("clusters")),
        "{error}"
    );
}

#[test]
fn a_cooperative_grid_that_does_not_fit_is_the_drivers_error() {
    let (_fake, context, stream) = open();
    let kernel = increment(&context).unwrap();
    let config = LaunchConfig::new([10_000, 1, 1], ONE).cooperative();
    // SAFETY: never launched.
    let error = unsafe {
        kernel.launch(
            &stream,
            &config,
            &Increment {
                address: 0,
                count: 0,
            },
        )
    }
    .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("kernel increment") && text.contains("occupancy"),
        "{text}"
    );
}

#[test]
fn a_kernel_of_another_context_is_not_launched() {
    let fake = FakeDriver::open();
    fake.set_device_count(2);
    let driver = driver(&fake).unwrap();
    let first = Context::new(&driver.device(0).unwrap()).unwrap();
    let second = Context::new(&driver.device(1).unwrap()).unwrap();
    let stream = Stream::new(&second).unwrap();
    let buffer = DeviceBuffer::zeroed(&stream, 4).unwrap();
    let error = launch(&increment(&first).unwrap(), &stream, &buffer).unwrap_err();
    assert!(matches!(error, DriverError::OtherContext { .. }), "{error}");
}

#[test]
fn occupancy_and_attributes_are_read() {
    let (_fake, context, stream) = open();
    let kernel = increment(&context).unwrap();
    let config = LaunchConfig::new([8, 1, 1], [128, 1, 1]).dynamic_shared_bytes(48_000);
    assert_eq!(kernel.blocks_per_multiprocessor(&config).unwrap(), 4);
    let clusters = config.cluster([2, 1, 1]);
    assert_eq!(kernel.clusters_on_device(&stream, &clusters).unwrap(), 16);
    assert_eq!(kernel.attribute(FunctionAttribute::NUM_REGS).unwrap(), 64);
}

#[test]
fn a_tensor_map_is_encoded_as_given() {
    use warptile_driver::{Swizzle, TensorMap, TensorMapElement};
    let (_fake, context, _stream) = open();
    let map = TensorMap::tiled(
        TensorMapElement::Bf16,
        0x1000,
        &[64, 100],
        &[128],
        &[64, 64],
    )
    .swizzle(Swizzle::Bytes128)
    .encode_in(&context)
    .unwrap();
    // The stand-in's encoding: address, rank, dimensions.
    let words: &[u64] = bytemuck::cast_slice(bytemuck::bytes_of(&map));
    assert_eq!(words[..4], [0x1000, 2, 64, 100]);
    assert_eq!(align_of::<TensorMap>(), 64);
}
