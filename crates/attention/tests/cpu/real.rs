//! Activations of a real model, against outputs computed by another program.

use half::f16;
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use warptile::cpu::forward_cpu;
use warptile::spec::{Call, HostInputs, HostOutputs, Scoring};
use warptile::{Element, Layout, Mask};
use warptile_check::Expectation;

fn read(name: &str) -> Vec<u8> {
    let path = warptile_check::repository_file(&format!("examples/{name}"));
    std::fs::read(path).unwrap()
}

fn tensor<T: Element>(file: &SafeTensors<'_>, name: &str, dtype: Dtype) -> Vec<T> {
    let tensor = file.tensor(name).unwrap();
    assert_eq!(tensor.dtype(), dtype);
    let mut elements = vec![T::from_f32(0.0); tensor.data().len() / size_of::<T>()];
    // The bytes in a file need not be aligned.
    bytemuck::cast_slice_mut(&mut elements).copy_from_slice(tensor.data());
    elements
}

/// Runs on the example and compares reference and CPU path with the expected `out` and `lse`, named with `suffix`.
fn minilm(mask: Mask, suffix: &str) {
    let (inputs, expected) = (
        read("minilm_qkv.safetensors"),
        read("minilm_expected.safetensors"),
    );
    let file = SafeTensors::deserialize(&inputs).unwrap();
    let expected = SafeTensors::deserialize(&expected).unwrap();
    let layout = Layout::bshd([1, 301, 12, 32]);
    let [q, k, v] = ["q", "k", "v"].map(|name| tensor::<f16>(&file, name, Dtype::F16));
    let inputs = HostInputs::new(&q, &k, &v);
    let wide = |name: &str| -> Vec<f64> {
        let name = format!("{name}{suffix}");
        let values: Vec<f32> = tensor(&expected, &name, Dtype::F32);
        values.into_iter().map(f64::from).collect()
    };
    let (out, lse) = (wide("out"), wide("lse"));
    let call = Call::builder(&layout, &layout, &layout, f16::TYPE)
        .scoring(Scoring::new().mask(mask))
        .build()
        .unwrap();

    // The file holds f64 results rounded to f32.
    let ours = Expectation::new(&call, &inputs).unwrap();
    for (ours, theirs) in [(ours.out(), &out), (ours.lse(), &lse)] {
        assert_eq!(ours.len(), theirs.len());
        for (a, b) in ours.iter().zip(theirs) {
            assert!((a - b).abs() <= 1e-7 * (1.0 + b.abs()), "{a} {b}");
        }
    }

    let expected = ours
        .with_out(out, Some(f32::TYPE))
        .with_lse(lse, Some(f32::TYPE));
    let mut out = vec![f16::NAN; expected.out().len()];
    let mut lse = vec![f32::NAN; expected.lse().len()];
    let outputs = HostOutputs::new(&mut out).lse(&mut lse);
    forward_cpu(&call, &inputs, outputs).unwrap();
    for (verdict, loosest) in [
        (expected.judge_out(&out), 1e-2),
        (expected.judge_lse(&lse), 1e-4),
    ] {
        assert!(verdict.passed, "{verdict}");
        assert!(
            verdict.worst.bound < loosest,
            "a bound this loose proves nothing: {verdict}"
        );
    }
}

#[test]
fn minilm_full() {
    minilm(Mask::none(), "");
}

#[test]
fn minilm_causal() {
    minilm(Mask::causal(), "_causal");
}
