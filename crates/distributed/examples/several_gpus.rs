//! Measures several GPUs against one: causal bf16 attention of 32 query heads and 8 key/value heads of size 128. The command line has
//! the number of GPUs, then lengths; each length gives a JSON row. Each time is that of calls one behind the other, per call; one GPU's
//! time is the mean of the GPUs' times alone. Errors are root mean squares over some rows, relative to the float64 result.
//!
//! ```sh
//! cargo run --release -p warptile-distributed --example several_gpus 2 16384 65536
//! ```

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use warptile::driver::Event;
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
    let (q, k, v) = (
        data(len, HEADS, 1),
        data(len, KV_HEADS, 2),
        data(len, KV_HEADS, 3),
    );
    let calls = (2_usize << 34).div_ceil(len * len).clamp(3, 200);

    let mut one = Vec::new();
    let mut each_us = Vec::new();
    for backend in group.backends() {
        let alone = |data: &[bf16], heads| backend.tensor(data, [1, len, heads, DIM]);
        let (q, k, v) = (
            alone(&q, HEADS)?,
            alone(&k, KV_HEADS)?,
            alone(&v, KV_HEADS)?,
        );
        let call = || Ok(attention.forward(&q, (&k, &v)).map(drop)?);
        each_us.push(median(calls, std::slice::from_ref(backend), call)?);
        if one.is_empty() {
            one = attention.forward(&q, (&k, &v))?.out.to_vec()?;
        }
    }
    let backend = &group.backends()[0];
    let one_us = each_us.iter().sum::<f64>() / each_us.len() as f64;

    let shards = group.shards(&Sharding::Zigzag, len)?;
    let split: [Vec<Tensor<bf16>>; 3] = [
        shards.split(&q, HEADS, DIM)?,
        shards.split(&k, KV_HEADS, DIM)?,
        shards.split(&v, KV_HEADS, DIM)?,
    ];
    let [sq, sk, sv] = &split;
    let forward = || shards.forward(&attention, sq, (sk, sv));
    let several = shards.join(&forward()?)?;
    let errors = [&one, &several].map(|out| error(out, [&q, &k, &v]));
    let differing = one.iter().zip(&several).filter(|(a, b)| a != b).count();
    let largest = one
        .iter()
        .zip(&several)
        .map(|(a, b)| (a.to_f32() - b.to_f32()).abs())
        .fold(0.0, f32::max);
    let again = shards.join(&forward()?)? == several;
    let us = median(calls, group.backends(), || Ok(forward().map(drop)?))?;
    group.synchronize(LIMIT)?;
    let expected = Expected::new(
        shards.map(),
        Mask::causal(),
        KV_HEADS,
        2 * KV_HEADS * DIM * 2,
        one_us,
    )?;
    Ok(format!(
        r#"{{"backend": "{backend}", "engine": "peers", "ranks": {}, "key_len": {len}, "direction": "forward", "one_us": {one_us:.1}, "each_us": {each_us:.0?}, "median_us": {us:.1}, "efficiency": {:.4}, "expected_us": {:.1}, "same_bits_again": {again}, "values_unlike_one_gpu": {differing}, "largest_difference": {largest:e}, "one_error": {:.3e}, "error": {:.3e}}}"#,
        group.backends().len(),
        one_us / us / group.backends().len() as f64,
        expected.us,
        errors[0],
        errors[1]
    ))
}

/// The root mean square of the error of some rows of `out`, over that of the float64 result.
fn error(out: &[bf16], [q, k, v]: [&[bf16]; 3]) -> f64 {
    const ROWS: usize = 16;
    let len = q.len() / HEADS / DIM;
    let (mut wrong, mut right) = (0.0, 0.0);
    for head in [0, HEADS - 1] {
        let of = |data: &[bf16], heads: usize, row: usize, head: usize| -> Vec<f64> {
            let start = (row * heads + head) * DIM;
            { data[start..start + DIM].iter() }
                .map(|x| x.to_f64())
                .collect()
        };
        let kv_head = head * KV_HEADS / HEADS;
        for at in 0..ROWS {
            let row = (len - 1) * at / (ROWS - 1);
            let q = of(q, HEADS, row, head);
            let (mut sum, mut total) = (0.0, [0.0; DIM]);
            for key in 0..=row {
                let k = of(k, KV_HEADS, key, kv_head);
                let score: f64 = q.iter().zip(k).map(|(q, k)| q * k).sum();
                // These scores are small: no maximum is needed.
                let weight = (score / (DIM as f64).sqrt()).exp();
                sum += weight;
                { total.iter_mut().zip(of(v, KV_HEADS, key, kv_head)) }
                    .for_each(|(total, v)| *total += weight * v);
            }
            for (found, total) in of(out, HEADS, row, head).iter().zip(total) {
                wrong += (found - total / sum).powi(2);
                right += (total / sum).powi(2);
            }
        }
    }
    (wrong / right).sqrt()
}

/// Numbers from -1 to 1 as `[length, heads, head size]`.
fn data(len: usize, heads: usize, seed: usize) -> Vec<bf16> {
    // A prime, so no two rows are alike.
    const PERIOD: usize = 1_000_003;
    let value = |i: usize| {
        let bits = (i + seed).wrapping_mul(2_654_435_761) >> 7 & 0xFFFF;
        bf16::from_f32(bits as f32 / 32768.0 - 1.0)
    };
    let block: Vec<_> = (0..PERIOD).map(value).collect();
    let mut data = Vec::with_capacity(len * heads * DIM);
    while data.len() < data.capacity() {
        let left = data.capacity() - data.len();
        data.extend_from_slice(&block[..left.min(PERIOD)]);
    }
    data
}

/// Microseconds per call: the median of five runs of `calls` calls, of which few are submitted ahead.
fn median(calls: usize, backends: &[Backend], call: impl Fn() -> Result<()>) -> Result<f64> {
    const AHEAD: usize = 4;
    let streams = || backends.iter().filter_map(|backend| backend.gpu());
    let mut times = Vec::new();
    for _ in 0..6 {
        backends.iter().try_for_each(Backend::synchronize)?;
        let start = Instant::now();
        let mut ends = VecDeque::new();
        for _ in 0..calls {
            call()?;
            for gpu in streams() {
                let end = Event::new(gpu.context())?;
                gpu.stream().record(&end)?;
                ends.push_back(end);
            }
            while ends.len() > AHEAD * backends.len() {
                ends.pop_front().map_or(Ok(()), |end| end.synchronize())?;
            }
        }
        backends.iter().try_for_each(Backend::synchronize)?;
        times.push(start.elapsed().as_secs_f64() * 1e6 / calls as f64);
    }
    times.remove(0); // warms up
    times.sort_by(f64::total_cmp);
    Ok(times[2])
}
