//! Random problems, shrunk to the smallest that fails.

use std::collections::BTreeSet;

use quickcheck::{Arbitrary, Gen, QuickCheck, TestResult, Testable};
use warptile::Error;
use warptile::kernels::Family;
use warptile_check::Case;
use warptile_kernels::{Role, Target};

use crate::harness::{Images, case, families, gpu, images_for, passes, side_by_side};

/// Longest sequence of a random problem: several tiles of every tiling.
const MAX_LEN: usize = 600;

/// Draws after which we conclude that an image takes no problem.
const DRAWS: usize = 1000;

/// "Every random problem that these images take passes."
struct Property(Images);

impl Property {
    /// A problem with the types and head sizes of one of the images, and that the planner has a kernel for.
    fn draw(&self, source: &mut Gen) -> Case {
        let images = self.0.that_run();
        for _ in 0..DRAWS {
            let image = source.choose(&images).expect("an image runs here");
            let case = Case::random(u64::arbitrary(source), MAX_LEN).for_image(image);
            match self.0.plan(&case) {
                Ok(_) => return case,
                Err(Error::NoKernel { .. }) => {}
                Err(error) => panic!("{case}: {error}"),
            }
        }
        panic!("of {DRAWS} problems none is for {:?}", self.0);
    }
}

impl Testable for Property {
    fn result(&self, source: &mut Gen) -> TestResult {
        let case = self.draw(source);
        let Err(failure) = passes(&case, self.0) else {
            return TestResult::passed();
        };
        let mut smallest = (case, failure);
        // Down the first failing branch until no smaller case fails. One that no kernel takes does not.
        let fails = |case: Case| passes(&case, self.0).err().map(|failure| (case, failure));
        while let Some(smaller) = smallest.0.shrink().into_iter().find_map(fails) {
            smallest = smaller;
        }
        TestResult::error(smallest.1)
    }
}

fn random_problems(count: u64, images: Images) {
    QuickCheck::new().tests(count).quickcheck(Property(images));
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn random_problems_pass_in_every_family() {
    side_by_side(families(), |family| {
        random_problems(100, Images::Family(family));
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn random_problems_pass_on_ptx_compiled_by_the_driver() {
    let (major, minor) = (gpu().profile().major, gpu().profile().minor);
    let ptx: BTreeSet<_> = warptile_kernels::images_for(Role::Forward)
        .filter(|image| matches!(image.target, Target::Ptx(_)))
        .filter(|image| image.target.runs_on(major, minor))
        .map(|image| (image.family, image.target))
        .collect();
    assert!(!ptx.is_empty());
    side_by_side(ptx, |(family, target)| {
        random_problems(100, Images::Target(family, target));
    });
}

/// The kernels that a GPU of compute capability 8.9 would run if the driver compiled them, each kernel within that GPU's
/// shared memory.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn random_problems_pass_on_every_compute_89_image_within_99_kb() {
    side_by_side(images_for(Target::Ptx(89)), |image| {
        random_problems(20, Images::Within99Kb(image));
    });
}

/// Where sequences are alike, CTAs take whole tiles of them rather than equal shares of keys, if few have nothing to do then.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn sequences_of_one_length_in_whole_tiles_pass() {
    let lengths = ["4096"; 16].join(",");
    for text in [
        "b16 q1 k4096 h32/8 d128 bf16".to_owned(),
        format!("h32/8 d128 f16 pages=64 lengths={lengths}"),
    ] {
        match passes(&case(&text), Images::Family(Family::Decode)) {
            Ok(taken) => assert!(taken, "{text}"),
            Err(failure) => panic!("{failure}"),
        }
    }
}
