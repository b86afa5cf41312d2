"""What the native module has; its docstrings say what it does."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Unpack, overload

from ._types import Array, ArrayT
from .generated import Options

__version__: str

@overload
def attention(
    q: ArrayT, k: Array, v: Array, *, return_lse: Literal[False] = False, **options: Unpack[Options]
) -> ArrayT:
    """Attention: `softmax(scale * q kᵀ) v`, without ever storing the score matrix.

    Computed where the tensors are: on a GPU it is queued on the current stream and not waited for; on the CPU the result is there
    on return. Meanwhile the GIL is released, so no other thread may write the tensors.

    Tensors are those of torch, numpy, cupy or jax, or of any library with DLPack, the CUDA array interface, numpy's array
    interface or the buffer protocol. They have `float16`, `bfloat16` or `float32` elements, any strides whose last is 1, and a head
    size that is a multiple of 8, at most 512. Gradients flow through tensors of torch; `attention_backward` gives those of others.

    Args:
        q: Queries, `[batch, length, heads, head size]`; see `layout` and `cu_seqlens_q`.
        k: Keys. Their heads may be fewer than q's, if they divide them (GQA, MQA), and their length another.
        v: Values, of the shape of k; their head size may differ.
        return_lse: Whether to return `(out, lse)` instead of `out`.
        causal: Whether a query sees no key after the diagonal.
        window: `(left, right)`: how many keys before and after the diagonal a query sees. `None` or -1 is no limit.
        diagonal: Where the diagonal of `causal` and `window` runs: `"bottom-right"`, as if not given, aligns the last query with the
            last key, `"top-left"` the first query with the first key. A number is the key on the diagonal of the first query.
        scale: Factor of the scores; `1 / sqrt(head size)` if not given.
        softcap: Bounds the scores: `softcap * tanh(score / softcap)`. 0 or None for no bound.
        dropout_p: Probability of dropping a weight after the softmax, from 0 to below 1; the others are divided by `1 - dropout_p`. Without a
            `dropout_state`, torch's generator of the device is drawn from.
        block_list: `warptile.BlockList`: which blocks of keys each block of queries sees; the mask holds inside of them. There are no gradients.
        layout: Order of the dimensions of q, k, v and out: `"bshd"` or `"bhsd"`, that is `[batch, heads, length, head size]`.
        max_seqlen_q: On a GPU, the longest that packed queries of a sequence are. Lets a better kernel be chosen.
        max_seqlen_k: On a GPU, the longest that the keys of a sequence are. Lets a better kernel be chosen.
        kernel: Name of the kernel or family to run instead of the planner's choice.
        stream: Raw handle of the CUDA stream, instead of the current one of torch or cupy. For arrays of other libraries the
            legacy default stream.
        out: Receives the output. Gaps between strided rows, and rows that no sequence owns, are left alone.
            Shape: that of q with the head size of v; q's library makes it if it is not given. Elements: those of q.
        bias: The additive bias.
            Shape: any that broadcasts to `[batch, heads, queries, keys]`. Elements: those of q.
        key_mask: The key mask; 0 hides a key.
            Shape: `[batch, keys]`, or three or four dimensions that broadcast to `[batch, heads, queries, keys]`. Elements: `bool` or `uint8`.
        lse: Receives the lse, `[batch, heads, length]`; for packed queries `[heads, rows]`.
            Shape: as said, contiguous. Elements: `float32`.
        cu_seqlens_q: Row offsets of packed queries.
            Shape: `[sequences + 1]`; the tensor's is `[rows, heads, head size]`. Elements: `int32` on a GPU, any integers on the CPU.
        cu_seqlens_k: Row offsets of packed keys and values.
            Shape: `[sequences + 1]`; the tensor's is `[rows, heads, head size]`. Elements: `int32` on a GPU, any integers on the CPU.
        seqused_q: Used rows of each sequence's queries.
            Shape: `[sequences]`. Elements: `int32` on a GPU, any integers on the CPU.
        seqused_k: Used rows of each sequence's keys and values; of a cache write those that the cache has already.
            Shape: `[sequences]`. Elements: `int32` on a GPU, any integers on the CPU.
        block_table: Numbers of the pages of each sequence, in order.
            Shape: `[sequences, pages]`; that of k and v is `[pages, rows of a page, heads, head size]`. Elements: `int32` on a GPU, any integers on the CPU.
        alibi_slopes: ALiBi slopes: `slope * distance` is subtracted from the scores.
            Shape: `[heads]` or `[batch, heads]`. Elements: `float32`.
        sinks: Sinks: a logit for each query head that joins the denominator of its rows; minus infinity for none.
            Shape: `[heads]`. Elements: `float32`.
        dropout_state: The random numbers of dropout: seed and offset, each as two words, the low one first, and the numbers of the first sequence, head, query and key.
            Shape: `[8]`. Elements: `int32` on a GPU, any integers on the CPU.
        k_descale: Scales of quantized keys, finite and above 0: attention multiplies by them, and a cache write divides by them.
            Shape: none (a number), `[key/value heads]`, or one of these expanded to `[sequences, key/value heads]`. Elements: `float32`.
            Those of k and v: `float8_e4m3fn` (of torch or ml_dtypes, or DLPack's), or the same bits as `uint8`.
        v_descale: Scales of quantized values, as those of keys.
            Shape: none (a number), `[key/value heads]`, or one of these expanded to `[sequences, key/value heads]`. Elements: `float32`.
            Those of k and v: `float8_e4m3fn` (of torch or ml_dtypes, or DLPack's), or the same bits as `uint8`.

    Returns:
        The output, or with `return_lse` the output and the log-sum-exp.

    Raises:
        warptile.InvalidInput: (a ValueError) A shape, device, stride or value breaks a rule; the message names the argument.
        warptile.InvalidType: (a TypeError) An argument is not a tensor, or has the wrong element type.
        warptile.NoKernel: (a ValueError) No kernel of the GPU can compute this.
        warptile.DeviceError: (a RuntimeError) The driver is missing, too old, or reports an error.
    """
@overload
def attention(
    q: ArrayT, k: Array, v: Array, *, return_lse: Literal[True], **options: Unpack[Options]
) -> tuple[ArrayT, ArrayT]:
    """Attention: `softmax(scale * q kᵀ) v`, without ever storing the score matrix.

    Computed where the tensors are: on a GPU it is queued on the current stream and not waited for; on the CPU the result is there
    on return. Meanwhile the GIL is released, so no other thread may write the tensors.

    Tensors are those of torch, numpy, cupy or jax, or of any library with DLPack, the CUDA array interface, numpy's array
    interface or the buffer protocol. They have `float16`, `bfloat16` or `float32` elements, any strides whose last is 1, and a head
    size that is a multiple of 8, at most 512. Gradients flow through tensors of torch; `attention_backward` gives those of others.

    Args:
        q: Queries, `[batch, length, heads, head size]`; see `layout` and `cu_seqlens_q`.
        k: Keys. Their heads may be fewer than q's, if they divide them (GQA, MQA), and their length another.
        v: Values, of the shape of k; their head size may differ.
        return_lse: Whether to return `(out, lse)` instead of `out`.
        causal: Whether a query sees no key after the diagonal.
        window: `(left, right)`: how many keys before and after the diagonal a query sees. `None` or -1 is no limit.
        diagonal: Where the diagonal of `causal` and `window` runs: `"bottom-right"`, as if not given, aligns the last query with the
            last key, `"top-left"` the first query with the first key. A number is the key on the diagonal of the first query.
        scale: Factor of the scores; `1 / sqrt(head size)` if not given.
        softcap: Bounds the scores: `softcap * tanh(score / softcap)`. 0 or None for no bound.
        dropout_p: Probability of dropping a weight after the softmax, from 0 to below 1; the others are divided by `1 - dropout_p`. Without a
            `dropout_state`, torch's generator of the device is drawn from.
        block_list: `warptile.BlockList`: which blocks of keys each block of queries sees; the mask holds inside of them. There are no gradients.
        layout: Order of the dimensions of q, k, v and out: `"bshd"` or `"bhsd"`, that is `[batch, heads, length, head size]`.
        max_seqlen_q: On a GPU, the longest that packed queries of a sequence are. Lets a better kernel be chosen.
        max_seqlen_k: On a GPU, the longest that the keys of a sequence are. Lets a better kernel be chosen.
        kernel: Name of the kernel or family to run instead of the planner's choice.
        stream: Raw handle of the CUDA stream, instead of the current one of torch or cupy. For arrays of other libraries the
            legacy default stream.
        out: Receives the output. Gaps between strided rows, and rows that no sequence owns, are left alone.
            Shape: that of q with the head size of v; q's library makes it if it is not given. Elements: those of q.
        bias: The additive bias.
            Shape: any that broadcasts to `[batch, heads, queries, keys]`. Elements: those of q.
        key_mask: The key mask; 0 hides a key.
            Shape: `[batch, keys]`, or three or four dimensions that broadcast to `[batch, heads, queries, keys]`. Elements: `bool` or `uint8`.
        lse: Receives the lse, `[batch, heads, length]`; for packed queries `[heads, rows]`.
            Shape: as said, contiguous. Elements: `float32`.
        cu_seqlens_q: Row offsets of packed queries.
            Shape: `[sequences + 1]`; the tensor's is `[rows, heads, head size]`. Elements: `int32` on a GPU, any integers on the CPU.
        cu_seqlens_k: Row offsets of packed keys and values.
            Shape: `[sequences + 1]`; the tensor's is `[rows, heads, head size]`. Elements: `int32` on a GPU, any integers on the CPU.
        seqused_q: Used rows of each sequence's queries.
            Shape: `[sequences]`. Elements: `int32` on a GPU, any integers on the CPU.
        seqused_k: Used rows of each sequence's keys and values; of a cache write those that the cache has already.
            Shape: `[sequences]`. Elements: `int32` on a GPU, any integers on the CPU.
        block_table: Numbers of the pages of each sequence, in order.
            Shape: `[sequences, pages]`; that of k and v is `[pages, rows of a page, heads, head size]`. Elements: `int32` on a GPU, any integers on the CPU.
        alibi_slopes: ALiBi slopes: `slope * distance` is subtracted from the scores.
            Shape: `[heads]` or `[batch, heads]`. Elements: `float32`.
        sinks: Sinks: a logit for each query head that joins the denominator of its rows; minus infinity for none.
            Shape: `[heads]`. Elements: `float32`.
        dropout_state: The random numbers of dropout: seed and offset, each as two words, the low one first, and the numbers of the first sequence, head, query and key.
            Shape: `[8]`. Elements: `int32` on a GPU, any integers on the CPU.
        k_descale: Scales of quantized keys, finite and above 0: attention multiplies by them, and a cache write divides by them.
            Shape: none (a number), `[key/value heads]`, or one of these expanded to `[sequences, key/value heads]`. Elements: `float32`.
            Those of k and v: `float8_e4m3fn` (of torch or ml_dtypes, or DLPack's), or the same bits as `uint8`.
        v_descale: Scales of quantized values, as those of keys.
            Shape: none (a number), `[key/value heads]`, or one of these expanded to `[sequences, key/value heads]`. Elements: `float32`.
            Those of k and v: `float8_e4m3fn` (of torch or ml_dtypes, or DLPack's), or the same bits as `uint8`.

    Returns:
        The output, or with `return_lse` the output and the log-sum-exp.

    Raises:
        warptile.InvalidInput: (a ValueError) A shape, device, stride or value breaks a rule; the message names the argument.
        warptile.InvalidType: (a TypeError) An argument is not a tensor, or has the wrong element type.
        warptile.NoKernel: (a ValueError) No kernel of the GPU can compute this.
        warptile.DeviceError: (a RuntimeError) The driver is missing, too old, or reports an error.
    """
def attention_backward(
    d_out: Array, q: ArrayT, k: Array, v: Array, out: Array, lse: Array, **options: Any
) -> tuple[ArrayT | None, ArrayT | None, ArrayT | None, ArrayT | None]:
    """The gradients of `attention`: from that of its output to those of q, k, v and the sinks.

    Computed where the tensors are, as `attention` is, and from the same arguments. The result is the same bits each time.

    Every option of `attention` counts but `lse`, `out` and `stream`. Keys and values in pages or in 8 bits and head sizes above 256
    have no gradient; a bias and ALiBi slopes are used, but theirs is not computed. Autograd calls this for
    tensors of torch that require one.

    Args:
        d_out: The gradient of the output, of its shape and type; any strides whose last is 1.
        q: As `attention` had it.
        k: As `attention` had it.
        v: As `attention` had it.
        out: The output of `attention`.
        lse: The log-sum-exp that it gave with `return_lse`.
        options: The options that `attention` had, and what follows. `kernel` names one of the kernels for gradients. d_lse: the gradient
            of the log-sum-exp, `float32` and of its shape, if that was used. needs: four truth values, whether the gradients of q, k, v
            and the sinks are wanted; all by default. dq, dk, dv and d_sinks: receive the gradients; the first three are of the type of
            q or all `float32`, and rows in them that no sequence owns are left alone.

    Returns:
        The gradients of q, k, v and the sinks; None for one that is not wanted, or for sinks that there are not.

    Raises:
        warptile.InvalidInput: (a ValueError) A shape, device, stride or value breaks a rule; the message names the argument.
        warptile.InvalidType: (a TypeError) An argument is not a tensor, or has the wrong element type.
        warptile.NoKernel: (a ValueError) No kernel of the GPU can compute this.
        warptile.DeviceError: (a RuntimeError) The driver is missing, too old, or reports an error.
    """
def attention_without_gradient(q: ArrayT, k: Array, v: Array, **options: Any) -> Any: ...
def attention_of_torch(
    q: Array, k: Array, v: Array, causal: bool, scale: float | None, shares_heads: bool, return_lse: bool
) -> tuple[Any, Any] | None: ...
def attention_after_write(
    write: dict[str, Any], q: Array, k: Array, v: Array, *, between: Callable[[], None] | None = None, **options: Any
) -> Any: ...
def explain(q: Array, k: Array, v: Array, *, device: str | None = None, **options: Unpack[Options]) -> str:
    """Tells which kernel `attention` would run with these arguments, and why every other would not. Computes nothing.

    Args:
        q: As in `attention`.
        k: As in `attention`.
        v: As in `attention`.
        device: `"cpu"`, `"cuda:0"` and so on: as if the tensors were there; or a GPU that need not be there, such
            as `"h200"`, `"rtx4090"` or `"8.6"`.
        options: The other arguments of `attention`.

    Returns:
        A text of some lines: the problem, the device, the kernels, and a line for each kernel left out.
    """
def merge(
    parts: Sequence[tuple[ArrayT, ArrayT]],
    *,
    out: ArrayT | None = None,
    lse: Array | None = None,
    base_two: bool = False,
    layout: Literal["bshd", "bhsd"] | None = None,
    stream: int | None = None,
) -> tuple[ArrayT, ArrayT]:
    """Merges attention over disjoint sets of keys into attention over all of them.

    Each part counts with the share that its keys have of the softmax's denominator, `exp(lse)`. A part whose lse is infinite saw
    no key in that row; a row that no part has a key for gives 0 and `-inf`. Computed in `float32`, in the order of the parts.
    Streams, libraries and the GIL are as with `attention`.

    Args:
        parts: Pairs `(out, lse)` of the same queries, at most 32, as `attention` returns them with `return_lse`: an output
            `[batch, length, heads, head size]` with an lse `[batch, heads, length]`, or, of packed sequences, `[rows, heads, head
            size]` with `[heads, rows]`. Any strides whose last is 1 in the output, any at all in the lse.
        out: Receives the output, of the parts' shape and type.
        lse: Receives the log-sum-exp, `float32`.
        base_two: Whether each lse is a logarithm to base 2, as those of FlashInfer, instead of e.
        layout: Order of the dimensions of the outputs: `"bshd"` or `"bhsd"`.
        stream: As in `attention`.

    Returns:
        The output and the log-sum-exp.

    Raises:
        warptile.InvalidInput: (a ValueError) The parts are missing or too many, or a shape, device or stride breaks a rule.
        warptile.InvalidType: (a TypeError) An argument is not a tensor, or has the wrong element type.
        warptile.DeviceError: (a RuntimeError) The driver is missing, too old, or reports an error.
    """
def has_dropout(ordinal: int, half: bool) -> bool: ...
def gradient_names() -> list[tuple[str, str]]: ...
def options_stub() -> str: ...
def write_cache(**arguments: Any) -> Any: ...
