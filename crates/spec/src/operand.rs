//! The operands that an operation reads and writes, and tables with a value for each of them.

use std::ops::{Index, IndexMut};

use crate::capability::Features;

/// The arrangement of an operand's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Rows of queries, `[batch, length, heads, head size]`.
    Queries,
    /// Rows of keys or of values, `[batch, length, heads, head size]` or in pages.
    Keys,
    /// An element for each score, `[batch, queries, heads, keys]`, where any extent may be 1.
    Scores,
    /// A row of numbers.
    List(Count),
}

/// How many numbers a list has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Count {
    /// One for each query head.
    QueryHeads,
    /// One for each query head, or one for each batch entry and query head.
    Slopes,
    /// One, or one for each key/value head.
    Scales,
    /// One for each query and query head.
    Rows,
    /// One for each query and query head, and for rows that fill up the 64 rows of a sequence's last tile.
    PaddedRows,
    /// One for each sequence.
    Sequences,
    /// The first row of each sequence and the end of the last one.
    Offsets,
    /// One for each new row.
    NewRows,
    /// The words of a [`DropoutState`](crate::DropoutState).
    State,
    /// Rows of page numbers, one row for each sequence.
    Table,
    /// One for each row of a list of blocks, and one more.
    BlockRows,
    /// As many as the rows of lists of blocks have.
    Blocks,
    /// Rows of angles, one row for each position.
    Angles,
}

/// The type of an operand's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Elements {
    /// The type of the queries.
    Queries,
    /// The type of keys and values, or of the cache that has them.
    Keys,
    /// The type of the output.
    Output,
    /// The type of the queries, or `f32`.
    Bias,
    /// `f32`.
    F32,
    /// `f32` or the type of the queries.
    Angles,
    /// `i32` or `u32`.
    I32,
    /// `i64`.
    I64,
    /// `i32`, `u32` or `i64`.
    Position,
    /// One byte.
    U8,
}

/// The numbers that a list may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Values {
    /// Finite numbers.
    Finite,
    /// Finite numbers, or minus infinity for none.
    FiniteOrNone,
    /// Finite numbers above 0.
    Positive,
    /// Any numbers, also none: rows that do not exist have numbers, too.
    Any,
}

impl Values {
    /// Returns true if a list may have this number.
    #[inline]
    pub const fn allow(self, value: f32) -> bool {
        match self {
            Values::Finite => value.is_finite(),
            Values::FiniteOrNone => value < f32::INFINITY,
            Values::Positive => value > 0.0 && value < f32::INFINITY,
            Values::Any => true,
        }
    }

    /// The rule in words.
    #[inline]
    pub const fn rule(self) -> &'static str {
        match self {
            Values::Finite => "a finite number",
            Values::FiniteOrNone => "a finite number, or -inf for none",
            Values::Positive => "a finite number above 0",
            Values::Any => "a number",
        }
    }
}

/// A set of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operations(u8);

impl Operations {
    /// Attention.
    pub const FORWARD: Operations = Operations(1);
    /// New keys and values written into a cache.
    pub const APPEND: Operations = Operations(2);
    /// The gradients of attention.
    pub const BACKWARD: Operations = Operations(4);
    /// Attention and cache writes.
    pub const BOTH: Operations = Operations(3);

    /// Returns true if any operation is in both sets.
    #[inline]
    pub const fn meet(self, other: Operations) -> bool {
        self.0 & other.0 != 0
    }
}

/// A row of the table of operands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) docs: &'static [&'static str],
    pub(crate) kind: Kind,
    pub(crate) elements: Elements,
    pub(crate) values: Values,
    pub(crate) operations: Operations,
    pub(crate) written: bool,
    pub(crate) gradient_of: Option<Operand>,
    pub(crate) feature: Features,
    pub(crate) word: Option<&'static str>,
    pub(crate) help: &'static str,
    pub(crate) file: Option<&'static str>,
    pub(crate) python: Option<&'static str>,
}

impl Row {
    pub(crate) const PLAIN: Row = Row {
        name: "",
        docs: &[],
        kind: Kind::Queries,
        elements: Elements::Queries,
        values: Values::Finite,
        operations: Operations::FORWARD,
        written: false,
        gradient_of: None,
        feature: Features::empty(),
        word: None,
        help: "",
        file: None,
        python: None,
    };
}

/// Declares the operands: a row has the variant, its name, its kind and its elements, and in braces what differs from [`Row::PLAIN`].
macro_rules! operands {
    ($($(#[doc = $doc:literal])* $Operand:ident = $name:literal, $kind:expr, $elements:ident {$($key:ident: $value:expr),*};)*) => {
        /// An operand of an operation. As `usize` it is its index in [`Operand::ALL`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Operand {
            $($(#[doc = $doc])* $Operand,)*
        }

        impl Operand {
            /// Number of operands.
            pub const COUNT: usize = [$($name),*].len();

            /// All operands.
            pub const ALL: [Operand; Operand::COUNT] = [$(Operand::$Operand),*];
        }

        /// The rows of the table.
        pub(crate) static ROWS: [Row; Operand::COUNT] = [$(Row {
            name: $name,
            docs: &[$($doc),*],
            kind: $kind,
            elements: Elements::$elements,
            $($key: $value,)*
            ..Row::PLAIN
        }),*];
    };
}
pub(crate) use operands;

use crate::table::{Operand, ROWS};

impl Operand {
    /// The operands of an operation, or of several, in the order of [`Operand::ALL`].
    #[inline]
    pub fn of(operations: Operations) -> impl Iterator<Item = Operand> {
        { Self::ALL.into_iter() }.filter(move |operand| operand.row().operations.meet(operations))
    }

    /// The operands that an option of scores brings along, in the order of their features. Their words are printed in this order, and
    /// random data is drawn in it.
    pub fn of_scores() -> impl Iterator<Item = Operand> {
        let of = |feature| {
            { Self::ALL.into_iter() }
                .find(|operand| operand.word().is_some() && operand.feature() == feature)
        };
        Features::all().iter().filter_map(of)
    }

    /// Number of operands that are tensors: they come before the lists in [`Operand::ALL`].
    pub const TENSORS: usize = {
        let mut count = 0;
        while count < Self::COUNT && !matches!(ROWS[count].kind, Kind::List(_)) {
            count += 1;
        }
        count
    };

    /// The gradients that a backward pass computes: tensors first.
    pub const GRADIENTS: [Operand; Self::GRADIENT_COUNT] = {
        let mut found = [Operand::DQ; Self::GRADIENT_COUNT];
        let (mut index, mut count) = (0, 0);
        while index < Self::COUNT {
            if ROWS[index].gradient_of.is_some() {
                found[count] = Self::ALL[index];
                count += 1;
            }
            index += 1;
        }
        found
    };

    const GRADIENT_COUNT: usize = {
        let (mut index, mut count) = (0, 0);
        while index < Self::COUNT {
            count += ROWS[index].gradient_of.is_some() as usize;
            index += 1;
        }
        count
    };

    /// The operand of a name, for constants.
    ///
    /// # Panics
    /// If no operand has it.
    pub const fn named(name: &str) -> Operand {
        let mut index = 0;
        while !same(ROWS[index].name.as_bytes(), name.as_bytes()) {
            index += 1;
        }
        Self::ALL[index]
    }

    #[inline]
    const fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The name in errors, in C and in Rust.
    #[inline]
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The lines of its documentation.
    #[inline]
    pub const fn docs(self) -> &'static [&'static str] {
        self.row().docs
    }

    /// The arrangement of its elements.
    #[inline]
    pub const fn kind(self) -> Kind {
        self.row().kind
    }

    /// The operations that have it.
    #[inline]
    pub const fn operations(self) -> Operations {
        self.row().operations
    }

    /// The type of its elements.
    #[inline]
    pub const fn elements(self) -> Elements {
        self.row().elements
    }

    /// The numbers that a list of `f32` may have.
    #[inline]
    pub const fn values(self) -> Values {
        self.row().values
    }

    /// Returns true if kernels move its rows 16 bytes at a time, where these start at multiples of 16 bytes.
    #[inline]
    pub const fn moves_rows(self) -> bool {
        matches!(self.kind(), Kind::Queries | Kind::Keys)
    }

    /// Returns true if an operation writes it.
    #[inline]
    pub const fn is_written(self) -> bool {
        self.row().written
    }

    /// The operand that it receives the gradient of.
    #[inline]
    pub const fn gradient_of(self) -> Option<Operand> {
        self.row().gradient_of
    }

    /// The feature that an image needs to take it; empty if every image takes it, or if the feature depends on more than its presence.
    /// An operand with a feature is given if and only if the call needs the feature.
    #[inline]
    pub const fn feature(self) -> Features {
        self.row().feature
    }

    /// The word of a problem that asks for it, for operands that belong to an option of scores.
    #[inline]
    pub const fn word(self) -> Option<&'static str> {
        self.row().word
    }

    /// The meaning of its word, for the help of programs.
    #[inline]
    pub const fn help(self) -> &'static str {
        self.row().help
    }

    /// The name of its tensor in a file of inputs.
    #[inline]
    pub const fn file_name(self) -> Option<&'static str> {
        self.row().file
    }

    /// The name of its argument in Python.
    #[inline]
    pub const fn python_name(self) -> Option<&'static str> {
        self.row().python
    }
}

const fn same(mut found: &[u8], mut expected: &[u8]) -> bool {
    while let ([first, rest @ ..], [other, others @ ..]) = (found, expected) {
        if *first != *other {
            return false;
        }
        (found, expected) = (rest, others);
    }
    found.is_empty() && expected.is_empty()
}

/// A value for each operand.
///
/// ```
/// use warptile_spec::{Operand, Slots};
///
/// let mut addresses = Slots::<u64>::default();
/// addresses[Operand::Q] = 0x1000;
/// assert_eq!(addresses.iter().filter(|(_, address)| **address != 0).count(), 1);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slots<P>([P; Operand::COUNT]);

impl<P: Default> Default for Slots<P> {
    fn default() -> Self {
        Slots::from_fn(|_| P::default())
    }
}

impl<P: Copy> Slots<P> {
    /// A table with one value for all operands.
    #[inline]
    pub const fn filled(value: P) -> Self {
        Slots([value; Operand::COUNT])
    }
}

impl<P> Slots<P> {
    /// The value of each operand from a function.
    pub fn from_fn(mut value: impl FnMut(Operand) -> P) -> Self {
        Slots(Operand::ALL.map(&mut value))
    }

    /// The values in the order of [`Operand::ALL`].
    #[inline]
    pub const fn as_slice(&self) -> &[P] {
        &self.0
    }

    /// The values in the order of [`Operand::ALL`], for changing them.
    #[inline]
    pub const fn as_mut_slice(&mut self) -> &mut [P] {
        &mut self.0
    }

    /// The operands with their values.
    pub fn iter(&self) -> impl Iterator<Item = (Operand, &P)> {
        Operand::ALL.into_iter().zip(&self.0)
    }

    /// The operands with their values, for changing them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Operand, &mut P)> {
        Operand::ALL.into_iter().zip(&mut self.0)
    }
}

impl<P> Slots<Option<P>> {
    /// No value for any operand.
    #[inline]
    pub const fn none() -> Self {
        Slots([const { None }; Operand::COUNT])
    }

    /// The operands that have a value.
    pub fn given(&self) -> impl Iterator<Item = (Operand, &P)> {
        self.iter()
            .filter_map(|(operand, value)| Some((operand, value.as_ref()?)))
    }

    /// The operands that have a value, with their values.
    pub fn into_given(self) -> impl Iterator<Item = (Operand, P)> {
        { Operand::ALL.into_iter().zip(self.0) }
            .filter_map(|(operand, value)| Some((operand, value?)))
    }

    /// A value made of each value.
    ///
    /// # Errors
    /// The first error of `make`.
    pub fn try_map<Q, E>(
        &self,
        mut make: impl FnMut(Operand, &P) -> Result<Q, E>,
    ) -> Result<Slots<Option<Q>>, E> {
        let mut made = Slots::none();
        for (operand, value) in self.given() {
            made[operand] = Some(make(operand, value)?);
        }
        Ok(made)
    }
}

impl<P> Index<Operand> for Slots<P> {
    type Output = P;

    #[inline]
    fn index(&self, operand: Operand) -> &P {
        &self.0[operand as usize]
    }
}

impl<P> IndexMut<Operand> for Slots<P> {
    #[inline]
    fn index_mut(&mut self, operand: Operand) -> &mut P {
        &mut self.0[operand as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_an_operand_is_its_index() {
        for (index, operand) in Operand::ALL.into_iter().enumerate() {
            assert_eq!(operand as usize, index);
            assert!(!operand.docs().is_empty(), "{operand:?}");
            let is_list = matches!(operand.kind(), Kind::List(_));
            assert_eq!(is_list, index >= Operand::TENSORS, "{operand:?}");
        }
        let unique = |names: Vec<&str>| {
            let set: HashSet<&str> = names.iter().copied().collect();
            assert_eq!(set.len(), names.len(), "{names:?}");
        };
        unique(Operand::ALL.map(Operand::name).to_vec());
        unique(
            Operand::ALL
                .into_iter()
                .filter_map(Operand::file_name)
                .collect(),
        );
        unique(Operand::of_scores().filter_map(Operand::word).collect());
        unique(
            Operand::of(Operations::FORWARD)
                .filter_map(Operand::python_name)
                .collect(),
        );
    }

    #[test]
    fn an_operand_of_scores_has_a_feature_of_its_own() {
        for operand in Operand::ALL {
            let found = Operand::of_scores().any(|other| other == operand);
            assert_eq!(found, operand.word().is_some(), "{operand:?}");
        }
        let features: Vec<u32> = Operand::of_scores().map(|of| of.feature().bits()).collect();
        assert!(features.is_sorted() && features.iter().all(|feature| feature.count_ones() == 1));
    }
}
