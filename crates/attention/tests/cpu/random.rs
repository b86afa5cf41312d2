//! The CPU path against the reference on random problems.

use crate::common::{Any, verify};
use quickcheck::{QuickCheck, TestResult};

fn right(case: Any) -> TestResult {
    match verify(&case.0) {
        Ok(_) => TestResult::passed(),
        Err(failure) => TestResult::error(format!("{}: {failure}", case.0)),
    }
}

#[test]
fn random_problems_match_the_reference() {
    QuickCheck::new()
        .tests(200)
        .quickcheck(right as fn(Any) -> TestResult);
}

#[test]
fn larger_random_problems_match_the_reference() {
    QuickCheck::new()
        .rng(quickcheck::Gen::new(500))
        .tests(25)
        .quickcheck(right as fn(Any) -> TestResult);
}
