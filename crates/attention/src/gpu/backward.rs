//! The backward pass on a GPU.

use warptile_kernels::abi;
use warptile_kernels::{Kind, Operand, Role, Slots};

use crate::error::Result;
use crate::gpu::block::{backward_tma, blocks, dropout, scoring, sequences, tensor};
use crate::gpu::operation::{Operation, StepLaunch};
use crate::gpu::prepass::block as prepass_block;
use crate::plan::{BackwardProblem, BackwardScratch, LaunchShape, Step};
use crate::spec::{Backward, ElementType, Expected, Layout};

impl Operation for Backward {
    type Problem = BackwardProblem;

    const BLOCKS: &'static [u64] = abi::BACKWARD_BLOCKS;

    fn problem(&self) -> BackwardProblem {
        BackwardProblem::of(self)
    }

    fn expected(&self) -> &Slots<Expected> {
        self.expected()
    }

    fn host_numbers(&self) -> impl Iterator<Item = (Operand, &[u8])> {
        self.call().host_numbers()
    }

    fn shape(&self, step: &Step) -> Result<LaunchShape> {
        step.shape_of_backward(self)
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
            ..
        } = *launch;
        let at = &at.operands;
        let scratch = BackwardScratch::of_call(self);
        let rows = abi::QueryRows {
            delta: workspace + scratch.delta as u64,
            scaled_lse: workspace + scratch.scaled_lse as u64,
            dq_sum: workspace + scratch.dq_sum as u64,
            turns: workspace + scratch.turns as u64,
            query_tiles: self.prepass().tiles() as i32,
            ..Default::default()
        };
        match step.role {
            Role::Prepass => {
                let mut block = prepass_block(self.prepass(), at);
                (block.delta, block.scaled_lse) = (rows.delta, rows.scaled_lse);
                block.turns = rows.turns;
                kernel.give(&block, taker)
            }
            Role::SinkGradients => {
                let block = abi::SinkGradient {
                    rows,
                    sinks: at[Operand::Sinks],
                    d_sinks: at[Operand::DSinks],
                    heads: self.call().heads().query as i32,
                    entries: self.call().out().batch() as i32,
                    gradients: gradients(self, Operand::DSinks),
                    ..Default::default()
                };
                kernel.give(&block, taker)
            }
            Role::BiasGradients => {
                let layout = self.gradient(Operand::DBias).unwrap_or(&Layout::EMPTY);
                let [batch_step, row_step, head_step, _] = layout.strides.map(|step| step as i64);
                let [batch, rows_of_bias, heads, keys] = layout.shape.map(|extent| extent as i32);
                let block = abi::BiasGradient {
                    dropping: abi::BackwardDropout {
                        backward: block(self, shape, rows, at, Operand::DBias),
                        dropout: dropout(self.call(), at),
                    },
                    d_bias: at[Operand::DBias],
                    batch_step,
                    row_step,
                    head_step,
                    batch,
                    rows: rows_of_bias,
                    heads,
                    keys,
                };
                kernel.give(&block, taker)
            }
            role => {
                let of = match role {
                    Role::AllGradients | Role::KeyGradients => Operand::DK,
                    _ => Operand::DQ,
                };
                let mut backward = block(self, shape, rows, at, of);
                let mut dropout = dropout(self.call(), at);
                let with_dropout = kernel.takes::<abi::BackwardTmaDropout>();
                if with_dropout || kernel.takes::<abi::BackwardTma>() {
                    backward.work.counter = workspace;
                    let driver = kernel.context().driver();
                    let tma = backward_tma(driver, self.call(), self.d_out(), step, backward)?;
                    if !with_dropout {
                        return kernel.give(&tma, taker);
                    }
                    let block = abi::BackwardTmaDropout {
                        tma,
                        dropout,
                        ..Default::default()
                    };
                    return kernel.give(&block, taker);
                }
                if kernel.takes::<abi::BackwardBlocks>() {
                    let blocks = blocks(self.call(), at);
                    return kernel.give(&abi::BackwardBlocks { backward, blocks }, taker);
                }
                if !kernel.takes::<abi::BackwardDropout>() {
                    return kernel.give(&backward, taker);
                }
                // The pair multiplies weights before it rounds them, and f16 has no room for 65,536. The kernels above limit it themselves.
                if self.call().element() == ElementType::F16 {
                    dropout.factor = dropout.factor.min(65_504.0);
                }
                kernel.give(&abi::BackwardDropout { backward, dropout }, taker)
            }
        }
    }
}

/// How a kernel writes a gradient.
fn gradients(backward: &Backward, operand: Operand) -> i32 {
    let adds = match backward.adds_to(operand) {
        true => abi::GRADIENTS_ADD,
        false => 0,
    };
    let is_wide = backward.type_of(operand) != backward.call().element();
    match is_wide && !matches!(operand.kind(), Kind::List(_)) {
        true => adds | abi::GRADIENTS_F32,
        false => adds,
    }
}

/// The block of kernels that read and write through addresses, and write this gradient or those like it.
fn block(
    backward: &Backward,
    shape: &LaunchShape,
    rows: abi::QueryRows,
    at: &Slots<u64>,
    written: Operand,
) -> abi::Backward {
    let call = backward.call();
    let given = |operand, layout: &Layout| tensor(at[operand], layout);
    let gradient = |operand| match backward.gradient(operand) {
        Some(layout) => given(operand, layout),
        None => abi::Tensor::default(),
    };
    abi::Backward {
        work: abi::BackwardWork {
            tiles: shape.tiles as i32,
            head_tiles: shape.query_tiles as i32,
            heads_at_once: shape.heads_at_once as i32,
            ..Default::default()
        },
        heads: call.heads().into(),
        sequences: sequences(call, at, &abi::Pages::default()),
        scoring: scoring(call, at),
        rows,
        q: given(Operand::Q, call.q()),
        k: given(Operand::K, call.k()),
        v: given(Operand::V, call.v()),
        d_out: given(Operand::DOut, backward.d_out()),
        dq: gradient(Operand::DQ),
        dk: gradient(Operand::DK),
        dv: gradient(Operand::DV),
        gradients: gradients(backward, written),
        ..Default::default()
    }
}
