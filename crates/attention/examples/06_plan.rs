//! Which kernel an H200 would run for a problem, and why every other would not. Needs no GPU.
//!
//! `cargo run --release -p warptile --example 06_plan`

use warptile::plan::{Choice, DeviceProfile, Plan};
use warptile::spec::{Call, Scoring};
use warptile::{ElementType, Layout, Mask};

fn main() -> warptile::Result<()> {
    let mut scoring = Scoring::default();
    scoring.mask = Mask::causal();
    let q = Layout::bshd([4, 4096, 32, 128]);
    let kv = Layout::bshd([4, 4096, 8, 128]);
    let call = Call::builder(&q, &kv, &kv, ElementType::Bf16)
        .scoring(scoring)
        .build()?;
    let plan = Plan::gpu(call.problem(), &DeviceProfile::h200(), &Choice::Best)?;
    print!("{}", plan.explain());
    Ok(())
}
