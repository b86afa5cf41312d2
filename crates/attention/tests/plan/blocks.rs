//! Lists of blocks: which images compute them, and what is refused before a launch.

use warptile::plan::{BackwardProblem, Choice, DeviceProfile, Plan, Planner};
use warptile::spec::{Backward, Operand};
use warptile_kernels::{Family, Features, Role, images_for};

use crate::{case, choice, device};

#[test]
fn on_hopper_lists_of_16_bits_are_for_tensor_cores() {
    for dim in (8..=256).step_by(8) {
        for element in ["f16", "bf16"] {
            for words in [
                "blocks=64x64",
                "blocks=64x128,head mask=causal",
                "blocks=128x64,batch",
                "blocks=128x128,batch,head sinks mask=window,100,3",
            ] {
                let plan = choice(&format!("b2 q700 k900 h8/2 d{dim} {element} {words}"));
                let image = plan.image().unwrap();
                assert_eq!(image.family, Family::Wgmma, "{dim} {words}: {plan}");
                assert!(image.features.contains(Features::BLOCKS));
            }
        }
    }
}

/// Everywhere with every score, by `mma` where `wgmma` has no kernel.
#[test]
fn all_gpus_take_lists_of_16_bits_with_every_score() {
    let gpus = gpus();
    for (at, gpu) in gpus.iter().enumerate() {
        for dim in (8..=256).step_by(8) {
            for words in [
                "f16 blocks=64x64 softcap=2",
                "bf16 blocks=128x64,head alibi=head mask=causal",
                "f16 blocks=64x128 bias keymask sinks",
                "bf16 blocks=128x128,batch scale=-1",
                "f16 blocks=128x128 mask=window,100,3",
            ] {
                let words = format!("b2 q700 k900 h8/2 d{dim} {words}");
                let plan = Plan::gpu(case(&words).call().problem(), gpu, &Choice::Best).unwrap();
                let image = plan.image().unwrap();
                assert!(image.features.contains(Features::BLOCKS), "{plan}");
                let plain = words.contains("window") && at == 0;
                let family = if plain { Family::Wgmma } else { Family::Mma };
                assert_eq!(image.family, family, "{words}: {plan}");
            }
        }
        let f32 = case("b1 q300 k300 h2 d64 f32 blocks=64x64").call();
        let error = Plan::gpu(f32.problem(), gpu, &Choice::Best).unwrap_err();
        assert!(error.to_string().contains("lists of blocks"), "{error}");
    }
}

/// One GPU for each list of images, and a newer one.
fn gpus() -> [DeviceProfile; 6] {
    let shared = crate::CONSUMER_SHARED_BYTES;
    [
        DeviceProfile::h200(),
        device(8, 0, 166_912),
        device(8, 9, shared),
        device(10, 0, 232_448),
        device(12, 0, shared),
        device(13, 0, 232_448),
    ]
}

/// Tiles of 64 rows where rows of 64 have lists of their own, while there are such.
#[test]
fn tiles_are_those_of_the_blocks() {
    for (blocks, rows) in [("64x64", 64), ("128x128", 128)] {
        let words = format!("b1 q32768 k32768 h8 d128 bf16 blocks={blocks},64");
        let tiling = choice(&words).image().unwrap().tiling;
        assert_eq!(tiling.block_m, rows, "{blocks}");
    }
}

/// What no list names is not read: the estimate is that of as many keys without lists, within a factor of 2.
#[test]
fn estimates_of_few_blocks_of_many_keys_are_of_these_blocks() {
    for gpu in &gpus() {
        for (heads, words) in [
            ("h8", "blocks=64x64,64"),
            ("h8/1", "blocks=64x64,head,64 softcap=3"),
        ] {
            let us = |keys: usize, words: &str| {
                let words = format!("b1 q64 k{keys} {heads} d128 bf16 {words}");
                let plan = Plan::gpu(
                    case(&words).call().problem(),
                    gpu,
                    &Choice::Family(Family::Mma),
                );
                plan.unwrap().estimate_us()
            };
            let (few, listed) = (us(4096, words), us(1 << 20, words));
            assert!(
                listed < 2.0 * few,
                "{}: {words}: {listed} after {few} us",
                gpu.name
            );
        }
    }
}

#[test]
fn lists_and_what_no_kernel_has_with_them_are_an_error_that_says_so() {
    let h200 = DeviceProfile::h200();
    for words in [
        "b2 q1 k400 h8/2 d128 bf16 pages=16 blocks=64x64",
        "b2 q100 k400 h8/2 d128 bf16 splits=512 blocks=64x64",
        "b2 q1 k400 h8/2 d128 bf16 cache=e4m3 blocks=64x64",
        "b2 q100 k400 h8/2 d128 bf16 dropout=0.5 blocks=64x64",
    ] {
        let error = Plan::gpu(case(words).call().problem(), &h200, &Choice::Best).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("does not support lists of blocks"),
            "{error}"
        );
    }
}

/// By the portable pair, where outputs have kernels.
#[test]
fn gradients_with_lists_of_16_bits_have_kernels() {
    let plan = |device: &DeviceProfile, words: &str| {
        let call = case(words).call();
        let backward = Backward::builder(call)
            .want(Operand::DSinks, words.contains("sinks"))
            .want(Operand::DBias, words.contains("dbias"));
        let problem = BackwardProblem::of(&backward.build().unwrap());
        Planner::new(device).plan_backward(problem, &Choice::Best)
    };
    let gpus = gpus();
    for (gpu, dim) in
        { gpus.iter() }.flat_map(|gpu| (8..=256).step_by(8).map(move |dim| (gpu, dim)))
    {
        for words in [
            "f16 blocks=64x64",
            "bf16 blocks=128x128,batch,head sinks mask=window,100,3",
            "bf16 blocks=64x128,head unaligned softcap=3 keymask",
        ] {
            let plan = plan(gpu, &format!("b2 q700 k900 h8/2 d{dim} {words}")).unwrap();
            let of = |role: Role| {
                let mut steps = plan.steps().iter();
                steps.find(|step| step.image.role == role).unwrap().image
            };
            for image in [of(Role::KeyGradients), of(Role::QueryGradients)] {
                assert!(image.features.contains(Features::BLOCKS), "{}", image.name);
                assert!(dim <= image.tiling.head_dim as usize);
            }
        }
    }
    let h200 = DeviceProfile::h200();
    // Of lists with as many blocks a row they know how much there is to do.
    let [few, all] = ["64x64,32", "64x64"].map(|blocks| {
        let words = format!("q16384 h8 d128 bf16 blocks={blocks}");
        plan(&h200, &words).unwrap().estimate_us()
    });
    assert!(few < all / 3.0, "{few} of {all} us");
    for words in ["d64 f32", "d64 f16 dropout=0.1", "d64 f16 bias dbias"] {
        let error = plan(&h200, &format!("q300 h2 {words} blocks=64x64")).unwrap_err();
        assert!(error.to_string().contains("lists of blocks"), "{error}");
    }
}

#[test]
fn an_image_with_lists_computes_nothing_else() {
    let plain = case("b2 q512 k512 h8 d64 f16").call().problem();
    let h200 = DeviceProfile::h200();
    let images = || images_for(Role::Forward).filter(|one| one.features.contains(Features::BLOCKS));
    assert!(images().count() > 10);
    for image in images().filter(|image| image.target.runs_on(9, 0)) {
        let named = Choice::Image(image.name.to_owned());
        assert!(Plan::gpu(plain, &h200, &named).is_err(), "{}", image.name);
    }
    let error = Plan::gpu(
        plain,
        &h200,
        &Choice::Image("wgmma_d64_64x128_w8_s2_f16_blocks_sm_90a".to_owned()),
    );
    let error = error.unwrap_err().to_string();
    assert!(error.contains("computes lists of blocks only"), "{error}");
}
