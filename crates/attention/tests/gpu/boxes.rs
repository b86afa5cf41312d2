//! Biases and masks that the copy engine brings.

use half::f16;
use warptile::plan::Choice;
use warptile::{Attention, Backend, Keys, Layout, Mask, Tensor};

use crate::harness::gpu;

const ROWS: usize = 200;
const KEYS: usize = 336;
const HEADS: usize = 4;
const HEAD_DIM: usize = 128;

/// Numbers between -1 and 1.
fn numbers(count: usize, seed: u64) -> impl Iterator<Item = f32> {
    let mut state = seed;
    (0..count).map(move |_| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    })
}

fn tensor(backend: &Backend, rows: usize, seed: u64) -> Tensor<f16> {
    let count = 2 * rows * HEADS * HEAD_DIM;
    let data: Vec<f16> = numbers(count, seed).map(f16::from_f32).collect();
    backend.tensor(&data, [2, rows, HEADS, HEAD_DIM]).unwrap()
}

/// Scores of one sequence that begin at element `first` of an allocation.
fn scores<T: bytemuck::Pod>(
    backend: &Backend,
    first: usize,
    other: T,
    of: impl Fn(usize, usize, usize) -> T,
) -> Tensor<T> {
    let mut data = vec![other; first];
    for row in 0..ROWS {
        for head in 0..HEADS {
            data.extend((0..KEYS).map(|key| of(row, head, key)));
        }
    }
    let all = backend.tensor(&data, [1, 1, data.len(), 1]).unwrap();
    let layout = Layout::new([1, ROWS, HEADS, KEYS], [0, HEADS * KEYS, KEYS, 1]);
    let from = all.heads(first..first + 1).unwrap();
    from.view_as(layout).unwrap()
}

/// Kernels that read number by number take the tensors that do not start at a multiple of 16 bytes. NaNs lie before the first number.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn biases_and_masks_may_begin_anywhere() {
    let backend = Backend::on_stream(gpu().stream()).unwrap();
    let q = tensor(&backend, ROWS, 1);
    let (k, v) = (tensor(&backend, KEYS, 2), tensor(&backend, KEYS, 3));
    let by_boxes = Choice::Kernel("wgmma_d128_192x64_w16_s4".to_owned());
    let of_bias: Vec<f32> = numbers(ROWS * HEADS * KEYS, 4).collect();
    let at = |row: usize, head: usize, key: usize| (row * HEADS + head) * KEYS + key;
    let results = [0, 1, 5, 8, 13].map(|first| {
        let bias = scores(&backend, first, f16::NAN, |row, head, key| {
            f16::from_f32(3.0 * of_bias[at(row, head, key)])
        });
        let mask = scores(&backend, first, 7_u8, |row, head, key| {
            u8::from(of_bias[at(row, head, key)] > 0.0)
        });
        let with_bias = Keys::new(&k, &v).bias(&bias);
        let with_mask = Keys::new(&k, &v).key_mask(&mask);
        [
            (with_bias, first % 8, "_bias_"),
            (with_mask, first % 16, "_mask_"),
        ]
        .map(|(keys, before, variant)| {
            let attention = match before {
                0 => Attention::new().choice(by_boxes.clone()),
                _ => Attention::new(),
            };
            let plan = attention.plan(&q, keys.clone()).unwrap().to_string();
            assert_eq!(plan.contains(variant), before == 0, "{plan}");
            attention.forward(&q, keys).unwrap().out.to_vec().unwrap()
        })
    });
    for result in &results[1..] {
        for (found, expected) in result.iter().zip(&results[0]) {
            for (found, expected) in found.iter().zip(expected) {
                let differs = (found.to_f32() - expected.to_f32()).abs();
                assert!(differs <= 2e-3, "{found} in place of {expected}");
            }
        }
    }
}

/// A causal mask as a bias of minus infinity, as the lowest finite number, and as bytes.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_causal_mask_may_be_a_bias_or_a_mask() {
    let backend = Backend::on_stream(gpu().stream()).unwrap();
    let q = tensor(&backend, ROWS, 5);
    let (k, v) = (tensor(&backend, KEYS, 6), tensor(&backend, KEYS, 7));
    let shows = |row: usize, key: usize| key + ROWS <= row + KEYS;
    let forward = |attention: Attention, keys: Keys<'_, f16>| {
        let out = attention.forward(&q, keys).unwrap();
        out.out.to_vec().unwrap()
    };
    let expected = forward(Attention::new().mask(Mask::causal()), Keys::new(&k, &v));
    let hides = |hidden: f16| {
        let bias = scores(&backend, 0, hidden, |row, _, key| match shows(row, key) {
            true => f16::ZERO,
            false => hidden,
        });
        forward(Attention::new(), Keys::new(&k, &v).bias(&bias))
    };
    let mask = scores(&backend, 0, 0_u8, |row, _, key| u8::from(shows(row, key)));
    let by_mask = forward(Attention::new(), Keys::new(&k, &v).key_mask(&mask));
    for found in [hides(f16::NEG_INFINITY), hides(f16::MIN), by_mask] {
        for (found, expected) in found.iter().zip(&expected) {
            let differs = (found.to_f32() - expected.to_f32()).abs();
            assert!(differs <= 2e-3, "{found} in place of {expected}");
        }
    }
}
