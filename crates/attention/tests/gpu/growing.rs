//! Scores that grow from block to block. A kernel that takes no maximum of a block whose weights are small enough must notice
//! each time that they are not.

use half::{bf16, f16};
use warptile::plan::{Choice, Planner};
use warptile::spec::{Call, HostInputs, Scoring};
use warptile::{Attention, Backend, Element, Layout, Mask};
use warptile_check::Expectation;

use crate::harness::{gpu, side_by_side};

const ROWS: usize = 150;
const KEYS: usize = 900;
const HEADS: usize = 2;

/// Numbers between -1 and 1 that look random.
fn noise(seed: u32) -> impl FnMut() -> f32 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
        let word = ((state >> ((state >> 28) + 4)) ^ state).wrapping_mul(277_803_737);
        f32::from((word >> 16) as u16) / 32_768.0 - 1.0
    }
}

/// Against float64, on every kernel that takes the problem. By blocks of 64 keys, from the last to the first or from
/// the first to the last, a third of the rows' scores rise by `step` each, a third of them fall, and a third do
/// neither: what rises must not disturb its neighbours.
fn check<T: Element>(head_dim: usize, mask: Mask, step: f32, softcap: Option<f32>) {
    check_scores::<T>(head_dim, mask, &|key| step * key as f32 / 64.0, softcap);
}

/// `check` with any scores: to random ones a third of the rows adds those `of_keys`, and a third subtracts them.
fn check_scores<T: Element>(
    head_dim: usize,
    mask: Mask,
    of_keys: &dyn Fn(usize) -> f32,
    softcap: Option<f32>,
) {
    let mut random = noise(head_dim as u32 + 1);
    let direction = 1.0 / (head_dim as f32).sqrt().sqrt();
    let tensor = |rows: usize, random: &mut dyn FnMut() -> f32, along: &dyn Fn(usize) -> f32| {
        let mut data = Vec::with_capacity(rows * HEADS * head_dim);
        for row in 0..rows {
            for _ in 0..HEADS * head_dim {
                data.push(T::from_f32(random() + along(row) * direction));
            }
        }
        data
    };
    // The dot product of two rows' parts along all columns, times 1/sqrt(head size), is the product of `along`.
    let q = tensor(ROWS, &mut random, &|row| (row % 3) as f32 - 1.0);
    let k = tensor(KEYS, &mut random, of_keys);
    let v = tensor(KEYS, &mut random, &|_| 0.0);
    let layout = |rows| Layout::bshd([1, rows, HEADS, head_dim]);
    let (q_layout, k_layout) = (layout(ROWS), layout(KEYS));
    let mut scoring = Scoring::new().mask(mask);
    let mut attention = Attention::new().mask(mask);
    if let Some(cap) = softcap {
        scoring = scoring.softcap(cap);
        attention = attention.softcap(cap);
    }
    let call = Call::builder(&q_layout, &k_layout, &k_layout, T::TYPE)
        .scoring(scoring)
        .build()
        .unwrap();
    let expected = Expectation::new(&call, &HostInputs::new(&q, &k, &v)).unwrap();

    let backend = Backend::cuda(0).unwrap();
    let [tq, tk, tv] = [(&q, ROWS), (&k, KEYS), (&v, KEYS)]
        .map(|(data, rows)| backend.tensor(data, [1, rows, HEADS, head_dim]).unwrap());
    let mut kernels: Vec<&str> = warptile_kernels::images_for(warptile_kernels::Role::Forward)
        .map(|image| image.kernel)
        .collect();
    kernels.sort_unstable();
    kernels.dedup();
    let planner = Planner::new(gpu().profile());
    let mut ran = 0;
    for kernel in kernels {
        let choice = Choice::Kernel(kernel.to_owned());
        if planner.plan(call.problem(), &choice).is_err() {
            continue;
        }
        ran += 1;
        let output = { attention.clone().choice(choice) }
            .forward(&tq, (&tk, &tv))
            .unwrap();
        let out = expected.judge_out(&output.out.to_vec().unwrap());
        assert!(out.passed, "{call:?}: out {out} on {kernel}");
        let lse = expected.judge_lse(&output.lse.unwrap().to_vec().unwrap());
        assert!(lse.passed, "{call:?}: lse {lse} on {kernel}");
    }
    assert!(ran > 0, "no kernel took head size {head_dim}");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn scores_that_grow_with_every_block_are_weighed_rightly() {
    let masks = [Mask::none(), Mask::causal(), Mask::window(700, 40)];
    let head_dims = [64, 80, 128, 192, 256].into_iter();
    let all = head_dims.flat_map(|head_dim| masks.map(|mask| (head_dim, mask)));
    side_by_side(all, |(head_dim, mask)| {
        // Below what a block may grow by unnoticed, about as much, and far more.
        for step in [3.0, 9.0, 40.0, -40.0] {
            check::<bf16>(head_dim, mask, step, None);
        }
        check::<f16>(head_dim, mask, 9.0, None);
        check::<f16>(head_dim, mask, -9.0, None);
        if mask == Mask::none() {
            check::<bf16>(head_dim, mask, -30.0, Some(60.0));
        }
    });
}

/// On Hopper a softcap's polynomial has a range. Scores cross its upper end here, in nearly all keys of a row or in few,
/// and a sum of weights has to tell. Rows that lie below the range are in the emulation: a warp has rows of all thirds.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn scores_at_the_ends_of_a_softcap_are_weighed_rightly() {
    let all = [64, 96, 128, 192, 256].map(|head_dim| (head_dim, Mask::causal()));
    side_by_side(all, |(head_dim, mask)| {
        for cap in [12.0, 20.0, 30.0, 50.0] {
            for step in [0.5, 2.0, -2.0] {
                check::<bf16>(head_dim, mask, step, Some(cap));
                check::<f16>(head_dim, Mask::none(), step, Some(cap));
            }
            for level in [0.3, 0.45, 0.7, 2.0] {
                let at = |key: usize| level * cap * f32::from(u8::from(key % 100 != 50));
                check_scores::<f16>(head_dim, Mask::none(), &at, Some(cap));
                let seldom = |key: usize| level * cap - at(key);
                check_scores::<bf16>(head_dim, Mask::none(), &seldom, Some(cap));
            }
        }
    });
}
