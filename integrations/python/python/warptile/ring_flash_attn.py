"""The functions of ring_flash_attn, with its names, arguments and layouts, by `warptile.distributed`: keys are gathered, not passed on.

Lengths are those of one rank, and all ranks have as many rows; that much is ring_flash_attn's rule. Dropout and ALiBi slopes are refused.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ._errors import InvalidInput
from .distributed import Call, ContextParallel, Plan, attend, order_of, refuse

__all__ = [
    "llama3_flash_attn_prepare_cu_seqlens",
    "llama3_flash_attn_varlen_func",
    "ring_flash_attn_func",
    "ring_flash_attn_kvpacked_func",
    "ring_flash_attn_qkvpacked_func",
    "ring_flash_attn_varlen_func",
    "ring_flash_attn_varlen_kvpacked_func",
    "ring_flash_attn_varlen_qkvpacked_func",
    "zigzag_ring_flash_attn_func",
    "zigzag_ring_flash_attn_kvpacked_func",
    "zigzag_ring_flash_attn_qkvpacked_func",
    "zigzag_ring_flash_attn_varlen_func",
    "zigzag_ring_flash_attn_varlen_kvpacked_func",
    "zigzag_ring_flash_attn_varlen_qkvpacked_func",
]


def _functions(sharding):
    def dense(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        group: Any = None,
    ) -> Any:
        """`[batch, rows, heads, head size]`; returns the output, or with `return_attn_probs` `(out, lse, None)`."""
        refuse(dropout_p=(dropout_p, 0.0), alibi_slopes=(alibi_slopes, None))
        ranks = ContextParallel(group, sharding)
        found = ranks.attention(q, k, v, causal=causal, window=window_size, scale=softmax_scale, return_lse=return_attn_probs)
        return (*found, None) if return_attn_probs else found

    def varlen(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        group: Any = None,
    ) -> Any:
        """`[rows, heads, head size]`; `cu_seqlens` are the offsets of this rank's part of each document."""
        refuse(dropout_p=(dropout_p, 0.0), alibi_slopes=(alibi_slopes, None))
        ranks = ContextParallel(group, sharding)
        offsets = [at * ranks.ranks for at in cu_seqlens.tolist()]
        options = {"causal": causal, "window": window_size, "scale": softmax_scale, "cu_seqlens": offsets}
        found = ranks.attention(q, k, v, return_lse=return_attn_probs, **options)
        return (*found, None) if return_attn_probs else found

    def packed_arguments(function):
        def kvpacked(q: Tensor, kv: Tensor, *arguments: Any, **options: Any) -> Any:
            """Keys and values are in the third dimension from the end."""
            return function(q, kv.select(-3, 0), kv.select(-3, 1), *arguments, **options)

        def qkvpacked(qkv: Tensor, *arguments: Any, **options: Any) -> Any:
            """Queries, keys and values are in the third dimension from the end."""
            return function(*qkv.unbind(-3), *arguments, **options)

        return kvpacked, qkvpacked

    return dense, *packed_arguments(dense), varlen, *packed_arguments(varlen)


(
    ring_flash_attn_func,
    ring_flash_attn_kvpacked_func,
    ring_flash_attn_qkvpacked_func,
    ring_flash_attn_varlen_func,
    ring_flash_attn_varlen_kvpacked_func,
    ring_flash_attn_varlen_qkvpacked_func,
) = _functions("contiguous")
(
    zigzag_ring_flash_attn_func,
    zigzag_ring_flash_attn_kvpacked_func,
    zigzag_ring_flash_attn_qkvpacked_func,
    zigzag_ring_flash_attn_varlen_func,
    zigzag_ring_flash_attn_varlen_kvpacked_func,
    zigzag_ring_flash_attn_varlen_qkvpacked_func,
) = _functions("zigzag")

for _name in __all__[2:]:
    globals()[_name].__name__ = globals()[_name].__qualname__ = _name


def llama3_flash_attn_prepare_cu_seqlens(
    cu_seqlens: Tensor, causal: bool, rank: int, world_size: int
) -> tuple[Tensor, Tensor, int, int, slice]:
    """Splits packed documents into equal parts, one a rank.

    Returns the offsets of rank `rank`'s queries and of the keys that they see, the longest of both, and the place of these keys.
    """
    offsets = cu_seqlens.tolist()
    if offsets[-1] % world_size:
        raise InvalidInput(f"cu_seqlens ends with {offsets[-1]}, which {world_size} ranks do not divide")
    rows = offsets[-1] // world_size
    begin, end = rank * rows, (rank + 1) * rows
    documents = [(first, stop) for first, stop in zip(offsets, offsets[1:]) if first < end and stop > begin]
    keys = slice(documents[0][0], end if causal else documents[-1][1]) if documents else slice(0, 0)
    queries = [0] + [min(stop, end) - begin for _, stop in documents]
    of_keys = [0] + [min(stop, keys.stop) - keys.start for _, stop in documents]
    longest = (max((b - a for a, b in zip(one, one[1:])), default=0) for one in (queries, of_keys))
    lists = (torch.tensor(one, dtype=torch.int32, device=cu_seqlens.device) for one in (queries, of_keys))
    return *lists, *longest, keys


def llama3_flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    heads_k_stride: int,
    local_k_slice: slice,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    group: Any = None,
) -> Any:
    """`[rows, heads, head size]`, with the results of `llama3_flash_attn_prepare_cu_seqlens`.

    All heads are gathered at once: `heads_k_stride` has no effect.
    """
    refuse(dropout_p=(dropout_p, 0.0), alibi_slopes=(alibi_slopes, None))
    ranks, rows = dist.get_world_size(group), q.shape[0]
    options = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    if causal:
        options["causal"] = True
    if tuple(window_size) != (-1, -1):
        options["window"] = tuple(window_size)
    own = [torch.arange(rank * rows, (rank + 1) * rows) for rank in range(ranks)]
    plan = Plan([Call(slice(0, rows), local_k_slice, options)], [rows] * ranks, order_of(own), packed=True)
    found = attend(q, k, v, None, plan, group, {"scale": softmax_scale}, return_attn_probs)
    return (*found, None) if return_attn_probs else found
