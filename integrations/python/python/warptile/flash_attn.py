"""The functions of the flash_attn package, by their names and signatures.

``from warptile.flash_attn import flash_attn_func`` instead of ``from flash_attn import flash_attn_func`` is the whole change. Beyond that
package they take `float32` and tensors on the CPU. What warptile cannot do raises `warptile.Unsupported`, which names the argument.

Gradients are computed for `float16` and `bfloat16` tensors of torch on a GPU, by torch's own backward kernels.
"""

from ._errors import InvalidInput, Unsupported
from ._native import attention, write_cache

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]


def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """Attention of dense sequences.

    Args:
        q: Queries, `[batch, length, heads, head size]`.
        k: Keys, `[batch, length, heads, head size]`, with as many heads as q or fewer, if they divide q's.
        v: Values, of the shape of k.
        dropout_p: Must be 0.
        softmax_scale: Factor of the scores; `1 / sqrt(head size)` if not given.
        causal: Whether a query sees no key after itself; the last query is aligned with the last key.
        window_size: `(left, right)`: how many keys before and after the diagonal a query sees; -1 is no limit.
        softcap: Bounds the scores: `softcap * tanh(score / softcap)`; 0 for no bound.
        alibi_slopes: `float32`, `[heads]` or `[batch, heads]`.
        deterministic: Ignored for the result, which always is; must be False if a gradient is needed.
        return_attn_probs: Whether to return `(out, lse, None)`.

    Returns:
        The output, of q's shape; with `return_attn_probs` also the log-sum-exp, `[batch, heads, length]`, and None for the
        probabilities, which are never stored.
    """
    _refuse("dropout_p", dropout_p, 0.0)
    options = {
        "causal": causal,
        "window": window_size,
        "scale": softmax_scale,
        "softcap": softcap,
        "alibi_slopes": alibi_slopes,
    }
    out, lse = _forward(q, k, v, options, deterministic)
    return (out, lse, None) if return_attn_probs else out


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
):
    """Attention of sequences that lie one after the other, without padding.

    Args:
        q: Queries of all sequences, `[rows, heads, head size]`.
        k: Keys, `[rows, heads, head size]`, or with a `block_table` `[pages, rows of a page, heads, head size]`.
        v: Values, of the shape of k.
        cu_seqlens_q: `int32`, `[sequences + 1]`: where each sequence's queries begin.
        cu_seqlens_k: The same of keys. With a `block_table` only its differences count: how many keys each sequence has.
        max_seqlen_q: The longest sequence of queries.
        max_seqlen_k: The longest sequence of keys.
        dropout_p: Must be 0.
        softmax_scale: As in `flash_attn_func`.
        causal: As in `flash_attn_func`.
        window_size: As in `flash_attn_func`.
        softcap: As in `flash_attn_func`.
        alibi_slopes: As in `flash_attn_func`.
        deterministic: As in `flash_attn_func`.
        return_attn_probs: As in `flash_attn_func`; the log-sum-exp is `[heads, rows]`.
        block_table: `int32`, `[sequences, pages]`: the numbers of each sequence's pages.
    """
    _refuse("dropout_p", dropout_p, 0.0)
    options = {
        "causal": causal,
        "window": window_size,
        "scale": softmax_scale,
        "softcap": softcap,
        "alibi_slopes": alibi_slopes,
        "cu_seqlens_q": cu_seqlens_q,
        "max_seqlen_q": _whole(max_seqlen_q),
        "max_seqlen_k": _whole(max_seqlen_k),
    }
    if block_table is None:
        options["cu_seqlens_k"] = cu_seqlens_k
    else:
        options["block_table"] = block_table
        options["seqused_k"] = _differences(cu_seqlens_k)
    out, lse = _forward(q, k, v, options, deterministic)
    return (out, lse, None) if return_attn_probs else out


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    block_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    rotary_interleaved=True,
    alibi_slopes=None,
    num_splits=0,
    return_softmax_lse=False,
):
    """Attention to a cache of keys and values, after new ones were written into it. Computes no gradient.

    Args:
        q: Queries, `[batch, length, heads, head size]`.
        k_cache: Keys, `[batch, rows, heads, head size]`, or with a `block_table` `[pages, rows of a page, heads, head size]`;
            a page may have 1 to 256 rows. Written if k is given.
        v_cache: Values, of the shape of k_cache.
        k: New keys, `[batch, new rows, heads, head size]`: they go after the `cache_seqlens` rows that each sequence has.
        v: New values, of the shape of k.
        rotary_cos: `[positions, half of the rotary size]`: rotates k, and q, by the rows' positions.
        rotary_sin: Likewise.
        cache_seqlens: How many rows of the cache each sequence has, without the new ones: `int32`, `[batch]`, or one number for
            all.
        cache_batch_idx: Must be None.
        cache_leftpad: Must be None.
        block_table: `int32`, `[batch, pages]`: the numbers of each sequence's pages.
        softmax_scale: As in `flash_attn_func`.
        causal: As in `flash_attn_func`; the last query is aligned with the last key of its sequence.
        window_size: As in `flash_attn_func`.
        softcap: As in `flash_attn_func`.
        rotary_interleaved: Whether elements 2i and 2i + 1 are rotated together, or i and i + half of the rotary size.
        alibi_slopes: As in `flash_attn_func`.
        num_splits: Must be 0: the planner decides.
        return_softmax_lse: Whether to return `(out, lse)`.

    Returns:
        The output, of q's shape; with `return_softmax_lse` also the log-sum-exp, `[batch, heads, length]`.
    """
    _refuse("cache_batch_idx", cache_batch_idx, None)
    _refuse("cache_leftpad", cache_leftpad, None)
    _refuse("num_splits", num_splits, 0)
    if isinstance(cache_seqlens, int):
        cache_seqlens = _for_all(cache_seqlens, q)
    if k is None and v is None:
        if rotary_cos is not None or rotary_sin is not None:
            raise InvalidInput("rotary_cos is given, but no new k and v are")
    else:
        if k is None or v is None:
            raise InvalidInput("k and v are given together or not at all")
        if cache_seqlens is None:
            raise InvalidInput("cache_seqlens is missing, but k is given")
        rotates = rotary_cos is not None
        if rotates:
            _check_positions(q.shape[1], k.shape[1], causal or tuple(window_size) != (-1, -1))
        rotated = write_cache(
            k,
            v,
            k_cache,
            v_cache,
            cache_seqlens,
            q=q if rotates else None,
            block_table=block_table,
            rotary_cos=rotary_cos,
            rotary_sin=rotary_sin,
            interleaved=rotary_interleaved,
        )
        q = q if rotated is None else rotated
        new = k.shape[1]
        cache_seqlens = [length + new for length in cache_seqlens] if isinstance(cache_seqlens, list) else cache_seqlens + new
    return attention(
        q,
        k_cache,
        v_cache,
        causal=causal,
        window=window_size,
        scale=softmax_scale,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        seqused_k=cache_seqlens,
        block_table=block_table,
        return_lse=return_softmax_lse,
    )


def _refuse(name, value, only):
    """Fails unless `value` is the only one that is supported, or None."""
    if value is not None and (only is None or value != only):
        raise Unsupported(f"{name} is not supported by warptile; it must be {only}")


def _check_positions(queries, new, has_diagonal):
    """Queries are rotated by the positions of the new rows: those are what flash_attn means in these cases."""
    if queries != new:
        raise Unsupported(f"rotary_cos is not supported with {queries} queries and {new} new rows; they must be as many")
    if queries > 1 and not has_diagonal:
        raise Unsupported("rotary_cos is not supported with several queries but neither causal nor window_size, where they share one position")


def _forward(q, k, v, options, deterministic):
    """Output and log-sum-exp, with a gradient if one will be needed."""
    if any(getattr(tensor, "requires_grad", False) for tensor in (q, k, v)):
        from . import torch

        if torch.gradients_enabled():
            return torch.differentiable(q, k, v, options, deterministic)
    return attention(q, k, v, return_lse=True, **options)


def _whole(number):
    """A length as an `int`: some callers pass a tensor with one element."""
    return None if number is None else int(number)


def _differences(offsets):
    if isinstance(offsets, (list, tuple)):
        return [end - start for start, end in zip(offsets, offsets[1:])]
    return offsets[1:] - offsets[:-1]


def _for_all(length, q):
    """The same length for every sequence, where q is."""
    batch = q.shape[0]
    if not getattr(q, "is_cuda", False):
        return [length] * batch
    import torch

    return torch.full((batch,), length, dtype=torch.int32, device=q.device)
