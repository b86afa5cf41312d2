//! Ranks on the CPU: the bits of one call.

use std::time::{Duration, Instant};

use warptile::cpu::Stop;
use warptile::spec::DropoutState;
use warptile::spec::Heads;
use warptile::{Attention, Backend, Diagonal, Keys, Mask, Queries};
use warptile_distributed::{Error, Expected, Group, Output, Scheme, Sharding};

fn data(len: usize, seed: f32) -> Vec<f32> {
    (0..len)
        .map(|i| ((i as f32 + seed) * 0.731).sin())
        .collect()
}

/// The first takes options with numbers for each head.
const ALL: [Scheme; 6] = [
    Scheme::Gather,
    Scheme::Heads,
    Scheme::Hybrid { hosts: 1 },
    Scheme::Hybrid { hosts: 2 },
    Scheme::Hybrid { hosts: 3 },
    Scheme::Hybrid { hosts: 4 },
];

/// Returns true if so many ranks can have so many heads by the scheme.
fn applies(scheme: Scheme, ranks: usize, heads: usize) -> bool {
    match scheme {
        Scheme::Heads => ranks <= heads,
        Scheme::Hybrid { hosts } => ranks.is_multiple_of(hosts) && ranks / hosts <= heads,
        _ => true,
    }
}

fn bits_of_one_call(
    schemes: &[Scheme],
    ranks: usize,
    len: usize,
    offsets: Option<&[usize]>,
    sharding: &Sharding,
    attention: &Attention,
) {
    let ([heads, kv_heads], dim) = ([4, 2], 16);
    let (q, k, v) = (
        data(len * heads * dim, 0.1),
        data(len * kv_heads * dim, 0.2),
        data(len * kv_heads * dim, 0.3),
    );
    let cpu = Backend::cpu();
    let [tq, tk, tv] = [(&q, heads), (&k, kv_heads), (&v, kv_heads)]
        .map(|(data, heads)| cpu.tensor(data, [1, len, heads, dim]).unwrap());
    let expected = match offsets {
        None => attention.forward(&tq, (&tk, &tv)),
        Some(offsets) => {
            let offsets: Vec<i32> = offsets.iter().map(|&at| at as i32).collect();
            attention.forward(
                Queries::new(&tq).packed(&offsets),
                Keys::new(&tk, &tv).packed(&offsets),
            )
        }
    };
    let group = Group::local(vec![cpu; ranks]).unwrap();
    let expected = expected.unwrap();
    let lse = expected.lse.unwrap().to_vec().unwrap();
    let lse_of = |at: usize| lse[at % heads * len + at / heads];
    let lse: Vec<f32> = (0..len * heads).map(lse_of).collect();
    let expected = expected.out.to_vec().unwrap();
    let applying = { schemes.iter() }.filter(|scheme| applies(**scheme, ranks, heads));
    for &scheme in applying {
        let shards = group.shards(sharding, len).unwrap().scheme(scheme);
        let [sq, sk, sv] = [(&q, heads), (&k, kv_heads), (&v, kv_heads)]
            .map(|(data, heads)| shards.split(data, heads, dim).unwrap());
        let out = shards.forward(attention, &sq, (&sk, &sv)).unwrap();
        group.synchronize(Duration::from_secs(1)).unwrap();
        assert!(
            shards.join(&out.out).unwrap() == expected
                && shards.join_lse(&out.lse.unwrap()).unwrap() == lse,
            "{scheme:?}, {ranks} ranks, {len} rows, {sharding:?}, {attention:?}"
        );
    }
}

#[test]
fn one_sequence() {
    let masks = [
        Mask::none(),
        Mask::causal(),
        Mask::window(20, 3),
        Mask::causal().diagonal(Diagonal::TopLeft),
        Mask::window(9, 9).diagonal(Diagonal::At(-17)),
    ];
    for mask in masks {
        for sharding in [Sharding::Contiguous, Sharding::Zigzag, Sharding::Zigzags(2)] {
            for (ranks, len) in [(2, 128), (3, 101), (5, 7), (4, 3), (6, 250)] {
                bits_of_one_call(
                    &ALL,
                    ranks,
                    len,
                    None,
                    &sharding,
                    &Attention::new().mask(mask),
                );
            }
        }
    }
}

#[test]
fn options() {
    let options = [
        Attention::new().softcap(5.0),
        Attention::new().sinks(&[0.5, 1.0, -1.0, 2.0]),
        Attention::new().scale(0.3),
        Attention::new().alibi_slopes(&[0.5, 0.25, 1.0, 0.0]),
    ];
    for attention in options {
        let schemes = match attention.has_numbers() {
            true => &ALL[..1],
            false => &ALL,
        };
        bits_of_one_call(
            schemes,
            3,
            90,
            None,
            &Sharding::Zigzag,
            &attention.mask(Mask::causal()),
        );
    }
}

#[test]
fn documents() {
    // Long ones are cut; of some ranks' short ones all lie together, of others a cut one lies between.
    for offsets in [
        vec![0, 40, 40, 700, 720, 1300],
        vec![0, 30, 70, 90, 1800, 1830, 1870, 1880],
        vec![0, 30, 70, 90, 120],
    ] {
        let len = offsets[offsets.len() - 1];
        for mask in [
            Mask::none(),
            Mask::causal(),
            Mask::causal().diagonal(Diagonal::At(-9)),
        ] {
            let sharding = Sharding::Documents(offsets.clone());
            let attention = Attention::new().mask(mask);
            let of_sinks = attention.clone().sinks(&[0.5, 1.0, -1.0, 2.0]);
            for ranks in [2, 4] {
                let check = |schemes, attention| {
                    bits_of_one_call(schemes, ranks, len, Some(&offsets), &sharding, attention);
                };
                check(&ALL, &attention);
                check(&ALL[..1], &of_sinks);
            }
        }
    }
}

/// Every part draws the mask of one call.
#[test]
fn dropout() {
    let state = DropoutState {
        sequence: 5,
        head: 3,
        query: 96,
        key: 32,
        ..DropoutState::new(1 << 40, 9)
    };
    for mask in [Mask::none(), Mask::causal()] {
        let attention = Attention::new().mask(mask).dropout(0.3, state);
        for (ranks, len) in [(2, 256), (3, 768), (2, 2048)] {
            for sharding in [Sharding::Contiguous, Sharding::Zigzag, Sharding::Zigzags(2)] {
                bits_of_one_call(&ALL, ranks, len, None, &sharding, &attention);
            }
        }
        // By heads chunks may begin anywhere.
        bits_of_one_call(
            &[Scheme::Heads],
            3,
            101,
            None,
            &Sharding::Zigzag,
            &attention,
        );
        let offsets = vec![0, 40, 40, 1320, 1340, 1380, 1380];
        let sharding = Sharding::Documents(offsets.clone());
        for ranks in [2, 4] {
            bits_of_one_call(&ALL, ranks, 1380, Some(&offsets), &sharding, &attention);
        }
        // Only the second document has rows.
        let offsets = vec![0, 0, 64];
        let sharding = Sharding::Documents(offsets.clone());
        bits_of_one_call(&ALL, 2, 64, Some(&offsets), &sharding, &attention);
    }
}

/// The ranks compute on threads of their own.
#[test]
fn a_stop_of_the_caller_ends_all_ranks() {
    let cpu = Backend::cpu();
    let group = Group::local([cpu.clone(), cpu]).unwrap();
    let q = data(64 * 2 * 8, 0.0);
    for scheme in ALL.into_iter().filter(|scheme| applies(*scheme, 2, 2)) {
        let shards = group.shards(&Sharding::Zigzag, 64).unwrap().scheme(scheme);
        let q = shards.split(&q, 2, 8).unwrap();
        let forward = || shards.forward(&Attention::new(), &q, (&q, &q)).map(drop);
        let stop = Stop::default();
        assert!(stop.during(forward).is_ok());
        stop.request();
        let error = stop.during(forward).unwrap_err();
        let stopped = |error: &Error| matches!(error, Error::Rank { source, .. } if matches!(source, warptile::Error::Stopped));
        assert!(stopped(&error), "{error}");
    }
}

#[test]
fn errors_name_the_rank() {
    let cpu = Backend::cpu();
    assert_eq!(
        Group::local([cpu.clone()]).unwrap_err().to_string(),
        "a group needs at least 2 ranks, not 1; one device needs no group"
    );
    let group = Group::local([cpu.clone(), cpu]).unwrap();
    let shards = group.shards(&Sharding::Zigzag, 9).unwrap();
    let q = shards.split(&data(9 * 8, 0.0), 1, 8).unwrap();
    let swapped = [q[1].clone(), q[0].clone()];
    let error = shards
        .forward(&Attention::new(), &q, (&q, &swapped))
        .unwrap_err();
    assert!(
        error.to_string().starts_with("rank 0: v has shape"),
        "{error}"
    );
    let by_heads = |attention: &Attention| {
        let shards = group.shards(&Sharding::Zigzag, 9).unwrap();
        let shards = shards.scheme(Scheme::Heads);
        shards
            .forward(attention, &q, (&q, &q))
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        by_heads(&Attention::new()),
        "rank 1: 2 ranks need at least as many query heads, not 1"
    );
    let error = shards
        .forward(&Attention::new().softcap(-1.0), &q, (&q, &q))
        .unwrap_err();
    assert!(error.to_string().starts_with("rank 0: "), "{error}");
    let dropout = Attention::new().dropout(0.1, DropoutState::new(1, 2));
    let error = shards.forward(&dropout, &q, (&q, &q)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "rank 0: with dropout its chunks must begin at multiples of 32 in their document, or use Scheme::Heads"
    );
    // Of hosts the first rank: here of the second one, whose rows begin at 50.
    let group = Group::local(vec![Backend::cpu(); 4]).unwrap();
    let shards = group.shards(&Sharding::Contiguous, 100).unwrap();
    let shards = shards.scheme(Scheme::Hybrid { hosts: 2 });
    let q = shards.split(&data(100 * 2 * 8, 0.0), 2, 8).unwrap();
    let error = shards.forward(&dropout, &q, (&q, &q)).unwrap_err();
    assert!(
        error.to_string().starts_with("rank 2: with dropout "),
        "{error}"
    );
}

#[test]
fn an_lse_of_other_rows_is_refused() {
    let cpu = Backend::cpu();
    let group = Group::local([cpu.clone(), cpu]).unwrap();
    for scheme in ALL.into_iter().filter(|scheme| applies(*scheme, 2, 4)) {
        let shards = |len| group.shards(&Sharding::Zigzag, len).unwrap().scheme(scheme);
        let lse = |len: usize| {
            let shards = shards(len);
            let q = shards.split(&data(len * 4 * 8, 0.0), 4, 8).unwrap();
            let output = shards.forward(&Attention::new(), &q, (&q, &q)).unwrap();
            output.lse.unwrap()
        };
        for (len, of) in [(64, 65), (64, 63), (64, 9), (9, 64), (64, 0), (0, 64)] {
            let error = shards(len).join_lse(&lse(of)).unwrap_err();
            let expected =
                format!("rank 0: the lse is that of another sharding, not of {len} rows");
            assert_eq!(error.to_string(), expected, "{scheme}, {of}");
        }
        assert_eq!(shards(9).join_lse(&lse(9)).unwrap().len(), 36);
        assert!(shards(0).join_lse(&lse(0)).unwrap().is_empty());
    }
}

/// Looking for the owners of each one's keys among all would take minutes.
#[test]
fn many_short_documents_are_dealt_out_at_once() {
    const DOCUMENTS: usize = 1 << 18;
    let cpu = Backend::cpu();
    let group = Group::local([cpu.clone(), cpu]).unwrap();
    let sharding = Sharding::Documents((0..=DOCUMENTS).collect());
    let shards = group.shards(&sharding, DOCUMENTS).unwrap();
    let q = shards.split(&vec![0.5_f32; DOCUMENTS * 8], 1, 8).unwrap();
    let begin = Instant::now();
    let output = shards.forward(&Attention::new(), &q, (&q, &q)).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(30));
    assert_eq!(output.out[1].shape(), [1, DOCUMENTS / 2, 1, 8]);
}

/// Rows of other heads, or none, would be read where a head's are.
#[test]
fn gradients_need_the_output_s_heads_and_size() {
    let cpu = Backend::cpu();
    let group = Group::local([cpu.clone(), cpu]).unwrap();
    for scheme in ALL.into_iter().filter(|scheme| applies(*scheme, 2, 4)) {
        let shards = group.shards(&Sharding::Zigzag, 64).unwrap().scheme(scheme);
        let of = |heads, dim| {
            shards
                .split(&data(64 * heads * dim, 0.0), heads, dim)
                .unwrap()
        };
        let (q, k, v) = (of(4, 16), of(2, 16), of(2, 8));
        let attention = Attention::new();
        let output = shards.forward(&attention, &q, (&k, &v)).unwrap();
        let backward = |d_out: &[_], output: &Output<f32>| {
            { shards.backward(&attention, d_out, &q, (&k, &v), output) }
                .map(drop)
                .map_err(|error| error.to_string())
        };
        backward(&of(4, 8), &output).unwrap();
        let one_other = [of(4, 8).remove(0), of(4, 16).remove(1)];
        for (wrong, rank) in [
            (&of(6, 8)[..], 0),
            (&of(2, 8), 0),
            (&of(4, 16), 0),
            (&one_other, 1),
        ] {
            let error = backward(wrong, &output).unwrap_err();
            let expected = format!("rank {rank}: d_out has shape ");
            assert!(error.starts_with(&expected), "{error}");
            let mut other = output.clone();
            other.out = wrong.to_vec();
            let error = backward(&of(4, 8), &other).unwrap_err();
            let expected = format!("rank {rank}: out has shape ");
            assert!(error.starts_with(&expected), "{error}");
        }
    }
}

/// A part would take the distances from a wrong row.
#[test]
fn alibi_needs_a_mask_that_ends_at_the_own_key() {
    let cpu = Backend::cpu();
    let group = Group::local([cpu.clone(), cpu]).unwrap();
    let shards = group.shards(&Sharding::Zigzag, 64).unwrap();
    let q = shards.split(&data(64 * 8, 0.0), 1, 8).unwrap();
    let attention = Attention::new().alibi_slopes(&[0.5]);
    for (mask, is_right) in [
        (Mask::none(), false),
        (Mask::window(9, 1), false),
        (Mask::causal().diagonal(Diagonal::At(-3)), false),
        (Mask::causal(), true),
        (Mask::window(9, 0), true),
    ] {
        let result = shards.forward(&attention.clone().mask(mask), &q, (&q, &q));
        assert_eq!(result.is_ok(), is_right, "{mask:?}");
        let named = |error| format!("{error}").starts_with("rank 0: ALiBi ");
        assert!(result.err().is_none_or(named));
    }
}

/// Elements of 2 bytes, and gradients of them.
const F16: (usize, bool) = (2, false);
const BACK: (usize, bool) = (2, true);
/// Without numbers for each head.
const CAUSAL: (Mask, bool) = (Mask::causal(), false);

#[test]
fn small_problems_are_warned_of() {
    let cpu = Backend::cpu();
    let group = Group::local([cpu.clone(), cpu]).unwrap();
    let expect = |len, one_us| {
        let shards = group.shards(&Sharding::Zigzag, len).unwrap();
        let heads = Heads::new(32, 128).key_value(8);
        [Scheme::Gather, Scheme::Heads]
            .map(|scheme| Expected::new(scheme, shards.map(), CAUSAL, heads, F16, one_us).unwrap())
    };
    let [gather, heads] = expect(1 << 16, 44_000.0);
    assert!(gather.gain() > 1.95 && heads.gain() > 1.7 && heads.us > gather.us);
    assert!(expect(512, 10.0).iter().all(|all| all.warning().is_some()));
    let shards = group.shards(&Sharding::Zigzag, 1 << 16).unwrap();
    let of =
        |scheme, heads| Expected::new(scheme, shards.map(), CAUSAL, heads, BACK, 160e3).unwrap();
    let [gather, heads] =
        [Scheme::Gather, Scheme::Heads].map(|scheme| of(scheme, Heads::new(32, 128).key_value(8)));
    assert!(gather.gain() > 1.97 && heads.gain() > 1.9 && heads.us > gather.us);
    // Rank 0 fetches half of the keys, and gets a share for a quarter of them from each chunk of rank 1: 4096 bytes a row and 8192.
    assert_eq!(gather.fetched_bytes, (1 << 15) * 4096 + (2 << 14) * 8192);
    // Both ranks have the one key/value head, and give each other shares in f32.
    let shared = of(Scheme::Heads, Heads::new(2, 128).key_value(1));
    assert_eq!(
        shared.fetched_bytes,
        (1 << 15) * (128 * 10 + 128 * 2 + 256 * 4)
    );
    let shards = group.shards(&Sharding::Zigzag, 512).unwrap();
    let groups = |has_numbers, of| {
        let options = (Mask::causal(), has_numbers);
        let heads = Heads::new(32, 128).key_value(8);
        Expected::new(Scheme::Gather, shards.map(), options, heads, of, 9.0)
            .unwrap()
            .groups
    };
    assert_eq!([groups(false, F16), groups(false, BACK)], [2, 2]);
    assert_eq!([groups(true, F16), groups(true, BACK)], [1, 1]);
    let one_head = Heads::new(1, 128);
    let expected = Expected::new(
        Scheme::Heads,
        shards.map(),
        (Mask::none(), false),
        one_head,
        F16,
        9.0,
    );
    assert!(expected.unwrap_err().to_string().contains("query heads"));
}

#[test]
fn hosts_get_each_row_of_keys_once_for_each_head() {
    let group = Group::local(vec![Backend::cpu(); 4]).unwrap();
    let shards = group.shards(&Sharding::Zigzag, 1 << 16).unwrap();
    let heads = Heads::new(32, 128).key_value(8);
    let of = |scheme| Expected::new(scheme, shards.map(), CAUSAL, heads, F16, 44_000.0).unwrap();
    let hybrid = of(Scheme::Hybrid { hosts: 2 });
    // Half of the heads, 256 bytes a row: of queries and the output 16,384 rows of the other rank of the host; of keys and values those, and
    // the 32,768 of the other host.
    let rows = |count: usize, heads: usize| (count * heads * 256) as u64;
    assert_eq!(
        hybrid.fetched_bytes,
        2 * rows(1 << 14, 16) + 2 * rows((1 << 14) + (1 << 15), 4)
    );
    assert_eq!(
        hybrid.to_string().split(':').next(),
        Some("hybrid of 2 hosts")
    );
    let of_one_host = of(Scheme::Hybrid { hosts: 1 });
    assert!(
        of_one_host.us < hybrid.us && hybrid.gain() > 3.0,
        "{hybrid}"
    );
    let gradients =
        |scheme| Expected::new(scheme, shards.map(), CAUSAL, heads, BACK, 110e3).unwrap();
    assert!(gradients(Scheme::Hybrid { hosts: 2 }).gain() > 3.0);
    let shards = shards.scheme(Scheme::Hybrid { hosts: 3 });
    let q = shards.split(&data((1 << 16) * 8, 0.0), 1, 8).unwrap();
    let error = { shards.forward(&Attention::new(), &q, (&q, &q)) }.unwrap_err();
    assert_eq!(
        error.to_string(),
        "sharding: 4 ranks are not the same number on each of 3 hosts"
    );
}
