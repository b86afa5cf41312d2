"""`warptile.attention` and its gradients as operators of torch, which autograd and compilers take as a whole."""

import ast
import numbers
import types

import torch

from ._arrays import row_contiguous
from ._block_list import BlockList
from ._errors import InvalidType, Unsupported, refuse_second_derivatives
from ._native import attention as _attention
from ._native import attention_backward, attention_without_gradient, gradient_names, options_stub

if not hasattr(torch.library, "register_fake"):
    raise Unsupported(f"torch {torch.__version__} is too old for warptile's gradients, operators and warptile.torch; they need 2.4 or newer")

# What an operator cannot have, and where tensors and numbers have other names: inductor has an argument called `kernel` of its own.
_NEVER = ("out", "lse", "stream")
_RENAMED = {"window": {"left": "int", "right": "int"}, "kernel": {"kernel_name": "str"}, "block_list": {"blocks": "str", "blocks_each": "SymInt"}}
_TYPES = {"int | None": "SymInt", "bool | None": "bool", "float | None": "float"}

# The operators' optional arguments in the order of their schema: tensors, with the element type that a list becomes, then other options
# with their types.
_TENSORS, _OTHERS = {}, {}
for _field in ast.parse(options_stub()).body[-1].body:
    if isinstance(_field, ast.AnnAssign) and _field.target.id not in _NEVER:
        _of = ast.unparse(_field.annotation)
        if _of.startswith("Array"):
            _TENSORS[_field.target.id] = torch.float32 if "float" in _of else torch.int32
        else:
            _OTHERS |= _RENAMED.get(_field.target.id, {_field.target.id: _TYPES.get(_of, "str")})
_OTHERS["_caller"] = "str"
# A BlockList is two tensors and their arrangement. Its `each`, which differs from list to list, is a number of its own: for each text code
# would be compiled once more.
_TENSORS |= {"block_offsets": torch.int32, "block_indices": torch.int32}
_NAMES = (*_TENSORS, *_OTHERS)

# The arguments that have gradients, in the order of these: q, k, v and options.
_GRADIENTS = dict(gradient_names())
_LEARNED = tuple(_GRADIENTS)[3:]

# Rows of tensors with these may belong to no sequence.
_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")

_library = torch.library.Library("warptile", "FRAGMENT")
_optional = ", ".join([*(f"Tensor? {name}=None" for name in _TENSORS), *(f"{of}? {name}=None" for name, of in _OTHERS.items())])
_library.define(f"attention(Tensor q, Tensor k, Tensor v, bool want_lse, {_optional}) -> (Tensor, Tensor)")
_library.define(
    "attention_backward(Tensor d_out, Tensor? d_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, bool[] needs, "
    f"{_optional}) -> ({', '.join('Tensor' for _ in _GRADIENTS)})"
)


def register_autograd(library, name, save, backward):
    """As torch's function of this name, whose operators spend most of a call on asking for their defaults one by one."""
    operator = getattr(torch.ops.warptile, name).default
    defaults = [argument.default_value for argument in operator._schema.arguments]

    def forward(ctx, *inputs):
        *inputs, keys = inputs
        with torch._C._AutoDispatchBelowAutograd():
            results = operator.redispatch(keys, *inputs)
        save(ctx, inputs, results)
        return results

    methods = {"forward": forward, "backward": lambda ctx, *gradients: (*backward(ctx, *gradients), None)}
    methods = {of: staticmethod(method) for of, method in methods.items()}
    differentiable = type(f"warptile_{name}", (torch.autograd.Function,), methods)

    def compute(keys, *inputs):
        keys = keys & torch._C._after_autograd_keyset
        if torch.is_grad_enabled() and any(isinstance(given, torch.Tensor) and given.requires_grad for given in inputs):
            return differentiable.apply(*inputs, *defaults[len(inputs) :], keys)
        with torch._C._AutoDispatchBelowAutograd():
            return operator.redispatch(keys, *inputs)

    library.impl(name, compute, "Autograd", with_keyset=True)


def drawn_state(like):
    """Random numbers for dropout from torch's generator of the device of `like`. Compilers, checkpoints and captures know how to treat them."""
    return torch.nn.functional.pad(torch.randint(1 << 31, (4,), dtype=torch.int32, device=like.device), (0, 4))


def with_dropout(q, k, v, **options):
    """`warptile.attention` without random numbers."""
    return _attention(q, k, v, **{**options, "dropout_state": drawn_state(q)})


def _output(q, v):
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def _named(rest, named):
    """The options of an operator by name, where it is called with the first ones by position."""
    return {**dict(zip(_NAMES, rest)), **named}


def _native(options):
    """The options as the native functions take them."""
    options = dict(options)
    left, right = options.pop("left", None), options.pop("right", None)
    options["kernel"] = options.pop("kernel_name", None)
    if (left, right) != (None, None):
        options["window"] = (left, right)
    blocks, each, offsets, indices = (options.pop(name, None) for name in ("blocks", "blocks_each", "block_offsets", "block_indices"))
    if blocks is not None:
        arrangement = blocks if each is None else f"{blocks},{each}"
        options["block_list"] = types.SimpleNamespace(arrangement=arrangement, offsets=offsets, indices=indices)
    return options


def _forward(q, k, v, want_lse, *rest, **named):
    options = _native(_named(rest, named))
    # The rows that no sequence owns, which kernels leave alone, are zeros in an output that is made for them.
    out = None if any(options.get(name) is not None for name in ("cu_seqlens_q", "seqused_q")) else _output(q, v)
    found = attention_without_gradient(q, k, v, out=out, return_lse=want_lse, **options)
    out, lse = found if want_lse else (found, q.new_empty(0, dtype=torch.float32))
    return out.contiguous(), lse.contiguous()


def _gradients(q, k, v, needs, options):
    """Tensors for the gradients that are needed, without elements for others."""
    make = "new_zeros" if any(options.get(name) is not None for name in _LENGTHS) else "new_empty"
    made = [getattr(of, make)(of.shape) if needed else of.new_empty(0) for of, needed in zip((q, k, v), needs)]
    for name, needed in zip(_LEARNED, needs[3:]):
        of = options[name] if needed else q.new_empty(0)
        made.append(of.new_empty(of.shape) if _once(of) is of else of.new_zeros(of.shape))
    return tuple(made)


def _once(tensor, of=None):
    """The first of what is repeated in a tensor, or of what is in another one: a gradient there, and 0 elsewhere, has the right sums."""
    for dimension, (size, stride) in enumerate(zip(*((of.shape, of.stride()) if of is not None else (tensor.shape, tensor.stride())))):
        if size > 1 and stride == 0:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def _backward(d_out, d_lse, q, k, v, out, lse, needs, *rest, **named):
    options = _named(rest, named)
    made = _gradients(q, k, v, needs, options)
    into = {name: to for name, to, needed in zip(_GRADIENTS.values(), made, needs) if needed}
    if "d_bias" in into:
        into["d_bias"] = _once(into["d_bias"], options["bias"])
    options = _native(options)
    # The kernel that was chosen is one for the output.
    del options["kernel"]
    d_lse = None if d_lse is None else d_lse.contiguous()
    attention_backward(row_contiguous(d_out), q, k, v, out, lse, d_lse=d_lse, needs=tuple(needs), **into, **options)
    return made


for _device in ("CPU", "CUDA"):
    _library.impl("attention", _forward, _device)
    _library.impl("attention_backward", _backward, _device)


@torch.library.register_fake("warptile::attention", lib=_library)
def _fake(q, k, v, want_lse, *rest, **named):
    shape, layout = (0,), _named(rest, named).get("layout")
    if want_lse and q.dim() == 3:
        shape = (q.shape[1], q.shape[0])
    elif want_lse:
        shape = (q.shape[0], *(q.shape[1:3] if layout == "bhsd" else (q.shape[2], q.shape[1])))
    return _output(q, v), q.new_empty(shape, dtype=torch.float32)


@torch.library.register_fake("warptile::attention_backward", lib=_library)
def _fake_backward(d_out, d_lse, q, k, v, out, lse, needs, *rest, **named):
    return _gradients(q, k, v, needs, _named(rest, named))


def _save(ctx, inputs, output):
    q, k, v, ctx.has_lse, *options = inputs
    ctx.set_materialize_grads(False)
    if not ctx.has_lse:
        ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(q, k, v, *output, *options[: len(_TENSORS)])
    ctx.others = options[len(_TENSORS) :]


def _of_attention(ctx, d_out, d_lse):
    q, k, v, out, lse, *tensors = ctx.saved_tensors
    need = dict(zip(_TENSORS, ctx.needs_input_grad[4:]))
    for name, needed in need.items():
        if needed and name not in _LEARNED:
            raise Unsupported(f"there is no gradient of {name}")
    if not ctx.has_lse:
        raise Unsupported("there is no gradient without want_lse")
    needs = [*ctx.needs_input_grad[:3], *(need[name] for name in _LEARNED)]
    gradients = backward(d_out, d_lse, q, k, v, out, lse, needs, **dict(zip(_NAMES, [*tensors, *ctx.others])))
    learned = dict(zip(_LEARNED, gradients[3:]))
    return (*gradients[:3], None, *(learned.get(name) for name in _TENSORS), *(None for _ in _OTHERS))


register_autograd(_library, "attention", _save, _of_attention)
register_autograd(_library, "attention_backward", lambda *_: None, refuse_second_derivatives)


def backward(d_out, d_lse, q, k, v, out, lse, needs, **options):
    """The gradients that are needed, else None. Either gradient that there is of the results may be None."""
    reason = _why_not(q, k, v, options)
    if reason is not None:
        raise Unsupported(f"there is no gradient {reason}")
    if not any(needs) or (d_out is None and d_lse is None):
        return [None] * len(_GRADIENTS)
    if d_out is None:
        d_out = torch.zeros_like(out)
    found = torch.ops.warptile.attention_backward(d_out, d_lse, q, k, v, out, lse, needs, **options)
    return [gradient if needed else None for gradient, needed in zip(found, needs)]


# The largest head size with gradients.
LARGEST = 256


def _why_not(q, k, v, options):
    """What has no gradient, or None."""
    if options.get("block_table") is not None:
        return "with keys and values in pages (block_table)"
    if not q.dtype == k.dtype == v.dtype:
        return f"for keys and values in {k.dtype}"
    bias = options.get("bias")
    if bias is not None and bias.dtype != q.dtype:
        return f"for a bias in {bias.dtype} with queries in {q.dtype}"
    largest = max(q.shape[-1], v.shape[-1])
    return f"for head size {largest}; the largest with one is {LARGEST}" if largest > LARGEST else None


def _tensor(given, dtype, device):
    """A number or a list as a tensor of this type; an array of another library in its own, copied: gradients read it later."""
    if isinstance(given, numbers.Number):
        given = [given]
    if isinstance(given, (list, tuple)):
        return torch.tensor(given, dtype=dtype, device=device)
    return torch.as_tensor(given, device=device).clone()


def attention(q, k, v, *, return_lse=False, window=None, diagonal=None, kernel=None, block_list=None, **options):
    """`warptile.attention` by the operator: as compilers see it, and where a gradient is wanted."""
    options["kernel_name"] = kernel
    for name in _NEVER:
        if options.pop(name, None) is not None:
            raise Unsupported(f"{name} is not supported by warptile.attention in compiled code and with gradients")
    if block_list is not None:
        if not isinstance(block_list, BlockList):
            raise InvalidType("block_list must be a warptile.BlockList")
        options |= {"blocks": block_list.blocks, "blocks_each": block_list.each}
        options |= {"block_offsets": block_list.offsets, "block_indices": block_list.indices}
    for name, dtype in _TENSORS.items():
        given = options.get(name)
        if given is not None and not isinstance(given, torch.Tensor):
            options[name] = _tensor(given, dtype, q.device)
    if options.get("dropout_p") and options.get("dropout_state") is None:
        options["dropout_state"] = drawn_state(q)
    if window is not None:
        options["left"], options["right"] = window
    if diagonal is not None:
        options["diagonal"] = str(diagonal)
    learned = (q, k, v, *(options.get(name) for name in _LEARNED))
    needs_lse = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in learned)
    # A trace is compared with one without gradients.
    needs_lse = needs_lse or torch._C._get_tracing_state() is not None
    out, lse = torch.ops.warptile.attention(q, k, v, return_lse or needs_lse, **options)
    return (out, lse) if return_lse else out
