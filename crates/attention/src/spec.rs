//! What is to be computed: elements, layouts, lengths, options and the operands of each operation, described and checked. Names nothing of
//! this crate outside.

mod append;
mod call;
mod considered;
mod e4m3;
mod element;
mod error;
mod extents;
mod heads;
pub(crate) mod host;
mod layout;
mod lengths;
mod limits;
mod mask;
pub(crate) mod memory;
mod merge;
mod numbers;
mod pages;
mod problem;
mod rotary;
mod scales;
mod scoring;
pub(crate) mod slots;
mod splits;

pub use append::{Append, AppendBuilder};
pub use call::{Call, CallBuilder, Sequence};
pub use considered::{Considered, Reason};
pub use e4m3::E4m3;
pub use element::{Element, ElementType, MemoryType, Types};
pub use error::{Error, Result};
pub use heads::Heads;
pub use host::{HostInputs, HostOutputs};
pub use layout::{Layout, View};
pub use lengths::SideLengths;
pub use limits::{MAX_HEAD_DIM, MAX_LEN, MAX_PAGE_ROWS};
pub use mask::{Diagonal, Mask, ParseDiagonalError};
pub use memory::Access;
pub use merge::{LseBase, Merge, MergeBuilder};
pub use numbers::{LengthElement, Numbers, Request};
pub use pages::{Pages, TableLayout};
pub use problem::Problem;
pub use rotary::{Pairing, Rotary};
pub use scales::Quantized;
pub use scoring::{AlibiShape, ParseScoringError, ScoreTerms, Scoring};
pub use splits::{ParseSplitsError, Splits};

pub(crate) use call::{Layouts, check_types};
pub(crate) use element::check_type;
pub(crate) use extents::{expect_countable, expect_presence, expect_room, expect_same};
pub(crate) use layout::check_alone;
pub(crate) use limits::{DIMENSIONS, PAGE_DIMENSIONS};
pub(crate) use memory::{Expected, Strided};
pub(crate) use merge::{PART_LSE, PART_OUT, expect_parts, no_parts};
pub(crate) use rotary::Angles;
pub(crate) use scales::{SCALES, check_list, check_scale_counts, scale_of};
pub(crate) use scoring::check_factor;
