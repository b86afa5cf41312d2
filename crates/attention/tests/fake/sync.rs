//! `WARPTILE_SYNC=1`: a launch is waited for, and its error names the kernel that failed.

use half::f16;
use warptile::gpu::Session;
use warptile::spec::Call;
use warptile::{Attention, ElementType, Layout};
use warptile_driver::sys::CUresult;
use warptile_driver::{Graph, Stream};
use warptile_fake_cuda::FakeDriver;

use crate::{Buffers, MAPPED, PLAIN, gpu, kernel, ones};

const SYNC: &str = "WARPTILE_SYNC";

/// Runs the test `name` of this module again, in a process of its own with the variable; true there.
fn in_a_process_with_the_variable(name: &str) -> bool {
    if std::env::var_os(SYNC).is_some() {
        return true;
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([&format!("sync::{name}"), "--exact"])
        .env(SYNC, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
    false
}

fn call() -> Call {
    let tensor = Layout::bshd([1, 64, 2, 64]);
    Call::builder(&tensor, &tensor, &tensor, ElementType::F16)
        .build()
        .unwrap()
}

#[test]
fn the_kernel_that_fails_is_named_by_its_own_launch() {
    if !in_a_process_with_the_variable("the_kernel_that_fails_is_named_by_its_own_launch") {
        return;
    }
    for name in [PLAIN, MAPPED] {
        let fake = FakeDriver::open();
        let (backend, x) = ones(&fake, [1, 64, 2, 64]);
        let forward = |name| Attention::new().choice(kernel(name)).forward(&x, (&x, &x));
        let waits = || fake.calls_of("cuStreamSynchronize");
        forward(PLAIN).unwrap();
        let before = waits();
        // Kept, as its memory is freed in the order of the stream.
        let output = forward(name).unwrap();
        assert!(waits() > before, "{name}");
        assert_eq!(fake.pending(), 0, "{name}");
        drop(output);
        fake.fail_kernel(CUresult::ERROR_ILLEGAL_ADDRESS.0);
        let error = forward(name).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
        let other = if name == PLAIN { MAPPED } else { PLAIN };
        assert!(!error.contains(other), "{error}");
        drop((backend, x));
    }
}

#[test]
fn so_is_one_on_somebody_elses_stream() {
    if !in_a_process_with_the_variable("so_is_one_on_somebody_elses_stream") {
        return;
    }
    let fake = FakeDriver::open();
    let gpu = gpu(&fake);
    let stream = Stream::new(gpu.context()).unwrap();
    let call = call();
    let prepared = gpu.prepare(call.problem(), &kernel(PLAIN)).unwrap();
    let buffers = Buffers::new(&stream, &call);
    let session = Session::new(&gpu, stream.raw()).unwrap();
    let launch = || {
        let _current = gpu.context().enter().unwrap();
        // SAFETY: the stand-in runs no kernel; the context is current.
        unsafe { session.launch(&prepared, &call, &buffers.addresses()) }
    };
    launch().unwrap();
    assert_eq!(fake.pending(), 0);
    fake.fail_kernel(CUresult::ERROR_ILLEGAL_ADDRESS.0);
    let error = launch().unwrap_err().to_string();
    assert!(error.contains(PLAIN), "{error}");
}

#[test]
fn a_capture_is_not_waited_for() {
    if !in_a_process_with_the_variable("a_capture_is_not_waited_for") {
        return;
    }
    let fake = FakeDriver::open();
    let gpu = gpu(&fake);
    let stream = Stream::new(gpu.context()).unwrap();
    let call = call();
    let prepared = gpu.prepare(call.problem(), &kernel(PLAIN)).unwrap();
    let mut buffers = Buffers::new(&stream, &call);
    prepared
        .launch(&stream, &call, &buffers.bindings())
        .unwrap();
    let graph = Graph::capture(&stream, |stream| {
        prepared.launch(stream, &call, &buffers.bindings())?;
        Ok::<_, warptile::Error>(())
    })
    .unwrap();
    graph.launch(&stream).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(fake.launches().len(), 2);
    assert_eq!(fake.violations(), Vec::<String>::new());
}

/// Without the variable nothing waits: the error comes with the next wait.
#[test]
fn without_the_variable_a_launch_is_queued() {
    if std::env::var_os(SYNC).is_some() {
        return;
    }
    let fake = FakeDriver::open();
    let (backend, x) = ones(&fake, [1, 64, 2, 64]);
    let forward = || Attention::new().choice(kernel(PLAIN)).forward(&x, (&x, &x));
    forward().unwrap();
    backend.synchronize().unwrap();
    fake.fail_kernel(CUresult::ERROR_ILLEGAL_ADDRESS.0);
    let output: warptile::Output<f16> = forward().unwrap();
    let error = backend.synchronize().unwrap_err().to_string();
    assert!(error.contains(PLAIN), "{error}");
    drop(output);
}
