"""`warptile.attention` for torch.compile: an operator of torch, which a compiler takes as a whole. It has no gradient."""

import ast

import torch

from ._errors import Unsupported
from ._native import attention, attention_without_gradient, options_stub

# What compiled code cannot have, and where tensors and numbers have other names: inductor has an argument called `kernel` of its own.
_NEVER = ("out", "lse", "stream")
_RENAMED = {"window": {"left": "int", "right": "int"}, "kernel": {"kernel_name": "str"}}
_TYPES = {"int | None": "SymInt", "bool | None": "bool", "float | None": "float"}

# The operator's optional arguments in the order of its schema: tensors, with the element type that a list becomes, then other options with
# their types.
_TENSORS, _OTHERS = {}, {}
for _field in ast.parse(options_stub()).body[-1].body:
    if isinstance(_field, ast.AnnAssign) and _field.target.id not in _NEVER:
        _of = ast.unparse(_field.annotation)
        if _of.startswith("Array"):
            _TENSORS[_field.target.id] = torch.float32 if "float" in _of else torch.int32
        else:
            _OTHERS |= _RENAMED.get(_field.target.id, {_field.target.id: _TYPES.get(_of, "str")})
_OTHERS["_caller"] = "str"

_library = torch.library.Library("warptile", "FRAGMENT")
_library.define(
    "attention(Tensor q, Tensor k, Tensor v, bool want_lse, "
    + ", ".join([*(f"Tensor? {name}=None" for name in _TENSORS), *(f"{of}? {name}=None" for name, of in _OTHERS.items())])
    + ") -> (Tensor, Tensor)"
)


def _output(q, v):
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def _named(rest, named):
    """The options of the operator by name, where it is called with the first ones by position."""
    return {**dict(zip((*_TENSORS, *_OTHERS), rest)), **named}


def _forward(q, k, v, want_lse, *rest, **named):
    options = _named(rest, named)
    left, right = options.pop("left", None), options.pop("right", None)
    options["kernel"] = options.pop("kernel_name", None)
    if (left, right) != (None, None):
        options["window"] = (left, right)
    # The rows between packed sequences, which kernels leave alone, are zeros in an output that is made for them.
    out = None if options.get("cu_seqlens_q") is not None else _output(q, v)
    found = attention_without_gradient(q, k, v, out=out, return_lse=want_lse, **options)
    out, lse = found if want_lse else (found, q.new_empty(0, dtype=torch.float32))
    return out.contiguous(), lse.contiguous()


for _device in ("CPU", "CUDA"):
    _library.impl("attention", _forward, _device)


@torch.library.register_fake("warptile::attention", lib=_library)
def _fake(q, k, v, want_lse, *rest, **named):
    shape, layout = (0,), _named(rest, named).get("layout")
    if want_lse and q.dim() == 3:
        shape = (q.shape[1], q.shape[0])
    elif want_lse:
        shape = (q.shape[0], *(q.shape[1:3] if layout == "bhsd" else (q.shape[2], q.shape[1])))
    return _output(q, v), q.new_empty(shape, dtype=torch.float32)


def _backward(ctx, *_):
    raise Unsupported("warptile.attention computes no gradient in compiled code; use warptile.torch.scaled_dot_product_attention")


torch.library.register_autograd("warptile::attention", _backward, lib=_library)


def _traced(q, k, v, *, return_lse=False, window=None, diagonal=None, kernel=None, **options):
    """`attention` as a compiler sees it."""
    options["kernel_name"] = kernel
    for name in _NEVER:
        if options.pop(name, None) is not None:
            raise Unsupported(f"{name} is not supported by warptile.attention in compiled code")
    for name, dtype in _TENSORS.items():
        given = options.get(name)
        if given is not None and not isinstance(given, torch.Tensor):
            listed = list(given) if isinstance(given, (list, tuple)) else [given]
            options[name] = torch.tensor(listed, dtype=dtype, device=q.device)
    if window is not None:
        options["left"], options["right"] = window
    if diagonal is not None:
        options["diagonal"] = str(diagonal)
    out, lse = torch.ops.warptile.attention(q, k, v, return_lse, **options)
    return (out, lse) if return_lse else out


# Older versions of torch break their graphs at a call.
if hasattr(torch.compiler, "substitute_in_graph"):
    torch.compiler.substitute_in_graph(attention, skip_signature_check=True)(_traced)
