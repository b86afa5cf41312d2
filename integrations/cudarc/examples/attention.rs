//! Attention over cudarc's memory: which kernel computes it, and how far the result is from that of the CPU.
//!
//! `cargo run --example attention` on a machine with an NVIDIA GPU. Neither nvcc nor a toolkit is needed to build it.

use std::error::Error;

use half::f16;
use warptile_cudarc::Session;
use warptile_cudarc::cudarc::driver::CudaContext;
use warptile_cudarc::warptile::cpu::forward_cpu;
use warptile_cudarc::warptile::plan::Choice;
use warptile_cudarc::warptile::spec::{Call, HostInputs, HostOutputs, Scoring};
use warptile_cudarc::warptile::{ElementType, Layout, Mask, driver};

fn main() -> Result<(), Box<dyn Error>> {
    // cudarc panics where there is no driver; this says why there is none.
    driver::Driver::load()?;
    let stream = CudaContext::new(0)?.default_stream();
    let session = Session::new(&stream)?;

    let (q, kv) = (Layout::bshd([2, 128, 8, 64]), Layout::bshd([2, 300, 2, 64]));
    let numbers = |count: usize, factor: f32| -> Vec<f16> {
        (0..count)
            .map(|i| f16::from_f32((i as f32 * factor).sin()))
            .collect()
    };
    let (queries, keys) = (
        numbers(2 * 128 * 8 * 64, 0.7),
        numbers(2 * 300 * 2 * 64, 0.3),
    );
    let scoring = Scoring::new().mask(Mask::causal());

    let (gpu_queries, gpu_keys) = (stream.clone_htod(&queries)?, stream.clone_htod(&keys)?);
    let mut gpu_out = stream.alloc_zeros::<f16>(queries.len())?;
    session.forward(
        scoring,
        [
            (gpu_queries.as_view(), q),
            (gpu_keys.as_view(), kv),
            (gpu_keys.as_view(), kv),
        ],
        (gpu_out.as_view_mut(), q),
        None,
    )?;
    let out = stream.clone_dtoh(&gpu_out)?;

    let call = Call::builder(&q, &kv, &kv, ElementType::F16)
        .scoring(scoring)
        .want_lse(false)
        .build()?;
    let plan = session.gpu().plan(call.problem(), &Choice::Best)?;
    println!("{} on {}", plan.kernel_name(), session.gpu().profile().name);
    let mut expected = vec![f16::ZERO; queries.len()];
    let inputs = HostInputs::new(&queries, &keys, &keys);
    forward_cpu(&call, &inputs, HostOutputs::new(&mut expected))?;
    let differences = out
        .iter()
        .zip(&expected)
        .map(|(a, b)| (a.to_f32() - b.to_f32()).abs());
    let largest = differences.fold(0.0, f32::max);
    println!("largest difference from the CPU: {largest:.1e}");
    // A few units in the last place of numbers below 1.
    match largest < 4e-3 {
        true => Ok(()),
        false => Err("the results differ".into()),
    }
}
