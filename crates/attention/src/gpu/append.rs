//! Cache writes on a GPU.

use bytemuck::Pod;
use warptile_kernels::abi::{self, CHUNK_BYTES};
use warptile_kernels::{ElementType, Operand, Role, Slots, Types};

use crate::error::Result;
use crate::gpu::block::{pages, scales, tensor};
use crate::gpu::operation::{Operation, StepLaunch};
use crate::gpu::{Gpu, Prepared};
use crate::plan::{Choice, LaunchShape, RowProblem, Step};
use crate::spec::{Angles, Append, Expected, Pairing, Rotary};

/// A number that says where a row stands: `i32`, `u32` or `i64`.
pub trait PositionElement: Pod + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for i32 {}
    impl Sealed for u32 {}
    impl Sealed for i64 {}
}

impl<P: Pod + sealed::Sealed> PositionElement for P {}

impl Gpu {
    /// The kernel that writes keys and values into a cache: loaded the first time, and found again after that. It launches any
    /// [`Append`] of these [`types`](crate::spec::Append::types).
    ///
    /// # Errors
    /// As [`Gpu::prepare_merge`].
    pub fn prepare_append(&self, types: impl Into<Types>) -> Result<Prepared<Append>> {
        self.prepared(RowProblem::new(Role::Append, types), &Choice::Best)
    }
}

/// Threads that a head of a row takes.
fn lanes(append: &Append) -> usize {
    let chunk = CHUNK_BYTES / append.element().size();
    let [keys, values] = append.heads().dims();
    keys.max(values).div_ceil(chunk)
}

/// Rows of the grid, as `new_row` of ops/append.cuh numbers them. Of every sequence there are as many rows as the longest has or, if they
/// are fewer, all packed rows and one more for each sequence.
fn grid_rows(append: &Append) -> usize {
    let (rows, batch) = (append.rows(), append.batch());
    let all = batch.saturating_mul(rows.bound());
    match rows.is_packed() {
        true => all.min(rows.rows() + batch),
        false => all,
    }
}

impl Operation for Append {
    type Problem = RowProblem;

    const BLOCKS: &'static [u64] = abi::APPEND_BLOCKS;

    fn problem(&self) -> RowProblem {
        RowProblem::new(Role::Append, self.types())
    }

    fn expected(&self) -> &Slots<Expected> {
        self.expected()
    }

    fn host_numbers(&self) -> impl Iterator<Item = (Operand, &[u8])> {
        self.host_numbers()
    }

    fn shape(&self, step: &Step) -> Result<LaunchShape> {
        let heads = self.heads().query + 2 * self.heads().key_value;
        step.shape_of_rows(grid_rows(self), heads * lanes(self))
    }

    fn with_block(
        &self,
        launch: &StepLaunch<'_>,
        taker: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let at = &launch.at.operands;
        let count = |n: usize| n as i32;
        let [count_of_pages, page_rows, ..] = self.k_pages().shape;
        let q = self
            .layout(Operand::Q)
            .map_or_else(abi::Tensor::default, |layout| {
                tensor(at[Operand::Q], layout)
            });
        let pages = pages(at, self.columns() as i64, [count_of_pages, page_rows]);
        let append = abi::Append {
            sequences: abi::Sequences {
                batch: count(self.batch()),
                query_len: count(self.rows().bound()),
                key_len: count(self.capacity()),
                query_rows: count(self.rows().rows()),
                key_rows: count(self.capacity()),
                query_offsets: at[Operand::RowOffsets],
                query_lengths: at[Operand::RowLengths],
                key_lengths: at[Operand::KeyLengths],
                ..Default::default()
            }
            .with_ragged(&pages),
            pages,
            slots: at[Operand::NewSlots],
            heads: self.heads().into(),
            lanes: lanes(self) as i32,
            row_ctas: launch.shape.ctas_of_row() as i32,
            q,
            q_out: match self.layout(Operand::QOut) {
                Some(out) => tensor(at[Operand::QOut], out),
                None => q,
            },
            k: tensor(at[Operand::K], self.k()),
            v: tensor(at[Operand::V], self.v()),
            k_pages: tensor(at[Operand::KPages], self.k_pages()),
            v_pages: tensor(at[Operand::VPages], self.v_pages()),
            rotary: self
                .rotary()
                .map_or_else(abi::Rotary::default, |rotary| rotation(self, rotary, at)),
        };
        match self.types().scaled() {
            None => launch.kernel.give(&append, taker),
            Some(_) => {
                let scales = scales(at, |operand| self.reach(operand));
                { launch.kernel }.give(&abi::AppendE4m3 { append, scales }, taker)
            }
        }
    }
}

fn rotation(append: &Append, rotary: &Rotary, at: &Slots<u64>) -> abi::Rotary {
    let mut block = abi::Rotary {
        size: rotary.size() as i32,
        interleaved: i32::from(rotary.pairing() == Pairing::Interleaved),
        wide_positions: i32::from(append.wide_positions()),
        positions: at[Operand::Positions],
        positions_end: rotary.positions_end() as i64,
        cos: at[Operand::Cos],
        sin: at[Operand::Sin],
        ..Default::default()
    };
    match rotary.angles() {
        Angles::Turns(turns) => block.turns[..turns.len()].copy_from_slice(turns),
        Angles::Tables { element, layout } => {
            block.float_tables = i32::from(*element == ElementType::F32);
            block.table_row = layout.strides[1] as i64;
        }
    }
    block
}
