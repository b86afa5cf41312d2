"""What the native module has; its docstrings say what it does."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

from ._types import Array, ArrayT

__version__: str

@overload
def attention(
    q: ArrayT,
    k: Array,
    v: Array,
    *,
    out: ArrayT | None = None,
    lse: Array | None = None,
    return_lse: Literal[False] = False,
    causal: bool | Literal["bottom-right", "top-left"] | None = None,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | Sequence[float] | None = None,
    sinks: Array | Sequence[float] | None = None,
    bias: Array | None = None,
    key_mask: Array | None = None,
    layout: Literal["bshd", "bhsd"] | None = None,
    cu_seqlens_q: Array | Sequence[int] | None = None,
    cu_seqlens_k: Array | Sequence[int] | None = None,
    seqused_q: Array | Sequence[int] | None = None,
    seqused_k: Array | Sequence[int] | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    block_table: Array | None = None,
    k_descale: Array | Sequence[float] | float | None = None,
    v_descale: Array | Sequence[float] | float | None = None,
    kernel: str | None = None,
    stream: int | None = None,
) -> ArrayT: ...
@overload
def attention(
    q: ArrayT,
    k: Array,
    v: Array,
    *,
    out: ArrayT | None = None,
    lse: Array | None = None,
    return_lse: Literal[True],
    causal: bool | Literal["bottom-right", "top-left"] | None = None,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | Sequence[float] | None = None,
    sinks: Array | Sequence[float] | None = None,
    bias: Array | None = None,
    key_mask: Array | None = None,
    layout: Literal["bshd", "bhsd"] | None = None,
    cu_seqlens_q: Array | Sequence[int] | None = None,
    cu_seqlens_k: Array | Sequence[int] | None = None,
    seqused_q: Array | Sequence[int] | None = None,
    seqused_k: Array | Sequence[int] | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    block_table: Array | None = None,
    k_descale: Array | Sequence[float] | float | None = None,
    v_descale: Array | Sequence[float] | float | None = None,
    kernel: str | None = None,
    stream: int | None = None,
) -> tuple[ArrayT, ArrayT]: ...
def attention_without_gradient(q: ArrayT, k: Array, v: Array, **options: Any) -> Any: ...
def attention_after_write(
    write: dict[str, Any], q: Array, k: Array, v: Array, *, between: Callable[[], None] | None = None, **options: Any
) -> Any: ...
def explain(
    q: Array,
    k: Array,
    v: Array,
    *,
    device: str | None = None,
    **options: Any,
) -> str: ...
def merge(
    parts: Sequence[tuple[ArrayT, ArrayT]],
    *,
    out: ArrayT | None = None,
    lse: Array | None = None,
    base_two: bool = False,
    layout: Literal["bshd", "bhsd"] | None = None,
    stream: int | None = None,
) -> tuple[ArrayT, ArrayT]: ...
def write_cache(
    k: Array,
    v: Array,
    k_cache: Array,
    v_cache: Array,
    cache_seqlens: Array | Sequence[int],
    *,
    q: Array | None = None,
    block_table: Array | None = None,
    rotary_cos: Array | None = None,
    rotary_sin: Array | None = None,
    interleaved: bool = True,
    k_descale: Array | Sequence[float] | float | None = None,
    v_descale: Array | Sequence[float] | float | None = None,
) -> Any: ...
