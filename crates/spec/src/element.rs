//! The element types a tensor can have.

use std::any::TypeId;
use std::fmt::Debug;

use bytemuck::Pod;

use crate::{E4m3, Invalid, Result};

use crate::ElementType;

/// A type that Q, K, V and the output can be made of (K and V may be [`E4m3`] instead): `f32`, [`half::f16`] or [`half::bf16`].
///
/// Sealed: the kernels exist for these three types only. All of them convert to `f32` and `f64` exactly, and from them
/// by rounding to nearest, ties to even.
pub trait Element:
    bytemuck::Pod + Copy + Debug + PartialEq + Send + Sync + sealed::Sealed + 'static
{
    /// The run-time name of this type.
    const TYPE: ElementType;

    /// Converts to `f32`, exactly.
    fn to_f32(self) -> f32;

    /// The nearest number of this type, ties to even; beyond the largest finite one, an infinity.
    fn from_f32(value: f32) -> Self;

    /// Converts to `f64`, exactly.
    fn to_f64(self) -> f64;

    /// The nearest number of this type, ties to even, rounded once (not by way of `f32`).
    fn from_f64(value: f64) -> Self;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}

/// The type of the elements of a piece of memory, as far as Rust's types tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct MemoryType {
    size: usize,
    element: Option<ElementType>,
}

impl MemoryType {
    /// The type `T`. Bytes (`u8`) are elements of any type that the description has.
    pub fn of<T: Pod>() -> Self {
        MemoryType {
            size: size_of::<T>(),
            element: type_of::<T>(),
        }
    }

    /// Bytes of an element.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Refuses elements whose type or size differs from `expected`. `None` is the type of whole numbers.
    pub fn check(
        self,
        argument: &'static str,
        expected: Option<ElementType>,
        size: u64,
    ) -> Result<()> {
        let is_bytes = self.size == 1 && self.element.is_none();
        if is_bytes || (self.element, self.size as u64) == (expected, size) {
            return Ok(());
        }
        check_type(argument, expected, self.element)?;
        Err(Invalid::presence(
            argument,
            "has numbers of a different type from those that the call was built for",
        ))
    }
}

/// Evaluates an expression in which `$T` names the type of queries of an element type: `f32` of those that queries cannot have.
///
/// ```
/// use warptile_spec::{Element, ElementType, with_element};
///
/// let bytes = with_element!(ElementType::Bf16, T => size_of::<T>());
/// assert_eq!(bytes, 2);
/// ```
#[macro_export]
macro_rules! with_element {
    ($element:expr, $T:ident => $work:expr) => {
        match $element {
            $crate::ElementType::F16 => {
                type $T = $crate::half::f16;
                $work
            }
            $crate::ElementType::Bf16 => {
                type $T = $crate::half::bf16;
                $work
            }
            _ => {
                type $T = f32;
                $work
            }
        }
    };
}

/// Refuses elements whose type differs from the expected one, as far as both are known.
pub fn check_type(
    argument: &'static str,
    expected: Option<ElementType>,
    found: Option<ElementType>,
) -> Result<()> {
    match (expected, found) {
        (Some(expected), Some(found)) if found != expected => Err(Invalid::ElementMismatch {
            argument,
            expected,
            found,
        }),
        _ => Ok(()),
    }
}

/// The element type that `T` is; `None` of any other type, such as the bytes of elements.
fn type_of<T: 'static>() -> Option<ElementType> {
    let of = TypeId::of::<T>();
    [
        (TypeId::of::<half::f16>(), ElementType::F16),
        (TypeId::of::<half::bf16>(), ElementType::Bf16),
        (TypeId::of::<f32>(), ElementType::F32),
        (TypeId::of::<E4m3>(), ElementType::E4m3),
    ]
    .into_iter()
    .find_map(|(id, element)| (id == of).then_some(element))
}

impl Element for f32 {
    const TYPE: ElementType = ElementType::F32;

    fn to_f32(self) -> f32 {
        self
    }

    fn from_f32(value: f32) -> Self {
        value
    }

    fn to_f64(self) -> f64 {
        f64::from(self)
    }

    fn from_f64(value: f64) -> Self {
        value as f32
    }
}

/// `value` as the `f32` from which a second rounding, to a type of at most 22 significand bits, gives the same result
/// as rounding `value` directly.
///
/// "Round to odd": truncate toward zero and set the last bit if anything was cut off. The sticky bit keeps ties apart
/// from near-ties, which is all the second rounding needs to know.
fn round_to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    if !nearest.is_finite() || f64::from(nearest) == value {
        return nearest;
    }
    let bits = nearest.to_bits();
    // Rounding away from zero moved one step up in magnitude; step back to the truncated value.
    let truncated = if f64::from(nearest).abs() > value.abs() {
        bits - 1
    } else {
        bits
    };
    f32::from_bits(truncated | 1)
}

macro_rules! half_element {
    ($type:ty, $variant:ident) => {
        impl Element for $type {
            const TYPE: ElementType = ElementType::$variant;

            fn to_f32(self) -> f32 {
                <$type>::to_f32(self)
            }

            fn from_f32(value: f32) -> Self {
                <$type>::from_f32(value)
            }

            fn to_f64(self) -> f64 {
                f64::from(<$type>::to_f32(self))
            }

            fn from_f64(value: f64) -> Self {
                <$type>::from_f32(round_to_odd(value))
            }
        }
    };
}

half_element!(half::f16, F16);
half_element!(half::bf16, Bf16);

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    /// Every finite `T` made from 16 bits, in order of value.
    fn ladder<T: Element>(from_bits: fn(u16) -> T) -> Vec<f64> {
        let mut values: Vec<f64> = (0..=u16::MAX)
            .map(|bits| from_bits(bits).to_f64())
            .filter(|value| value.is_finite())
            .collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        values
    }

    /// Between any two neighbours: a bit below the midpoint rounds down, a bit above rounds up. A conversion by way of
    /// `f32` fails this, because the bit is lost in the first rounding.
    fn midpoints_round_once<T: Element>(from_bits: fn(u16) -> T) {
        for pair in ladder(from_bits).windows(2) {
            let middle = f64::midpoint(pair[0], pair[1]);
            let bit = (pair[1] - pair[0]) * 1e-12;
            assert_eq!(T::from_f64(middle - bit).to_f64(), pair[0], "{pair:?}");
            assert_eq!(T::from_f64(middle + bit).to_f64(), pair[1], "{pair:?}");
        }
    }

    #[test]
    fn f16_rounds_once() {
        midpoints_round_once(f16::from_bits);
    }

    #[test]
    fn bf16_rounds_once() {
        midpoints_round_once(bf16::from_bits);
    }

    #[test]
    fn overflow_gives_infinity_and_nan_stays() {
        assert_eq!(f16::from_f64(1e300), f16::INFINITY);
        assert_eq!(f16::from_f64(-70000.0), f16::NEG_INFINITY);
        assert!(<bf16 as Element>::from_f64(f64::NAN).is_nan());
        assert_eq!(f32::from_f64(-1e300), f32::NEG_INFINITY);
    }

    #[test]
    fn numbers_that_are_no_whole_ones_are_refused_for_them() {
        let lengths = |memory: MemoryType| memory.check("key_lengths", None, 4).is_ok();
        assert!(lengths(MemoryType::of::<i32>()));
        assert!(lengths(MemoryType::of::<u32>()));
        assert!(lengths(MemoryType::of::<u8>()));
        assert!(!lengths(MemoryType::of::<f32>()));
        assert!(!lengths(MemoryType::of::<i64>()));
        let keys = |memory: MemoryType| memory.check("k", Some(ElementType::F16), 2).is_ok();
        assert!(keys(MemoryType::of::<f16>()));
        assert!(!keys(MemoryType::of::<bf16>()));
        assert!(!keys(MemoryType::of::<u16>()));
    }

    #[test]
    fn types_are_named() {
        assert_eq!(f16::TYPE.to_string(), "f16");
        assert_eq!(bf16::TYPE.size(), size_of::<bf16>());
        assert_eq!(f32::TYPE.size(), size_of::<f32>());
    }
}
