//! The description of a computation: elements, layouts, lengths, options and operands of each operation, described
//! and checked.
//!
//! Calls on memory of one's own begin here: [`Call`], [`Append`] and [`Merge`] describe what `gpu` launches and `cpu` computes.

pub(crate) use warptile_spec::*;
pub use warptile_spec::{
    AlibiShape, Append, AppendBuilder, Backward, BackwardBuilder, BlockList, BlockLists, Blocks,
    Call, CallBuilder, Diagonal, Dropout, DropoutRow, DropoutState, E4m3, Element, ElementType,
    Features, HeadTerms, Heads, HostInputs, HostOutputs, Invalid, KeyGradients, Layout,
    LengthElement, LseBase, MAX_HEAD_DIM, MAX_LEN, MAX_PAGE_ROWS, Mask, Merge, MergeBuilder,
    Numbers, Operand, Pages, Pairing, ParseBlockListsError, ParseDiagonalError, ParseScoringError,
    ParseSplitsError, Problem, Quantized, Request, Rotary, ScoreTerms, Scoring, Sequence,
    SideLengths, Slots, Splits, TableLayout, Types, View, check_list, check_view_types,
};
