"""`warptile.attention` for torch.compile: the operator, which a compiler takes as a whole."""

import torch

from . import _operators
from ._native import attention

# Older versions of torch break their graphs at a call.
if hasattr(torch.compiler, "substitute_in_graph"):

    @torch.compiler.substitute_in_graph(attention, skip_signature_check=True)
    def _traced(q, k, v, **options):
        return _operators.attention(q, k, v, **options)
