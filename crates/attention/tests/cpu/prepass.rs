//! The pre-pass of the backward pass on the CPU.

use std::thread;
use std::time::Duration;

use quickcheck::{TestResult, quickcheck};
use warptile::backward::{Prepass, prepass_cpu};
use warptile::cpu::Stop;
use warptile::spec::{HostInputs, HostOutputs, Numbers, Operand};
use warptile::{Element, ElementType, Error, Layout};

use crate::prepass_cases::{PrepassCase, Prepasses, verify_all};

struct OnCpu;

impl<T: Element> Prepasses<T> for OnCpu {
    fn prepass(&mut self, case: &PrepassCase<T>, [delta, scaled]: &mut [Vec<f32>; 2]) {
        let prepass = case.described(false);
        let len = prepass.len();
        let mut inputs = HostInputs::default()
            .with(Operand::Out, &case.out.data[case.out.offset..])
            .with(Operand::DOut, &case.d_out.data[case.d_out.offset..])
            .with(Operand::Lse, &case.lse);
        if let Some(d_lse) = &case.d_lse {
            inputs = inputs.with(Operand::DLse, d_lse);
        }
        let outputs = HostOutputs::default()
            .with(Operand::Delta, &mut delta[..len])
            .with(Operand::ScaledLse, &mut scaled[..len]);
        prepass_cpu(&prepass, &inputs, outputs).unwrap();
    }
}

quickcheck! {
    fn random_pre_passes_equal_float64(seed: u64) -> TestResult {
        verify_all(seed, &mut OnCpu)
    }
}

#[test]
fn places_of_packed_sequences_are_apart() {
    let layout = Layout::packed(200, 3, 8);
    let prepass = Prepass::builder(ElementType::F16, &layout, &layout)
        .numbers(Operand::QueryOffsets, Numbers::Host(&[0, 63, 64, 64, 199]))
        .build()
        .unwrap();
    assert_eq!(prepass.tiles(), 200 / 64 + 4);
    let starts = [0, 1, 2, 3].map(|batch| prepass.start(batch, 0));
    assert_eq!(starts, [0, 64, 192, 256]);
    assert_eq!(prepass.start(1, 2), 2 * 7 * 64 + 64);
    assert_eq!(prepass.len(), 3 * 7 * 64);
}

/// The rows of one sequence and head, which take a second.
#[test]
fn one_long_sequence_obeys_the_flag() {
    const ROWS: usize = 1 << 20;
    let layout = Layout::new([1, ROWS, 1, 512], [512, 0, 512, 1]);
    let prepass = { Prepass::builder(ElementType::F32, &layout, &layout) }
        .build()
        .unwrap();
    let row = [1.0_f32; 512];
    let (lse, mut delta, mut scaled) = (vec![0.0; ROWS], vec![0.0; ROWS], vec![0.0; ROWS]);
    let inputs = HostInputs::default()
        .with(Operand::Out, &row)
        .with(Operand::DOut, &row)
        .with::<f32>(Operand::Lse, &lse);
    let outputs = HostOutputs::default()
        .with::<f32>(Operand::Delta, &mut delta)
        .with::<f32>(Operand::ScaledLse, &mut scaled);
    let stop = Stop::default();
    let from_outside = stop.clone();
    let other = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        from_outside.request();
    });
    let result = stop.during(|| prepass_cpu(&prepass, &inputs, outputs));
    other.join().unwrap();
    assert!(matches!(result, Err(Error::Stopped)));
    assert_eq!(scaled[ROWS - 1], f32::INFINITY);
}

#[test]
fn what_does_not_fit_is_refused() {
    let layout = Layout::bshd([2, 10, 3, 8]);
    let other = Layout::bshd([2, 10, 3, 16]);
    let error = Prepass::builder(ElementType::F16, &layout, &other)
        .build()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "d_out has head size 16, but out has 8",
        "{error}"
    );
    let build = |operand, list: &[i32]| {
        let builder = Prepass::builder(ElementType::F16, &layout, &layout);
        builder.numbers(operand, Numbers::Host(list)).build()
    };
    let error = build(Operand::QueryLengths, &[3, 11]).unwrap_err();
    assert!(error.to_string().starts_with("query_lengths"), "{error}");
    let on_device = Prepass::builder(ElementType::F16, &layout, &layout)
        .numbers(Operand::QueryLengths, Numbers::Device(2))
        .build()
        .unwrap();
    let (rows, lse) = ([0_u16; 2 * 10 * 3 * 8], [0.0_f32; 2 * 10 * 3]);
    let rows: &[u8] = bytemuck::cast_slice(&rows);
    let inputs = HostInputs::default()
        .with(Operand::Out, rows)
        .with(Operand::DOut, rows)
        .with(Operand::Lse, &lse);
    let [mut delta, mut scaled] = [(), ()].map(|()| vec![0.0_f32; on_device.len()]);
    let outputs = HostOutputs::default()
        .with(Operand::Delta, &mut delta)
        .with(Operand::ScaledLse, &mut scaled);
    let error = prepass_cpu(&on_device, &inputs, outputs).unwrap_err();
    assert!(
        error.to_string().starts_with("query_lengths is on a GPU"),
        "{error}"
    );
}
