//! Quantized keys and values: types of 8 bits, each number times a scale.

use bytemuck::Pod;

use crate::{E4m3, ElementType, Invalid, Operand, Result};

/// A number of a scaled [`ElementType`]: one byte, all bit patterns of which are valid.
///
/// Sealed: the kernels exist for these types only.
pub trait Quantized: Pod + Send + Sync + sealed::Sealed {
    /// The run-time name of this type.
    const TYPE: ElementType;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for crate::E4m3 {}
}

impl Quantized for E4m3 {
    const TYPE: ElementType = ElementType::E4m3;
}

/// Checks the numbers of scales of keys and of values: 1 or that of the key/value heads, and 1 of keys and values that have none.
pub fn expect_scales(
    scaled: Option<ElementType>,
    counts: [usize; 2],
    kv_heads: usize,
) -> Result<()> {
    for (operand, found) in SCALES.into_iter().zip(counts) {
        let argument = operand.name();
        match scaled {
            _ if found == 1 => {}
            Some(_) if found == kv_heads => {}
            None => {
                return Err(Invalid::Scales {
                    argument,
                    keys: None,
                });
            }
            Some(_) => {
                return Err(Invalid::ScaleCount {
                    argument,
                    found,
                    kv_heads,
                });
            }
        }
    }
    Ok(())
}

/// The scales of keys, and those of values.
pub const SCALES: [Operand; 2] = [Operand::KScale, Operand::VScale];

/// Refuses numbers that an operand must not have, such as scales that are not positive.
///
/// # Errors
/// [`Invalid::Value`].
pub fn check_list(operand: Operand, numbers: &[f32]) -> Result<()> {
    let values = operand.values();
    match numbers.iter().position(|number| !values.allow(*number)) {
        Some(index) => Err(Invalid::Value {
            argument: operand.name(),
            index,
            value: numbers[index],
            values,
        }),
        None => Ok(()),
    }
}

/// The scale of a key/value head.
pub fn scale_of(scales: &[f32], kv_head: usize) -> f32 {
    match scales {
        [one] => *one,
        each => each[kv_head],
    }
}
