"""What the native module has; its docstrings say what it does."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Unpack

from ._types import Array, ArrayT
from .generated import Options
from .generated import attention as attention, attention_backward as attention_backward

__version__: str

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
