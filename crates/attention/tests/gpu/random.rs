//! Random problems, shrunk to the smallest that fails.

use quickcheck::{Arbitrary, Gen, QuickCheck, TestResult, Testable};
use warptile::Family;
use warptile::testing::Case;

use crate::harness::{Images, families, passes};

/// Longest sequence of a random problem: several tiles of every tiling.
const MAX_LEN: usize = 600;

#[derive(Debug, Clone)]
struct RandomCase(Case);

impl Arbitrary for RandomCase {
    fn arbitrary(source: &mut Gen) -> Self {
        RandomCase(Case::random(u64::arbitrary(source), MAX_LEN))
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        Box::new(self.0.shrink().into_iter().map(RandomCase))
    }
}

/// "Every random problem passes on these images"; one that no kernel takes does not count.
struct Property(Images);

impl Testable for Property {
    fn result(&self, source: &mut Gen) -> TestResult {
        let first = RandomCase::arbitrary(source);
        let mut smallest = match passes(&first.0, self.0) {
            Ok(true) => return TestResult::passed(),
            Ok(false) => return TestResult::discard(),
            Err(failure) => (first, failure),
        };
        // Down the first failing branch until no smaller case fails.
        while let Some(smaller) =
            smallest
                .0
                .shrink()
                .find_map(|case| match passes(&case.0, self.0) {
                    Err(failure) => Some((case, failure)),
                    Ok(_) => None,
                })
        {
            smallest = smaller;
        }
        TestResult::error(smallest.1)
    }
}

fn random_problems(images: Images) {
    QuickCheck::new()
        .tests(100)
        .max_tests(2_000)
        .min_tests_passed(100)
        .quickcheck(Property(images));
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn random_problems_pass_in_every_family() {
    for family in families() {
        random_problems(Images::Family(family));
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn random_problems_pass_on_ptx_compiled_by_the_driver() {
    for family in families()
        .into_iter()
        .filter(|&family| family != Family::Wgmma)
    {
        random_problems(Images::Ptx(family));
    }
}
