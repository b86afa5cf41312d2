//! Getting at the driver, and each way in which that fails.

use warptile_driver::sys::{LoadError, Version};
use warptile_driver::{DeviceAttribute, DeviceBuffer, Driver, DriverError, Stream};
use warptile_fake_cuda::FakeDriver;

use crate::{context, driver, increment, launch};

#[test]
fn no_driver_says_what_was_tried_and_what_to_do() {
    // SAFETY: the library does not exist, so no code of it runs.
    let error = unsafe { Driver::load_from("no/such/libcuda.so.1") }.unwrap_err();
    let DriverError::Load(LoadError::NotFound { tried, .. }) = &error else {
        panic!("unexpected: {error}");
    };
    assert_eq!(tried.len(), 1);
    let text = error.to_string();
    assert!(text.contains("no/such/libcuda.so.1"), "{text}");
    assert!(text.contains("Install NVIDIA's driver"), "{text}");
}

#[test]
fn a_driver_that_is_too_old_says_both_versions() {
    let fake = FakeDriver::open();
    fake.set_version(11_080);
    let error = driver(&fake).unwrap_err();
    assert!(
        matches!(
            &error,
            DriverError::Load(LoadError::TooOld {
                found: Version(11_080),
                required: Version(12_000),
                ..
            })
        ),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.contains("11.8") && text.contains("12.0") && text.contains("R525"),
        "{text}"
    );
}

#[test]
fn the_oldest_supported_driver_is_accepted() {
    let fake = FakeDriver::open();
    fake.set_version(12_000);
    let driver = driver(&fake).unwrap();
    assert_eq!(driver.version().to_string(), "12.0");
    assert_eq!(driver.library(), fake.path());
}

#[test]
fn the_toolkits_stub_is_called_a_stub() {
    let fake = FakeDriver::open();
    fake.set_stub();
    let error = driver(&fake).unwrap_err();
    assert!(
        matches!(&error, DriverError::Load(LoadError::Stub { .. })),
        "{error}"
    );
    assert!(error.to_string().contains("LD_LIBRARY_PATH"), "{error}");
}

#[test]
fn a_stub_that_knows_its_version_is_still_called_a_stub() {
    let fake = FakeDriver::open();
    fake.fail(Some("cuInit"), 1, 34);
    let error = driver(&fake).unwrap_err();
    assert!(
        matches!(&error, DriverError::Load(LoadError::Stub { .. })),
        "{error}"
    );
}

/// Renaming an export works on ELF and PE files, not on Mach-O's compressed export list.
#[cfg(not(target_os = "macos"))]
#[test]
fn a_missing_required_function_is_named() {
    // The last two came with CUDA 11.8 and 12.0, so that every driver that is new enough has them.
    for lacking in [
        "cuMemAllocFromPoolAsync",
        "cuLaunchKernelEx",
        "cuTensorMapEncodeTiled",
    ] {
        let fake = FakeDriver::open_without(&[lacking]);
        let error = driver(&fake).unwrap_err();
        assert!(
            matches!(
                &error,
                DriverError::Load(LoadError::MissingSymbol { symbol, .. }) if *symbol == lacking
            ),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.contains(lacking), "{text}");
        assert!(text.contains(&fake.path().display().to_string()), "{text}");
    }
}

#[cfg(not(target_os = "macos"))]
#[test]
fn a_library_that_is_no_driver_is_told_by_what_it_lacks() {
    let fake = FakeDriver::open_without(&["cuDriverGetVersion"]);
    let error = driver(&fake).unwrap_err();
    assert!(
        matches!(
            &error,
            DriverError::Load(LoadError::MissingSymbol {
                symbol: "cuDriverGetVersion",
                ..
            })
        ),
        "{error}"
    );
}

#[cfg(not(target_os = "macos"))]
#[test]
fn missing_optional_functions_only_cost_what_needs_them() {
    let optional = ["cuFuncGetParamInfo", "cuMemcpyBatchAsync"];
    let fake = FakeDriver::open_without(&optional);
    let context = context(&fake).unwrap();
    let stream = Stream::new(&context).unwrap();
    let kernel = increment(&context).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
    launch(&kernel, &stream, &buffer).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [1; 8]);
}

#[test]
fn no_device_is_an_error_of_its_own() {
    let fake = FakeDriver::open();
    fake.set_device_count(0);
    let error = driver(&fake).unwrap_err();
    assert!(matches!(error, DriverError::NoDevice), "{error}");
    assert!(
        error.to_string().contains("CUDA_VISIBLE_DEVICES"),
        "{error}"
    );
}

#[test]
fn a_driver_that_cannot_be_initialised_is_an_error_of_its_own() {
    let fake = FakeDriver::open();
    fake.fail(Some("cuInit"), 1, 803);
    let error = driver(&fake).unwrap_err();
    assert!(matches!(error, DriverError::Initialise(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), "{text}");
    assert!(text.contains("reboot"), "{text}");
}

#[test]
fn a_device_that_disappears_after_initialisation_is_no_device() {
    let fake = FakeDriver::open();
    let driver = driver(&fake).unwrap();
    fake.set_device_count(0);
    assert!(driver.devices().unwrap().is_empty());
    assert!(matches!(driver.device(0), Err(DriverError::NoDevice)));
}

#[test]
fn an_ordinal_past_the_last_device_says_how_many_there_are() {
    let fake = FakeDriver::open();
    fake.set_device_count(2);
    let driver = driver(&fake).unwrap();
    assert_eq!(driver.devices().unwrap().len(), 2);
    let error = driver.device(2).unwrap_err();
    assert!(
        matches!(
            error,
            DriverError::NoSuchDevice {
                ordinal: 2,
                count: 2
            }
        ),
        "{error}"
    );
}

#[test]
fn a_device_is_described() {
    let fake = FakeDriver::open();
    fake.set_compute_capability(8, 6);
    let device = driver(&fake).unwrap().device(0).unwrap();
    assert_eq!(device.name().unwrap(), "Fake GPU 0");
    assert_eq!(device.compute_capability().unwrap(), (8, 6));
    assert_eq!(device.multiprocessors().unwrap(), 132);
    assert_eq!(device.total_memory().unwrap(), 1 << 30);
    assert_eq!(device.pci_bus_id().unwrap(), "0000:00:00.0");
    assert_eq!(device.uuid().unwrap(), [0; 16]);
    for &attribute in DeviceAttribute::NAMED {
        device.attribute(attribute).unwrap();
    }
    let newer = device.attribute(DeviceAttribute(99_999)).unwrap_err();
    assert!(
        newer.to_string().contains("CUDA_ERROR_INVALID_VALUE"),
        "{newer}"
    );
}
