//! Documentation of operands for Python's `help`, from their table.

use std::ffi::{CStr, CString};

use pyo3::ffi;
use pyo3::prelude::*;
use warptile::Operand;
use warptile::kernels::{Count, Elements, Kind, Operations};

use crate::given::scaled_types;

/// The place of the operands in a function's signature.
const OPERANDS: &str = "**operands";

/// A function of the module, whose signature and documentation have all operands of attention.
pub(crate) fn with_operands<'py>(
    module: &Bound<'py, PyModule>,
    name: &'static CStr,
) -> PyResult<Bound<'py, PyAny>> {
    let py = module.py();
    let function = module.getattr(name.to_string_lossy().as_ref())?;
    let signature: String = function.getattr("__text_signature__")?.extract()?;
    let text: String = function.getattr("__doc__")?.extract()?;
    let (mut names, mut lines) = (Vec::new(), String::new());
    for operand in Operand::of(Operations::FORWARD) {
        if let Some(python) = operand.python_name()
            && ![Operand::Q, Operand::K, Operand::V].contains(&operand)
        {
            names.push(format!("{python}=None"));
            let about: Vec<&str> = operand.docs().iter().map(|line| line.trim()).collect();
            lines += &format!(
                "\n    {python}: {}\n        {}",
                about.join("\n        "),
                extents(operand)
            );
        }
    }
    let signature = signature.replace(OPERANDS, &names.join(", "));
    let text = text.replace("\n\nReturns:", &format!("{lines}\n\nReturns:"));
    let doc = format!("{}{signature}\n--\n\n{text}", name.to_string_lossy());
    let (doc, function) = (CString::new(doc)?, function.as_ptr());
    // SAFETY: `function` is a builtin function, whose code, flags and module these are. The definition and its strings are never freed.
    unsafe {
        let code = ffi::PyCFunction_GetFunction(function);
        let Some(code) = code else {
            return Err(PyErr::fetch(py));
        };
        let definition = ffi::PyMethodDef {
            ml_name: name.as_ptr(),
            ml_meth: ffi::PyMethodDefPointer { PyCFunction: code },
            ml_flags: ffi::PyCFunction_GetFlags(function),
            ml_doc: doc.into_raw(),
        };
        let made = ffi::PyCFunction_NewEx(
            Box::leak(Box::new(definition)),
            ffi::PyCFunction_GetSelf(function),
            module.name()?.as_ptr(),
        );
        Bound::from_owned_ptr_or_err(py, made)
    }
}

/// The extents and elements of an operand.
fn extents(operand: Operand) -> String {
    let shape = match operand.kind() {
        Kind::Scores => "any that broadcasts to `[batch, heads, queries, keys]`",
        Kind::List(Count::QueryHeads) => "`[heads]`",
        Kind::List(Count::Slopes) => "`[heads]` or `[batch, heads]`",
        Kind::List(Count::Scales) => {
            "none (a number), `[key/value heads]`, or one of these expanded to `[sequences, key/value heads]`"
        }
        Kind::List(Count::Rows) => "as said, contiguous",
        Kind::List(Count::Offsets) => {
            "`[sequences + 1]`; the tensor's is `[rows, heads, head size]`"
        }
        Kind::List(Count::Sequences) => "`[sequences]`",
        Kind::List(Count::Table) => {
            "`[sequences, pages]`; that of k and v is `[pages, rows of a page, heads, head size]`"
        }
        _ => "that of q with the head size of v; q's library makes it if it is not given",
    };
    let elements = match operand.elements() {
        Elements::F32 => "`float32`",
        Elements::I32 => "`int32` on a GPU, any integers on the CPU",
        Elements::U8 => "`bool` or `uint8`",
        _ => "those of q",
    };
    let keys = match operand.kind() {
        Kind::List(Count::Scales) => format!(
            "\n        Those of k and v: `{}` (of torch or ml_dtypes, or DLPack's), or the same bits as `uint8`.",
            scaled_types()
        ),
        _ => String::new(),
    };
    format!("Shape: {shape}. Elements: {elements}.{keys}")
}
