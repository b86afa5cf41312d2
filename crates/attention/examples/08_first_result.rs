//! How long a program takes to its first result, and what takes it: the driver and the device, tensors, the kernel.
//!
//! `cargo run --release -p warptile --example 08_first_result`
//!
//! `cuda:N` as an argument asks for that GPU instead of the fastest one. Milliseconds count from the beginning of `main`.

use std::time::Instant;

use warptile::half::f16;
use warptile::{Attention, Backend};

const SHAPE: [usize; 4] = [2, 512, 8, 64]; // batch, length, heads, head size

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let begin = Instant::now();
    let after = |what: &str| {
        let milliseconds = begin.elapsed().as_secs_f64() * 1e3;
        println!("{milliseconds:8.2} ms  {what}");
    };
    let backend = match std::env::args().nth(1) {
        Some(device) => Backend::cuda(
            device
                .strip_prefix("cuda:")
                .and_then(|number| number.parse().ok())
                .ok_or_else(|| format!("the argument is cuda:N, not {device}"))?,
        )?,
        None => Backend::auto()?,
    };
    after(&format!("device: {}", backend.device_name()));

    let host = vec![f16::from_f32(0.5); SHAPE.iter().product()];
    let (q, k, v) = (
        backend.tensor(&host, SHAPE)?,
        backend.tensor(&host, SHAPE)?,
        backend.tensor(&host, SHAPE)?,
    );
    after("tensors");

    let output = Attention::new().forward(&q, (&k, &v))?;
    let out = output.out.to_vec()?;
    after(&format!("result: by {}", output.plan.kernel_name()));

    // All values are the same, so their mean is, too.
    assert!(out.iter().all(|&value| value == f16::from_f32(0.5)));
    Ok(())
}
