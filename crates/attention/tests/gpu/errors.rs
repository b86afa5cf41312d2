//! User errors on a real device: a clear error, nothing leaked, the context still usable. The checks that need no GPU are in
//! tests/fake.

use half::f16;
use warptile::plan::Choice;
use warptile::{Attention, Backend, Error};

use crate::harness::{assert_passes, case, gpu};

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn an_unknown_kernel_and_one_that_does_not_fit_are_told_apart() {
    let backend = Backend::cuda(0).unwrap();
    let tensor = backend
        .tensor(&vec![f16::ONE; 64 * 2 * 128], [1, 64, 2, 128])
        .unwrap();
    let run = |name: &str| {
        Attention::new()
            .choice(Choice::Kernel(name.to_owned()))
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
