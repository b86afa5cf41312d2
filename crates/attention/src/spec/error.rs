//! What can be wrong with a problem, a tensor or the machine.

use warptile_driver::DriverError;
use warptile_kernels::{ElementType, Excerpt, UnpackError, Values};

use crate::spec::{Considered, MAX_HEAD_DIM};

/// Shorthand for a result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Everything this crate reports. Each message names the argument and the rule it breaks.
///
/// All errors about arguments are found before anything is computed or launched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The head size has no kernel, and never will have one by this rule.
    #[error("{argument} has head size {head_dim}; {}", head_size_advice(argument, *.head_dim))]
    HeadDimUnsupported {
        /// `q`, or `v` if its head size is another one.
        argument: &'static str,
        /// Its head size.
        head_dim: usize,
    },

    /// Query heads don't divide into groups of equal size.
    #[error(
        "q has {heads} heads and {keys} has {kv_heads}; both must be at least 1, and the query heads a multiple of the key/value heads"
    )]
    HeadsNotMultiple {
        /// Heads of `q`.
        heads: usize,
        /// The keys' argument.
        keys: &'static str,
        /// Heads of keys and values.
        kv_heads: usize,
    },

    /// Two tensors disagree in a dimension that they share.
    #[error("{argument} has {dimension} {found}, but {other} has {expected}")]
    Mismatch {
        /// The tensor at fault.
        argument: &'static str,
        /// The dimension: batch, length, heads or head size.
        dimension: &'static str,
        /// What it has.
        found: usize,
        /// What it is compared with.
        other: &'static str,
        /// What that has.
        expected: usize,
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

    /// A tensor has another element type than the others, or than the call was built for.
    #[error("{argument} has elements of type {found}, but must have {expected}")]
    ElementMismatch {
        /// The tensor at fault.
        argument: &'static str,
        /// The element type that the call needs.
        expected: ElementType,
        /// The element type of this tensor.
        found: ElementType,
    },

    /// A tensor does not lie in memory as its call was told.
    #[error("{argument} has strides {found:?}, but the call was built for {expected:?}")]
    StridesDiffer {
        /// The tensor at fault.
        argument: &'static str,
        /// Strides of the call.
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

    /// A host slice has more elements than its shape: one of the two is wrong.
    #[error("{argument} has {available} elements, but its shape has {needed}")]
    BufferTooLarge {
        /// The tensor at fault.
        argument: &'static str,
        /// Elements of the shape.
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

    /// Two elements of an output share memory, or an output shares memory with another tensor.
    #[error("{argument} overlaps {other}; every element of an output needs memory of its own")]
    OutputOverlaps {
        /// The tensor at fault.
        argument: &'static str,
        /// What it overlaps with.
        other: String,
    },

    /// Host memory of an output, gaps between its rows included, is that of something else as well.
    #[error("{argument} shares memory with {other}{rule}")]
    SharesMemory {
        /// The argument at fault.
        argument: &'static str,
        /// The other argument.
        other: &'static str,
        /// The rule that is broken.
        rule: &'static str,
    },

    /// Queries and outputs have no scales.
    #[error("q is in {element}, which only keys and values can have")]
    ScaledQueries {
        /// The type.
        element: ElementType,
    },

    /// Scales are missing, or given though nothing has any.
    #[error("{argument} {}", scales_rule(*keys))]
    Scales {
        /// `k_scale` or `v_scale`.
        argument: &'static str,
        /// The type of keys and values, if it is one with scales.
        keys: Option<ElementType>,
    },

    /// Quantized keys or values have a number of scales that is neither 1 nor that of the key/value heads.
    #[error(
        "{argument} has {found} numbers; it needs 1, or one for each of the {kv_heads} key/value heads"
    )]
    ScaleCount {
        /// `k_scale` or `v_scale`.
        argument: &'static str,
        /// Scales there are.
        found: usize,
        /// Key/value heads.
        kv_heads: usize,
    },

    /// A list has a number that it must not have.
    #[error("{argument}[{index}] is {value}, but must be {}", values.rule())]
    Value {
        /// The list.
        argument: &'static str,
        /// The index of the number.
        index: usize,
        /// The number.
        value: f32,
        /// The numbers that the list may have.
        values: Values,
    },

    /// Pages of keys and values break a rule.
    #[error("{argument} {rule}")]
    Pages {
        /// The argument at fault.
        argument: &'static str,
        /// The rule, with the values at hand.
        rule: String,
    },

    /// A cache has too few free pages for a step.
    #[error(
        "the step needs {needed} more pages, but {free} are free; free a sequence, or make the cache with more pages"
    )]
    OutOfPages {
        /// Pages that the sequences of the step need in addition to those that they have.
        needed: usize,
        /// Pages that no sequence has.
        free: usize,
    },

    /// Row offsets or lengths of sequences, the numbers of their pages, or positions break a rule.
    #[error("{argument}[{index}] {rule}")]
    Lengths {
        /// `query_offsets`, `key_offsets`, `query_lengths`, `key_lengths` or `block_table`; `positions` of a cache write; `rows` of a step.
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
        "softcap is {value}, but must be a number from 2^-126 to 2^125 and at least |scale| / 2^125; leave it out for no softcap"
    )]
    InvalidSoftcap {
        /// Its value.
        value: f32,
    },

    /// A factor of `q.k` that leaves `f32` no room for scores.
    #[error(
        "{argument} is {value}, but must be from -2^125 to 2^125 (about 4.25e37), as scores are computed in f32"
    )]
    ScaleTooLarge {
        /// The argument at fault, or the product that is.
        argument: &'static str,
        /// Its value.
        value: f64,
    },

    /// Keys would be cut where not every kernel can.
    #[error(
        "splits are every {keys} keys, but the number must be a power of two from {} to {}",
        crate::spec::Splits::MIN_KEYS,
        crate::spec::Splits::MAX_KEYS
    )]
    Splits {
        /// Keys between two cuts.
        keys: u32,
    },

    /// A rotary embedding turns a number of elements that it cannot.
    #[error(
        "the rotary size is {size}, but must be even, from 2 to 256, and at most the head size"
    )]
    RotarySize {
        /// Elements of a head that would be turned.
        size: usize,
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

    /// A list has another number of values than the call needs.
    #[error("{argument} has {found} values; {needed} are needed")]
    Count {
        /// The list.
        argument: &'static str,
        /// Values given.
        found: usize,
        /// Values needed.
        needed: usize,
    },

    /// There is no kernel or image of that name.
    #[error("unknown {what} {:?}{}", Excerpt::new(name), suggest(.close))]
    UnknownName {
        /// `kernel` or `image`.
        what: &'static str,
        /// What was asked for.
        name: String,
        /// The names most like it.
        close: Vec<String>,
    },

    /// A kernel for GPUs was asked for, but the tensors are on the CPU.
    #[error(
        "kernel is {:?}, but the tensors are on the CPU, where it must be \"best\" or \"cpu\"",
        Excerpt::new(name)
    )]
    GpuKernelOnCpu {
        /// What was asked for.
        name: String,
    },

    /// No kernel can compute the problem on the device.
    #[error("no kernel for {problem}{}", reasons(.considered))]
    NoKernel {
        /// The problem and the device in words.
        problem: String,
        /// Every candidate and why it was passed over.
        considered: Vec<Considered>,
    },

    /// The CTAs of a kernel come in clusters, and the device can hold none of them: a part of a GPU may have too few
    /// multiprocessors next to each other. Without such an image by name, another kernel is chosen.
    #[error(
        "{image} needs clusters of {ctas} CTAs, and this device can hold none; choose another kernel, or let the planner choose"
    )]
    Clusters {
        /// The image's name.
        image: &'static str,
        /// CTAs of a cluster.
        ctas: u32,
    },

    /// A device profile has a limit beyond what is planned for.
    #[error("the device profile has {found} {limit}; it may have {most} at most")]
    Profile {
        /// The limit.
        limit: &'static str,
        /// What the profile has.
        found: u32,
        /// What it may have.
        most: u32,
    },

    /// The program has no kernel at all for the device.
    #[error(
        "this program has no kernels for {device} (compute capability {major}.{minor}): {}",
        images_advice(*.major, *.minor)
    )]
    NoImages {
        /// The device's name.
        device: String,
        /// Its compute capability, major.
        major: u32,
        /// Its compute capability, minor.
        minor: u32,
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

    /// An address is not aligned as its elements need, or as a kernel that moves 16 bytes at a time does.
    #[error(
        "{argument} starts at {address:#x}, which is not a multiple of {alignment} bytes{}",
        if *.alignment == 16 { " as the planned kernel needs; build the call with `unaligned_addresses`" } else { "" }
    )]
    Misaligned {
        /// The argument at fault.
        argument: &'static str,
        /// Its device address.
        address: u64,
        /// What the address must be a multiple of, in bytes.
        alignment: u64,
    },

    /// A prepared problem was launched with a call that is not one of it.
    #[error("the call is {found}, but what was prepared is {prepared}")]
    OtherProblem {
        /// The call's problem.
        found: String,
        /// The problem that was prepared.
        prepared: String,
    },

    /// A launch would exceed what a grid or a 32-bit count can hold.
    #[error("the call needs {ctas} tiles; a launch can have {limit}")]
    Grid {
        /// Tiles needed.
        ctas: u64,
        /// The most there can be.
        limit: u64,
    },

    /// A part of a tensor that is not there.
    #[error("{dimension} {start}..{end} of a tensor with {dimension} {extent} was asked for")]
    OutOfRange {
        /// The dimension.
        dimension: &'static str,
        /// First index.
        start: usize,
        /// Index after the last.
        end: usize,
        /// What the tensor has.
        extent: usize,
    },

    /// An output tensor shares its elements with a clone or a part of it.
    #[error(
        "{argument} shares its elements with another tensor; an output needs elements of its own"
    )]
    Shared {
        /// `out` or `lse`.
        argument: &'static str,
    },

    /// Memory for a result cannot be had.
    #[error("{argument} needs {bytes} bytes, which cannot be allocated")]
    Allocation {
        /// `out` or `lse`.
        argument: &'static str,
        /// Its size.
        bytes: usize,
    },

    /// An image takes a parameter block that this version does not know.
    #[error(
        "image {image} takes another parameter block than this version of warptile fills; rebuild from a clean checkout"
    )]
    OtherAbi {
        /// The image.
        image: &'static str,
    },

    /// A raw launch draws tiles from a counter in the workspace, and the caller gave none that can hold it.
    #[error(
        "workspace is {address:#x}; the plan needs {bytes} bytes of zeroed device memory at a multiple of 256 bytes"
    )]
    Workspace {
        /// Its device address.
        address: u64,
        /// Bytes needed.
        bytes: usize,
    },

    /// A session has less memory than the launch of a plan needs.
    #[error(
        "the session's workspace has {available} bytes, but the plan needs {needed}; make a session with `with_scratch`"
    )]
    SessionTooSmall {
        /// Bytes that the plan needs.
        needed: usize,
        /// Bytes that the session has.
        available: usize,
    },

    /// A line of a rates file is not understood.
    #[error("rates, line {line}: {rule}")]
    Rates {
        /// Counted from 1.
        line: usize,
        /// What is expected.
        rule: String,
    },

    /// A user's rates file that is not in force.
    #[error("{} is not in force: {reason}", path.display())]
    RatesFile {
        /// The file.
        path: std::path::PathBuf,
        /// Why it is not.
        reason: String,
    },

    /// An argument is missing, or given although nothing asks for it.
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
    /// Replaces the names of arguments, for callers that have others. `name` is `None` for a name that stays.
    pub fn rename(&mut self, name: impl Fn(&str) -> Option<&'static str>) {
        if let Error::HeadDimUnsupported { argument, .. }
        | Error::Mismatch { argument, .. }
        | Error::LastDimNotContiguous { argument, .. }
        | Error::ElementMismatch { argument, .. }
        | Error::StridesDiffer { argument, .. }
        | Error::BufferTooSmall { argument, .. }
        | Error::BufferTooLarge { argument, .. }
        | Error::LayoutTooLarge { argument, .. }
        | Error::OutputOverlaps { argument, .. }
        | Error::SharesMemory { argument, .. }
        | Error::Scales { argument, .. }
        | Error::ScaleCount { argument, .. }
        | Error::Value { argument, .. }
        | Error::Pages { argument, .. }
        | Error::Lengths { argument, .. }
        | Error::NonFinite { argument, .. }
        | Error::ScaleTooLarge { argument, .. }
        | Error::TooLong { argument, .. }
        | Error::Count { argument, .. }
        | Error::DeviceMismatch { argument, .. }
        | Error::Misaligned { argument, .. }
        | Error::Shared { argument, .. }
        | Error::Allocation { argument, .. }
        | Error::Presence { argument, .. } = self
        {
            *argument = name(argument).unwrap_or(argument);
        }
        if let Error::Mismatch { other, .. }
        | Error::SharesMemory { other, .. }
        | Error::HeadsNotMultiple { keys: other, .. } = self
        {
            *other = name(other).unwrap_or(other);
        }
        if let Error::OutputOverlaps { other, .. } = self
            && let Some(name) = name(other)
        {
            name.clone_into(other);
        }
    }

    /// No `what` is called `name`; suggests those of `known` that look most like it.
    pub(crate) fn unknown<'a>(
        what: &'static str,
        name: &str,
        known: impl Iterator<Item = &'a str>,
    ) -> Self {
        const SUGGESTIONS: usize = 3;
        let mut known: Vec<&str> = known.collect();
        known.sort_unstable();
        known.dedup();
        // Of an endless name the beginning: what is compared takes a time that grows with its length, for each of `known`.
        let beginning: String = name.chars().take(Excerpt::NAME).collect();
        let likeness = |other: &str| strsim::jaro_winkler(&beginning, other);
        known.sort_by(|a, b| likeness(b).total_cmp(&likeness(a)));
        known.truncate(SUGGESTIONS);
        Error::UnknownName {
            what,
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

/// What to do about a head size that has no kernel: padding helps only up to the largest.
fn head_size_advice(argument: &str, head_dim: usize) -> &'static str {
    match head_dim {
        0 => "a head size must be at least 8",
        1..MAX_HEAD_DIM if argument == "v" => {
            "a head size must be a multiple of 8: pad v with zeros to the next one"
        }
        1..MAX_HEAD_DIM => {
            "a head size must be a multiple of 8: pad q, k and v with zeros to the next one and pass the scale 1/sqrt of the original head size"
        }
        _ => "the largest head size is 512",
    }
}

/// What to do about a device that no embedded image runs on.
fn images_advice(major: u32, minor: u32) -> String {
    let feature = match (major, minor) {
        (..8, _) => return "8.0 is the oldest that has some".to_owned(),
        (8, _) => "sm_80",
        (9, 0) => "sm_90",
        (10, _) => "sm_100",
        (12, _) => "sm_120",
        _ => return "build it with the cargo feature `ptx` of warptile".to_owned(),
    };
    format!("build it with the cargo feature `{feature}` of warptile, or with `ptx`")
}

fn scales_rule(keys: Option<ElementType>) -> String {
    match keys {
        Some(element) => format!("is missing, but keys and values are in {element}"),
        None => "is given, but keys and values are not quantized".to_owned(),
    }
}

fn reasons(considered: &[Considered]) -> String {
    considered
        .iter()
        .map(|one| format!("\n  {}: {}", one.kernel, one.reason))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Reason;

    #[test]
    fn an_unknown_kernel_suggests_others() {
        let error = Error::UnknownName {
            what: "kernel",
            name: "skalar".into(),
            close: vec!["scalar_d64".into(), "scalar_d128".into()],
        };
        assert_eq!(
            error.to_string(),
            "unknown kernel \"skalar\"; did you mean scalar_d64, scalar_d128?"
        );
    }

    #[test]
    fn names_from_outside_are_quoted_and_cut() {
        let hostile = format!("\u{1b}[2J{}", "x".repeat(10_000_000));
        let shown = format!("\"\\u{{1b}}[2J{}...\"", "x".repeat(56));
        let choice: crate::plan::Choice = hostile.parse().unwrap();
        let error = choice.check_on_cpu().unwrap_err().to_string();
        let expected = format!("kernel is {shown}, but the tensors are on the CPU");
        assert!(error.starts_with(&expected), "{error}");
        let unknown = Error::unknown("kernel", &hostile, ["wmma_d64"].into_iter());
        assert_eq!(
            unknown.to_string(),
            format!("unknown kernel {shown}; did you mean wmma_d64?")
        );
    }

    #[test]
    fn no_kernel_lists_every_reason() {
        let error = Error::NoKernel {
            problem: "f32 on cuda:0".into(),
            considered: vec![Considered {
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
    fn the_advice_on_head_sizes_helps() {
        let of = |argument, head_dim| Error::HeadDimUnsupported { argument, head_dim }.to_string();
        let text = |head_dim| of("q", head_dim);
        assert!(text(59).contains("pad q, k and v"));
        assert!(text(516).ends_with("the largest head size is 512"));
        assert!(text(300).contains("pad q, k and v"));
        assert!(text(0).ends_with("at least 8"));
        let error = of("v", 59);
        assert!(error.starts_with("v has head size 59;"), "{error}");
        assert!(error.ends_with("pad v with zeros to the next one"));
    }

    #[test]
    fn a_device_without_images_is_told_its_feature() {
        let text = |major, minor| {
            Error::NoImages {
                device: "NVIDIA GPU".into(),
                major,
                minor,
            }
            .to_string()
        };
        assert_eq!(
            text(9, 0),
            "this program has no kernels for NVIDIA GPU (compute capability 9.0): build it with the cargo feature `sm_90` of \
             warptile, or with `ptx`"
        );
        assert!(text(8, 9).contains("`sm_80`"));
        assert!(text(12, 1).contains("`sm_120`"));
        assert!(text(11, 0).ends_with("the cargo feature `ptx` of warptile"));
        assert!(text(7, 5).ends_with("8.0 is the oldest that has some"));
    }

    #[test]
    fn the_closest_names_are_suggested() {
        let known = [
            "wmma_d64_64x64_w4_s2",
            "scalar_d64_32x64_w4_s2",
            "scalar_d64_32x64_w4_s1",
            "scalar_d64_32x64_w4_s2",
        ];
        let Error::UnknownName { close, .. } =
            Error::unknown("kernel", "scalar_d64_32x64", known.into_iter())
        else {
            panic!("another error");
        };
        assert_eq!(
            close[..2],
            ["scalar_d64_32x64_w4_s1", "scalar_d64_32x64_w4_s2"]
        );
    }
}
