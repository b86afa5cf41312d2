//! Launches on a stream of one's own, into tensors that stay, and in a CUDA graph. Without an NVIDIA driver it says so and ends.
//!
//! `cargo run --release -p warptile --example 07_own_stream`

use warptile::driver::{Context, Driver, Graph, Stream};
use warptile::half::f16;
use warptile::{Attention, Backend, Error, Mask};

fn main() -> warptile::Result<()> {
    let driver = match Driver::load() {
        Ok(driver) => driver,
        Err(error) => {
            println!("this example needs a GPU: {error}");
            return Ok(());
        }
    };
    let stream = Stream::new(&Context::new(&driver.device(0)?)?)?;
    let backend = Backend::on_stream(&stream)?;
    let shape = [2, 512, 8, 64];
    let host: Vec<f16> = (0..2 * 512 * 8 * 64)
        .map(|i| f16::from_f32((i as f32).sin()))
        .collect();
    let mut q = backend.tensor(&host, shape)?;
    let (k, v) = (backend.tensor(&host, shape)?, backend.tensor(&host, shape)?);
    let mut out = backend.tensor(&host, shape)?;

    // The first call loads the kernel. After it, a call allocates nothing and may be captured.
    let attention = Attention::new().mask(Mask::causal());
    attention.forward_into(&q, (&k, &v), &mut out, None)?;
    let graph = Graph::capture::<Error>(&stream, |_| {
        attention.forward_into(&q, (&k, &v), &mut out, None)?;
        Ok(())
    })?;
    for step in 1..=3 {
        let queries: Vec<f16> = host
            .iter()
            .map(|x| *x * f16::from_f32(step as f32))
            .collect();
        q.copy_from_slice(&queries)?; // at the same address
        graph.launch(&stream)?;
        println!("step {step}: {:?}", &out.to_vec()?[..4]);
    }
    Ok(())
}
