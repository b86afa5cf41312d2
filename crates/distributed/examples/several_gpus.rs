//! Measures several GPUs against the first: causal bf16 attention of 32 query heads and 8 key/value heads of size 128. The command line has
//! the number of GPUs, then lengths; each length gives a JSON row. Each time is that of calls back to back, per call.
//!
//! ```sh
//! cargo run --release -p warptile-distributed --example several_gpus 2 16384 65536
//! ```

use std::time::{Duration, Instant};

use warptile::half::bf16;
use warptile::{Attention, Backend, Mask, Tensor};
use warptile_distributed::{Expected, Group, Sharding};

const HEADS: usize = 32;
const KV_HEADS: usize = 8;
const DIM: usize = 128;
const LIMIT: Duration = Duration::from_secs(60);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let ranks: u32 = arguments.next().unwrap_or("2".to_owned()).parse()?;
    let group = Group::local(
        (0..ranks)
            .map(Backend::cuda)
            .collect::<warptile::Result<Vec<_>>>()?,
    )?;
    for len in arguments {
        println!("{}", row(&group, len.parse()?)?);
    }
    Ok(())
}

fn row(group: &Group, len: usize) -> Result<String> {
    let attention = Attention::new().mask(Mask::causal()).without_lse();
    let data = |heads: usize, seed: usize| -> Vec<bf16> {
        let value = |i: usize| {
            bf16::from_f32(
                ((i + seed).wrapping_mul(2_654_435_761) >> 7 & 0xFFFF) as f32 / 32768.0 - 1.0,
            )
        };
        (0..len * heads * DIM).map(value).collect()
    };
    let (q, k, v) = (data(HEADS, 1), data(KV_HEADS, 2), data(KV_HEADS, 3));

    let backend = &group.backends()[0];
    let on_one = |data: &[bf16], heads| backend.tensor(data, [1, len, heads, DIM]);
    let (one_q, one_k, one_v) = (
        on_one(&q, HEADS)?,
        on_one(&k, KV_HEADS)?,
        on_one(&v, KV_HEADS)?,
    );
    let one = attention.forward(&one_q, (&one_k, &one_v))?.out.to_vec()?;
    let calls = (2_usize << 36).div_ceil(len * len).clamp(3, 200);
    let one_us = median(
        calls,
        || {
            attention.forward(&one_q, (&one_k, &one_v))?;
            Ok(())
        },
        || Ok(backend.synchronize()?),
    )?;

    let shards = group.shards(&Sharding::Zigzag, len)?;
    let split: [Vec<Tensor<bf16>>; 3] = [
        shards.split(&q, HEADS, DIM)?,
        shards.split_keys(&k, KV_HEADS, DIM)?,
        shards.split_keys(&v, KV_HEADS, DIM)?,
    ];
    let [q, k, v] = &split;
    let forward = || shards.forward(&attention, q, (k, v));
    let several = shards.join(&forward()?)?;
    let differing = one.iter().zip(&several).filter(|(a, b)| a != b).count();
    let largest = one
        .iter()
        .zip(&several)
        .map(|(a, b)| (a.to_f32() - b.to_f32()).abs())
        .fold(0.0, f32::max);
    let again = shards.join(&forward()?)? == several;
    let us = median(
        calls,
        || forward().map(drop).map_err(Into::into),
        || Ok(group.synchronize(LIMIT)?),
    )?;
    let expected = Expected::new(
        shards.map(),
        Mask::causal(),
        KV_HEADS,
        2 * KV_HEADS * DIM * 2,
        one_us,
    )?;
    Ok(format!(
        r#"{{"backend": "{backend}", "engine": "peers", "ranks": {}, "key_len": {len}, "direction": "forward", "one_us": {one_us:.1}, "median_us": {us:.1}, "efficiency": {:.4}, "expected_us": {:.1}, "same_bits_again": {again}, "values_unlike_one_gpu": {differing}, "largest_difference": {largest:e}}}"#,
        group.backends().len(),
        one_us / us / group.backends().len() as f64,
        expected.us
    ))
}

/// Microseconds per call: the median of five runs of `calls` calls back to back.
fn median(
    calls: usize,
    call: impl Fn() -> Result<()>,
    wait: impl Fn() -> Result<()>,
) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..6 {
        wait()?;
        let start = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        wait()?;
        times.push(start.elapsed().as_secs_f64() * 1e6 / calls as f64);
    }
    times.remove(0); // warms up
    times.sort_by(f64::total_cmp);
    Ok(times[2])
}
