//! Attention over keys that are not in one place: each part by itself, then joined by their log-sum-exp.
//!
//! `cargo run --release -p warptile --example 05_merge`

use warptile::ops::merge;
use warptile::spec::LseBase;
use warptile::{Attention, Backend};

fn main() -> warptile::Result<()> {
    let backend = Backend::auto()?;
    let values = |len: usize| -> Vec<f32> { (0..len).map(|i| (i as f32).sin()).collect() };
    let q = backend.tensor(&values(8 * 4 * 64), [1, 8, 4, 64])?;
    let k = backend.tensor(&values(500 * 4 * 64), [1, 500, 4, 64])?;
    let attention = Attention::new();

    let at_once = attention.forward(&q, (&k, &k))?.out.to_vec()?;
    // A long prefix that many requests share, and the rest of one of them.
    let (prefix, rest) = (k.rows(0..384)?, k.rows(384..500)?);
    let a = attention.forward(&q, (&prefix, &prefix))?;
    let b = attention.forward(&q, (&rest, &rest))?;
    let (Some(lse_a), Some(lse_b)) = (&a.lse, &b.lse) else {
        unreachable!("the lse was not turned off")
    };
    let (merged, _lse) = merge(&[(&a.out, lse_a), (&b.out, lse_b)], LseBase::Natural)?;

    let merged = merged.to_vec()?;
    let differences = merged.iter().zip(&at_once).map(|(a, b)| (a - b).abs());
    let largest = differences.fold(0.0, f32::max);
    println!("merged and at once differ by at most {largest:e}");
    assert!(largest < 1e-5);
    Ok(())
}
