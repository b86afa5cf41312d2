//! The numbers of an element type, in `f64`.

use warptile::{Element, ElementType};

/// Stored bits of the significand, and the exponents of the smallest normal and of the largest number.
struct Format {
    bits: i32,
    smallest: i32,
    largest: i32,
}

const fn format(element: ElementType) -> Format {
    let (bits, smallest, largest) = match element {
        ElementType::F16 => (10, -14, 15),
        ElementType::Bf16 => (7, -126, 127),
        _ => (23, -126, 127),
    };
    Format {
        bits,
        smallest,
        largest,
    }
}

/// `2^exponent`, for the exponents of normal numbers.
const fn power(exponent: i32) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

/// The power of two at or below the magnitude of `value`: 0 for zero and subnormal numbers, an infinity for what is not
/// finite.
#[inline(always)]
fn magnitude(value: f64) -> f64 {
    f64::from_bits(value.to_bits() & (0x7ff << 52))
}

/// The least normal number of `f32`: kernels take what is below for 0.
pub(crate) const LEAST: f64 = f32::MIN_POSITIVE as f64;

/// Distance between neighbouring numbers of the type at the magnitude of `value`: one unit in its last place. 0 for what
/// is not finite.
pub(crate) fn ulp(element: ElementType, value: f64) -> f64 {
    if !value.is_finite() {
        return 0.0;
    }
    let format = format(element);
    magnitude(value).max(power(format.smallest)) * power(-format.bits)
}

/// A number after rounding to the stored type: `T::from_f64(value).to_f64()`, without a branch, so that loops over it
/// become vector code.
#[inline(always)]
pub(crate) fn round<T: Element>(value: f64) -> f64 {
    if let ElementType::F32 = T::TYPE {
        return f64::from(value as f32);
    }
    let format = const { format(T::TYPE) };
    let (least, most) = (power(format.smallest), power(format.largest + 1));
    let magnitude = magnitude(value);
    let magnitude = if magnitude < least { least } else { magnitude };
    let magnitude = if magnitude > most { most } else { magnitude };
    // An `f64` of the size of `shift` has the unit that numbers of the type have at this magnitude, so the sum is rounded to
    // a multiple of it, ties to even.
    let shift = magnitude * (1.5 * power(52 - format.bits));
    let rounded = (value + shift) - shift;
    let largest = (2.0 - power(-format.bits)) * power(format.largest);
    let rounded = match rounded.abs() > largest {
        true => f64::INFINITY,
        false => rounded,
    };
    rounded.copysign(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn an_ulp_is_the_step_to_the_next_number() {
        for bits in 0..f16::MAX.to_bits() {
            let (this, next) = (f16::from_bits(bits), f16::from_bits(bits + 1));
            let step = f64::from(next) - f64::from(this);
            assert_eq!(ulp(ElementType::F16, f64::from(this)), step, "{this}");
            assert_eq!(ulp(ElementType::F16, -f64::from(this)), step, "{this}");
        }
        for bits in 0..bf16::MAX.to_bits() {
            let (this, next) = (bf16::from_bits(bits), bf16::from_bits(bits + 1));
            let step = f64::from(next) - f64::from(this);
            assert_eq!(ulp(ElementType::Bf16, f64::from(this)), step, "{this}");
        }
        for value in [0.0, 1e-45, 1e-38, 0.1, 1.0, 3e38_f32] {
            let step = f64::from(value.next_up()) - f64::from(value);
            assert_eq!(ulp(ElementType::F32, f64::from(value)), step, "{value}");
        }
        assert_eq!(ulp(ElementType::F32, f64::INFINITY), 0.0);
        assert_eq!(ulp(ElementType::F32, f64::NAN), 0.0);
    }

    fn rounds_as_the_type_does<T: Element>() {
        let same = |value: f64| {
            let (stored, rounded) = (T::from_f64(value).to_f64(), round::<T>(value));
            let alike = stored.to_bits() == rounded.to_bits();
            assert!(
                alike || stored.is_nan() && rounded.is_nan(),
                "{value:e}: {stored:e} {rounded:e}"
            );
        };
        for special in [
            0.0,
            f64::INFINITY,
            f64::NAN,
            f64::MAX,
            f64::MIN_POSITIVE,
            5e-324,
            65519.9,
            65520.0,
        ] {
            same(special);
            same(-special);
        }
        // Every number of 16 bits, the quarters of the way to the next one, and the neighbours of each.
        for bits in 0..=u16::MAX {
            for value in [
                f64::from(f16::from_bits(bits)),
                f64::from(bf16::from_bits(bits)),
            ] {
                for parts in [0.0, 0.25, 0.5, 0.75] {
                    let between = value + parts * ulp(T::TYPE, value);
                    same(between);
                    same(between.next_up());
                    same(between.next_down());
                }
            }
        }
    }

    #[test]
    fn rounding_is_that_of_the_type() {
        rounds_as_the_type_does::<f16>();
        rounds_as_the_type_does::<bf16>();
        rounds_as_the_type_does::<f32>();
    }
}
