//! Merging results on a GPU.

use warptile_kernels::abi::{self, CHUNK_BYTES};
use warptile_kernels::{ElementType, Operand, Role, Slots};

use crate::error::Result;
use crate::gpu::block::tensor;
use crate::gpu::operation::{Operation, StepLaunch};
use crate::gpu::{Gpu, Prepared};
use crate::plan::{Choice, LaunchShape, RowProblem, Step};
use crate::spec::{Expected, LseBase, Merge};

impl Gpu {
    /// The kernel that merges results of this element type: loaded the first time, and found again after that.
    ///
    /// # Errors
    /// [`Error::NoImages`](crate::Error::NoImages) if the program has none that runs on the device; when the driver refuses the image.
    pub fn prepare_merge(&self, element: ElementType) -> Result<Prepared<Merge>> {
        self.prepared(RowProblem::new(Role::Combine, element), &Choice::Best)
    }
}

impl Operation for Merge {
    type Problem = RowProblem;

    const BLOCKS: &'static [u64] = abi::MERGE_BLOCKS;

    fn problem(&self) -> RowProblem {
        RowProblem::new(Role::Combine, self.element())
    }

    fn expected(&self) -> &Slots<Expected> {
        self.expected()
    }

    fn expected_parts(&self) -> &[[Expected; 2]] {
        self.expected_parts()
    }

    fn host_numbers(&self) -> impl Iterator<Item = (Operand, &[u8])> {
        std::iter::empty()
    }

    fn shape(&self, step: &Step) -> Result<LaunchShape> {
        let [batch, rows, heads, head_dim] = self.out().shape;
        let chunk = CHUNK_BYTES / self.element().size();
        step.shape_of_rows(batch.saturating_mul(rows), heads * head_dim.div_ceil(chunk))
    }

    fn with_block(
        &self,
        launch: &StepLaunch<'_>,
        taker: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let at = launch.at;
        let [_, rows, heads, head_dim] = self.out().shape.map(|extent| extent as i32);
        let mut merge = abi::Merge {
            parts: self.part_count() as i32,
            base_two: i32::from(self.base() == LseBase::Two),
            rows,
            heads,
            head_dim,
            row_ctas: launch.shape.ctas_of_row() as i32,
            out: tensor(at.operands[Operand::Out], self.out()),
            ..Default::default()
        };
        if let Some(lse) = self.lse() {
            merge.lse = tensor(at.operands[Operand::Lse], lse);
        }
        for (index, addresses) in at.parts.iter().enumerate() {
            if let Some((out, lse)) = self.part(index) {
                merge.outs[index] = tensor(addresses[0], out);
                merge.lses[index] = tensor(addresses[1], lse);
            }
        }
        launch.kernel.give(&merge, taker)
    }
}
