"""Modules with flash-attention's names and warptile's functions, for its tests to import.

`warptile.flash_attn` stands for its package `flash_attn` (FlashAttention-2), and `flash_attn_interface` is made here of the same functions
and `warptile.attention` (FlashAttention-3). What else its tests import, such as padding and rotation by torch and Triton, is its own.
"""

import pathlib
import sys
import types

import torch
import warptile.torch
from warptile import Unsupported, _operators, flash_attn
from warptile._kvcache import Cache

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
import reference  # noqa: E402

# The reason why the running case has no gradient, or None.
refused_gradients = []

# The last probability of dropout.
probabilities = [0.0]


def _backward(original):
    """The backward part, or gradients of zero where it is refused, so that a test still checks what it does not need them for."""

    def backward(d_out, d_lse, q, k, v, *given, **options):
        try:
            return original(d_out, d_lse, q, k, v, *given, **options)
        except Unsupported as refusal:
            refused_gradients.append(str(refusal))
        return [*map(torch.zeros_like, (q, k, v)), None]

    return backward


def _with_mask(original, lengths_of):
    """A function that computes dense or packed sequences, with dropout's mask in place of probabilities: their sign is all that tests need.

    `lengths_of` gives the probability and the numbers of sequences, queries and keys from the arguments.
    """

    def compute(caller, tensors, *given):
        draw, states = _operators.drawn_state, []
        _operators.drawn_state = lambda like: states.append(draw(like)) or states[0]
        try:
            result = original(caller, tensors, *given)
        finally:
            _operators.drawn_state = draw
        if not states or not isinstance(result, tuple):
            return result
        p, sequences, *lengths = lengths_of(*tensors[:2], *given)
        state, masks, probabilities[:] = states[0].tolist(), [], [p]
        with torch.device(tensors[0].device):
            # One after the other, as masks take memory.
            for sequence in range(sequences):
                state[4] = sequence
                masks.append(reference.dropout(p, state, 1, tensors[0].shape[-2], *lengths, of=torch) > 0)
        return *result[:2], torch.where(torch.cat(masks), 1.0, -1.0)

    return compute


def _module(name, functions):
    module = types.ModuleType(name)
    for function in functions:
        setattr(module, function.__name__, function)
    sys.modules[name] = module
    return module


def install(checkout):
    """Puts the modules in place; `checkout` is flash-attention's repository."""
    _operators.backward = _backward(_operators.backward)
    flash_attn._dense = _with_mask(flash_attn._dense, lambda q, k, p, *_: (p, len(q), q.shape[1], k.shape[1]))
    flash_attn._packed = _with_mask(flash_attn._packed, lambda q, k, lengths, table, p, *_: (p, len(lengths[0]) - 1, *lengths[2:]))
    functions = [getattr(flash_attn, name) for name in flash_attn.__all__]
    package = _module("flash_attn", functions)
    package.__path__ = [str(checkout / "flash_attn")]
    interface = _module("flash_attn.flash_attn_interface", functions)
    interface._get_block_size_n = None  # Only what `run.py` replaces calls it.
    interface.USE_TRITON_ROCM = False

    def private(name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unsupported(f"{name} is a private name of flash_attn")

    interface.__getattr__ = private
    fa3 = types.ModuleType("flash_attn_interface")
    for function in (fa3_func, fa3_varlen_func, fa3_with_kvcache, fa3_combine):
        setattr(fa3, function.__name__.replace("fa3", "flash_attn"), function)
    fa3.get_scheduler_metadata = fa3_get_scheduler_metadata
    sys.modules["flash_attn_interface"] = fa3
    sys.path.insert(0, str(checkout / "hopper"))


def _refuse_of_fa3(**arguments):
    for name, value in arguments.items():
        if value is not None and not (isinstance(value, int) and value == 0):
            raise Unsupported(f"{name} is not supported by warptile")


def fa3_func(
    q,
    k,
    v,
    softmax_scale=None,
    causal=False,
    qv=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
):
    _refuse_of_fa3(qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, attention_chunk=attention_chunk)
    result = flash_attn.flash_attn_func(
        q, k, v, 0.0, softmax_scale, causal, window_size, softcap, None, deterministic, return_attn_probs
    )
    return result[:2] if return_attn_probs else result


def fa3_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    seqused_q=None,
    seqused_k=None,
    softmax_scale=None,
    causal=False,
    qv=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
):
    _refuse_of_fa3(qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, attention_chunk=attention_chunk)
    if seqused_q is None and seqused_k is None:
        result = flash_attn.flash_attn_varlen_func(
            q,
            k,
            v,
            cu_seqlens_q,
            cu_seqlens_k,
            max_seqlen_q,
            max_seqlen_k,
            0.0,
            softmax_scale,
            causal,
            window_size,
            softcap,
            None,
            deterministic,
            return_attn_probs,
        )
        return result[:2] if return_attn_probs else result
    options = {
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "max_seqlen_q": max_seqlen_q,
        "max_seqlen_k": max_seqlen_k,
        "seqused_q": seqused_q,
        "seqused_k": seqused_k,
        "scale": softmax_scale,
        "causal": causal,
        "window": tuple(int(side) for side in window_size),
        "softcap": softcap,
    }
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (q, k, v)):
        result = warptile.torch.differentiable(q, k, v, options)
    else:
        result = warptile.attention(q, k, v, **options, return_lse=True)
    return result if return_attn_probs else result[0]


def fa3_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    qv=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    page_table=None,
    cu_seqlens_q=None,
    cu_seqlens_k_new=None,
    max_seqlen_q=None,
    rotary_seqlens=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    rotary_interleaved=True,
    scheduler_metadata=None,
    num_splits=0,
    pack_gqa=None,
    sm_margin=0,
    return_softmax_lse=False,
):
    _refuse_of_fa3(
        qv=qv,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        attention_chunk=attention_chunk,
    )
    if cu_seqlens_q is not None:
        if k is not None:
            raise Unsupported("flash_attn_with_kvcache does not take packed queries (cu_seqlens_q)")
        cache = Cache(k_cache, v_cache, page_table).chosen(cache_batch_idx).without(cache_leftpad).readable()
        result = warptile.attention(
            q,
            cache.k,
            cache.v,
            cu_seqlens_q=cu_seqlens_q,
            max_seqlen_q=max_seqlen_q,
            seqused_k=cache_seqlens if cache_leftpad is None else cache_seqlens - cache_leftpad,
            block_table=cache.block_table,
            causal=causal,
            window=tuple(int(side) for side in window_size),
            scale=softmax_scale,
            softcap=softcap,
            return_lse=True,
        )
        return result if return_softmax_lse else result[0]
    if rotary_seqlens is not None and rotary_cos is not None and rotary_seqlens is not cache_seqlens:
        raise Unsupported("rotary_seqlens is not supported by warptile")
    return flash_attn.flash_attn_with_kvcache(
        q,
        k_cache,
        v_cache,
        k,
        v,
        rotary_cos,
        rotary_sin,
        cache_seqlens,
        cache_batch_idx,
        cache_leftpad,
        page_table,
        softmax_scale,
        causal,
        window_size,
        softcap,
        rotary_interleaved,
        None,
        num_splits,
        return_softmax_lse,
        cu_seqlens_k_new=cu_seqlens_k_new,
    )


def fa3_get_scheduler_metadata(*_, **__):
    """Warptile's kernels need none."""


def fa3_combine(out_partial, lse_partial, out=None, out_dtype=None):
    # Here an lse has its heads last.
    parts = list(zip(out_partial, lse_partial.transpose(-1, -2), strict=True))
    while True:
        # A merge takes 32 parts at most.
        parts = [warptile.merge(parts[start : start + 32]) for start in range(0, len(parts), 32)]
        if len(parts) == 1:
            break
    merged, lse = parts[0]
    merged = merged.to(out_dtype or out_partial.dtype)
    return (merged if out is None else out.copy_(merged)), lse.transpose(-1, -2)
