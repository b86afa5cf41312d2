"""What the native module has; its docstrings say what it does."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeVar, overload

class _SupportsDLPack(Protocol):
    def __dlpack__(self, *, stream: int | None = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...

class _SupportsArrayInterface(Protocol):
    @property
    def __array_interface__(self) -> dict[str, Any]: ...

class _SupportsCudaArrayInterface(Protocol):
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

_Tensor = _SupportsDLPack | _SupportsArrayInterface | _SupportsCudaArrayInterface | memoryview
_T = TypeVar("_T", bound=_Tensor)

__version__: str

@overload
def attention(
    q: _T,
    k: _Tensor,
    v: _Tensor,
    *,
    out: _T | None = None,
    lse: _Tensor | None = None,
    return_lse: Literal[False] = False,
    causal: bool | Literal["bottom-right", "top-left"] | None = None,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: _Tensor | Sequence[float] | None = None,
    sinks: _Tensor | Sequence[float] | None = None,
    bias: _Tensor | None = None,
    key_mask: _Tensor | None = None,
    layout: Literal["bshd", "bhsd"] | None = None,
    cu_seqlens_q: _Tensor | Sequence[int] | None = None,
    cu_seqlens_k: _Tensor | Sequence[int] | None = None,
    seqused_q: _Tensor | Sequence[int] | None = None,
    seqused_k: _Tensor | Sequence[int] | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    block_table: _Tensor | None = None,
    kernel: str | None = None,
    stream: int | None = None,
) -> _T: ...
@overload
def attention(
    q: _T,
    k: _Tensor,
    v: _Tensor,
    *,
    out: _T | None = None,
    lse: _Tensor | None = None,
    return_lse: Literal[True],
    causal: bool | Literal["bottom-right", "top-left"] | None = None,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: _Tensor | Sequence[float] | None = None,
    sinks: _Tensor | Sequence[float] | None = None,
    bias: _Tensor | None = None,
    key_mask: _Tensor | None = None,
    layout: Literal["bshd", "bhsd"] | None = None,
    cu_seqlens_q: _Tensor | Sequence[int] | None = None,
    cu_seqlens_k: _Tensor | Sequence[int] | None = None,
    seqused_q: _Tensor | Sequence[int] | None = None,
    seqused_k: _Tensor | Sequence[int] | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    block_table: _Tensor | None = None,
    kernel: str | None = None,
    stream: int | None = None,
) -> tuple[_T, _T]: ...
def attention_without_gradient(q: _T, k: _Tensor, v: _Tensor, **options: Any) -> Any: ...
def explain(
    q: _Tensor,
    k: _Tensor,
    v: _Tensor,
    *,
    device: str | None = None,
    **options: Any,
) -> str: ...
def merge(
    parts: Sequence[tuple[_T, _T]],
    *,
    out: _T | None = None,
    lse: _Tensor | None = None,
    base_two: bool = False,
    layout: Literal["bshd", "bhsd"] | None = None,
    stream: int | None = None,
) -> tuple[_T, _T]: ...
def write_cache(
    k: _Tensor,
    v: _Tensor,
    k_cache: _Tensor,
    v_cache: _Tensor,
    cache_seqlens: _Tensor | Sequence[int],
    *,
    q: _Tensor | None = None,
    block_table: _Tensor | None = None,
    rotary_cos: _Tensor | None = None,
    rotary_sin: _Tensor | None = None,
    interleaved: bool = True,
) -> Any: ...
