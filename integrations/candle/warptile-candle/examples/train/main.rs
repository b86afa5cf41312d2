//! Trains a small language model of bytes on this package's README, on the first GPU or on the CPU, and lets it go on with a text. The
//! same model then learns with attention by candle's own operations: the losses are equal within rounding.
//!
//! `cargo run --release --example train [STEPS]`, 200 unless it is given; without CUDA add `--no-default-features`.

use std::time::Instant;

use candle_core::{D, DType, Device, Result, Tensor};
use warptile_candle::flash_attn;

use model::{Size, Training, composed};

mod model;

const SIZE: Size = Size {
    layers: 2,
    heads: 4,
    head_size: 16,
    length: 64,
    batch: 8,
};

const TEXT: &str = include_str!("../../README.md");

/// In f32 on the CPU; on a GPU in bf16, for the kernels on tensor cores.
fn fused(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32) -> Result<Tensor> {
    let dtype = match q.device() {
        Device::Cpu => DType::F32,
        _ => DType::BF16,
    };
    let [q, k, v] = [q, k, v].map(|tensor| tensor.to_dtype(dtype));
    flash_attn(&q?, &k?, &v?, scale, true)?.to_dtype(DType::F32)
}

/// Goes on with a text by the likeliest byte, `count` times.
fn go_on(model: &Training, text: &str, count: usize, device: &Device) -> Result<String> {
    let mut text = text.as_bytes().to_vec();
    for _ in 0..count {
        let seen = &text[text.len().saturating_sub(SIZE.length)..];
        let seen = Tensor::from_iter(seen.iter().map(|&byte| u32::from(byte)), device)?;
        let logits = model.logits(&seen.unsqueeze(0)?)?;
        let likeliest = logits.argmax(D::Minus1)?.to_vec1::<u32>()?;
        text.extend(likeliest.last().map(|&byte| byte as u8));
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn main() -> Result<()> {
    let steps: usize = match std::env::args().nth(1).map(|steps| steps.parse()) {
        None => 200,
        Some(Ok(steps)) => steps,
        Some(Err(error)) => candle_core::bail!("STEPS: {error}"),
    };
    let device = Device::new_cuda(0).unwrap_or(Device::Cpu);
    let mut ours = Training::new(SIZE, 1, fused, &device)?;
    let mut candles = Training::new(SIZE, 1, composed, &device)?;
    let count: usize = ours.weights()?.iter().map(Vec::len).sum();
    println!("{count} weights on {:?}", device.location());
    println!("step  loss: warptile  candle");
    let begun = Instant::now();
    let mut losses = [0.0, 0.0];
    for step in 1..=steps {
        losses = [ours.step(TEXT.as_bytes())?, candles.step(TEXT.as_bytes())?];
        if step % 20 == 0 || step == steps {
            println!("{step:4}        {:8.3}{:8.3}", losses[0], losses[1]);
        }
    }
    println!("{:.1} s for both", begun.elapsed().as_secs_f32());
    println!("{:?}", go_on(&ours, "On a GPU ", 60, &device)?);
    match (losses[0] - losses[1]).abs() < 0.1 {
        true => Ok(()),
        false => candle_core::bail!("the losses differ"),
    }
}
