//! How far NaN and infinities reach: lengths and pages keep them away, and those that a sequence has spoil no row of another sequence or
//! key/value head.

use half::{bf16, f16};
use warptile::{Attention, Backend, Element, Keys, Mask, Output, Queries, Tensor};

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
/// Whole blocks of pairs of `bf16`.
const DEPTH: usize = 32;
/// Rows that each sequence has a place for; the last page is not full.
const ROWS: usize = 300;
const PAGE: usize = 16;
const LENGTHS: [i32; 3] = [300, 250, 121];

/// Some rows of the second sequence see it, others do not.
const KEY: usize = 240;

const GARBAGE: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];

/// Keys or values of each sequence, rows behind its length among them.
fn rows<T: Element>(seed: usize) -> Vec<T> {
    let number = |i: usize| T::from_f32(((i + seed) * 7919 % 1009) as f32 / 504.0 - 1.0);
    let len = LENGTHS.len() * ROWS * KV_HEADS * DEPTH;
    (0..len).map(number).collect()
}

/// Where a row's head begins.
fn place(sequence: usize, row: usize, head: usize) -> usize {
    ((sequence * ROWS + row) * KV_HEADS + head) * DEPTH
}

fn bits<T: Element>(output: &Output<T>) -> (Vec<u32>, Vec<u32>) {
    let out = output.out.to_vec().unwrap().into_iter();
    let lse = output.lse.as_ref().unwrap().to_vec().unwrap().into_iter();
    (
        out.map(|x| x.to_f32().to_bits()).collect(),
        lse.map(f32::to_bits).collect(),
    )
}

fn tensor<T: Element>(data: &[T], shape: [usize; 4]) -> Tensor<T> {
    Backend::cpu().tensor(data, shape).unwrap()
}

fn queries<T: Element>(count: usize) -> Tensor<T> {
    let number = |i: usize| T::from_f32((i * 31 % 97) as f32 / 48.0 - 1.0);
    let data: Vec<T> = (0..3 * count * HEADS * DEPTH).map(number).collect();
    tensor(&data, [3, count, HEADS, DEPTH])
}

fn attend<T: Element>(q: &Tensor<T>, k: &[T], v: &[T]) -> Output<T> {
    let shape = [3, ROWS, KV_HEADS, DEPTH];
    let (k, v) = (tensor(k, shape), tensor(v, shape));
    let attention = Attention::new().mask(Mask::causal());
    let keys = Keys::new(&k, &v).lengths(&LENGTHS);
    attention.forward(q, keys).unwrap()
}

/// Everything behind the lengths is garbage.
fn spoil_the_rest<T: Element>(data: &mut [T]) {
    for (sequence, &len) in LENGTHS.iter().enumerate() {
        let rest = place(sequence, len as usize, 0)..place(sequence + 1, 0, 0);
        for (index, x) in data[rest].iter_mut().enumerate() {
            *x = T::from_f32(GARBAGE[index % 3]);
        }
    }
}

fn lengths_and_pages_keep_garbage_away<T: Element>() {
    for count in [1, 3, 40] {
        let (q, mut k, mut v) = (queries::<T>(count), rows::<T>(1), rows::<T>(2));
        let clean = bits(&attend(&q, &k, &v));
        for data in [&mut k, &mut v] {
            spoil_the_rest(data);
        }
        assert_eq!(bits(&attend(&q, &k, &v)), clean, "{} {count}", T::TYPE);

        // Rows in pages; page 0 belongs to no sequence.
        let columns = ROWS.div_ceil(PAGE);
        let paged = |data: &[T]| {
            let row = KV_HEADS * DEPTH;
            let mut pages = vec![T::from_f32(f32::NAN); (1 + 3 * columns) * PAGE * row];
            for sequence in 0..3 {
                let from = &data[place(sequence, 0, 0)..place(sequence + 1, 0, 0)];
                let at = (1 + sequence * columns) * PAGE * row;
                pages[at..at + from.len()].copy_from_slice(from);
            }
            tensor(&pages, [1 + 3 * columns, PAGE, KV_HEADS, DEPTH])
        };
        let (k, v) = (paged(&k), paged(&v));
        let table: Vec<i32> = (1..=3 * columns as i32).collect();
        let keys = Keys::paged(&k, &v, &table, [3, columns]).lengths(&LENGTHS);
        let attention = Attention::new().mask(Mask::causal());
        let found = bits(&attention.forward(&q, keys).unwrap());
        assert_eq!(found, clean, "{} {count}", T::TYPE);
    }
}

fn others_are_not_spoiled<T: Element>() {
    for count in [1, 3, 40] {
        let (q, k, v) = (queries::<T>(count), rows::<T>(1), rows::<T>(2));
        let clean = bits(&attend(&q, &k, &v));
        let sees = |row| LENGTHS[1] as usize - count + row >= KEY;
        for garbage in GARBAGE {
            let mut spoiled = v.clone();
            let (sequence, head) = (1, 1);
            let at = place(sequence, KEY, head) + 3;
            spoiled[at] = T::from_f32(garbage);
            let found = bits(&attend(&q, &k, &spoiled));
            assert_eq!(found.1, clean.1);
            let pairs = found.0.chunks(DEPTH).zip(clean.0.chunks(DEPTH));
            for (index, (found, clean)) in pairs.enumerate() {
                let (of, row) = (index / (count * HEADS), index / HEADS % count);
                if of != sequence || index % HEADS / (HEADS / KV_HEADS) != head {
                    assert_eq!(found, clean, "{} {count} {index}", T::TYPE);
                } else if sees(row) {
                    assert!(!f32::from_bits(found[3]).is_finite());
                }
                // Nor is another component.
                assert_eq!((&found[..3], &found[4..]), (&clean[..3], &clean[4..]));
            }
            // In a key it reaches only who sees it.
            let mut spoiled = k.clone();
            spoiled[at] = T::from_f32(garbage);
            let found = bits(&attend(&q, &spoiled, &v));
            let pairs = found.0.chunks(DEPTH).zip(clean.0.chunks(DEPTH));
            for (index, (found, clean)) in pairs.enumerate() {
                let (of, row) = (index / (count * HEADS), index / HEADS % count);
                if of != sequence || index % HEADS / (HEADS / KV_HEADS) != head || !sees(row) {
                    assert_eq!(found, clean, "{} {count} {index}", T::TYPE);
                }
            }
        }
    }
}

/// Sequences one after the other in one tensor.
fn packed_neighbours_are_not_spoiled<T: Element>() {
    let (k, v) = (rows::<T>(1), rows::<T>(2));
    let shape = [1, 3 * ROWS, KV_HEADS, DEPTH];
    let offsets = [0, 130, 517, 800];
    let q = queries::<T>(20);
    let q = tensor(&q.to_vec().unwrap(), [1, 60, HEADS, DEPTH]);
    let attend = |v: &[T]| {
        let (k, v) = (tensor(&k, shape), tensor(v, shape));
        let queries = Queries::new(&q).packed(&[0, 20, 40, 60]);
        let keys = Keys::new(&k, &v).packed(&offsets);
        bits(&Attention::new().forward(queries, keys).unwrap()).0
    };
    let clean = attend(&v);
    let mut spoiled = v.clone();
    let row = KV_HEADS * DEPTH;
    spoiled[130 * row..517 * row].fill(T::from_f32(f32::NAN));
    spoiled[800 * row..].fill(T::from_f32(f32::NAN));
    let found = attend(&spoiled);
    let of_sequence = 20 * HEADS * DEPTH;
    assert_eq!(found[..of_sequence], clean[..of_sequence]);
    assert_eq!(found[2 * of_sequence..], clean[2 * of_sequence..]);
}

#[test]
fn lengths_and_pages_shield() {
    lengths_and_pages_keep_garbage_away::<f32>();
    lengths_and_pages_keep_garbage_away::<f16>();
    lengths_and_pages_keep_garbage_away::<bf16>();
}

#[test]
fn other_sequences_and_heads_are_not_spoiled() {
    others_are_not_spoiled::<f32>();
    others_are_not_spoiled::<f16>();
    others_are_not_spoiled::<bf16>();
    packed_neighbours_are_not_spoiled::<f32>();
    packed_neighbours_are_not_spoiled::<f16>();
    packed_neighbours_are_not_spoiled::<bf16>();
}
