//! Errors as Python exceptions.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use warptile::driver::DriverError;
use warptile::kernels::Operations;
use warptile::{Error, Operand};

/// What a call can fail with: an exception of this package's, or one that Python or another library raised.
#[derive(Debug)]
pub(crate) enum Failure {
    /// From the attention crate.
    Warptile(Error),
    /// A bad value: `warptile.InvalidInput`.
    Invalid(String),
    /// A bad type: `warptile.InvalidType`.
    Type(String),
    /// A device that cannot be used: `warptile.DeviceError`.
    Device(String),
    /// Raised by somebody else.
    Python(PyErr),
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Warptile(error)
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
            Failure::Device(text) => ("DeviceError", text),
            Failure::Warptile(error) => (
                class_of(&error),
                with_chain(&renamed(error, Operations::FORWARD)),
            ),
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
        Error::Allocation { .. } => "OutOfMemory",
        Error::Driver(_) | Error::Image(_) => "DeviceError",
        Error::ElementMismatch { .. } => "InvalidType",
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

/// The error with the names that the arguments of an operation have in Python.
pub(crate) fn renamed(mut error: Error, operations: Operations) -> Error {
    let in_python = |name: &str| {
        let operand = Operand::of(operations).find(|operand| operand.name() == name)?;
        python_name(operand, operations)
    };
    if let Error::OutputOverlaps { other, .. } = &mut error
        && let Some(name) = in_python(other)
    {
        *other = name.to_owned();
    }
    if let Error::Lengths { argument, .. }
    | Error::Presence { argument, .. }
    | Error::Misaligned { argument, .. }
    | Error::Value { argument, .. }
    | Error::ScaleCount { argument, .. }
    | Error::OutputOverlaps { argument, .. }
    | Error::Mismatch { argument, .. } = &mut error
        && let Some(name) = in_python(argument)
    {
        *argument = name;
    }
    error
}

/// The message with those of the errors behind it that it does not already contain.
fn with_chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
