//! Activations of a real model, against outputs computed by another program.

use half::f16;
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use warptile::accept::{accept, accept_lse};
use warptile::{
    Element, Layout, Mask, Problem, ReferenceOutput, View, ViewMut, forward_cpu, reference,
    reference_rounded,
};

fn read(name: &str) -> Vec<u8> {
    let path = warptile::testing::repository_file(&format!("examples/{name}"));
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
    let inputs = SafeTensors::deserialize(&inputs).unwrap();
    let expected = SafeTensors::deserialize(&expected).unwrap();
    let layout = Layout::bshd([1, 301, 12, 32]);
    let [q, k, v] = ["q", "k", "v"].map(|name| tensor::<f16>(&inputs, name, Dtype::F16));
    let [q, k, v] = [&q, &k, &v].map(|data| View::new(&data[..], layout));
    let wide = |name: &str| -> Vec<f64> {
        let name = format!("{name}{suffix}");
        let values: Vec<f32> = tensor(&expected, &name, Dtype::F32);
        values.into_iter().map(f64::from).collect()
    };
    let expected = ReferenceOutput {
        out: wide("out"),
        lse: wide("lse"),
    };
    let problem = Problem::builder(&layout, &layout, &layout, f16::TYPE)
        .mask(mask)
        .build()
        .unwrap();

    // The file holds f64 results rounded to f32.
    let ours = reference(&problem, q, k, v, None).unwrap();
    for (ours, theirs) in [(&ours.out, &expected.out), (&ours.lse, &expected.lse)] {
        assert_eq!(ours.len(), theirs.len());
        for (a, b) in ours.iter().zip(theirs) {
            assert!((a - b).abs() <= 1e-7 * (1.0 + b.abs()), "{a} {b}");
        }
    }

    let rounded = reference_rounded(&problem, q, k, v, None).unwrap();
    let mut out = vec![f16::NAN; expected.out.len()];
    let mut lse = vec![f32::NAN; expected.lse.len()];
    let view = ViewMut::new(&mut out[..], layout);
    forward_cpu(&problem, q, k, v, None, view, Some(&mut lse)).unwrap();
    for verdict in [
        accept(&problem, &out, &expected, &rounded),
        accept_lse(&problem, &lse, &expected, &rounded),
    ] {
        assert!(verdict.passed, "{verdict}");
        assert!(
            verdict.bound < 1e-2,
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
