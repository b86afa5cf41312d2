//! Tensors over scores whose rows the copy engine can bring.

use crate::{Call, ElementType, Operand};

impl Call {
    /// Returns true if the bias or the key mask is given, its keys are contiguous, and its rows, heads and batch entries lie multiples of
    /// 16 bytes apart, as tensor maps ask for. Heads and batch entries may share theirs, rows may not. The first element is at a multiple
    /// of 16 bytes, too: a copy that begins elsewhere is an illegal instruction.
    pub(crate) fn fits_boxes(&self, operand: Operand) -> bool {
        let size = self.type_of(operand).map_or(1, ElementType::size);
        self.layout(operand).is_some_and(|scores| {
            let [_, rows, _, keys] = scores.shape;
            let [_, row, _, key] = scores.strides;
            let has_rows = rows <= 1 || row > 0;
            let is_aligned = self.terms.aligned_scores && scores.steps_aligned(size);
            keys > 1 && key == 1 && has_rows && is_aligned
        })
    }
}
