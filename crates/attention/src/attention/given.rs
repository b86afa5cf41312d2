//! Arguments of a call, regardless of the type of its elements.

use std::sync::Arc;

use warptile_driver::DeviceBuffer;
use warptile_kernels::{Operand, Types};

use super::Attention;
use crate::backend::Backend;
use crate::error::Result;
use crate::gpu::{Bindings, Gpu};
use crate::operands::{Given, Keys, Part, Queries};
use crate::spec::{
    BlockLists, Call, CallBuilder, Element, ElementType, Elements, HostInputs, Invalid, Kind,
    MemoryType, Numbers,
};

/// Numbers of an option in device memory.
pub(super) type Constant = (Operand, Arc<DeviceBuffer<f32>>);

/// The arguments of a call without the type of its elements: what is done with them is compiled here, and not once more in each program
/// that calls.
pub(super) struct Arguments<'a> {
    types: Types,
    /// Queries, keys and values.
    tensors: [(Operand, Given<'a>); 3],
    /// The rest in any order; mostly there is none.
    others: Vec<(Operand, Given<'a>)>,
    longest: [Option<usize>; 2],
    table: Option<crate::spec::TableLayout>,
    blocks: Option<BlockLists>,
    has_bias_f32: bool,
    backend: &'a Backend,
}

impl<'a> Arguments<'a> {
    pub(super) fn new<T: Element>(
        attention: &'a Attention,
        queries: Queries<'a, T>,
        keys: Keys<'a, T>,
    ) -> Self {
        let [k, v] = keys.tensors;
        let longest = [queries.side.bound(), keys.side.bound()];
        let mut others = keys.side.given;
        others.extend(queries.side.given);
        let has_bias_f32 = others.iter().any(|(operand, given)| match given {
            Given::Tensor(part) if *operand == Operand::Bias => {
                part.memory_type() == MemoryType::of::<f32>()
            }
            _ => false,
        });
        let numbers = attention.numbers.iter().map(|(operand, numbers)| {
            let words = numbers.as_deref().map(bytemuck::cast_slice);
            let numbers = words.map_or(Numbers::None, Numbers::Host);
            (*operand, Given::Numbers(numbers))
        });
        others.extend(numbers);
        Arguments {
            types: Types::of(T::TYPE).keys(keys.element),
            tensors: [
                (Operand::Q, Given::Tensor(Part::all(queries.q))),
                (Operand::K, Given::Tensor(k)),
                (Operand::V, Given::Tensor(v)),
            ],
            others,
            longest,
            table: keys.side.table,
            blocks: keys.side.blocks,
            has_bias_f32,
            backend: queries.q.backend(),
        }
    }

    /// The device of the queries.
    pub(super) const fn backend(&self) -> &'a Backend {
        self.backend
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Operand, &Given<'a>)> {
        let given = self.tensors.iter().chain(&self.others);
        given.map(|(operand, given)| (*operand, given))
    }

    /// The numbers of options, and scales, that are in host memory: those that no description has.
    pub(super) fn floats(&self, call: &Call) -> impl Iterator<Item = (Operand, &'a [f32])> {
        self.iter().filter_map(|(operand, given)| match given {
            Given::Numbers(Numbers::Host(bytes)) if call.numbers(operand).is_none() => {
                Some((operand, bytemuck::cast_slice(bytes)))
            }
            _ => None,
        })
    }

    /// The inputs that the CPU reads; the rest is in the description.
    pub(super) fn inputs(&self, call: &Call) -> Result<HostInputs<'_>> {
        let mut inputs = HostInputs::default();
        for (operand, given) in self.iter() {
            if call.numbers(operand).is_none() {
                inputs.set(operand, given.on_host(operand.name())?);
            }
        }
        Ok(inputs)
    }

    /// [`floats`](Self::floats) on a GPU. Those that were not used before are uploaded; lengths and pages travel with the launch.
    pub(super) fn constants(&self, call: &Call, gpu: &Gpu) -> Result<Vec<Constant>> {
        { self.floats(call) }
            .map(|(operand, values)| Ok((operand, gpu.constant(values)?)))
            .collect()
    }

    /// The memory that a launch reads, [`constants`](Self::constants) included.
    pub(super) fn bindings<'b>(&'b self, constants: &'b [Constant]) -> Result<Bindings<'b>> {
        let mut bindings = Bindings::default();
        for (operand, given) in self.iter() {
            match given {
                Given::Tensor(part) => bindings.set_bytes(operand, part.on_device(operand.name())?),
                Given::Numbers(Numbers::Device(numbers)) => {
                    bindings.set_bytes(operand, numbers.clone())
                }
                Given::Numbers(_) => {}
            }
        }
        for (operand, values) in constants {
            bindings.set_bytes(*operand, values.as_slice().into_bytes());
        }
        Ok(bindings)
    }

    /// Refuses numbers of operands that are not lists, that are written, or whose elements have a different type, and tensors for scores
    /// that are none, or whose elements have another type than the call will read.
    pub(super) fn check_others(&self) -> Result<()> {
        for (operand, given) in &self.others {
            let part = match given {
                Given::Tensor(part) => part,
                Given::Numbers(numbers) => {
                    let is_list = matches!(operand.kind(), Kind::List(_));
                    let rule = match is_list && !operand.is_written() {
                        true if numbers.is_given() => continue,
                        true => "is given as numbers of a different type from its own",
                        false => "is given as a list of numbers, but is a tensor or an output",
                    };
                    return Err(Invalid::presence(operand.name(), rule).into());
                }
            };
            let expected = match (operand.kind(), operand.elements()) {
                (Kind::Scores, Elements::Bias) if self.has_bias_f32 => Some(ElementType::F32),
                (Kind::Scores, Elements::Bias) => Some(self.types.q),
                (Kind::Scores, _) => None,
                _ => {
                    let rule =
                        "is given as a tensor of scores, which only a bias and a key mask can be";
                    return Err(Invalid::presence(operand.name(), rule).into());
                }
            };
            let size = expected.map_or(1, ElementType::size);
            { part.memory_type() }.check(operand.name(), expected, size as u64)?;
        }
        Ok(())
    }

    /// A description of the call that has the types and bounds, and no operand yet but q, k and v.
    pub(super) fn builder(&self) -> CallBuilder<'a> {
        let empty = crate::spec::Layout::EMPTY;
        let builder = Call::builder(&empty, &empty, &empty, self.types).longest(self.longest);
        let builder = match self.blocks {
            Some(lists) => builder.block_lists(lists),
            None => builder,
        };
        let builder = match self.has_bias_f32 {
            true => builder.bias_type(ElementType::F32),
            false => builder,
        };
        match self.table {
            Some(table) => builder.table_layout(table),
            None => builder,
        }
    }
}
