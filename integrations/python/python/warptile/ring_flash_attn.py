"""The functions of ring_flash_attn, with its names, arguments and layouts, by `warptile.distributed`: keys are gathered, not passed on.

Lengths are those of one rank, and all ranks have as many rows; that much is ring_flash_attn's rule. Dropout and ALiBi slopes are refused.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ._arrays import parts
from ._errors import InvalidInput
from .distributed import Call, ContextParallel, Mask, Plan, attend, calls_of, options_of, order_of, refuse

__all__ = [
    "llama3_flash_attn_prepare_cu_seqlens",
    "llama3_flash_attn_varlen_func",
    "llama3_flash_attn_varlen_kvpacked_func",
    "llama3_flash_attn_varlen_qkvpacked_func",
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


def _packed_arguments(function, rows):
    """The function with keys and values in one tensor, and with queries, keys and values in one."""

    def kvpacked(q: Tensor, kv: Tensor, *arguments: Any, **options: Any) -> Any:
        """Keys and values are in the third dimension from the end."""
        return function(q, *parts("kv", kv, 2, rows), *arguments, **options)

    def qkvpacked(qkv: Tensor, *arguments: Any, **options: Any) -> Any:
        """Queries, keys and values are in the third dimension from the end."""
        return function(*parts("qkv", qkv, 3, rows), *arguments, **options)

    return kvpacked, qkvpacked


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

    return dense, *_packed_arguments(dense, "batch, rows"), varlen, *_packed_arguments(varlen, "rows")


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
    rank, ranks, rows = dist.get_rank(group), dist.get_world_size(group), q.shape[0]
    begin, end = rank * rows, (rank + 1) * rows
    start, stop = local_k_slice.start, local_k_slice.stop
    left, right = window_size[0], 0 if causal else window_size[1]
    mask = Mask(causal, (left, right))
    if right < 0 <= left or right > 0:
        # A document's last query here need not be at its last key, so each has a call of its own, with its diagonal.
        queries, offsets = cu_seqlens_q.tolist(), [start + at for at in cu_seqlens_k.tolist()]
        counts = [stop - first for first, stop in zip(queries, queries[1:])]
        firsts = [max(0, begin - at) for at in offsets]
        chunks = [(at, firsts[at], firsts[at] + count) for at, count in enumerate(counts) if count]
        calls = calls_of(offsets, chunks, mask, packed=True)
    else:
        if right == 0:
            # No query of this rank sees keys behind its rows, which only the lists of `causal=False` have.
            stop = min(stop, end)
            cu_seqlens_k = cu_seqlens_k.clamp(max=stop - start)
        options = {**options_of(mask), "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
        calls = [Call(slice(0, rows), slice(start, stop), options)]
    own = [torch.arange(rank * rows, (rank + 1) * rows) for rank in range(ranks)]
    plan = Plan(calls, [rows] * ranks, order_of(own), packed=True)
    found = attend(q, k, v, None, plan, group, {"scale": softmax_scale}, return_attn_probs)
    return (*found, None) if return_attn_probs else found


llama3_flash_attn_varlen_kvpacked_func, llama3_flash_attn_varlen_qkvpacked_func = _packed_arguments(
    llama3_flash_attn_varlen_func, "rows"
)

for _name in __all__:
    globals()[_name].__name__ = globals()[_name].__qualname__ = _name
