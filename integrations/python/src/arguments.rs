//! The arguments that Python's functions take, read: options, and operands that must be on one device.

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use warptile::kernels::{Count, Elements, Kind, Operations};
use warptile::spec::{BlockLists, Operand, ParseBlockListsError, Scoring, Slots};
use warptile::{Diagonal, Mask};

use crate::array::{Array, Device, Dtype, Gradients, Library, Use, device_of, library_of};
use crate::cpu;
use crate::errors::{Failure, Names, Result, python_name};
use crate::given::{Argument, Given, Values};
use crate::library;
use crate::torch::Torch;

/// The object that Python gives for each operand.
pub(crate) type Objects<'py> = Slots<Option<Bound<'py, PyAny>>>;

/// Takes operands out of keyword arguments, after those that `other` takes, which says whether it knows the name.
pub(crate) fn objects<'py>(
    function: &str,
    operations: Operations,
    keywords: Option<&Bound<'py, PyDict>>,
    mut other: impl FnMut(&str, &Bound<'py, PyAny>) -> Result<bool>,
) -> Result<Objects<'py>> {
    let mut objects = Objects::default();
    for (name, value) in keywords.into_iter().flatten() {
        let name = name.cast::<PyString>().map_err(PyErr::from)?.to_cow()?;
        if other(&name, &value)? {
            continue;
        }
        let named = |known: &Operand| python_name(*known, operations) == Some(&*name);
        let Some(operand) = Operand::of(operations).find(named) else {
            return Err(PyTypeError::new_err(format!(
                "{function}() got an unexpected keyword argument '{name}'"
            ))
            .into());
        };
        objects[operand] = Some(value).filter(|value| !value.is_none());
    }
    Ok(objects)
}

/// The value of an argument; an error names it.
fn value<'py, T>(name: &str, object: &Bound<'py, PyAny>) -> Result<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error: Into<PyErr>>,
{
    object.extract::<T>().map_err(|error| {
        let (py, error) = (object.py(), error.into());
        let named = format!("argument '{name}': {}", error.value(py));
        if error.is_instance_of::<PyTypeError>(py) {
            return PyTypeError::new_err(named).into();
        }
        let is_value = error.is_instance_of::<PyValueError>(py);
        match is_value || error.is_instance_of::<PyOverflowError>(py) {
            true => Failure::Invalid(named),
            false => error.into(),
        }
    })
}

/// The options of `attention` besides operands: a line with the name and its type, and indented lines that document it.
pub(crate) const OPTIONS: &str = r#"
return_lse: bool
    Whether to return `(out, lse)` instead of `out`.
causal: bool | None
    Whether a query sees no key after the diagonal.
window: tuple[int | None, int | None] | None
    `(left, right)`: how many keys before and after the diagonal a query sees. `None` or -1 is no limit.
diagonal: int | Literal["bottom-right", "top-left"] | None
    Where the diagonal of `causal` and `window` runs: `"bottom-right"`, as if not given, aligns the last query with the
    last key, `"top-left"` the first query with the first key. A number is the key on the diagonal of the first query.
scale: float | None
    Factor of the scores; `1 / sqrt(head size)` if not given.
softcap: float | None
    Bounds the scores: `softcap * tanh(score / softcap)`. 0 or None for no bound.
dropout_p: float | None
    Probability of dropping a weight after the softmax, from 0 to below 1; the others are divided by `1 - dropout_p`. Without a
    `dropout_state`, torch's generator of the device is drawn from.
block_list: BlockList | None
    `warptile.BlockList`: which blocks of keys each block of queries sees; the mask holds inside of them.
layout: Literal["bshd", "bhsd"] | None
    Order of the dimensions of q, k, v and out: `"bshd"` or `"bhsd"`, that is `[batch, heads, length, head size]`.
max_seqlen_q: int | None
    The longest that packed queries of a sequence are. Lets a better kernel be chosen on a GPU, which cuts off what is longer; the CPU
    refuses it.
max_seqlen_k: int | None
    The longest that the keys of a sequence are, if they are packed or have lengths. As `max_seqlen_q` for what is longer.
kernel: str | None
    Name of the kernel or family to run instead of the planner's choice.
stream: int | None
    Raw handle of the CUDA stream, instead of the current one of torch or cupy. For arrays of other libraries the
    legacy default stream.
"#;

/// The argument by which the functions of `warptile.flash_attn` tell their names.
const CALLER: &str = "_caller";

/// The arguments of `attention`.
pub(crate) struct Options<'py> {
    pub(crate) names: Names,
    pub(crate) operands: Objects<'py>,
    pub(crate) return_lse: bool,
    causal: bool,
    window: Option<(Option<i64>, Option<i64>)>,
    /// A number, or the word of one that is aligned.
    diagonal: Option<Bound<'py, PyAny>>,
    scale: Option<f32>,
    softcap: Option<f32>,
    /// None for 0.
    dropout: Option<f32>,
    /// How the blocks of lists are arranged, whose numbers are operands.
    blocks: Option<BlockLists>,
    pub(crate) layout: Option<String>,
    pub(crate) max_seqlen_q: Option<usize>,
    pub(crate) max_seqlen_k: Option<usize>,
    pub(crate) kernel: Option<String>,
    pub(crate) stream: Option<u64>,
}

impl<'py> Options<'py> {
    /// From q, k and v, and keyword arguments.
    pub(crate) fn of(
        function: &str,
        [q, k, v]: [&Bound<'py, PyAny>; 3],
        keywords: Option<&Bound<'py, PyDict>>,
    ) -> Result<Self> {
        let caller = keywords
            .map(|keywords| keywords.get_item(intern!(keywords.py(), CALLER)))
            .transpose()?;
        let names = match caller.flatten() {
            Some(caller) => Names::of_function(&value::<String>(CALLER, &caller)?),
            None => None,
        };
        let mut options = Options::new(names.unwrap_or(Names::ATTENTION));
        let mut has_dropout = false;
        let mut block_list = None;
        let objects = objects(function, Operations::FORWARD, keywords, |name, object| {
            match name {
                "return_lse" => {
                    options.return_lse = value::<Option<bool>>(name, object)?.unwrap_or(false);
                }
                "causal" => {
                    options.causal = value::<Option<bool>>(name, object)?.unwrap_or(false);
                }
                "window" => options.window = value(options.names.of("window"), object)?,
                "diagonal" => options.diagonal = value(name, object)?,
                "scale" => options.scale = value(options.names.of("scale"), object)?,
                "softcap" => options.softcap = value(name, object)?,
                "dropout_p" => {
                    options.dropout = value::<Option<f32>>(name, object)?.filter(|&p| p != 0.0);
                    has_dropout = true;
                }
                "block_list" => block_list = Some(object.clone()).filter(|list| !list.is_none()),
                "layout" => options.layout = value(name, object)?,
                "max_seqlen_q" => options.max_seqlen_q = value(name, object)?,
                "max_seqlen_k" => options.max_seqlen_k = value(name, object)?,
                "kernel" => options.kernel = value(name, object)?,
                "stream" => options.stream = value(name, object)?,
                CALLER => {}
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        options.operands = objects;
        if has_dropout && options.dropout.is_none() {
            options.operands[Operand::DropoutState] = None;
        }
        if let Some(list) = block_list {
            options.set_blocks(&list)?;
        }
        for (operand, tensor) in [(Operand::Q, q), (Operand::K, k), (Operand::V, v)] {
            options.operands[operand] = Some(tensor.clone());
        }
        Ok(options)
    }

    /// Those of torch's `scaled_dot_product_attention` without a mask.
    pub(crate) fn of_torch(
        [q, k, v]: [&Bound<'py, PyAny>; 3],
        causal: bool,
        scale: Option<f32>,
        return_lse: bool,
    ) -> Self {
        let top_left = causal.then(|| intern!(q.py(), "top-left").clone().into_any());
        let mut options = Options {
            return_lse,
            causal,
            diagonal: top_left,
            scale,
            ..Options::new(Names::ATTENTION)
        };
        for (operand, tensor) in [(Operand::Q, q), (Operand::K, k), (Operand::V, v)] {
            options.operands[operand] = Some(tensor.clone());
        }
        options
    }

    fn new(names: Names) -> Self {
        Options {
            names,
            operands: Objects::default(),
            return_lse: false,
            causal: false,
            window: None,
            diagonal: None,
            scale: None,
            softcap: None,
            dropout: None,
            blocks: None,
            layout: None,
            max_seqlen_q: None,
            max_seqlen_k: None,
            kernel: None,
            stream: None,
        }
    }

    pub(crate) const fn is_causal(&self) -> bool {
        self.causal
    }

    /// Mask, scale and bound of the scores. Their operands are added as they are described.
    pub(crate) fn scoring(&self) -> Result<Scoring> {
        let mut scoring = Scoring::new().mask(self.mask()?);
        scoring.scale = self.scale;
        scoring.softcap = self.softcap.filter(|&softcap| softcap != 0.0);
        scoring.dropout = self.dropout;
        scoring.blocks = self.blocks;
        Ok(scoring)
    }

    /// The lists of a `warptile.BlockList`.
    fn set_blocks(&mut self, list: &Bound<'py, PyAny>) -> Result<()> {
        let arrangement = list
            .getattr("arrangement")
            .map_err(|_| Failure::Type("block_list must be a warptile.BlockList".to_owned()))?;
        let arrangement: String = arrangement.extract()?;
        let lists = arrangement.parse().map_err(|error: ParseBlockListsError| {
            Failure::Invalid(format!("block_list: {error}"))
        })?;
        self.blocks = Some(lists);
        for (operand, name) in [
            (Operand::BlockOffsets, "offsets"),
            (Operand::BlockIndices, "indices"),
        ] {
            self.operands[operand] = Some(list.getattr(name)?);
        }
        Ok(())
    }

    /// True if the state of dropout is to be drawn by the library of the queries, which is torch.
    pub(crate) fn draws(&self) -> Result<bool> {
        let (state, q) = (&self.operands[Operand::DropoutState], Operand::Q);
        if self.dropout.is_none() || state.is_some() {
            return Ok(false);
        }
        { self.scoring()?.validate() }.map_err(|error| self.names.fail(error.into()))?;
        let library = { self.operands[q].as_ref() }
            .map(|q| library_of(q))
            .transpose()?;
        Ok(library == Some(Library::Torch))
    }

    /// Which keys a query sees, by `causal`, `window` and `diagonal`.
    fn mask(&self) -> Result<Mask> {
        let side = |keys: Option<i64>| -> Result<Option<u32>> {
            match keys {
                None | Some(-1) => Ok(None),
                Some(keys) => u32::try_from(keys).map(Some).map_err(|_| {
                    Failure::Invalid(format!(
                        "{} has a side of {keys} keys; a side is a number of keys, or None or -1 for no limit",
                        self.names.of("window")
                    ))
                }),
            }
        };
        let (left, right) = self.window.unwrap_or_default();
        let (left, right) = (side(left)?, side(right)?);
        let mask = Mask::window(left, if self.causal { Some(0) } else { right });
        let Some(diagonal) = &self.diagonal else {
            return Ok(mask);
        };
        if mask.hides_nothing() {
            return Err(Failure::Invalid(
                "diagonal says where a mask runs, so it needs causal or window".to_owned(),
            ));
        }
        let diagonal = diagonal.str()?.to_cow()?.parse::<Diagonal>();
        let diagonal = diagonal.map_err(|error| Failure::Invalid(format!("diagonal: {error}")))?;
        Ok(mask.diagonal(diagonal))
    }
}

/// Reads arrays that must all be on one device.
#[derive(Clone, Copy)]
pub(crate) struct Reader {
    /// The argument whose device it is.
    first: &'static str,
    device: Device,
    for_use: Use,
    /// True if the caller gave the stream, which need not be the current one of the library.
    has_stream: bool,
    /// True if the output and the lse are read, as gradients need them.
    reads_results: bool,
}

impl Reader {
    /// For the device of the argument `first`, and the current stream of its library unless another is given.
    pub(crate) fn of(
        first: &'static str,
        object: Option<&Bound<'_, PyAny>>,
        stream: Option<u64>,
        gradients: Gradients,
    ) -> Result<Self> {
        let object = object.ok_or_else(|| Failure::Invalid(format!("{first} is missing")))?;
        let py = object.py();
        let (library, device) = device_of(first, object)?;
        let is_torch = library == Library::Torch;
        if is_torch && gradients == Gradients::Refused && Torch::get(py)?.is_tracing(py)? {
            return Err(Failure::Traced(first));
        }
        let has_stream = stream.is_some();
        let stream = match (stream, device, library) {
            (Some(1..), Device::Cpu, _) => {
                return Err(Failure::Invalid(format!(
                    "stream is given, but {first} is on the CPU"
                )));
            }
            (Some(stream), ..) => stream,
            (None, Device::Cuda(ordinal), Library::Torch) => {
                Torch::get(py)?.current_stream(py, ordinal)?
            }
            (None, Device::Cuda(ordinal), Library::Cupy) => py
                .import("cupy")?
                .getattr("cuda")?
                .call_method1("get_current_stream", (ordinal,))?
                .getattr("ptr")?
                .extract()?,
            _ => 0,
        };
        let for_use = Use {
            library,
            stream,
            gradients,
        };
        Ok(Reader {
            first,
            device,
            for_use,
            has_stream,
            reads_results: false,
        })
    }

    /// This reader for an operation that reads the output and the lse.
    pub(crate) const fn reading_results(self) -> Self {
        Reader {
            reads_results: true,
            ..self
        }
    }

    pub(crate) const fn device(&self) -> Device {
        self.device
    }

    pub(crate) const fn stream(&self) -> u64 {
        self.for_use.stream
    }

    /// Calls `make`, which makes arrays for results: on a GPU their memory comes, and is zeroed, in the order of the stream of the call.
    pub(crate) fn making<T>(&self, py: Python<'_>, make: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.device {
            Device::Cuda(ordinal) if self.has_stream => {
                library::on_stream(py, self.for_use.library, ordinal, self.stream(), make)
            }
            _ => make(),
        }
    }

    pub(crate) fn array<'py>(
        &self,
        name: &'static str,
        object: &Bound<'py, PyAny>,
    ) -> Result<Array<'py>> {
        let array = Array::read(name, object, self.for_use)?;
        self.expect_device(name, array.is.device)?;
        Ok(array)
    }

    fn expect_device(&self, name: &'static str, found: Device) -> Result<()> {
        match found == self.device {
            true => Ok(()),
            false => Err(Failure::Invalid(format!(
                "{name} is on {found}, but {} is on {}; all tensors of a call must be on one device",
                self.first, self.device
            ))),
        }
    }

    /// An array that the result is written into.
    pub(crate) fn written<'py>(
        &self,
        name: &'static str,
        object: &Bound<'py, PyAny>,
    ) -> Result<Array<'py>> {
        let array = self.array(name, object)?;
        array.is.expect_writable()?;
        if array.library == Library::Jax {
            return Err(Failure::Invalid(format!(
                "{name} is an array of jax, which must not be written into"
            )));
        }
        // Whoever uses the result next does so on a stream of its own library.
        let foreign = array.library != self.for_use.library;
        if foreign && matches!(self.device, Device::Cuda(_)) {
            return Err(Failure::Invalid(format!(
                "{name} is an array of {}, but the call runs on the stream of {}; make it with the library of {}",
                array.library, self.for_use.library, self.first
            )));
        }
        Ok(array)
    }

    /// The operands of an operation.
    pub(crate) fn given<'py>(&self, objects: &Objects<'py>, names: Names) -> Result<Given<'py>> {
        let arguments = objects.try_map(|operand, object| {
            self.argument(operand, names.operand(operand), object)
                .map(Box::new)
        })?;
        Ok(Given { arguments, names })
    }

    /// An output that was made for the call.
    pub(crate) fn made<'py>(
        &self,
        operand: Operand,
        object: &Bound<'py, PyAny>,
    ) -> Result<Argument<'py>> {
        let name = operand.name();
        match Array::of_torch(name, object) {
            Some(array) => Ok(Argument::new(name, Some(array), 0, Values::InArray)),
            None => self.argument(operand, name, object),
        }
    }

    /// An operand, read as its kind and its elements ask. The types of tensors are compared by [`Given::types`].
    pub(crate) fn argument<'py>(
        &self,
        operand: Operand,
        name: &'static str,
        object: &Bound<'py, PyAny>,
    ) -> Result<Argument<'py>> {
        let count = match operand.kind() {
            Kind::List(count) => Some(count),
            _ => None,
        };
        let is_number = count == Some(Count::Scales)
            && (object.is_instance_of::<PyFloat>() || object.is_instance_of::<PyInt>());
        let may_be_list = !matches!(
            count,
            None | Some(Count::Rows | Count::Table | Count::Angles)
        );
        // A list of Python's is copied, so nothing can be written into it.
        if is_number || (may_be_list && !operand.is_written() && is_list(object)) {
            // A GPU gets a copy of floats, which stays; whole numbers have to be there.
            if operand.elements() == Elements::I32 {
                self.expect_device(name, Device::Cpu)?;
            }
            let values = match operand.elements() {
                Elements::I32 => Values::Whole(narrowed(name, object.extract::<Vec<i64>>()?)?),
                _ if is_number => Values::Floats(vec![object.extract()?]),
                _ => Values::Floats(object.extract()?),
            };
            return Ok(Argument::new(name, None, values.len(), values));
        }
        let is_read = self.reads_results && matches!(operand, Operand::Out | Operand::Lse);
        let array = match operand.is_written() && !is_read {
            true => self.written(name, object)?,
            false => self.array(name, object)?,
        };
        let (is, on_host) = (&array.is, self.device == Device::Cpu);
        match operand.elements() {
            Elements::F32 => is.expect_dtype(&[Dtype::F32], "float32")?,
            Elements::U8 => is.expect_dtype(&[Dtype::Bool, Dtype::U8], "bool or uint8")?,
            Elements::I32 if on_host => {
                is.expect_dtype(
                    &[Dtype::I32, Dtype::U32, Dtype::I64],
                    "int32, uint32 or int64",
                )?;
            }
            Elements::I32 => {
                is.expect_dtype(&[Dtype::I32, Dtype::U32], "int32 or uint32 on a GPU")?
            }
            _ => {}
        }
        let len = match count {
            None | Some(Count::Rows | Count::Angles) => {
                return Ok(Argument::new(name, Some(array), 0, Values::InArray));
            }
            Some(Count::Scales) => is.scales()?,
            Some(Count::Table) => is.table().map(|_| is.reach())?,
            Some(Count::QueryHeads | Count::Slopes) => is.values_of_heads()?,
            Some(Count::State) => is.list(1, "it must have one dimension, of 8 words")?,
            Some(_) => is.list(1, "it must have the one dimension [sequences]")?,
        };
        // SAFETY: the library says that the elements are there, and it is asked to change none during a call.
        let values = unsafe {
            match is.dtype {
                _ if !on_host || operand.is_written() => Values::InArray,
                Dtype::F32 => Values::Floats(cpu::slice(is, len)?.to_vec()),
                Dtype::I32 => Values::Whole(cpu::slice(is, len)?.to_vec()),
                Dtype::U32 => Values::Whole(narrowed(name, cpu::slice::<u32>(is, len)?.to_vec())?),
                _ => Values::Whole(narrowed(name, cpu::slice::<i64>(is, len)?.to_vec())?),
            }
        };
        Ok(Argument::new(name, Some(array), len, values))
    }
}

fn is_list(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>()
}

fn narrowed<T: TryInto<i32> + Copy + std::fmt::Display>(
    name: &str,
    values: Vec<T>,
) -> Result<Vec<i32>> {
    let narrow = |(index, value): (usize, T)| {
        value.try_into().map_err(|_| {
            Failure::Invalid(format!(
                "{name}[{index}] is {value}, which does not fit 32 bits"
            ))
        })
    };
    values.into_iter().enumerate().map(narrow).collect()
}
