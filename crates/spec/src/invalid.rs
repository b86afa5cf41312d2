//! Errors in the description of a call.

use std::fmt;

use crate::call::counted;
use crate::{ElementType, MAX_HEAD_DIM, Values};

/// Shorthand for a result with [`Invalid`].
pub type Result<T> = std::result::Result<T, Invalid>;

/// A rule that the description or the memory of a call breaks. Each message names the argument and the rule.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
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
        "q has {} and {keys} has {kv_heads}; both must be at least 1, and the query heads a multiple of the key/value heads",
        counted(*.heads, "head")
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
        /// The number found.
        found: usize,
        /// The argument that it is compared with.
        other: &'static str,
        /// The number that this one has.
        expected: usize,
    },

    /// Packed sequences are more or fewer than those of another argument.
    #[error(
        "{argument} has {}, but {other} has {}{expected}",
        counted(*.found, "sequence"),
        if *.other_is_packed { "" } else { "batch " }
    )]
    Sequences {
        /// The row offsets at fault.
        argument: &'static str,
        /// Their sequences.
        found: usize,
        /// The argument that they are compared with: row offsets or a tensor.
        other: &'static str,
        /// True for row offsets.
        other_is_packed: bool,
        /// Its sequences.
        expected: usize,
    },

    /// A head size without a backward pass.
    #[error(
        "{argument} has head size {head_dim}, but gradients have head sizes up to {}",
        crate::Backward::MAX_HEAD_DIM
    )]
    GradientHeadDim {
        /// `q` or `v`.
        argument: &'static str,
        /// Its head size.
        head_dim: usize,
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

    /// A tensor's element type differs from that of the others, or from the one the call was built for.
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
        "{argument} needs a buffer of {} for its shape and strides, but has {available}",
        counted(*.needed, "element")
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
    #[error("{argument} has {}, but its shape has {needed}", counted(*.available, "element"))]
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
        /// The argument that it overlaps with.
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

    /// Row offsets or lengths of sequences, the numbers of their pages, or positions break a rule.
    #[error("{argument}[{index}] {rule}")]
    Lengths {
        /// The name of the list's [`Operand`](crate::Operand); `rows` of a step.
        argument: &'static str,
        /// The first entry at fault.
        index: usize,
        /// The rule, with the values at hand.
        rule: String,
    },

    /// An option with a number that it cannot have.
    #[error("{argument} is {value}, but must be {rule}")]
    Number {
        /// The argument at fault, or the product that is.
        argument: &'static str,
        /// Its value.
        value: String,
        /// The numbers that it can have.
        rule: &'static str,
    },

    /// Keys would be cut where not every kernel can.
    #[error(
        "splits are every {keys} keys, but the number must be a power of two from {} to {}",
        crate::Splits::MIN_KEYS,
        crate::Splits::MAX_KEYS
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
        /// The value found.
        found: usize,
        /// The largest value allowed.
        limit: usize,
    },

    /// A list has another number of values than the call needs.
    #[error(
        "{argument} has {}; {needed} {} needed",
        counted(*.found, "value"),
        if *.needed == 1 { "is" } else { "are" }
    )]
    Count {
        /// The list.
        argument: &'static str,
        /// Values given.
        found: usize,
        /// Values needed.
        needed: usize,
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
        /// The required alignment of the address, in bytes.
        alignment: u64,
    },

    /// Memory for a result cannot be had.
    #[error("{argument} needs {bytes} bytes, which cannot be allocated")]
    Allocation {
        /// `out` or `lse`.
        argument: &'static str,
        /// Its size.
        bytes: usize,
    },

    /// A gradient of an operand that the call does not have.
    #[error("{argument} is wanted, but the call has no {of}")]
    NoGradient {
        /// The gradient.
        argument: &'static str,
        /// The operand that it is the gradient of.
        of: &'static str,
    },

    /// An argument is missing, or given although nothing asks for it.
    #[error("{argument} {rule}")]
    Presence {
        /// The argument at fault.
        argument: &'static str,
        /// The rule that is broken.
        rule: &'static str,
    },
}

impl Invalid {
    /// An argument that is given or missing against a rule.
    pub const fn presence(argument: &'static str, rule: &'static str) -> Self {
        Invalid::Presence { argument, rule }
    }

    /// An option with a number that it cannot have.
    pub fn number(argument: &'static str, value: impl fmt::Display, rule: &'static str) -> Self {
        Invalid::Number {
            argument,
            value: value.to_string(),
            rule,
        }
    }

    /// A list that has another number of values than it needs.
    pub const fn count(argument: &'static str, found: usize, needed: usize) -> Self {
        Invalid::Count {
            argument,
            found,
            needed,
        }
    }

    /// Replaces the names of arguments, for callers that have others. `name` is `None` for a name that stays.
    pub fn rename(&mut self, name: impl Fn(&str) -> Option<&'static str>) {
        if let Invalid::HeadDimUnsupported { argument, .. }
        | Invalid::Mismatch { argument, .. }
        | Invalid::Sequences { argument, .. }
        | Invalid::GradientHeadDim { argument, .. }
        | Invalid::LastDimNotContiguous { argument, .. }
        | Invalid::ElementMismatch { argument, .. }
        | Invalid::StridesDiffer { argument, .. }
        | Invalid::BufferTooSmall { argument, .. }
        | Invalid::BufferTooLarge { argument, .. }
        | Invalid::LayoutTooLarge { argument, .. }
        | Invalid::OutputOverlaps { argument, .. }
        | Invalid::SharesMemory { argument, .. }
        | Invalid::Scales { argument, .. }
        | Invalid::ScaleCount { argument, .. }
        | Invalid::Value { argument, .. }
        | Invalid::Pages { argument, .. }
        | Invalid::Lengths { argument, .. }
        | Invalid::Number { argument, .. }
        | Invalid::TooLong { argument, .. }
        | Invalid::Count { argument, .. }
        | Invalid::Misaligned { argument, .. }
        | Invalid::Allocation { argument, .. }
        | Invalid::NoGradient { argument, .. }
        | Invalid::Presence { argument, .. } = self
        {
            *argument = name(argument).unwrap_or(argument);
        }
        if let Invalid::Mismatch { other, .. }
        | Invalid::Sequences { other, .. }
        | Invalid::SharesMemory { other, .. }
        | Invalid::HeadsNotMultiple { keys: other, .. } = self
        {
            *other = name(other).unwrap_or(other);
        }
        if let Invalid::OutputOverlaps { other, .. } = self
            && let Some(name) = name(other)
        {
            name.clone_into(other);
        }
    }
}

/// Advice for a head size without a kernel: padding helps only up to the largest.
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

fn scales_rule(keys: Option<ElementType>) -> String {
    match keys {
        Some(element) => format!("is missing, but keys and values are in {element}"),
        None => "is given, but keys and values are not quantized".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_on_head_sizes_helps() {
        let of =
            |argument, head_dim| Invalid::HeadDimUnsupported { argument, head_dim }.to_string();
        let text = |head_dim| of("q", head_dim);
        assert!(text(59).contains("pad q, k and v"));
        assert!(text(516).ends_with("the largest head size is 512"));
        assert!(text(300).contains("pad q, k and v"));
        assert!(text(0).ends_with("at least 8"));
        let error = of("v", 59);
        assert!(error.starts_with("v has head size 59;"), "{error}");
        assert!(error.ends_with("pad v with zeros to the next one"));
    }
}
