//! The part of a launch that differs from operation to operation.

use std::fmt;

use warptile_kernels::{Operand, Role, Slots};

use crate::error::{Error, Result};
use crate::gpu::bindings::Addresses;
use crate::gpu::kernel::Loaded;
use crate::gpu::log;
use crate::plan::{
    BackwardProblem, BackwardScratch, Choice, LaunchShape, Plan, Planner, RowProblem, Scratch, Step,
};
use crate::spec::{Expected, Problem, check_type};

/// An operation that runs on a GPU, as the description of one of its calls: [`Call`](crate::spec::Call),
/// [`Backward`](crate::spec::Backward), [`Merge`](crate::spec::Merge) or [`Append`](crate::spec::Append).
///
/// All of them are launched by [`Prepared`](crate::gpu::Prepared). An operation has a plan of one or more steps. For
/// each step it gives the grid, and fills the parameter block of the step's kernel. Steps run one after the other,
/// and share one workspace. Only this crate can name the types that an operation is made of.
pub trait Operation: fmt::Debug {
    /// The part of a call that planning depends on; the cache key of prepared plans.
    type Problem: Planned;

    /// The hashes of the blocks that it fills.
    #[doc(hidden)]
    const BLOCKS: &'static [u64];

    /// The problem that the call is one of.
    #[doc(hidden)]
    fn problem(&self) -> Self::Problem;

    /// The memory that it expects of each operand.
    #[doc(hidden)]
    fn expected(&self) -> &Slots<Expected>;

    /// The memory that it expects of each part, of an operation that has parts.
    #[doc(hidden)]
    fn expected_parts(&self) -> &[[Expected; 2]] {
        &[]
    }

    /// The numbers in host memory, which travel with a launch.
    #[doc(hidden)]
    fn host_numbers(&self) -> impl Iterator<Item = (Operand, &[u8])>;

    /// The launch of a step; a grid of 0 if there is nothing to do.
    #[doc(hidden)]
    fn shape(&self, step: &Step) -> Result<LaunchShape>;

    /// Fills the block of a step's kernel, and gives its bytes to `taker`. Counts fit 32 bits: the builder has checked them against
    /// [`MAX_LEN`](crate::spec::MAX_LEN), and the shape its CTAs. The context is current.
    #[doc(hidden)]
    fn with_block(
        &self,
        launch: &StepLaunch<'_>,
        taker: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<()>;
}

/// The problem of an operation: [`Problem`](crate::spec::Problem), [`BackwardProblem`] or [`RowProblem`].
pub trait Planned: Copy + PartialEq + fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// Chooses kernels.
    #[doc(hidden)]
    fn plan(self, planner: &Planner<'_>, choice: &Choice) -> Result<Plan<Self>>;

    /// Called when the problem has been prepared for the first time.
    #[doc(hidden)]
    fn note(&self) {}

    /// The workspace for the largest call of a plan.
    #[doc(hidden)]
    fn scratch(_plan: &Plan<Self>) -> Scratch {
        Scratch::default()
    }

    /// Refuses a call of a different problem than this one, which was prepared.
    #[doc(hidden)]
    fn check(&self, found: Self) -> Result<()> {
        match found == *self {
            true => Ok(()),
            false => Err(Error::OtherProblem {
                found: found.to_string(),
                prepared: self.to_string(),
            }),
        }
    }
}

impl Planned for Problem {
    fn plan(self, planner: &Planner<'_>, choice: &Choice) -> Result<Plan> {
        planner.plan(self, choice)
    }

    fn note(&self) {
        log::note(self);
    }

    fn scratch(plan: &Plan) -> Scratch {
        plan.scratch()
    }
}

impl Planned for BackwardProblem {
    fn plan(self, planner: &Planner<'_>, choice: &Choice) -> Result<Plan<Self>> {
        planner.plan_backward(self, choice)
    }

    fn scratch(plan: &Plan<Self>) -> Scratch {
        BackwardScratch::of_plan(plan)
    }
}

impl Planned for RowProblem {
    fn plan(self, planner: &Planner<'_>, _: &Choice) -> Result<Plan<Self>> {
        Plan::of_rows(self, planner.device())
    }

    fn check(&self, found: Self) -> Result<()> {
        let (kernels, found) = (self.types, found.types);
        let tensor = if self.role == Role::Append {
            "k"
        } else {
            "out"
        };
        check_type(tensor, Some(kernels.q), Some(found.q))?;
        Ok(check_type("k_pages", Some(kernels.k), Some(found.k))?)
    }
}

/// One step of a launch.
#[derive(Debug, Clone, Copy)]
pub struct StepLaunch<'a> {
    pub(super) step: &'a Step,
    pub(super) kernel: &'a Loaded,
    pub(super) shape: &'a LaunchShape,
    /// All steps of the plan, and their shapes.
    pub(super) steps: &'a [Step],
    pub(super) shapes: &'a [LaunchShape],
    pub(super) at: &'a Addresses<'a>,
    /// 0 if no step needs one.
    pub(super) workspace: u64,
}
