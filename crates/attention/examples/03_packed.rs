//! Sequences of different lengths, packed one after the other without padding.
//!
//! `cargo run --release -p warptile --example 03_packed`

use warptile::{Attention, Backend, Keys, Mask, Queries};

const HEADS: usize = 4;
const HEAD_DIM: usize = 64;

fn main() -> warptile::Result<()> {
    let backend = Backend::auto()?;
    let offsets = [0, 17, 18, 130]; // sequences of 17, 1 and 112 rows
    let rows = 130;
    let host: Vec<f32> = (0..rows * HEADS * HEAD_DIM)
        .map(|i| (i as f32).sin())
        .collect();
    let tensor = backend.tensor(&host, [1, rows, HEADS, HEAD_DIM])?;

    let attention = Attention::new().mask(Mask::causal());
    let queries = Queries::new(&tensor).packed(&offsets);
    let keys = Keys::new(&tensor, &tensor).packed(&offsets);
    let packed = attention.forward(queries, keys)?.out;

    // Runs the sequences one at a time: `rows` gives a part without a copy.
    for pair in offsets.windows(2) {
        let range = pair[0] as usize..pair[1] as usize;
        let alone = tensor.rows(range.clone())?;
        let alone = attention.forward(&alone, (&alone, &alone))?.out.to_vec()?;
        let packed = packed.rows(range)?.to_vec()?;
        let differences = packed.iter().zip(&alone).map(|(a, b)| (a - b).abs());
        let largest = differences.fold(0.0, f32::max);
        println!(
            "{} rows: the largest difference is {largest:e}",
            pair[1] - pair[0]
        );
        assert!(largest < 1e-5);
    }
    Ok(())
}
