//! Several threads, with a device of their own and with a shared one.

use candle_core::{Device, Result};

use crate::common::calls::{dense, packed};
use crate::common::draw::Problem;

/// candle 0.11's default stream is another one on each thread; before, all threads share the legacy stream.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn threads_with_the_default_stream() -> Result<()> {
    let _turn = crate::beside_others();
    let shared = Device::new_cuda(0)?;
    in_threads(|seed| dense(&Problem::drawn(seed), &shared))?;
    in_threads(|seed| packed(&Problem::drawn(seed), &shared))
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn threads_with_streams_of_their_own() -> Result<()> {
    let _turn = crate::beside_others();
    in_threads(|seed| {
        let device = Device::new_cuda_with_stream(0)?;
        dense(&Problem::drawn(seed), &device)?;
        packed(&Problem::drawn(seed), &device)
    })
}

fn in_threads(check: impl Fn(u64) -> Result<()> + Sync) -> Result<()> {
    let check = &check;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                scope.spawn(move || (0..10).try_for_each(|seed| check(1000 * thread + seed)))
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap())
    })
}
