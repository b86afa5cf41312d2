"""Attention for torch: a `scaled_dot_product_attention`, torch's own with warptile's kernels, and transformers.

`scaled_dot_product_attention` has the signature of `torch.nn.functional`'s. `activate()` gives torch's flash attention warptile's
kernels, by torch's registry of implementations: models need no change, and gradients, `torch.compile` and CUDA graphs work as before. `torch.compile` takes `warptile.attention` and what calls it into its graphs, `fullgraph=True` included.
`register_with_transformers()` adds the attention implementation ``"warptile"``.

What warptile does not do is left to torch, with its gradients. Those of what warptile computes are warptile's: the same
bits each time. That of a mask is computed where the mask has the type of the query; of another one by torch.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _operators
from ._arrays import row_contiguous
from ._errors import DeviceError, NoKernel, Unsupported
from ._native import attention_backward, attention_of_torch, attention_without_gradient, has_kernels
from ._operators import LARGEST
from .flash_attn import sides

__all__ = ["activate", "deactivate", "register_with_transformers", "scaled_dot_product_attention"]

NAME = "warptile"
_HALVES = (torch.float16, torch.bfloat16)
_PLAIN = (Tensor, torch.nn.Parameter)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` by warptile where it can, else by torch; within `torch.autocast` in its type.

    Args:
        query: `[batch, heads, length, head size]`, as all tensors.
        key: As many heads as the query, or with `enable_gqa` fewer that divide them.
        value: Of the shape of key.
        attn_mask: `bool`, False hides a key; or of the query's type or `float32`, to be added to the scores. Broadcasts to
            `[batch, heads, queries, keys]`. Where gradients are wanted, torch computes with `float32` for another query's type.
        dropout_p: Probability of dropping a weight; torch's generator of the device decides which. Torch computes on GPUs for which warptile
            has no kernels with dropout.
        is_causal: Whether a query sees no key after itself; the first query is aligned with the first key.
        scale: Factor of the scores; `1 / sqrt(head size)` if not given.
        enable_gqa: Whether the key may have fewer heads.

    Returns:
        The output, `[batch, heads, length, head size]`.
    """
    if _autocasts(query):
        query, key, value, attn_mask = _autocast(query, key, value, attn_mask)
    masked = attn_mask is not None
    tensors = (query, key, value) + ((attn_mask,) if masked else ())
    needs_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    compiling = torch.compiler.is_compiling()
    below_autograd = not needs_gradient and not compiling
    has_elements = compiling or _has_elements(query)
    if below_autograd and has_elements and not masked and dropout_p == 0.0 and _device_has_kernels(query):
        try:
            found = attention_of_torch(query, key, value, is_causal, scale, enable_gqa, False)
        except NoKernel:
            found = None
        if found is not None:
            return found[0]
    taken = (
        has_elements
        and not (masked and is_causal)
        and _takes(query, key, value, enable_gqa)
        and (not masked or _takes_mask(query, key, attn_mask, needs_gradient))
        and (dropout_p == 0.0 or _drops(query, dropout_p))
    )
    if taken:
        dropout = _dropout(query, dropout_p)
        try:
            if below_autograd:
                return _forward(query, key, value, attn_mask, is_causal, scale, want_lse=False, **dropout)[0]
            return torch.ops.warptile.scaled_dot_product_attention(query, key, value, attn_mask, is_causal, scale, **dropout)[0]
        except NoKernel:
            pass
    options = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
    if enable_gqa:
        options["enable_gqa"] = True
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, **options)


def _autocasts(query):
    """Whether `torch.autocast` is on where the query is. Some devices have none, and torch sees to those where warptile computes nothing."""
    return (query.is_cuda or query.is_cpu) and torch.is_autocast_enabled(query.device.type)


def _has_elements(query):
    """Whether the elements of tensors are all that they are: no transform of `torch.func`, no forward-mode differentiation, `torch.jit.trace`
    or `make_fx` is at work, and the query is not nested.
    """
    return not (
        query.is_nested
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state()
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
    )


def _autocast(query, *others):
    """The arguments as torch's function has them within `torch.autocast`."""
    kind = query.device.type
    dtype = torch.get_autocast_dtype(kind)

    def cast(tensor):
        counts = isinstance(tensor, Tensor) and tensor.device.type == kind and tensor.is_floating_point()
        return tensor.to(dtype) if counts and tensor.dtype != torch.float64 else tensor

    return tuple(cast(tensor) for tensor in (query, *others))


def _takes(query, key, value, grouped):
    """Whether warptile computes this as torch means it."""
    if not (query.dim() == key.dim() == value.dim() == 4):
        return False
    heads, kv_heads, size = query.shape[1], key.shape[1], query.shape[3]
    return (
        type(query) in _PLAIN
        and type(key) in _PLAIN
        and type(value) in _PLAIN
        and (query.is_cuda or query.is_cpu)
        and query.device == key.device == value.device
        and query.dtype == key.dtype == value.dtype
        and query.dtype in (torch.float16, torch.bfloat16, torch.float32)
        and _device_has_kernels(query)
        and key.shape == value.shape
        and query.shape[0] == key.shape[0]
        and key.shape[3] == size
        and 8 <= size <= LARGEST
        and size % 8 == 0
        and kv_heads > 0
        and (heads == kv_heads or (grouped and heads % kv_heads == 0))
    )


def _takes_mask(query, key, mask, needs_gradient):
    # Numbers of another type than the query's have no gradients.
    added = (query.dtype,) if needs_gradient else (query.dtype, torch.float32)
    return (
        type(mask) in _PLAIN
        and mask.device == query.device
        and mask.dtype in (torch.bool, *added)
        and 0 < mask.dim() <= 4
        and all(
            extent in (1, wanted)
            for extent, wanted in zip(reversed(mask.shape), (key.shape[2], query.shape[2], query.shape[1], query.shape[0]))
        )
    )


def _drops(query, dropout_p):
    """Whether warptile has this dropout for such queries, and gradients with it."""
    return 0.0 < dropout_p < 1.0 and (query.is_cpu or _has_kernels(query.device.index, query.dtype in _HALVES, True))


def _device_has_kernels(query):
    """Whether the query is on no GPU for which warptile, as it was built, has no kernels."""
    return not query.is_cuda or _has_kernels(query.device.index, query.dtype in _HALVES, False)


@functools.cache
def _planned_kernels(ordinal, half, dropout):
    try:
        return has_kernels(ordinal, half, dropout)
    except DeviceError:
        # Such as a driver that is too old for warptile.
        return False


@torch.compiler.assume_constant_result
def _has_kernels(ordinal, half, dropout):
    return _planned_kernels(ordinal, half, dropout)


def _dropout(query, dropout_p):
    """The arguments of dropout with random numbers that are drawn here, if there is any."""
    return {"dropout_p": dropout_p, "dropout_state": _operators.drawn_state(query)} if dropout_p else {}


def _square(query, key, is_causal):
    """Whether torch's backward kernels, which align a causal mask with the last key, mean the same mask."""
    return not is_causal or query.shape[2] == key.shape[2]


def _output_like(query):
    """In the query's storage order, as torch's kernels have it, if its rows are contiguous then."""
    out = torch.empty_like(query)
    return out if out.stride(-1) == 1 else torch.empty_like(query, memory_format=torch.contiguous_format)


def _forward(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    scale=None,
    softcap=None,
    sinks=None,
    dropout_p=0.0,
    dropout_state=None,
    want_lse=True,
):
    options = _options(attn_mask, is_causal, scale, softcap, sinks, dropout_p, dropout_state)
    if want_lse:
        batch, heads, length, _ = query.shape
        options["lse"] = torch.empty((batch, heads, length), dtype=torch.float32, device=query.device)
    out = attention_without_gradient(
        row_contiguous(query),
        row_contiguous(key),
        row_contiguous(value),
        out=_output_like(query),
        **options,
    )
    return out, options.get("lse")


# The operator behind scaled_dot_product_attention, for autograd and torch.compile.

_library = torch.library.Library("warptile", "DEF")
_library.define(
    "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, bool is_causal=False, "
    "float? scale=None, float? softcap=None, Tensor? sinks=None, float dropout_p=0.0, Tensor? dropout_state=None) -> (Tensor, Tensor)"
)


for _device in ("CPU", "CUDA"):
    _library.impl("scaled_dot_product_attention", _forward, _device)


@torch.library.register_fake("warptile::scaled_dot_product_attention", lib=_library)
def _fake(query, *_, **__):
    lse = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)
    return _output_like(query), lse


def _options(attn_mask, is_causal, scale, softcap, sinks, dropout_p, dropout_state):
    """The arguments as `warptile.attention` has them."""
    options = {"layout": "bhsd", "scale": scale, "softcap": softcap, "sinks": sinks}
    if attn_mask is not None:
        # Two dimensions of a key mask would be [batch, keys].
        mask = attn_mask[None, None] if attn_mask.dim() == 2 else attn_mask
        options["key_mask" if attn_mask.dtype == torch.bool else "bias"] = mask
    if is_causal:
        options |= {"causal": True, "diagonal": "top-left"}
    if dropout_state is not None:
        options |= {"dropout_p": dropout_p, "dropout_state": dropout_state}
    return options


def _save(ctx, inputs, output):
    query, key, value, mask, ctx.is_causal, ctx.scale, ctx.softcap, sinks, ctx.dropout_p, state = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(query, key, value, mask, sinks, state, *output)


def _backward(ctx, grad_out, _grad_lse):
    query, key, value, mask, sinks, state, out, lse = ctx.saved_tensors
    needed = ctx.needs_input_grad
    needs = [*needed[:4], needed[7]]
    tensors = (row_contiguous(tensor) for tensor in (query, key, value))
    options = _options(mask, ctx.is_causal, ctx.scale, ctx.softcap, sinks, ctx.dropout_p, state)
    *gradients, d_mask, d_sinks = _operators.backward(grad_out, None, *tensors, out, lse, needs, **options)
    if d_mask is not None:
        d_mask = d_mask.view(mask.shape)
    return (*gradients, d_mask, None, None, None, d_sinks, None, None)


_operators.register_autograd(_library, "scaled_dot_product_attention", _save, _backward)


@functools.cache
@torch.inference_mode(False)
def _nothing(dtype, device):
    return torch.empty(0, dtype=dtype, device=device)


try:
    # The code of torch's compiler makes tensors on the current GPU by this, in half the time of `torch.empty_strided`.
    _quick_empty, _current_gpu = torch._C._dynamo.guards._empty_strided_cuda, torch._C._cuda_getDevice
except AttributeError:
    _quick_empty = None


def _unused(like):
    """What torch's kernels return for dropout and probabilities, which there are none of: two states of a random generator, and a tensor
    without memory, so that all calls may share it.
    """
    device = like.device
    if _quick_empty is not None and like.is_cuda and _current_gpu() == device.index:
        seed, offset = _quick_empty((2,), (1,), torch.uint64), _quick_empty((), (), torch.uint64)
    else:
        # It takes less time than `torch.empty`.
        seed = torch.empty_strided((2,), (1,), dtype=torch.uint64, device=device)
        offset = torch.empty_strided((), (), dtype=torch.uint64, device=device)
    return seed, offset, _nothing(like.dtype, device)


def _dropout_of_torch(query, dropout_p, return_debug_mask):
    """The arguments of dropout, and what torch's kernels return for it: the seed has the random numbers."""
    if return_debug_mask:
        raise Unsupported("return_debug_mask is not supported by warptile with dropout")
    dropout, (_, offset, debug) = _dropout(query, dropout_p), _unused(query)
    return dropout, (dropout["dropout_state"][:4].view(torch.uint64), offset, debug)


# Torch's flash attention by warptile's kernels.


class _Handle:
    """What torch's registry keeps: dropping the library gives the operators their own kernels back."""

    def __init__(self, library):
        self.library = library

    def remove(self):
        self.library = None


_handle = None


def _register():
    global _handle
    library = torch.library.Library("aten", "IMPL", "CUDA")
    for name, make in (
        ("_scaled_dot_product_flash_attention", _flash_of_sdpa),
        ("_flash_attention_forward", _flash_of_rows),
        ("_scaled_dot_product_flash_attention_backward", _gradients_of_sdpa),
        ("_flash_attention_backward", _gradients_of_rows),
    ):
        # Taken before it is overridden: it computes what warptile does not.
        original = torch.library.get_kernel(f"aten::{name}", "CUDA")
        library.impl(name, make(original), "CUDA", with_keyset=True)
    _handle = _Handle(library)
    return _handle


def _flash_of_sdpa(original):
    def flash(keys, query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
        if dropout_p == 0.0 and not return_debug_mask:
            try:
                found = attention_of_torch(query, key, value, is_causal, scale, True, True)
                if found is None and _takes(query, key, value, True) and _square(query, key, is_causal):
                    found = _forward(query, key, value, None, is_causal, scale)
            except NoKernel:
                found = None
            if found is not None:
                (out, lse), (seed, offset, debug) = found, _unused(query)
                return out, lse, None, None, query.shape[2], key.shape[2], seed, offset, debug
        elif _takes(query, key, value, True) and _square(query, key, is_causal) and _drops(query, dropout_p):
            dropout, random = _dropout_of_torch(query, dropout_p, return_debug_mask)
            out, lse = _forward(query, key, value, None, is_causal, scale, **dropout)
            return out, lse, None, None, query.shape[2], key.shape[2], *random
        return original.call_boxed(keys, query, key, value, dropout_p, is_causal, return_debug_mask, scale=scale)

    return flash


# Options of torch's operator that warptile has.
_TAKEN = {"scale", "window_size_left", "window_size_right", "seqused_k", "alibi_slopes"}


def _takes_rows(query, key, value, cum_seq_q, cum_seq_k):
    """Whether warptile computes `[batch, length, heads, head size]`, or packed rows, as torch means it."""
    packed, size = cum_seq_q is not None, query.shape[-1]
    return (
        packed == (cum_seq_k is not None)
        and query.dim() == (3 if packed else 4)
        and all(type(tensor) in _PLAIN for tensor in (query, key, value))
        and query.dtype in _HALVES
        and key.shape == value.shape
        and size % 8 == 0
        and 8 <= size <= LARGEST
    )


def _window(options, key, max_k):
    """The window of torch's operator. `max_k`: the longest packed sequence of keys, if they are packed."""
    return sides((options.get("window_size_left"), options.get("window_size_right")), key.shape[1] if max_k is None else max_k)


def _flash_of_rows(original):
    def flash(keys, query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask, **options):
        given = {name: option for name, option in options.items() if option is not None}
        packed = cum_seq_q is not None
        drops = dropout_p != 0.0 and _takes_rows(query, key, value, cum_seq_q, cum_seq_k) and _drops(query, dropout_p)
        if drops and not given.keys() <= _TAKEN:
            raise Unsupported(f"{', '.join(given.keys() - _TAKEN)} is not supported by warptile with dropout")
        plain = dropout_p == 0.0 and not return_debug_mask and given.keys() <= _TAKEN
        if drops or (plain and _takes_rows(query, key, value, cum_seq_q, cum_seq_k)):
            ours = {name: option for name, option in given.items() if not name.startswith("window")}
            if packed:
                ours.update(cu_seqlens_q=cum_seq_q, cu_seqlens_k=cum_seq_k, max_seqlen_q=max_q, max_seqlen_k=max_k)
            window = _window(given, key, max_k if packed else None)
            random = _unused(query)
            if drops:
                dropout, random = _dropout_of_torch(query, dropout_p, return_debug_mask)
                ours |= dropout
            tensors = (row_contiguous(tensor) for tensor in (query, key, value))
            try:
                out, lse = attention_without_gradient(*tensors, causal=is_causal, window=window, return_lse=True, **ours)
            except NoKernel:
                if drops:
                    raise
            else:
                return out, lse, *random
        return original.call_boxed(
            keys, query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask, **given
        )

    return flash


def _gradients_of_sdpa(original):
    def gradients(keys, grad_out, query, key, value, out, lse, cum_q, cum_k, max_q, max_k, dropout_p, is_causal, *random, scale=None):
        takes = _takes(query, key, value, True) and _square(query, key, is_causal)
        if takes and _is_ours(query, query.shape[1] == key.shape[1], lse, query.shape[:3], dropout_p):
            ours = {"layout": "bhsd", "causal": is_causal, "scale": scale}
            found = _gradients(grad_out, query, key, value, out, lse, ours, dropout_p, random)
            if found is not None:
                return found
        given = (grad_out, query, key, value, out, lse, cum_q, cum_k, max_q, max_k, dropout_p, is_causal, *random)
        return original.call_boxed(keys, *given, scale=scale)

    return gradients


def _gradients_of_rows(original):
    def gradients(keys, grad_out, query, key, value, out, lse, cum_q, cum_k, max_q, max_k, dropout_p, is_causal, *random, **options):
        packed = query.dim() == 3
        takes = _takes_rows(query, key, value, cum_q if packed else None, cum_k if packed else None)
        batch, rows, heads = (query.shape[:1] if not packed else ()), query.shape[-3], query.shape[-2]
        if takes and _is_ours(query, heads == key.shape[-2], lse, (*batch, heads, rows), dropout_p):
            ours = {"causal": is_causal, "scale": options.get("scale")}
            ours["window"] = _window(options, key, max_k if packed else None)
            if packed:
                ours.update(cu_seqlens_q=cum_q, cu_seqlens_k=cum_k, max_seqlen_q=max_q, max_seqlen_k=max_k)
            found = _gradients(grad_out, query, key, value, out, lse, ours, dropout_p, random)
            if found is not None:
                return found
        given = (grad_out, query, key, value, out, lse, cum_q, cum_k, max_q, max_k, dropout_p, is_causal, *random)
        return original.call_boxed(keys, *given, **options)

    return gradients


def _is_ours(query, heads_are_equal, lse, shape, dropout_p):
    """Whether warptile's gradients are taken instead of those of torch's kernels, which read warptile's output and log-sum-exp as well.

    With dropout they are where warptile has computed the output. Else they are on compute capability 9.0, where they were measured to be
    faster (docs/training.md); where torch is asked for the same bits each time; and where heads share keys, for which torch's kernels have
    not been tried.
    """
    if dropout_p != 0.0:
        return _drops(query, dropout_p)
    if lse.shape != shape or lse.dtype != torch.float32 or not lse.is_contiguous():
        return False
    if not heads_are_equal or torch.are_deterministic_algorithms_enabled():
        return True
    return torch.cuda.get_device_capability(query.device) == (9, 0)


def _gradients(grad_out, query, key, value, out, lse, options, dropout_p, random):
    """Those of q, k and v as torch's operators give them, or None if no kernel computes them."""
    if dropout_p != 0.0:
        state = torch.nn.functional.pad(random[0].view(torch.int32), (0, 4))
        options |= {"dropout_p": dropout_p, "dropout_state": state}
    make = torch.zeros_like if options.get("cu_seqlens_q") is not None else torch.empty_like
    made = []
    for of in (query, key, value):
        like = make(of)
        made.append(like if like.stride(-1) == 1 else make(of, memory_format=torch.contiguous_format))
    tensors = (row_contiguous(tensor) for tensor in (grad_out, query, key, value, out))
    into = dict(zip(("dq", "dk", "dv"), made))
    try:
        attention_backward(*tensors, lse, needs=(True, True, True, False, False), **into, **options)
    except NoKernel:
        if dropout_p != 0.0:
            raise
        return None
    return tuple(made)


def activate() -> None:
    """Makes warptile's kernels those of torch's flash attention, for all of the process.

    `torch.nn.functional.scaled_dot_product_attention` uses them wherever it chooses flash attention, and so do modules and compiled models.
    It is entered in torch's registry as ``"warptile"``, so `torch.nn.attention.current_flash_attention_impl()` names it.

    Raises:
        warptile.Unsupported: This torch has no registry of flash attention implementations; 2.11 is the first that is known to do.
    """
    registry = torch.nn.attention
    needed = ("register_flash_attention_impl", "activate_flash_attention_impl")
    if not all(hasattr(registry, name) for name in needed) or not hasattr(torch.library, "get_kernel"):
        raise Unsupported(
            f"torch {torch.__version__} has no registry of flash attention implementations; warptile.torch.activate() needs 2.11 or newer"
        )
    registry.register_flash_attention_impl(NAME, register_fn=_register)
    registry.activate_flash_attention_impl(NAME)


def deactivate() -> None:
    """Gives torch's flash attention its own kernels back, if `activate` has changed them."""
    global _handle
    if _handle is None or _handle.library is None:
        return
    restore = getattr(torch.nn.attention, "restore_flash_attention_impl", None)
    if restore is not None:
        restore()
    else:
        _handle.remove()
    _handle = None


# Gradients of the functions in warptile.flash_attn.


def gradients_enabled():
    return torch.is_grad_enabled()


def differentiable(q, k, v, options):
    """Output and log-sum-exp of `flash_attn_func` or `flash_attn_varlen_func`, with their gradients, which always are deterministic."""
    return _operators.attention(q, k, v, return_lse=True, **options)


# Transformers.


def register_with_transformers(name: str = NAME) -> None:
    """Adds warptile to the attention implementations of transformers: `model.set_attn_implementation("warptile")`.

    Masks are those that transformers makes for ``"sdpa"``. Logit softcapping and attention sinks (`s_aux`) are computed, with their gradients;
    and dropout, which models ask for while they are trained.

    Args:
        name: The name that it gets there.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(name, transformers_attention)
    try:
        from transformers import AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask
    except ImportError:
        # Older versions make their masks without asking for the implementation's name.
        return
    AttentionMaskInterface.register(name, sdpa_mask)


def transformers_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """As transformers calls it: `[batch, heads, length, head size]` in, `[batch, length, heads, head size]` and None out."""
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    is_causal = bool(is_causal and attention_mask is None and query.shape[2] > 1)
    if position_bias is not None:
        attention_mask = _biased(position_bias, attention_mask, is_causal, query, key)
        is_causal = False
    if softcap is None and s_aux is None:
        grouped = query.shape[1] != key.shape[1]
        out = scaled_dot_product_attention(query, key, value, attention_mask, dropout, is_causal, scaling, enable_gqa=grouped)
        return out.transpose(1, 2).contiguous(), None
    if _autocasts(query):
        query, key, value, attention_mask = _autocast(query, key, value, attention_mask)
    sinks = None if s_aux is None else s_aux.float()
    learned = (tensor for tensor in (query, key, value, attention_mask, sinks) if tensor is not None)
    needs_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in learned)
    if needs_gradient or torch.compiler.is_compiling() or not _has_elements(query):
        operator = torch.ops.warptile.scaled_dot_product_attention
        out, _ = operator(query, key, value, attention_mask, is_causal, scaling, softcap, sinks, **_dropout(query, dropout))
    else:
        out, _ = _forward(
            query, key, value, attention_mask, is_causal, scaling, softcap, sinks, want_lse=False, **_dropout(query, dropout)
        )
    return out.transpose(1, 2).contiguous(), None


def _biased(position_bias, mask, is_causal, query, key):
    """A learned bias and the mask as one bias. What is hidden gets the least number, as transformers has it."""
    hidden = torch.finfo(query.dtype).min
    bias = position_bias.to(query.dtype)
    if is_causal:
        mask = torch.ones((query.shape[2], key.shape[2]), dtype=torch.bool, device=query.device).tril()
    if mask is None:
        return bias
    return torch.where(mask, bias, hidden) if mask.dtype == torch.bool else bias + mask
