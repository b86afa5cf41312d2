//! One problem on several devices, computed twice and compared with the reference.

use warptile::{Attention, Element};
use warptile_check::{Buffer, Case};
use warptile_distributed::Group;

use super::check::{Checked, Error64, Errors, Ran, Runs};
use super::phases::{Phases, timed};
use crate::devices::{Dealt, PATIENCE};
use crate::failure::Failure;

/// Computes `case` as it was dealt out, and judges the output. What each phase took is added to `seconds`.
///
/// # Errors
/// When a device fails, or the problem is too large for a reference.
pub(super) fn check<T: Element>(
    case: &Case,
    dealt: &Dealt,
    group: &Group,
    runs: Runs,
    seconds: &mut Phases,
) -> Result<Checked, Failure> {
    let inputs = timed(&mut seconds.generating, || case.inputs::<T>());
    let numbers =
        { inputs.others.given() }.filter_map(|(option, data)| Some((option, data.floats()?)));
    let attention = Attention::new().scoring(case.scoring).splits(case.splits);
    let attention = numbers.fold(attention, |all, (option, numbers)| {
        all.numbers(option, numbers)
    });
    let shards = dealt.shards(group)?;
    let split = |buffer: &Buffer<T>| {
        let [_, _, heads, dim] = buffer.layout.shape;
        shards.split(&buffer.elements()[..dealt.len * heads * dim], heads, dim)
    };
    let (q, k, v) = (split(&inputs.q)?, split(&inputs.k)?, split(&inputs.v)?);
    let compute = || {
        let out = shards.forward(&attention, &q, (&k, &v))?;
        group.synchronize(PATIENCE)?;
        shards.join(&out.out)
    };
    let mut out = timed(&mut seconds.computing, compute)?;
    let differs = !runs.once && {
        let again = timed(&mut seconds.computing, compute)?;
        bytemuck::cast_slice::<T, u8>(&out) != bytemuck::cast_slice::<T, u8>(&again)
    };
    let expected = timed(&mut seconds.reference, || case.expectation(&inputs))?;
    // Rows behind the last packed sequence, which are 0 there.
    out.resize(expected.out().len(), T::zeroed());
    let verdict = timed(&mut seconds.comparing, || expected.judge_out(&out));
    let outcome = match (verdict.passed, differs) {
        (false, _) => Err(format!("out {verdict}")),
        (true, true) => Err("two runs differ".to_owned()),
        (true, false) => Ok(Errors {
            out: verdict.into(),
            lse: Error64 {
                error: 0.0,
                bound: 0.0,
            },
        }),
    };
    Ok(Checked::Ran(Ran {
        image: None,
        way: Some(format!("{}-{}", dealt.by, dealt.sharding())),
        drew_tiles: false,
        gpu_reference: false,
        outcome,
    }))
}
