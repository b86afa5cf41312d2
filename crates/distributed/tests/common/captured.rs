//! Calls in a loop, between launches of a captured graph.

use std::time::{Duration, Instant};

use warptile::driver::Graph;
use warptile::half::bf16;
use warptile::{Attention, Mask, Tensor};
use warptile_distributed::{Error, Group, Result, Sharding, Shards};

const LEN: usize = 1024;

pub(crate) fn causal() -> Attention {
    Attention::new().mask(Mask::causal())
}

/// Launches a captured graph, has a capture of the group's call refused on each of its streams, and has `call` make one of a number and
/// queries, over and over until one fails. Returns the failure, and how long that call took. No results differ before it.
pub(crate) fn until_failure(
    group: &Group,
    bound: Duration,
    mut call: impl FnMut(u32, &Shards<'_>, &[Tensor<bf16>]) -> Result<Vec<Tensor<bf16>>>,
) -> (Error, Duration) {
    let shards = group.shards(&Sharding::Zigzag, LEN).unwrap();
    let data: Vec<_> = (0..LEN * 4 * 64)
        .map(|i| bf16::from_f32((i as f32 * 0.731).sin()))
        .collect();
    let q = shards.split(&data, 4, 64).unwrap();
    let streams = { group.backends().iter() }.map(|backend| backend.gpu().unwrap().stream());
    let streams: Vec<_> = streams.collect();
    let zeros = vec![bf16::ZERO; q[0].shape().iter().product()];
    let mut out = group.backends()[0].tensor(&zeros, q[0].shape()).unwrap();
    let mut own = || {
        let written = causal().forward_into(&q[0], (&q[0], &q[0]), &mut out, None);
        written.map(drop)
    };
    // Loads the kernel.
    own().unwrap();
    let graph = Graph::capture(streams[0], |_| own()).unwrap();
    let mut first = None;
    for number in 0.. {
        graph.launch(streams[0]).unwrap();
        for stream in &streams {
            // The first rank that has this stream is named.
            let mut ranks = group.local_ranks().zip(&streams);
            let (rank, _) = ranks.find(|(_, other)| other.is_same(stream)).unwrap();
            let captured = Graph::capture(stream, |_| {
                let refused = shards.forward(&causal(), &q, (&q, &q)).map(drop);
                let error = refused.unwrap_err().to_string();
                assert!(
                    error.starts_with(&format!("rank {rank}: "))
                        && error.ends_with("cannot be captured"),
                    "{error}"
                );
                Ok::<_, warptile::Error>(())
            });
            captured.unwrap();
        }
        let begin = Instant::now();
        let called = call(number, &shards, &q);
        match called.and_then(|out| group.synchronize(bound).map(|()| out)) {
            Err(error) => return (error, begin.elapsed()),
            Ok(out) => {
                let out: Vec<_> = out.iter().map(|out| out.to_vec().unwrap()).collect();
                assert!(first.get_or_insert(out.clone()) == &out, "other bits");
            }
        }
    }
    unreachable!("the loop ends with a failure")
}
