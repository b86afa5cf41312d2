//! The spacing of an element type's numbers.

use warptile::ElementType;

/// Stored bits of the significand, and the exponent of the smallest normal number.
fn format(element: ElementType) -> (i32, i32) {
    match element {
        ElementType::F16 => (10, -14),
        ElementType::Bf16 => (7, -126),
        _ => (23, -126),
    }
}

/// Distance between neighbouring numbers of the type at the magnitude of `value`: one unit in its last place. 0 for what
/// is not finite.
pub(crate) fn ulp(element: ElementType, value: f64) -> f64 {
    if !value.is_finite() {
        return 0.0;
    }
    let (bits, smallest) = format(element);
    // The exponent field of an `f64`; 0 for zero and its subnormals, which lie below every format's range.
    let field = (value.to_bits() >> 52 & 0x7ff) as i32;
    f64::powi(2.0, (field - 1023).max(smallest) - bits)
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
}
