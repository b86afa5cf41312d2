//! Arrays of other libraries: where their elements lie, and what keeps them there.

use std::fmt;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyDict, PyString, PyTuple, PyType};
use warptile::{ElementType, Layout};

use crate::dlpack;
use crate::errors::{Failure, Result};
use crate::torch::Torch;

/// Where an array is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Device {
    /// Host memory, pinned or not.
    Cpu,
    /// The GPU of this number, in the driver's order.
    Cuda(u32),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("the CPU"),
            Device::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// What the elements are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Dtype {
    F16,
    Bf16,
    F32,
    I32,
    U32,
    I64,
    U8,
    Bool,
    /// None that is of use here, by its library's name for it.
    Other(String),
}

impl Dtype {
    /// Bytes of an element; of others nobody needs to know.
    pub(crate) const fn size(&self) -> u64 {
        match self {
            Dtype::U8 | Dtype::Bool => 1,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::F32 | Dtype::I32 | Dtype::U32 => 4,
            Dtype::I64 => 8,
            Dtype::Other(_) => 0,
        }
    }

    /// From a letter for the kind and a number of bytes, as numpy and the buffer protocol have it.
    fn of_kind(kind: char, bytes: usize) -> Option<Self> {
        Some(match (kind, bytes) {
            ('f', 2) => Dtype::F16,
            ('f', 4) => Dtype::F32,
            ('i', 4) => Dtype::I32,
            ('u', 4) => Dtype::U32,
            ('i', 8) => Dtype::I64,
            ('u', 1) => Dtype::U8,
            ('b', 1) => Dtype::Bool,
            _ => return None,
        })
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dtype::F16 => "float16",
            Dtype::Bf16 => "bfloat16",
            Dtype::F32 => "float32",
            Dtype::I32 => "int32",
            Dtype::U32 => "uint32",
            Dtype::I64 => "int64",
            Dtype::U8 => "uint8",
            Dtype::Bool => "bool",
            Dtype::Other(name) => name,
        })
    }
}

/// The library an array is of, as far as it matters for making more of them and for its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Library {
    Torch,
    Numpy,
    Cupy,
    /// Its arrays never change: none is written into.
    Jax,
    Other,
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Library::Torch => "torch",
            Library::Numpy => "numpy",
            Library::Cupy => "cupy",
            Library::Jax => "jax",
            Library::Other => "another library",
        })
    }
}

/// The most dimensions that any argument has.
pub(crate) const MAX_RANK: usize = 4;

/// An array's elements in memory. Plain data: it says nothing of how long they stay there.
#[derive(Debug, Clone)]
pub(crate) struct Described {
    /// The argument's name, for messages.
    pub(crate) name: &'static str,
    pub(crate) device: Device,
    /// Address of the first element; may be 0 if there is none.
    pub(crate) address: u64,
    pub(crate) dtype: Dtype,
    rank: usize,
    shape: [usize; MAX_RANK],
    /// In elements; of dimensions without a second index 0.
    strides: [usize; MAX_RANK],
    pub(crate) writable: bool,
}

impl Described {
    /// `strides` are in elements; none if the array is contiguous.
    pub(crate) fn new(
        name: &'static str,
        device: Device,
        address: u64,
        dtype: Dtype,
        shape: &[i64],
        strides: Option<&[i64]>,
        writable: bool,
    ) -> Result<Self> {
        let rank = shape.len();
        if rank > MAX_RANK {
            return Err(Failure::Invalid(format!(
                "{name} has {rank} dimensions; no argument has more than {MAX_RANK}"
            )));
        }
        let mut described = Described {
            name,
            device,
            address,
            dtype,
            rank,
            shape: [1; MAX_RANK],
            strides: [0; MAX_RANK],
            writable,
        };
        let mut step = 1_i64;
        for dimension in (0..rank).rev() {
            let extent = shape[dimension];
            let stride = match strides {
                Some(strides) => strides[dimension],
                None => step,
            };
            step = step.saturating_mul(extent);
            let bad = |what: &str, value: i64| {
                Failure::Invalid(format!(
                    "{name} has {what} {value} in dimension {dimension}; it must not be negative"
                ))
            };
            described.shape[dimension] =
                usize::try_from(extent).map_err(|_| bad("extent", extent))?;
            if extent > 1 {
                described.strides[dimension] =
                    usize::try_from(stride).map_err(|_| bad("stride", stride))?;
            }
        }
        if address == 0 && !described.shape().contains(&0) {
            return Err(Failure::Invalid(format!(
                "{name} has no memory: its library has freed it, or never gave it any"
            )));
        }
        Ok(described)
    }

    /// Elements from the first to the last, both counted; saturating.
    pub(crate) fn reach(&self) -> usize {
        if self.shape().contains(&0) {
            return 0;
        }
        let steps = self.shape().iter().zip(self.strides());
        steps.fold(1, |reach, (&extent, &stride)| {
            stride.saturating_mul(extent - 1).saturating_add(reach)
        })
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape[..self.rank]
    }

    fn strides(&self) -> &[usize] {
        &self.strides[..self.rank]
    }

    /// As a tensor of attention, whose four dimensions are found at `order`; `None` is an extent of 1.
    fn at(&self, order: [Option<usize>; 4]) -> Layout {
        let extent = |at: Option<usize>| at.map_or(1, |at| self.shape[at]);
        let stride = |at: Option<usize>| at.map_or(0, |at| self.strides[at]);
        let mut layout = Layout::new(order.map(extent), order.map(stride));
        if layout.shape[3] == 1 {
            layout.strides[3] = 1;
        }
        layout
    }

    fn wrong_rank(&self, rule: &str) -> Failure {
        Failure::Invalid(format!(
            "{} has shape {:?}; {rule}",
            self.name,
            self.shape()
        ))
    }

    /// Layout of q, k, v or out. `packed`: `[rows, heads, head size]`.
    pub(crate) fn tensor(&self, order: Order, packed: bool) -> Result<Layout> {
        match (self.rank, packed, order) {
            (4, false, Order::Bshd) => Ok(self.at([Some(0), Some(1), Some(2), Some(3)])),
            (4, false, Order::Bhsd) => Ok(self.at([Some(0), Some(2), Some(1), Some(3)])),
            (3, true, _) => Ok(self.at([None, Some(0), Some(1), Some(2)])),
            (_, false, order) => Err(self.wrong_rank(&format!(
                "it must have the four dimensions {}, or three if cu_seqlens are given for it",
                order.dimensions()
            ))),
            (_, true, _) => Err(self.wrong_rank(
                "packed sequences have the three dimensions [rows of all sequences, heads, head size]",
            )),
        }
    }

    /// Layout of an lse, `[batch, heads, rows]`, of head size 1.
    pub(crate) fn lse(&self, packed: bool) -> Result<Layout> {
        match (self.rank, packed) {
            (3, false) => Ok(self.at([Some(0), Some(2), Some(1), None])),
            (2, true) => Ok(self.at([None, Some(1), Some(0), None])),
            (_, false) => {
                Err(self.wrong_rank("it must have the three dimensions [batch, heads, rows]"))
            }
            (_, true) => Err(self.wrong_rank(
                "of packed sequences it must have the two dimensions [heads, rows of all sequences]",
            )),
        }
    }

    /// Layout of a bias or key mask: any that broadcasts to `[batch, heads, queries, keys]`.
    pub(crate) fn scores(&self) -> Layout {
        let skipped = MAX_RANK - self.rank;
        let at = |dimension: usize| dimension.checked_sub(skipped);
        let mut layout = self.at([at(0), at(2), at(1), at(3)]);
        if self.rank == 0 {
            layout.strides[3] = 1;
        }
        layout
    }

    /// The number of elements of a contiguous list.
    pub(crate) fn list(&self, rank: usize, rule: &str) -> Result<usize> {
        if self.rank != rank {
            return Err(self.wrong_rank(rule));
        }
        let mut step = 1_usize;
        for (&extent, &stride) in self.shape().iter().zip(self.strides()).rev() {
            if extent > 1 && stride != step {
                return Err(Failure::Invalid(format!(
                    "{} is not contiguous: it has shape {:?} and strides {:?}",
                    self.name,
                    self.shape(),
                    self.strides()
                )));
            }
            step = step.saturating_mul(extent);
        }
        Ok(step)
    }

    /// Rows and the stride between them of a table whose rows are contiguous.
    pub(crate) fn table(&self) -> Result<([usize; 2], usize)> {
        if self.rank != 2 {
            return Err(self.wrong_rank("it must have the two dimensions [sequences, pages]"));
        }
        if self.shape[1] > 1 && self.strides[1] != 1 {
            return Err(Failure::Invalid(format!(
                "{} has stride {} in its last dimension, which must be contiguous",
                self.name, self.strides[1]
            )));
        }
        Ok(([self.shape[0], self.shape[1]], self.strides[0]))
    }

    /// The element type of a tensor of attention.
    pub(crate) fn element(&self) -> Result<ElementType> {
        match self.dtype {
            Dtype::F16 => Ok(ElementType::F16),
            Dtype::Bf16 => Ok(ElementType::Bf16),
            Dtype::F32 => Ok(ElementType::F32),
            _ => Err(self.wrong_dtype("float16, bfloat16 or float32")),
        }
    }

    pub(crate) fn wrong_dtype(&self, expected: &str) -> Failure {
        Failure::Type(format!(
            "{} has elements of type {}, but must have {expected}",
            self.name, self.dtype
        ))
    }

    pub(crate) fn expect_dtype(&self, allowed: &[Dtype], expected: &str) -> Result<()> {
        match allowed.contains(&self.dtype) {
            true => Ok(()),
            false => Err(self.wrong_dtype(expected)),
        }
    }

    pub(crate) fn expect_writable(&self) -> Result<()> {
        match self.writable {
            true => Ok(()),
            false => Err(Failure::Invalid(format!(
                "{} is read-only, but the result would be written into it",
                self.name
            ))),
        }
    }
}

/// The order of the dimensions of q, k, v and out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Bshd,
    Bhsd,
}

impl Order {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        match text {
            "bshd" => Ok(Order::Bshd),
            "bhsd" => Ok(Order::Bhsd),
            _ => Err(Failure::Invalid(format!(
                "layout is {text:?}, but must be \"bshd\" or \"bhsd\""
            ))),
        }
    }

    /// Shape and strides of a layout with its dimensions in this order.
    pub(crate) fn of(self, layout: &Layout) -> ([usize; 4], [usize; 4]) {
        let [a, b, c, d] = layout.shape;
        let [e, f, g, h] = layout.strides;
        match self {
            Order::Bshd => ([a, b, c, d], [e, f, g, h]),
            Order::Bhsd => ([a, c, b, d], [e, g, f, h]),
        }
    }

    const fn dimensions(self) -> &'static str {
        match self {
            Order::Bshd => "[batch, length, heads, head size]",
            Order::Bhsd => "[batch, heads, length, head size]",
        }
    }
}

/// What keeps the elements of an array in memory, beside the object itself.
#[expect(dead_code, reason = "held only to be dropped after the call")]
enum Keeper<'py> {
    None,
    Capsule(Bound<'py, PyCapsule>),
    Buffer(PyUntypedBuffer),
}

/// An array of another library, held.
pub(crate) struct Array<'py> {
    pub(crate) object: Bound<'py, PyAny>,
    pub(crate) library: Library,
    pub(crate) is: Described,
    _keeper: Keeper<'py>,
}

/// What will be done with an array, and on what stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Use {
    /// The library whose current stream it is; another library's arrays must be told of it.
    pub(crate) library: Library,
    pub(crate) stream: u64,
    pub(crate) gradients: Gradients,
}

/// What is done about a tensor that requires a gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gradients {
    /// It is an error, as none would be computed.
    Refused,
    /// Somebody else sees to it.
    Ignored,
}

impl<'py> Array<'py> {
    /// Reads how an object's elements lie in memory, through the first of these that it has: the attributes of a torch tensor,
    /// numpy's `__array_interface__`, DLPack, `__cuda_array_interface__`, the buffer protocol.
    pub(crate) fn read(
        name: &'static str,
        object: &Bound<'py, PyAny>,
        for_use: Use,
    ) -> Result<Self> {
        let library = library_of(object)?;
        let py = object.py();
        let done = |is, keeper| {
            Ok(Array {
                object: object.clone(),
                library,
                is,
                _keeper: keeper,
            })
        };
        if library == Library::Torch {
            let torch = Torch::get(py)?;
            let described = torch.describe(name, object, for_use.gradients)?;
            // Work of torch's on another stream: its `__dlpack__` makes ours wait for it.
            if described.device == Device::Cpu || for_use.library == Library::Torch {
                return done(described, Keeper::None);
            }
        }
        if library == Library::Numpy || object.hasattr("__array_interface__")? {
            return done(array_interface(name, object)?, Keeper::None);
        }
        if object.hasattr("__dlpack__")? && object.hasattr("__dlpack_device__")? {
            let device = dlpack::device(name, object)?;
            let capsule = dlpack::export(object, device, for_use.stream)?;
            return done(dlpack::read(name, &capsule)?, Keeper::Capsule(capsule));
        }
        if object.hasattr("__cuda_array_interface__")? {
            return done(cuda_array_interface(name, object, for_use)?, Keeper::None);
        }
        match PyUntypedBuffer::get(object) {
            Ok(buffer) => done(of_buffer(name, &buffer)?, Keeper::Buffer(buffer)),
            Err(_) => Err(Failure::Type(format!(
                "{name} is of type {}; a tensor must have DLPack, the CUDA array interface or the buffer protocol, as those of torch, cupy, jax and numpy do",
                type_name(object)
            ))),
        }
    }
}

/// Where an object is, without asking for its elements.
pub(crate) fn device_of(
    name: &'static str,
    object: &Bound<'_, PyAny>,
) -> Result<(Library, Device)> {
    let library = library_of(object)?;
    let device = match library {
        Library::Torch => Torch::get(object.py())?.device(name, object)?,
        Library::Numpy => Device::Cpu,
        _ if object.hasattr("__dlpack_device__")? => dlpack::device(name, object)?,
        _ if object.hasattr("__cuda_array_interface__")? => {
            let interface = object.getattr("__cuda_array_interface__")?;
            let (address, _) = data_of(name, interface.cast().map_err(PyErr::from)?)?;
            crate::gpu::device_of_address(name, address)?
        }
        _ => Device::Cpu,
    };
    Ok((library, device))
}

fn type_name(object: &Bound<'_, PyAny>) -> String {
    let name = object.get_type().fully_qualified_name();
    name.map_or_else(|_| "unknown".to_owned(), |name| name.to_string())
}

/// The library by the module of the object's class. A class that inherits from `torch.Tensor` or `numpy.ndarray` counts as another
/// library's: it may mean its elements in another way, which its DLPack tells.
fn library_of(object: &Bound<'_, PyAny>) -> Result<Library> {
    let py = object.py();
    let class = object.get_type();
    if Torch::is_tensor_class(py, &class) {
        return Ok(Library::Torch);
    }
    static NDARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    if NDARRAY.get(py).is_some_and(|known| class.is(known)) {
        return Ok(Library::Numpy);
    }
    let module = class.getattr("__module__")?;
    let Ok(module) = module.cast::<PyString>() else {
        return Ok(Library::Other);
    };
    let (module, name) = (module.to_cow()?, class.name()?);
    let name = name.to_cow()?;
    Ok(match (&*module, &*name) {
        ("torch", "Tensor") | ("torch.nn.parameter", "Parameter") => {
            Torch::get(py)?;
            Library::Torch
        }
        ("numpy", "ndarray") => {
            NDARRAY.get_or_init(py, || class.unbind());
            Library::Numpy
        }
        (module, "ndarray") if module == "cupy" || module.starts_with("cupy.") => Library::Cupy,
        (module, _) if matches!(module.split('.').next(), Some("jax" | "jaxlib")) => Library::Jax,
        _ => Library::Other,
    })
}

/// Address and whether it is read-only.
fn data_of(name: &'static str, interface: &Bound<'_, PyDict>) -> Result<(u64, bool)> {
    match interface.get_item("data")? {
        Some(data) if !data.is_none() => Ok(data.extract()?),
        _ => Err(Failure::Type(format!(
            "{name} does not say where its data is"
        ))),
    }
}

/// Numpy's interface, version 3: <https://numpy.org/doc/stable/reference/arrays.interface.html>.
fn array_interface(name: &'static str, object: &Bound<'_, PyAny>) -> Result<Described> {
    let interface = object.getattr("__array_interface__")?;
    let interface = interface.cast::<PyDict>().map_err(PyErr::from)?;
    // A subclass with a mask has values that do not count, of which its interface says nothing.
    if object.hasattr("mask")? {
        return Err(Failure::Type(format!(
            "{name} is a masked array, whose mask would be ignored; pass its data, and its mask as key_mask"
        )));
    }
    of_interface(name, object, interface, Device::Cpu)
}

/// CUDA's version 3: <https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html>.
fn cuda_array_interface(
    name: &'static str,
    object: &Bound<'_, PyAny>,
    for_use: Use,
) -> Result<Described> {
    let interface = object.getattr("__cuda_array_interface__")?;
    let interface = interface.cast::<PyDict>().map_err(PyErr::from)?;
    let (address, _) = data_of(name, interface)?;
    let device = crate::gpu::device_of_address(name, address)?;
    if let (Device::Cuda(ordinal), Some(stream)) = (device, interface.get_item("stream")?)
        && !stream.is_none()
    {
        let stream: u64 = stream.extract()?;
        crate::gpu::order_after(object.py(), ordinal, stream, for_use.stream)?;
    }
    of_interface(name, object, interface, device)
}

/// What both interfaces have in common.
fn of_interface(
    name: &'static str,
    object: &Bound<'_, PyAny>,
    interface: &Bound<'_, PyDict>,
    device: Device,
) -> Result<Described> {
    let item = |key: &str| -> Result<Option<Bound<'_, PyAny>>> {
        Ok(interface.get_item(key)?.filter(|item| !item.is_none()))
    };
    if item("mask")?.is_some() {
        return Err(Failure::Type(format!(
            "{name} has a mask in its array interface, which warptile does not read"
        )));
    }
    let missing = |key: &str| Failure::Type(format!("{name} has an array interface without {key}"));
    let (address, read_only) = data_of(name, interface)?;
    let shape: Vec<i64> = item("shape")?.ok_or_else(|| missing("shape"))?.extract()?;
    let typestr: String = item("typestr")?
        .ok_or_else(|| missing("typestr"))?
        .extract()?;
    let mut dtype = dtype_of_typestr(&typestr);
    // Numpy has no bfloat16 of its own; that of ml_dtypes is two bytes of nothing in particular.
    if let Dtype::Other(_) = dtype {
        let own = object.getattr("dtype").and_then(|own| own.getattr("name"));
        if let Ok(own) = own.and_then(|own| own.extract::<String>()) {
            dtype = match own.as_str() {
                "bfloat16" => Dtype::Bf16,
                _ => Dtype::Other(if typestr.starts_with('>') {
                    typestr
                } else {
                    own
                }),
            };
        }
    }
    let strides: Option<Vec<i64>> = item("strides")?.map(|item| item.extract()).transpose()?;
    let strides = in_elements(name, &shape, strides.as_deref(), &dtype)?;
    Described::new(
        name,
        device,
        address,
        dtype,
        &shape,
        strides.as_deref(),
        !read_only,
    )
}

fn dtype_of_typestr(typestr: &str) -> Dtype {
    let other = || Dtype::Other(typestr.to_owned());
    let mut letters = typestr.chars();
    let (Some(order), Some(kind)) = (letters.next(), letters.next()) else {
        return other();
    };
    let native = match order {
        '|' => true,
        '<' => cfg!(target_endian = "little"),
        '>' => cfg!(target_endian = "big"),
        _ => false,
    };
    let bytes = letters.as_str().parse().ok();
    bytes
        .filter(|_| native)
        .and_then(|bytes| Dtype::of_kind(kind, bytes))
        .unwrap_or_else(other)
}

/// Strides in elements from those in bytes.
fn in_elements(
    name: &'static str,
    shape: &[i64],
    bytes: Option<&[i64]>,
    dtype: &Dtype,
) -> Result<Option<Vec<i64>>> {
    let Some(bytes) = bytes else { return Ok(None) };
    let size = dtype.size() as i64;
    if size == 0 {
        // Rejected for its type when it is used.
        return Ok(None);
    }
    if bytes.len() != shape.len() {
        return Err(Failure::Invalid(format!(
            "{name} has {} dimensions and {} strides",
            shape.len(),
            bytes.len()
        )));
    }
    let mut strides = Vec::with_capacity(bytes.len());
    for (dimension, (&stride, &extent)) in bytes.iter().zip(shape).enumerate() {
        if stride % size != 0 && extent > 1 {
            return Err(Failure::Invalid(format!(
                "{name} has a stride of {stride} bytes in dimension {dimension}, which is not a multiple of its elements' {size}"
            )));
        }
        strides.push(stride / size);
    }
    Ok(Some(strides))
}

fn of_buffer(name: &'static str, buffer: &PyUntypedBuffer) -> Result<Described> {
    if buffer.suboffsets().is_some() {
        return Err(Failure::Invalid(format!(
            "{name} is a buffer of pointers, which warptile does not read"
        )));
    }
    let format = buffer.format().to_string_lossy();
    let kind = match format.trim_start_matches([
        '@',
        '=',
        if cfg!(target_endian = "little") {
            '<'
        } else {
            '>'
        },
    ]) {
        "e" | "f" => Some('f'),
        "i" | "l" | "q" => Some('i'),
        "I" | "L" | "B" => Some('u'),
        "?" => Some('b'),
        _ => None,
    };
    let dtype = kind
        .and_then(|kind| Dtype::of_kind(kind, buffer.item_size()))
        .unwrap_or_else(|| Dtype::Other(format!("{format:?} of the buffer protocol")));
    let shape: Vec<i64> = buffer.shape().iter().map(|&extent| extent as i64).collect();
    let bytes: Vec<i64> = buffer.strides().iter().map(|&step| step as i64).collect();
    let strides = in_elements(name, &shape, Some(&bytes), &dtype)?;
    Described::new(
        name,
        Device::Cpu,
        buffer.buf_ptr() as u64,
        dtype,
        &shape,
        strides.as_deref(),
        !buffer.readonly(),
    )
}

/// The numbers of a tuple, for shapes and strides.
pub(crate) fn numbers(object: &Bound<'_, PyAny>) -> Result<([i64; MAX_RANK], usize)> {
    let tuple = object.cast::<PyTuple>().map_err(PyErr::from)?;
    let mut list = [0; MAX_RANK];
    let rank = tuple.len();
    for (to, item) in list.iter_mut().zip(tuple.iter()) {
        *to = item.extract()?;
    }
    Ok((list, rank))
}
