"""PyTorch's own kernels, by the backend that its dispatcher is held to."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

# Functions of torch.backends.cuda that say whether a backend takes a problem. Not every release has all of them.
CAN_USE = {
    SDPBackend.FLASH_ATTENTION: "can_use_flash_attention",
    SDPBackend.EFFICIENT_ATTENTION: "can_use_efficient_attention",
    SDPBackend.CUDNN_ATTENTION: "can_use_cudnn_attention",
}


def refuse_what_it_cannot(backend, q, k, v, is_causal, grouped):
    """Raises if a backend does not take q, k, v as [batch, heads, length, head size]. The dispatcher would say so, too, but with warnings
    that it issues from C++ while its exception is under way. There a process that had called FlashAttention-4 and FlashInfer before ended
    with a segmentation fault, in Python's `PyThreadState_GetFrame` (PyTorch 2.11, Python 3.12)."""
    ask = getattr(torch.backends.cuda, CAN_USE[backend], None)
    if not ask:
        return
    # Backends that are switched off take nothing.
    with sdpa_kernel([backend]):
        if not ask(torch.backends.cuda.SDPAParams(q, k, v, None, 0.0, is_causal, grouped), False):
            raise RuntimeError("No available kernel. Aborting execution.")
