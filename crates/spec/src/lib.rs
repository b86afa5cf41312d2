//! The vocabulary of calls and kernels, for code that describes calls, launches kernels or builds them: the table of operands and
//! options ([`table`]), elements, layouts, lengths and options of a call, described and checked, the blocks of parameters that
//! kernels take ([`abi`]), and the record that each image carries ([`record`]). Nothing here knows a GPU, a driver or an image.
//!
//! Users reach all of it through `warptile`, which takes exactly this version: alone it promises nothing.

pub mod abi;
mod append;
mod backward;
mod blocks;
mod call;
mod capability;
mod dropout;
mod e4m3;
mod element;
pub mod elf;
mod excerpt;
mod extents;
mod heads;
pub mod host;
mod invalid;
mod layout;
mod lengths;
mod limits;
mod mask;
pub mod memory;
mod merge;
mod numbers;
mod operand;
mod pages;
mod prepass;
mod problem;
pub mod record;
mod rotary;
mod scales;
mod scoring;
mod shape;
mod slots;
mod splits;
pub mod table;
mod types;
mod view_types;

#[doc(hidden)]
pub use half;

pub use append::{Append, AppendBuilder};
pub use backward::{Backward, BackwardBuilder, KeyGradients};
pub use blocks::{BlockList, BlockLists, Blocks, ParseBlockListsError};
pub use call::{Call, CallBuilder, Layouts, Sequence, check_types};
pub use capability::{Family, Features, Role, Schedule};
pub use dropout::{Dropout, DropoutRow, DropoutState, philox};
pub use e4m3::E4m3;
pub use element::{Element, MemoryType, check_type};
pub use excerpt::Excerpt;
pub use extents::{expect_countable, expect_presence, expect_room, expect_same};
pub use heads::Heads;
pub use host::{HostInputs, HostOutputs};
pub use invalid::{Invalid, Result};
pub use layout::{Layout, View, check_alone};
pub use lengths::SideLengths;
pub use limits::{DIMENSIONS, MAX_HEAD_DIM, MAX_LEN, MAX_PAGE_ROWS, PAGE_DIMENSIONS};
pub use mask::{Diagonal, Mask, ParseDiagonalError};
pub use memory::{Access, Expected, Strided};
pub use merge::{LseBase, Merge, MergeBuilder, PART_LSE, PART_OUT, Part, expect_parts, no_parts};
pub use numbers::{LengthElement, Numbers, Request};
pub use operand::{Count, Elements, Kind, Operations, Slots, Values};
pub use pages::{Pages, TableLayout};
pub use prepass::{Prepass, PrepassBuilder};
pub use problem::Problem;
pub use rotary::{Angles, Pairing, Rotary};
pub use scales::{Quantized, SCALES, check_list, expect_scales, scale_of};
pub use scoring::{AlibiShape, HeadTerms, ParseScoringError, ScoreTerms, Scoring, check_factor};
pub use shape::TileShape;
pub use splits::{ParseSplitsError, Splits};
pub use table::Operand;
pub use types::{ElementType, Types};
pub use view_types::{ViewTypes, check_view_types};
