//! Launches that begin before the previous one has ended read everything that it writes.

use half::f16;
use warptile::gpu::Bindings;
use warptile::plan::{Choice, Planner};
use warptile::spec::{Append, Call, Merge, Operand, Scoring};
use warptile::{ElementType, Layout, Mask};
use warptile_driver::{DeviceBuffer, LaunchConfig, Stream};
use warptile_kernels::{Role, images_for};

use crate::harness::{gpu, ran, side_by_side};
use crate::pages::writes_late;

/// Nanoseconds after which the launch ahead begins to write.
const LATE: u64 = 20_000;

/// Numbers between -1 and 1 that look random.
fn noise(seed: u32, count: usize) -> Vec<f16> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
        f16::from_f32((state >> 16) as f32 / 32_768.0 - 1.0)
    };
    (0..count).map(|_| next()).collect()
}

/// Every kernel that takes the problem computes twice in a row, the second time with the first result as its queries, right after a launch
/// that writes queries, keys or values late. A few tiles, and more than a GPU has multiprocessors.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn inputs_may_be_written_by_the_launch_before() {
    let kernel = writes_late();
    let config = LaunchConfig::new([1, 1, 1], [256, 1, 1]).programmatic();
    let sizes = [(2, 64), (2, 128), (40, 64), (24, 128), (12, 256)];
    side_by_side(sizes, |(heads, head_dim)| {
        let stream = Stream::new(gpu().context()).unwrap();
        let layout = Layout::bshd([1, 500, heads, head_dim]);
        let elements = 500 * heads * head_dim;
        let call = Call::builder(&layout, &layout, &layout, ElementType::F16)
            .scoring(Scoring::new().mask(Mask::causal()))
            .build()
            .unwrap();
        let data: [Vec<f16>; 3] = [1, 2, 3].map(|seed| noise(seed, elements));
        let upload = |data: &Vec<f16>| DeviceBuffer::from_slice(&stream, data).unwrap();
        let planner = Planner::new(gpu().profile());
        let mut kernels = 0;
        for image in images_for(Role::Forward) {
            let choice = Choice::Image(image.name.to_owned());
            if planner.plan(call.problem(), &choice).is_err() {
                continue;
            }
            kernels += 1;
            let prepared = gpu().prepare(call.problem(), &choice).unwrap();
            let inputs = [&data[0], &data[1], &data[2]].map(upload);
            let [mut first, mut second] = [&data[0], &data[0]].map(upload);
            let mut lse = DeviceBuffer::<f32>::zeroed(&stream, call.lse_len()).unwrap();
            let mut compute = |[q, k, v]: &[DeviceBuffer<f16>; 3]| {
                let mut launch = |q: &DeviceBuffer<f16>, to: &mut DeviceBuffer<f16>| {
                    let (q, k, v) = (q.as_slice(), k.as_slice(), v.as_slice());
                    let bindings = Bindings::new(q, k, v, to.as_slice_mut())
                        .output(Operand::Lse, lse.as_slice_mut());
                    prepared.launch(&stream, &call, &bindings).unwrap();
                };
                launch(q, &mut first);
                launch(&first, &mut second);
                (first.to_vec().unwrap(), second.to_vec().unwrap())
            };
            let expected = compute(&inputs);
            for late in 0..3 {
                let mut changed = [&data[0], &data[1], &data[2]].map(upload);
                changed[late] = DeviceBuffer::zeroed(&stream, elements).unwrap();
                let words = (elements / 2) as u64;
                let block = [changed[late].pointer(), inputs[late].pointer(), words, LATE];
                // SAFETY: the block is the kernel's; both buffers have as many words, belong to this stream and live until it has been
                // waited for.
                unsafe { kernel.launch(&stream, &config, &block) }.unwrap();
                assert!(
                    compute(&changed) == expected,
                    "{}, input {late}",
                    image.name
                );
            }
            ran(image);
        }
        assert!(kernels > 0, "no kernel took head size {head_dim}");
    });
}

/// Two sequences of a cache get a new row each, are attended to, and two results are merged. New keys or values, or
/// the numbers of rows before, are written late by the launch ahead of these; each of the three reads what the one
/// ahead of it writes.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn each_launch_of_a_step_sees_what_the_one_before_it_writes() {
    /// Elements of the new rows, and of the cache.
    const ROW: usize = 2 * 4 * 64;
    const CACHE: usize = 200 * ROW;
    let kernel = writes_late();
    let config = LaunchConfig::new([1, 1, 1], [256, 1, 1]).programmatic();
    let stream = Stream::new(gpu().context()).unwrap();
    let row = Layout::bshd([2, 1, 4, 64]);
    let cache = Layout::bshd([2, 200, 4, 64]);
    let append = Append::builder(ElementType::F16, [&row, &row], [&cache, &cache])
        .device_key_lengths(2)
        .build()
        .unwrap();
    let call = Call::builder(&row, &cache, &cache, ElementType::F16)
        .device_key_lengths(2)
        .build()
        .unwrap();
    let merge = Merge::builder(ElementType::F16, &[row, row])
        .build()
        .unwrap();
    let writes = gpu().prepare_append(ElementType::F16).unwrap();
    let attends = gpu().prepare(call.problem(), &Choice::Best).unwrap();
    let merges = gpu().prepare_merge(ElementType::F16).unwrap();
    let upload = |data: &[f16]| DeviceBuffer::from_slice(&stream, data).unwrap();
    let numbers = |rows: [i32; 2]| DeviceBuffer::from_slice(&stream, &rows).unwrap();
    let old = noise(7, CACHE);
    let step = |round: i32, late: Option<usize>| {
        let in_turn = || stream.synchronize().unwrap();
        let [new_keys, new_values, queries] = [1, 2, 3].map(|of| noise(3 * round as u32 + of, ROW));
        let before = [100 + round, 190 - round];
        let (k, v, q) = (upload(&new_keys), upload(&new_values), upload(&queries));
        let (lengths, after) = (numbers(before), numbers(before.map(|rows| rows + 1)));
        let [mut keys, mut values] = [(); 2].map(|()| upload(&old));
        let [mut out, mut merged] = [(); 2].map(|()| upload(&queries));
        let [mut lse, mut merged_lse] =
            [(); 2].map(|()| DeviceBuffer::<f32>::zeroed(&stream, call.lse_len()).unwrap());
        let (right_k, right_v) = (upload(&new_keys), upload(&new_values));
        let right_lengths = numbers(before);
        let zeros = DeviceBuffer::<u32>::zeroed(&stream, ROW / 2).unwrap();
        in_turn();
        if let Some(late) = late {
            let words = (ROW / 2) as u64;
            let (to, from, count) = [
                (k.pointer(), right_k.pointer(), words),
                (v.pointer(), right_v.pointer(), words),
                (lengths.pointer(), right_lengths.pointer(), 2),
            ][late];
            for block in [[to, zeros.pointer(), count, 0], [to, from, count, LATE]] {
                // SAFETY: the block is the kernel's; both addresses are those of buffers with as many words, which
                // belong to this stream and live until it has been waited for.
                unsafe { kernel.launch(&stream, &config, &block) }.unwrap();
            }
        }
        let bindings = Bindings::append(
            k.as_slice(),
            v.as_slice(),
            keys.as_slice_mut(),
            values.as_slice_mut(),
        )
        .with(Operand::KeyLengths, lengths.as_slice());
        writes.launch(&stream, &append, &bindings).unwrap();
        drop(bindings);
        if late.is_none() {
            in_turn();
        }
        let bindings = Bindings::new(
            q.as_slice(),
            keys.as_slice(),
            values.as_slice(),
            out.as_slice_mut(),
        )
        .output(Operand::Lse, lse.as_slice_mut())
        .with(Operand::KeyLengths, after.as_slice());
        attends.launch(&stream, &call, &bindings).unwrap();
        drop(bindings);
        if late.is_none() {
            in_turn();
        }
        let bindings = Bindings::merge(merged.as_slice_mut())
            .output(Operand::Lse, merged_lse.as_slice_mut())
            .part(out.as_slice(), lse.as_slice())
            .part(out.as_slice(), lse.as_slice());
        merges.launch(&stream, &merge, &bindings).unwrap();
        drop(bindings);
        in_turn();
        (merged.to_vec().unwrap(), merged_lse.to_vec().unwrap())
    };
    for round in 0..30 {
        let expected = step(round, None);
        for late in 0..3 {
            assert_eq!(
                step(round, Some(late)),
                expected,
                "round {round}, input {late}"
            );
        }
    }
}
