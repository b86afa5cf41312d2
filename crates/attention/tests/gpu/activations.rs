//! Real activations: an encoder layer's q, k and v, against float64 results computed outside this project.

use half::f16;
use safetensors::SafeTensors;
use warptile::spec::{Call, HostInputs, Scoring};
use warptile::{Attention, Backend, Element, Layout, Mask};
use warptile_check::{Expectation, repository_file};

fn values<T: bytemuck::Pod>(file: &SafeTensors<'_>, name: &str) -> Vec<T> {
    bytemuck::pod_collect_to_vec(file.tensor(name).unwrap().data())
}

fn compare(mask: Mask, suffix: &str) {
    let qkv = std::fs::read(repository_file("examples/minilm_qkv.safetensors")).unwrap();
    let qkv = SafeTensors::deserialize(&qkv).unwrap();
    let expected = std::fs::read(repository_file("examples/minilm_expected.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&expected).unwrap();
    let shape: [usize; 4] = qkv.tensor("q").unwrap().shape().try_into().unwrap();
    let [q, k, v] = ["q", "k", "v"].map(|name| values::<f16>(&qkv, name));
    let widen = |name: &str| -> Vec<f64> {
        values::<f32>(&expected, &format!("{name}{suffix}"))
            .into_iter()
            .map(f64::from)
            .collect()
    };

    let backend = Backend::cuda(0).unwrap();
    let [tq, tk, tv] = [&q, &k, &v].map(|data| backend.tensor(data, shape).unwrap());
    let output = Attention::new()
        .mask(mask)
        .forward(&tq, (&tk, &tv))
        .unwrap();

    let layout = Layout::bshd(shape);
    let call = Call::builder(&layout, &layout, &layout, f16::TYPE)
        .scoring(Scoring::new().mask(mask))
        .build()
        .unwrap();
    let expected = Expectation::new(&call, &HostInputs::new(&q, &k, &v))
        .unwrap()
        .with_out(widen("out"), Some(f32::TYPE))
        .with_lse(widen("lse"), Some(f32::TYPE));
    let out = expected.judge_out(&output.out.to_vec().unwrap());
    assert!(out.passed, "out {out} on {}", output.plan);
    let lse = expected.judge_lse(&output.lse.unwrap().to_vec().unwrap());
    assert!(lse.passed, "lse {lse}");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn full_attention_on_real_activations() {
    compare(Mask::none(), "");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn causal_attention_on_real_activations() {
    compare(Mask::causal(), "_causal");
}
