//! Outputs with lists of blocks by the emulated kernels of `mma`.

use std::sync::Arc;

use half::{bf16, f16};
use quickcheck::{QuickCheck, TestResult};
use warptile::gpu::Bindings;
use warptile::kernels::{Family, Features, Image, Role, images_for};
use warptile::plan::Choice;
use warptile::spec::Operand;
use warptile::{Element, ElementType};
use warptile_check::{Case, DeviceInputs, Ferry, Result};
use warptile_driver::DeviceBuffer;

use crate::place::{Emulated, with_emulated};

fn verify<T: Element>(case: &Case, place: &Emulated) -> Result<TestResult> {
    let inputs = case.inputs::<T>();
    let plan = case.plan(&place.gpu, &MMA)?;
    assert!(plan.image().unwrap().features.contains(Features::BLOCKS));
    let stream = place.gpu.stream();
    let mut on_gpu = case.upload_on(&inputs, &place.gpu, stream, &Arc::default(), &plan)?;
    on_gpu.launch()?;
    place.run_launches();
    let result = on_gpu.result()?;
    let checked = case.check_against(&case.expectation(&inputs)?, &result);
    Ok(match checked {
        Ok(_) => TestResult::passed(),
        Err(failure) => TestResult::error(format!("{case}: {failure}")),
    })
}

/// By the kernel of `mma` that the planner chooses.
fn verdict(case: &Case) -> TestResult {
    let verdict = with_emulated(|place| match case.element {
        ElementType::F16 => verify::<f16>(case, place),
        _ => verify::<bf16>(case, place),
    });
    verdict.unwrap_or_else(|error| TestResult::error(format!("{case}: {error}")))
}

const MMA: Choice = Choice::Family(Family::Mma);

/// Lengths of problems with lists, for outputs and gradients.
pub(crate) const LENGTHS: [&str; 6] = [
    "b2 q200 k330",
    "b1 q1 k1",
    "packed=70x130,1x1,0x3,200x77",
    "b2 q130 k70 used=100x70,3x64",
    "b1 q300 k600 device-lengths",
    "b1 q70 k0",
];

#[test]
#[ignore = "needs g++"]
fn outputs_with_lists_of_blocks_equal_float64() {
    for lengths in LENGTHS {
        for heads in [
            "h2/1 d64 f16 blocks=64x64",
            "h2 d128 bf16 mask=causal blocks=64x128,head",
            "h4/2 d96/72 bf16 mask=window,100,40 blocks=128x64,batch,head sinks",
            "h6/2 d192 f16 blocks=128x128,batch softcap=2 keymask",
            "h2 d256 bf16 mask=causal blocks=64x64,head alibi=head bias",
            "h2/1 d200 f16 blocks=64x64,head scale=-0.2 mask=causal diagonal=top-left",
        ] {
            let mut words = format!("{lengths} {heads} seed=3");
            if lengths.starts_with("packed") {
                words = words.replace(" keymask", "").replace(" bias", "");
            }
            let failed = verdict(&words.parse().unwrap());
            assert!(!failed.is_failure(), "{words}: {failed:?}");
        }
    }
    // More blocks than a tile notes at once, and of many the few that the mask shows.
    for words in [
        "b1 q64 k12000 h1 d64 bf16 blocks=64x64,150 seed=5",
        "b1 q64 k20000 h1 d192 f16 blocks=64x128 seed=6",
        "b1 q70 k12000 h2/1 d64 f16 blocks=64x64,head mask=window,300,20 seed=7",
    ] {
        let failed = verdict(&words.parse().unwrap());
        assert!(!failed.is_failure(), "{words}: {failed:?}");
    }
}

#[test]
#[ignore = "needs g++"]
fn random_outputs_with_lists_of_blocks_equal_float64() {
    fn equal(seed: u64) -> TestResult {
        let of_mma = |image: &&Image| {
            image.family == Family::Mma && image.features.contains(Features::BLOCKS)
        };
        let images: Vec<_> = images_for(Role::Forward).filter(of_mma).collect();
        let case = Case::random_with_work(seed, 300, 1_000_000);
        let case = case.for_image(images[seed as usize % images.len()]);
        match with_emulated(|place| case.plan(&place.gpu, &MMA).is_err()) {
            true => TestResult::discard(),
            false => verdict(&case),
        }
    }
    QuickCheck::new()
        .tests(100)
        .max_tests(2000)
        .quickcheck(equal as fn(u64) -> TestResult);
}

/// Lists on the device in any order are the same lists, up to the order of additions; numbers of no block are left out; what is no list ends
/// a launch, and the next one has the same bits as the first.
#[test]
#[ignore = "needs g++"]
fn lists_on_the_device_may_hold_anything() {
    for words in [
        "b1 q200 k330 h2 d64 bf16 blocks=64x64,head device-lengths seed=4",
        "b1 q200 k330 h2/1 d192 bf16 blocks=128x64 mask=causal device-lengths seed=4",
    ] {
        let case: Case = words.parse().unwrap();
        with_emulated(|place| {
            let (gpu, stream) = (&place.gpu, place.gpu.stream());
            let call = case.call_on_gpu().unwrap();
            let prepared = gpu.load(case.plan(gpu, &MMA).unwrap()).unwrap();
            let inputs = case.inputs::<bf16>();
            let inputs = DeviceInputs::upload(stream, &Ferry::default(), &inputs).unwrap();
            let [rows, count] = call.blocks().unwrap().counts();
            let bytes = call.expected()[Operand::Out].bytes.reach() as usize;
            let run = |offsets: &[i32], indices: &[i32]| -> Vec<u8> {
                assert_eq!([offsets.len(), indices.len()], [rows, count]);
                let lists = [offsets, indices]
                    .map(|list| DeviceBuffer::<i32>::from_slice(stream, list).unwrap());
                let mut out = DeviceBuffer::<u8>::filled(stream, bytes, 0xFF).unwrap();
                let mut lse = DeviceBuffer::<f32>::zeroed(stream, 400).unwrap();
                let mut bindings = Bindings::default();
                inputs.add_to(&mut bindings).unwrap();
                bindings.set(Operand::BlockOffsets, lists[0].as_slice());
                bindings.set(Operand::BlockIndices, lists[1].as_slice());
                bindings.set_output(Operand::Out, out.as_slice_mut());
                bindings.set_output(Operand::Lse, lse.as_slice_mut());
                prepared.launch(stream, &call, &bindings).unwrap();
                place.run_launches();
                out.to_vec().unwrap()
            };
            let of_a_row = (count / (rows - 1)).min(5);
            assert!(of_a_row > 2, "{rows} offsets, {count} indices");
            let offsets: Vec<i32> = (0..rows).map(|row| (row * of_a_row) as i32).collect();
            let ascending: Vec<i32> = (0..count).map(|i| (i % of_a_row) as i32).collect();
            let expected = run(&offsets, &ascending);
            assert!(
                expected.chunks(2).all(|bf16| bf16 != [0xFF; 2]),
                "NaNs are left"
            );
            let descending: Vec<i32> = { ascending.iter() }
                .map(|block| of_a_row as i32 - 1 - block)
                .collect();
            let found = run(&offsets, &descending);
            for (found, expected) in found.chunks(2).zip(expected.chunks(2)) {
                let [found, expected] = [found, expected]
                    .map(|bytes| bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32());
                assert!((found - expected).abs() < 0.02, "{found}, not {expected}");
            }
            let with_last = |block: i32| -> Vec<i32> {
                let mut lists = ascending.clone();
                { lists.iter_mut().skip(of_a_row - 1).step_by(of_a_row) }
                    .for_each(|last| *last = block);
                lists
            };
            let shortened = run(&offsets, &with_last(-1));
            assert!(shortened != expected);
            for of_no_block in [6, i32::MAX] {
                assert!(
                    run(&offsets, &with_last(of_no_block)) == shortened,
                    "{words}"
                );
            }
            // Nothing counts behind a number below 0.
            let ended = |behind: Option<i32>| -> Vec<i32> {
                let of_row = |(i, block): (usize, &i32)| match i % of_a_row {
                    0 => *block,
                    1 => -1,
                    _ => behind.unwrap_or(*block),
                };
                ascending.iter().enumerate().map(of_row).collect()
            };
            assert!(run(&offsets, &ended(None)) == run(&offsets, &ended(Some(-1))));
            for garbage in [i32::MAX, i32::MIN, -5, count as i32 + 7] {
                let some = |numbers: &[i32]| -> Vec<i32> {
                    let every =
                        |(i, number): (usize, &i32)| if i % 3 == 1 { garbage } else { *number };
                    numbers.iter().enumerate().map(every).collect()
                };
                run(&some(&offsets), &ascending);
                run(&offsets, &some(&ascending));
                run(&vec![garbage; rows], &vec![garbage; count]);
            }
            assert!(run(&offsets, &ascending) == expected, "{words}");
        });
    }
}
