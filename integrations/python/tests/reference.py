"""Attention in float64, one row of scores at a time, and what is right.

A result of `float16` or `bfloat16` is right if it is within a rounding of the elements, and a little for sums in `float32`.
"""

import numpy as np

TOLERANCE = {"float16": 2**-9, "bfloat16": 2**-6, "float32": 2e-5}


def visible(causal, window, diagonal, queries, keys):
    """Which keys each query sees, as [queries, keys]."""
    i, j = np.arange(queries)[:, None], np.arange(keys)[None, :]
    diagonal = i + {"top-left": 0, "bottom-right": keys - queries, None: keys - queries}.get(diagonal, diagonal)
    left, right = window if window is not None else (None, None)
    seen = np.ones((queries, keys), bool)
    if causal:
        seen &= j <= diagonal
    if left is not None and left >= 0:
        seen &= j >= diagonal - left
    if right is not None and right >= 0:
        seen &= j <= diagonal + right
    return seen


def head(q, k, v, *, scale=None, softcap=None, seen=None, slope=None, sink=None, bias=None, factors=1.0):
    """One head of one sequence: `[rows, head size]` each; `factors` of its weights. Gives the output and the log-sum-exp."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    scores = q @ k.T * (q.shape[1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if slope is not None:
        i, j = np.arange(len(q))[:, None], np.arange(len(k))[None, :]
        scores -= slope * abs(i + len(k) - len(q) - j)
    if bias is not None:
        scores += bias
    if seen is not None:
        scores = np.where(seen, scores, -np.inf)
    if sink is not None:
        scores = np.concatenate([scores, np.full((len(q), 1), float(sink))], axis=1)
        v = np.concatenate([v, np.zeros((1, v.shape[1]))])
    if scores.shape[1] == 0:
        return np.zeros((len(q), v.shape[1])), np.full(len(q), -np.inf)
    top = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = weights.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + np.where(np.isinf(top), 0, top))[:, 0]
    weights[:, : weights.shape[1] - (sink is not None)] *= factors
    return weights @ v / np.where(total == 0, 1, total), lse


def attention(
    q, k, v, *, causal=False, window=None, diagonal=None, slopes=None, sinks=None, bias=None, mask=None, dropout=None, **options
):
    """Dense tensors `[batch, length, heads, head size]`. Gives the output, and the log-sum-exp as `[batch, heads, length]`."""
    batch, queries, heads, _ = q.shape
    group = heads // k.shape[2]
    out = np.zeros((*q.shape[:3], v.shape[3]))
    lse = np.zeros((batch, heads, queries))
    seen = visible(causal, window, diagonal, queries, k.shape[1])
    everything = (batch, heads, queries, k.shape[1])
    bias = None if bias is None else np.broadcast_to(np.asarray(bias, np.float64), everything)
    mask = None if mask is None else np.broadcast_to(mask, everything)
    slopes = None if slopes is None else np.broadcast_to(slopes, (batch, heads))
    for b in range(batch):
        for h in range(heads):
            out[b, :, h], lse[b, h] = head(
                q[b, :, h],
                k[b, :, h // group],
                v[b, :, h // group],
                seen=seen if mask is None else seen & mask[b, h],
                slope=None if slopes is None else slopes[b, h],
                sink=None if sinks is None else sinks[h],
                bias=None if bias is None else bias[b, h],
                factors=1.0 if dropout is None else dropout[b, h],
                **options,
            )
    return out, lse


WORD = 0xFFFFFFFF


def philox(counter, key):
    """Philox4x32 with 7 rounds, of words in arrays of 64 bits."""
    (a, b, c, d), (first, second) = counter, key
    for _ in range(7):
        x, y = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (y >> 32 & WORD) ^ b ^ first, y & WORD, (x >> 32 & WORD) ^ d ^ second, x & WORD
        first, second = first + 0x9E3779B9 & WORD, second + 0xBB67AE85 & WORD
    return a, b, c, d

def dropout(p, state, batch, heads, queries, keys, of=np):
    """What dropout multiplies weights with, `[batch, heads, queries, keys]`, by the library `of`; `state` has eight numbers."""
    low, high, *offset, sequence, head, query, key = (int(word) & WORD for word in state)
    first, second, *_ = philox((*offset, 0, 0), (low, high))
    # Sixteen weights have the four words of a cell: queries q and q + 8 with keys k + 8 j and k + 8 j + 1, a byte each of word j.
    counter = (
        (query // 2 + of.arange(-(-queries // 16) * 8))[:, None],
        (key // 8 + of.arange(-(-keys // 32) * 4))[None, :],
        (sequence + of.arange(batch))[:, None, None, None],
        (head + of.arange(heads))[None, :, None, None],
    )
    words = of.stack(philox([number & WORD for number in counter], (first, second)), -1)
    threshold = min(int(p * 65536 + 0.5), 65535)
    # Equal bytes are dropped in some cells, for the lower bits of the threshold.
    raised = words[..., 0] ^ words[..., 1] ^ words[..., 2] < threshold << 24 & WORD
    q, k = of.arange(queries)[:, None], of.arange(keys)[None, :]
    cell = q >> 4 << 3 | q & 7, k >> 5 << 2 | k >> 1 & 3
    numbers = words[:, :, *cell, k >> 3 & 3] >> 16 * (q >> 3 & 1) + 8 * (k & 1) & 0xFF
    return (numbers >= (threshold >> 8) + raised[:, :, *cell]) * (65536 / (65536 - threshold))


def check(test, found, expected, dtype):
    """Fails unless every element is right, for values of about 1."""
    found = np.asarray(found).astype(np.float64)
    test.assertEqual(found.shape, expected.shape)
    tolerance = TOLERANCE[str(dtype)]
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def draw(seed, *shapes, dtype=np.float32):
    """Normally distributed arrays."""
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(shape).astype(dtype) for shape in shapes]
