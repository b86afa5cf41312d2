//! Trains a small language model of bytes on this package's README, on the first GPU or on the CPU, and lets it go on with a text. The
//! same model learns with attention by candle's own operations: the losses are equal within rounding. On a GPU both learn in bf16 as well,
//! where losses are apart by more.
//!
//! `cargo run --release --example train [STEPS]`, 200 unless it is given; without CUDA add `--no-default-features`.

use std::time::Instant;

use candle_core::{D, DType, Device, Result, Tensor};
use warptile_candle::flash_attn;

use model::{Attend, Size, Training, composed};

mod model;

const SIZE: Size = Size {
    layers: 2,
    heads: 4,
    head_size: 16,
    length: 64,
    batch: 8,
};

const TEXT: &str = include_str!("../../README.md");

fn fused(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32) -> Result<Tensor> {
    flash_attn(q, k, v, scale, true)
}

/// Attention in bf16 of a model in f32: for the kernels on tensor cores.
fn in_bf16(attend: Attend, [q, k, v]: [&Tensor; 3], scale: f32) -> Result<Tensor> {
    let [q, k, v] = [q, k, v].map(|tensor| tensor.to_dtype(DType::BF16));
    attend(&q?, &k?, &v?, scale)?.to_dtype(DType::F32)
}

fn fused_in_bf16(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32) -> Result<Tensor> {
    in_bf16(fused, [q, k, v], scale)
}

fn composed_in_bf16(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32) -> Result<Tensor> {
    in_bf16(composed, [q, k, v], scale)
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
    let mut contestants: Vec<(&str, Attend)> = vec![("warptile", fused), ("candle", composed)];
    if device.is_cuda() {
        contestants.extend([
            ("warptile, bf16", fused_in_bf16 as Attend),
            ("candle, bf16", composed_in_bf16),
        ]);
    }
    let mut models = { contestants.iter() }
        .map(|(_, attend)| Training::new(SIZE, 1, *attend, &device))
        .collect::<Result<Vec<_>>>()?;
    let count: usize = models[0].weights()?.iter().map(Vec::len).sum();
    println!("{count} weights on {:?}", device.location());
    let names: Vec<_> = contestants
        .iter()
        .map(|(name, _)| format!("{name:>16}"))
        .collect();
    println!("step  loss:{}", names.concat());
    let begun = Instant::now();
    let mut losses = Vec::new();
    for step in 1..=steps {
        let learn = |model: &mut Training| model.step(TEXT.as_bytes());
        losses = models.iter_mut().map(learn).collect::<Result<Vec<f32>>>()?;
        if step % 20 == 0 || step == steps {
            let losses: Vec<_> = losses.iter().map(|loss| format!("{loss:16.4}")).collect();
            println!("{step:4}       {}", losses.concat());
        }
    }
    println!("{:.1} s for all", begun.elapsed().as_secs_f32());
    println!("{:?}", go_on(&models[0], "On a GPU ", 60, &device)?);
    // Those in bf16 round otherwise, and go ways of their own.
    match losses.len() < 2 || (losses[0] - losses[1]).abs() < 0.1 {
        true => Ok(()),
        false => candle_core::bail!("the losses differ"),
    }
}
