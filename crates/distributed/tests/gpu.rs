//! Ranks on GPUs against one call on the first of them.

use std::time::Duration;

use warptile::half::bf16;
use warptile::{Attention, Backend, Diagonal, Keys, Mask, Queries};
use warptile_distributed::{Group, Scheme, Sharding};

#[path = "common/captured.rs"]
mod captured;
#[path = "common/dealt.rs"]
mod dealt;
#[path = "common/gradients.rs"]
mod gradients;

const LIMIT: Duration = Duration::from_secs(20);

/// Rows of a chunk from which both of a rank have a launch together.
const LONG_CHUNK: usize = 2048;

fn data(len: usize, seed: f32) -> Vec<bf16> {
    (0..len)
        .map(|i| bf16::from_f32(((i as f32 + seed) * 0.731).sin()))
        .collect()
}

/// Ranks take GPUs 0 and 1 in turn.
fn group(ranks: usize) -> Group {
    let gpus = [0, 1].map(|gpu| Backend::cuda(gpu).unwrap());
    Group::local((0..ranks).map(|rank| gpus[rank % 2].clone())).unwrap()
}

/// The result of all ranks is that of one call, up to the rounding of another order of additions, and has the same bits again.
fn equals_one_call(
    group: &Group,
    [len, heads, kv_heads, dim]: [usize; 4],
    sharding: &Sharding,
    attention: &Attention,
) {
    let (q, k, v) = (
        data(len * heads * dim, 0.1),
        data(len * kv_heads * dim, 0.2),
        data(len * kv_heads * dim, 0.3),
    );
    let first = &group.backends()[0];
    let [tq, tk, tv] = [(&q, heads), (&k, kv_heads), (&v, kv_heads)]
        .map(|(data, heads)| first.tensor(data, [1, len, heads, dim]).unwrap());
    let expected = match sharding {
        Sharding::Documents(offsets) => {
            let offsets: Vec<i32> = offsets.iter().map(|&at| at as i32).collect();
            attention.forward(
                Queries::new(&tq).packed(&offsets),
                Keys::new(&tk, &tv).packed(&offsets),
            )
        }
        _ => attention.forward(&tq, (&tk, &tv)),
    };
    let expected = expected.unwrap();
    let lse = expected.lse.as_ref().map(|lse| lse.to_vec().unwrap());
    let expected = expected.out.to_vec().unwrap();
    let ranks = group.backends().len();
    for scheme in [Scheme::Gather, Scheme::Heads, Scheme::Hybrid { hosts: 2 }] {
        let applies = match scheme {
            Scheme::Gather => true,
            Scheme::Heads => heads >= ranks && !attention.has_numbers(),
            _ => ranks.is_multiple_of(2) && heads >= ranks / 2 && !attention.has_numbers(),
        };
        if !applies {
            continue;
        }
        let shards = group.shards(sharding, len).unwrap().scheme(scheme);
        let [sq, sk, sv] = [(&q, heads), (&k, kv_heads), (&v, kv_heads)]
            .map(|(data, heads)| shards.split(data, heads, dim).unwrap());
        let run = || {
            let out = shards.forward(attention, &sq, (&sk, &sv)).unwrap();
            group.synchronize(LIMIT).unwrap();
            let lse = out.lse.map(|lse| shards.join_lse(&lse).unwrap());
            (shards.join(&out.out).unwrap(), lse)
        };
        let all = run();
        let (out, found) = &all;
        for (at, found) in found.iter().flatten().enumerate() {
            let (row, head) = (at / heads, at % heads);
            let expected = lse.as_ref().map(|lse| lse[head * len + row]).unwrap();
            assert!(
                *found == expected || (found - expected).abs() <= 1e-3,
                "{scheme:?}, {len} rows, {sharding:?}, {attention:?}: lse of row {row}, head {head} is {found}, not {expected}"
            );
        }
        let ranks = group.backends().len();
        for (i, (found, expected)) in out.iter().zip(&expected).enumerate() {
            let (found, expected) = (found.to_f32(), expected.to_f32());
            assert!(
                (found - expected).abs() <= 0.008 + 0.008 * expected.abs(),
                "{scheme:?}, {ranks} ranks, {len} rows, {sharding:?}, {attention:?}: value {i} is {found}, not {expected}"
            );
        }
        for _ in 0..5 {
            assert!(
                run() == all,
                "{scheme:?}, {ranks} ranks, {len} rows, {sharding:?}, {attention:?}: other bits"
            );
        }
    }
}

#[test]
#[ignore = "needs two NVIDIA GPUs"]
fn one_sequence() {
    let masks = [
        Mask::none(),
        Mask::causal(),
        Mask::window(200, 30),
        Mask::causal().diagonal(Diagonal::TopLeft),
        Mask::window(90, 90).diagonal(Diagonal::At(-170)),
    ];
    for ranks in [2, 3, 4] {
        let group = group(ranks);
        for mask in masks {
            for sharding in [Sharding::Contiguous, Sharding::Zigzag, Sharding::Zigzags(2)] {
                for sizes in [
                    [1280, 4, 2, 64],
                    [1001, 8, 1, 128],
                    [3, 2, 2, 64],
                    [2500, 8, 2, 128],
                ] {
                    equals_one_call(&group, sizes, &sharding, &Attention::new().mask(mask));
                }
            }
        }
    }
}

/// The chunks of a rank have a launch together.
#[test]
#[ignore = "needs two NVIDIA GPUs"]
fn long_chunks() {
    for ranks in [2, 3] {
        for (mask, heads) in [(Mask::causal(), [8, 4]), (Mask::window(5000, 0), [8, 2])] {
            let attention = Attention::new().mask(mask);
            for (sharding, chunks) in [(Sharding::Zigzag, 2), (Sharding::Zigzags(2), 4)] {
                let sizes = [chunks * ranks * LONG_CHUNK, heads[0], heads[1], 64];
                equals_one_call(&group(ranks), sizes, &sharding, &attention);
            }
        }
    }
}

/// The log-sum-exp that gradients read is a part of what one launch left for several chunks.
#[test]
#[ignore = "needs two NVIDIA GPUs"]
fn gradients_of_long_chunks() {
    for (ranks, dim, sharding, chunks) in [
        (2, 128, Sharding::Zigzag, 2),
        (3, 64, Sharding::Zigzag, 2),
        (2, 64, Sharding::Zigzags(2), 4),
    ] {
        let group = group(ranks);
        let (heads, kv_heads, len) = (4, 2, chunks * ranks * LONG_CHUNK);
        let attention = Attention::new().mask(Mask::causal());
        let lists = [(heads, 0.1), (kv_heads, 0.2), (kv_heads, 0.3), (heads, 0.4)]
            .map(|(heads, seed)| (data(len * heads * dim, seed), heads));
        let first = &group.backends()[0];
        let [q, k, v, d_out] = { lists.each_ref() }
            .map(|(list, heads)| first.tensor(list, [1, len, *heads, dim]).unwrap());
        let output = attention.forward(&q, (&k, &v)).unwrap();
        let expected = attention.backward(&d_out, &q, (&k, &v), &output).unwrap();
        let shards = group.shards(&sharding, len).unwrap();
        let [q, k, v, d_out] = lists.map(|(list, heads)| shards.split(&list, heads, dim).unwrap());
        let run = || {
            let output = shards.forward(&attention, &q, (&k, &v)).unwrap();
            let found = shards
                .backward(&attention, &d_out, &q, (&k, &v), &output)
                .unwrap();
            group.synchronize(LIMIT).unwrap();
            [&found.dq, &found.dk, &found.dv].map(|of| shards.join(of).unwrap())
        };
        let found = run();
        let expected = [&expected.dq, &expected.dk, &expected.dv];
        for ((name, found), expected) in ["dq", "dk", "dv"].iter().zip(&found).zip(expected) {
            let expected = expected.to_vec().unwrap();
            let square = |of: f32| f64::from(of) * f64::from(of);
            let all: f64 = expected.iter().map(|of| square(of.to_f32())).sum();
            let apart: f64 = { found.iter().zip(&expected) }
                .map(|(a, b)| square(a.to_f32() - b.to_f32()))
                .sum();
            // Two roundings to bf16.
            let error = (apart / all).sqrt();
            assert!(
                error < 0.005,
                "{name} of {ranks} ranks: {error} apart from one call's"
            );
        }
        assert!(run() == found, "{ranks} ranks: other bits");
    }
}

#[test]
#[ignore = "needs two NVIDIA GPUs"]
fn options() {
    let options = [
        Attention::new().softcap(5.0),
        Attention::new().sinks(&[0.5, 1.0, -1.0, 2.0]),
        Attention::new().scale(0.3),
    ];
    let group = group(4);
    for attention in options {
        let attention = attention.mask(Mask::causal());
        equals_one_call(&group, [900, 4, 2, 64], &Sharding::Zigzag, &attention);
    }
}

/// Keys of which each rank has some, as of a cache.
#[test]
#[ignore = "needs two NVIDIA GPUs"]
fn merged() {
    let ([heads, kv_heads, dim], lengths) = ([32, 8, 128], [5000_usize, 0, 777, 1]);
    let all: usize = lengths.iter().sum();
    let (q, k, v) = (
        data(heads * dim, 0.1),
        data(all * kv_heads * dim, 0.2),
        data(all * kv_heads * dim, 0.3),
    );
    for ranks in [2, 4] {
        let group = group(ranks);
        let home = &group.backends()[0];
        let row = kv_heads * dim;
        let count: usize = lengths[..ranks].iter().sum();
        let of = |data: &[bf16], rank: usize, rows: std::ops::Range<usize>| {
            let data = &data[rows.start * row..rows.end * row];
            let shape = [1, rows.len(), kv_heads, dim];
            group.backends()[rank].tensor(data, shape).unwrap()
        };
        let q = home.tensor(&q, [1, 1, heads, dim]).unwrap();
        let (all_k, all_v) = (of(&k, 0, 0..count), of(&v, 0, 0..count));
        let expected = Attention::new().forward(&q, (&all_k, &all_v)).unwrap();
        let run = || {
            let mut start = 0;
            let queries = group.broadcast(&q).unwrap();
            let parts = queries.iter().zip(lengths).enumerate();
            let parts: Vec<_> = parts
                .map(|(rank, (q, len))| {
                    let rows = start..start + len;
                    start = rows.end;
                    let (k, v) = (of(&k, rank, rows.clone()), of(&v, rank, rows));
                    Attention::new().forward(q, (&k, &v)).unwrap()
                })
                .collect();
            let (out, lse) = group.merge(&parts).unwrap();
            group.synchronize(LIMIT).unwrap();
            (out.to_vec().unwrap(), lse.to_vec().unwrap())
        };
        let first = run();
        for (found, expected) in first.0.iter().zip(expected.out.to_vec().unwrap()) {
            let (found, expected) = (found.to_f32(), expected.to_f32());
            let close = (found - expected).abs() <= 0.008 + 0.008 * expected.abs();
            assert!(close, "{ranks} ranks: {found}, not {expected}");
        }
        for _ in 0..5 {
            assert!(run() == first, "{ranks} ranks: other bits");
        }
    }
}

#[test]
#[ignore = "needs two NVIDIA GPUs"]
fn documents() {
    for offsets in [vec![0, 400, 400, 7000, 7200, 13000], vec![0, 5, 1300]] {
        let len = offsets[offsets.len() - 1];
        for ranks in [2, 4] {
            for mask in [Mask::none(), Mask::causal(), Mask::window(300, 0)] {
                let sharding = Sharding::Documents(offsets.clone());
                let attention = Attention::new().mask(mask);
                equals_one_call(&group(ranks), [len, 8, 2, 128], &sharding, &attention);
            }
        }
    }
}

fn check(problem: gradients::Problem) -> bool {
    // Dropout has run on the CPU only.
    let problem = gradients::Problem {
        dropout: false,
        ..problem
    };
    problem.check_in_its_type(&group(problem.ranks));
    true
}

#[test]
#[ignore = "needs two NVIDIA GPUs"]
fn random_gradients_match_float64() {
    quickcheck::QuickCheck::new()
        .tests(100)
        .quickcheck(check as fn(gradients::Problem) -> bool);
}

#[test]
#[ignore = "needs two NVIDIA GPUs"]
fn windows_of_own_keys() {
    for problem in gradients::windows() {
        check(problem);
    }
}

#[test]
#[ignore = "needs two NVIDIA GPUs"]
fn dealt_cache() {
    for ranks in [2, 3, 4] {
        dealt::a_dealt_cache_is_one_cache::<bf16>(&group(ranks), 0.01);
    }
}

/// A call that does not fit ends a loop that launches a captured graph, with the rank; the group is of use after it.
#[test]
#[ignore = "needs two NVIDIA GPUs"]
fn captured_loops() {
    for ranks in [2, 4] {
        let group = group(ranks);
        for _ in 0..20 {
            let (error, took) = captured::until_failure(&group, LIMIT, |number, shards, q| {
                let mut kv = q.to_vec();
                if number == 3 {
                    kv[1] = q[1].rows(1..4).unwrap();
                }
                Ok(shards.forward(&captured::causal(), q, (&kv, &kv))?.out)
            });
            let text = error.to_string();
            assert!(text.starts_with("rank 1: k has shape "), "{text}");
            assert!(took < Duration::from_secs(2), "{took:?}");
        }
    }
}
