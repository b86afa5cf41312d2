//! Why a kernel will not run.

use std::fmt::{self, Write as _};

use warptile_kernels::{ElementType, Features, Target};

/// A kernel that was considered and will not run, and why.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Considered {
    /// Kernel name, `{family}_{tiling}`.
    pub kernel: &'static str,
    /// Why not.
    pub reason: Reason,
}

/// Why a kernel will not run.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Reason {
    /// It was not compiled for the problem's element type.
    Element(ElementType),
    /// Its tiles are too narrow for the head size.
    HeadDim {
        /// Head size its tiles are laid out for.
        laid_out_for: u32,
    },
    /// They are too narrow for the head size of the values.
    ValueDim {
        /// Head size of values its tiles are laid out for.
        laid_out_for: u32,
    },
    /// No image of it runs on the device.
    NoImage {
        /// The targets it was compiled for.
        targets: Vec<Target>,
    },
    /// A CTA needs more shared memory than the device gives.
    SharedMemory {
        /// Bytes needed.
        needed: u32,
        /// Bytes a CTA may have.
        available: u32,
    },
    /// It cannot do something that the problem needs.
    Lacks(Features),
    /// It reads keys and values of this type only.
    OnlyKeys(ElementType),
    /// It cannot cut keys at fixed places, which [`Splits::EveryKeys`](crate::Splits::EveryKeys) asks for.
    Splits,
    /// Its CTAs compute two tiles at a time that see the same keys, and this problem has none: neither is the number of query heads even
    /// that share a key/value head, nor does every query see all keys.
    Pairs,
    /// The rows of its tiles are those of all query heads that share a key/value head, and this problem has another
    /// number of them than those it was made for.
    Groups,
    /// Its tiles have rows of more than one block of queries of the problem's lists.
    BlockRows {
        /// Rows of a tile.
        rows: u32,
        /// Queries of a block.
        queries: usize,
    },
    /// It computes lists of blocks only, and this problem has none.
    OnlyBlocks,
    /// It computes with a key mask of queries and keys only, and this problem has none.
    OnlyMasks,
    /// Its CTAs come in clusters of a size that the device does not support.
    Clusters,
    /// It loads keys out of pages in boxes of whole rows, and pages of this size leave none that is large enough.
    PageRows {
        /// The largest power of two that divides the rows of a page.
        rows: usize,
        /// The least value allowed.
        least: usize,
    },
    /// It would have more tiles than a launch can have.
    Grid {
        /// Tiles needed.
        ctas: u64,
        /// The most there can be.
        limit: u64,
    },
    /// It applies, but another is expected to be faster.
    Slower {
        /// Its estimated time over that of the chosen kernel.
        times: f64,
    },
    /// It applies, but it has no rates, and one that has applies too.
    Unmeasured,
    /// It applies, but only as PTX, while another kernel of its family has machine code for the device.
    OnlyText,
    /// It applies, but trials chose another for this problem.
    Tuned,
    /// It applies, but another was asked for.
    NotRequested,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Element(element) => write!(f, "not compiled for {element}"),
            Reason::HeadDim { laid_out_for } => {
                write!(f, "its tiles hold head sizes up to {laid_out_for}")
            }
            Reason::ValueDim { laid_out_for } => {
                write!(f, "its tiles hold values of head sizes up to {laid_out_for}")
            }
            Reason::NoImage { targets } => {
                f.write_str("no image for this device (compiled for")?;
                targets
                    .iter()
                    .try_for_each(|target| write!(f, " {target}"))?;
                f.write_char(')')
            }
            Reason::SharedMemory { needed, available } => {
                write!(
                    f,
                    "needs {needed} bytes of shared memory; the device gives a CTA {available}"
                )
            }
            Reason::Lacks(features) => write!(f, "does not support {features}"),
            Reason::OnlyKeys(keys) => write!(f, "reads keys and values in {keys} only"),
            Reason::Splits => f.write_str("cannot cut keys at fixed places"),
            Reason::Clusters => f.write_str("the device can hold none of its clusters of CTAs"),
            Reason::Pairs => f.write_str(
                "computes pairs of tiles that see the same keys: an even number of query heads that share a key/value head, or no mask",
            ),
            Reason::BlockRows { rows, queries } => write!(
                f,
                "computes {rows} rows of a list of blocks at once; these are of {queries} queries"
            ),
            Reason::OnlyBlocks => f.write_str("computes lists of blocks only"),
            Reason::OnlyMasks => f.write_str("computes with a boolean mask only"),
            Reason::Groups => f.write_str("takes 2 or 4 query heads that share a key/value head, 8 where it splits keys"),
            Reason::PageRows { rows, least } => write!(
                f,
                "takes pages of a multiple of {least} rows; {rows} is the largest power of two in these"
            ),
            Reason::Grid { ctas, limit } => {
                write!(f, "needs {ctas} tiles; a launch can have {limit}")
            }
            Reason::Unmeasured => f.write_str("applies, but has no rates: it runs only by name"),
            Reason::OnlyText => f.write_str(
                "applies, but only as PTX for the driver to compile; another kernel of its family has machine code",
            ),
            Reason::Tuned => f.write_str("applies, but trials chose another for this problem"),
            Reason::Slower { times } => {
                write!(f, "applies, expected to take {times:.2} times as long")
            }
            Reason::NotRequested => f.write_str("applies, but another kernel was asked for"),
        }
    }
}
