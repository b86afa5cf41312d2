//! The first step of attention with a padding mask by the emulated kernel: the sequences whose first keys it shows and no others.

use half::f16;
use quickcheck::{QuickCheck, TestResult};
use warptile::gpu::{Bindings, Gpu};
use warptile::kernels::abi::KeyRuns;
use warptile::plan::{Choice, Rates};
use warptile::spec::{Call, Operand};
use warptile::{ElementType, Layout, Mask};
use warptile_driver::DeviceBuffer;

use crate::draw::Random;
use crate::masks::masks;
use crate::place::{Emulated, with_emulated};

/// Numbers that a kernel has left in memory.
fn numbers(address: u64, len: usize) -> Vec<i32> {
    let pointer = std::ptr::with_exposed_provenance::<i32>(address as usize);
    // SAFETY: the stand-in's device memory is host memory, and the workspace that the kernel wrote to is there until its stream is gone.
    unsafe { std::slice::from_raw_parts(pointer, len) }.to_vec()
}

/// The number of keys that a mask shows, if they are the first ones.
fn run_of(mask: &[bool]) -> Option<usize> {
    let shown = mask.iter().filter(|shown| **shown).count();
    mask[..shown].iter().all(|shown| *shown).then_some(shown)
}

/// Returns false for a problem that is too small for three steps.
fn check(emulated: &Emulated, seed: u64) -> Result<bool, String> {
    let mut random = Random(seed);
    // More than 16 warps have, as many, and fewer, in numbers that are not powers of two.
    let batch = random.pick(&[1, 2, 3, 5, 8, 16, 17, 40]);
    let keys = random.pick(&[300, 301, 512, 1000, 2100]);
    let causal = random.once_in(3);
    let (heads, queries) = (random.pick(&[1, 4]), random.pick(&[384, 500]));
    let is_bhsd = random.once_in(2);
    let layout = |rows| match is_bhsd {
        true => Layout::bhsd([batch, heads, rows, 64]),
        false => Layout::bshd([batch, rows, heads, 64]),
    };
    let (q, k) = (layout(queries), layout(keys));
    // Rows that do not begin at multiples of 16 bytes, or keys that are not neighbours.
    let (row, step) = random.pick(&[(keys, 1), (keys.next_multiple_of(16), 1), (3 * keys, 3)]);
    let mask_layout = Layout::new([batch, 1, 1, keys], [row, row, row, step]);
    let shown = masks(&mut random, batch, keys);
    let mut bytes = vec![0xee_u8; batch * row];
    for (sequence, shown) in shown.iter().enumerate() {
        for (key, shown) in shown.iter().enumerate() {
            bytes[sequence * row + key * step] = u8::from(*shown) * random.within(1, 255) as u8;
        }
    }
    let mask = if causal { Mask::causal() } else { Mask::none() };
    let call = Call::builder(&q, &k, &k, ElementType::F16)
        .scoring(warptile::spec::Scoring::new().mask(mask))
        .layout(Operand::KeyMask, mask_layout)
        .build()
        .map_err(|error| error.to_string())?;
    // Masks are expensive enough that the planner would rather do without.
    let features = ["scalar", "wmma", "mma", "wgmma", "decode"]
        .map(|family| format!("\nfeature {family} keymask 99"));
    let hiding = "\nfeature wgmma keymask=padding 9999";
    let text = format!("like NVIDIA H200\ndevice any{}{hiding}", features.concat());
    let rates: Rates = text.parse().map_err(|error| format!("{error}"))?;
    let gpu = Gpu::on_stream(emulated.gpu.stream())
        .unwrap()
        .with_rates(rates);
    let stream = gpu.stream();
    let zeros = |layout: &Layout| {
        DeviceBuffer::<f16>::zeroed(stream, layout.required_len().unwrap()).unwrap()
    };
    let (q, k, mut out) = (zeros(&q), zeros(&k), zeros(&q));
    let mut lse = DeviceBuffer::<f32>::zeroed(stream, call.lse_len()).unwrap();
    let bytes = DeviceBuffer::from_slice(stream, &bytes).unwrap();
    let bindings = Bindings::new(q.as_slice(), k.as_slice(), k.as_slice(), out.as_slice_mut())
        .output(Operand::Lse, lse.as_slice_mut())
        .with(Operand::KeyMask, bytes.as_slice());
    let prepared = gpu.prepare(call.problem(), &Choice::Best).unwrap();
    if prepared.plan().steps().len() != 3 {
        return Ok(false);
    }
    prepared.launch(stream, &call, &bindings).unwrap();
    let block: KeyRuns = emulated.run_first();

    let runs: Vec<_> = shown.iter().map(|shown| run_of(shown)).collect();
    let expect = |what: &str, at: u64, expected: Vec<usize>| {
        let found = numbers(at, batch);
        (found
            .iter()
            .map(|one| *one as usize)
            .eq(expected.iter().copied()))
        .then_some(())
        .ok_or_else(|| format!("{what} are {found:?}, not {expected:?}"))
    };
    let all = |of: &dyn Fn(Option<usize>) -> usize| runs.iter().map(|run| of(*run)).collect();
    expect("lengths", block.key_lengths, all(&|run| run.unwrap_or(0)))?;
    expect(
        "others",
        block.other_queries,
        all(&|run| run.map_or(queries, |_| 0)),
    )?;
    let found = runs.iter().flatten().count();
    let counters = [block.run_counter, block.other_counter].map(|at| numbers(at, 1)[0] as u32);
    let expected = [
        if found == 0 { block.no_runs } else { 0 },
        if found == batch { block.no_others } else { 0 },
    ];
    match counters == expected {
        true => Ok(true),
        false => Err(format!("counters are {counters:?}, not {expected:?}")),
    }
}

#[test]
#[ignore = "needs g++"]
fn runs_of_keys_are_found() {
    fn one(seed: u64) -> TestResult {
        match with_emulated(|emulated| check(emulated, seed)) {
            Ok(true) => TestResult::passed(),
            Ok(false) => TestResult::discard(),
            Err(failure) => TestResult::error(format!("seed {seed}: {failure}")),
        }
    }
    QuickCheck::new()
        .tests(150)
        .quickcheck(one as fn(u64) -> TestResult);
}
