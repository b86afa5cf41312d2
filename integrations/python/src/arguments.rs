//! The arguments that Python's functions take, read: options, and arrays that must be on one device.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use warptile::kernels::Excerpt;
use warptile::{Align, Layout, Mask, Quantization, QuantizedType, TableLayout};

use crate::array::{Array, Described, Device, Dtype, Gradients, Library, Use, device_of};
use crate::cpu;
use crate::errors::{Failure, Result};
use crate::torch::Torch;

/// The arguments of `attention` beside q, k and v.
#[derive(Default)]
pub(crate) struct Options<'py> {
    pub(crate) out: Option<Bound<'py, PyAny>>,
    pub(crate) lse: Option<Bound<'py, PyAny>>,
    pub(crate) return_lse: bool,
    pub(crate) causal: Option<Bound<'py, PyAny>>,
    pub(crate) window: Option<(Option<i64>, Option<i64>)>,
    pub(crate) scale: Option<f32>,
    pub(crate) softcap: Option<f32>,
    pub(crate) alibi_slopes: Option<Bound<'py, PyAny>>,
    pub(crate) sinks: Option<Bound<'py, PyAny>>,
    pub(crate) bias: Option<Bound<'py, PyAny>>,
    pub(crate) key_mask: Option<Bound<'py, PyAny>>,
    pub(crate) layout: Option<String>,
    pub(crate) cu_seqlens_q: Option<Bound<'py, PyAny>>,
    pub(crate) cu_seqlens_k: Option<Bound<'py, PyAny>>,
    pub(crate) seqused_q: Option<Bound<'py, PyAny>>,
    pub(crate) seqused_k: Option<Bound<'py, PyAny>>,
    pub(crate) max_seqlen_q: Option<usize>,
    pub(crate) max_seqlen_k: Option<usize>,
    pub(crate) block_table: Option<Bound<'py, PyAny>>,
    pub(crate) k_descale: Option<Bound<'py, PyAny>>,
    pub(crate) v_descale: Option<Bound<'py, PyAny>>,
    pub(crate) kernel: Option<String>,
    pub(crate) stream: Option<u64>,
}

impl<'py> Options<'py> {
    /// From keyword arguments of the same names.
    pub(crate) fn of(function: &str, arguments: Option<&Bound<'py, PyDict>>) -> Result<Self> {
        let mut options = Options::default();
        for (name, value) in arguments.into_iter().flatten() {
            if value.is_none() {
                continue;
            }
            let name: String = name.extract()?;
            match name.as_str() {
                "out" => options.out = Some(value),
                "lse" => options.lse = Some(value),
                "return_lse" => options.return_lse = value.extract()?,
                "causal" => options.causal = Some(value),
                "window" => options.window = Some(value.extract()?),
                "scale" => options.scale = Some(value.extract()?),
                "softcap" => options.softcap = Some(value.extract()?),
                "alibi_slopes" => options.alibi_slopes = Some(value),
                "sinks" => options.sinks = Some(value),
                "bias" => options.bias = Some(value),
                "key_mask" => options.key_mask = Some(value),
                "layout" => options.layout = Some(value.extract()?),
                "cu_seqlens_q" => options.cu_seqlens_q = Some(value),
                "cu_seqlens_k" => options.cu_seqlens_k = Some(value),
                "seqused_q" => options.seqused_q = Some(value),
                "seqused_k" => options.seqused_k = Some(value),
                "max_seqlen_q" => options.max_seqlen_q = Some(value.extract()?),
                "max_seqlen_k" => options.max_seqlen_k = Some(value.extract()?),
                "block_table" => options.block_table = Some(value),
                "k_descale" => options.k_descale = Some(value),
                "v_descale" => options.v_descale = Some(value),
                "kernel" => options.kernel = Some(value.extract()?),
                "stream" => options.stream = Some(value.extract()?),
                _ => {
                    return Err(pyo3::exceptions::PyTypeError::new_err(format!(
                        "{function}() got an unexpected keyword argument '{name}'"
                    ))
                    .into());
                }
            }
        }
        Ok(options)
    }

    /// Which keys a query sees, by `causal` and `window`.
    pub(crate) fn mask(&self) -> Result<Mask> {
        let causal = match &self.causal {
            None => None,
            Some(value) => match value.cast::<PyString>() {
                Err(_) => value.is_truthy()?.then_some(Align::BottomRight),
                Ok(text) => match &*text.to_cow()? {
                    "top-left" => Some(Align::TopLeft),
                    "bottom-right" => Some(Align::BottomRight),
                    other => {
                        return Err(Failure::Invalid(format!(
                            "causal is {:?}, but must be True, False, \"bottom-right\" (which True means) or \"top-left\"",
                            Excerpt::new(other)
                        )));
                    }
                },
            },
        };
        let side = |keys: Option<i64>| -> Result<Option<u32>> {
            match keys {
                None | Some(-1) => Ok(None),
                Some(keys) => u32::try_from(keys).map(Some).map_err(|_| {
                    Failure::Invalid(format!(
                        "window has a side of {keys} keys; a side is a number of keys, or None or -1 for no limit"
                    ))
                }),
            }
        };
        let (left, right) = self.window.unwrap_or_default();
        let (left, right) = (side(left)?, side(right)?);
        match (causal, left, right) {
            (None, None, None) => Ok(Mask::none()),
            (Some(align), None, None) => Ok(match align {
                Align::TopLeft => Mask::Causal { align },
                _ => Mask::causal(),
            }),
            (Some(Align::TopLeft), ..) => Err(Failure::Invalid(
                "window counts from the bottom-right diagonal, so it cannot be combined with causal=\"top-left\""
                    .to_owned(),
            )),
            (Some(_), left, _) => Ok(Mask::window(left, 0)),
            (None, left, right) => Ok(Mask::window(left, right)),
        }
    }
}

/// Numbers that a call on the CPU reads itself.
#[derive(Debug)]
enum Numbers {
    OnHost(Vec<i32>),
    OnDevice(Described),
}

/// A list of lengths or pages: on the host by its values, on a GPU by its place.
pub(crate) struct Lengths<'py> {
    numbers: Numbers,
    count: usize,
    table: Option<TableLayout>,
    _array: Option<Array<'py>>,
}

impl Lengths<'_> {
    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// Layout of a table; an empty one of a list.
    pub(crate) fn table(&self) -> TableLayout {
        self.table.unwrap_or(TableLayout::from([0, 0]))
    }

    pub(crate) fn on_host(&self) -> Option<&[i32]> {
        match &self.numbers {
            Numbers::OnHost(numbers) => Some(numbers),
            Numbers::OnDevice(_) => None,
        }
    }

    pub(crate) fn address(&self) -> u64 {
        match &self.numbers {
            Numbers::OnHost(_) => 0,
            Numbers::OnDevice(described) => described.address,
        }
    }
}

/// What quantized keys or values are multiplied by.
pub(crate) struct Scale<'py> {
    count: usize,
    /// On the CPU.
    values: Vec<f32>,
    /// Unless it is a number or a list.
    array: Option<Array<'py>>,
}

/// The type of quantized keys and values, and the scales of both.
pub(crate) struct Scales<'py> {
    element: QuantizedType,
    of: [Scale<'py>; 2],
}

impl Scales<'_> {
    pub(crate) const fn quantization(&self) -> Quantization {
        let [k, v] = &self.of;
        Quantization::new(self.element).scales(k.count, v.count)
    }

    /// Checks the shapes of both against a call with this number of sequences and key/value heads.
    pub(crate) fn check(&self, sequences: usize, kv_heads: usize) -> Result<()> {
        self.of
            .iter()
            .filter_map(|scale| scale.array.as_ref())
            .try_for_each(|array| array.is.check_scales(sequences, kv_heads))
    }

    /// Of keys and of values on the CPU.
    pub(crate) fn values(&self) -> [&[f32]; 2] {
        self.of.each_ref().map(|scale| &scale.values[..])
    }

    /// The same on a GPU.
    pub(crate) fn addresses(&self) -> [u64; 2] {
        let address = |scale: &Scale<'_>| scale.array.as_ref().map_or(0, |array| array.is.address);
        self.of.each_ref().map(address)
    }
}

/// Reads arrays that must all be on one device.
#[derive(Clone, Copy)]
pub(crate) struct Reader {
    /// The argument whose device it is.
    first: &'static str,
    device: Device,
    for_use: Use,
}

impl Reader {
    /// For the device of the argument `first`, and the current stream of its library unless another is given.
    pub(crate) fn of(
        first: &'static str,
        object: &Bound<'_, PyAny>,
        stream: Option<u64>,
        gradients: Gradients,
    ) -> Result<Self> {
        let py = object.py();
        let (library, device) = device_of(first, object)?;
        let stream = match (stream, device, library) {
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
        })
    }

    pub(crate) const fn device(&self) -> Device {
        self.device
    }

    pub(crate) const fn stream(&self) -> u64 {
        self.for_use.stream
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

    pub(crate) fn optional<'py>(
        &self,
        name: &'static str,
        object: Option<&Bound<'py, PyAny>>,
    ) -> Result<Option<Array<'py>>> {
        object.map(|object| self.array(name, object)).transpose()
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

    pub(crate) fn output<'py>(
        &self,
        name: &'static str,
        object: Option<&Bound<'py, PyAny>>,
    ) -> Result<Option<Array<'py>>> {
        object.map(|object| self.written(name, object)).transpose()
    }

    /// Floats: on the CPU by value, on a GPU by place.
    #[expect(clippy::type_complexity, reason = "one of the two, as the device asks")]
    pub(crate) fn floats<'py>(
        &self,
        name: &'static str,
        object: Option<&Bound<'py, PyAny>>,
    ) -> Result<(Option<Array<'py>>, Option<Vec<f32>>, Vec<usize>)> {
        let Some(object) = object else {
            return Ok((None, None, Vec::new()));
        };
        if is_list(object) {
            self.expect_device(name, Device::Cpu)?;
            let values: Vec<f32> = object.extract()?;
            let shape = vec![values.len()];
            return Ok((None, Some(values), shape));
        }
        let array = self.array(name, object)?;
        array.is.expect_dtype(&[Dtype::F32], "float32")?;
        let shape = array.is.shape().to_vec();
        let rule = "it must have one dimension [heads], or for slopes two [batch, heads]";
        let count = array.is.list(shape.len().clamp(1, 2), rule)?;
        if self.device != Device::Cpu {
            return Ok((Some(array), None, shape));
        }
        let layout = Layout::packed(1, 1, count);
        // SAFETY: the library says that the elements are there, and it is asked to change none during a call.
        let values = unsafe { cpu::copied::<f32>(&array.is, &layout) }?;
        Ok((None, Some(values), shape))
    }

    /// The scales of keys and values, which are there if these are quantized.
    pub(crate) fn scales<'py>(
        &self,
        [k, v]: [&Array<'_>; 2],
        [k_scale, v_scale]: [Option<&Bound<'py, PyAny>>; 2],
    ) -> Result<Option<Scales<'py>>> {
        let (k, v) = (&k.is, &v.is);
        let given = k_scale.is_some() || v_scale.is_some();
        let quantized = k.quantized(given);
        if v.quantized(given) != quantized {
            return Err(v.wrong_dtype(&format!("{}, as {} has", k.dtype, k.name)));
        }
        match (quantized, k_scale, v_scale) {
            (None, None, None) => Ok(None),
            (Some(element), Some(k), Some(v)) => Ok(Some(Scales {
                element,
                of: [self.scale("k_descale", k)?, self.scale("v_descale", v)?],
            })),
            (Some(element), ..) => Err(Failure::Invalid(format!(
                "{} is missing, but {} and {} are in {}",
                if k_scale.is_none() {
                    "k_descale"
                } else {
                    "v_descale"
                },
                k.name,
                v.name,
                Dtype::Quantized(element)
            ))),
            _ => Err(Failure::Invalid(format!(
                "{} is given, but {} has elements of type {}; only those of float8_e4m3fn, or their bits as uint8, have scales",
                if k_scale.is_some() {
                    "k_descale"
                } else {
                    "v_descale"
                },
                k.name,
                k.dtype
            ))),
        }
    }

    fn scale<'py>(&self, name: &'static str, object: &Bound<'py, PyAny>) -> Result<Scale<'py>> {
        let number = object.is_instance_of::<PyFloat>() || object.is_instance_of::<PyInt>();
        if number || is_list(object) {
            self.expect_device(name, Device::Cpu)?;
            let values: Vec<f32> = match number {
                true => vec![object.extract()?],
                false => object.extract()?,
            };
            return Ok(Scale {
                count: values.len(),
                values,
                array: None,
            });
        }
        let array = self.array(name, object)?;
        array.is.expect_dtype(&[Dtype::F32], "float32")?;
        let count = array.is.scales()?;
        let values = match self.device {
            // SAFETY: as in `floats`.
            Device::Cpu => unsafe { cpu::copied::<f32>(&array.is, &Layout::packed(1, 1, count)) }?,
            Device::Cuda(_) => Vec::new(),
        };
        Ok(Scale {
            count,
            values,
            array: Some(array),
        })
    }

    /// A list of lengths, or a table of pages.
    pub(crate) fn lengths<'py>(
        &self,
        name: &'static str,
        object: Option<&Bound<'py, PyAny>>,
        is_table: bool,
    ) -> Result<Option<Lengths<'py>>> {
        let Some(object) = object else {
            return Ok(None);
        };
        if is_list(object) && !is_table {
            self.expect_device(name, Device::Cpu)?;
            let values: Vec<i64> = object.extract()?;
            return Ok(Some(Lengths {
                count: values.len(),
                numbers: Numbers::OnHost(narrowed(name, values)?),
                table: None,
                _array: None,
            }));
        }
        let array = self.array(name, object)?;
        let (count, table) = match is_table {
            false => (
                array
                    .is
                    .list(1, "it must have the one dimension [sequences]")?,
                None,
            ),
            true => {
                let (shape, row_stride) = array.is.table()?;
                (0, Some(TableLayout::new(shape, row_stride)))
            }
        };
        let numbers = match self.device {
            Device::Cpu => {
                array.is.expect_dtype(
                    &[Dtype::I32, Dtype::U32, Dtype::I64],
                    "int32, uint32 or int64",
                )?;
                let layout = match table {
                    Some(TableLayout {
                        shape: [rows, columns],
                        row_stride,
                    }) => Layout::new([1, rows, 1, columns], [0, row_stride, 0, 1]),
                    None => Layout::packed(1, 1, count),
                };
                // SAFETY: as in `floats`.
                let values: Vec<i64> = unsafe {
                    match array.is.dtype {
                        Dtype::I32 => widened(cpu::copied::<i32>(&array.is, &layout)?),
                        Dtype::U32 => widened(cpu::copied::<u32>(&array.is, &layout)?),
                        _ => cpu::copied::<i64>(&array.is, &layout)?,
                    }
                };
                Numbers::OnHost(narrowed(name, values)?)
            }
            Device::Cuda(_) => {
                array
                    .is
                    .expect_dtype(&[Dtype::I32, Dtype::U32], "int32 or uint32 on a GPU")?;
                Numbers::OnDevice(array.is.clone())
            }
        };
        Ok(Some(Lengths {
            numbers,
            count,
            table,
            _array: Some(array),
        }))
    }
}

fn is_list(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>()
}

fn widened<T: Into<i64>>(values: Vec<T>) -> Vec<i64> {
    values.into_iter().map(Into::into).collect()
}

fn narrowed(name: &str, values: Vec<i64>) -> Result<Vec<i32>> {
    let narrow = |(index, value): (usize, i64)| {
        i32::try_from(value).map_err(|_| {
            Failure::Invalid(format!(
                "{name}[{index}] is {value}, which does not fit 32 bits"
            ))
        })
    };
    values.into_iter().enumerate().map(narrow).collect()
}
