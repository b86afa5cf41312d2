//! Lists of blocks on a GPU: results against float64, and lists on the device that say anything.

use warptile::kernels::{Features, Image};
use warptile::plan::Choice;
use warptile::{Attention, Backend, BlockList, BlockLists, Element, ElementType, Keys, Tensor};
use warptile_check::Case;
use warptile_driver::DeviceBuffer;

use crate::harness::{Images, equal_float64, gpu, images_with, passes, side_by_side};

/// The images with lists of blocks that run here.
fn images() -> impl Iterator<Item = &'static Image> + Send {
    images_with(Features::BLOCKS)
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_image_with_blocks_equals_float64() {
    assert!(images().next().is_some());
    equal_float64(images(), 60);
}

fn random<T: Element>(backend: &Backend, [rows, heads]: [usize; 2], seed: usize) -> Tensor<T> {
    const DIM: usize = 64;
    let number = |i: usize| ((i * 31 + seed) * 7919 % 1009) as f32 / 252.0 - 2.0;
    let data: Vec<T> = { (0..rows * heads * DIM).map(|i| T::from_f32(number(i))) }.collect();
    backend.tensor(&data, [1, rows, heads, DIM]).unwrap()
}

/// Output and lse of one head size, by an image.
fn attend<T: Element>(q: &Tensor<T>, keys: Keys<'_, T>, image: &Image) -> (Vec<T>, Vec<f32>) {
    let choice = Choice::Image(image.name.to_owned());
    let output = Attention::new().choice(choice).forward(q, keys).unwrap();
    let lse = output.lse.unwrap().to_vec().unwrap();
    (output.out.to_vec().unwrap(), lse)
}

/// Numbers below 0 end rows, and numbers of no block are left out; offsets of no index reach nowhere.
fn lists_on_the_device<T: Element>(image: &Image) {
    const QUERIES: usize = 300;
    const KEYS: usize = 500;
    let backend = Backend::on_stream(gpu().stream()).unwrap();
    let (q, k) = (
        random::<T>(&backend, [QUERIES, 4], 1),
        random(&backend, [KEYS, 2], 2),
    );
    let lists = BlockLists::new(128, 64).per_head();
    let stream = gpu().stream();
    let on_device = |numbers: &[i32]| DeviceBuffer::from_slice(stream, numbers).unwrap();
    let rows = 4 * QUERIES.div_ceil(128);
    let mut expected = (vec![0], Vec::new());
    let mut given = expected.clone();
    for row in 0..rows as i32 {
        let blocks: Vec<i32> = (0..8)
            .filter(|block| (row + block) % 3 == 0 && row != 5)
            .collect();
        expected.1.extend(&blocks);
        given.1.extend(blocks);
        given
            .1
            .extend([8, i32::MAX, -1, 1, i32::MIN].iter().skip(row as usize % 2));
        expected.0.push(expected.1.len() as i32);
        given.0.push(given.1.len() as i32);
    }
    let list = BlockList::new(lists, expected.0, expected.1);
    let on_host = attend(&q, Keys::new(&k, &k).blocks(&list), image);
    let (offsets, indices) = (on_device(&given.0), on_device(&given.1));
    let keys = Keys::new(&k, &k);
    let keys = keys.blocks_on_device(lists, offsets.as_slice(), indices.as_slice());
    assert!(attend(&q, keys.clone(), image) == on_host, "{}", image.name);
    let wild: Vec<i32> = given
        .0
        .iter()
        .map(|one| one.wrapping_mul(77_777_777))
        .collect();
    let wild = on_device(&wild);
    let of_wild = Keys::new(&k, &k);
    let of_wild = of_wild.blocks_on_device(lists, wild.as_slice(), indices.as_slice());
    attend(&q, of_wild, image);
    assert!(attend(&q, keys, image) == on_host, "{}", image.name);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn lists_on_the_device_may_say_anything() {
    let of_one_size = |image: &&Image| image.tiling.head_dim >= 64;
    side_by_side(images().filter(of_one_size), |image| match image.element {
        ElementType::F16 => lists_on_the_device::<half::f16>(image),
        _ => lists_on_the_device::<half::bf16>(image),
    });
}

/// A block of 128 keys may begin within a sequence and have only other sequences' rows in its second half.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_block_may_end_behind_the_last_key() {
    for kernel in [
        "wgmma_d128_128x128_w12_s2",
        "wgmma_d128_64x128_w8_s2",
        "mma_d128_64x64_w4_s2",
    ] {
        for seed in 0..4 {
            let words = "packed=130x192,60x192,70x192 h2/1 d128 f16 blocks=128x128,head,2";
            let case: Case = format!("{words} seed={seed}").parse().unwrap();
            assert!(passes(&case, Images::Kernel(kernel)).unwrap(), "{kernel}");
        }
    }
}

/// For the sanitizer's tools, which take long for each launch: a small problem on each kernel's way of walking over lists.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn lists_of_three_images() {
    for (words, kernel) in [
        (
            "b1 q150 k260 h2/1 d128 bf16 mask=causal blocks=64x64,head seed=3",
            "wgmma_d128_64x128_w8_s2",
        ),
        (
            "packed=130x200,60x90 h2/1 d128 f16 blocks=64x64 seed=4",
            "wgmma_d128_128x128_w12_s2",
        ),
        (
            "b1 q150 k260 h4/2 d192 bf16 blocks=128x64,head softcap=2 keymask bias seed=5",
            "mma_d192_64x64_w4_s1",
        ),
    ] {
        let case: Case = words.parse().unwrap();
        assert!(passes(&case, Images::Kernel(kernel)).unwrap(), "{kernel}");
    }
}
