//! Padding masks: a key mask that is the same for all queries and heads, and shows the first keys of most sequences and no others. These
//! are computed without the mask, as with lengths, and then the others with it. A kernel before both finds out which is which.

use std::cmp::Reverse;

use warptile_kernels::{Features, Image, Role, Schedule};

use crate::considered::Reason;
use crate::plan::planner::preference;
use crate::plan::share::{RunScratch, Share};
use crate::plan::split_tiles::splits_tiles;
use crate::plan::{Choice, Plan, Planner, Scratch, Step};

/// The most sequences whose numbers every workspace has room for.
const MOST_SEQUENCES: usize = 1 << 16;

/// Microseconds of the first of three steps, and of the last one where it has no sequence; see docs/notebook/wgmma-options.md.
const FIRST_US: f64 = 6.0;
const IDLE_US: f64 = 4.0;

impl Planner<'_> {
    /// The plan in three steps instead, if it is expected to be faster where all sequences have runs. An image that hides keys of all
    /// queries alike is about as fast without.
    pub(super) fn with_runs(&self, plan: Plan) -> Plan {
        self.in_three_steps(&plan).unwrap_or(plan)
    }

    fn in_three_steps(&self, plan: &Plan) -> Option<Plan> {
        let (problem, device) = (plan.problem(), self.device());
        let of_runs = { problem.of_runs() }.filter(|_| problem.batch() <= MOST_SEQUENCES)?;
        let is_tuned = plan.basis().is_some_and(|basis| basis.tuned);
        let of_runs = match is_tuned {
            true => return None,
            false => self.plan_alone(of_runs, &Choice::Best).ok()?,
        };
        let ([all], [runs]) = (plan.steps(), of_runs.steps()) else {
            return None;
        };
        let fits = |image: &Image| {
            let shares_keys =
                matches!(image.schedule, Schedule::SharedKeys | Schedule::ClusterTile);
            !shares_keys
                && !image.hides_keys_alone()
                && !splits_tiles(image)
                && image.features.contains(Features::DEVICE_LENGTHS)
        };
        let us = FIRST_US + runs.estimate_us + IDLE_US;
        if !fits(all.image) || !fits(runs.image) || us >= all.estimate_us {
            return None;
        }
        let first = { self.images_of(Role::KeyRuns) }
            .filter(|image| image.target.runs_on(device.major, device.minor))
            .min_by_key(|image| Reverse(preference(image.target)))?;
        let steps = vec![
            Step {
                share: Share::Runs,
                ..Step::new(first, device, FIRST_US)
            },
            Step {
                share: Share::Runs,
                ..runs.clone()
            },
            Step {
                share: Share::Others,
                estimate_us: IDLE_US,
                ..all.clone()
            },
        ];
        let mut considered = plan.considered().to_vec();
        considered.retain(|one| one.kernel != runs.image.kernel);
        for one in &mut considered {
            if let Reason::Slower { times } = &mut one.reason {
                *times *= all.estimate_us / us;
            }
        }
        Some(Plan::new(
            *problem,
            Some(device.clone()),
            steps,
            considered,
            of_runs.basis().cloned(),
        ))
    }
}

const _: () = assert!(RunScratch::of(MOST_SEQUENCES).bytes <= Scratch::of_even_splits().bytes);
