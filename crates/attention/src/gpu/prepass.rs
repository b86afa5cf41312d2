//! The pre-pass of the backward pass on a GPU.

use warptile_kernels::abi::{self, CHUNK_BYTES, Declared};
use warptile_kernels::{Operand, Role, Slots};

use crate::error::Result;
use crate::gpu::block::tensor;
use crate::gpu::operation::{Operation, StepLaunch};
use crate::plan::{LaunchShape, RowProblem, Step};
use crate::spec::{Expected, Prepass};

/// Lanes that share a row: one for each 16 bytes if there are no more than a warp has.
fn lanes(prepass: &Prepass) -> usize {
    let chunk = CHUNK_BYTES / prepass.element().size();
    let chunks = prepass.out().head_dim().div_ceil(chunk);
    chunks.max(1).next_power_of_two().min(32)
}

impl Operation for Prepass {
    type Problem = RowProblem;

    const BLOCKS: &'static [u64] = &[abi::Prepass::HASH];

    fn problem(&self) -> RowProblem {
        RowProblem::new(Role::Prepass, self.element())
    }

    fn expected(&self) -> &Slots<Expected> {
        self.expected()
    }

    fn host_numbers(&self) -> impl Iterator<Item = (Operand, &[u8])> {
        { [Operand::QueryOffsets, Operand::QueryLengths].into_iter() }.filter_map(|operand| {
            let numbers = self.numbers(operand).on_host()?;
            Some((operand, bytemuck::cast_slice(numbers)))
        })
    }

    fn shape(&self, step: &Step) -> Result<LaunchShape> {
        step.shape_of_rows(self.len() / Prepass::TILE, 1)
    }

    fn with_block(
        &self,
        launch: &StepLaunch<'_>,
        taker: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<()> {
        launch.kernel.give(&block(self, &launch.at.operands), taker)
    }
}

/// The block, with results where operands have them.
pub(super) fn block(prepass: &Prepass, at: &Slots<u64>) -> abi::Prepass {
    let count = |n: usize| n as i32;
    let [_, row_count, heads, head_dim] = prepass.out().shape;
    let rows = prepass.rows();
    abi::Prepass {
        sequences: abi::Sequences {
            batch: count(prepass.batch()),
            query_len: count(rows.bound()),
            query_rows: count(rows.rows()),
            query_offsets: at[Operand::QueryOffsets],
            query_lengths: at[Operand::QueryLengths],
            ..Default::default()
        }
        .with_ragged(&abi::Pages::default()),
        heads: count(heads),
        head_dim: count(head_dim),
        query_tiles: count(prepass.tiles()),
        lanes: count(lanes(prepass)),
        out: tensor(at[Operand::Out], prepass.out()),
        d_out: tensor(at[Operand::DOut], prepass.d_out()),
        lse: at[Operand::Lse],
        lse_batch: match rows.is_packed() {
            true => 0,
            false => (heads * row_count) as i64,
        },
        lse_head: row_count as i64,
        d_lse: at[Operand::DLse],
        turns: 0,
        delta: at[Operand::Delta],
        scaled_lse: at[Operand::ScaledLse],
    }
}
