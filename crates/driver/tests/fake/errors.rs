//! Tests of error texts, and of the errors that a context survives.

use warptile_driver::sys::CUresult;
use warptile_driver::{DeviceBuffer, DriverError, Event, Kernel, KernelOptions, Module, Stream};
use warptile_fake_cuda::{FakeDriver, Kind};

use crate::{PTX, context, increment, launch};

#[test]
fn out_of_memory_leaks_nothing_and_leaves_the_context_usable() {
    for pools in [true, false] {
        let fake = FakeDriver::open();
        fake.set_memory_pools(pools);
        fake.set_memory(1 << 20);
        let context = context(&fake).unwrap();
        let stream = Stream::new(&context).unwrap();
        let kept = DeviceBuffer::from_slice(&stream, &[7_u32; 1000]).unwrap();
        let error = DeviceBuffer::<u8>::zeroed(&stream, 2 << 20).unwrap_err();
        assert!(error.is_out_of_memory() && !error.is_sticky(), "{error}");
        let text = error.to_string();
        assert!(text.contains("2097152 bytes"), "{text}");
        assert!(
            text.contains("CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
            "{text}"
        );
        assert!(text.contains("still usable"), "{text}");
        assert_eq!(fake.live(Kind::DeviceMemory), 1);
        // The rest of the memory can still be had, and given back, and had again.
        for _ in 0..3 {
            let rest = DeviceBuffer::<u8>::filled(&stream, 1_000_000, 3).unwrap();
            assert!(rest.to_vec().unwrap().iter().all(|&byte| byte == 3));
        }
        assert_eq!(kept.to_vec().unwrap(), [7; 1000]);
        drop((kept, stream, context));
        fake.assert_clean();
    }
}

#[test]
fn a_length_that_has_no_size_is_refused_before_the_driver_is_asked() {
    let fake = FakeDriver::open();
    let stream = Stream::new(&context(&fake).unwrap()).unwrap();
    let error = DeviceBuffer::<u64>::zeroed(&stream, usize::MAX / 4).unwrap_err();
    assert!(
        matches!(error, DriverError::TooLarge { size: 8, .. }),
        "{error}"
    );
}

#[test]
fn a_launch_that_the_driver_refuses_names_the_kernel() {
    let fake = FakeDriver::open();
    let context = context(&fake).unwrap();
    let stream = Stream::new(&context).unwrap();
    let module = Module::load(&context, PTX).unwrap();
    let options = KernelOptions::new().name("friendly name");
    let kernel = Kernel::load(&module, "increment", &options).unwrap();
    let buffer = DeviceBuffer::zeroed(&stream, 8).unwrap();
    fake.fail(
        Some("cuLaunchKernel"),
        1,
        CUresult::ERROR_LAUNCH_OUT_OF_RESOURCES.0,
    );
    let error = launch(&kernel, &stream, &buffer).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("launching kernel friendly name"), "{text}");
    assert!(
        text.contains("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"),
        "{text}"
    );
    // The refusal is over: the next launch works.
    launch(&kernel, &stream, &buffer).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [1; 8]);
}

#[test]
fn a_failed_copy_leaves_the_error_of_a_destructor_to_the_next_synchronization() {
    let fake = FakeDriver::open();
    let stream = Stream::new(&context(&fake).unwrap()).unwrap();
    let mut buffer = DeviceBuffer::from_slice(&stream, &[7_u32; 8]).unwrap();
    for down in [false, true] {
        let fails = |symbol| fake.fail(Some(symbol), 1, CUresult::ERROR_OUT_OF_MEMORY.0);
        let event = Event::new(stream.context()).unwrap();
        fails("cuEventDestroy_v2");
        drop(event);
        let error = match down {
            true => {
                fails("cuMemcpyDtoHAsync_v2");
                buffer.to_vec().unwrap_err()
            }
            false => {
                fails("cuMemcpyHtoDAsync_v2");
                buffer.copy_from_slice(&[0; 8]).unwrap_err()
            }
        };
        assert!(!error.to_string().contains("event"), "{error}");
        let error = stream.synchronize().unwrap_err();
        assert!(error.to_string().contains("destroying an event"), "{error}");
        stream.synchronize().unwrap();
    }
}

#[test]
fn an_error_in_a_running_kernel_names_it_wherever_it_shows() {
    type Shows = fn(&Stream, &DeviceBuffer<u32>) -> warptile_driver::Result<()>;
    let places: [(&str, Shows); 5] = [
        ("synchronize", |stream, _| stream.synchronize()),
        ("context", |stream, _| stream.context().synchronize()),
        ("query", |stream, _| {
            loop {
                if stream.query()? {
                    return Ok(());
                }
            }
        }),
        ("to_vec", |_, buffer| buffer.to_vec().map(drop)),
        ("another stream", |stream, _| {
            let _ = stream.context().synchronize();
            Stream::new(stream.context())?.synchronize()
        }),
    ];
    for (place, shows) in places {
        let fake = FakeDriver::open();
        let context = context(&fake).unwrap();
        let stream = Stream::new(&context).unwrap();
        let kernel = increment(&context).unwrap();
        let buffer = DeviceBuffer::zeroed(&stream, 8).unwrap();
        fake.fail_kernel(CUresult::ERROR_ILLEGAL_ADDRESS.0);
        launch(&kernel, &stream, &buffer).unwrap();
        let error = shows(&stream, &buffer).unwrap_err();
        assert!(error.is_sticky(), "{place}: {error}");
        let text = error.to_string();
        assert!(
            text.contains("kernel increment was running"),
            "{place}: {text}"
        );
        assert!(text.contains("Restart the process"), "{place}: {text}");
        // The context is lost, but everything is still given back.
        drop((buffer, kernel, stream, context));
        for kind in [
            Kind::Contexts,
            Kind::Streams,
            Kind::DeviceMemory,
            Kind::Events,
        ] {
            assert_eq!(fake.live(kind), 0, "{place}: {kind:?}");
        }
    }
}

#[test]
fn kernels_before_the_last_synchronization_are_not_suspects() {
    let fake = FakeDriver::open();
    let context = context(&fake).unwrap();
    let stream = Stream::new(&context).unwrap();
    let module = Module::load(&context, PTX).unwrap();
    let named =
        |name: &str| Kernel::load(&module, "increment", &KernelOptions::new().name(name)).unwrap();
    let buffer = DeviceBuffer::zeroed(&stream, 8).unwrap();
    launch(&named("innocent"), &stream, &buffer).unwrap();
    stream.synchronize().unwrap();
    fake.fail_kernel(CUresult::ERROR_LAUNCH_FAILED.0);
    launch(&named("first"), &stream, &buffer).unwrap();
    launch(&named("second"), &stream, &buffer).unwrap();
    let text = stream.synchronize().unwrap_err().to_string();
    assert!(
        text.contains("one of these kernels was running: first, second"),
        "{text}"
    );
    assert!(!text.contains("innocent"), "{text}");
}

#[test]
fn errors_of_destructors_are_reported_by_the_next_synchronization() {
    let fake = FakeDriver::open();
    let context = context(&fake).unwrap();
    let stream = Stream::new(&context).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
    fake.fail(Some("cuMemFreeAsync"), 1, CUresult::ERROR_UNKNOWN.0);
    drop(buffer);
    let error = stream.synchronize().unwrap_err();
    assert!(
        error.to_string().contains("freeing device memory"),
        "{error}"
    );
    stream.synchronize().unwrap();
}

#[test]
fn an_image_for_another_gpu_or_none_at_all_says_so() {
    let fake = FakeDriver::open();
    fake.set_compute_capability(7, 0);
    let context = context(&fake).unwrap();
    let error = Module::load(&context, PTX).unwrap_err();
    assert_eq!(error.code(), Some(CUresult::ERROR_NO_BINARY_FOR_GPU));
    assert!(
        error.to_string().contains("not compiled for this GPU"),
        "{error}"
    );

    let error = Module::load(&context, b".version 7.0 nonsense").unwrap_err();
    let DriverError::Module { log, .. } = &error else {
        panic!("unexpected: {error}");
    };
    assert!(log.contains("fake ptxas"), "{log}");
    assert!(error.to_string().contains("fake ptxas"), "{error}");

    for damaged in [
        &b""[..],
        b"\x7fELF cut off",
        b"text\0and more",
        b"\x50\xED\x55\xBA",
    ] {
        let error = Module::load(&context, damaged).unwrap_err();
        assert!(matches!(error, DriverError::BadImage { .. }), "{error}");
    }
    drop(context);
    fake.assert_clean();
}

#[test]
fn names_that_no_module_has_are_refused() {
    let fake = FakeDriver::open();
    let context = context(&fake).unwrap();
    let module = Module::load(&context, PTX).unwrap();
    let error = Kernel::<u64>::load(&module, "decrement", &KernelOptions::new()).unwrap_err();
    assert_eq!(error.code(), Some(CUresult::ERROR_NOT_FOUND));
    assert!(error.to_string().contains("kernel decrement"), "{error}");
    let error = Kernel::<u64>::load(&module, "incre\0ment", &KernelOptions::new()).unwrap_err();
    assert!(matches!(error, DriverError::BadName { .. }), "{error}");
    let error = module.global("nowhere").unwrap_err();
    assert!(error.to_string().contains("variable nowhere"), "{error}");
}

#[test]
fn an_error_code_without_a_name_keeps_its_number() {
    let fake = FakeDriver::open();
    let context = context(&fake).unwrap();
    fake.fail(Some("cuStreamCreateWithPriority"), 1, 54_321);
    let error = Stream::new(&context).unwrap_err();
    assert!(error.to_string().contains("error 54321"), "{error}");
}
