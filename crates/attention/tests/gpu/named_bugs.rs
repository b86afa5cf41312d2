//! Bugs that other attention libraries shipped, each by name, and the shapes that catch them.

use warptile::gpu::Bindings;
use warptile::kernels::Family;
use warptile::plan::Choice;
use warptile::spec::{Call, Operand, Scoring};
use warptile::{Attention, Backend, ElementType, Error, Layout};
use warptile_check::{AWKWARD_HEAD_DIMS, AWKWARD_LENGTHS, Case, Lengths};
use warptile_driver::DeviceBuffer;

use crate::harness::{
    Images, assert_passes, case, families, families_of, gpu, passes, side_by_side,
};

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn awkward_lengths() {
    side_by_side(AWKWARD_LENGTHS, |(query, key)| {
        for mask in [
            "",
            "mask=causal",
            "mask=causal diagonal=top-left",
            "mask=window,100,20",
        ] {
            assert_passes(&case(&format!(
                "b1 h2 q{query} k{key} d64 f16 {mask} seed=1"
            )));
        }
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn awkward_head_sizes() {
    side_by_side(AWKWARD_HEAD_DIMS, |head_dim| {
        for element in ["f16", "bf16", "f32"] {
            for mask in ["", "mask=causal"] {
                assert_passes(&case(&format!(
                    "b1 h2 q130 k203 d{head_dim} {element} {mask} seed=2"
                )));
            }
        }
    });
}

/// Smaller, larger, and those of DeepSeek's prompts; a row of v ends elsewhere than one of k, and so does a row of out.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn values_of_another_head_size() {
    let sizes = ["192/128", "192/8", "128/40", "64/192", "8/256", "256/136"];
    side_by_side(sizes, |sizes| {
        for element in ["f16", "bf16", "f32"] {
            for problem in [
                "b1 h2 q130 k203",
                "b2 h8/2 q300 k500 mask=causal layout=gaps",
                "packed=100x200,7x350,64x64 h4/2 mask=causal",
                "b3 h8/2 q3 k700 pages=16",
                "b1 h16 q64 k4000",
            ] {
                if problem.contains("pages") && element == "f32" {
                    continue; // no kernel reads pages of f32
                }
                assert_passes(&case(&format!("{problem} d{sizes} {element} seed=2")));
            }
        }
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn grouped_heads_are_deterministic() {
    for heads in ["h1/1", "h6/6", "h6/2", "h8/1", "h32/8"] {
        assert_passes(&case(&format!(
            "b2 {heads} q130 k203 d64 bf16 mask=causal seed=3"
        )));
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn an_empty_key_sequence_gives_zero_and_minus_infinity() {
    for head_dim in [64, 128] {
        assert_passes(&case(&format!("b2 h2 q100 k0 d{head_dim} f16 seed=4")));
        assert_passes(&case(&format!(
            "b2 h2 q100 k0 d{head_dim} f16 mask=causal seed=4"
        )));
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn nothing_to_do_returns_cleanly() {
    for text in [
        "b0 h2 q10 k10 d64 f16 seed=5",
        "b2 h2 q0 k10 d64 f16 seed=5",
        "packed=0x0,0x5 h2 d64 f16 seed=5",
    ] {
        assert_passes(&case(text));
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn fully_masked_rows_are_zero_not_nan() {
    // Bottom-right causal with more queries than keys: the first rows see nothing.
    assert_passes(&case("b1 h2 q300 k100 d64 f16 mask=causal seed=6"));
    assert_passes(&case("b1 h2 q799 k3 d128 bf16 mask=causal seed=6"));
    assert_passes(&case("b1 h2 q300 k100 d64 f16 mask=window,0,0 seed=6"));
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn packed_sequences_of_any_length_do_not_hang_or_lose_the_mask() {
    for mask in ["", "mask=causal", "mask=window,30,0"] {
        assert_passes(&case(&format!(
            "packed=0x3,5x0,1x1,300x17,17x300,128x128,0x0 h4/2 d64 f16 {mask} seed=7"
        )));
        assert_passes(&case(&format!(
            "packed=700x700,1x700,64x64 h2 d128 bf16 {mask} seed=7"
        )));
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn nan_in_the_padding_of_keys_and_values_stays_there() {
    // Packed cases have NaN rows behind every sequence's end that is the tensor's, `gaps` layouts between rows.
    for layout in ["bshd", "bhsd", "gaps"] {
        assert_passes(&case(&format!(
            "packed=33x65,47x81 h2 d64 f16 layout={layout} seed=8"
        )));
        assert_passes(&case(&format!(
            "b2 h2 q33 k65 d72 f16 layout={layout} seed=8"
        )));
        assert_passes(&case(&format!(
            "b2 h2 q33 k65 d64 f16 layout={layout} unaligned seed=8"
        )));
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn offsets_beyond_32_bits() {
    // The last batch entry starts 2^31 elements and more into k and v: an int32 offset would wrap. The stride makes the
    // tensor sparse, so only its ends are touched.
    let gpu = gpu();
    let (heads, rows, head_dim) = (2, 64, 64);
    let far = (1_usize << 31) + 4096;
    let shape = [2, rows, heads, head_dim];
    let dense = Layout::bshd(shape);
    let sparse = Layout::new(shape, [far, dense.strides[1], dense.strides[2], 1]);
    let plain = Case {
        lengths: Lengths::Dense {
            batch: 2,
            query: rows,
            key: rows,
        },
        ..case("b2 h2 q64 k64 d64 f16 seed=9")
    };
    let inputs = plain.inputs::<half::f16>();
    let read = |buffer: &warptile_check::Buffer<half::f16>| {
        let reach = buffer.layout.required_len().unwrap();
        buffer.data[buffer.offset..buffer.offset + reach].to_vec()
    };
    let (q, k, v) = (read(&inputs.q), read(&inputs.k), read(&inputs.v));

    let call = Call::builder(&dense, &sparse, &sparse, ElementType::F16)
        .build()
        .unwrap();
    for family in families() {
        let expected = Images::Family(family).plan(&plain).unwrap();
        let expected = plain.run_on_gpu(&inputs, gpu, &expected).unwrap();
        let prepared = gpu
            .prepare(call.problem(), &Choice::Family(family))
            .unwrap();
        let stream = gpu.stream();
        let spread = |data: &[half::f16]| {
            let entry = data.len() / 2;
            let mut buffer = DeviceBuffer::filled(stream, far + entry, 0xFF).unwrap();
            for (at, half) in [(0, &data[..entry]), (far, &data[entry..])] {
                let mut part = buffer.slice_mut(at..at + entry).unwrap();
                part.copy_from_slice(half).unwrap();
            }
            buffer
        };
        let (q, k, v) = (
            DeviceBuffer::from_slice(stream, &q).unwrap(),
            spread(&k),
            spread(&v),
        );
        let mut out = DeviceBuffer::filled(stream, q.len(), 0xFF).unwrap();
        let mut lse = DeviceBuffer::<f32>::filled(stream, 2 * heads * rows, 0xFF).unwrap();
        let bindings = Bindings::new(q.as_slice(), k.as_slice(), v.as_slice(), out.as_slice_mut())
            .output(Operand::Lse, lse.as_slice_mut());
        prepared.launch(stream, &call, &bindings).unwrap();
        let reach = q.len();
        assert_eq!(
            out.to_vec().unwrap(),
            expected.out[expected.offset..expected.offset + reach],
            "{family}"
        );
        assert_eq!(lse.to_vec().unwrap(), expected.lse, "{family}");
    }
}

/// Dot products that overflow: the score of finite inputs may be infinite, and inf - inf is NaN.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn infinite_logits_make_no_nan() {
    use half::bf16;
    let backend = Backend::cuda(0).unwrap();
    let data = vec![bf16::from_f32(1e30); 70 * 64];
    let tensor = backend.tensor(&data, [1, 70, 1, 64]).unwrap();
    let case = case("q70 k70 d64 bf16 seed=0");
    for family in families_of(ElementType::Bf16) {
        let plan = Images::Family(family).plan(&case).unwrap();
        let attention = Attention::new().choice(Choice::Kernel(plan.kernel_name().to_owned()));
        let output = attention.forward(&tensor, (&tensor, &tensor)).unwrap();
        assert!(output.out.to_vec().unwrap() == data, "{family}");
    }
}

/// A stride of 0 repeats a dimension: keys and values of one head, or of one batch entry, for all.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn repeated_dimensions() {
    let backend = Backend::cuda(0).unwrap();
    let [batch, rows, heads, head_dim] = [2, 200, 4, 64];
    let shape = [batch, rows, heads, head_dim];
    let value = |b: usize, row: usize, head: usize, d: usize| {
        half::f16::from_f32(((b * 131 + row * 17 + head * 71 + d * 3) % 97) as f32 / 50.0 - 1.0)
    };
    let dense = |repeated_batch: bool, repeated_head: bool| -> Vec<half::f16> {
        let indices = (0..batch * rows * heads * head_dim).map(|i| {
            let (b, row) = (i / (rows * heads * head_dim), i / (heads * head_dim) % rows);
            (b, row, i / head_dim % heads, i % head_dim)
        });
        indices
            .map(|(b, row, head, d)| {
                let (b, head) = (
                    if repeated_batch { 0 } else { b },
                    if repeated_head { 0 } else { head },
                );
                value(b, row, head, d)
            })
            .collect()
    };
    let queries = backend.tensor(&dense(false, false), shape).unwrap();
    let case = case("b2 q200 k200 h4 d64 f16 seed=0");
    for (repeated_batch, repeated_head) in [(false, true), (true, false), (true, true)] {
        let data = dense(repeated_batch, repeated_head);
        let keys = backend.tensor(&data, shape).unwrap();
        let mut layout = Layout::bshd(shape);
        if repeated_batch {
            layout.strides[0] = 0;
        }
        if repeated_head {
            layout.strides[2] = 0;
        }
        let reach = layout.required_len().unwrap();
        let repeated = backend.tensor_with_layout(&data[..reach], layout).unwrap();
        for family in families() {
            let plan = Images::Family(family).plan(&case).unwrap();
            let attention = Attention::new().choice(Choice::Kernel(plan.kernel_name().to_owned()));
            let run = |k| attention.forward(&queries, (k, k)).unwrap().out.to_vec();
            assert!(
                run(&keys).unwrap() == run(&repeated).unwrap(),
                "batch repeated: {repeated_batch}, head repeated: {repeated_head}, {family}"
            );
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn huge_logits_make_no_nan() {
    use half::bf16;
    let backend = Backend::cuda(0).unwrap();
    let rows = 300;
    for (head_dim, magnitude) in [64, 128, 256]
        .into_iter()
        .flat_map(|head_dim| [1e4_f32, 1e15, 1e18].map(|magnitude| (head_dim, magnitude)))
    {
        // Every third row is the same, and its dot product with the others is far below that with itself: dot products
        // come near the largest f32, where a rounding of the maximum is worth more than all differences that count.
        let data: Vec<bf16> = (0..rows * head_dim)
            .map(|i| bf16::from_f32(if i % 3 == 0 { magnitude } else { -magnitude }))
            .collect();
        let shape = [1, rows, 1, head_dim];
        let tensor = backend.tensor(&data, shape).unwrap();
        let case = case(&format!("q{rows} k{rows} d{head_dim} bf16 seed=0"));
        // `mma` has no tiles of 256.
        let taking = families_of(ElementType::Bf16)
            .into_iter()
            .filter(|&family| family != warptile::kernels::Family::Mma || head_dim <= 128);
        for family in taking {
            let plan = Images::Family(family).plan(&case).unwrap();
            let attention = Attention::new().choice(Choice::Kernel(plan.kernel_name().to_owned()));
            let output = attention.forward(&tensor, (&tensor, &tensor)).unwrap();
            assert!(
                output.out.to_vec().unwrap() == data,
                "{magnitude} at {head_dim}: {}",
                output.plan.kernel_name()
            );
            let lse = output.lse.unwrap().to_vec().unwrap();
            assert!(lse.iter().all(|lse| lse.is_finite()), "{lse:?}");
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_feature_at_once() {
    for element in ["f16", "bf16", "f32"] {
        let text = format!(
            "packed=130x257,64x3,1x700 h6/2 d88 {element} mask=window,90,10 softcap=15 alibi=batch scale=0.7 sinks layout=gaps \
             unaligned seed=10"
        );
        assert_passes(&case(&text));
    }
    assert!(matches!(
        passes(
            &case("b1 h1 q5 k5 d8 f32 seed=0"),
            Images::Family(Family::Scalar)
        ),
        Ok(true)
    ));
}

/// A cap so large that it changes nothing: `1 - 2 / (e^2x + 1)` cancels near 0.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn large_softcaps_are_as_if_there_were_none() {
    for cap in [
        "1", "15", "50", "1e3", "1e4", "1e5", "1e6", "1e7", "1e8", "1e9",
    ] {
        for text in [
            "b1 q1 k1 h1 d8 f16",
            "b1 q70 k300 h2 d64 bf16",
            "b1 q70 k300 h2 d128 f16",
        ] {
            assert_passes(&case(&format!("{text} softcap={cap} seed=3")));
        }
    }
}

/// Scores of finite inputs that leave the range of f32: hidden keys stay hidden, and nothing becomes NaN.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn extreme_scales_keep_hidden_keys_hidden() {
    use half::bf16;
    let backend = Backend::cuda(0).unwrap();
    for head_dim in [64, 128] {
        let data: Vec<bf16> = (0..200 * 2 * head_dim)
            .map(|i| bf16::from_f32((i as f32 * 0.61).sin()))
            .collect();
        let tensor = backend.tensor(&data, [1, 200, 2, head_dim]).unwrap();
        for scale in [Scoring::MAX_SCALE, 1e37, 1e-38, 0.0] {
            let words = format!("q200 k200 h2 d{head_dim} bf16 mask=causal scale={scale}");
            for family in families_of(ElementType::Bf16) {
                let plan = match Images::Family(family).plan(&case(&words)) {
                    Err(Error::NoKernel { .. }) if family == Family::Wgmma && scale < 1e-30 => {
                        continue; // it has no factor as small
                    }
                    plan => plan.unwrap(),
                };
                let output = Attention::new()
                    .mask(warptile::Mask::causal())
                    .scale(scale)
                    .choice(Choice::Kernel(plan.kernel_name().to_owned()))
                    .forward(&tensor, (&tensor, &tensor))
                    .unwrap();
                let out = output.out.to_vec().unwrap();
                assert!(out.iter().all(|x| x.is_finite()), "{family} {scale}");
                // The first query sees only the first key.
                assert_eq!(
                    out[..2 * head_dim],
                    data[..2 * head_dim],
                    "{family} {scale}"
                );
                let lse = output.lse.unwrap().to_vec().unwrap();
                assert!(lse.iter().all(|x| x.is_finite()), "{family} {scale}");
            }
        }
    }
}

/// Scores of all keys far below any that a row would start from.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn rows_whose_scores_are_all_hugely_negative_are_seen() {
    use half::bf16;
    let backend = Backend::cuda(0).unwrap();
    let shape = [1, 70, 1, 64];
    let of = |value: f32| {
        let data = vec![bf16::from_f32(value); 70 * 64];
        backend.tensor(&data, shape).unwrap()
    };
    let (q, k, v) = (of(2e18), of(-2e18), of(1.5));
    let case = case("q70 k70 d64 bf16 seed=0");
    // Dot products of -2.56e38.
    for scale in [0.125, 0.5, 0.95, 1.0, 1.3] {
        for family in families_of(ElementType::Bf16) {
            let plan = Images::Family(family).plan(&case).unwrap();
            let choice = Choice::Kernel(plan.kernel_name().to_owned());
            let attention = Attention::new().choice(choice).scale(scale);
            let output = attention.forward(&q, (&k, &v)).unwrap();
            let out = output.out.to_vec().unwrap();
            let right = out.iter().all(|x| x.to_f32() == 1.5);
            assert!(right, "{scale} on {family}: {}", out[0]);
            let lse = output.lse.unwrap().to_vec().unwrap();
            let right = lse.iter().all(|lse| *lse < -1e37 && lse.is_finite());
            assert!(right, "{scale} on {family}: {}", lse[0]);
        }
    }
}

/// A sink far above or below every score, and rows that see no key: lse is then the sink.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn sinks_of_any_size() {
    let backend = Backend::cuda(0).unwrap();
    let (rows, keys, head_dim) = (100, 40, 64);
    let value = |i: usize| half::f16::from_f32((i as f32 * 0.77).sin());
    let tensor = |rows: usize| {
        let data: Vec<half::f16> = (0..rows * 2 * head_dim).map(value).collect();
        backend.tensor(&data, [1, rows, 2, head_dim]).unwrap()
    };
    let (q, kv) = (tensor(rows), tensor(keys));
    let case = case("q100 k40 h2 d64 f16 mask=causal sinks seed=0");
    for family in families() {
        let plan = Images::Family(family).plan(&case).unwrap();
        let choice = Choice::Kernel(plan.kernel_name().to_owned());
        let run = |sinks: Option<[f32; 2]>| {
            let attention = Attention::new()
                .mask(warptile::Mask::causal())
                .choice(choice.clone());
            let attention = match sinks {
                Some(sinks) => attention.sinks(&sinks),
                None => attention,
            };
            let output = attention.forward(&q, (&kv, &kv)).unwrap();
            (
                output.out.to_vec().unwrap(),
                output.lse.unwrap().to_vec().unwrap(),
            )
        };
        let plain = run(None);
        for sink in [-1e30_f32, -200.0, 0.0, 200.0, 1e30] {
            let (out, lse) = run(Some([sink, sink]));
            assert!(out.iter().all(|x| x.is_finite()) && lse.iter().all(|x| x.is_finite()));
            for (index, (&lse, &plain_lse)) in lse.iter().zip(&plain.1).enumerate() {
                let expected = f64::from(plain_lse.exp()) + f64::from(sink).exp();
                let expected = match plain_lse == f32::NEG_INFINITY || sink > 80.0 {
                    true => f64::from(sink),
                    false => expected.ln(),
                };
                let error = (f64::from(lse) - expected).abs();
                assert!(
                    error <= 1e-4 * (1.0 + expected.abs()),
                    "{family} {sink} row {index}: {lse} {expected}"
                );
            }
            if sink > 100.0 {
                assert!(
                    out.iter().all(|x| x.to_f32().abs() < 1e-6),
                    "{family} {sink}"
                );
            }
            if sink < -100.0 {
                assert_eq!(out, plain.0, "{family} {sink}");
            }
        }
    }
}

/// Small problems on few multiprocessors: every tile but the first is drawn from the counter.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn few_multiprocessors_draw_their_tiles() {
    for multiprocessors in 1..=5 {
        for text in [
            "b2 h4 q300 k500 d64 f16 mask=causal",
            "h4/2 packed=130x257,0x9,64x3,1x700,300x0 d128 bf16",
            "b3 h2 q200 k129 d192 bf16 mask=window,40,3 sinks",
        ] {
            assert_passes(&case(&format!("{text} sms={multiprocessors} seed=12")));
        }
    }
}
