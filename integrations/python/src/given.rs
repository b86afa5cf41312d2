//! Operands as they were given, and what they make of a call.

use pyo3::prelude::*;
use warptile::Layout;
use warptile::cpu::raw::{self, HostMemory};
use warptile::kernels::{Count, Elements, Kind, Operations};
use warptile::spec::{Call, Numbers, Operand, Request, Slots, TableLayout, Types, check_list};

use crate::array::{Array, Described, Dtype, Order};
use crate::cpu;
use crate::errors::{Failure, Names, Result};
use crate::gpu;

/// The numbers of a list that a call on the CPU reads itself.
#[derive(Debug)]
pub(crate) enum Values {
    /// They stay where they are.
    InArray,
    Floats(Vec<f32>),
    Whole(Vec<i32>),
}

impl Values {
    pub(crate) const fn len(&self) -> usize {
        match self {
            Values::InArray => 0,
            Values::Floats(values) => values.len(),
            Values::Whole(values) => values.len(),
        }
    }
}

/// An operand as it was given.
pub(crate) struct Argument<'py> {
    name: &'static str,
    /// None of numbers and lists of Python's.
    array: Option<Array<'py>>,
    /// How many numbers a list has in memory.
    len: usize,
    values: Values,
}

impl<'py> Argument<'py> {
    pub(crate) const fn new(
        name: &'static str,
        array: Option<Array<'py>>,
        len: usize,
        values: Values,
    ) -> Self {
        Argument {
            name,
            array,
            len,
            values,
        }
    }

    pub(crate) fn array(&self) -> Result<&Array<'py>> {
        let name = self.name;
        { self.array.as_ref() }.ok_or_else(|| Failure::Invalid(format!("{name} is no array")))
    }

    pub(crate) fn is(&self) -> Option<&Described> {
        self.array.as_ref().map(|array| &array.is)
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// A list of lengths, offsets or pages as a builder takes it.
    pub(crate) fn request(&self) -> Request<'_> {
        match &self.values {
            Values::Whole(values) => Numbers::Host(values),
            _ => Numbers::Device(self.len),
        }
    }

    pub(crate) fn table(&self) -> Result<TableLayout> {
        let (shape, row_stride) = self.array()?.is.table()?;
        Ok(TableLayout::new(shape, row_stride))
    }

    /// The memory of `len` elements, unless a description has them.
    fn memory(&self, len: usize) -> Result<Option<HostMemory>> {
        match &self.values {
            Values::InArray => self.is().map(|is| cpu::memory(is, len)).transpose(),
            Values::Floats(values) => Ok(Some(HostMemory::of(
                self.name,
                values.as_ptr(),
                values.len(),
            )?)),
            Values::Whole(_) => Ok(None),
        }
    }

    /// Checks the extents of a list of floats, and the numbers of one on the CPU, against a call. As many values in another order would be
    /// others.
    fn check(&self, operand: Operand, call: &Call) -> Result<()> {
        let (name, heads) = (self.name, call.heads().query);
        let (rule, dimensions) = match operand.kind() {
            Kind::List(Count::Rows) => return self.check_lse(call),
            Kind::List(Count::QueryHeads) => ("[heads]", 1),
            Kind::List(Count::Slopes) => ("[heads] or [batch, heads]", 2),
            Kind::List(Count::Scales) => ("", 0),
            _ => return Ok(()),
        };
        let of_list = [self.len];
        let shape = self.is().map_or(&of_list[..], Described::shape);
        let fits = match *shape {
            [of] => of == heads,
            [1, of] => dimensions == 2 && of == heads,
            [sequences, of] => dimensions == 2 && sequences == call.batch() && of == heads,
            _ => false,
        };
        if dimensions > 0 && !fits {
            return Err(Failure::Invalid(format!(
                "{name} has shape {shape:?}; it must be {rule}, for {heads} heads{}",
                match dimensions {
                    2 => format!(" and batch {}", call.batch()),
                    _ => String::new(),
                }
            )));
        }
        let needed = call.reach(operand);
        if self.len != needed {
            return Err(Failure::Invalid(format!(
                "{name} has {} values; {needed} are needed",
                self.len
            )));
        }
        if let Values::Floats(values) = &self.values {
            call.check_values(operand, values)?;
        }
        Ok(())
    }

    pub(crate) fn check_lse(&self, call: &Call) -> Result<()> {
        let (lse, shape) = (&self.array()?.is, call.lse_shape());
        let expected = &shape[usize::from(call.queries().is_packed())..];
        if lse.shape() != expected {
            return Err(Failure::Invalid(format!(
                "{} has shape {:?}, but must have {expected:?}",
                self.name,
                lse.shape()
            )));
        }
        lse.list(expected.len(), "").map(|_| ())
    }
}

/// The operands of an operation as they were given.
pub(crate) struct Given<'py> {
    pub(crate) arguments: Slots<Option<Box<Argument<'py>>>>,
    pub(crate) names: Names,
}

impl<'py> Given<'py> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Operand, &Argument<'py>)> {
        self.arguments
            .given()
            .map(|(operand, argument)| (operand, &**argument))
    }

    pub(crate) const fn has(&self, operand: Operand) -> bool {
        self.arguments.as_slice()[operand as usize].is_some()
    }

    /// The argument of an operand that must be given.
    pub(crate) fn get(&self, operand: Operand) -> Result<&Argument<'py>> {
        self.arguments[operand]
            .as_deref()
            .ok_or_else(|| Failure::Invalid(format!("{} is missing", self.names.operand(operand))))
    }

    pub(crate) fn array(&self, operand: Operand) -> Result<&Array<'py>> {
        self.get(operand)?.array()
    }

    pub(crate) fn tensor(&self, operand: Operand, order: Order, packed: bool) -> Result<Layout> {
        self.array(operand)?.is.tensor(order, packed)
    }

    /// The element types: that of most tensors, and that of keys and values if these are scaled. Scales are given if and only if they are.
    pub(crate) fn types(&self) -> Result<Types> {
        let [first, k, v] = match self.names.operations {
            Operations::APPEND => [Operand::K, Operand::KPages, Operand::VPages],
            _ => [Operand::Q, Operand::K, Operand::V],
        };
        let (first, k, v) = (self.array(first)?, self.array(k)?, self.array(v)?);
        let (first, k, v) = (&first.is, &k.is, &v.is);
        let element = first.element()?;
        let with_scales = SCALES.into_iter().any(|scale| self.has(scale));
        let scaled = k.scaled(with_scales);
        if v.scaled(with_scales) != scaled {
            return Err(v.wrong_dtype(&format!("{}, as {} has", k.dtype, k.name)));
        }
        let wrong = |scale: &Operand| self.has(*scale) != scaled.is_some();
        if let Some(scale) = SCALES.into_iter().find(wrong) {
            let name = self.names.operand(scale);
            return Err(Failure::Invalid(match scaled {
                Some(element) => format!(
                    "{name} is missing, but {} and {} are in {}",
                    k.name,
                    v.name,
                    Dtype::Scaled(element)
                ),
                None => format!(
                    "{name} is given, but {} has elements of type {}; only those of {}, or their bits as uint8, have scales",
                    k.name,
                    k.dtype,
                    scaled_types()
                ),
            }));
        }
        for (operand, argument) in self.iter() {
            let may_be_scaled = match self.names.operations {
                Operations::APPEND => operand.is_written(),
                _ => operand.elements() == Elements::Keys,
            };
            if operand.elements() == Elements::Bias && argument.array()?.is.dtype == Dtype::F32 {
                continue;
            }
            let is_tensor = matches!(
                operand.elements(),
                Elements::Queries | Elements::Keys | Elements::Output | Elements::Bias
            );
            if is_tensor && !(may_be_scaled && scaled.is_some()) {
                let is = &argument.array()?.is;
                if is.element()? != element {
                    return Err(is.wrong_dtype(&format!("{}, as {} has", first.dtype, first.name)));
                }
            }
        }
        let types = Types::of(element);
        Ok(scaled.map_or(types, |scaled| types.keys(scaled)))
    }

    /// Checks the extents of scales against an operation's.
    pub(crate) fn expect_scales(&self, sequences: usize, kv_heads: usize) -> Result<()> {
        SCALES
            .into_iter()
            .filter_map(|scale| self.arguments[scale].as_ref()?.is())
            .try_for_each(|is| is.expect_scales(sequences, kv_heads))
    }

    /// Checks that dropout has random numbers.
    pub(crate) fn expect_state(&self, call: &Call) -> Result<()> {
        let state = Operand::DropoutState;
        match call.has(state) && !self.has(state) {
            false => Ok(()),
            true => Err(Failure::Invalid(format!(
                "{} is given, but no {state}; one is drawn for tensors of torch alone",
                self.names.of("dropout"),
                state = state.name(),
            ))),
        }
    }

    /// Checks everything that a call says of lists of floats.
    pub(crate) fn check(&self, call: &Call) -> Result<()> {
        self.expect_scales(call.batch(), call.heads().key_value)?;
        self.iter()
            .try_for_each(|(operand, argument)| argument.check(operand, call))
    }

    /// The memory on the CPU. `reach`: elements of an operand, gaps included.
    pub(crate) fn memory(&self, reach: impl Fn(Operand) -> usize) -> Result<raw::Memory> {
        let mut memory = raw::Memory::none();
        for (operand, argument) in self.iter() {
            memory[operand] = argument.memory(reach(operand))?;
        }
        Ok(memory)
    }

    /// Where everything is on a GPU, which gets a copy of numbers that were given on the host.
    pub(crate) fn addresses(&self, ordinal: u32) -> Result<Slots<u64>> {
        let mut addresses = Slots::from_fn(|_| 0);
        for (operand, argument) in self.iter() {
            addresses[operand] = match (&argument.values, argument.is()) {
                (_, Some(is)) => is.address,
                (Values::Floats(values), None) => {
                    check_list(operand, values)?;
                    gpu::constant(ordinal, argument.name, values)?
                }
                _ => 0,
            };
        }
        Ok(addresses)
    }

    /// The object that was given for an operand.
    pub(crate) fn object(&self, operand: Operand) -> Option<&Bound<'py, PyAny>> {
        Some(&self.arguments[operand].as_ref()?.array.as_ref()?.object)
    }
}

/// The scales of keys, and those of values.
pub(crate) const SCALES: [Operand; 2] = [Operand::KScale, Operand::VScale];

/// The names of the types with scales.
pub(crate) fn scaled_types() -> String {
    let names: Vec<String> = Dtype::scaled().map(|dtype| dtype.to_string()).collect();
    names.join(" or ")
}
