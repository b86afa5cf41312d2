//! The types of numbers that tensors have.

use std::fmt;

use crate::{E4m3, Features};

/// The type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ElementType {
    /// IEEE 754 binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE 754 binary32.
    F32,
    /// 8 bits with 4 bits of exponent and 3 of fraction (`float8_e4m3fn`): keys and values, each times a scale.
    E4m3,
}

impl ElementType {
    /// All of them.
    pub const ALL: [ElementType; 4] = [
        ElementType::F16,
        ElementType::Bf16,
        ElementType::F32,
        ElementType::E4m3,
    ];

    /// Size of one element in bytes.
    pub const fn size(self) -> usize {
        match self {
            ElementType::F16 | ElementType::Bf16 => 2,
            ElementType::F32 => 4,
            ElementType::E4m3 => 1,
        }
    }

    /// Returns true if its numbers count times a scale: only keys and values have such a type.
    pub const fn is_scaled(self) -> bool {
        matches!(self, ElementType::E4m3)
    }

    /// The byte of a scaled type that is nearest to a number divided by its scale.
    ///
    /// # Panics
    /// If the type is not scaled.
    #[inline]
    pub fn quantize(self, number: f32, scale: f32) -> u8 {
        match self {
            ElementType::E4m3 => E4m3::quantize(number, scale).to_bits(),
            _ => panic!("{self} is not scaled"),
        }
    }

    /// The number that a byte of a scaled type stands for, without its scale.
    ///
    /// # Panics
    /// If the type is not scaled.
    #[inline]
    pub const fn dequantize(self, bits: u8) -> f32 {
        match self {
            ElementType::E4m3 => E4m3::from_bits(bits).to_f32(),
            _ => panic!("not a scaled type"),
        }
    }

    /// The types that queries can have.
    pub fn of_queries() -> impl Iterator<Item = ElementType> {
        Self::ALL.into_iter().filter(|element| !element.is_scaled())
    }

    /// The scaled types.
    pub fn scaled() -> impl Iterator<Item = ElementType> {
        Self::ALL.into_iter().filter(|element| element.is_scaled())
    }

    const fn name(self) -> &'static str {
        match self {
            ElementType::F16 => "f16",
            ElementType::Bf16 => "bf16",
            ElementType::F32 => "f32",
            ElementType::E4m3 => "e4m3",
        }
    }

    /// The type of this name, as it prints.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|each| each.name() == name)
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The element types of the tensors of a call.
///
/// ```
/// use warptile_spec::{ElementType, Types};
///
/// let types = Types::from(ElementType::Bf16).keys(ElementType::E4m3);
/// assert_eq!((types.q, types.v), (ElementType::Bf16, ElementType::E4m3));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct Types {
    /// The type of queries, and of all tensors that have no type of their own here.
    pub q: ElementType,
    /// The type of keys.
    pub k: ElementType,
    /// The type of values.
    pub v: ElementType,
    /// The type of the output.
    pub out: ElementType,
}

impl Types {
    /// One type for all tensors.
    pub const fn of(element: ElementType) -> Self {
        Types {
            q: element,
            k: element,
            v: element,
            out: element,
        }
    }

    /// Another type of keys and values.
    pub const fn keys(mut self, element: ElementType) -> Self {
        self.k = element;
        self.v = element;
        self
    }

    /// The types of an image's tensors: keys and values of another type are one of its features.
    pub const fn of_image(element: ElementType, features: Features) -> Self {
        match features.contains(Features::E4M3) {
            true => Types::of(element).keys(ElementType::E4m3),
            false => Types::of(element),
        }
    }

    /// The features that an image needs to take tensors of these types.
    pub fn needs(self) -> Features {
        match self.scaled() {
            Some(_) => Features::E4M3,
            None => Features::empty(),
        }
    }

    /// The type of keys and values, if it is a scaled one.
    pub fn scaled(self) -> Option<ElementType> {
        Some(self.k).filter(|element| element.is_scaled())
    }
}

impl From<ElementType> for Types {
    fn from(element: ElementType) -> Self {
        Types::of(element)
    }
}
