//! What can be wrong with a problem, a tensor or the machine.

use warptile_driver::DriverError;
use warptile_kernels::{ElementType, UnpackError};

use crate::plan::Rejection;

/// Shorthand for a result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Everything this crate reports. Each message names the argument and the rule it breaks.
///
/// All errors about arguments are found before anything is computed or launched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The head size has no kernel, and never will have one by this rule.
    #[error(
        "q has head size {head_dim}; a head size must be a multiple of 8 from 8 to 256 (pad q, k and v with zeros to the next multiple and pass the original 1/sqrt scale)"
    )]
    HeadDimUnsupported {
        /// The head size of `q`.
        head_dim: usize,
    },

    /// Query heads don't divide into groups of equal size.
    #[error(
        "q has {heads} heads and k has {kv_heads}; both must be at least 1, and the query heads a multiple of the key/value heads"
    )]
    HeadsNotMultiple {
        /// Heads of `q`.
        heads: usize,
        /// Heads of `k` and `v`.
        kv_heads: usize,
    },

    /// Two tensors disagree in a dimension that they share.
    #[error(
        "{argument} has {dimension} {found}, but {expected} is needed to match the other tensors"
    )]
    Mismatch {
        /// The tensor at fault.
        argument: &'static str,
        /// The dimension: batch, length, heads or head size.
        dimension: &'static str,
        /// What the tensors before it have.
        expected: usize,
        /// What this one has.
        found: usize,
    },

    /// The head dimension has gaps.
    #[error(
        "{argument} has stride {stride} in its last dimension (head size), which must be contiguous (stride 1)"
    )]
    LastDimNotContiguous {
        /// The tensor at fault.
        argument: &'static str,
        /// Its stride there, in elements.
        stride: usize,
    },

    /// Two tensors have different element types.
    #[error(
        "{argument} has elements of type {found}, but q has {expected}; all of q, k and v must share one type"
    )]
    ElementMismatch {
        /// The tensor at fault.
        argument: &'static str,
        /// The element type of `q`.
        expected: ElementType,
        /// The one of this tensor.
        found: ElementType,
    },

    /// A tensor lies in memory otherwise than its problem was told.
    #[error("{argument} has strides {found:?}, but the problem was built for {expected:?}")]
    StridesDiffer {
        /// The tensor at fault.
        argument: &'static str,
        /// Strides of the problem.
        expected: [usize; 4],
        /// Strides of the tensor.
        found: [usize; 4],
    },

    /// A slice or device buffer ends before its shape does.
    #[error(
        "{argument} needs a buffer of {needed} elements for its shape and strides, but has {available}"
    )]
    BufferTooSmall {
        /// The tensor at fault.
        argument: &'static str,
        /// Elements its layout reaches over.
        needed: usize,
        /// Elements there are.
        available: usize,
    },

    /// A shape and its strides reach over more elements than memory can have.
    #[error("{argument} has a shape and strides that reach beyond the address space")]
    LayoutTooLarge {
        /// The tensor at fault.
        argument: &'static str,
    },

    /// Two elements of an output share memory, or an output shares memory with an input.
    #[error("{argument} overlaps: {reason}; every element of an output needs memory of its own")]
    OutputOverlaps {
        /// The tensor at fault.
        argument: &'static str,
        /// What it overlaps with.
        reason: &'static str,
    },

    /// The row offsets of a packed batch break a rule.
    #[error("{argument}[{index}] {rule}")]
    CuSeqlens {
        /// `cu_seqlens_q` or `cu_seqlens_k`.
        argument: &'static str,
        /// The first entry at fault.
        index: usize,
        /// The rule, with the values at hand.
        rule: String,
    },

    /// A number that must be finite is not.
    #[error("{argument} is {value}, but must be a finite number")]
    NonFinite {
        /// The argument at fault.
        argument: &'static str,
        /// Its value.
        value: f32,
    },

    /// The softcap would flip or erase the scores.
    #[error(
        "softcap is {value}, but must be finite and greater than 0; leave it out for no softcap"
    )]
    InvalidSoftcap {
        /// Its value.
        value: f32,
    },

    /// A dimension is beyond what the kernels count with.
    #[error("{argument} has {dimension} {found}; the limit is {limit}")]
    TooLong {
        /// The tensor at fault.
        argument: &'static str,
        /// The dimension.
        dimension: &'static str,
        /// What it is.
        found: usize,
        /// What it may be.
        limit: usize,
    },

    /// The ALiBi slopes don't fit the problem.
    #[error(
        "alibi_slopes has {found} values; {heads} are needed (one per query head), or {batch_heads} (one per batch entry and query head)"
    )]
    AlibiShape {
        /// Slopes given.
        found: usize,
        /// Query heads.
        heads: usize,
        /// Batch times query heads.
        batch_heads: usize,
    },

    /// The problem was built with slopes and called without, or the other way round.
    #[error("the problem was built {built} ALiBi slopes, but alibi_slopes is {given}")]
    AlibiPresence {
        /// "with" or "without".
        built: &'static str,
        /// "given" or "missing".
        given: &'static str,
    },

    /// There is no kernel of that name.
    #[error("unknown kernel {name:?}{}", suggest(.close))]
    UnknownKernel {
        /// What was asked for.
        name: String,
        /// The names most like it.
        close: Vec<String>,
    },

    /// No kernel can compute the problem on the device.
    #[error("no kernel for {problem}{}", reasons(.rejected))]
    NoKernel {
        /// The problem and the device in words.
        problem: String,
        /// Every candidate and why it was passed over.
        rejected: Vec<Rejection>,
    },

    /// Tensors of one call live in different places.
    #[error(
        "{argument} is on {found}, but q is on {expected}; all tensors of a call must be on one device"
    )]
    DeviceMismatch {
        /// The tensor at fault.
        argument: &'static str,
        /// Where `q` is.
        expected: String,
        /// Where this one is.
        found: String,
    },

    /// The plan was made for tensors that start at a multiple of 16 bytes, and this one doesn't.
    #[error(
        "{argument} starts at {address:#x}, which is no multiple of 16 bytes as the planned kernel needs; build the problem with `unaligned_addresses`"
    )]
    Misaligned {
        /// The tensor at fault.
        argument: &'static str,
        /// Its device address.
        address: u64,
    },

    /// A buffer that the problem asks for was left out, or one was given that it knows nothing of.
    #[error("{argument} {rule}")]
    Presence {
        /// The argument at fault.
        argument: &'static str,
        /// What is wrong.
        rule: &'static str,
    },

    /// The driver is missing, too old, or reports an error.
    #[error(transparent)]
    Driver(#[from] DriverError),

    /// An embedded image is damaged.
    #[error(transparent)]
    Image(#[from] UnpackError),
}

impl Error {
    /// No kernel is called `name`; suggests those of `known` that look most like it.
    pub(crate) fn unknown_kernel<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Self {
        const SUGGESTIONS: usize = 3;
        let mut known: Vec<&str> = known.collect();
        known.sort_unstable();
        known.dedup();
        let likeness = |other: &str| strsim::jaro_winkler(name, other);
        known.sort_by(|a, b| likeness(b).total_cmp(&likeness(a)));
        known.truncate(SUGGESTIONS);
        Error::UnknownKernel {
            name: name.to_owned(),
            close: known.into_iter().map(str::to_owned).collect(),
        }
    }
}

fn suggest(close: &[String]) -> String {
    if close.is_empty() {
        String::new()
    } else {
        format!("; did you mean {}?", close.join(", "))
    }
}

fn reasons(rejected: &[Rejection]) -> String {
    rejected
        .iter()
        .map(|rejection| format!("\n  {}: {}", rejection.kernel, rejection.reason))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Reason;

    #[test]
    fn an_unknown_kernel_suggests_others() {
        let error = Error::UnknownKernel {
            name: "skalar".into(),
            close: vec!["scalar_d64".into(), "scalar_d128".into()],
        };
        assert_eq!(
            error.to_string(),
            "unknown kernel \"skalar\"; did you mean scalar_d64, scalar_d128?"
        );
    }

    #[test]
    fn no_kernel_lists_every_reason() {
        let error = Error::NoKernel {
            problem: "f32 on cuda:0".into(),
            rejected: vec![Rejection {
                kernel: "wmma_d64",
                reason: Reason::Element(ElementType::F32),
            }],
        };
        assert_eq!(
            error.to_string(),
            "no kernel for f32 on cuda:0\n  wmma_d64: not compiled for f32"
        );
    }

    #[test]
    fn the_closest_names_are_suggested() {
        let known = [
            "wmma_d64_64x64_w4_s2",
            "scalar_d64_32x64_w4_s2",
            "scalar_d64_32x64_w4_s1",
            "scalar_d64_32x64_w4_s2",
        ];
        let Error::UnknownKernel { close, .. } =
            Error::unknown_kernel("scalar_d64_32x64", known.into_iter())
        else {
            panic!("another error");
        };
        assert_eq!(
            close[..2],
            ["scalar_d64_32x64_w4_s1", "scalar_d64_32x64_w4_s2"]
        );
    }
}
