//! `write_cache`: new keys and values into a cache, rotated on the way, as flash_attn's `flash_attn_with_kvcache` does it.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use warptile::Layout;
use warptile::cpu::raw;
use warptile::kernels::Operations;
use warptile::plan::Choice;
use warptile::spec::{Append, Numbers, Operand, Pairing, Rotary, TableLayout};

use crate::arguments::{Reader, objects};
use crate::array::{Described, Device, Gradients, Order};
use crate::errors::{Failure, Names, Result};
use crate::given::{Argument, Given, SCALES};
use crate::gpu;
use crate::library::{self, Fill};

const OPERATIONS: Operations = Operations::APPEND;

/// A cache write with everything that belongs to it.
pub(crate) struct Request<'py> {
    reader: Reader,
    append: Append,
    given: Given<'py>,
}

impl<'py> Request<'py> {
    /// Reads all arguments, which have names, and checks them against each other. Makes a place for the rotated queries, if there is a
    /// rotation and queries.
    pub(crate) fn new(arguments: Option<&Bound<'py, PyDict>>) -> Result<Self> {
        Self::read(arguments).map_err(|failure| Names::WRITE.fail(failure))
    }

    fn read(arguments: Option<&Bound<'py, PyDict>>) -> Result<Self> {
        let mut interleaved = true;
        let objects = objects("write_cache", OPERATIONS, arguments, |name, object| {
            if name == "interleaved" {
                interleaved = object.extract()?;
            }
            Ok(name == "interleaved")
        })?;
        let k = Operand::K;
        let reader = Reader::of(k.name(), objects[k].as_ref(), None, Gradients::Refused)?;
        let mut given = reader.given(&objects, Names::WRITE)?;
        let types = given.types()?;
        let layout = |operand| given.tensor(operand, Order::Bshd, false);
        let new = [layout(k)?, layout(Operand::V)?];
        let cache = [layout(Operand::KPages)?, layout(Operand::VPages)?];

        let counts = SCALES.map(|scale| given.get(scale).map_or(1, Argument::len));
        let builder = Append::builder(types, new.each_ref(), cache.each_ref()).scale_counts(counts);
        let mut builder = match given.get(Operand::KeyLengths)?.request() {
            Numbers::Host(before) => builder.key_lengths(before),
            Numbers::Device(count) => builder.device_key_lengths(count),
            Numbers::None => builder,
        };
        if given.has(Operand::BlockTable) {
            let (table, name) = (given.get(Operand::BlockTable)?, Operand::BlockTable.name());
            let TableLayout {
                shape: [sequences, columns],
                row_stride,
            } = table.table()?;
            if sequences != new[0].batch() {
                return Err(Failure::Invalid(format!(
                    "{name} has {sequences} rows, but k has batch {}",
                    new[0].batch()
                )));
            }
            if sequences > 1 && row_stride != columns {
                return Err(Failure::Invalid(format!(
                    "{name} has gaps between its rows, which a cache is not written by; pass a contiguous one"
                )));
            }
            builder = match table.request() {
                Numbers::Host(entries) => builder.block_table(entries, columns),
                _ => builder.device_block_table(columns),
            };
        }
        match (given.has(Operand::Cos), given.has(Operand::Sin)) {
            (true, true) => {
                let cos = &given.array(Operand::Cos)?.is;
                let sin = &given.array(Operand::Sin)?.is;
                let table = angle_table(cos)?;
                if angle_table(sin)? != table || sin.dtype != cos.dtype {
                    return Err(Failure::Invalid(format!(
                        "{} is not of the shape, strides and type of {}",
                        sin.name, cos.name
                    )));
                }
                let pairing = match interleaved {
                    true => Pairing::Interleaved,
                    false => Pairing::HalfSplit,
                };
                builder = builder.rotary(Rotary::with_tables(cos.element()?, table, pairing)?);
                if given.has(Operand::Q) {
                    let q = layout(Operand::Q)?;
                    builder = builder.queries(q, Some(q.dense_like()));
                }
            }
            (false, false) => {}
            _ => {
                return Err(Failure::Invalid(
                    "rotary_cos and rotary_sin are given together or not at all".to_owned(),
                ));
            }
        }
        let append = builder.build()?;
        given.expect_scales(append.batch(), append.heads().key_value)?;
        match append.layout(Operand::QOut) {
            Some(layout) => {
                let q = given.array(Operand::Q)?;
                let made = library::output(q, Order::Bshd, layout, false, Fill::Nothing)?;
                let q_out = reader.made(Operand::QOut, &made)?;
                given.arguments[Operand::QOut] = Some(Box::new(q_out));
            }
            None => given.arguments[Operand::Q] = None,
        }
        Ok(Request {
            reader,
            append,
            given,
        })
    }

    /// The rotated queries, or their place before the write.
    pub(crate) fn q_out(&self) -> Option<&Bound<'py, PyAny>> {
        self.given.object(Operand::QOut)
    }

    /// Writes, and rotates the queries into their place.
    pub(crate) fn run(&self, py: Python<'py>) -> Result<()> {
        let append = &self.append;
        let done = match self.reader.device() {
            Device::Cpu => {
                let memory = self.given.memory(|operand| append.reach(operand))?;
                // SAFETY: the arrays are held until after the call, so their libraries keep the elements; that nobody else touches them
                // meanwhile is what is asked of callers.
                py.detach(|| unsafe { raw::append(append, &memory) }.map_err(Failure::from))
            }
            Device::Cuda(ordinal) => {
                let stream = self.reader.stream();
                self.given.addresses(ordinal).and_then(|addresses| {
                    // SAFETY: as for `attention`'s launch.
                    py.detach(|| unsafe {
                        gpu::launch(ordinal, stream, append, &Choice::Best, &addresses, 0)
                    })
                })
            }
        };
        done.map_err(|failure| Names::WRITE.fail(failure))
    }
}

/// Layout of cosines or sines, `[positions, half of the rotary size]`.
fn angle_table(array: &Described) -> Result<Layout> {
    array.element()?;
    let ([positions, pairs], stride) = array.table()?;
    Ok(Layout::new([1, positions, 1, pairs], [0, stride, 0, 1]))
}
