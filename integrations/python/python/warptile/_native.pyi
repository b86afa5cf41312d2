"""What the native module has; its docstrings say what it does."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Unpack

from ._types import Array, ArrayT
from .generated import Options
from .generated import attention as attention

__version__: str

def attention_backward(
    d_out: Array, q: ArrayT, k: Array, v: Array, out: Array, lse: Array, **options: Any
) -> tuple[ArrayT | None, ArrayT | None, ArrayT | None, ArrayT | None, ArrayT | None]:
    """The gradients of `attention`: from that of its output to those of q, k, v, the bias and the sinks.

    Computed where the tensors are, as `attention` is, and from the same arguments. The result is the same bits each time.

    Every option of `attention` counts but `lse`, `out` and `stream`. Keys and values in pages or in 8 bits and head sizes above 256
    have no gradient; ALiBi slopes are used, but theirs is not computed. Autograd calls this for tensors of torch that require one.

    Args:
        d_out: The gradient of the output, of its shape and type; any strides whose last is 1.
        q: As `attention` had it.
        k: As `attention` had it.
        v: As `attention` had it.
        out: The output of `attention`.
        lse: The log-sum-exp that it gave with `return_lse`.
        options: The options that `attention` had, and what follows. `kernel` names one of the kernels for gradients. d_lse: the gradient
            of the log-sum-exp, `float32` and of its shape, if that was used. needs: five truth values, whether the gradients of q, k, v,
            the bias and the sinks are wanted; by default all but that of the bias. dq, dk, dv, d_bias and d_sinks: receive the
            gradients; all but d_sinks are of the type of q or all `float32`, and rows of the first three that no sequence owns are left
            alone.

    Returns:
        The gradients of q, k, v, the bias and the sinks; None for one that is not wanted, or for sinks that there are not. That of the
        bias has the extent 1 along dimensions in which the bias is repeated by a stride of 0.

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
def has_kernels(ordinal: int, half: bool, dropout: bool) -> bool: ...
def gradient_names() -> list[tuple[str, str]]: ...
def options_stub() -> str: ...
def write_cache(**arguments: Any) -> Any: ...
