//! The native module of the Python package `warptile`: attention over the arrays of other libraries.
//!
//! The public package is in `python/warptile`; its stubs describe this module.

mod append;
mod arguments;
mod array;
mod attention;
mod backward;
mod cpu;
mod dlpack;
mod docs;
mod errors;
mod given;
mod gpu;
mod library;
mod merge;
mod torch;

use pyo3::prelude::*;

/// The module `warptile._native`.
#[pymodule(name = "_native")]
mod native {
    use pyo3::prelude::*;
    use pyo3::types::{PyDict, PyTuple};
    use warptile::ElementType;
    use warptile::spec::LseBase;

    use crate::append;
    use crate::arguments::Options;
    use crate::array::Gradients;
    use crate::attention::{Request, Results};
    use crate::backward;
    use crate::docs;
    use crate::errors::Failure;
    use crate::gpu;
    use crate::merge::{Pair, Request as MergeRequest};

    /// Attention: `softmax(scale * q kᵀ) v`, without ever storing the score matrix.
    ///
    /// Computed where the tensors are: on a GPU it is queued on the current stream and not waited for; on the CPU the result is there
    /// on return. Meanwhile the GIL is released, so no other thread may write the tensors.
    ///
    /// Tensors are those of torch, numpy, cupy or jax, or of any library with DLPack, the CUDA array interface, numpy's array
    /// interface or the buffer protocol. They have `float16`, `bfloat16` or `float32` elements, any strides whose last is 1, and a head
    /// size that is a multiple of 8, at most 512. Gradients flow through tensors of torch; `attention_backward` gives those of others.
    ///
    /// Args:
    ///     q: Queries, `[batch, length, heads, head size]`; see `layout` and `cu_seqlens_q`.
    ///     k: Keys. Their heads may be fewer than q's, if they divide them (GQA, MQA), and their length another.
    ///     v: Values, of the shape of k; their head size may differ.
    ///
    /// Returns:
    ///     The output, or with `return_lse` the output and the log-sum-exp.
    ///
    /// Raises:
    ///     warptile.InvalidInput: (a ValueError) A shape, device, stride or value breaks a rule; the message names the argument.
    ///     warptile.InvalidType: (a TypeError) An argument is not a tensor, or has the wrong element type.
    ///     warptile.NoKernel: (a ValueError) No kernel of the GPU can compute this.
    ///     warptile.DeviceError: (a RuntimeError) The driver is missing, too old, or reports an error.
    #[pyfunction]
    #[pyo3(signature = (q, k, v, **options))]
    fn attention<'py>(
        py: Python<'py>,
        q: Bound<'py, PyAny>,
        k: Bound<'py, PyAny>,
        v: Bound<'py, PyAny>,
        options: Option<Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let keywords = options.as_ref();
        let options = Options::of("attention", [&q, &k, &v], keywords)?;
        if options.draws()? {
            return { py.import("warptile._operators")?.getattr("with_dropout")? }
                .call((q, k, v), keywords);
        }
        match Request::new(&options, Gradients::Refused) {
            // Autograd needs the operator, and so does whatever records operators.
            Err(Failure::Gradient(_) | Failure::Traced(_)) => { py.import("warptile._operators")? }
                .getattr("attention")?
                .call((q, k, v), keywords),
            request => result(&options, request?.run(py)?),
        }
    }

    /// As `attention`, for tensors that may require a gradient, which the caller sees to: for operators below autograd.
    #[pyfunction]
    #[pyo3(signature = (q, k, v, **options))]
    fn attention_without_gradient<'py>(
        py: Python<'py>,
        q: Bound<'py, PyAny>,
        k: Bound<'py, PyAny>,
        v: Bound<'py, PyAny>,
        options: Option<Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let options = Options::of("attention_without_gradient", [&q, &k, &v], options.as_ref())?;
        result(
            &options,
            Request::new(&options, Gradients::Ignored)?.run(py)?,
        )
    }

    /// `attention_without_gradient` with the arguments of torch's `scaled_dot_product_attention` and an output like the queries. Returns
    /// None, and computes nothing, if anything about the arguments is unusual: the caller finds out what.
    #[pyfunction]
    fn attention_of_torch<'py>(
        q: Bound<'py, PyAny>,
        k: Bound<'py, PyAny>,
        v: Bound<'py, PyAny>,
        causal: bool,
        scale: Option<f32>,
        shares_heads: bool,
        return_lse: bool,
    ) -> PyResult<Option<Results<'py>>> {
        let py = q.py();
        let options = Options::of_torch([&q, &k, &v], causal, scale, return_lse);
        let request = Request::of_torch(&options, shares_heads);
        Ok(request.map(|request| request.run(py)).transpose()?)
    }

    /// The gradients of `attention`: from that of its output to those of q, k, v, the bias and the sinks.
    ///
    /// Computed where the tensors are, as `attention` is, and from the same arguments. The result is the same bits each time.
    ///
    /// Every option of `attention` counts but `lse`, `out` and `stream`. Keys and values in pages or in 8 bits and head sizes above 256
    /// have no gradient; ALiBi slopes are used, but theirs is not computed. Autograd calls this for tensors of torch that require one.
    ///
    /// Args:
    ///     d_out: The gradient of the output, of its shape and type; any strides whose last is 1.
    ///     q: As `attention` had it.
    ///     k: As `attention` had it.
    ///     v: As `attention` had it.
    ///     out: The output of `attention`.
    ///     lse: The log-sum-exp that it gave with `return_lse`.
    ///     options: The options that `attention` had, and what follows. `kernel` names one of the kernels for gradients. d_lse: the gradient
    ///         of the log-sum-exp, `float32` and of its shape, if that was used. needs: five truth values, whether the gradients of q, k, v,
    ///         the bias and the sinks are wanted; by default all but that of the bias. dq, dk, dv, d_bias and d_sinks: receive the
    ///         gradients; all but d_sinks are of the type of q or all `float32`, and rows of the first three that no sequence owns are left
    ///         alone.
    ///
    /// Returns:
    ///     The gradients of q, k, v, the bias and the sinks; None for one that is not wanted, or for sinks that there are not. That of the
    ///     bias has the extent 1 along dimensions in which the bias is repeated by a stride of 0.
    ///
    /// Raises:
    ///     warptile.InvalidInput: (a ValueError) A shape, device, stride or value breaks a rule; the message names the argument.
    ///     warptile.InvalidType: (a TypeError) An argument is not a tensor, or has the wrong element type.
    ///     warptile.NoKernel: (a ValueError) No kernel of the GPU can compute this.
    ///     warptile.DeviceError: (a RuntimeError) The driver is missing, too old, or reports an error.
    #[pyfunction]
    #[pyo3(signature = (d_out, q, k, v, out, lse, **options))]
    #[expect(
        clippy::too_many_arguments,
        reason = "they are those of Python's function"
    )]
    fn attention_backward<'py>(
        py: Python<'py>,
        d_out: Bound<'py, PyAny>,
        q: Bound<'py, PyAny>,
        k: Bound<'py, PyAny>,
        v: Bound<'py, PyAny>,
        out: Bound<'py, PyAny>,
        lse: Bound<'py, PyAny>,
        options: Option<Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let tensors = [&d_out, &q, &k, &v, &out, &lse];
        PyTuple::new(py, backward::run(py, tensors, options.as_ref())?)
    }

    /// Tells which kernel `attention` would run with these arguments, and why every other would not. Computes nothing.
    ///
    /// Args:
    ///     q: As in `attention`.
    ///     k: As in `attention`.
    ///     v: As in `attention`.
    ///     device: `"cpu"`, `"cuda:0"` and so on: as if the tensors were there; or a GPU that need not be there, such
    ///         as `"h200"`, `"rtx4090"` or `"8.6"`.
    ///     options: The other arguments of `attention`.
    ///
    /// Returns:
    ///     A text of some lines: the problem, the device, the kernels, and a line for each kernel left out.
    #[pyfunction]
    #[pyo3(signature = (q, k, v, *, device=None, **options))]
    fn explain<'py>(
        py: Python<'py>,
        q: Bound<'py, PyAny>,
        k: Bound<'py, PyAny>,
        v: Bound<'py, PyAny>,
        device: Option<String>,
        options: Option<Bound<'py, PyDict>>,
    ) -> PyResult<String> {
        let options = Options::of("explain", [&q, &k, &v], options.as_ref())?;
        let request = Request::new(&options, Gradients::Ignored)?;
        Ok(request.plan(py, device.as_deref())?.explain())
    }

    /// Merges attention over disjoint sets of keys into attention over all of them.
    ///
    /// Each part counts with the share that its keys have of the softmax's denominator, `exp(lse)`. A part whose lse is infinite saw
    /// no key in that row; a row that no part has a key for gives 0 and `-inf`. Computed in `float32`, in the order of the parts.
    /// Streams, libraries and the GIL are as with `attention`.
    ///
    /// Args:
    ///     parts: Pairs `(out, lse)` of the same queries, at most 32, as `attention` returns them with `return_lse`: an output
    ///         `[batch, length, heads, head size]` with an lse `[batch, heads, length]`, or, of packed sequences, `[rows, heads, head
    ///         size]` with `[heads, rows]`. Any strides whose last is 1 in the output, any at all in the lse.
    ///     out: Receives the output, of the parts' shape and type.
    ///     lse: Receives the log-sum-exp, `float32`.
    ///     base_two: Whether each lse is a logarithm to base 2, as those of FlashInfer, instead of e.
    ///     layout: Order of the dimensions of the outputs: `"bshd"` or `"bhsd"`.
    ///     stream: As in `attention`.
    ///
    /// Returns:
    ///     The output and the log-sum-exp.
    ///
    /// Raises:
    ///     warptile.InvalidInput: (a ValueError) The parts are missing or too many, or a shape, device or stride breaks a rule.
    ///     warptile.InvalidType: (a TypeError) An argument is not a tensor, or has the wrong element type.
    ///     warptile.DeviceError: (a RuntimeError) The driver is missing, too old, or reports an error.
    #[pyfunction]
    #[pyo3(signature = (parts, *, out=None, lse=None, base_two=false, layout=None, stream=None))]
    fn merge<'py>(
        py: Python<'py>,
        parts: Vec<Pair<'py>>,
        out: Option<Bound<'py, PyAny>>,
        lse: Option<Bound<'py, PyAny>>,
        base_two: bool,
        layout: Option<String>,
        stream: Option<u64>,
    ) -> PyResult<Pair<'py>> {
        let base = match base_two {
            true => LseBase::Two,
            false => LseBase::Natural,
        };
        let merge = MergeRequest::new(&parts, [out, lse], base, layout.as_deref(), stream)?;
        Ok(merge.run(py)?)
    }

    /// Writes new keys and values into a cache, after the rows that each sequence has, and rotates them on the way.
    ///
    /// Args:
    ///     arguments: By name. k and v: new keys and values, `[batch, rows, heads, head size]`. k_cache and v_cache, of the same shape or
    ///         in pages. cache_seqlens: `[batch]`, the rows that each sequence has before. q: queries to rotate as well, of k's batch and
    ///         rows. The table of pages, `[batch, pages]`, contiguous, and the scales of a cache in 8 bits, as in `attention`. rotary_cos
    ///         and rotary_sin: `[positions, half of the rotary size]`. interleaved: whether elements 2i and 2i + 1 are turned together, or
    ///         i and i + half of the rotary size.
    ///
    /// Returns:
    ///     The rotated queries; None without a rotation or queries.
    #[pyfunction]
    #[pyo3(signature = (**arguments))]
    fn write_cache<'py>(
        py: Python<'py>,
        arguments: Option<Bound<'py, PyDict>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let write = append::Request::new(arguments.as_ref())?;
        write.run(py)?;
        Ok(write.q_out().cloned())
    }

    /// Does what `write_cache` does and then what `attention` does. Whatever is wrong with the arguments of either is found before anything
    /// is written.
    ///
    /// Args:
    ///     write: All arguments of `write_cache` by name.
    ///     q: As in `attention`. If `write` rotates queries, these are attended instead, and q is not read.
    ///     k: As in `attention`.
    ///     v: As in `attention`.
    ///     between: Is called after the write.
    ///     options: The other arguments of `attention`.
    ///
    /// Returns:
    ///     As `attention`.
    #[pyfunction]
    #[pyo3(signature = (write, q, k, v, *, between=None, **options))]
    fn attention_after_write<'py>(
        py: Python<'py>,
        write: Bound<'py, PyDict>,
        q: Bound<'py, PyAny>,
        k: Bound<'py, PyAny>,
        v: Bound<'py, PyAny>,
        between: Option<Bound<'py, PyAny>>,
        options: Option<Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let write = append::Request::new(Some(&write))?;
        let q = write.q_out().unwrap_or(&q);
        let options = Options::of("attention_after_write", [q, &k, &v], options.as_ref())?;
        let attention = Request::new(&options, Gradients::Refused)?;
        let before = || {
            // By the names that a write has, which stay.
            write.run(py).map_err(PyErr::from)?;
            if let Some(between) = &between {
                between.call0()?;
            }
            Ok(())
        };
        result(&options, attention.run_after(py, Some(before))?)
    }

    /// The requested result: the output, or the output and the lse.
    fn result<'py>(
        options: &Options<'py>,
        (out, lse): Results<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match lse {
            Some(lse) if options.return_lse => {
                let py = out.py();
                Ok((out, lse).into_pyobject(py)?.into_any())
            }
            _ => Ok(out),
        }
    }

    /// The options of `attention` as a `TypedDict` for type checkers.
    #[pyfunction]
    fn options_stub() -> String {
        docs::stub()
    }

    /// The arguments of `attention` that have gradients, each with its gradient's name, in the order of `attention_backward`'s results.
    #[pyfunction]
    fn gradient_names() -> Vec<(&'static str, &'static str)> {
        backward::names().collect()
    }

    /// Whether a GPU has kernels for `float16` and `bfloat16`, or else `float32`: for outputs and gradients, with dropout or without.
    #[pyfunction]
    fn has_kernels(py: Python<'_>, ordinal: u32, half: bool, dropout: bool) -> PyResult<bool> {
        let element = match half {
            true => ElementType::F16,
            false => ElementType::F32,
        };
        Ok(py.detach(|| gpu::has_kernels(ordinal, element, dropout))?)
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let attention = docs::with_options(module, c"attention")?;
        module.add("attention", attention)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
