//! Dropout on a GPU: results against float64, and the weights that each image keeps.

use half::{bf16, f16};
use warptile::kernels::{Features, Image, Role, images_for};
use warptile::plan::Choice;
use warptile::spec::{Dropout, DropoutState};
use warptile::{Attention, Backend, Element, ElementType, Tensor};

use crate::harness::{equal_float64, gpu, images_with, side_by_side};

/// The forward images with dropout that run here.
fn images() -> impl Iterator<Item = &'static Image> + Send {
    images_with(Features::DROPOUT)
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_image_with_dropout_equals_float64() {
    assert!(images().next().is_some());
    equal_float64(images(), 40);
}

const STATE: DropoutState = DropoutState {
    seed: 99,
    offset: 1 << 33,
    sequence: 3,
    head: 5,
    query: 64,
    key: 96,
};
const P: f32 = 0.3;
const BATCH: usize = 2;
const HEADS: usize = 4;
const QUERIES: usize = 200;
const KEYS: usize = 230;
/// Head size: the smallest that images with dropout have tiles for.
const DIM: usize = 64;

/// The weights that are kept, by sequence, head, query and key.
type Kept = Vec<bool>;

fn expected() -> Kept {
    let dropout = Dropout::new(P, STATE);
    let rows = (0..BATCH * HEADS * QUERIES).map(|i| {
        let (of_head, query) = (i / QUERIES, i % QUERIES);
        dropout.row(of_head / HEADS, of_head % HEADS, query)
    });
    rows.flat_map(|row| (0..KEYS).map(move |key| row.keeps(key)))
        .collect()
}

/// A tensor `[batch, rows, heads, DIM]` of numbers that do not depend on batch and head.
fn tensor<T: Element>(
    backend: &Backend,
    [rows, heads]: [usize; 2],
    number: impl Fn(usize, usize) -> f32,
) -> Tensor<T> {
    let elements = (0..BATCH * rows * heads * DIM).map(|i| {
        let row = i / DIM / heads % rows;
        T::from_f32(number(row, i % DIM))
    });
    let elements: Vec<T> = elements.collect();
    let shape = [BATCH, rows, heads, DIM];
    backend.tensor(&elements, shape).unwrap()
}

/// With equal scores and the values of the unit matrix, the output is the mask divided by the number of keys.
fn kept_by_forward<T: Element>(backend: &Backend, kv_heads: usize, choice: &Choice) -> Kept {
    let mut kept = vec![false; BATCH * HEADS * QUERIES * KEYS];
    let attention = Attention::new().dropout(P, STATE).choice(choice.clone());
    let q = tensor::<T>(backend, [QUERIES, HEADS], |_, _| 0.0);
    let k = tensor::<T>(backend, [KEYS, kv_heads], |_, _| 0.0);
    for first in (0..KEYS).step_by(DIM) {
        let is_own = |row, column| f32::from(row == first + column);
        let v = tensor::<T>(backend, [KEYS, kv_heads], is_own);
        let out = attention.forward(&q, (&k, &v)).unwrap().out;
        let whole = Dropout::factor(P) / KEYS as f32;
        for (i, x) in out.to_vec().unwrap().into_iter().enumerate() {
            let (key, x) = (first + i % DIM, x.to_f32());
            let [head, query, batch] = [
                i / DIM % HEADS,
                i / DIM / HEADS % QUERIES,
                i / DIM / HEADS / QUERIES,
            ];
            if key < KEYS {
                kept[((batch * HEADS + head) * QUERIES + query) * KEYS + key] = x != 0.0;
                assert!(x == 0.0 || (x / whole - 1.0).abs() < 0.02, "{x}");
            }
        }
    }
    kept
}

/// The masks of the gradient of values, with that of the output a unit matrix, and of the gradient of queries: with keys of the unit matrix
/// it is a positive number for each key that is kept, and a negative one for each other.
fn kept_by_backward<T: Element>(backend: &Backend, choice: &Choice) -> [Kept; 2] {
    let mut kept = [(); 2].map(|()| vec![false; BATCH * HEADS * QUERIES * KEYS]);
    let attention = Attention::new().dropout(P, STATE);
    let chosen = attention.clone().choice(choice.clone());
    let zeros = |rows| tensor::<T>(backend, [rows, HEADS], |_, _| 0.0);
    let ones = |rows| tensor::<T>(backend, [rows, HEADS], |_, column| f32::from(column == 0));
    let unit = |rows, first| {
        tensor::<T>(backend, [rows, HEADS], move |row, column| {
            f32::from(row == first + column)
        })
    };
    let place = |batch, head, query, key| ((batch * HEADS + head) * QUERIES + query) * KEYS + key;
    let place_of = |i: usize, rows: usize| {
        let row = i / DIM / HEADS % rows;
        (i / DIM / HEADS / rows, i / DIM % HEADS, row, i % DIM)
    };
    for first in (0..QUERIES.max(KEYS)).step_by(DIM) {
        let (q, k) = (zeros(QUERIES), zeros(KEYS));
        let output = attention.forward(&q, (&k, &k)).unwrap();
        let d_out = unit(QUERIES, first);
        let all = chosen.backward(&d_out, &q, (&k, &k), &output).unwrap();
        for (i, x) in all.dv.to_vec().unwrap().into_iter().enumerate() {
            let (batch, head, key, column) = place_of(i, KEYS);
            if first + column < QUERIES {
                kept[0][place(batch, head, first + column, key)] = x.to_f32() != 0.0;
            }
        }
        let (k, v) = (unit(KEYS, first), ones(KEYS));
        let output = attention.forward(&q, (&k, &v)).unwrap();
        let all = { chosen.backward(&ones(QUERIES), &q, (&k, &v), &output) }.unwrap();
        for (i, x) in all.dq.to_vec().unwrap().into_iter().enumerate() {
            let (batch, head, query, column) = place_of(i, QUERIES);
            if first + column < KEYS {
                kept[1][place(batch, head, query, first + column)] = x.to_f32() > 0.0;
            }
        }
    }
    kept
}

#[test]
fn masks_are_read_out_of_results_of_the_cpu() {
    let backend = Backend::cpu();
    let expected = expected();
    for kv_heads in [HEADS, 1] {
        assert!(kept_by_forward::<f32>(&backend, kv_heads, &Choice::Best) == expected);
    }
    let all = [expected.clone(), expected];
    assert!(kept_by_backward::<f32>(&backend, &Choice::Best) == all);
}

/// Every kernel drops the same weights, which are those that the CPU drops, and as many as asked for.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_image_keeps_the_weights_that_the_cpu_keeps() {
    let backend = Backend::cuda(0).unwrap();
    let expected = expected();
    let count = expected.iter().filter(|kept| **kept).count();
    let rate = count as f32 / expected.len() as f32;
    assert!((rate - (1.0 - P)).abs() < 0.005, "{rate}");
    side_by_side(images(), |image| {
        let choice = Choice::Image(image.name.to_owned());
        for kv_heads in [HEADS, 2, 1] {
            let kept = match image.element {
                ElementType::F16 => kept_by_forward::<f16>(&backend, kv_heads, &choice),
                ElementType::Bf16 => kept_by_forward::<bf16>(&backend, kv_heads, &choice),
                _ => kept_by_forward::<f32>(&backend, kv_heads, &choice),
            };
            assert!(kept == expected, "{}, {kv_heads} heads of keys", image.name);
        }
    });
    let all = [expected.clone(), expected];
    let of_gradients = [Role::KeyGradients, Role::QueryGradients, Role::AllGradients].into_iter();
    let of_gradients = of_gradients
        .flat_map(images_for)
        .filter(|image| image.features.contains(Features::DROPOUT))
        .filter(|image| {
            image
                .target
                .runs_on(gpu().profile().major, gpu().profile().minor)
        });
    side_by_side(of_gradients.collect::<Vec<_>>(), |image| {
        let choice = Choice::Image(image.name.to_owned());
        let kept = match image.element {
            ElementType::F16 => kept_by_backward::<f16>(&backend, &choice),
            ElementType::Bf16 => kept_by_backward::<bf16>(&backend, &choice),
            _ => kept_by_backward::<f32>(&backend, &choice),
        };
        assert!(kept == all, "{}", image.name);
    });
}
