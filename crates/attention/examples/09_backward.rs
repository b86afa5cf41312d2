//! Gradients: queries that are moved, step by step, until attention gives what it should.
//!
//! `cargo run --release -p warptile --example 09_backward`

use warptile::{Attention, Backend, Mask};

const SHAPE: [usize; 4] = [1, 64, 4, 32];
const STEPS: usize = 201;
const RATE: f32 = 300.0;

fn main() -> warptile::Result<()> {
    let backend = Backend::auto()?;
    let count: usize = SHAPE.iter().product();
    let values =
        |factor: f32| -> Vec<f32> { (0..count).map(|i| (i as f32 * factor).sin()).collect() };
    let (k, v) = (
        backend.tensor(&values(0.37), SHAPE)?,
        backend.tensor(&values(0.73), SHAPE)?,
    );
    let attention = Attention::new().mask(Mask::causal());
    // The output of other queries.
    let target = backend.tensor(&values(0.11), SHAPE)?;
    let target = attention.forward(&target, (&k, &v))?.out.to_vec()?;

    let mut queries = values(0.19);
    for step in 0..STEPS {
        let q = backend.tensor(&queries, SHAPE)?;
        let output = attention.forward(&q, (&k, &v))?;
        let out = output.out.to_vec()?;
        let errors: Vec<f32> = out.iter().zip(&target).map(|(out, y)| out - y).collect();
        let loss = errors.iter().map(|x| x * x).sum::<f32>() / count as f32;
        if step % 50 == 0 {
            println!("step {step:3}: the mean squared error is {loss:.6}");
        }
        // The gradient of the mean of the squares.
        let d_out: Vec<f32> = errors.iter().map(|x| 2.0 * x / count as f32).collect();
        let d_out = backend.tensor(&d_out, SHAPE)?;
        let gradients = attention.backward(&d_out, &q, (&k, &v), &output)?;
        for (q, gradient) in queries.iter_mut().zip(gradients.dq.to_vec()?) {
            *q -= RATE * gradient;
        }
    }
    Ok(())
}
