//! Torch tensors by their attributes, which takes a fraction of the time that its DLPack does. Nothing here links to torch or imports it: a
//! tensor that was passed shows that it is there.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

use crate::array::{Array, Described, Device, Dtype, Gradients, MAX_RANK, numbers};
use crate::dlpack::Exchange;
use crate::errors::{Failure, Result};

/// The parts of torch in use, looked up once.
pub(crate) struct Torch {
    tensor: Py<PyType>,
    parameter: Py<PyType>,
    dtypes: Vec<(Py<PyAny>, Dtype)>,
    /// Older versions of torch do not have it.
    exchange: Option<Exchange>,
    is_grad_enabled: Py<PyAny>,
    /// Gives the state of `torch.jit.trace`, or None; stand-ins for torch do not have it.
    tracing_state: Option<Py<PyAny>>,
    /// Gives the mode of `make_fx` for its key, or None; older versions of torch do not have it.
    recording_mode: Option<(Py<PyAny>, Py<PyAny>)>,
    /// The module of forward-mode differentiation; stand-ins for torch do not have it.
    forward_ad: Option<Py<PyModule>>,
    empty_like: Py<PyAny>,
    empty_strided: Py<PyAny>,
    quick: Quick,
    /// Gives the raw handle of a device's current stream; older versions of torch do not have it.
    raw_stream: Option<Py<PyAny>>,
}

/// Functions by which the code of torch's compiler makes tensors, from a shape, strides and an element type: they take half the time of
/// `empty_strided`. Versions of torch may lack them.
struct Quick {
    on_cpu: Option<Py<PyAny>>,
    /// On the current GPU, which `current` has the number of.
    on_gpu: Option<Py<PyAny>>,
    current: Option<Py<PyAny>>,
}

static TORCH: PyOnceLock<Torch> = PyOnceLock::new();

impl Torch {
    /// Torch, after a tensor of it was seen.
    pub(crate) fn get(py: Python<'_>) -> Result<&Torch> {
        Ok(TORCH.get_or_try_init(py, || Torch::find(py))?)
    }

    fn find(py: Python<'_>) -> PyResult<Torch> {
        let torch = py.import("torch")?;
        let of = |name: &str| -> PyResult<Py<PyAny>> { Ok(torch.getattr(name)?.unbind()) };
        let class = |object: Bound<'_, PyAny>| -> PyResult<Py<PyType>> {
            Ok(object.cast_into::<PyType>()?.unbind())
        };
        let internals = torch.getattr("_C");
        let of_internals = |path: &[&str]| -> Option<Py<PyAny>> {
            let start = internals.as_ref().ok()?.clone();
            let found = path
                .iter()
                .try_fold(start, |from, name| from.getattr(*name));
            found.ok().map(Bound::unbind)
        };
        let known = [
            Dtype::F16,
            Dtype::Bf16,
            Dtype::F32,
            Dtype::I32,
            Dtype::U32,
            Dtype::I64,
            Dtype::Bool,
            Dtype::U8,
            Dtype::Other("float64".to_owned()),
        ];
        // Older versions of torch do not have all of them.
        let object = |dtype: Dtype| Some((of(&dtype.to_string()).ok()?, dtype));
        let dtypes = { known.into_iter() }
            .chain(Dtype::scaled())
            .filter_map(object);
        let tensor = torch.getattr("Tensor")?;
        Ok(Torch {
            exchange: Exchange::of(&tensor),
            tensor: class(tensor)?,
            parameter: class(torch.getattr("nn")?.getattr("Parameter")?)?,
            dtypes: dtypes.collect(),
            is_grad_enabled: of("is_grad_enabled")?,
            tracing_state: of_internals(&["_get_tracing_state"]),
            recording_mode: of_internals(&["_get_dispatch_mode"])
                .zip(of_internals(&["_TorchDispatchModeKey", "PROXY"])),
            forward_ad: py
                .import("torch.autograd.forward_ad")
                .ok()
                .map(Bound::unbind),
            empty_like: of("empty_like")?,
            empty_strided: of("empty_strided")?,
            raw_stream: of_internals(&["_cuda_getCurrentRawStream"]),
            quick: Quick {
                on_cpu: of_internals(&["_dynamo", "guards", "_empty_strided_cpu"]),
                on_gpu: of_internals(&["_dynamo", "guards", "_empty_strided_cuda"]),
                current: of_internals(&["_cuda_getDevice"]),
            },
        })
    }

    /// True for the class of tensors and that of parameters; false as long as none was seen.
    pub(crate) fn is_tensor_class(py: Python<'_>, class: &Bound<'_, PyType>) -> bool {
        TORCH
            .get(py)
            .is_some_and(|torch| class.is(&torch.tensor) || class.is(&torch.parameter))
    }

    /// For a class that inherits from torch's tensors, true if operators take it for one of these, false if it says itself what they do.
    pub(crate) fn of_subclass(class: &Bound<'_, PyType>) -> Result<Option<bool>> {
        let py = class.py();
        let dispatch = intern!(py, "__torch_dispatch__");
        for base in class.mro().iter().skip(1) {
            let module = base.getattr(intern!(py, "__module__"))?;
            let name = base.getattr(intern!(py, "__name__"))?;
            if name.eq("Tensor")? && module.eq("torch")? {
                Torch::get(py)?;
                return Ok(Some(class.getattr(dispatch)?.is(&base.getattr(dispatch)?)));
            }
        }
        Ok(None)
    }

    /// True if torch records the operators that are called, by `torch.jit.trace` or `make_fx`.
    pub(crate) fn is_tracing(&self, py: Python<'_>) -> Result<bool> {
        if let Some(state) = &self.tracing_state
            && !state.bind(py).call0()?.is_none()
        {
            return Ok(true);
        }
        match &self.recording_mode {
            Some((mode, key)) => Ok(!mode.bind(py).call1((key,))?.is_none()),
            None => Ok(false),
        }
    }

    pub(crate) fn device(&self, name: &'static str, tensor: &Bound<'_, PyAny>) -> Result<Device> {
        match self.quickly(name, tensor) {
            Some(described) => Ok(described.device),
            None => Self::device_by_attributes(name, tensor),
        }
    }

    fn device_by_attributes(name: &'static str, tensor: &Bound<'_, PyAny>) -> Result<Device> {
        let py = tensor.py();
        if tensor.getattr(intern!(py, "is_cuda"))?.is_truthy()? {
            let ordinal = tensor.call_method0(intern!(py, "get_device"))?.extract()?;
            return Ok(Device::Cuda(ordinal));
        }
        if tensor.getattr(intern!(py, "is_cpu"))?.is_truthy()? {
            return Ok(Device::Cpu);
        }
        Err(Failure::Invalid(format!(
            "{name} is on {}; tensors must be on the CPU or on an NVIDIA GPU",
            tensor.getattr("device")?
        )))
    }

    /// By DLPack's C function. None without one, and for tensors that warptile cannot use: the attributes tell why.
    pub(crate) fn quickly(
        &self,
        name: &'static str,
        tensor: &Bound<'_, PyAny>,
    ) -> Option<Described> {
        self.exchange.as_ref()?.describe(name, tensor)
    }

    fn by_attributes(
        &self,
        name: &'static str,
        device: Device,
        tensor: &Bound<'_, PyAny>,
    ) -> Result<Described> {
        let py = tensor.py();
        let dtype = tensor.getattr(intern!(py, "dtype"))?;
        let known = self.dtypes.iter().find(|(object, _)| dtype.is(object));
        let dtype = match known {
            Some((_, known)) => known.clone(),
            None => Dtype::Other(dtype.to_string()),
        };
        let (shape, rank) = numbers(&tensor.getattr(intern!(py, "shape"))?)?;
        let (strides, _) = numbers(&tensor.call_method0(intern!(py, "stride"))?)?;
        // Tensors that torch transforms have none.
        let address = tensor.call_method0(intern!(py, "data_ptr"));
        let address = address.map_err(|_| Failure::Traced(name))?.extract()?;
        if rank > MAX_RANK {
            return Err(Failure::Invalid(format!(
                "{name} has {rank} dimensions; no argument has more than {MAX_RANK}"
            )));
        }
        let (shape, strides) = (&shape[..rank], &strides[..rank]);
        Described::new(name, device, address, dtype, shape, Some(strides), true)
    }

    pub(crate) fn describe(
        &self,
        name: &'static str,
        tensor: &Bound<'_, PyAny>,
        gradients: Gradients,
    ) -> Result<Described> {
        let py = tensor.py();
        let described = self.quickly(name, tensor);
        let device = match &described {
            Some(described) => described.device,
            None => Self::device_by_attributes(name, tensor)?,
        };
        if gradients == Gradients::Refused
            && tensor.getattr(intern!(py, "requires_grad"))?.is_truthy()?
            && self.is_grad_enabled.bind(py).call0()?.is_truthy()?
        {
            return Err(Failure::Gradient(name));
        }
        if self.has_tangent(tensor)? {
            return Err(Failure::Unsupported(format!(
                "{name} has a tangent; warptile computes no forward-mode derivatives"
            )));
        }
        // Views whose elements are to be negated when they are read: they are parts of complex numbers, which bfloat16 does not have.
        let may_be_negative = described.as_ref().is_none_or(|is| is.dtype != Dtype::Bf16);
        if may_be_negative && tensor.call_method0(intern!(py, "is_neg"))?.is_truthy()? {
            return Err(Failure::Invalid(format!(
                "{name} is a lazily negated view; pass {name}.resolve_neg()"
            )));
        }
        let described = match described {
            Some(described) => described,
            None => self.by_attributes(name, device, tensor)?,
        };
        // A storage may have been made smaller than a tensor that lies in it. On a GPU this is not asked: torch does not
        // either, and host time is what a call there costs.
        if device == Device::Cpu {
            let storage = tensor.call_method0(intern!(py, "untyped_storage"))?;
            let bytes: u64 = storage.call_method0(intern!(py, "nbytes"))?.extract()?;
            let start: u64 = storage.call_method0(intern!(py, "data_ptr"))?.extract()?;
            let needed = (described.reach() as u64).saturating_mul(described.dtype.size());
            let available = start
                .saturating_add(bytes)
                .saturating_sub(described.address);
            if needed > available {
                return Err(Failure::Invalid(format!(
                    "{name} reaches over {needed} bytes, but its storage has {available} from there on"
                )));
            }
        }
        Ok(described)
    }

    /// True for a dual tensor of forward-mode differentiation.
    fn has_tangent(&self, tensor: &Bound<'_, PyAny>) -> Result<bool> {
        let py = tensor.py();
        let Some(forward_ad) = &self.forward_ad else {
            return Ok(false);
        };
        let forward_ad = forward_ad.bind(py);
        let level: i64 = { forward_ad.getattr(intern!(py, "_current_level"))? }.extract()?;
        if level < 0 {
            return Ok(false);
        }
        let dual = forward_ad.call_method1(intern!(py, "unpack_dual"), (tensor,))?;
        Ok(!dual.getattr(intern!(py, "tangent"))?.is_none())
    }

    /// The raw handle of the current stream of a GPU.
    pub(crate) fn current_stream(&self, py: Python<'_>, ordinal: u32) -> Result<u64> {
        let handle = match &self.raw_stream {
            Some(raw_stream) => raw_stream.bind(py).call1((ordinal,))?,
            None => py
                .import("torch.cuda")?
                .call_method1("current_stream", (ordinal,))?
                .getattr("cuda_stream")?,
        };
        Ok(handle.extract()?)
    }

    /// An uninitialized tensor of the type, shape and storage order of `like`, without gaps.
    pub(crate) fn empty_like<'py>(&self, like: &Array<'py>) -> Result<Bound<'py, PyAny>> {
        if let Ok([batch, heads, rows, size]) = <[usize; 4]>::try_from(like.is.shape()) {
            let shape = [batch, heads, rows, size];
            let of_heads = [heads * rows * size, rows * size, size, 1];
            let of_rows = [heads * rows * size, size, heads * size, 1];
            let known = |strides: &&[usize; 4]| like.is.is_alike(&shape, &strides[..]);
            if let Some(strides) = [of_heads, of_rows].iter().find(known) {
                return self.empty(like, &shape, strides, None);
            }
        }
        Ok(self
            .empty_like
            .bind(like.object.py())
            .call1((&like.object,))?)
    }

    /// An uninitialized tensor on the device of `like`, of its type if no other is given.
    pub(crate) fn empty<'py>(
        &self,
        like: &Array<'py>,
        shape: &[usize],
        strides: &[usize],
        dtype: Option<Dtype>,
    ) -> Result<Bound<'py, PyAny>> {
        let (object, py) = (&like.object, like.object.py());
        let wanted = dtype.as_ref().unwrap_or(&like.is.dtype);
        let known = self.dtypes.iter().find(|(_, known)| known == wanted);
        let dtype = match known {
            Some((object, _)) => object.bind(py).clone(),
            None => object.getattr(intern!(py, "dtype"))?,
        };
        let arguments = (PyTuple::new(py, shape)?, PyTuple::new(py, strides)?);
        if let Some(make) = self.quick.on(py, like.is.device) {
            return Ok(make.call1((arguments.0, arguments.1, dtype))?);
        }
        let options = PyDict::new(py);
        options.set_item(intern!(py, "dtype"), dtype)?;
        options.set_item(
            intern!(py, "device"),
            object.getattr(intern!(py, "device"))?,
        )?;
        let empty_strided = self.empty_strided.bind(py);
        Ok(empty_strided.call(arguments, Some(&options))?)
    }
}

impl Quick {
    /// The function for a device, if there is one.
    fn on<'py>(&self, py: Python<'py>, device: Device) -> Option<&Bound<'py, PyAny>> {
        let make = match device {
            Device::Cpu => &self.on_cpu,
            Device::Cuda(ordinal) => {
                let current: u32 = self
                    .current
                    .as_ref()?
                    .bind(py)
                    .call0()
                    .ok()?
                    .extract()
                    .ok()?;
                if current != ordinal {
                    return None;
                }
                &self.on_gpu
            }
        };
        Some(make.as_ref()?.bind(py))
    }
}
