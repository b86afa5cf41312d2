//! Errors as Python exceptions.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use warptile::Error;
use warptile::driver::DriverError;
use warptile::kernels::Operations;
use warptile::spec::{Invalid, Operand};

/// The failure of a call: an exception of this package, or one that Python or another library raised.
#[derive(Debug)]
pub(crate) enum Failure {
    /// From the attention crate.
    Warptile(Error),
    /// A bad value: `warptile.InvalidInput`.
    Invalid(String),
    /// A bad type: `warptile.InvalidType`.
    Type(String),
    /// What a library's tensors can do and warptile does not: `warptile.Unsupported`.
    Unsupported(String),
    /// A device that cannot be used: `warptile.DeviceError`.
    Device(String),
    /// A tensor of torch that requires a gradient, which the function itself does not compute.
    Gradient(&'static str),
    /// A tensor whose operations torch records or transforms, which only operators of torch take part in.
    Traced(&'static str),
    /// Raised by somebody else.
    Python(PyErr),
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Warptile(error)
    }
}

impl From<Invalid> for Failure {
    fn from(error: Invalid) -> Self {
        Error::from(error).into()
    }
}

impl From<DriverError> for Failure {
    fn from(error: DriverError) -> Self {
        Failure::Warptile(error.into())
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Failure::Python(error)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        let (class, text) = match failure {
            Failure::Python(error) => return error,
            Failure::Invalid(text) => ("InvalidInput", text),
            Failure::Type(text) => ("InvalidType", text),
            Failure::Gradient(name) => (
                "InvalidInput",
                format!(
                    "{name} requires a gradient, which this function does not compute; pass {name}.detach(), call it under torch.no_grad(), or use warptile.attention"
                ),
            ),
            Failure::Traced(name) => (
                "Unsupported",
                format!(
                    "{name} is traced or transformed by torch (torch.jit.trace, torch.export, fake tensors, torch.func); of this package's functions only attention supports that, and those that call it"
                ),
            ),
            Failure::Unsupported(text) => ("Unsupported", text),
            Failure::Device(text) => ("DeviceError", text),
            Failure::Warptile(error) => (class_of(&error), Error::with_causes(&error)),
        };
        Python::attach(|py| match exception(py, class) {
            Ok(class) => PyErr::from_type(class, text),
            Err(error) => error,
        })
    }
}

/// The exception class of this name in `warptile._errors`.
fn exception<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyType>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || {
        Ok::<_, PyErr>(py.import("warptile._errors")?.unbind())
    })?;
    Ok(module.bind(py).getattr(name)?.cast_into()?)
}

fn class_of(error: &Error) -> &'static str {
    match error {
        Error::Driver(error) if error.is_out_of_memory() => "OutOfMemory",
        Error::Invalid(Invalid::Allocation { .. }) => "OutOfMemory",
        Error::Driver(_) | Error::Image(_) => "DeviceError",
        Error::Invalid(Invalid::ElementMismatch { .. }) => "InvalidType",
        Error::NoKernel { .. } | Error::NoImages { .. } => "NoKernel",
        _ => "InvalidInput",
    }
}

/// The name of an operand's argument, if it has one.
pub(crate) fn python_name(operand: Operand, operations: Operations) -> Option<&'static str> {
    match (operand, operations) {
        (Operand::KeyLengths, Operations::APPEND) => Some("cache_seqlens"),
        _ => operand.python_name(),
    }
}

/// The names that the arguments of an operation have for its caller.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Names {
    pub(crate) operations: Operations,
    /// Names of `warptile.attention`, each with the one that the caller's function has for it.
    others: [Renamed; 2],
}

type Renamed = &'static [(&'static str, &'static str)];

/// The functions of `warptile.flash_attn` with the names of their arguments.
const FUNCTIONS: [(&str, Renamed); 7] = [
    ("flash_attn_func", &[]),
    (
        "flash_attn_qkvpacked_func",
        &[("q", "qkv"), ("k", "qkv"), ("v", "qkv")],
    ),
    ("flash_attn_kvpacked_func", &[("k", "kv"), ("v", "kv")]),
    ("flash_attn_varlen_func", &[("seqused_k", "cu_seqlens_k")]),
    (
        "flash_attn_varlen_qkvpacked_func",
        &[
            ("q", "qkv"),
            ("k", "qkv"),
            ("v", "qkv"),
            ("cu_seqlens_q", "cu_seqlens"),
            ("cu_seqlens_k", "cu_seqlens"),
            ("max_seqlen_q", "max_seqlen"),
            ("max_seqlen_k", "max_seqlen"),
        ],
    ),
    (
        "flash_attn_varlen_kvpacked_func",
        &[("k", "kv"), ("v", "kv")],
    ),
    (
        "flash_attn_with_kvcache",
        &[
            ("k", "k_cache"),
            ("v", "v_cache"),
            ("seqused_k", "cache_seqlens"),
        ],
    ),
];

/// The names that all of them have.
const OF_ALL: Renamed = &[
    ("scale", "softmax_scale"),
    ("window", "window_size"),
    OF_ATTENTION[0],
];

/// The names of `warptile.attention` that differ from those in Rust.
const OF_ATTENTION: Renamed = &[("dropout", "dropout_p")];

impl Names {
    /// Those of `warptile.attention`.
    pub(crate) const ATTENTION: Names = Names {
        operations: Operations::FORWARD,
        others: [&[], OF_ATTENTION],
    };
    /// Those of a cache write.
    pub(crate) const WRITE: Names = Names {
        operations: Operations::APPEND,
        others: [&[], &[]],
    };

    /// Those of a function of `warptile.flash_attn`, if there is one of this name.
    pub(crate) fn of_function(name: &str) -> Option<Names> {
        let (_, others) = FUNCTIONS.into_iter().find(|(known, _)| *known == name)?;
        Some(Names {
            others: [others, OF_ALL],
            ..Names::ATTENTION
        })
    }

    /// The name of an argument that is called `name` by `warptile.attention`.
    pub(crate) fn of(self, name: &'static str) -> &'static str {
        let found = { self.others.into_iter().flatten() }.find(|(known, _)| *known == name);
        found.map_or(name, |(_, other)| other)
    }

    /// The name of an operand.
    pub(crate) fn operand(self, operand: Operand) -> &'static str {
        self.of(python_name(operand, self.operations).unwrap_or(operand.name()))
    }

    /// A failure with these names. Those of operands that no argument has stay.
    pub(crate) fn fail(self, failure: Failure) -> Failure {
        match failure {
            Failure::Warptile(mut error) => {
                error.rename(|name| {
                    let named = |operand: &Operand| operand.name() == name;
                    match Operand::of(self.operations).find(named) {
                        Some(operand) => Some(self.operand(operand)),
                        None => ["scale", "window", "dropout"]
                            .into_iter()
                            .find(|known| *known == name)
                            .map(|name| self.of(name)),
                    }
                });
                Failure::Warptile(error)
            }
            other => other,
        }
    }
}
