//! Times of candidates: one problem at a time, cold, with the random data of `bench`.

use warptile::gpu::Gpu;
use warptile::plan::{Choice, Plan, Planner, Rates, Settings};
use warptile::spec::Problem;
use warptile_check::{Case, trial};

use super::state::Candidate;
use crate::bench::blocks::{self, Pair};
use crate::bench::gpu::{Bench, Replay};
use crate::interrupt;

/// Replays before the first that counts, and those that count, of each candidate.
const WARM_UP: usize = 1;
const FIRST_LOOK: usize = 3;

/// Rounds in which those that came close to the fastest are replayed in turn.
const ROUNDS: usize = 7;
const CLOSE: f64 = 1.15;

/// How much slower than the fastest so far a first replay may be for a second one to be worth its time. The same of launches outside of a
/// graph, besides the microseconds that such a launch may take longer: most kernels are far slower, and a graph has many launches of each.
const HOPELESS: f64 = 2.0;
const LAUNCH: f64 = 60.0;

/// Microseconds that a kernel's very first launch may take longer still.
const LOADING: f64 = 10e3;

/// The plan of a candidate. `rates` matter only to what it says of itself.
pub(super) fn plan_of(
    gpu: &Gpu,
    rates: &Rates,
    problem: Problem,
    candidate: &Candidate,
) -> warptile::Result<Plan> {
    Planner::new(gpu.profile())
        .rates(rates)
        .settings(candidate.settings())
        .plan(problem, &Choice::Kernel(candidate.kernel.clone()))
}

/// Other settings of a candidate's launch than those that it has, as far as they would change it.
pub(super) fn variations(
    case: &Case,
    plan: &Plan,
    candidate: &Candidate,
) -> warptile_check::Result<Vec<Candidate>> {
    let call = case.call_on_gpu()?;
    let Some(step) = plan.steps().first() else {
        return Ok(Vec::new());
    };
    let before = step.shape(&call)?;
    let mut wanted: Vec<Settings> = Vec::new();
    let mut add = |set: &dyn Fn(&mut Settings)| {
        let mut settings = candidate.settings();
        set(&mut settings);
        wanted.push(settings);
    };
    for at_once in [
        1,
        before.heads_at_once / 2,
        before.heads_at_once * 2,
        u32::MAX,
    ] {
        add(&|settings| settings.at_once = Some(at_once.max(1)));
    }
    for ranges in [1, 2, 3, 4, before.splits + 1] {
        add(&|settings| settings.ranges = Some(ranges));
    }
    for ctas in 1..step.ctas_per_multiprocessor {
        add(&|settings| settings.ctas = Some(ctas));
    }
    // Only what makes a different launch than all before.
    let mut shapes = vec![before];
    let mut candidates = Vec::new();
    for settings in wanted {
        let mut step = step.clone();
        step.settings = settings;
        if let Some(ctas) = settings.ctas {
            step.ctas_per_multiprocessor = ctas.min(step.ctas_per_multiprocessor);
        }
        let shape = step.shape(&call)?;
        if !shapes.contains(&shape) {
            shapes.push(shape);
            candidates.push(Candidate::new(&candidate.kernel, settings));
        }
    }
    Ok(candidates)
}

/// Median microseconds of each plan, in their order; after Ctrl-C of fewer. Tells of each that is the fastest so far.
pub(super) fn screen(
    bench: &mut dyn Bench,
    plans: &[Plan],
    fastest_so_far: &mut dyn FnMut(&Plan, f64),
) -> warptile_check::Result<Vec<f64>> {
    let launches = bench.launches();
    let of_launch = |microseconds: f64| microseconds / launches as f64;
    let mut fastest = f64::INFINITY;
    let mut times: Vec<Vec<f64>> = Vec::new();
    let mut close: Vec<(usize, Replay)> = Vec::new();
    for (index, plan) in plans.iter().enumerate() {
        if interrupt::requested() {
            break;
        }
        // The first launch of a kernel may also load it.
        let limit = HOPELESS * fastest + LAUNCH;
        let mut once = bench.once(plan)?;
        if once > limit && once < limit + LOADING {
            once = once.min(bench.once(plan)?);
        }
        if once > limit {
            times.push(vec![once]);
            continue;
        }
        let replay = bench.capture(plan, launches)?;
        for _ in 0..WARM_UP {
            bench.time(&replay)?;
        }
        let mut of_plan = vec![of_launch(bench.time(&replay)?)];
        while of_plan.len() < FIRST_LOOK && of_plan[0] < HOPELESS * fastest {
            of_plan.push(of_launch(bench.time(&replay)?));
        }
        if median(&of_plan) < fastest {
            fastest = median(&of_plan);
            fastest_so_far(plan, fastest);
        }
        times.push(of_plan);
        close.push((index, replay));
        close.retain(|(index, _)| median(&times[*index]) < CLOSE * fastest);
    }
    for _ in 0..ROUNDS {
        for (index, replay) in &close {
            if !interrupt::requested() {
                times[*index].push(of_launch(bench.time(replay)?));
            }
        }
    }
    Ok(times.iter().map(|times| median(times)).collect())
}

/// The ratios of this many blocks A B B A; after Ctrl-C fewer.
pub(super) fn compare(
    bench: &mut dyn Bench,
    old: &Plan,
    new: &Plan,
    blocks: usize,
) -> warptile_check::Result<Vec<f64>> {
    let pair = Pair {
        plans: [old, new],
        launches: [bench.launches(); 2],
        blocks,
    };
    let blocks = blocks::measure(bench, &pair)?;
    Ok(blocks.into_iter().map(trial::ratio).collect())
}

fn median(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::INFINITY)
}
