"""Fused attention for the arrays of torch, numpy, cupy and jax.

On a GPU it needs only the NVIDIA driver; without one it runs on the CPU.

>>> import numpy as np, warptile
>>> q = np.random.default_rng(0).standard_normal((2, 128, 8, 64)).astype(np.float16)
>>> warptile.attention(q, q, q, causal=True).shape
(2, 128, 8, 64)

`attention` computes, `attention_backward` gives its gradients, `explain` tells which kernel would, and `merge` joins results over disjoint keys. `warptile.flash_attn` has the functions of the flash_attn package.
"""

from . import _hook
from ._block_list import BlockList
from ._errors import DeviceError, Error, InvalidInput, InvalidType, NoKernel, OutOfMemory, Unsupported
from ._native import __version__, attention, attention_backward, explain, merge

__all__ = [
    "BlockList",
    "DeviceError",
    "Error",
    "InvalidInput",
    "InvalidType",
    "NoKernel",
    "OutOfMemory",
    "Unsupported",
    "__version__",
    "attention",
    "attention_backward",
    "explain",
    "merge",
]

_hook.install()
