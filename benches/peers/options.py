"""Options of scores: biases, masks and slopes for the peers, and what they mean."""

import torch

ELEMENTS = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}

# The part of the keys that a random mask shows.
SHOWN = 0.75


def of(problem):
    """The tensors of a problem's options by the names that `warptile run` has for them."""
    extents = {"batch": problem.batch, "heads": problem.heads, "queries": problem.query_len}
    shape = [extents[dimension] if dimension in problem.scores_of else 1 for dimension in extents] + [problem.key_len]
    tensors = {}
    for word in problem.options:
        if word == "bias":
            tensors["bias"] = torch.randn(shape, device="cuda", dtype=ELEMENTS[problem.element])
        elif word == "keymask":
            tensors["mask"] = torch.rand(shape, device="cuda") < SHOWN
        elif word == "keymask=padding":
            lengths = torch.tensor(problem.shown_keys, device="cuda").view(-1, 1, 1, 1)
            tensors["mask"] = torch.arange(problem.key_len, device="cuda").view(1, 1, 1, -1) < lengths
        elif word.startswith("alibi"):
            steps = torch.arange(1, problem.heads + 1, device="cuda", dtype=torch.float32)
            tensors["alibi_slopes"] = torch.exp2(-8.0 * steps / problem.heads)
    return tensors


def distances(problem):
    """How far each key is from the diagonal of each query."""
    rows = torch.arange(problem.query_len, device="cuda").view(-1, 1) + problem.key_len - problem.query_len
    return (rows - torch.arange(problem.key_len, device="cuda")).abs()


def add(problem, tensors, scores, heads=slice(None), rows=slice(None)):
    """Scores [batch, heads, queries, keys] in float64 of these heads and rows with the options, except a causal mask."""
    if problem.softcap:
        scores = problem.softcap * torch.tanh(scores / problem.softcap)
    piece = lambda tensor: tensor[:, heads if tensor.shape[1] > 1 else slice(None), rows if tensor.shape[2] > 1 else slice(None)]  # noqa: E731
    if "alibi_slopes" in tensors:
        slopes = tensors["alibi_slopes"].double().view(1, -1, 1, 1)[:, heads]
        scores = scores - slopes * distances(problem)[rows]
    if "bias" in tensors:
        scores = scores + piece(tensors["bias"]).double()
    if "mask" in tensors:
        scores = scores.masked_fill(~piece(tensors["mask"]), -torch.inf)
    return scores


def as_mask(problem, tensors):
    """The `attn_mask` that means the same to PyTorch; none without options."""
    if "alibi_slopes" in tensors:
        slopes = tensors["alibi_slopes"].view(1, -1, 1, 1)
        numbers = (-slopes * distances(problem)).to(ELEMENTS[problem.element])
        if problem.mask != "causal":
            return numbers
        hidden = torch.ones(problem.query_len, problem.key_len, device="cuda", dtype=torch.bool).triu(1 + problem.key_len - problem.query_len)
        return numbers.masked_fill(hidden, -torch.inf)
    mask = tensors.get("bias", tensors.get("mask"))
    if mask is None:
        return None
    # One for all queries is refused by some.
    return mask.expand(-1, -1, problem.query_len, -1)
