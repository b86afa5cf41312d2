"""What the native module has; its docstrings say what it does."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeVar, overload

class SupportsDLPack(Protocol):
    def __dlpack__(self, *, stream: int | None = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...

class SupportsArrayInterface(Protocol):
    @property
    def __array_interface__(self) -> dict[str, Any]: ...

class SupportsCudaArrayInterface(Protocol):
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

Tensor = SupportsDLPack | SupportsArrayInterface | SupportsCudaArrayInterface | memoryview
T = TypeVar("T", bound=Tensor)

__version__: str

@overload
def attention(
    q: T,
    k: Tensor,
    v: Tensor,
    *,
    out: T | None = None,
    lse: Tensor | None = None,
    return_lse: Literal[False] = False,
    causal: bool | Literal["bottom-right", "top-left"] | None = None,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: Tensor | Sequence[float] | None = None,
    sinks: Tensor | Sequence[float] | None = None,
    bias: Tensor | None = None,
    key_mask: Tensor | None = None,
    layout: Literal["bshd", "bhsd"] | None = None,
    cu_seqlens_q: Tensor | Sequence[int] | None = None,
    cu_seqlens_k: Tensor | Sequence[int] | None = None,
    seqused_q: Tensor | Sequence[int] | None = None,
    seqused_k: Tensor | Sequence[int] | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    block_table: Tensor | None = None,
    kernel: str | None = None,
    stream: int | None = None,
) -> T: ...
@overload
def attention(
    q: T,
    k: Tensor,
    v: Tensor,
    *,
    out: T | None = None,
    lse: Tensor | None = None,
    return_lse: Literal[True],
    causal: bool | Literal["bottom-right", "top-left"] | None = None,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: Tensor | Sequence[float] | None = None,
    sinks: Tensor | Sequence[float] | None = None,
    bias: Tensor | None = None,
    key_mask: Tensor | None = None,
    layout: Literal["bshd", "bhsd"] | None = None,
    cu_seqlens_q: Tensor | Sequence[int] | None = None,
    cu_seqlens_k: Tensor | Sequence[int] | None = None,
    seqused_q: Tensor | Sequence[int] | None = None,
    seqused_k: Tensor | Sequence[int] | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    block_table: Tensor | None = None,
    kernel: str | None = None,
    stream: int | None = None,
) -> tuple[T, T]: ...
def attention_without_gradient(q: T, k: Tensor, v: Tensor, **options: Any) -> Any: ...
def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    device: str | None = None,
    **options: Any,
) -> str: ...
def write_cache(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_seqlens: Tensor | Sequence[int],
    *,
    q: Tensor | None = None,
    block_table: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    interleaved: bool = True,
) -> Any: ...
