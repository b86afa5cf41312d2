//! A step of decoding: one query for each sequence, on keys and values in pages.
//!
//! `cargo run --release -p warptile --example 04_pages`. A `KvCache` manages such pages: see the example `decoder`.

use warptile::half::f16;
use warptile::{Attention, Backend, Keys};

fn main() -> warptile::Result<()> {
    let backend = Backend::auto()?;
    let values =
        |len: usize| -> Vec<f16> { (0..len).map(|i| f16::from_f32((i as f32).cos())).collect() };
    let q = backend.tensor(&values(2 * 8 * 64), [2, 1, 8, 64])?;
    // 6 pages of 16 rows, for all sequences.
    let shape = [6, 16, 2, 64];
    let k = backend.tensor(&values(shape.iter().product()), shape)?;
    let v = backend.tensor(&values(shape.iter().product()), shape)?;

    // Sequence 0 has 20 keys, in pages 5 and 0; sequence 1 has 7, in page 3. What comes after a sequence's last page is never read.
    let table = [5_u32, 0, 3, 0];
    let keys = Keys::paged(&k, &v, &table, [2, 2]).lengths(&[20, 7]);
    let output = Attention::new().forward(&q, keys)?;
    println!("{:?} by {}", output.out, output.plan.kernel_name());
    Ok(())
}
