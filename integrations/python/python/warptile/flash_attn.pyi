from collections.abc import Sequence
from typing import Any

from ._native import _T, _Tensor

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]

def flash_attn_func(
    q: _T,
    k: _Tensor,
    v: _Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: _Tensor | Sequence[float] | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any: ...
def flash_attn_varlen_func(
    q: _T,
    k: _Tensor,
    v: _Tensor,
    cu_seqlens_q: _Tensor | Sequence[int],
    cu_seqlens_k: _Tensor | Sequence[int],
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: _Tensor | Sequence[float] | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: _Tensor | None = None,
) -> Any: ...
def flash_attn_with_kvcache(
    q: _T,
    k_cache: _Tensor,
    v_cache: _Tensor,
    k: _Tensor | None = None,
    v: _Tensor | None = None,
    rotary_cos: _Tensor | None = None,
    rotary_sin: _Tensor | None = None,
    cache_seqlens: int | _Tensor | Sequence[int] | None = None,
    cache_batch_idx: _Tensor | None = None,
    cache_leftpad: _Tensor | None = None,
    block_table: _Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: _Tensor | Sequence[float] | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any: ...
