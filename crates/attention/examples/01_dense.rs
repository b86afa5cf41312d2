//! The smallest program: attention over dense tensors, on the fastest GPU or on the CPU.
//!
//! `cargo run --release -p warptile --example 01_dense`

use warptile::half::f16;
use warptile::{Attention, Backend, Mask};

fn main() -> warptile::Result<()> {
    let backend = Backend::auto()?; // the fastest GPU, else the CPU
    let shape = [2, 128, 8, 64]; // batch, length, heads, head size
    let host: Vec<f16> = (0..2 * 128 * 8 * 64)
        .map(|i| f16::from_f32((i as f32).sin()))
        .collect();
    let (q, k, v) = (
        backend.tensor(&host, shape)?,
        backend.tensor(&host, shape)?,
        backend.tensor(&host, shape)?,
    );

    let output = Attention::new()
        .mask(Mask::causal())
        .forward(&q, (&k, &v))?;
    println!("{:?} by {}", output.out, output.plan.kernel_name());

    // The first query of a causal mask sees only the first key, so its output is that key's value.
    let out = output.out.to_vec()?;
    assert_eq!(out[..64], host[..64]);
    Ok(())
}
