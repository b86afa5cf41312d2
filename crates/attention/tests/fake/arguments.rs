//! Arguments that a launch refuses before anything is submitted: every slot, every rule.

use std::sync::Arc;

use half::{bf16, f16};
use warptile::gpu::Bindings;
use warptile::kernels::{Elements, Kind, Operations};
use warptile::plan::Choice;
use warptile::spec::{Call, Features, Invalid, Operand, Scoring, Types};
use warptile::{ElementType, Error, Layout};
use warptile_driver::{Context, DeviceBuffer, Stream};
use warptile_fake_cuda::FakeDriver;

use crate::{Buffers, PLAIN, driver, gpu, kernel};

fn plain() -> Call {
    with("")
}

fn with(words: &str) -> Call {
    let tensor = Layout::bshd([1, 64, 2, 64]);
    let scoring: Scoring = words.parse().unwrap();
    let mut builder = Call::builder(&tensor, &tensor, &tensor, ElementType::F16).scoring(scoring);
    let tensors = Operand::of_scores().filter(|operand| operand.kind() == Kind::Scores);
    for operand in tensors.filter(|operand| scoring.has(*operand)) {
        builder = builder.layout(operand, Layout::bhsd([1, 1, 64, 64]));
    }
    builder.build().unwrap()
}

/// The error of a launch of `call` with what `bind` makes of good buffers; nothing may have been launched.
fn refusal(
    call: &Call,
    bind: impl for<'a> FnOnce(&'a mut Buffers, &Stream) -> Bindings<'a>,
) -> String {
    let fake = FakeDriver::open();
    let text = {
        let gpu = gpu(&fake);
        let prepared = gpu.prepare(call.problem(), &kernel(PLAIN)).unwrap();
        let stream = Stream::new(gpu.context()).unwrap();
        let mut buffers = Buffers::new(&stream, call);
        let bindings = bind(&mut buffers, &stream);
        prepared
            .launch(&stream, call, &bindings)
            .unwrap_err()
            .to_string()
    };
    assert!(fake.launches().is_empty(), "{text}");
    fake.assert_clean();
    text
}

#[test]
fn buffers_that_are_too_short_are_named() {
    for (index, name) in ["q", "k", "v", "out", "lse"].into_iter().enumerate() {
        let text = refusal(&plain(), |buffers, _| {
            let cut = |i: usize, len: usize| if i == index { len - 1 } else { len };
            Bindings::new(
                buffers.q.slice(..cut(0, 8192)).unwrap(),
                buffers.k.slice(..cut(1, 8192)).unwrap(),
                buffers.v.slice(..cut(2, 8192)).unwrap(),
                buffers.out.slice_mut(..cut(3, 8192)).unwrap(),
            )
            .output(Operand::Lse, buffers.lse.slice_mut(..cut(4, 128)).unwrap())
        });
        assert!(
            text.starts_with(&format!("{name} needs a buffer of")),
            "{text}"
        );
    }
}

#[test]
fn slopes_sinks_bias_and_mask_are_needed_exactly_if_the_call_has_them() {
    for (words, name) in [
        ("alibi=head", "alibi_slopes"),
        ("sinks", "sinks"),
        ("bias", "bias"),
        ("keymask", "key_mask"),
    ] {
        let text = refusal(&with(words), |buffers, _| buffers.bindings());
        assert_eq!(text, format!("{name} is missing, but the call needs it"));
    }
}

#[test]
fn an_argument_that_the_call_does_not_have_is_refused() {
    let fake = FakeDriver::open();
    let gpu = gpu(&fake);
    let call = plain();
    let prepared = gpu.prepare(call.problem(), &kernel(PLAIN)).unwrap();
    let stream = Stream::new(gpu.context()).unwrap();
    let memory = DeviceBuffer::<u8>::zeroed(&stream, 8192).unwrap();
    let bytes = memory.as_slice();
    for operand in { Operand::ALL.into_iter() }.filter(|operand| !call.has(*operand)) {
        let mut buffers = Buffers::new(&stream, &call);
        let bindings = buffers.bindings().with(operand, bytes.clone());
        let text = prepared
            .launch(&stream, &call, &bindings)
            .unwrap_err()
            .to_string();
        assert_eq!(
            text,
            format!(
                "{} is given, but the call was built without it",
                operand.name()
            )
        );
    }
    assert!(fake.launches().is_empty());
}

/// Lists of one number where a call of two heads needs two: the kernel would read past the end.
#[test]
fn a_list_with_one_number_for_all_heads_is_refused() {
    let fake = FakeDriver::open();
    let gpu = gpu(&fake);
    let stream = Stream::new(gpu.context()).unwrap();
    let [one, two] = [1, 2].map(|count| DeviceBuffer::<f32>::zeroed(&stream, count).unwrap());
    let bits = DeviceBuffer::<u8>::zeroed(&stream, 8192).unwrap();
    let lists = || {
        let is_list = |operand: &Operand| operand.elements() == Elements::F32;
        Operand::of(Operations::FORWARD)
            .filter(move |operand| is_list(operand) && !operand.is_written())
    };
    for short in lists() {
        let name = short.name();
        let has_scales = short.feature() == Features::E4M3;
        let keys = if has_scales {
            ElementType::E4m3
        } else {
            ElementType::F16
        };
        let q = Layout::bshd([1, 64, 2, 64]);
        let of_call = || lists().filter(|list| list.feature() == short.feature());
        let start = Call::builder(&q, &q, &q, Types::of(ElementType::F16).keys(keys));
        let builder = of_call().fold(start, |builder, list| builder.count(list, 2));
        let call = builder.build().unwrap();
        let prepared = gpu.prepare(call.problem(), &Choice::Best).unwrap();
        let mut buffers = Buffers::new(&stream, &call);
        let mut bindings = buffers.bindings();
        if has_scales {
            let bits = bits.as_slice();
            bindings = bindings
                .with(Operand::K, bits.clone())
                .with(Operand::V, bits);
        }
        for list in of_call() {
            let numbers = if list == short { &one } else { &two };
            bindings = bindings.with(list, numbers.as_slice());
        }
        let error = prepared.launch(&stream, &call, &bindings).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{name} needs a buffer of 2 elements for its shape and strides, but has 1")
        );
    }
    assert!(fake.launches().is_empty());
}

#[test]
fn elements_of_another_type_are_refused() {
    let fake = FakeDriver::open();
    let gpu = gpu(&fake);
    let call = plain();
    let prepared = gpu.prepare(call.problem(), &kernel(PLAIN)).unwrap();
    let stream = Stream::new(gpu.context()).unwrap();
    let input = DeviceBuffer::<bf16>::zeroed(&stream, 8192).unwrap();
    let mut out = DeviceBuffer::<bf16>::zeroed(&stream, 8192).unwrap();
    let bindings = Bindings::new(
        input.as_slice(),
        input.as_slice(),
        input.as_slice(),
        out.as_slice_mut(),
    );
    let error = prepared.launch(&stream, &call, &bindings).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Invalid(Invalid::ElementMismatch { argument: "q", .. })
        ),
        "{error}"
    );
}

/// Memory behind a shared view may be read, or written through other shared views, at the same time.
#[test]
fn memory_that_is_written_takes_an_exclusive_view_and_no_other_does() {
    for operand in [Operand::Out, Operand::Lse] {
        let text = refusal(&plain(), |buffers, _| {
            let (q, k, v) = (&buffers.q, &buffers.k, &buffers.v);
            let bindings = Bindings::default()
                .with(Operand::Q, q.as_slice())
                .with(Operand::K, k.as_slice())
                .with(Operand::V, v.as_slice());
            match operand {
                Operand::Out => bindings
                    .with(Operand::Out, buffers.out.as_slice())
                    .output(Operand::Lse, buffers.lse.as_slice_mut()),
                _ => bindings
                    .output(Operand::Out, buffers.out.as_slice_mut())
                    .with(Operand::Lse, buffers.lse.as_slice()),
            }
        });
        let name = operand.name();
        assert_eq!(
            text,
            format!("{name} is written, so it belongs to the outputs")
        );
    }
    let text = refusal(&plain(), |buffers, _| {
        Bindings::default()
            .output(Operand::Q, buffers.q.as_slice_mut())
            .with(Operand::K, buffers.k.as_slice())
            .with(Operand::V, buffers.v.as_slice())
            .output(Operand::Out, buffers.out.as_slice_mut())
            .output(Operand::Lse, buffers.lse.as_slice_mut())
    });
    assert_eq!(text, "q is read, so it belongs to the inputs");
}

/// An output over an input, or over the lse: a borrowed pointer can alias in ways that Rust does not see.
#[test]
fn outputs_that_overlap_anything_are_refused() {
    let fake = FakeDriver::open();
    {
        let gpu = gpu(&fake);
        let call = plain();
        let prepared = gpu.prepare(call.problem(), &kernel(PLAIN)).unwrap();
        let stream = Stream::new(gpu.context()).unwrap();
        let memory = Arc::new(DeviceBuffer::<u8>::zeroed(&stream, 1 << 20).unwrap());
        let part = |start: u64| {
            // SAFETY: 8192 elements from there lie in `memory`, which the owner keeps alive.
            unsafe {
                DeviceBuffer::<f16>::borrow(&stream, memory.pointer() + start, 8192, memory.clone())
            }
            .unwrap()
        };
        let lse_at = |start: u64| {
            // SAFETY: likewise for 128 numbers.
            unsafe {
                DeviceBuffer::<f32>::borrow(&stream, memory.pointer() + start, 128, memory.clone())
            }
            .unwrap()
        };
        // Starts of q, k, v, out and lse in bytes; 16384 bytes a tensor.
        let launch = |starts: [u64; 5]| {
            let [q, k, v, mut out] = [0, 1, 2, 3].map(|i| part(starts[i]));
            let mut lse = lse_at(starts[4]);
            let bindings =
                Bindings::new(q.as_slice(), k.as_slice(), v.as_slice(), out.as_slice_mut())
                    .output(Operand::Lse, lse.as_slice_mut());
            prepared
                .launch(&stream, &call, &bindings)
                .map_or_else(|error| error.to_string(), |()| String::new())
        };
        let apart = [0, 16_384, 32_768, 49_152, 65_536];
        assert_eq!(launch(apart), "");
        assert_eq!(launch([0, 0, 0, 49_152, 65_536]), "");
        for (starts, expected) in [
            (
                [0, 16_384, 32_768, 32_768 + 16_382, 65_536],
                "out overlaps v",
            ),
            ([0, 16_384, 32_768, 16_382, 65_536], "out overlaps q"),
            ([0, 16_384, 32_768, 49_152, 32_768], "lse overlaps v"),
            ([0, 16_384, 32_768, 49_152, 65_532], "out overlaps lse"),
        ] {
            let text = launch(starts);
            assert!(text.starts_with(expected), "{text}");
        }
        assert_eq!(fake.launches().len(), 0, "nothing has run yet");
        stream.synchronize().unwrap();
        assert_eq!(fake.launches().len(), 2);
    }
    fake.assert_clean();
}

#[test]
fn addresses_that_are_not_aligned_are_refused() {
    let fake = FakeDriver::open();
    let gpu = gpu(&fake);
    let call = plain();
    let stream = Stream::new(gpu.context()).unwrap();
    let memory = DeviceBuffer::<f16>::zeroed(&stream, 8200).unwrap();
    let mut buffers = Buffers::new(&stream, &call);
    let mapped = gpu.prepare(call.problem(), &kernel(crate::MAPPED)).unwrap();
    let bindings = Bindings::new(
        memory.slice(1..).unwrap(),
        buffers.k.as_slice(),
        buffers.v.as_slice(),
        buffers.out.as_slice_mut(),
    )
    .output(Operand::Lse, buffers.lse.as_slice_mut());
    let error = mapped.launch(&stream, &call, &bindings).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Invalid(Invalid::Misaligned {
                argument: "q",
                alignment: 16,
                ..
            })
        ),
        "{error}"
    );
    // A kernel that takes any address takes this one.
    let plain = gpu.prepare(call.problem(), &kernel(PLAIN)).unwrap();
    plain.launch(&stream, &call, &bindings).unwrap();
}

#[test]
fn memory_and_streams_of_another_device_are_refused() {
    let fake = FakeDriver::open();
    fake.set_device_count(2);
    let driver = driver(&fake);
    let gpu = gpu(&fake);
    let other = Stream::new(&Context::new(&driver.device(1).unwrap()).unwrap()).unwrap();
    let call = plain();
    let prepared = gpu.prepare(call.problem(), &kernel(PLAIN)).unwrap();
    let mut buffers = Buffers::new(gpu.stream(), &call);
    let text = prepared
        .launch(&other, &call, &buffers.bindings())
        .unwrap_err()
        .to_string();
    assert!(text.starts_with("stream is on cuda:1, but"), "{text}");
    let mut elsewhere = DeviceBuffer::<f32>::zeroed(&other, 128).unwrap();
    let bindings = Bindings::new(
        buffers.q.as_slice(),
        buffers.k.as_slice(),
        buffers.v.as_slice(),
        buffers.out.as_slice_mut(),
    )
    .output(Operand::Lse, elsewhere.as_slice_mut());
    let text = prepared
        .launch(gpu.stream(), &call, &bindings)
        .unwrap_err()
        .to_string();
    assert!(text.starts_with("lse is on cuda:1, but"), "{text}");
    assert!(fake.launches().is_empty());
}

#[test]
fn a_call_of_another_problem_is_refused() {
    let fake = FakeDriver::open();
    let gpu = gpu(&fake);
    let prepared = gpu.prepare(plain().problem(), &kernel(PLAIN)).unwrap();
    let other = with("mask=causal");
    let mut buffers = Buffers::new(gpu.stream(), &other);
    let error = prepared
        .launch(gpu.stream(), &other, &buffers.bindings())
        .unwrap_err();
    assert!(matches!(error, Error::OtherProblem { .. }), "{error}");
    assert!(error.to_string().contains("mask=causal"), "{error}");
}
