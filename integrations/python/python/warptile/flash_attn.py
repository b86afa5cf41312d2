"""The functions of the flash_attn package, by their names and signatures.

``from warptile.flash_attn import flash_attn_func`` instead of ``from flash_attn import flash_attn_func`` is the whole change. Beyond that
package they take `float32` and tensors on the CPU. What warptile cannot do raises `warptile.Unsupported`, which names the argument.
The log-sum-exp of a query that sees no key is `-inf`, where flash_attn 2 has `inf`.

Gradients are computed for tensors of torch, the same bits each time. There are none of `alibi_slopes`, and none with pages.
"""

import operator
from collections.abc import Sequence
from typing import Any

from ._arrays import (
    converted,
    counted,
    detached,
    empty,
    filled,
    integers,
    known,
    parts,
    row_contiguous,
    sequence_of,
    whole_numbers,
    widened,
    wider,
)
from ._errors import InvalidInput
from ._kvcache import Cache
from ._native import attention, attention_after_write, merge, write_cache
from ._types import Array

__all__ = [
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]


def flash_attn_func(
    q: Array,
    k: Array,
    v: Array,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Array | Sequence[float] | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Attention of dense sequences.

    Args:
        q: Queries, `[batch, length, heads, head size]`.
        k: Keys, `[batch, length, heads, head size]`, with as many heads as q or fewer, if they divide q's.
        v: Values, of the shape of k.
        dropout_p: Probability of dropping a weight, from 0 to below 1. Torch's generator of the device decides which, so the tensors are
            torch's then.
        softmax_scale: Factor of the scores; `1 / sqrt(head size)` if not given.
        causal: Whether a query sees no key after itself; the last query is aligned with the last key.
        window_size: `(left, right)`: how many keys before and after the diagonal a query sees; -1 is no limit. Neither is a right side of
            as many keys as there are, even where queries outnumber keys, as flash_attn has it.
        softcap: Bounds the scores: `softcap * tanh(score / softcap)`; 0 for no bound.
        alibi_slopes: `float32`, `[heads]` or `[batch, heads]`; contiguous, or `[heads]` expanded.
        deterministic: Ignored: the result and the gradients are the same bits each time.
        return_attn_probs: Whether to return `(out, lse, None)`.

    Returns:
        The output, of q's shape; with `return_attn_probs` also the log-sum-exp, `[batch, heads, length]`, and None for the
        probabilities, which are never stored.
    """
    options = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return _dense("flash_attn_func", (q, k, v), *options)


def flash_attn_qkvpacked_func(
    qkv: Array,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Array | Sequence[float] | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_func` of queries, keys and values in one tensor, `[batch, length, 3, heads, head size]`.

    Args:
        qkv: Queries, keys and values, one after the other in the third dimension.
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs: As in `flash_attn_func`.

    Returns:
        As `flash_attn_func`.
    """
    options = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return _dense("flash_attn_qkvpacked_func", parts("qkv", qkv, 3), *options)


def flash_attn_kvpacked_func(
    q: Array,
    kv: Array,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Array | Sequence[float] | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_func` of keys and values in one tensor, `[batch, length, 2, heads, head size]`.

    Args:
        q: Queries, `[batch, length, heads, head size]`.
        kv: Keys and values, one after the other in the third dimension.
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs: As in `flash_attn_func`.

    Returns:
        As `flash_attn_func`.
    """
    options = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return _dense("flash_attn_kvpacked_func", (q, *parts("kv", kv, 2)), *options)


def flash_attn_varlen_func(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array | Sequence[int],
    cu_seqlens_k: Array | Sequence[int],
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Array | Sequence[float] | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Array | None = None,
) -> Any:
    """Attention of sequences that lie one after the other, without padding.

    Args:
        q: Queries of all sequences, `[rows, heads, head size]`.
        k: Keys, `[rows, heads, head size]`, or with a `block_table` `[pages, rows of a page, heads, head size]`.
        v: Values, of the shape of k.
        cu_seqlens_q: `int32`, `[sequences + 1]`: where each sequence's queries begin.
        cu_seqlens_k: `int32`, `[sequences + 1]`: where each sequence's keys begin. With a `block_table` only its differences count: how many keys each sequence has.
        max_seqlen_q: The longest sequence of queries.
        max_seqlen_k: The longest sequence of keys.
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic: As in `flash_attn_func`.
        return_attn_probs: As in `flash_attn_func`; the log-sum-exp is `[heads, rows]`.
        block_table: `int32`, `[sequences, pages]`: the numbers of each sequence's pages.

    Returns:
        As `flash_attn_func`.
    """
    options = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return _packed("flash_attn_varlen_func", (q, k, v), lengths, block_table, *options)


def flash_attn_varlen_qkvpacked_func(
    qkv: Array,
    cu_seqlens: Array | Sequence[int],
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Array | Sequence[float] | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_varlen_func` of queries, keys and values in one tensor, `[rows, 3, heads, head size]`.

    Args:
        qkv: Queries, keys and values, one after the other in the second dimension.
        cu_seqlens: `int32`, `[sequences + 1]`: where each sequence begins.
        max_seqlen: The longest sequence.
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs: As in `flash_attn_func`.

    Returns:
        As `flash_attn_func`.
    """
    options = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    lengths = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return _packed("flash_attn_varlen_qkvpacked_func", parts("qkv", qkv, 3, "rows"), lengths, None, *options)


def flash_attn_varlen_kvpacked_func(
    q: Array,
    kv: Array,
    cu_seqlens_q: Array | Sequence[int],
    cu_seqlens_k: Array | Sequence[int],
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Array | Sequence[float] | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_varlen_func` of keys and values in one tensor, `[rows, 2, heads, head size]`.

    Args:
        q: Queries of all sequences, `[rows, heads, head size]`.
        kv: Keys and values, one after the other in the second dimension.
        cu_seqlens_q: `int32`, `[sequences + 1]`: where each sequence's queries begin.
        cu_seqlens_k: `int32`, `[sequences + 1]`: where each sequence's keys begin.
        max_seqlen_q: The longest sequence of queries.
        max_seqlen_k: The longest sequence of keys.
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs: As in `flash_attn_func`.

    Returns:
        As `flash_attn_func`.
    """
    options = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return _packed("flash_attn_varlen_kvpacked_func", (q, *parts("kv", kv, 2, "rows")), lengths, None, *options)


def flash_attn_combine(
    out_partial: Array,
    lse_partial: Array,
    out: Array | None = None,
    out_dtype: Any = None,
) -> Any:
    """Joins attention over disjoint keys, as flash_attn_3 has it. Computes no gradient, also for tensors that require one.

    Args:
        out_partial: The outputs, `[parts, batch, length, heads, head size]`, or of packed sequences `[parts, rows, heads, head size]`.
        lse_partial: Their log-sum-exps, `float32`, `[parts, batch, length, heads]` or `[parts, rows, heads]`.
        out: Receives the output.
        out_dtype: The type of the output, if it is to have another one than `out_partial`.

    Returns:
        The output, and the log-sum-exp, `[batch, length, heads]` or `[rows, heads]`.
    """
    out_partial, lse_partial = detached(out_partial), detached(lse_partial)
    pairs = list(zip(out_partial, lse_partial.swapaxes(-1, -2), strict=True))
    if not pairs:
        raise InvalidInput("out_partial has no parts")
    result, lse = merged(pairs)
    if out is not None:
        detached(out)[...] = result
        result = out
    elif out_dtype is not None:
        result = converted(result, out_dtype)
    return result, lse.swapaxes(-1, -2)


def flash_attn_with_kvcache(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    k: Array | None = None,
    v: Array | None = None,
    rotary_cos: Array | None = None,
    rotary_sin: Array | None = None,
    cache_seqlens: int | Array | Sequence[int] | None = None,
    cache_batch_idx: Array | None = None,
    cache_leftpad: Array | None = None,
    block_table: Array | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Array | Sequence[float] | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    k_descale: Array | Sequence[float] | float | None = None,
    v_descale: Array | Sequence[float] | float | None = None,
    cu_seqlens_k_new: Array | Sequence[int] | None = None,
) -> Any:
    """Attention to a cache of keys and values, after new ones were written into it. Computes no gradient, also for tensors that require one.

    A call that is refused has written nothing. Numbers in arrays on a GPU are not checked: nobody waits for them.

    Args:
        q: Queries, `[batch, length, heads, head size]`.
        k_cache: Keys, `[batch, rows, heads, head size]`, or with a `block_table` `[pages, rows of a page, heads, head size]`.
            Written if k is given.
        v_cache: Values, of the shape of k_cache.
        k: New keys, `[batch, new rows, heads, head size]`: they go after the `cache_seqlens` rows that each sequence has.
        v: New values, of the shape of k.
        rotary_cos: `[positions, half of the rotary size]`: rotates k, and q, by the rows' positions. There are at least as many
            positions as a sequence of the cache can have rows.
        rotary_sin: The sines to the cosines of `rotary_cos`, of its shape.
        cache_seqlens: How many rows of the cache each sequence has, without the new ones: `int32`, `[batch]`, or one number for
            all.
        cache_batch_idx: `int32`, `[batch]`: which sequence of the cache, or row of the block table, belongs to each of q.
        cache_leftpad: `int32`, `[batch]`: how many rows at the beginning of each sequence are no keys.
        block_table: `int32`, `[batch, pages]`: the numbers of each sequence's pages.
        softmax_scale, window_size, softcap, alibi_slopes: As in `flash_attn_func`.
        causal: As in `flash_attn_func`; the last query is aligned with the last key of its sequence.
        rotary_interleaved: Whether elements 2i and 2i + 1 are rotated together, or i and i + half of the rotary size.
        num_splits: Ignored: the planner decides.
        return_softmax_lse: Whether to return `(out, lse)`.
        k_descale: Of a cache in 8 bits (`float8_e4m3fn`, or its bits as `uint8`), as flash_attn_3 calls it: each key counts times
            this, and k is divided by it when it is written. `float32`, a number, `[key/value heads]`, or one of these expanded to
            `[batch, key/value heads]`. q, k and v are not in 8 bits.
        v_descale: The scales of values, as `k_descale` has those of keys.
        cu_seqlens_k_new: `int32`, `[batch + 1]`, as flash_attn_3 has it: k and v are `[rows, heads, head size]`, and this says where
            each sequence's new rows begin.

    Returns:
        The output, of q's shape; with `return_softmax_lse` also the log-sum-exp, `[batch, heads, length]`.
    """
    q, k_cache, v_cache, k, v = map(detached, (q, k_cache, v_cache, k, v))
    rotary_cos, rotary_sin, alibi_slopes, k_descale, v_descale = map(detached, (rotary_cos, rotary_sin, alibi_slopes, k_descale, v_descale))
    q, k, v, block_table = map(row_contiguous, (q, k, v, block_table))
    cache = Cache(k_cache, v_cache, block_table)
    keys = None if _rows(k_cache) is None else cache.rows
    options = _scores("flash_attn_with_kvcache", keys, softmax_scale, causal, window_size, softcap, alibi_slopes)
    cache_seqlens = _lengths(cache_seqlens, q)
    cache = cache.chosen(cache_batch_idx)
    _expect_one_each("cache_batch_idx", cache_batch_idx, q)
    descales = _given(k_descale=k_descale, v_descale=v_descale)
    write = None
    if k is None and v is None:
        if rotary_cos is not None or rotary_sin is not None:
            raise InvalidInput("rotary_cos is given, but no new k and v are")
    else:
        if k is None or v is None:
            raise InvalidInput("k and v are given together or not at all")
        if cache_seqlens is None:
            raise InvalidInput("cache_seqlens is missing, but k is given")
        write = {
            "k": k,
            "v": v,
            "k_cache": cache.k,
            "v_cache": cache.v,
            "cache_seqlens": cache_seqlens,
            **descales,
        }
        if cache.block_table is not None:
            write["block_table"] = cache.block_table
        if rotary_cos is not None or rotary_sin is not None:
            write.update(rotary_cos=rotary_cos, rotary_sin=rotary_sin, interleaved=rotary_interleaved)
            for name in ("rotary_cos", "rotary_sin"):
                shape = getattr(write[name], "shape", ())
                if len(shape) == 2 and shape[0] < cache.rows:
                    raise InvalidInput(f"{name} has {shape[0]} positions, but a sequence of the cache can have {cache.rows} rows")
        if rotary_cos is not None:
            q = _turned(q, write, causal or "window" in options)
        if cu_seqlens_k_new is None:
            new = k.shape[1]
        else:
            cache_seqlens = integers(cache_seqlens, k)
            new = _row_by_row(write, cache, cache_seqlens, cu_seqlens_k_new)
        cache_seqlens = [length + new for length in cache_seqlens] if isinstance(cache_seqlens, list) else cache_seqlens + new
    if cache_leftpad is not None:
        cache, cache_seqlens = _without_padding(q, cache, cache_seqlens, cache_leftpad)
    cache = cache.readable()
    options |= descales
    if cache_seqlens is not None:
        options["seqused_k"] = cache_seqlens
    if cache.block_table is not None:
        options["block_table"] = cache.block_table
    if write is not None:
        return _after_write(write, q, cache, options, return_softmax_lse)
    out, lse = _any_head_size(q, cache.k, cache.v, options, _with_lse if return_softmax_lse else _without_lse)
    return (out, lse) if return_softmax_lse else out


def merged(pairs, **options):
    """`warptile.merge` of any number of pairs, at least one; it takes 32 at most."""
    while True:
        pairs = [merge(pairs[start : start + 32], **options) for start in range(0, len(pairs), 32)]
        if len(pairs) == 1:
            return pairs[0]


def _dense(caller, tensors, dropout_p, *rest):
    """Output, and what else is asked for, of dense sequences. Errors have the names of the function `caller`."""
    *scores, _deterministic, return_attn_probs = rest
    options = _scores(caller, _rows(tensors[1]), *scores)
    if dropout_p:
        options["dropout_p"] = dropout_p
    out, lse = _forward(*tensors, options, return_attn_probs)
    return (out, lse, None) if return_attn_probs else out


def _packed(caller, tensors, lengths, block_table, dropout_p, *rest):
    """As `_dense`, of sequences that lie one after the other."""
    *scores, _deterministic, return_attn_probs = rest
    (q, k, v), (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k) = tensors, lengths
    options = {
        **_scores(caller, _whole(max_seqlen_k), *scores),
        "cu_seqlens_q": cu_seqlens_q,
        "max_seqlen_q": _whole(max_seqlen_q),
        "max_seqlen_k": _whole(max_seqlen_k),
    }
    if dropout_p:
        options["dropout_p"] = dropout_p
    if block_table is None:
        options["cu_seqlens_k"] = cu_seqlens_k
    else:
        cache = Cache(k, v, block_table).readable()
        k, v, options["block_table"] = cache.k, cache.v, cache.block_table
        options["seqused_k"] = _differences(cu_seqlens_k)
    out, lse = _forward(q, k, v, options, return_attn_probs)
    return (out, lse, None) if return_attn_probs else out


def _scores(caller, keys, softmax_scale, causal, window_size, softcap, alibi_slopes):
    """The options of scores, as `attention` takes them, and the function whose names errors have. `keys`: the most of a sequence."""
    options = {"_caller": caller}
    # Each argument that is passed on takes time.
    if causal is not False:
        options["causal"] = causal
    window = sides(window_size, keys)
    if window != (None, None):
        options["window"] = window
    if softmax_scale is not None:
        options["scale"] = softmax_scale
    if softcap is not None and not (type(softcap) is float and softcap == 0.0):
        options["softcap"] = softcap
    if alibi_slopes is not None:
        options["alibi_slopes"] = alibi_slopes
    return options


def _given(**arguments):
    """Those that are not None."""
    return {name: value for name, value in arguments.items() if value is not None}


def _rows(tensor):
    """The length of a tensor of four dimensions; anything else is refused later."""
    shape = getattr(tensor, "shape", ())
    return shape[1] if len(shape) == 4 else None


def sides(window_size, keys):
    """The window with None for no limit; some callers pass a tensor. `keys`: the most that a sequence has, or None.

    A left side of that many keys hides none.
    """
    if type(window_size) is tuple and window_size == (-1, -1):
        return None, None
    try:
        left, right = (None if side is None or side < 0 else int(side) for side in window_size)
    except (TypeError, ValueError):
        raise InvalidInput(f"window_size is {window_size!r}, but must be two numbers of keys, (left, right)") from None
    return left, None if keys is not None and right is not None and right >= keys else right


def _lengths(cache_seqlens, q):
    """The lengths as a list or an array, also where they are one number for all sequences."""
    if cache_seqlens is None or (getattr(cache_seqlens, "shape", ()) != () and type(cache_seqlens) is not memoryview):
        return cache_seqlens
    if isinstance(cache_seqlens, Sequence):
        return list(cache_seqlens)
    # Tensors of torch with one length in a list are indices, too.
    if hasattr(cache_seqlens, "__index__") and known(cache_seqlens) is not None:
        try:
            return _for_all(operator.index(cache_seqlens), q)
        except TypeError:
            raise InvalidInput(f"cache_seqlens is {cache_seqlens}, which is no whole number") from None
    return cache_seqlens


def _expect_one_each(name, numbers, q):
    """Refuses a list that has not one number for each sequence."""
    if numbers is not None and len(numbers) != q.shape[0]:
        raise InvalidInput(f"{name} has length {len(numbers)}, but q has batch {q.shape[0]}")


def _row_by_row(write, cache, before, offsets):
    """Makes the write of packed rows one of sequences with one new row each. Returns how many new rows each sequence has."""
    k, v = write["k"], write["v"]
    if k.ndim != 3 or v.ndim != 3:
        raise InvalidInput("with cu_seqlens_k_new, k and v have the three dimensions [rows, heads, head size]")
    offsets = integers(offsets, k)
    found = whole_numbers("cu_seqlens_k_new", offsets)
    if found and (found != sorted(found) or found[0] != 0 or found[-1] != k.shape[0] or len(found) != before.shape[0] + 1):
        raise InvalidInput(f"cu_seqlens_k_new must have {before.shape[0] + 1} offsets that rise from 0 to {k.shape[0]}, the rows of k")
    row = counted(k.shape[0], k)
    sequence = sequence_of(row, offsets)
    place = cache.chosen(sequence)
    write.update(k=k[:, None], v=v[:, None], k_cache=place.k, v_cache=place.v, block_table=place.block_table)
    write["cache_seqlens"] = before[sequence] + (row - offsets[sequence])
    return offsets[1:] - offsets[:-1]


def _turned(q, write, has_diagonal):
    """Queries, rotated unless the write does it."""
    queries = q.shape[1]
    # They are at the positions of the new rows, or without a diagonal all at that of the first.
    if not has_diagonal and queries != 1:
        batch, _, heads, size = q.shape
        return _rotated(q.reshape(batch, 1, queries * heads, size), write).reshape(q.shape)
    if queries == write["k"].shape[1] and write["k"].ndim == 4 and q.shape[-1] % 8 == 0:
        write["q"] = q
        return q
    return _rotated(q, write)


def _rotated(q, write):
    """Queries rotated by their places after the `cache_seqlens` rows of their sequences, as new keys without heads would be."""
    nothing = q[:, :, :0]
    cache = empty((q.shape[0], write["rotary_cos"].shape[0], 0, q.shape[3]), q)
    same = {name: write[name] for name in ("cache_seqlens", "rotary_cos", "rotary_sin", "interleaved")}
    return write_cache(k=nothing, v=nothing, k_cache=cache, v_cache=cache, q=q, **same)


def _without_padding(q, cache, cache_seqlens, leftpad):
    """The cache and its lengths without the padding at the beginning of each sequence."""
    if cache_seqlens is None:
        cache_seqlens = _for_all(cache.rows, q)
    lengths = whole_numbers("cache_seqlens", cache_seqlens)
    for index, padding in enumerate(whole_numbers("cache_leftpad", leftpad)):
        if padding < 0:
            raise InvalidInput(f"cache_leftpad[{index}] is {padding}, but must be 0 or more")
        if index < len(lengths) and padding > lengths[index]:
            raise InvalidInput(f"cache_leftpad[{index}] is {padding}, but sequence {index} has {lengths[index]} rows")
    _expect_one_each("cache_leftpad", leftpad, q)
    if isinstance(cache_seqlens, list):
        cache_seqlens = [length - int(padding) for length, padding in zip(cache_seqlens, leftpad)]
    else:
        cache_seqlens = cache_seqlens - integers(leftpad, cache_seqlens)
    return cache.without(leftpad), cache_seqlens


def _after_write(write, q, cache, options, return_lse):
    """What `attention` gives after a write, of heads of any size."""
    size = q.shape[-1]
    wide = -(-size // 8) * 8
    if wide == size or not size == cache.k.shape[-1] == cache.v.shape[-1]:
        return attention_after_write(write, q, cache.k, cache.v, return_lse=return_lse, **options)
    if "scale" not in options:
        options = {**options, "scale": size**-0.5}
    k, v = wider(cache.k, wide), wider(cache.v, wide)

    def copy():
        k[..., :size], v[..., :size] = cache.k, cache.v

    found = attention_after_write(write, widened(q, wide), k, v, between=copy, return_lse=return_lse, **options)
    return (found[0][..., :size], found[1]) if return_lse else found[..., :size]


def _forward(q, k, v, options, want_lse):
    """The output, and the log-sum-exp if it is wanted, with a gradient if one will be needed."""
    q, k, v = row_contiguous(q), row_contiguous(k), row_contiguous(v)
    for tensor in (q, k, v):
        if getattr(tensor, "requires_grad", False):
            from . import torch

            if torch.gradients_enabled():
                return _any_head_size(q, k, v, options, torch.differentiable)
            break
    return _any_head_size(q, k, v, options, _with_lse if want_lse else _without_lse)


def _with_lse(q, k, v, options):
    return attention(q, k, v, return_lse=True, **options)


def _without_lse(q, k, v, options):
    return attention(q, k, v, **options), None


def _any_head_size(q, k, v, options, function):
    """Calls `function` with heads of a size that kernels take: the next multiple of 8, with zeros at the end."""
    size = q.shape[-1]
    wide = -(-size // 8) * 8
    if wide == size or not size == k.shape[-1] == v.shape[-1]:
        return function(q, k, v, options)
    if "scale" not in options:
        options = {**options, "scale": size**-0.5}
    out, lse = function(*(widened(tensor, wide) for tensor in (q, k, v)), options)
    return out[..., :size], lse


def _whole(number):
    """A length as an `int`: some callers pass a tensor with one element."""
    return None if number is None else int(number)


def _differences(offsets):
    if isinstance(offsets, (list, tuple)):
        return [end - start for start, end in zip(offsets, offsets[1:])]
    return offsets[1:] - offsets[:-1]


def _for_all(length, q):
    """The same length for every sequence, where q is."""
    return filled(q.shape[0], length, q)
