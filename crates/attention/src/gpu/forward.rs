//! Attention on a GPU.

use warptile_kernels::abi;
use warptile_kernels::{Operand, Role, Slots};

use crate::error::Result;
use crate::gpu::block as filled;
use crate::gpu::operation::{Operation, StepLaunch};
use crate::plan::{LaunchShape, RunScratch, Share, Step};
use crate::spec::{Call, Expected, Problem};

impl Operation for Call {
    type Problem = Problem;

    const BLOCKS: &'static [u64] = abi::FORWARD_BLOCKS;

    fn problem(&self) -> Problem {
        self.problem()
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
        let (step, workspace) = (launch.step, launch.workspace);
        let mut at = launch.at.operands;
        let lists = RunScratch::of(self.batch());
        let in_workspace = |at: usize| workspace + at as u64;
        match step.share {
            Share::All => fill(self, launch, &at, workspace, taker),
            _ if step.role == Role::KeyRuns => {
                let steps = launch.steps.iter().zip(launch.shapes);
                let left = |share: Share| {
                    let mut of_share = steps
                        .clone()
                        .filter(|(step, _)| step.share == share && step.role != Role::KeyRuns);
                    of_share
                        .next()
                        .map_or(0, |(step, shape)| step.tiles_to_draw(shape))
                };
                let block = abi::KeyRuns {
                    key_lengths: in_workspace(lists.key_lengths),
                    other_queries: in_workspace(lists.other_queries),
                    run_counter: in_workspace(RunScratch::RUN_COUNTER),
                    other_counter: in_workspace(RunScratch::OTHER_COUNTER),
                    no_runs: left(Share::Runs),
                    no_others: left(Share::Others),
                    ..filled::key_runs(self, &at)
                };
                launch.kernel.give(&block, taker)
            }
            Share::Runs => {
                let call = self.of_runs();
                for (_, address) in at.iter_mut().filter(|(operand, _)| !call.has(*operand)) {
                    *address = 0;
                }
                at[Operand::KeyLengths] = in_workspace(lists.key_lengths);
                fill(
                    &call,
                    launch,
                    &at,
                    in_workspace(RunScratch::RUN_COUNTER),
                    taker,
                )
            }
            Share::Others => {
                at[Operand::QueryLengths] = in_workspace(lists.other_queries);
                fill(
                    &self.of_others(),
                    launch,
                    &at,
                    in_workspace(RunScratch::OTHER_COUNTER),
                    taker,
                )
            }
        }
    }
}

/// Fills the block of a step that computes a call.
fn fill(
    call: &Call,
    launch: &StepLaunch<'_>,
    at: &Slots<u64>,
    workspace: u64,
    taker: impl FnOnce(&[u8]) -> Result<()>,
) -> Result<()> {
    let StepLaunch {
        step,
        kernel,
        shape,
        ..
    } = *launch;
    let forward = filled::forward(call, shape, at, workspace);
    let with_dropout = kernel.takes::<abi::ForwardTmaDropout>();
    let with_blocks = kernel.takes::<abi::ForwardTmaBlocks>();
    let with_boxes = kernel.takes::<abi::ForwardTmaBoxes>();
    if with_dropout || with_blocks || with_boxes || kernel.takes::<abi::ForwardTma>() {
        let driver = kernel.context().driver();
        let tma = filled::forward_tma(driver, call, step, shape, forward)?;
        if with_blocks {
            let block = abi::ForwardTmaBlocks {
                tma,
                blocks: filled::blocks(call, at),
                ..Default::default()
            };
            return kernel.give(&block, taker);
        }
        if let Some(operand) = step.image.boxed() {
            let (boxes_map, before) = filled::boxes_map(driver, call, operand, at)?;
            let block = abi::ForwardTmaBoxes {
                tma,
                boxes_map,
                before,
                ..Default::default()
            };
            return kernel.give(&block, taker);
        }
        if !with_dropout {
            return kernel.give(&tma, taker);
        }
        let block = abi::ForwardTmaDropout {
            tma,
            dropout: filled::dropout(call, at),
            ..Default::default()
        };
        kernel.give(&block, taker)
    } else if kernel.takes::<abi::ForwardE4m3>() {
        let scales = filled::scales(at, |operand| call.reach(operand));
        kernel.give(&abi::ForwardE4m3 { forward, scales }, taker)
    } else if kernel.takes::<abi::ForwardDropout>() {
        let dropout = filled::dropout(call, at);
        kernel.give(&abi::ForwardDropout { forward, dropout }, taker)
    } else if kernel.takes::<abi::ForwardBlocks>() {
        let blocks = filled::blocks(call, at);
        kernel.give(&abi::ForwardBlocks { forward, blocks }, taker)
    } else {
        kernel.give(&forward, taker)
    }
}
