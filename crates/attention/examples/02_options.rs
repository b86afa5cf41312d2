//! Masks, softcap, ALiBi slopes and attention sinks; grouped heads and the log-sum-exp.
//!
//! `cargo run --release -p warptile --example 02_options`

use warptile::{Attention, Backend, Mask};

fn main() -> warptile::Result<()> {
    let backend = Backend::auto()?;
    let values = |len: usize| -> Vec<f32> { (0..len).map(|i| (i as f32 * 0.37).sin()).collect() };
    // 8 heads of queries share 2 heads of keys and values.
    let q = backend.tensor(&values(100 * 8 * 32), [1, 100, 8, 32])?;
    let k = backend.tensor(&values(300 * 2 * 32), [1, 300, 2, 32])?;
    let v = backend.tensor(&values(300 * 2 * 32), [1, 300, 2, 32])?;

    let slopes: Vec<f32> = (1..=8).map(|head| 0.5_f32.powi(head)).collect();
    let options = [
        ("no mask", Attention::new()),
        ("causal", Attention::new().mask(Mask::causal())),
        // Each query sees 63 keys before it and itself.
        ("window", Attention::new().mask(Mask::window(63, 0))),
        ("softcap", Attention::new().softcap(30.0)),
        ("ALiBi", Attention::new().alibi_slopes(&slopes)),
        ("sinks", Attention::new().sinks(&[0.5; 8])),
    ];
    for (name, attention) in options {
        let output = attention.forward(&q, (&k, &v))?;
        let lse = output.lse.expect("it was not turned off").to_vec()?;
        println!(
            "{name:8} the log-sum-exp of the first row is {:7.4}",
            lse[0]
        );
    }
    Ok(())
}
