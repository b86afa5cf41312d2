//! What a user can do wrong, and what a device can run out of: a clear error, nothing leaked, the context still usable.

use half::f16;
use warptile::gpu::{Bindings, Prepared};
use warptile::{Attention, Backend, Call, Choice, Error};
use warptile_check::Case;
use warptile_driver::{DeviceBuffer, Stream};

use crate::harness::{assert_passes, case, gpu};

fn plain() -> Case {
    case("b1 h2 q64 k64 d64 f16 seed=1")
}

/// The plain case, prepared.
fn prepared() -> (Call, Prepared) {
    let call = plain().call();
    let prepared = gpu().prepare(call.problem(), &Choice::Best).unwrap();
    (call, prepared)
}

/// Launches with buffers of the given lengths and gives the error's text.
fn launch_with(lengths: [usize; 5]) -> String {
    let stream = Stream::new(gpu().stream().context()).unwrap();
    let (call, prepared) = prepared();
    let [q, k, v] = [0, 1, 2].map(|i| DeviceBuffer::<f16>::zeroed(&stream, lengths[i]).unwrap());
    let mut out = DeviceBuffer::<f16>::zeroed(&stream, lengths[3]).unwrap();
    let mut lse = DeviceBuffer::<f32>::zeroed(&stream, lengths[4]).unwrap();
    let bindings = Bindings::new(q.as_slice(), k.as_slice(), v.as_slice(), out.as_slice_mut())
        .lse(lse.as_slice_mut());
    prepared
        .launch(&stream, &call, &bindings)
        .map_or_else(|error| error.to_string(), |()| "launched".to_owned())
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_buffer_smaller_than_its_shape_is_named() {
    let full = [8192, 8192, 8192, 8192, 128];
    assert_eq!(launch_with(full), "launched");
    for (index, argument) in ["q", "k", "v", "out", "lse"].into_iter().enumerate() {
        let mut lengths = full;
        lengths[index] -= 1;
        let text = launch_with(lengths);
        assert!(
            text.starts_with(&format!("{argument} needs a buffer of")),
            "{text}"
        );
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_missing_lse_and_a_wrong_element_type_are_named() {
    let stream = gpu().stream();
    let (call, prepared) = prepared();
    let input = DeviceBuffer::<f16>::zeroed(stream, 8192).unwrap();
    let mut out = DeviceBuffer::<f16>::zeroed(stream, 8192).unwrap();
    let without_lse = Bindings::new(
        input.as_slice(),
        input.as_slice(),
        input.as_slice(),
        out.as_slice_mut(),
    );
    let error = prepared
        .launch(stream, &call, &without_lse)
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("lse is missing"), "{error}");

    let input = DeviceBuffer::<f32>::zeroed(stream, 8192).unwrap();
    let mut out = DeviceBuffer::<f32>::zeroed(stream, 8192).unwrap();
    let wrong_type = Bindings::new(
        input.as_slice(),
        input.as_slice(),
        input.as_slice(),
        out.as_slice_mut(),
    );
    assert!(matches!(
        prepared.launch(stream, &call, &wrong_type),
        Err(Error::ElementMismatch { .. })
    ));
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn an_output_that_overlaps_an_input_is_refused() {
    let stream = gpu().stream();
    let (call, prepared) = prepared();
    let memory = std::sync::Arc::new(DeviceBuffer::<f16>::zeroed(stream, 4 * 8192).unwrap());
    let mut lse = DeviceBuffer::<f32>::zeroed(stream, 128).unwrap();
    let part = |start: usize| {
        // SAFETY: the address and 8192 elements from it lie in `memory`, which the owner keeps alive.
        unsafe {
            DeviceBuffer::<f16>::borrow(
                stream,
                memory.pointer() + 2 * start as u64,
                8192,
                memory.clone(),
            )
        }
        .unwrap()
    };
    let (q, k, v, mut out) = (part(0), part(8192), part(16384), part(16384 + 8000));
    let arguments = Bindings::new(q.as_slice(), k.as_slice(), v.as_slice(), out.as_slice_mut())
        .lse(lse.as_slice_mut());
    assert!(matches!(
        prepared.launch(stream, &call, &arguments),
        Err(Error::OutputOverlaps {
            argument: "out",
            ..
        })
    ));
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn an_unknown_kernel_and_one_that_does_not_fit_are_told_apart() {
    let backend = Backend::cuda(0).unwrap();
    let tensor = backend
        .tensor(&vec![f16::ONE; 64 * 2 * 128], [1, 64, 2, 128])
        .unwrap();
    let run = |name: &str| {
        Attention::new()
            .choice(name.parse::<Choice>().unwrap())
            .forward(&tensor, (&tensor, &tensor))
            .map(|_| ())
            .unwrap_err()
    };
    assert!(matches!(run("scalar_d64"), Error::UnknownName { .. }));
    let too_narrow = run("scalar_d64_32x64_w4_s2").to_string();
    assert!(
        too_narrow.contains("its tiles hold head sizes up to 64"),
        "{too_narrow}"
    );
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn tensors_of_different_backends_do_not_mix() {
    let (gpu, cpu) = (Backend::cuda(0).unwrap(), Backend::cpu());
    let data = vec![1.0_f32; 64];
    let on_gpu = gpu.tensor(&data, [1, 4, 2, 8]).unwrap();
    let on_cpu = cpu.tensor(&data, [1, 4, 2, 8]).unwrap();
    let error = Attention::new()
        .forward(&on_gpu, (&on_gpu, &on_cpu))
        .map(|_| ())
        .unwrap_err();
    assert!(
        matches!(error, Error::DeviceMismatch { argument: "v", .. }),
        "{error}"
    );
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn dropping_everything_right_after_the_launch_is_sound() {
    let case = case("b2 h8 q512 k512 d64 f16 seed=2");
    let inputs = case.inputs::<f16>();
    let plan = case.plan(gpu(), &Choice::Best).unwrap();
    for _ in 0..100 {
        let mut on_gpu = case.upload(&inputs, gpu(), &plan).unwrap();
        on_gpu.launch().unwrap();
    }
    gpu().stream().context().synchronize().unwrap();
    assert_passes(&case);
}
