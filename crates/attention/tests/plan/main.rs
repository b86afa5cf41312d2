//! The planner against the embedded catalog: what it picks for which device, and what it says of the rest.

mod architectures;
mod asked_for;
mod backward;
mod blocks;
mod families;
mod measured;
mod memory;
mod problems;
mod runs;
mod splits;

use warptile::plan::{Choice, DeviceProfile, LaunchShape, Plan};
use warptile_check::Case;

fn case(text: &str) -> Case {
    text.parse().unwrap()
}

fn device(major: u32, minor: u32, shared_bytes_per_cta: u32) -> DeviceProfile {
    let mut profile = DeviceProfile::h200();
    profile.name = format!("a {major}.{minor} device");
    (profile.major, profile.minor) = (major, minor);
    profile.shared_bytes_per_cta = shared_bytes_per_cta;
    profile
}

/// Shared memory a CTA may have on consumer parts (8.6, 8.9, 12.0).
const CONSUMER_SHARED_BYTES: u32 = 101_376;

const PLAIN: &str = "b2 h8 q512 k512 d64 f16 seed=1";

fn named(kernel: &str) -> Choice {
    Choice::Kernel(kernel.to_owned())
}

/// The launch of a plan's kernel for a case.
fn shape(plan: &Plan, text: &str) -> LaunchShape {
    plan.steps()[0].shape(&case(text).call()).unwrap()
}

fn choice(problem: &str) -> Plan {
    choice_on(&DeviceProfile::h200(), problem)
}

fn choice_on(device: &DeviceProfile, problem: &str) -> Plan {
    Plan::gpu(case(problem).call().problem(), device, &Choice::Best).unwrap()
}
