//! A few queries on many keys, as in decoding: the code for a handful of rows, and keys that several threads share.

use quickcheck::{Arbitrary, Gen, QuickCheck, TestResult};
use rayon::ThreadPoolBuilder;
use warptile::Element;
use warptile_check::Case;

use crate::common::{run, verify};

/// A case with up to 8 query rows a key/value head, or a few more, and keys of several parts.
#[derive(Clone, Debug)]
struct Few(String);

impl Arbitrary for Few {
    fn arbitrary(g: &mut Gen) -> Self {
        let pick = |g: &mut Gen, words: &[&'static str]| *g.choose(words).unwrap();
        let within = |g: &mut Gen, count: usize| usize::arbitrary(g) % count;
        let batch = 1 + within(g, 2);
        let (queries, group) = (1 + within(g, 3), 1 + within(g, 5));
        let kv_heads = 1 + within(g, 2);
        let keys = 1 + within(g, 1800);
        let sizes = [
            "d8", "d16", "d32", "d40", "d64", "d72", "d80", "d96", "d128", "d192/128", "d256",
            "d512",
        ];
        let size = pick(g, &sizes);
        let element = pick(g, &["f32", "f16", "bf16", "bf16"]);
        let mask = [
            "",
            "",
            "mask=causal",
            "mask=causal diagonal=top-left",
            "mask=window,700,0",
            "mask=window,30,1",
        ];
        let mut text = format!(
            "b{batch} q{queries} k{keys} h{}/{kv_heads} {size} {element}",
            group * kv_heads
        );
        for words in [
            &mask[..],
            &["", "", "softcap=5", "scale=-0.2"],
            &["", "", "alibi=head", "alibi=batch"],
            &["", "", "sinks"],
            &["", "", "", "bias", "keymask", "bias keymask"],
            &[
                "",
                "layout=bhsd",
                "layout=gaps",
                "pages=1",
                "pages=24",
                "pages=256",
                "cache=e4m3",
                "pages=16 cache=e4m3",
            ],
        ] {
            text = format!("{text} {}", pick(g, words));
        }
        Few(format!("{text} seed={}", u16::arbitrary(g)))
    }
}

#[test]
fn a_few_rows_on_many_keys_match_the_reference() {
    fn right(few: Few) -> TestResult {
        let Ok(case) = few.0.parse::<Case>() else {
            return TestResult::discard();
        };
        match verify(&case) {
            Ok(_) => TestResult::passed(),
            Err(failure) => TestResult::error(format!("{case}: {failure}")),
        }
    }
    let tests = QuickCheck::new().tests(150).max_tests(300);
    tests
        .min_tests_passed(100)
        .quickcheck(right as fn(Few) -> TestResult);
}

/// The bits of output and lse with this many threads.
fn bits<T: Element>(case: &Case, threads: usize) -> Vec<u64> {
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap();
    let (_, result) = pool.install(|| run::<T>(case));
    let out = result.out.iter().map(|x| x.to_f64().to_bits());
    out.chain(result.lse.iter().map(|x| u64::from(x.to_bits())))
        .collect()
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    for text in [
        "b1 q1 k3001 h4/1 d128 bf16 seed=1",
        "b1 q1 k3001 h4/1 d128 f16 mask=window,1700,0 seed=2",
        "b1 q2 k2500 h6/2 d64 f32 mask=causal sinks seed=3",
        "b1 q1 k1537 h1 d80 bf16 alibi=head softcap=3 seed=4",
        "b1 q7 k1600 h4/2 d32 bf16 mask=causal bias seed=5",
        "b3 q1 k2000 h2 d40 f32 used=1x2000,1x3,1x600 keymask seed=6",
        "b2 q20 k1200 h2/1 d256 f16 pages=24 seed=7",
    ] {
        let case: Case = text.parse().unwrap();
        let all = |threads| match case.element {
            warptile::ElementType::F16 => bits::<half::f16>(&case, threads),
            warptile::ElementType::Bf16 => bits::<half::bf16>(&case, threads),
            _ => bits::<f32>(&case, threads),
        };
        verify(&case).unwrap_or_else(|failure| panic!("{case}: {failure}"));
        let one = all(1);
        for threads in [2, 3, 8, 40] {
            assert!(all(threads) == one, "{case}: {threads} threads");
        }
    }
}
