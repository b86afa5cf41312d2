//! The native module of the Python package `warptile`: attention over the arrays of other libraries.
//!
//! What users see is in `python/warptile`; its stubs describe this module.

mod append;
mod arguments;
mod array;
mod attention;
mod cpu;
mod dlpack;
mod errors;
mod gpu;
mod library;
mod merge;
mod torch;

use pyo3::prelude::*;

/// The module `warptile._native`.
#[pymodule(name = "_native")]
mod native {
    use pyo3::prelude::*;
    use pyo3::types::PyDict;

    use crate::append;
    use crate::arguments::Options;
    use crate::array::Gradients;
    use crate::attention::Request;
    use crate::merge::{Options as MergeOptions, Pair, Request as MergeRequest};

    /// Attention: `softmax(scale * q kᵀ) v`, without ever storing the score matrix.
    ///
    /// Computed where the tensors are: on a GPU it is queued on the current stream and not waited for; on the CPU the result is there
    /// on return. Meanwhile the GIL is released, so no other thread may write the tensors.
    ///
    /// Tensors are those of torch, numpy, cupy or jax, or of any library with DLPack, the CUDA array interface, numpy's array
    /// interface or the buffer protocol. They have `float16`, `bfloat16` or `float32` elements, any strides whose last is 1, and a head
    /// size that is a multiple of 8, at most 512. No gradient is computed here: see `warptile.torch`.
    ///
    /// Args:
    ///     q: Queries, `[batch, length, heads, head size]`; see `layout` and `cu_seqlens_q`.
    ///     k: Keys. Their heads may be fewer than q's, if they divide them (GQA, MQA), and their length another.
    ///     v: Values, of the shape of k but for the head size, which may be another one.
    ///     out: Receives the output, of q's shape and type but with the head size of v. Made by q's library if not given.
    ///     lse: Receives the log-sum-exp of the rows: `float32`, contiguous, `[batch, heads, length]`, for packed queries
    ///         `[heads, rows]`.
    ///     return_lse: Whether to return `(out, lse)` instead of `out`.
    ///     causal: Whether a query sees no key after itself. The last query is aligned with the last key; with `"top-left"` the
    ///         first query with the first key.
    ///     window: `(left, right)`: how many keys before and after the diagonal a query sees. `None` or -1 is no limit.
    ///     scale: Factor of the scores; `1 / sqrt(head size)` if not given.
    ///     softcap: Bounds the scores: `softcap * tanh(score / softcap)`. 0 or None for no bound.
    ///     alibi_slopes: `float32`, `[heads]` or `[batch, heads]`: `slope * distance` is subtracted from the scores.
    ///     sinks: `float32`, `[heads]`: a logit that joins the denominator of every row; -inf for a head without one.
    ///     bias: Is added to the scores; of q's type and any shape that broadcasts to `[batch, heads, queries, keys]`.
    ///     key_mask: Hides keys where it is false; `bool`, of any such shape.
    ///     layout: Order of the dimensions of q, k, v and out: `"bshd"` or `"bhsd"`, that is `[batch, heads, length, head size]`.
    ///     cu_seqlens_q: `[sequences + 1]` row offsets: the queries of the sequences lie one after the other in a q of shape
    ///         `[rows, heads, head size]`. `int32` on a GPU, any integers on the CPU. Rows that no sequence owns give 0.
    ///     cu_seqlens_k: The same of k and v.
    ///     seqused_q: `[sequences]`: how many of each sequence's queries exist.
    ///     seqused_k: `[sequences]`: how many of each sequence's keys exist.
    ///     max_seqlen_q: On a GPU, the longest that packed queries of a sequence are. Lets a better kernel be chosen.
    ///     max_seqlen_k: The same of keys.
    ///     block_table: `[sequences, pages]`: k and v are `[pages, rows of a page, heads, head size]`, and this has the numbers
    ///         of the pages of each sequence.
    ///     k_descale: Keys and values in 8 bits: `float8_e4m3fn` (of torch or ml_dtypes, or DLPack's), or with scales the same bits as
    ///         `uint8`. Each key counts times this: `float32`, a number, `[key/value heads]`, or one of these expanded to `[sequences,
    ///         key/value heads]`. On a GPU it lies there, and the kernel reads it when it runs.
    ///     v_descale: The same of values. Both are given, or neither.
    ///     kernel: Name of the kernel or family to run instead of the planner's choice.
    ///     stream: Raw handle of the CUDA stream, instead of the current one of torch or cupy. For arrays of other libraries the
    ///         legacy default stream.
    ///
    /// Returns:
    ///     The output, or with `return_lse` the output and the log-sum-exp.
    ///
    /// Raises:
    ///     warptile.InvalidInput: (a ValueError) A shape, device, stride or value breaks a rule; the message names the argument.
    ///     warptile.InvalidType: (a TypeError) An argument is no tensor, or one of another element type.
    ///     warptile.NoKernel: (a ValueError) No kernel of the GPU can compute this.
    ///     warptile.DeviceError: (a RuntimeError) The driver is missing, too old, or reports an error.
    #[pyfunction]
    #[pyo3(signature = (q, k, v, *, out=None, lse=None, return_lse=false, causal=None, window=None, scale=None, softcap=None,
        alibi_slopes=None, sinks=None, bias=None, key_mask=None, layout=None, cu_seqlens_q=None, cu_seqlens_k=None,
        seqused_q=None, seqused_k=None, max_seqlen_q=None, max_seqlen_k=None, block_table=None, k_descale=None, v_descale=None,
        kernel=None, stream=None))]
    #[expect(clippy::too_many_arguments, reason = "Python's keyword arguments")]
    fn attention<'py>(
        py: Python<'py>,
        q: Bound<'py, PyAny>,
        k: Bound<'py, PyAny>,
        v: Bound<'py, PyAny>,
        out: Option<Bound<'py, PyAny>>,
        lse: Option<Bound<'py, PyAny>>,
        return_lse: bool,
        causal: Option<Bound<'py, PyAny>>,
        window: Option<(Option<i64>, Option<i64>)>,
        scale: Option<f32>,
        softcap: Option<f32>,
        alibi_slopes: Option<Bound<'py, PyAny>>,
        sinks: Option<Bound<'py, PyAny>>,
        bias: Option<Bound<'py, PyAny>>,
        key_mask: Option<Bound<'py, PyAny>>,
        layout: Option<String>,
        cu_seqlens_q: Option<Bound<'py, PyAny>>,
        cu_seqlens_k: Option<Bound<'py, PyAny>>,
        seqused_q: Option<Bound<'py, PyAny>>,
        seqused_k: Option<Bound<'py, PyAny>>,
        max_seqlen_q: Option<usize>,
        max_seqlen_k: Option<usize>,
        block_table: Option<Bound<'py, PyAny>>,
        k_descale: Option<Bound<'py, PyAny>>,
        v_descale: Option<Bound<'py, PyAny>>,
        kernel: Option<String>,
        stream: Option<u64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let options = Options {
            out,
            lse,
            return_lse,
            causal,
            window,
            scale,
            softcap,
            alibi_slopes,
            sinks,
            bias,
            key_mask,
            layout,
            cu_seqlens_q,
            cu_seqlens_k,
            seqused_q,
            seqused_k,
            max_seqlen_q,
            max_seqlen_k,
            block_table,
            k_descale,
            v_descale,
            kernel,
            stream,
        };
        result(
            &options,
            Request::new(&q, &k, &v, &options, Gradients::Refused)?.run(py)?,
        )
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
        let options = Options::of("attention_without_gradient", options.as_ref())?;
        result(
            &options,
            Request::new(&q, &k, &v, &options, Gradients::Ignored)?.run(py)?,
        )
    }

    /// Tells which kernel `attention` would run with these arguments, and why every other would not. Computes nothing.
    ///
    /// Args:
    ///     q: As in `attention`.
    ///     k: As in `attention`.
    ///     v: As in `attention`.
    ///     device: `"cpu"`, `"cuda:0"` and so on: as if the tensors were there. `"h200"` is an NVIDIA H200 that need not be there.
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
        let options = Options::of("explain", options.as_ref())?;
        let plan =
            Request::new(&q, &k, &v, &options, Gradients::Ignored)?.plan(py, device.as_deref())?;
        Ok(plan.explain())
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
    ///     warptile.InvalidInput: (a ValueError) There are no parts or too many, or a shape, device or stride breaks a rule.
    ///     warptile.InvalidType: (a TypeError) An argument is no tensor, or one of another element type.
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
        let options = MergeOptions {
            out,
            lse,
            base_two,
            layout,
            stream,
        };
        Ok(MergeRequest::new(&parts, &options)?.run(py)?)
    }

    /// Writes new keys and values into a cache, after the rows that each sequence has, and rotates them on the way.
    ///
    /// Args:
    ///     k: New keys, `[batch, rows, heads, head size]`.
    ///     v: New values.
    ///     k_cache: `[batch, rows, heads, head size]`, or with a `block_table` `[pages, rows of a page, heads, head size]`; written.
    ///     v_cache: The same of values; written.
    ///     cache_seqlens: `[batch]`: the rows that each sequence has before.
    ///     q: Queries to rotate as well: of k's batch and rows.
    ///     block_table: `[batch, pages]`, contiguous.
    ///     rotary_cos: `[positions, half of the rotary size]`.
    ///     rotary_sin: Likewise.
    ///     interleaved: Whether elements 2i and 2i + 1 are turned together, or i and i + half of the rotary size.
    ///     k_descale: As in `attention`, of a cache in 8 bits: it gets the numbers nearest to the keys divided by this.
    ///     v_descale: The same of values.
    ///
    /// Returns:
    ///     The rotated queries; None without a rotation or queries.
    #[pyfunction]
    #[pyo3(signature = (k, v, k_cache, v_cache, cache_seqlens, *, q=None, block_table=None, rotary_cos=None, rotary_sin=None,
        interleaved=true, k_descale=None, v_descale=None))]
    #[expect(clippy::too_many_arguments, reason = "Python's keyword arguments")]
    fn write_cache<'py>(
        py: Python<'py>,
        k: Bound<'py, PyAny>,
        v: Bound<'py, PyAny>,
        k_cache: Bound<'py, PyAny>,
        v_cache: Bound<'py, PyAny>,
        cache_seqlens: Bound<'py, PyAny>,
        q: Option<Bound<'py, PyAny>>,
        block_table: Option<Bound<'py, PyAny>>,
        rotary_cos: Option<Bound<'py, PyAny>>,
        rotary_sin: Option<Bound<'py, PyAny>>,
        interleaved: bool,
        k_descale: Option<Bound<'py, PyAny>>,
        v_descale: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let arguments = append::Arguments {
            k,
            v,
            k_cache,
            v_cache,
            cache_seqlens,
            q,
            block_table,
            rotary_cos,
            rotary_sin,
            interleaved,
            k_descale,
            v_descale,
        };
        let write = append::Request::new(&arguments)?;
        let q_out = write.q_out()?;
        write.run(py, q_out.as_ref())?;
        Ok(q_out.map(|q_out| q_out.object))
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
        write: append::Arguments<'py>,
        q: Bound<'py, PyAny>,
        k: Bound<'py, PyAny>,
        v: Bound<'py, PyAny>,
        between: Option<Bound<'py, PyAny>>,
        options: Option<Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let options = Options::of("attention_after_write", options.as_ref())?;
        let write = append::Request::new(&write)?;
        let q_out = write.q_out()?;
        let q = q_out.as_ref().map_or(&q, |rotated| &rotated.object);
        let attention = Request::new(q, &k, &v, &options, Gradients::Refused)?;
        let computed = attention.run_after(py, || {
            write.run(py, q_out.as_ref())?;
            if let Some(between) = &between {
                between.call0()?;
            }
            Ok(())
        })?;
        result(&options, computed)
    }

    /// What was asked for: the output, or the output and the lse.
    fn result<'py>(
        options: &Options<'py>,
        (out, lse): (Bound<'py, PyAny>, Option<Bound<'py, PyAny>>),
    ) -> PyResult<Bound<'py, PyAny>> {
        match lse {
            Some(lse) if options.return_lse => {
                let py = out.py();
                Ok((out, lse).into_pyobject(py)?.into_any())
            }
            _ => Ok(out),
        }
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
