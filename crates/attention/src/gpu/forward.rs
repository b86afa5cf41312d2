//! Attention on a GPU.

use warptile_kernels::abi;
use warptile_kernels::{Operand, Slots};

use crate::error::Result;
use crate::gpu::operation::{Operation, StepLaunch, expect_problem};
use crate::gpu::{block as filled, log};
use crate::plan::{Choice, LaunchShape, Plan, Planner, Scratch, Step};
use crate::spec::{Call, Expected, Problem};

impl Operation for Call {
    type Problem = Problem;

    const BLOCKS: &'static [u64] = abi::FORWARD_BLOCKS;

    fn plan(planner: &Planner<'_>, problem: Problem, choice: &Choice) -> Result<Plan> {
        planner.plan(problem, choice)
    }

    fn note(problem: &Problem) {
        log::note(problem);
    }

    fn scratch(plan: &Plan) -> Scratch {
        plan.scratch()
    }

    fn check_problem(&self, prepared: &Problem) -> Result<()> {
        expect_problem(self.problem(), prepared)
    }

    fn expected(&self) -> &Slots<Expected> {
        self.expected()
    }

    fn host_numbers(&self) -> impl Iterator<Item = (Operand, &[u8])> {
        Operand::ALL.into_iter().filter_map(|operand| {
            let numbers = self.numbers(operand)?.on_host()?;
            Some((operand, bytemuck::cast_slice(numbers)))
        })
    }

    fn shape(&self, step: &Step) -> Result<LaunchShape> {
        step.shape(self)
    }

    fn with_block(
        &self,
        launch: &StepLaunch<'_>,
        taker: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let StepLaunch {
            step,
            kernel,
            shape,
            at,
            workspace,
        } = *launch;
        let forward = filled::forward(self, shape, &at.operands, workspace);
        let with_dropout = kernel.takes::<abi::ForwardTmaDropout>();
        let with_blocks = kernel.takes::<abi::ForwardTmaBlocks>();
        if with_dropout || with_blocks || kernel.takes::<abi::ForwardTma>() {
            let driver = kernel.context().driver();
            let tma = filled::forward_tma(driver, self, step, shape, forward)?;
            if with_blocks {
                let block = abi::ForwardTmaBlocks {
                    tma,
                    blocks: filled::blocks(self, &at.operands),
                    ..Default::default()
                };
                return kernel.give(&block, taker);
            }
            if !with_dropout {
                return kernel.give(&tma, taker);
            }
            let block = abi::ForwardTmaDropout {
                tma,
                dropout: filled::dropout(self, &at.operands),
                ..Default::default()
            };
            kernel.give(&block, taker)
        } else if kernel.takes::<abi::ForwardE4m3>() {
            let scales = filled::scales(&at.operands, |operand| self.reach(operand));
            kernel.give(&abi::ForwardE4m3 { forward, scales }, taker)
        } else if kernel.takes::<abi::ForwardDropout>() {
            let dropout = filled::dropout(self, &at.operands);
            kernel.give(&abi::ForwardDropout { forward, dropout }, taker)
        } else {
            kernel.give(&forward, taker)
        }
    }
}
