//! Hundreds of launches give the bits of the first, however they are synchronized: the predecessor's kernel did not.

use warptile::kernels::Family;
use warptile_check::{Case, OnGpu, ResultBuffers};
use warptile_driver::Graph;

use crate::harness::{Images, case, families, gpu, same_bits, side_by_side};

const LAUNCHES: usize = 500;

type Half = half::f16;

fn upload(case: &Case, images: Images) -> OnGpu<Half> {
    let plan = images.plan(case).unwrap();
    case.upload(&case.inputs::<Half>(), gpu(), &plan).unwrap()
}

fn first_result(case: &Case, images: Images) -> ResultBuffers<Half> {
    let mut on_gpu = upload(case, images);
    on_gpu.launch().unwrap();
    let result = on_gpu.result().unwrap();
    case.check(&case.inputs::<Half>(), &result).unwrap();
    result
}

/// Full and causal, aligned and ragged; every family takes them.
fn cases() -> Vec<Case> {
    [
        "b2 h8 q512 k512 d64 f16 seed=1",
        "b2 h6/2 q203 k317 d128 f16 mask=causal seed=2",
    ]
    .map(case)
    .to_vec()
}

fn for_each_case_and_family(check: impl Fn(&Case, Images) + Sync) {
    let all = { cases().into_iter() }.flat_map(|case| {
        families()
            .into_iter()
            .map(move |family| (case.clone(), family))
    });
    side_by_side(all, |(case, family)| check(&case, Images::Family(family)));
}

fn launches_repeat(synchronize_every: usize) {
    for_each_case_and_family(|case, images| {
        let first = first_result(case, images);
        let mut on_gpu = upload(case, images);
        for launch in 1..=LAUNCHES {
            on_gpu.launch().unwrap();
            if launch % synchronize_every == 0 {
                on_gpu.stream().synchronize().unwrap();
            }
        }
        assert!(
            same_bits(&first, &on_gpu.result().unwrap()),
            "{case} on {images:?}"
        );
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn synchronizing_after_each_launch() {
    launches_repeat(1);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn synchronizing_after_every_tenth_launch() {
    launches_repeat(10);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn synchronizing_once_at_the_end() {
    launches_repeat(usize::MAX);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_one_of_the_launches_gives_the_bits_of_the_first() {
    for_each_case_and_family(|case, images| {
        let first = first_result(case, images);
        let mut on_gpu = upload(case, images);
        for launch in 0..100 {
            on_gpu.poison().unwrap();
            on_gpu.launch().unwrap();
            assert!(
                same_bits(&first, &on_gpu.result().unwrap()),
                "{case} on {images:?}, launch {launch}"
            );
        }
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn launches_on_four_streams_at_once() {
    for synchronize_every in [1, 10, usize::MAX] {
        for_each_case_and_family(|case, images| {
            let first = first_result(case, images);
            let mut streams: Vec<_> = (0..4).map(|_| upload(case, images)).collect();
            for launch in 1..=LAUNCHES {
                for on_gpu in &mut streams {
                    on_gpu.launch().unwrap();
                    if launch % synchronize_every == 0 {
                        on_gpu.stream().synchronize().unwrap();
                    }
                }
            }
            for on_gpu in &streams {
                assert!(
                    same_bits(&first, &on_gpu.result().unwrap()),
                    "{case} on {images:?}"
                );
            }
        });
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn launches_from_four_threads_at_once() {
    for_each_case_and_family(|case, images| {
        let first = first_result(case, images);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut on_gpu = upload(case, images);
                    for _ in 0..LAUNCHES {
                        on_gpu.launch().unwrap();
                    }
                    assert!(
                        same_bits(&first, &on_gpu.result().unwrap()),
                        "{case} on {images:?}"
                    );
                });
            }
        });
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn replays_of_a_captured_graph() {
    for_each_case_and_family(|case, images| {
        let first = first_result(case, images);
        let mut on_gpu = upload(case, images);
        let stream = on_gpu.stream().clone();
        let graph = Graph::capture(&stream, |_| (0..10).try_for_each(|_| on_gpu.launch())).unwrap();
        for synchronize_every in [1, 10, usize::MAX] {
            on_gpu.poison().unwrap();
            for replay in 1..=LAUNCHES / 10 {
                graph.launch(&stream).unwrap();
                if replay % synchronize_every == 0 {
                    stream.synchronize().unwrap();
                }
            }
            assert!(
                same_bits(&first, &on_gpu.result().unwrap()),
                "{case} on {images:?}"
            );
        }
    });
}

/// Parts of a tile are added up by whichever warps come first, in an order of their own: the bits stay, also beside a launch that keeps
/// multiprocessors busy.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn sums_by_all_who_left_a_part_repeat() {
    let others = case("b2 h16 q2048 k2048 d128 f16 seed=9");
    for (problem, image) in [
        (
            "b1 h48/1 q1 k20000 d128 f16 seed=1",
            "wgmma_d128_128x128_w12_s2_f16_serving_groups_sm_90a",
        ),
        (
            "b3 h16/1 q5 k9000 d256 f16 mask=causal seed=2",
            "wgmma_d256_128x64_w12_s2_f16_serving_groups_sm_90a",
        ),
        (
            "b2 h71/1 q2 k7000 d64 f16 mask=causal seed=3",
            "wgmma_d64_128x128_w12_s2_f16_serving_groups_sm_90a",
        ),
    ] {
        let Some(image) = warptile_kernels::catalog()
            .iter()
            .find(|one| one.name == image)
        else {
            panic!("no image {image}");
        };
        if !image
            .target
            .runs_on(gpu().profile().major, gpu().profile().minor)
        {
            continue;
        }
        let (case, images) = (case(problem), Images::One(image));
        let first = first_result(&case, images);
        let mut on_gpu = upload(&case, images);
        let mut beside = upload(&others, Images::Family(Family::Wgmma));
        for launch in 1..=LAUNCHES {
            if launch % 7 == 0 {
                beside.launch().unwrap();
            }
            on_gpu.launch().unwrap();
            if launch % 100 == 0 {
                let again = on_gpu.result().unwrap();
                assert!(same_bits(&first, &again), "{case} after {launch} launches");
            }
        }
    }
}
