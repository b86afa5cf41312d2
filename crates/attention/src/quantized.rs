//! Keys and values in 8 bits with scales: which types there are, what a call or a cache says of them, and views that may have them.
//!
//! Behind the types at the user's level they are bytes, and a [`QuantizedType`] says what these mean. So another type of 8 bits is a
//! row of this file's tables.

use std::fmt;

use bytemuck::Pod;
use warptile_kernels::{Features, Image};

use crate::e4m3::E4m3;
use crate::element::{Element, ElementType};
use crate::error::{Error, Result};
use crate::layout::{Layout, View};

/// A type of 8 bits that keys and values may have beside queries of an [`ElementType`]. Each number counts times its scale.
///
/// Exhaustive: whoever has names of their own for these types is told by the compiler when there is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QuantizedType {
    /// [`E4m3`].
    E4m3,
}

impl QuantizedType {
    /// All of them.
    pub const ALL: [QuantizedType; 1] = [QuantizedType::E4m3];

    /// The type that an image's keys and values have; `None` if they are of its element type.
    #[must_use]
    pub fn of(image: &Image) -> Option<Self> {
        let features = image.features;
        { Self::ALL.into_iter() }.find(|each| features.contains(each.feature()))
    }

    /// The type of this name, as it prints: `e4m3`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        { Self::ALL.into_iter() }.find(|each| each.name() == name)
    }

    const fn name(self) -> &'static str {
        match self {
            QuantizedType::E4m3 => "e4m3",
        }
    }

    /// What an image has that reads it.
    pub(crate) const fn feature(self) -> Features {
        match self {
            QuantizedType::E4m3 => Features::E4M3,
        }
    }

    /// The number with these bits; exact.
    #[must_use]
    pub const fn to_f32(self, bits: u8) -> f32 {
        match self {
            QuantizedType::E4m3 => E4m3::from_bits(bits).to_f32(),
        }
    }

    /// The bits of the number nearest to `value / scale`, which is divided in `f32`: what a cache with this scale holds.
    #[must_use]
    pub const fn quantize(self, value: f32, scale: f32) -> u8 {
        match self {
            QuantizedType::E4m3 => E4m3::quantize(value, scale).to_bits(),
        }
    }

    /// The bits of NaN.
    #[must_use]
    pub const fn nan(self) -> u8 {
        match self {
            QuantizedType::E4m3 => E4m3::NAN.to_bits(),
        }
    }
}

impl fmt::Display for QuantizedType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A number of a [`QuantizedType`]: one byte, of which all bits have a meaning.
///
/// Sealed: the kernels exist for these types only.
pub trait Quantized: Pod + Send + Sync + sealed::Sealed {
    /// The run-time name of this type.
    const TYPE: QuantizedType;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for crate::e4m3::E4m3 {}
}

impl Quantized for E4m3 {
    const TYPE: QuantizedType = QuantizedType::E4m3;
}

/// How keys and values are quantized: their type, and how many scales they have: 1 for all key/value heads, or one for each.
///
/// ```
/// use warptile::{Call, ElementType, Layout, Quantization, QuantizedType};
///
/// let (q, kv) = (Layout::bshd([1, 1, 8, 64]), Layout::bshd([1, 300, 2, 64]));
/// let e4m3 = Quantization::new(QuantizedType::E4m3).scales(2, 1);
/// let call = Call::builder(&q, &kv, &kv, ElementType::F16).quantized(e4m3).build()?;
/// assert_eq!(call.quantized(), Some(e4m3));
/// # Ok::<(), warptile::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Quantization {
    /// Their type.
    pub element: QuantizedType,
    /// Scales of the keys.
    pub k_scales: usize,
    /// Scales of the values.
    pub v_scales: usize,
}

impl Quantization {
    /// With a scale for all keys, and one for all values.
    #[must_use]
    pub const fn new(element: QuantizedType) -> Self {
        Quantization {
            element,
            k_scales: 1,
            v_scales: 1,
        }
    }

    /// With so many scales of keys, and of values.
    #[must_use]
    pub const fn scales(self, k_scales: usize, v_scales: usize) -> Self {
        Quantization {
            k_scales,
            v_scales,
            ..self
        }
    }

    pub(crate) const fn element_of(quantized: Option<Self>) -> Option<QuantizedType> {
        match quantized {
            Some(quantized) => Some(quantized.element),
            None => None,
        }
    }

    /// Refuses other counts than 1 and that of the heads.
    pub(crate) fn check(self, kv_heads: usize) -> Result<()> {
        for (argument, found) in [(K_SCALE, self.k_scales), (V_SCALE, self.v_scales)] {
            if found != 1 && found != kv_heads {
                return Err(Error::ScaleCount {
                    argument,
                    found,
                    kv_heads,
                });
            }
        }
        Ok(())
    }

    /// Checks scales in host memory: there exactly if they are wanted, of the right number, each finite and above 0.
    pub(crate) fn check_scales(
        wanted: Option<Self>,
        k_scale: Option<&[f32]>,
        v_scale: Option<&[f32]>,
    ) -> Result<()> {
        for (argument, needed, scales) in [
            (K_SCALE, wanted.map(|wanted| wanted.k_scales), k_scale),
            (V_SCALE, wanted.map(|wanted| wanted.v_scales), v_scale),
        ] {
            match (needed, scales) {
                (None, None) => {}
                (Some(needed), Some(scales)) if scales.len() != needed => {
                    return Err(Error::Count {
                        argument,
                        found: scales.len(),
                        needed,
                    });
                }
                (Some(_), Some(scales)) => check_values(argument, scales)?,
                _ => {
                    return Err(Error::Scales {
                        argument,
                        quantized: wanted.map(|wanted| wanted.element),
                    });
                }
            }
        }
        Ok(())
    }
}

/// Size in bytes of an element of keys and values, beside queries of `element`.
pub(crate) const fn key_size(element: ElementType, quantized: Option<QuantizedType>) -> usize {
    match quantized {
        Some(_) => 1,
        None => element.size(),
    }
}

/// Refuses keys or values of another type than the call was built for.
pub(crate) fn check_key_type(
    argument: &'static str,
    expected: Option<QuantizedType>,
    found: Option<QuantizedType>,
) -> Result<()> {
    match expected == found {
        true => Ok(()),
        false => Err(Error::KeyType {
            argument,
            expected,
            found,
        }),
    }
}

/// What errors call the scales.
pub(crate) const K_SCALE: &str = "k_scale";
pub(crate) const V_SCALE: &str = "v_scale";

/// The scale of a key/value head.
pub(crate) fn scale_of(scales: &[f32], kv_head: usize) -> f32 {
    match scales {
        [one] => *one,
        each => each[kv_head],
    }
}

/// Refuses scales that nothing can be divided by.
pub(crate) fn check_values(argument: &'static str, scales: &[f32]) -> Result<()> {
    let bad = |scale: &f32| !(scale.is_finite() && *scale > 0.0);
    match scales.iter().position(bad) {
        Some(index) => Err(Error::Scale {
            argument,
            index,
            value: scales[index],
        }),
        None => Ok(()),
    }
}

/// Keys or values in host memory: of the queries' element type, or quantized. A [`View`] of either is one.
#[derive(Debug, Clone, Copy)]
pub enum KeyView<'a, T> {
    /// Of the queries' type.
    Same(View<'a, T>),
    /// The bits of numbers of this type, to be multiplied by a scale.
    Quantized(View<'a, u8>, QuantizedType),
}

impl<'a, T: Element> From<View<'a, T>> for KeyView<'a, T> {
    fn from(view: View<'a, T>) -> Self {
        KeyView::Same(view)
    }
}

impl<'a, T: Element> From<View<'a, E4m3>> for KeyView<'a, T> {
    fn from(view: View<'a, E4m3>) -> Self {
        let bits = View {
            data: bytemuck::cast_slice(view.data),
            layout: view.layout,
        };
        KeyView::Quantized(bits, QuantizedType::E4m3)
    }
}

impl<T> KeyView<'_, T> {
    /// Where the elements lie.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        match self {
            KeyView::Same(view) => &view.layout,
            KeyView::Quantized(view, _) => &view.layout,
        }
    }

    /// Elements that there are.
    pub(crate) const fn len(&self) -> usize {
        match self {
            KeyView::Same(view) => view.data.len(),
            KeyView::Quantized(view, _) => view.data.len(),
        }
    }

    /// Their type, unless it is that of the queries.
    #[must_use]
    pub const fn quantized(&self) -> Option<QuantizedType> {
        match self {
            KeyView::Same(_) => None,
            KeyView::Quantized(_, element) => Some(*element),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_a_name_and_its_numbers_come_back() {
        for element in QuantizedType::ALL {
            assert_eq!(
                QuantizedType::from_name(&element.to_string()),
                Some(element)
            );
            assert!(element.to_f32(element.nan()).is_nan());
            for bits in 0..=u8::MAX {
                let number = element.to_f32(bits);
                let again = element.to_f32(element.quantize(number * 0.5, 0.5));
                assert!(number.is_nan() && again.is_nan() || number == again);
            }
        }
        assert_eq!(QuantizedType::from_name("f16"), None);
    }

    #[test]
    fn scales_are_counted_and_above_0() {
        let e4m3 = Quantization::new(QuantizedType::E4m3);
        let counts = |k, v| e4m3.scales(k, v).check(4);
        assert!(counts(1, 4).is_ok() && counts(4, 1).is_ok());
        let error = counts(1, 3).unwrap_err().to_string();
        assert_eq!(
            error,
            "v_scale has 3 numbers; it needs 1, or one for each of the 4 key/value heads"
        );
        let check = |wanted, k: Option<&[f32]>, v: Option<&[f32]>| {
            let error = Quantization::check_scales(wanted, k, v).unwrap_err();
            error.to_string()
        };
        assert_eq!(
            check(Some(e4m3), Some(&[1.0]), None),
            "v_scale is missing, but keys and values are in e4m3"
        );
        let zero = check(Some(e4m3), Some(&[0.0]), Some(&[1.0]));
        assert_eq!(zero, "k_scale[0] is 0; a scale is a finite number above 0");
        let nan = check(Some(e4m3), Some(&[1.0]), Some(&[f32::NAN]));
        assert!(nan.starts_with("v_scale[0] is NaN"));
        assert!(check(Some(e4m3), Some(&[1.0, 2.0]), Some(&[1.0])).contains("k_scale"));
        assert_eq!(
            check(None, Some(&[1.0]), None),
            "k_scale is given, but keys and values are not quantized"
        );
    }

    #[test]
    fn keys_of_another_type_are_named() {
        let e4m3 = Some(QuantizedType::E4m3);
        let text = |expected, found| {
            let error = check_key_type("k", expected, found).unwrap_err();
            error.to_string()
        };
        assert_eq!(
            text(e4m3, None),
            "k is of the elements of q, but the call was built for e4m3"
        );
        assert_eq!(
            text(None, e4m3),
            "k is in e4m3, but the call was built for the elements of q"
        );
        assert!(check_key_type("k", e4m3, e4m3).is_ok() && check_key_type("k", None, None).is_ok());
    }
}
