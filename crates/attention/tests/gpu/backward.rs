//! Gradients on a GPU against float64, and their bits.

use half::{bf16, f16};
use warptile::gpu::Gpu;
use warptile::kernels::{Image, Role, images_for};
use warptile::plan::{BackwardProblem, Choice, Planner};
use warptile::spec::{Backward, Operand, Slots};
use warptile::{Attention, Backend, Element, ElementType, GradientsInto, Keys, Mask, Queries};
use warptile_check::{AWKWARD_HEAD_DIMS, AWKWARD_LENGTHS, BackwardCase, Case, GradientBuffers};
use warptile_driver::{DeviceBuffer, Driver, Stream};

use crate::harness::{gpu, gpu_of_ptx, quickcheck, ran, side_by_side};

/// Computes a case's gradients with a choice of kernels, and holds them against float64.
fn verify(case: &Case, choice: &Choice) -> Result<f64, String> {
    verify_on(gpu(), case, choice)
}

fn verify_on(gpu: &Gpu, case: &Case, choice: &Choice) -> Result<f64, String> {
    fn typed<T: Element>(gpu: &Gpu, case: &Case, choice: &Choice) -> Result<f64, String> {
        let failed = |failure: String| format!("{case} by {choice}: {failure}");
        let backward = case
            .backward::<T>()
            .map_err(|error| failed(error.to_string()))?;
        let result = backward.run_on_gpu(gpu, choice, || ()).unwrap();
        let expected = backward
            .expectation()
            .map_err(|error| failed(error.to_string()))?;
        { backward.check(&expected, &result) }.map_err(|failure| failed(failure.to_string()))
    }
    match case.element {
        ElementType::F16 => typed::<f16>(gpu, case, choice),
        ElementType::Bf16 => typed::<bf16>(gpu, case, choice),
        _ => typed::<f32>(gpu, case, choice),
    }
}

fn run<T: Element>(backward: &BackwardCase<T>, choice: &Choice) -> GradientBuffers<T> {
    backward.run_on_gpu(gpu(), choice, || ()).unwrap()
}

fn verify_all(cases: impl IntoIterator<Item = (Case, Choice), IntoIter: Send>) {
    side_by_side(cases, |(case, choice)| {
        if let Err(failure) = verify(&case, &choice) {
            panic!("{failure}");
        }
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn random_gradients_equal_float64() {
    fn one(seed: u64) -> quickcheck::TestResult {
        match verify(&Case::random(seed, 300).differentiable(), &Choice::Best) {
            Ok(_) => quickcheck::TestResult::passed(),
            Err(failure) => quickcheck::TestResult::error(failure),
        }
    }
    quickcheck(50).quickcheck(one as fn(u64) -> quickcheck::TestResult);
    let drawn = |seed| Case::random(seed, 400).differentiable().with_dropout();
    verify_all((0..400).map(|seed| (drawn(seed), Choice::Best)));
    side_by_side(0..60, |seed| {
        let case = Case::random(seed, 300).differentiable().with_dropout();
        if let Err(failure) = verify_on(gpu_of_ptx(), &case, &Choice::Best) {
            panic!("{failure}");
        }
    });
}

/// The images that compute gradients here.
fn images() -> impl Iterator<Item = &'static Image> {
    let profile = gpu().profile();
    let of_roles = [
        Role::KeyGradients,
        Role::QueryGradients,
        Role::AllGradients,
        Role::BiasGradients,
    ];
    { of_roles.into_iter().flat_map(images_for) }
        .filter(|image| image.target.runs_on(profile.major, profile.minor))
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_image_equals_float64() {
    for image in images() {
        let largest = image.tiling.head_dim as usize;
        let case = |seed: u64| {
            let mut case = Case::random(seed, 400).differentiable().for_image(image);
            case.heads.dim = (case.heads.dim - 1) % largest + 1;
            case.heads.dim = case.heads.dim.next_multiple_of(8);
            case.heads.value_dim = match seed % 4 {
                0 => case.heads.value_dim.min(largest),
                _ => case.heads.dim,
            };
            // Not every case wants what the image gives, or asks only for what it can.
            let backward = case.backward_of(case.call_on_gpu().unwrap()).unwrap();
            let choice = Choice::Image(image.name.to_owned());
            let planner = Planner::new(gpu().profile());
            let plan = planner.plan_backward(BackwardProblem::of(&backward), &choice);
            plan.is_ok().then_some((case, choice))
        };
        let cases: Vec<_> = (0..4000).filter_map(case).take(40).collect();
        assert_eq!(cases.len(), 40, "{}", image.name);
        verify_all(cases);
        ran(image);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn awkward_shapes_equal_float64() {
    let mut cases = Vec::new();
    for (query, key) in AWKWARD_LENGTHS {
        for mask in ["none", "causal"] {
            if query * key < 1 << 22 {
                cases.push(format!("b1 q{query} k{key} h2/1 d64 bf16 mask={mask}"));
            }
        }
    }
    for head_dim in AWKWARD_HEAD_DIMS {
        for (heads, value_dim) in [("1", head_dim), ("6/2", head_dim), ("8/1", 8)] {
            cases.push(format!(
                "b2 q130 k200 h{heads} d{head_dim}/{value_dim} f16 mask=causal"
            ));
        }
    }
    verify_all(
        cases
            .into_iter()
            .map(|text| (text.parse().unwrap(), Choice::Best)),
    );
}

/// The gradient of a bias, for each set of dimensions that it does not depend on, as long sums too.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gradients_of_biases_equal_float64() {
    let mut cases = Vec::new();
    for lengths in [
        "b2 q300 k520 h4/2 d64 bf16",
        "b4 q130 k70 h2 d128 f16",
        "b3 q200 k200 h2 d200/72 bf16",
        "b2 q260 k130 h2/1 d40 f32",
        "b2 q1 k5 h2 d64 f16",
        "b2 q0 k70 h2 d64 f16",
        "b0 q70 k70 h2 d64 f16",
        "b1 q1500 k1100 h2 d64 bf16",
    ] {
        for options in [
            "mask=causal",
            "softcap=2 mask=window,70,20 alibi=head",
            "dropout=0.3 keymask",
        ] {
            for broadcast in [
                "none",
                "batch",
                "batch,heads",
                "queries",
                "keys",
                "batch,queries,heads,keys",
            ] {
                let text = format!("{lengths} {options} bias dbias broadcast={broadcast}");
                cases.push((text.parse().unwrap(), Choice::Best));
            }
        }
    }
    verify_all(cases);
}

/// Problems that gradients of other libraries failed on.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn named_bugs() {
    let texts = [
        // Hangs, and bad addresses, of empty sequences.
        "packed=0x0,0x1,5x0,0x3,9x9 h4/1 d256 bf16 mask=causal",
        "packed=0x2538,1208x1742,840x840,0x3072 h4/1 d256 bf16",
        // NaN with 76 queries and a key, packed and causal.
        "packed=76x1 h2 d64 bf16 mask=causal",
        "packed=1x76,76x1,3x3 h2 d128 f16 mask=causal",
        "b2 q0 k70 h2 d64 bf16",
        "b2 q70 k0 h2 d64 bf16",
        "b0 q70 k70 h2 d64 bf16",
        // Windows whose tiles see nothing.
        "b1 q640 k640 h8/2 d64 bf16 mask=window,64,0",
        "b1 q640 k300 h8/2 d64 bf16 mask=window,3,0 diagonal=top-left",
        "b1 q300 k640 h8/2 d64 bf16 mask=causal diagonal=top-left",
        // Head sizes of values that differ from those of keys.
        "b1 q200 k200 h8/2 d128/96 bf16",
        "b1 q200 k200 h8/2 d128/40 f16 mask=causal",
        "b1 q200 k200 h8/2 d128/8 bf16",
        "b1 q200 k200 h8/2 d104/160 bf16",
        "b1 q200 k200 h8/2 d104/200 f16",
        "b1 q200 k200 h8/2 d104/208 bf16",
        "b1 q200 k200 h8/2 d104/224 bf16 mask=causal",
        // Rows of another length behind a block's end.
        "b1 q63 k1 h2 d64 bf16 mask=causal",
        "b1 q65 k65 h2 d64 bf16 mask=causal",
        "b1 q127 k129 h2 d96 bf16 mask=causal",
        "b1 q129 k127 h2 d96 bf16 mask=causal",
        // Scales that most kernels do not think of.
        "b1 q130 k130 h2 d64 bf16 scale=0",
        "b1 q130 k130 h2 d64 bf16 scale=-0.5 mask=causal",
        "b1 q704 k704 h2 d64 bf16 mask=causal scale=3",
    ];
    let all = texts.iter().flat_map(|text| {
        (0..4).map(move |seed| (format!("{text} seed={seed}").parse().unwrap(), Choice::Best))
    });
    verify_all(all.collect::<Vec<_>>());
}

/// Repetitions give the same bits, each time over what the last launches left in the workspace.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gradients_repeat_bit_for_bit() {
    let cases = [
        "b2 q500 k600 h8/2 d64 bf16 mask=causal",
        "b2 q500 k600 h4 d128 bf16",
        "packed=300x300,5x700,640x640 h4/2 d128 bf16 mask=causal sinks",
        "b1 q300 k300 h4/1 d256 bf16 mask=window,64,0",
        "packed=300x300,5x700,640x640 h4/2 d192 bf16 mask=causal sinks",
        "b2 q500 k600 h8/2 d64 bf16 mask=causal dropout=0.1",
        "packed=300x300,5x700,640x640 h4/2 d128 bf16 dropout=0.1",
        "b2 q300 k300 h4/1 d256 bf16 dropout=0.1",
        "b4 q500 k600 h8/2 d64 bf16 bias dbias broadcast=batch,heads",
        "b4 q500 k600 h8/2 d128 bf16 mask=causal bias dbias broadcast=queries dropout=0.1",
    ];
    for (index, text) in cases.into_iter().enumerate() {
        let case: Case = text.parse().unwrap();
        let backward = case.backward::<bf16>().unwrap();
        let other: Case = cases[(index + 1) % cases.len()].parse().unwrap();
        let other = other.backward::<bf16>().unwrap();
        let first = run(&backward, &Choice::Best).bits();
        for _ in 0..50 {
            run(&other, &Choice::Best);
            assert!(run(&backward, &Choice::Best).bits() == first, "{case}");
        }
    }
}

/// Nothing of the workspace counts, and none of it has to be cleared but the counter.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_workspace_may_hold_anything() {
    let gpu = gpu();
    let stream = Stream::new(gpu.context()).unwrap();
    let case: Case = "b2 q300 k400 h4/2 d64 bf16 mask=causal".parse().unwrap();
    let data = case.backward::<bf16>().unwrap();
    let backward = Backward::builder(case.call()).build().unwrap();
    let prepared = gpu.prepare_for(&backward, &Choice::Best).unwrap();
    let upload = |bytes: &[u8]| DeviceBuffer::from_slice(&stream, bytes).unwrap();
    let mut addresses = Slots::<u64>::default();
    let mut inputs = Vec::new();
    for (operand, buffer) in [
        (Operand::Q, &data.inputs.q),
        (Operand::K, &data.inputs.k),
        (Operand::V, &data.inputs.v),
    ] {
        inputs.push(upload(bytemuck::cast_slice(buffer.elements())));
        addresses[operand] = inputs[inputs.len() - 1].pointer();
    }
    for operand in [Operand::Out, Operand::DOut, Operand::Lse] {
        let (bytes, first) = data.inputs.others[operand].as_ref().unwrap().bytes();
        inputs.push(upload(&bytes[first..]));
        addresses[operand] = inputs[inputs.len() - 1].pointer();
    }
    let layouts = [
        (Operand::DQ, backward.call().q()),
        (Operand::DK, backward.call().k()),
        (Operand::DV, backward.call().v()),
    ];
    let results = [0, 1, 0x7f, 0xff].map(|poison: u8| {
        let outputs = layouts.map(|(_, layout)| {
            let poisoned = vec![bf16::NAN; layout.reach()];
            DeviceBuffer::from_slice(&stream, &poisoned).unwrap()
        });
        for ((operand, _), output) in layouts.iter().zip(&outputs) {
            addresses[*operand] = output.pointer();
        }
        let mut workspace = vec![poison; prepared.scratch().bytes];
        workspace[..256].fill(0);
        let workspace = upload(&workspace);
        // SAFETY: the addresses are those of memory that the layouts fit, and the stream is waited for.
        unsafe {
            stream
                .context()
                .within(|| {
                    prepared.launch_raw(stream.raw(), &backward, &addresses, workspace.pointer())
                })
                .unwrap();
        }
        outputs.map(|output| {
            let values: Vec<bf16> = output.to_vec().unwrap();
            assert!(values.iter().all(|x| x.is_finite()));
            values
        })
    });
    assert!(results.iter().all(|result| *result == results[0]));
}

/// Gradients of `f32`, those that are added to what is there, and sums and parts of keys for those who add up several calls.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gradients_are_written_in_f32_and_added() {
    fn of<T: Element>(head_dim: usize, kv_heads: usize) {
        let backend = Backend::from_gpu(Gpu::new(&Driver::load().unwrap(), 0).unwrap().into());
        let (rows, keys) = ([2, 200, 4, head_dim], [2, 333, kv_heads, head_dim]);
        let tensor = |shape: [usize; 4], factor: f64| {
            let numbers = (0..shape.iter().product::<usize>()).map(|i| (i as f64 * factor).sin());
            let numbers: Vec<T> = numbers.map(T::from_f64).collect();
            backend.tensor(&numbers, shape).unwrap()
        };
        let (q, k, v) = (tensor(rows, 0.31), tensor(keys, 0.57), tensor(keys, 0.73));
        let d_out = tensor(rows, 0.91);
        let attention = Attention::new().mask(Mask::causal());
        let output = attention.forward(&q, (&k, &v)).unwrap();
        let filled = |number: f32, shape: [usize; 4]| {
            let numbers = vec![number; shape.iter().product()];
            backend.tensor(&numbers, shape).unwrap()
        };
        let plain = attention.backward(&d_out, &q, (&k, &v), &output).unwrap();
        let in_f32 = |adds: bool| {
            let mut to =
                [rows, keys, keys].map(|shape| filled(if adds { 1.0 } else { f32::NAN }, shape));
            let [dq, dk, dv] = &mut to;
            let into = GradientsInto::new().dq(dq).dk(dk).dv(dv);
            let into = if adds { into.add() } else { into };
            attention
                .backward_into(&d_out, &q, (&k, &v), &output, into)
                .unwrap();
            to.map(|tensor| tensor.to_vec().unwrap())
        };
        let (wide, added) = (in_f32(false), in_f32(true));
        let rounded = [&plain.dq, &plain.dk, &plain.dv].map(|tensor| tensor.to_vec().unwrap());
        for (index, rounded) in rounded.iter().enumerate() {
            for ((wide, added), rounded) in wide[index].iter().zip(&added[index]).zip(rounded) {
                let words = || format!("{} {head_dim} {index}: {wide} {added}", T::TYPE);
                assert_eq!(T::from_f32(*wide).to_f32(), rounded.to_f32(), "{}", words());
                assert!(
                    (1.0 + wide - added).abs() <= 2.0 * f32::EPSILON * (1.0 + wide.abs()),
                    "{}",
                    words()
                );
            }
        }
        for parts in [false, true] {
            let mut dq = tensor(rows, 0.0);
            let mut to = [1.0, 1.0].map(|one| filled(one, keys));
            let [dk, dv] = &mut to;
            let into = GradientsInto::new().dq(&mut dq);
            let into = match parts {
                true => into.key_parts(dk, dv),
                false => into.key_sums(dk, dv),
            };
            attention
                .backward_into(&d_out, &q, (&k, &v), &output, into)
                .unwrap();
            let expected = if parts { &wide } else { &added };
            let found = to.map(|tensor| tensor.to_vec().unwrap());
            assert!(found == expected[1..], "{} {head_dim} {parts}", T::TYPE);
            let dq: Vec<f32> = dq
                .to_vec()
                .unwrap()
                .iter()
                .map(|x: &T| x.to_f32())
                .collect();
            assert!(dq.iter().zip(&rounded[0]).all(|(x, y)| *x == y.to_f32()));
        }
    }
    for (head_dim, kv_heads) in [(40, 4), (64, 2), (96, 4), (128, 1), (192, 2), (256, 4)] {
        of::<bf16>(head_dim, kv_heads);
        of::<f16>(head_dim, kv_heads);
    }
    of::<f32>(64, 2);
}

/// The user's level on a GPU gives what the CPU gives, except for rounding.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gradients_are_those_of_the_cpu() {
    let backends = [
        Backend::from_gpu(Gpu::new(&Driver::load().unwrap(), 0).unwrap().into()),
        Backend::cpu(),
    ];
    let [found, expected] = backends.map(|backend| {
        let (rows, keys) = ([1, 90, 4, 64], [1, 70, 2, 64]);
        let tensor = |shape: [usize; 4], factor: f32| {
            let count = shape.iter().product::<usize>();
            let data: Vec<f32> = (0..count).map(|i| (i as f32 * factor).sin()).collect();
            backend.tensor(&data, shape).unwrap()
        };
        let (q, k, v) = (tensor(rows, 0.31), tensor(keys, 0.57), tensor(keys, 0.73));
        let d_out = tensor(rows, 0.91);
        let attention = Attention::new()
            .mask(Mask::causal())
            .sinks(&[0.5, 0.0, -1.0, 2.0]);
        // Rows behind the last offset belong to no sequence.
        let queries = || Queries::new(&q).packed(&[0, 20, 85]);
        let of_keys = || Keys::new(&k, &v).packed(&[0, 33, 66]);
        let output = attention.forward(queries(), of_keys()).unwrap();
        let all = attention
            .backward(&d_out, queries(), of_keys(), &output)
            .unwrap();
        let sinks = all.d_sinks().unwrap().to_vec().unwrap();
        [all.dq, all.dk, all.dv]
            .map(|gradient| gradient.to_vec().unwrap())
            .into_iter()
            .chain([sinks])
            .collect::<Vec<_>>()
    });
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found.len(), expected.len());
        for (x, y) in found.iter().zip(expected) {
            assert!((x - y).abs() <= 1e-4 * (1.0 + y.abs()), "{x} {y}");
        }
    }
}
