//! The effects of a kernel that faults, on a real GPU. It loses the process's context for good, so this is one test
//! in an executable of its own.

#[path = "common/device.rs"]
mod device;

use warptile_driver::{DeviceBuffer, Kernel, KernelOptions, LaunchConfig, Module, Stream};

use device::first_context;

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn an_illegal_address_is_reported_with_the_kernels_name_and_drops_are_safe() {
    let context = first_context();
    let stream = Stream::new(&context).unwrap();
    let module = Module::load(&context, include_bytes!("kernels.ptx")).unwrap();
    let options = KernelOptions::new().name("culprit");
    let kernel = Kernel::<[u64; 2]>::load(&module, "increment", &options).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 4).unwrap();
    let config = LaunchConfig::new([1, 1, 1], [32, 1, 1]);
    // SAFETY: none: the address is no one's, which is what is tested. The device faults and the
    // driver ends the context; host memory is not involved.
    unsafe { kernel.launch(&stream, &config, &[0x10, 32]) }.unwrap();
    let error = stream.synchronize().unwrap_err();
    assert!(error.is_sticky(), "{error}");
    assert!(
        error.to_string().contains("kernel culprit was running"),
        "{error}"
    );
    let later = buffer.to_vec().unwrap_err();
    assert!(later.is_sticky(), "{later}");
    drop((buffer, kernel, module, stream, context));
}
