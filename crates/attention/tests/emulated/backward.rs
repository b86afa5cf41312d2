//! Backward passes by the emulated kernels.

use half::{bf16, f16};
use quickcheck::{QuickCheck, TestResult};
use warptile::gpu::Bindings;
use warptile::kernels::Family;
use warptile::plan::{BackwardProblem, Choice, Planner};
use warptile::spec::{Backward, KeyGradients, Operand};
use warptile::{Element, ElementType};
use warptile_check::{Case, DeviceInputs, Failure, Ferry};
use warptile_driver::{DeviceBuffer, Stream};

use crate::lists::LENGTHS;
use crate::place::{Emulated, with_emulated};

fn verify<T: Element>(case: &Case, choice: &Choice, place: &Emulated) -> Result<f64, Failure> {
    let backward = case.backward::<T>()?;
    let result = backward.run_on_gpu(&place.gpu, choice, || place.run_launches())?;
    backward.check(&backward.expectation()?, &result)
}

fn verdict(case: &Case, choice: &Choice) -> TestResult {
    let verdict = with_emulated(|place| match case.element {
        ElementType::F16 => verify::<f16>(case, choice, place),
        ElementType::Bf16 => verify::<bf16>(case, choice, place),
        _ => verify::<f32>(case, choice, place),
    });
    match verdict {
        Ok(_) => TestResult::passed(),
        Err(failure) => TestResult::error(format!("{case}: {failure}")),
    }
}

/// The families of a plan's kernels.
fn families_of(case: &Case, choice: &Choice) -> Vec<Family> {
    let backward = Backward::builder(case.call()).build().unwrap();
    let problem = BackwardProblem::of(&backward);
    let plan = with_emulated(|place| {
        Planner::new(place.gpu.profile())
            .plan_backward(problem, choice)
            .unwrap()
    });
    { plan.steps().iter() }
        .map(|step| step.image.family)
        .collect()
}

/// Memory for the gradients that are wanted.
fn poisoned(stream: &Stream, backward: &Backward) -> Vec<(Operand, DeviceBuffer<u8>)> {
    let wanted = { Operand::GRADIENTS.into_iter() }.filter(|operand| backward.wants(*operand));
    let filled = |operand: Operand| {
        let bytes = backward.expected()[operand].bytes.reach() as usize;
        DeviceBuffer::filled(stream, bytes, 0xFF).unwrap()
    };
    wanted.map(|operand| (operand, filled(operand))).collect()
}

/// Problems by name, each with all `heads`, by a plan with the kernels of all `families`. `longest` has several tiles of keys.
fn equal_float64(families: &[Family], heads: &[&str], longest: &str) {
    for (lengths, masks) in [
        ("b1 q64 k128", &["none"][..]),
        ("b1 q1 k1", &["none", "causal"]),
        ("b1 q200 k300", &["none", "causal", "window,70,30"]),
        ("b2 q130 k70", &["causal", "causal diagonal=top-left"]),
        (
            "b1 q70 k300",
            &["window,5,0 diagonal=top-left", "causal diagonal=40"],
        ),
        (longest, &["window,64,0", "causal diagonal=-60 sinks"]),
        (
            "packed=70x130,1x1,0x3,64x128,5x0,200x77",
            &["none", "causal", "window,20,5"],
        ),
        ("b2 q0 k70", &["none"]),
        ("b2 q70 k0", &["none"]),
    ] {
        for mask in masks {
            for heads in heads {
                let mut text = format!("{lengths} {heads} mask={mask}");
                if heads.contains("alibi") {
                    text = text.replace(" sinks", "");
                }
                let case: Case = text.parse().unwrap();
                let choice = Choice::Family(families[0]);
                let planned = families_of(&case, &choice);
                assert!({ families.iter() }.all(|family| planned.contains(family)));
                let failed = verdict(&case, &choice);
                assert!(!failed.is_failure(), "{failed:?}");
            }
        }
    }
}

#[test]
#[ignore = "needs g++"]
fn gradients_in_one_pass_equal_float64() {
    let heads = [
        "h2 d64 bf16",
        "h2/1 d128 f16",
        "h2/1 d40 f16",
        "h1 d96/88 f16",
        "h1 d104/72 bf16",
    ];
    equal_float64(&[Family::Dqkv], &heads, "b1 q300 k520");
}

/// Softcap and ALiBi, each alone.
#[test]
#[ignore = "needs g++"]
fn gradients_in_one_pass_with_options_equal_float64() {
    let heads = [
        "h2 d64 bf16 softcap=2",
        "h4/2 d40 f16 alibi=batch",
        "h2/1 d128 f16 softcap=0.5",
        "h2 d128 bf16 alibi=head",
        "h1 d96/88 f16 softcap=3",
        "h4/1 d96 bf16 alibi=head",
    ];
    equal_float64(&[Family::Dqkv], &heads, "b1 q300 k520");
    // By name they run for calls without these, too.
    for option in ["softcap", "alibi"] {
        let choice = Choice::Image(format!("dqkv_d64_64x192_w16_s2_bf16_{option}_sm_90a"));
        let failed = verdict(&"b2 q70 k200 h2 d64 bf16".parse().unwrap(), &choice);
        assert!(!failed.is_failure(), "{failed:?}");
    }
}

#[test]
#[ignore = "needs g++"]
fn gradients_of_large_heads_equal_float64() {
    let heads = ["h2/1 d192 bf16", "h2 d256 f16", "h1 d136/72 f16"];
    equal_float64(&[Family::Wdkv, Family::Wdq], &heads, "b1 q300 k200");
}

/// Softcap and ALiBi, each alone.
#[test]
#[ignore = "needs g++"]
fn gradients_of_large_heads_with_options_equal_float64() {
    let heads = [
        "h2/1 d192 bf16 softcap=2",
        "h1 d256 f16 softcap=0.5",
        "h4/2 d136/72 f16 alibi=batch",
        "h2/1 d256 bf16 alibi=head",
    ];
    equal_float64(&[Family::Wdkv, Family::Wdq], &heads, "b1 q150 k140");
}

/// Few rounded numbers, of which each is the error of many elements, give a mean that is far from its expectation.
#[test]
#[ignore = "needs g++"]
fn gradients_of_one_query_equal_float64() {
    for words in [
        "b2 q1 k15 h3/1 d128/120 f16 mask=causal layout=bhsd sms=5 seed=176093662966",
        "b1 q1 k3 h1 d64 f16 seed=4",
        "b1 q2 k1 h2/1 d128 bf16 seed=5",
    ] {
        let failed = verdict(&words.parse().unwrap(), &Choice::Family(Family::Dqkv));
        assert!(!failed.is_failure(), "{failed:?}");
    }
}

/// Two kernels draw the same weights.
#[test]
#[ignore = "needs g++"]
fn gradients_of_large_heads_with_dropout_equal_float64() {
    let heads = [
        "h2/1 d192 bf16 dropout=0.1",
        "h1 d256 f16 dropout=0.5",
        "h1 d136/72 f16 dropout=0.999",
    ];
    equal_float64(&[Family::Wdkv, Family::Wdq], &heads, "b1 q150 k140");
}

#[test]
#[ignore = "needs g++"]
fn gradients_equal_float64() {
    fn one(seed: u64) -> TestResult {
        let case = Case::random_with_work(seed, 150, 400_000).differentiable();
        verdict(&case, &Choice::Best)
    }
    QuickCheck::new()
        .tests(100)
        .quickcheck(one as fn(u64) -> TestResult);
}

/// In one pass warps draw the weights that others keep or drop.
#[test]
#[ignore = "needs g++"]
fn gradients_in_one_pass_with_dropout_equal_float64() {
    let heads = [
        "h2 d64 bf16 dropout=0.1",
        "h4/2 d128 f16 dropout=0.5",
        "h2/1 d96/88 f16 dropout=0.9",
        "h1 d40 bf16 dropout=0.99999",
    ];
    equal_float64(&[Family::Dqkv], &heads, "b1 q300 k520");
    // By name it runs for calls without dropout, too, which have no state.
    let choice = Choice::Image("dqkv_d64_64x192_w16_s2_bf16_dropout_sm_90a".to_owned());
    let failed = verdict(&"b2 q70 k200 h2 d64 bf16".parse().unwrap(), &choice);
    assert!(!failed.is_failure(), "{failed:?}");
}

/// Gradients with dropout, of the mask that the CPU has.
#[test]
#[ignore = "needs g++"]
fn gradients_with_dropout_equal_float64() {
    for lengths in [
        "b2 q70 k130",
        "b1 q1 k1",
        "packed=70x130,1x1,0x3,64x40",
        "b1 q40 k200",
    ] {
        for heads in [
            "h2/1 d64 f16 mask=causal",
            "h2 d128 bf16",
            "h1 d256 f16",
            "h4/2 d24 f32 sinks",
            "h1 d136/72 bf16 softcap=2 mask=window,20,5",
            "h1 d200 f32",
        ] {
            for p in [0.1, 0.5] {
                let case = format!("{lengths} {heads} dropout={p} seed=3");
                let failed = verdict(&case.parse().unwrap(), &Choice::Best);
                assert!(!failed.is_failure(), "{failed:?}");
            }
        }
    }
    // By name they run for calls without dropout, too, which have no state.
    for (image, words) in [
        (
            "dkv_d128_32x32_w4_s1_f32_dropout_sm_90",
            "b2 q40 k70 h2 d128 f32",
        ),
        (
            "dq_d64_64x64_w4_s2_bf16_dropout_sm_90",
            "b1 q70 k40 h2 d64 bf16",
        ),
    ] {
        let failed = verdict(&words.parse().unwrap(), &Choice::Image(image.to_owned()));
        assert!(!failed.is_failure(), "{failed:?}");
    }
}

/// Gradients with lists of blocks, and whatever else their kernels take.
#[test]
#[ignore = "needs g++"]
fn gradients_with_lists_of_blocks_equal_float64() {
    for lengths in LENGTHS {
        for heads in [
            "h2/1 d64 f16 blocks=64x64",
            "h2 d128 bf16 mask=causal blocks=64x128,head",
            "h4/2 d96/72 bf16 mask=window,100,40 blocks=128x64,batch,head sinks",
            "h2/1 d192 f16 blocks=128x128,batch softcap=2 keymask",
            "h1 d256 bf16 mask=causal blocks=64x64,head alibi=head unaligned",
        ] {
            let mut words = format!("{lengths} {heads} seed=3");
            if lengths.starts_with("packed") {
                words = words.replace(" keymask", "");
            }
            let failed = verdict(&words.parse().unwrap(), &Choice::Best);
            assert!(!failed.is_failure(), "{words}: {failed:?}");
        }
    }
    // Far more blocks than a tile notes at once, of which it sees few.
    for words in [
        "b1 q40000 k64 h1 d64 f16 blocks=64x64,head,1 seed=5",
        "b1 q64 k40000 h1 d64 bf16 blocks=64x128,3 seed=6",
        "b1 q64 k20000 h2/1 d64 f16 blocks=64x64,head seed=7",
        "b1 q20000 k64 h3/1 d64 f16 blocks=64x64,head seed=8",
    ] {
        let failed = verdict(&words.parse().unwrap(), &Choice::Best);
        assert!(!failed.is_failure(), "{words}: {failed:?}");
    }
    // What GPUs other than Hopper have.
    for (image, words) in [
        (
            "dkv_d192_32x64_w8_s1_f16_blocks_compute_80",
            "b2 q200 k330 h2/1 d192 f16 blocks=64x64,head mask=causal",
        ),
        (
            "dkv_d256_32x32_w4_s1_bf16_blocks_compute_80",
            "b1 q200 k330 h2/1 d256 bf16 blocks=128x64 softcap=3 keymask",
        ),
        (
            "dq_d256_64x16_w4_s1_f16_blocks_compute_80",
            "b1 q200 k330 h2/1 d256 f16 blocks=64x128,head sinks unaligned",
        ),
    ] {
        let failed = verdict(&words.parse().unwrap(), &Choice::Image(image.to_owned()));
        assert!(!failed.is_failure(), "{words}: {failed:?}");
    }
    // By name they run for calls without lists, too.
    let choice = Choice::Image("dq_d64_64x64_w4_s2_bf16_blocks_sm_90".to_owned());
    let failed = verdict(&"b1 q70 k130 h2 d64 bf16".parse().unwrap(), &choice);
    assert!(!failed.is_failure(), "{failed:?}");
}

/// Lists on the device in any order are the same lists; what is no list ends a launch, and the next one is right.
#[test]
#[ignore = "needs g++"]
fn lists_on_the_device_may_hold_anything() {
    let case = "b1 q200 k330 h2 d64 bf16 blocks=64x64,head device-lengths seed=4";
    let case: Case = case.parse().unwrap();
    with_emulated(|place| {
        let (gpu, stream) = (&place.gpu, place.gpu.stream());
        let data = case.backward::<bf16>().unwrap();
        let backward = case.backward_of(case.call_on_gpu().unwrap()).unwrap();
        let prepared = gpu.prepare_for(&backward, &Choice::Best).unwrap();
        let inputs = DeviceInputs::upload(stream, &Ferry::default(), &data.inputs).unwrap();
        let [rows, count] = backward.call().blocks().unwrap().counts();
        let run = |offsets: &[i32], indices: &[i32]| -> Vec<Vec<u8>> {
            assert_eq!([offsets.len(), indices.len()], [rows, count]);
            let lists = [offsets, indices]
                .map(|list| DeviceBuffer::<i32>::from_slice(stream, list).unwrap());
            let mut bindings = Bindings::default();
            inputs.add_to(&mut bindings).unwrap();
            bindings.set(Operand::BlockOffsets, lists[0].as_slice());
            bindings.set(Operand::BlockIndices, lists[1].as_slice());
            let mut outputs = poisoned(stream, &backward);
            for (operand, memory) in &mut outputs {
                bindings.set_output(*operand, memory.as_slice_mut());
            }
            prepared.launch(stream, &backward, &bindings).unwrap();
            place.run_launches();
            let bytes = outputs.iter().map(|(_, memory)| memory.to_vec().unwrap());
            bytes.collect()
        };
        let of_a_row = (count / (rows - 1)).min(5);
        assert!(of_a_row > 1, "{rows} offsets, {count} indices");
        let offsets: Vec<i32> = (0..rows).map(|row| (row * of_a_row) as i32).collect();
        let ascending: Vec<i32> = (0..count).map(|i| (i % of_a_row) as i32).collect();
        let expected = run(&offsets, &ascending);
        let other: Vec<i32> = ascending
            .iter()
            .map(|block| of_a_row as i32 - 1 - block)
            .collect();
        assert!(run(&offsets, &other) == expected);
        for garbage in [i32::MAX, i32::MIN, -5, count as i32 + 7] {
            let some = |numbers: &[i32]| -> Vec<i32> {
                let every = |(i, number): (usize, &i32)| if i % 3 == 1 { garbage } else { *number };
                numbers.iter().enumerate().map(every).collect()
            };
            run(&some(&offsets), &ascending);
            run(&offsets, &some(&ascending));
            run(&vec![garbage; rows], &vec![garbage; count]);
        }
        assert!(run(&offsets, &ascending) == expected);
    });
}

/// The gradient of a bias, for each set of dimensions that it does not depend on, with what else there may be.
#[test]
#[ignore = "needs g++"]
fn gradients_of_biases_equal_float64() {
    for lengths in [
        "b2 q70 k130",
        "b1 q1 k1",
        "b2 q65 k64 used=65x64,3x20",
        "b1 q130 k70 layout=gaps",
        "b3 q0 k70",
        "b1 q70 k0",
        "b0 q70 k30",
    ] {
        for heads in [
            "h4/2 d64 f16 mask=causal",
            "h2 d136/72 bf16 softcap=2 mask=window,20,5 alibi=head",
            "h2/1 d40/200 f32 sinks softcap=1",
            "h2/1 d64 bf16 dropout=0.3 keymask",
            "h1 d256 f32 dropout=0.5 unaligned",
        ] {
            for broadcast in [
                "none",
                "batch,heads",
                "queries",
                "keys",
                "batch,queries,heads,keys",
            ] {
                let case = format!("{lengths} {heads} bias dbias broadcast={broadcast} seed=3");
                let failed = verdict(&case.parse().unwrap(), &Choice::Best);
                assert!(!failed.is_failure(), "{failed:?}");
            }
        }
    }
}

/// Offsets on the device that do not ascend, so that the first tiles of keys of a sequence are nobody's, end a launch in one pass all the
/// same, and the next one is right.
#[test]
#[ignore = "needs g++"]
fn offsets_that_do_not_ascend_end_a_launch_in_one_pass() {
    let case: Case = "packed=64x256,64x100,64x156 h1 d128 bf16 device-lengths"
        .parse()
        .unwrap();
    with_emulated(|place| {
        let (gpu, stream) = (&place.gpu, place.gpu.stream());
        let data = case.backward::<bf16>().unwrap();
        let backward = case.backward_of(case.call_on_gpu().unwrap()).unwrap();
        let choice = Choice::Family(Family::Dqkv);
        let prepared = gpu.prepare_for(&backward, &choice).unwrap();
        let inputs = DeviceInputs::upload(stream, &Ferry::default(), &data.inputs).unwrap();
        // Number of waits for a turn that did not come.
        let run = |query_offsets: &[i32], key_offsets: &[i32]| {
            let lists = [query_offsets, key_offsets]
                .map(|list| DeviceBuffer::<i32>::from_slice(stream, list).unwrap());
            let mut bindings = Bindings::default();
            inputs.add_to(&mut bindings).unwrap();
            bindings.set(Operand::QueryOffsets, lists[0].as_slice());
            bindings.set(Operand::KeyOffsets, lists[1].as_slice());
            let mut outputs = poisoned(stream, &backward);
            for (operand, memory) in &mut outputs {
                bindings.set_output(*operand, memory.as_slice_mut());
            }
            prepared.launch(stream, &backward, &bindings).unwrap();
            place.run_hostile_launches()
        };
        let (queries, keys) = ([0, 64, 128, 192], [0, 256, 356, 512]);
        assert_eq!(run(&queries, &keys), 0);
        assert!(run(&queries, &[0, 256, 0, 256]) > 0);
        run(&queries, &[512, 0, 512, 0]);
        run(&[192, 0, 192, 0], &keys);
        run(&[0, i32::MAX, i32::MIN, 100], &[7, -1, 300, 2]);
        assert_eq!(run(&queries, &keys), 0);
    });
    let failed = verdict(&case, &Choice::Family(Family::Dqkv));
    assert!(!failed.is_failure(), "{failed:?}");
}

/// Gradients in f32, added to what is there, are those in 16 bits before rounding; also if only those of keys are.
#[test]
#[ignore = "needs g++"]
fn gradients_are_added_in_f32() {
    for words in [
        "b2 q70 k40 h4/2 d64 bf16 mask=causal",
        "b1 q33 k70 h2 d136 bf16",
        "b1 q20 k30 h2 d24 f32 sinks",
        "b2 q70 k40 h4/2 d64 bf16 bias dbias broadcast=queries",
        "b2 q40 k33 h2 d24 f32 bias dbias sinks broadcast=batch",
    ] {
        let case: Case = words.parse().unwrap();
        match case.element {
            ElementType::Bf16 => added::<bf16>(&case),
            _ => added::<f32>(&case),
        }
    }
}

fn added<T: Element>(case: &Case) {
    with_emulated(|place| {
        let (gpu, stream) = (&place.gpu, place.gpu.stream());
        let data = case.backward::<T>().unwrap();
        let run = |gradient_type: ElementType,
                   adds: bool,
                   of_keys: KeyGradients|
         -> Vec<Vec<f32>> {
            let backward = Backward::builder(case.call())
                .d_lse(data.backward.expected()[Operand::DLse].wanted)
                .want_all(case.d_bias)
                .gradient_type(gradient_type)
                .adds(adds)
                .of_keys(of_keys)
                .build()
                .unwrap();
            let prepared = gpu.prepare_for(&backward, &Choice::Best).unwrap();
            let inputs = DeviceInputs::upload(stream, &Ferry::default(), &data.inputs).unwrap();
            let mut bindings = Bindings::default();
            inputs.add_to(&mut bindings).unwrap();
            let mut outputs: Vec<_> = Operand::GRADIENTS
                .into_iter()
                .filter(|operand| backward.wants(*operand))
                .map(|operand| {
                    let slot = backward.expected()[operand];
                    let ones = match slot.size {
                        2 => {
                            bytemuck::cast_slice(&vec![bf16::ONE; slot.bytes.reach() as usize / 2])
                                .to_vec()
                        }
                        _ => bytemuck::cast_slice(&vec![1.0_f32; slot.bytes.reach() as usize / 4])
                            .to_vec(),
                    };
                    (
                        operand,
                        slot.size,
                        DeviceBuffer::<u8>::from_slice(stream, &ones).unwrap(),
                    )
                })
                .collect();
            for (operand, _, memory) in &mut outputs {
                bindings.set_output(*operand, memory.as_slice_mut());
            }
            prepared.launch(stream, &backward, &bindings).unwrap();
            place.run_launches();
            drop(bindings);
            let numbers = |(_, size, memory): (Operand, u64, DeviceBuffer<u8>)| {
                let bytes = memory.to_vec().unwrap();
                match size {
                    2 => bytes
                        .chunks(2)
                        .map(|x| bf16::from_le_bytes([x[0], x[1]]).to_f32())
                        .collect(),
                    _ => bytes
                        .chunks(4)
                        .map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]]))
                        .collect(),
                }
            };
            outputs.into_iter().map(numbers).collect()
        };
        let plain = run(T::TYPE, false, KeyGradients::LikeOthers);
        let wide = run(ElementType::F32, false, KeyGradients::LikeOthers);
        let added = run(ElementType::F32, true, KeyGradients::LikeOthers);
        let with_sums = run(T::TYPE, false, KeyGradients::Sums);
        let with_parts = run(T::TYPE, false, KeyGradients::Parts);
        let wanted = Operand::GRADIENTS.into_iter().filter(|operand| {
            case.call().gradient_layout(*operand).is_some()
                && (*operand != Operand::DBias || case.d_bias)
        });
        for (index, operand) in wanted.enumerate() {
            let expected = match operand {
                Operand::DQ | Operand::DBias => &plain,
                _ => &added,
            };
            assert_eq!(with_sums[index], expected[index], "{case}: {operand:?}");
            let expected = match operand {
                Operand::DK | Operand::DV => &wide,
                _ => expected,
            };
            assert_eq!(with_parts[index], expected[index], "{case}: {operand:?}");
        }
        for (plain, added) in plain.iter().zip(&added) {
            assert_eq!(plain.len(), added.len());
            for (x, y) in plain.iter().zip(added) {
                assert!(
                    (1.0 + x - y).abs() <= x.abs() / 250.0 + 1e-6,
                    "{case}: {x} {y}"
                );
            }
        }
        for (rounded, plain) in run(T::TYPE, true, KeyGradients::LikeOthers)
            .iter()
            .zip(&plain)
        {
            for (x, y) in plain.iter().zip(rounded) {
                assert!(
                    (1.0 + x - y).abs() <= (1.0 + x.abs()) / 100.0,
                    "{case}: {x} {y}"
                );
            }
        }
    });
}
