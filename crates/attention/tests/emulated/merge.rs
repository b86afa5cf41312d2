//! Merges by the emulated kernel.

use half::{bf16, f16};
use quickcheck::QuickCheck;
use warptile::Element;

use crate::draw::Memory;
use crate::merge_cases::{MergeCase, Merges, SumCase};
use crate::merge_on_gpu::{merge_on, sum_on};
use crate::place::{Emulated, with_emulated};

impl<T: Element> Merges<T> for &Emulated {
    fn merge(&mut self, case: &MergeCase<T>, out: &mut Memory<T>, lse: Option<&mut Memory<f32>>) {
        merge_on(&self.gpu, case, out, lse, || self.run_launches());
    }
}

fn verify<T: Element>(seed: u64) -> Result<(), String> {
    let merged = with_emulated(|mut emulated| MergeCase::<T>::random(seed).verify(&mut emulated));
    let added = with_emulated(|place| {
        SumCase::<T>::random(seed)
            .verify(|case, out| sum_on(&place.gpu, case, out, || place.run_launches()))
    });
    { merged.and(added) }.map_err(|failure| format!("seed {seed}: {failure}"))
}

#[test]
#[ignore = "needs g++"]
fn merges_and_sums_are_right() {
    fn all(seed: u64) -> quickcheck::TestResult {
        match verify::<f16>(seed)
            .and(verify::<bf16>(seed))
            .and(verify::<f32>(seed))
        {
            Ok(()) => quickcheck::TestResult::passed(),
            Err(failure) => quickcheck::TestResult::error(failure),
        }
    }
    QuickCheck::new()
        .tests(200)
        .quickcheck(all as fn(u64) -> quickcheck::TestResult);
}
