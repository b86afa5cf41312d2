//! Launches that begin before the one ahead of them has ended: whatever that one writes, they read afterwards.

use half::f16;
use warptile::gpu::Bindings;
use warptile::{Call, Choice, ElementType, Layout, Mask, Planner, Scoring};
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
                    let bindings =
                        Bindings::new(q, k, v, to.as_slice_mut()).lse(lse.as_slice_mut());
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
