//! Attention over random tensors, on the first GPU or on the CPU: by a function of candle-flash-attn, and by candle's own operations.

use candle_core::{D, DType, Device, Result, Tensor};
use warptile_candle::{Attention, flash_attn};

fn main() -> Result<()> {
    let device = Device::new_cuda(0).unwrap_or(Device::Cpu);
    let (batch, length, heads, head_size) = (2, 128, 8, 64);
    let scale = 1.0 / (head_size as f32).sqrt();
    let random = || Tensor::randn(0_f32, 1.0, (batch, length, heads, head_size), &device);
    let (q, k, v) = (random()?, random()?, random()?);

    let out = flash_attn(&q, &k, &v, scale, false)?;
    println!(
        "flash_attn: {:?} {:?} on {:?}",
        out.shape(),
        out.dtype(),
        device.location()
    );

    let (causal, lse) = Attention::new(scale)
        .causal()
        .forward_with_lse(&q, &k, &v)?;
    println!(
        "causal: {:?}, with a log-sum-exp of {:?}",
        causal.shape(),
        lse.shape()
    );

    // As above, with a matrix of scores for every head.
    let [q, k, v] = [&q, &k, &v].map(|tensor| tensor.transpose(1, 2)?.contiguous());
    let scores = (q?.matmul(&k?.t()?)? * f64::from(scale))?;
    let weights = candle_nn::ops::softmax(&scores, D::Minus1)?;
    let expected = weights.matmul(&v?)?.transpose(1, 2)?;
    let difference = (out - expected)?
        .abs()?
        .to_dtype(DType::F64)?
        .flatten_all()?
        .max(0)?
        .to_scalar::<f64>()?;
    println!("largest difference from matmul and softmax: {difference:.1e}");
    match difference < 1e-4 {
        true => Ok(()),
        false => candle_core::bail!("the results differ"),
    }
}
