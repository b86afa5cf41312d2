"""What the native module has; its docstrings say what it does."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict, Unpack, overload

from ._types import Array, ArrayT

__version__: str

class _Options(TypedDict, total=False):
    causal: bool | Literal["bottom-right", "top-left"] | None
    window: tuple[int | None, int | None] | None
    scale: float | None
    softcap: float | None
    layout: Literal["bshd", "bhsd"] | None
    max_seqlen_q: int | None
    max_seqlen_k: int | None
    kernel: str | None
    stream: int | None
    out: Any
    bias: Array | None
    key_mask: Array | None
    lse: Array | None
    cu_seqlens_q: Array | Sequence[int] | None
    cu_seqlens_k: Array | Sequence[int] | None
    seqused_q: Array | Sequence[int] | None
    seqused_k: Array | Sequence[int] | None
    block_table: Array | None
    alibi_slopes: Array | Sequence[float] | None
    sinks: Array | Sequence[float] | None
    k_descale: Array | Sequence[float] | float | None
    v_descale: Array | Sequence[float] | float | None

@overload
def attention(
    q: ArrayT, k: Array, v: Array, *, return_lse: Literal[False] = False, **options: Unpack[_Options]
) -> ArrayT: ...
@overload
def attention(
    q: ArrayT, k: Array, v: Array, *, return_lse: Literal[True], **options: Unpack[_Options]
) -> tuple[ArrayT, ArrayT]: ...
def attention_without_gradient(q: ArrayT, k: Array, v: Array, **options: Any) -> Any: ...
def attention_after_write(
    write: dict[str, Any], q: Array, k: Array, v: Array, *, between: Callable[[], None] | None = None, **options: Any
) -> Any: ...
def explain(q: Array, k: Array, v: Array, *, device: str | None = None, **options: Unpack[_Options]) -> str: ...
def merge(
    parts: Sequence[tuple[ArrayT, ArrayT]],
    *,
    out: ArrayT | None = None,
    lse: Array | None = None,
    base_two: bool = False,
    layout: Literal["bshd", "bhsd"] | None = None,
    stream: int | None = None,
) -> tuple[ArrayT, ArrayT]: ...
def write_cache(**arguments: Any) -> Any: ...
