//! Gradients over ranks on the CPU, against float64 and one call.

use quickcheck::QuickCheck;
use warptile::{Attention, Backend, ElementType, Mask};
use warptile_distributed::{Group, Scheme, Sharding};

#[path = "common/gradients.rs"]
mod gradients;

use gradients::Problem;

fn group(ranks: usize) -> Group {
    Group::local(vec![Backend::cpu(); ranks]).unwrap()
}

fn check(problem: Problem) -> bool {
    problem.check_in_its_type(&group(problem.ranks));
    true
}

#[test]
fn random_problems_match_float64() {
    QuickCheck::new()
        .tests(40)
        .quickcheck(check as fn(Problem) -> bool);
}

#[test]
fn windows_of_own_keys() {
    for problem in gradients::windows() {
        check(problem);
    }
}

/// No more than 32 sums can be added up: one for each of these ranks, but not one for each of its chunks.
#[test]
fn many_ranks_have_one_sum_each() {
    for (scheme, ranks) in [(Scheme::Gather, 20), (Scheme::Hybrid { hosts: 2 }, 22)] {
        let problem = Problem {
            ranks,
            element: ElementType::F32,
            len: 20 * ranks,
            sizes: [11, 1, 16, 16],
            mask: Mask::causal(),
            sharding: Sharding::Zigzag,
            scheme,
            softcap: false,
            sinks: scheme == Scheme::Gather,
            dropout: false,
        };
        problem.check::<f32>(&group(ranks));
    }
}

#[test]
fn an_output_of_something_else_is_refused() {
    let group = group(2);
    let shards = |scheme| group.shards(&Sharding::Zigzag, 9).unwrap().scheme(scheme);
    let gather = shards(Scheme::Gather);
    let q = gather.split(&[0.5_f32; 9 * 2 * 8], 2, 8).unwrap();
    let attention = Attention::new().mask(Mask::causal());
    let refused = |forward: &Attention, scheme| {
        let output = gather.forward(forward, &q, (&q, &q)).unwrap();
        let gradients = shards(scheme).backward(&attention, &q, &q, (&q, &q), &output);
        gradients.map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(
        refused(&attention, Scheme::Heads),
        "rank 0: the lse is that of another sharding, mask or scheme"
    );
    assert_eq!(
        refused(&attention.clone().without_lse(), Scheme::Gather),
        "rank 0: the output has no lse: it must not be turned off"
    );
    let output = gather.forward(&attention, &q, (&q, &q)).unwrap();
    let short = group.shards(&Sharding::Zigzag, 8).unwrap();
    let d_out = short.split(&[0.5_f32; 8 * 2 * 8], 2, 8).unwrap();
    let error = gather.backward(&attention, &d_out, &q, (&q, &q), &output);
    let error = error.map(|_| ()).unwrap_err().to_string();
    assert!(error.starts_with("rank 0: d_out has shape"), "{error}");
}
