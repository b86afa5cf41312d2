//! Cache writes by the emulated kernel.

use half::{bf16, f16};
use quickcheck::{QuickCheck, TestResult};
use warptile::Element;

use crate::append_cases::{AppendCase, Appends};
use crate::append_on_gpu::append_on;
use crate::place::{Emulated, with_emulated};

struct Place<'a> {
    emulated: &'a Emulated,
    numbers_on_device: bool,
}

impl<T: Element> Appends<T> for Place<'_> {
    fn append(&mut self, case: &mut AppendCase<T>) {
        let run = || self.emulated.run_launches();
        append_on(&self.emulated.gpu, case, self.numbers_on_device, run);
    }
}

fn right(seed: u64, numbers_on_device: bool) -> TestResult {
    fn verify<T: Element>(seed: u64, numbers_on_device: bool) -> Result<(), String> {
        with_emulated(|emulated| {
            let case = AppendCase::<T>::random(seed, numbers_on_device);
            case.verify(&mut Place {
                emulated,
                numbers_on_device,
            })
        })
    }
    let all = verify::<f16>(seed, numbers_on_device)
        .and(verify::<bf16>(seed, numbers_on_device))
        .and(verify::<f32>(seed, numbers_on_device));
    match all {
        Ok(()) => TestResult::passed(),
        Err(failure) => TestResult::error(format!("seed {seed}: {failure}")),
    }
}

#[test]
#[ignore = "needs g++"]
fn writes_equal_float64() {
    QuickCheck::new()
        .tests(400)
        .quickcheck(right as fn(u64, bool) -> TestResult);
}

/// Offsets on the device that begin behind row 0, do not ascend or exceed the tensor: rows may be written or not, but what lies between the
/// rows of tensors is neither read, where NaN stands, nor written.
#[test]
#[ignore = "needs g++"]
fn any_offsets_write_rows_of_rows_alone() {
    const HOSTILE: [i32; 10] = [7, 3, i32::MAX, -1, 0, 2, i32::MIN, 9, 1, 5];
    let has_two = |case: &AppendCase<f32>| case.offsets.as_ref().is_some_and(|all| all.len() > 2);
    let cases = (0..).map(|seed| AppendCase::<f32>::random(seed, true));
    for (number, mut case) in cases.filter(has_two).take(60).enumerate() {
        let offsets = case.offsets.as_mut().unwrap();
        for (index, offset) in offsets.iter_mut().enumerate() {
            *offset = HOSTILE[(number + index) % HOSTILE.len()];
        }
        let before = (case.caches.0.data.clone(), case.caches.1.data.clone());
        with_emulated(|emulated| {
            append_on(&emulated.gpu, &mut case, true, || emulated.run_launches())
        });
        for (found, before) in [
            (&case.caches.0.data, before.0),
            (&case.caches.1.data, before.1),
        ] {
            // NaN is what lies between rows, of new rows and of caches.
            let kept = { found.iter().zip(&before) }
                .all(|(found, before)| found.is_nan() == before.is_nan());
            assert!(kept, "case {number}");
        }
    }
}
