"""Checks the package on a GPU with torch 2.11 or newer: ``python gpu_check.py [--json FILE] [NAME]...``

Needs torch and numpy, and nothing else; what needs transformers or a C compiler is skipped where there is none. Prints a table, writes JSON if asked
to, and exits with 1 if a check failed. NAME runs only the checks whose names contain it.
"""

import argparse
import itertools
import json
import math
import os
import signal
import statistics
import sys
import threading
import time
import traceback

import reference
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
import warptile
import warptile.torch as wt
from warptile.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

HALVES = (torch.float16, torch.bfloat16)
TOLERANCE = {torch.float16: 2**-9, torch.bfloat16: 2**-6, torch.float32: 5e-5}
CHECKS = []


class Skipped(Exception):
    pass


def check(function):
    CHECKS.append(function)
    return function


def draw(*shapes, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(shape, generator=generator, device="cuda", dtype=torch.float32).to(dtype) for shape in shapes]


def naive(
    q, k, v, *, causal=False, window=None, diagonal=None, scale=None, softcap=None, slopes=None, sinks=None, bias=None, mask=None, dropout=1
):
    """In float64; tensors `[batch, length, heads, head size]`, lse `[batch, heads, length]`. Weights are multiplied with `dropout`."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    i = torch.arange(q.shape[2], device=q.device)[:, None]
    j = torch.arange(k.shape[2], device=q.device)[None, :]
    below = k.shape[2] - q.shape[2]
    if slopes is not None:
        scores = scores - slopes.double().view(-1, q.shape[1], 1, 1) * (i + below - j).abs()
    diagonal = i + {"top-left": 0, None: below}.get(diagonal, diagonal)
    if bias is not None:
        scores = scores + bias.double()
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    left, right = window if window is not None else (None, None)
    if causal:
        seen = seen & (j <= diagonal)
    if left is not None:
        seen = seen & (j >= diagonal - left)
    if right is not None:
        seen = seen & (j <= diagonal + right)
    scores = scores.masked_fill(~(seen if mask is None else seen & mask), -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], 3)
        v = torch.cat([v, torch.zeros_like(v[:, :, :1])], 2)
    lse = torch.logsumexp(scores, 3)
    weights = torch.softmax(scores, 3).nan_to_num(0.0)
    weights[..., : len(j[0])] *= dropout
    return (weights @ v).transpose(1, 2), lse


def error(found, expected, dtype):
    """Largest error as a share of what is allowed."""
    found, expected = found.double(), expected.double()
    if found.shape != expected.shape:
        raise AssertionError(f"shape {tuple(found.shape)}, expected {tuple(expected.shape)}")
    infinite = torch.isinf(expected)
    if not torch.equal(found[infinite], expected[infinite]):
        raise AssertionError("infinite elements differ")
    found, expected = found[~infinite], expected[~infinite]
    if found.numel() == 0:
        return 0.0
    share = ((found - expected).abs() / (TOLERANCE[dtype] * (1 + expected.abs()))).max().item()
    if not share <= 1:
        raise AssertionError(f"error is {share:.3g} times what is allowed")
    return share


def raises(classes, text, call):
    try:
        call()
    except classes as caught:
        if text not in str(caught):
            raise AssertionError(f"{text!r} is not in {caught!s:.200}") from caught
        return
    raise AssertionError(f"no exception for {text!r}")


@check
def dense_problems():
    worst, count = 0.0, 0
    slopes, sinks = draw((8,), (8,), dtype=torch.float32, seed=3)
    slopes = slopes.abs() / 8  # as models have them: a slope times a distance is a score, and f32 rounds scores of hundreds
    options = [
        ({}, {}),
        ({"causal": True}, {"causal": True}),
        ({"causal": True, "diagonal": "top-left"}, {"causal": True, "diagonal": "top-left"}),
        ({"window": (33, 5), "diagonal": -9}, {"window": (33, 5), "diagonal": -9}),
        ({"window": (33, 5)}, {"window": (33, 5)}),
        ({"causal": True, "softcap": 20.0}, {"causal": True, "softcap": 20.0}),
        ({"alibi_slopes": slopes, "causal": True}, {"slopes": slopes, "causal": True}),
        ({"sinks": sinks, "scale": 0.2}, {"sinks": sinks, "scale": 0.2}),
    ]
    shapes = [(2, 130, 130), (1, 3, 700), (3, 257, 64)]
    for dtype, size, kv_heads, (given, meant) in itertools.product(
        (*HALVES, torch.float32), (40, 64, 128, 256), (2, 8), options
    ):
        for batch, length, keys in shapes:
            q, k, v = draw((batch, length, 8, size), (batch, keys, kv_heads, size), (batch, keys, kv_heads, size), dtype=dtype, seed=count)
            out, lse = warptile.attention(q, k, v, return_lse=True, **given)
            expected, expected_lse = naive(q, k, v, **meant)
            if out.dtype != dtype or out.device != q.device:
                raise AssertionError(f"{out.dtype} on {out.device}")
            worst = max(worst, error(out, expected, dtype), error(lse, expected_lse, dtype))
            count += 1
    return f"{count} problems, largest error {worst:.2f} of what is allowed"


@check
def bias_and_key_mask():
    worst = 0.0
    for dtype in (*HALVES, torch.float32):
        q, k, v, bias = draw((2, 65, 4, 64), (2, 90, 2, 64), (2, 90, 2, 64), (2, 1, 65, 90), dtype=dtype)
        mask = torch.rand(1, 4, 1, 90, device="cuda") < 0.7
        padding = torch.arange(90, device="cuda") < torch.tensor([[90], [7]], device="cuda")
        masks = [({"key_mask": mask}, {"mask": mask}), ({"key_mask": padding}, {"mask": padding[:, None, None]})]
        for given, meant in [({"bias": bias}, {"bias": bias}), ({"bias": bias.float()}, {"bias": bias}), *masks]:
            worst = max(worst, error(warptile.attention(q, k, v, **given), naive(q, k, v, **meant)[0], dtype))
    return f"largest error {worst:.2f}"


@check
def layouts_and_strides():
    q, k, v = draw((2, 100, 8, 64), (2, 100, 4, 64), (2, 100, 4, 64))
    expected, expected_lse = naive(q, k, v, causal=True)
    swapped = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    out, lse = warptile.attention(*swapped, layout="bhsd", causal=True, return_lse=True)
    error(out.transpose(1, 2), expected, q.dtype)
    error(lse, expected_lse, q.dtype)
    assert out.is_contiguous()
    out = warptile.attention(*(x.transpose(1, 2) for x in swapped), causal=True)
    error(out, expected, q.dtype)
    assert out.transpose(1, 2).is_contiguous()
    packed = torch.cat([x.repeat_interleave(8 // x.shape[2], 2) for x in (q, k, v)], 3)
    error(warptile.attention(*packed.split(64, 3), causal=True), naive(*packed.split(64, 3), causal=True)[0], q.dtype)
    error(warptile.attention(q, k[:1].expand(2, -1, -1, -1), v), naive(q, k[:1].expand(2, -1, -1, -1), v)[0], q.dtype)
    # Addresses that are only a multiple of 2 bytes.
    odd = torch.empty(q.numel() + 1, dtype=q.dtype, device="cuda")[1:].view_as(q).copy_(q)
    error(warptile.attention(odd, k, v, causal=True), expected, q.dtype)
    gaps = draw((2, 100, 4, 128))[0][..., ::2]
    raises(warptile.InvalidInput, "last dimension", lambda: warptile.attention(q, gaps, v))
    return "bhsd, transposed, qkv in one, expanded, misaligned"


@check
def out_and_lse():
    q, k, v = draw((2, 100, 8, 64), (2, 100, 8, 64), (2, 100, 8, 64))
    expected, expected_lse = naive(q, k, v)
    wide = torch.full((2, 100, 8, 72), 7.0, dtype=q.dtype, device="cuda")
    out, lse = wide[..., :64], torch.zeros(2, 8, 100, device="cuda")
    assert warptile.attention(q, k, v, out=out, lse=lse) is out
    error(out, expected, q.dtype)
    error(lse, expected_lse, q.dtype)
    assert (wide[..., 64:] == 7).all()
    raises(ValueError, "out overlaps q", lambda: warptile.attention(q, k, v, out=q))
    return "into strided tensors"


@check
def packed_sequences_and_pages():
    lengths_q, lengths_k = [5, 0, 130, 1], [9, 4, 130, 300]
    offsets = [torch.tensor([0, *itertools.accumulate(x)], dtype=torch.int32, device="cuda") for x in (lengths_q, lengths_k)]
    total_q, total_k = sum(lengths_q) + 3, sum(lengths_k)
    worst = 0.0
    for dtype in HALVES:
        q, k, v = draw((total_q, 8, 128), (total_k, 2, 128), (total_k, 2, 128), dtype=dtype)
        lengths = {"cu_seqlens_q": offsets[0], "cu_seqlens_k": offsets[1], "max_seqlen_q": 130, "max_seqlen_k": 300}
        out, lse = warptile.attention(q, k, v, causal=True, return_lse=True, **lengths)
        same = flash_attn_varlen_func(q, k, v, *offsets, 130, 300, causal=True)
        assert torch.equal(out, same)
        at_q = at_k = 0
        for rows, keys in zip(lengths_q, lengths_k):
            parts = q[None, at_q : at_q + rows], k[None, at_k : at_k + keys], v[None, at_k : at_k + keys]
            expected, expected_lse = naive(*parts, causal=True)
            worst = max(worst, error(out[at_q : at_q + rows], expected[0], dtype))
            error(lse[:, at_q : at_q + rows], expected_lse[0], dtype)
            at_q, at_k = at_q + rows, at_k + keys
        assert (out[at_q:] == 0).all()
        for page in (16, 48):
            pages = draw((40, page, 2, 128), (40, page, 2, 128), dtype=dtype, seed=page)
            table = torch.randperm(40, device="cuda")[:36].view(4, 9).int()
            used = torch.tensor([1, 100, 9 * page, 33], dtype=torch.int32, device="cuda")
            queries = draw((4, 2, 8, 128), dtype=dtype, seed=1)[0]
            out = flash_attn_with_kvcache(queries, *pages, cache_seqlens=used, block_table=table, causal=True)
            for b in range(4):
                k, v = (x[table[b].long()].reshape(1, -1, 2, 128)[:, : used[b]] for x in pages)
                worst = max(worst, error(out[b : b + 1], naive(queries[b : b + 1], k, v, causal=True)[0], dtype))
    return f"largest error {worst:.2f}"


@check
def merges():
    worst = 0.0
    for dtype in (*HALVES, torch.float32):
        q, k, v = draw((2, 9, 8, 128), (2, 700, 2, 128), (2, 700, 2, 128), dtype=dtype)
        ends = (0, 1, 300, 512, 700)
        parts = [
            warptile.attention(q, k[:, start:end], v[:, start:end], return_lse=True) for start, end in zip(ends, ends[1:])
        ]
        expected, expected_lse = naive(q, k, v)
        out, lse = warptile.merge(parts)
        worst = max(worst, error(out, expected, dtype), error(lse, expected_lse, torch.float32))
        swapped = [(part.transpose(1, 2).contiguous(), part_lse.transpose(1, 2).contiguous().transpose(1, 2)) for part, part_lse in parts]
        other, other_lse = warptile.merge(swapped, layout="bhsd")
        assert torch.equal(other.transpose(1, 2), out) and torch.equal(other_lse, lse)
        packed, packed_lse = warptile.merge([(part[1], part_lse[1]) for part, part_lse in parts])
        assert torch.equal(packed, out[1]) and torch.equal(packed_lse, lse[1])
        graph = torch.cuda.CUDAGraph()
        made = torch.zeros_like(out), torch.zeros_like(lse)
        with torch.cuda.graph(graph):
            warptile.merge(parts, out=made[0], lse=made[1])
        graph.replay()
        assert torch.equal(made[0], out) and torch.equal(made[1], lse)
    raises(ValueError, "out overlaps parts", lambda: warptile.merge(parts, out=parts[1][0]))
    raises(ValueError, "is on the CPU", lambda: warptile.merge([(parts[0][0], parts[0][1].cpu())]))
    return f"4 parts, in other layouts, in a graph; largest error {worst:.2f}"


@check
def cache_writes():
    """New keys and values, by flash_attn_with_kvcache: dense and in pages, rotated and not, also in a graph."""
    worst = 0.0
    for dtype in (*HALVES, torch.float32):
        angles = torch.arange(200, device="cuda")[:, None] * 0.7 ** torch.arange(16, device="cuda")
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        new, lengths = 3, [100, 0]
        q, k, v = draw((2, new, 8, 64), (2, new, 2, 64), (2, new, 2, 64), dtype=dtype)
        past_k, past_v = draw((2, 160, 2, 64), (2, 160, 2, 64), dtype=dtype, seed=1)
        used = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        table = torch.arange(20, device="cuda").flip(0).int().view(2, 10)
        for interleaved, tables in ((True, {}), (True, {"rotary_cos": cos, "rotary_sin": sin}), (False, {"rotary_cos": cos, "rotary_sin": sin})):
            k_cache, v_cache = past_k.clone(), past_v.clone()
            options = {"k": k, "v": v, "cache_seqlens": used, "causal": True, "rotary_interleaved": interleaved, **tables}
            out = flash_attn_with_kvcache(q, k_cache, v_cache, **options)
            # The cache in pages, with keys and values in one tensor.
            if dtype in HALVES:
                pages = torch.zeros(20, 16, 2, 2, 64, dtype=dtype, device="cuda")
                pages[table.long(), :, 0] = past_k.view(2, 10, 16, 2, 64)
                pages[table.long(), :, 1] = past_v.view(2, 10, 16, 2, 64)
                paged = flash_attn_with_kvcache(q, pages[:, :, 0], pages[:, :, 1], block_table=table, **options)
                assert torch.equal(pages[table.long(), :, 0].view_as(k_cache), k_cache)
                assert torch.equal(pages[table.long(), :, 1].view_as(v_cache), v_cache)
            for b, length in enumerate(lengths):
                rows = slice(length, length + new)
                keys, queries = k[b].double(), q[b].double()
                if tables:
                    c, s = cos[rows].double()[:, None], sin[rows].double()[:, None]
                    parts = (slice(0, 32, 2), slice(1, 32, 2)) if interleaved else (slice(0, 16), slice(16, 32))
                    for x in (keys, queries):
                        first, second = x[..., parts[0]].clone(), x[..., parts[1]].clone()
                        x[..., parts[0]], x[..., parts[1]] = first * c - second * s, first * s + second * c
                    queries = queries.to(dtype)
                worst = max(worst, error(k_cache[b, rows], keys, dtype))
                assert torch.equal(v_cache[b, rows], v[b])
                assert torch.equal(k_cache[b, :length], past_k[b, :length])
                assert torch.equal(k_cache[b, length + new :], past_k[b, length + new :])
                parts = k_cache[b : b + 1, : length + new], v_cache[b : b + 1, : length + new]
                expected, _ = naive(queries[None], *parts, causal=True)
                worst = max(worst, error(out[b : b + 1], expected, dtype))
                if dtype in HALVES:
                    error(paged[b : b + 1], expected, dtype)
    raises(warptile.InvalidInput, "cache_seqlens is missing", lambda: flash_attn_with_kvcache(q, k_cache, v_cache, k, v))
    return f"largest error {worst:.2f}"


@check
def caches_in_e4m3():
    """Keys and values in float8_e4m3fn: as torch has them, as their bits, in pages, written, through DLPack, and in a graph."""
    worst = 0.0
    f8 = torch.float8_e4m3fn
    scales = {
        "k_descale": torch.tensor([0.02, 0.01, 0.015, 0.03], device="cuda"),
        # One number, as vLLM gives it.
        "v_descale": torch.tensor([0.025], device="cuda").expand(2, 4),
    }
    by_head = [scale.reshape(-1, 4)[0].view(4, 1) for scale in scales.values()]
    options = {**scales, "causal": True}
    for dtype, size in ((torch.float16, 128), (torch.bfloat16, 128), (torch.bfloat16, 64), (torch.bfloat16, 256), (torch.float16, 96)):
        q, past_k, past_v, k, v = draw((2, 1, 16, size), *[(2, 160, 4, size)] * 2, *[(2, 1, 4, size)] * 2, dtype=dtype)
        lengths = [100, 31]
        used = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        k_cache, v_cache = ((x.float() / scale).to(f8) for x, scale in zip((past_k, past_v), by_head))
        table = torch.arange(20, device="cuda").flip(0).int().view(2, 10)
        pages = torch.zeros(2, 20, 16, 4, size, dtype=torch.uint8, device="cuda")
        for paged, cache in zip(pages, (k_cache, v_cache)):
            paged[table.long()] = cache.view(torch.uint8).view(2, 10, 16, 4, size)
        pages = pages.view(f8)
        written = flash_attn_with_kvcache(q, *pages, k, v, cache_seqlens=used, block_table=table, **options)
        out = flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=used, **options)
        as_bits = [cache.view(torch.uint8) for cache in (k_cache, v_cache)]
        assert torch.equal(warptile.attention(q, *as_bits, seqused_k=used + 1, **options), out)
        stream = torch.cuda.current_stream().cuda_stream
        by_protocol = [Exported(cache) for cache in (k_cache, v_cache)] if has_dlpack_of(f8) else as_bits
        assert torch.equal(warptile.attention(q, *by_protocol, seqused_k=used + 1, stream=stream, **options), out)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            replayed = warptile.attention(q, k_cache, v_cache, seqused_k=used + 1, **options)
        graph.replay()
        assert torch.equal(replayed, out)
        for b, length in enumerate(lengths):
            for cache, new, scale in zip((k_cache, v_cache), (k, v), by_head):
                assert torch.equal(cache[b, length].view(torch.uint8), (new[b, 0].float() / scale).to(f8).view(torch.uint8))
            parts = [cache[b : b + 1, : length + 1].double() * scale.double() for cache, scale in zip((k_cache, v_cache), by_head)]
            expected, _ = naive(q[b : b + 1], *parts, causal=True)
            worst = max(worst, error(out[b : b + 1], expected, dtype), error(written[b : b + 1], expected, dtype))
    each = torch.ones(2, 4, device="cuda")
    raises(warptile.InvalidInput, "same scales for all sequences", lambda: warptile.attention(q, k_cache, v_cache, k_descale=each, v_descale=each))
    raises(warptile.InvalidInput, "k_descale is missing", lambda: warptile.attention(q, k_cache, v_cache))
    return f"largest error {worst:.2f}; float8 through DLPack: {'yes' if has_dlpack_of(f8) else 'torch does not export it'}"


class Exported:
    """A tensor that is not torch's: read through DLPack."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.__dlpack_device__ = tensor.__dlpack_device__
        self.__dlpack__ = tensor.__dlpack__


def has_dlpack_of(dtype):
    try:
        torch.zeros(1, dtype=dtype, device="cuda").__dlpack__()
    except (BufferError, RuntimeError):
        return False
    return True


@check
def streams():
    q, k, v = draw((1, 512, 8, 64), (1, 512, 8, 64), (1, 512, 8, 64))
    expected, _ = naive(q, k, v)
    side = torch.cuda.Stream()
    for _ in range(5):
        late = torch.zeros_like(q)
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.default_stream())
            torch.cuda._sleep(20_000_000)
            late.copy_(q)
            # Only on the same stream does this see q.
            out = warptile.attention(late, k, v)
        side.synchronize()
        error(out, expected, q.dtype)
    explicit = torch.empty_like(q)
    warptile.attention(q, k, v, out=explicit, stream=side.cuda_stream)
    side.synchronize()
    error(explicit, expected, q.dtype)
    # Rows that no sequence may own are zeros before the kernel writes, although the current stream is busy.
    packed, offsets = [x[0].contiguous() for x in (q, k, v)], torch.tensor([0, 512], dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    torch.cuda._sleep(20_000_000)
    made = warptile.attention(*packed, cu_seqlens_q=offsets, cu_seqlens_k=offsets, stream=side.cuda_stream)
    torch.cuda.synchronize()
    error(made[None], expected, q.dtype)
    return "the current stream, and stream="


@check
def threads():
    problems = [draw((1, 300, 4, 64), (1, 300, 4, 64), (1, 300, 4, 64), seed=seed) for seed in range(4)]
    expected = [warptile.attention(*problem, causal=True) for problem in problems]
    torch.cuda.synchronize()
    wrong = []

    def work(number):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                out = warptile.attention(*problems[number], causal=True)
                torch.cuda.current_stream().synchronize()
                if not torch.equal(out, expected[number]):
                    wrong.append(number)

    workers = [threading.Thread(target=work, args=(number % 4,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong, wrong
    return "8 threads on 8 streams, 400 calls"


@check
def cuda_graphs():
    worst = 0.0
    for shape, keys in [((2, 200, 8, 64), 200), ((4, 1, 8, 128), 5000)]:
        q, k, v = draw(shape, (shape[0], keys, 2, shape[3]), (shape[0], keys, 2, shape[3]))
        used = torch.full((shape[0],), keys, dtype=torch.int32, device="cuda")
        out = torch.empty_like(q)
        call = lambda: warptile.attention(q, k, v, out=out, seqused_k=used, causal=True)
        call()
        torch.cuda.synchronize()
        graphs = []
        for _ in range(2):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
                call()
            graphs.append(graph)
        for length in (keys, keys // 2, 7):
            used.fill_(length)
            q.copy_(draw(shape, seed=length)[0])
            expected, _ = naive(q, k[:, :length], v[:, :length], causal=True)
            for graph in graphs:
                out.zero_()
                graph.replay()
                torch.cuda.synchronize()
                worst = max(worst, error(out, expected, q.dtype))
    return f"2 graphs a problem, replayed with other lengths; largest error {worst:.2f}"


@check
def graphs_that_come_and_go():
    """The workspace of a graph that is gone is the next one's; one that is being replayed keeps its own."""
    q, k, v = draw((1, 1, 8, 128), (1, 65536, 8, 128), (1, 65536, 8, 128))
    expected, _ = naive(q, k, v)

    def captured():
        out = torch.empty_like(q)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            warptile.attention(q, k, v, out=out)
        return graph, out

    def used():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return total - free

    kept = [captured() for _ in range(4)]
    before, outs = used(), []
    for _ in range(40):
        graph, out = captured()
        for _ in range(20):
            graph.replay()
        outs.append(out)
        # Destroyed under its replays.
        del graph
        for other, _ in kept:
            other.replay()
        torch.cuda.synchronize()
        # The driver tells of the end a little later.
        time.sleep(0.002)
    outs += [out for _, out in kept]
    worst = max(error(out, expected, q.dtype) for out in outs)
    grown = (used() - before) / 2**20
    if grown > 16:
        raise AssertionError(f"40 graphs, one at a time, have taken {grown:.0f} MiB")
    return f"40 graphs, each destroyed under its replays; {grown:.0f} MiB more than at first; largest error {worst:.2f}"



@check
def protocols():
    q, k, v = draw((2, 64, 4, 64), (2, 64, 4, 64), (2, 64, 4, 64), dtype=torch.float16)
    expected, _ = naive(q, k, v)

    class DLPack:
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

        def __dlpack__(self, **options):
            return self.tensor.__dlpack__(**options)

    class Interface:
        def __init__(self, tensor):
            self.__cuda_array_interface__ = tensor.__cuda_array_interface__

    torch.cuda.synchronize()
    for wrap in (DLPack, Interface):
        out = torch.zeros_like(q)
        warptile.attention(wrap(q), wrap(k), wrap(v), out=wrap(out))
        torch.cuda.synchronize()
        error(out, expected, q.dtype)
        raises(warptile.InvalidInput, "out is missing", lambda wrap=wrap: warptile.attention(wrap(q), wrap(k), wrap(v)))
    return "DLPack and the CUDA array interface alone"


@check
def errors():
    q, k, v = draw((2, 64, 4, 64), (2, 64, 4, 64), (2, 64, 4, 64))
    cases = [
        (ValueError, "k is on the CPU", lambda: warptile.attention(q, k.cpu(), v)),
        (TypeError, "k has elements of type float16", lambda: warptile.attention(q, k.half(), v)),
        (TypeError, "float64", lambda: warptile.attention(q.double(), k.double(), v.double())),
        (TypeError, "float8", lambda: warptile.attention(q.to(torch.float8_e4m3fn), k, v)),
        (ValueError, "k has batch 1", lambda: warptile.attention(q, k[:1], v[:1])),
        (ValueError, "meta", lambda: warptile.attention(q.to("meta"), k, v)),
        (ValueError, "requires a gradient", lambda: warptile.merge([(q.clone().requires_grad_(), torch.zeros(0, device="cuda"))])),
        (Exception, "", lambda: warptile.attention(q.to_sparse(), k, v)),
        (ValueError, "cu_seqlens_q is on the CPU", lambda: warptile.attention(q[0], k[0], v[0], cu_seqlens_q=[0, 64], cu_seqlens_k=[0, 64])),
        (ValueError, "dropout_p is 1", lambda: flash_attn_func(q, k, v, dropout_p=1.0)),
        (ValueError, "dropout_state is on the CPU", lambda: warptile.attention(q, k, v, dropout_p=0.5, dropout_state=[0] * 8)),
        (ValueError, "unknown kernel", lambda: warptile.attention(q, k, v, kernel="nonsense")),
    ]
    for classes, text, call in cases:
        raises(classes, text, call)
    with torch.no_grad():
        warptile.attention(q.clone().requires_grad_(), k, v)
    torch.cuda.synchronize()
    return f"{len(cases)} cases"


@check
def on_the_cpu():
    worst = 0.0
    for dtype in (*HALVES, torch.float32):
        q, k, v = (x.cpu() for x in draw((2, 40, 4, 64), (2, 50, 2, 64), (2, 50, 2, 64), dtype=dtype))
        out, lse = warptile.attention(q, k, v, causal=True, return_lse=True)
        assert out.dtype == dtype and lse.dtype == torch.float32
        worst = max(worst, error(out, naive(q, k, v, causal=True)[0], dtype))
    return f"largest error {worst:.2f}"


@check
def forked_process():
    q = draw((1, 64, 4, 64))[0]
    warptile.attention(q, q, q)
    torch.cuda.synchronize()
    x = q.float().cpu()
    expected = warptile.attention(x, x, x)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # Whatever happens, this process ends here, and soon.
        signal.alarm(30)
        text = "nothing"
        try:
            same = torch.equal(warptile.attention(x, x, x), expected)
            try:
                warptile.attention(q, q, q, stream=0, out=q)
                text = "no error on the GPU"
            except (RuntimeError, ValueError) as caught:
                text = f"CPU {'right' if same else 'WRONG'}; GPU {type(caught).__name__}: {caught}"
            try:
                warptile.explain(q, q, q)
            except RuntimeError as caught:
                text += f"; explain {type(caught).__name__}: {caught}"
        finally:
            os.write(writer, text.encode())
            os._exit(0)
    os.close(writer)
    text = b"".join(iter(lambda: os.read(reader, 4096), b"")).decode()
    os.waitpid(child, 0)
    assert text.startswith("CPU right") and "forked" in text, text
    return "the CPU computes, the GPU is an error"


def gradients(function, tensors, seed=5):
    tensors = [x.detach().clone().requires_grad_() for x in tensors]
    out = function(*tensors)
    out = out[0] if isinstance(out, tuple) else out
    grad = draw(out.shape, dtype=out.dtype, seed=seed)[0]
    return [out.detach(), *torch.autograd.grad(out, tensors, grad)]


def close(found, expected, share):
    """Largest difference over the largest value."""
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        difference = ((one.double() - other.double()).abs().max() / other.double().abs().max()).item()
        if not difference <= share:
            raise AssertionError(f"differs by {difference:.3g} of the largest, allowed {share}")
        worst = max(worst, difference)
    return worst


@check
def flash_attn_gradients():
    worst = 0.0
    for dtype in HALVES:
        q, k, v = draw((2, 130, 8, 64), (2, 130, 2, 64), (2, 130, 2, 64), dtype=dtype)
        for given, meant in [
            ({}, {}),
            ({"causal": True}, {"causal": True}),
            ({"window_size": (40, 0), "softmax_scale": 0.1}, {"window": (40, 0), "scale": 0.1}),
        ]:
            found = gradients(lambda *x: flash_attn_func(*x, **given), (q, k, v))
            expected = gradients(lambda *x: naive(*x, **meant)[0].to(dtype), (q, k, v))
            worst = max(worst, close(found, expected, 2e-2))
        offsets = torch.tensor([0, 50, 130], dtype=torch.int32, device="cuda")
        packed = [x[0] for x in (q, k, v)]
        found = gradients(lambda *x: flash_attn_varlen_func(*x, offsets, offsets, 80, 80, causal=True), packed)
        expected = gradients(
            lambda *x: torch.cat([naive(*(y[None, a:b] for y in x), causal=True)[0][0] for a, b in ((0, 50), (50, 130))]).to(dtype), packed
        )
        worst = max(worst, close(found, expected, 2e-2))
        slopes = draw((8,), dtype=torch.float32)[0]
        for given, meant in [({"softcap": 3.0}, {"softcap": 3.0}), ({"alibi_slopes": slopes}, {"slopes": slopes})]:
            found = gradients(lambda *x: flash_attn_func(*x, **given), (q, k, v))
            expected = gradients(lambda *x: naive(*x, **meant)[0].to(dtype), (q, k, v))
            worst = max(worst, close(found, expected, 2e-2))
    repeated = [
        gradients(lambda *x: flash_attn_func(*x, causal=True, deterministic=True), draw(*[(4, 512, 8, 64)] * 3)) for _ in range(3)
    ]
    assert all(torch.equal(one, other) for again in repeated[1:] for one, other in zip(repeated[0], again)), "deterministic differs"
    assert not torch.are_deterministic_algorithms_enabled()
    return f"largest difference {worst:.1e} of the largest gradient"


@check
def gradients_of_everything():
    """Against float64: every type and head size, sinks and log-sum-exp, masks, lengths, and what needs no gradient."""
    worst = {dtype: 0.0 for dtype in (*HALVES, torch.float32)}
    allowed = {torch.float16: 5e-3, torch.bfloat16: 3e-2, torch.float32: 1e-4}

    def compare(ours, meant, tensors):
        found, expected = [], []
        for of, to, double in ((ours, found, False), (meant, expected, True)):
            learned = [(x.double() if double else x).detach().requires_grad_() for x in tensors]
            results = of(*learned)
            weights = [draw(x.shape, dtype=torch.float32, seed=at)[0].to(tensors[0].dtype).to(x) for at, x in enumerate(results)]
            to += torch.autograd.grad(results, learned, weights)
        dtype = tensors[0].dtype
        worst[dtype] = max(worst[dtype], close(found, expected, allowed[dtype]))

    for dtype in worst:
        for size in (64, 128, 40, 256):
            q, k, v = draw((2, 130, 4, size), (2, 190, 2, size), (2, 190, 2, size), dtype=dtype)
            [sinks] = draw((4,), dtype=torch.float32)
            compare(
                lambda q, k, v, s: warptile.attention(q, k, v, sinks=s, causal=True, return_lse=True),
                lambda q, k, v, s: naive(q, k, v, sinks=s, causal=True),
                (q, k, v, sinks),
            )
        mask = torch.rand(2, 1, 130, 190, device="cuda") < 0.8
        bias = draw((4, 130, 190), dtype=dtype)[0]
        compare(
            lambda q, k, v, b: [warptile.attention(q, k, v, key_mask=mask, bias=b)], lambda q, k, v, b: [naive(q, k, v, mask=mask, bias=b)[0]], (q, k, v, bias)
        )
        for wanted in range(3):
            learned = [x.clone().requires_grad_(at == wanted) for at, x in enumerate((q, k, v))]
            warptile.attention(*learned).sum().backward()
            assert [x.grad is not None for x in learned] == [at == wanted for at in range(3)]
    offsets = torch.tensor([0, 50, 120], dtype=torch.int32, device="cuda")
    learned = draw((130, 4, 64))[0].requires_grad_()
    flash_attn_varlen_func(learned, learned, learned, offsets, offsets, 80, 80).sum().backward()
    assert learned.grad[:120].any() and not learned.grad[120:].any()
    # On another stream, and in a graph that is replayed with other numbers.
    tensors = draw(*[(2, 256, 4, 64)] * 3)
    expected = gradients(lambda *x: flash_attn_func(*x, causal=True), tensors)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    static = [torch.zeros_like(x).requires_grad_() for x in tensors]
    weights = draw(tensors[0].shape, seed=5)[0]
    with torch.cuda.stream(stream):
        for _ in range(2):
            torch.autograd.grad(flash_attn_func(*static, causal=True), static, weights)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = torch.autograd.grad(flash_attn_func(*static, causal=True), static, weights)
        with torch.no_grad():
            for to, x in zip(static, tensors):
                to.copy_(x)
        graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(one, other) for one, other in zip(captured, expected[1:])), "a graph gives other bits"
    return ", ".join(f"{str(dtype)[6:]} {found:.1e}" for dtype, found in worst.items())


def factors(seed, p, *shape):
    """What weights are multiplied with by a call that is the first to draw after `torch.manual_seed(seed)`."""
    torch.manual_seed(seed)
    state = wt._operators.drawn_state(torch.empty(0, device="cuda"))
    with torch.device("cuda"):
        return reference.dropout(p, state.tolist(), *shape, of=torch)


def seeded(function, seed=7):
    def call(*tensors):
        torch.manual_seed(seed)
        return function(*tensors)

    return call


@check
def dropout():
    """By the mask that the reference computes, and as on the CPU; checkpoints replay it, and graphs draw another each time."""
    worst = {dtype: 0.0 for dtype in (*HALVES, torch.float32)}
    allowed = {torch.float16: 5e-3, torch.bfloat16: 3e-2, torch.float32: 1e-4}
    functions = [
        lambda *x: flash_attn_func(*x, 0.3),
        lambda *x: warptile.attention(*x, dropout_p=0.3),
        lambda *x: wt.scaled_dot_product_attention(*(y.transpose(1, 2) for y in x), dropout_p=0.3, enable_gqa=True).transpose(1, 2),
    ]
    drop = factors(7, 0.3, 2, 4, 130, 190)
    refused = [dtype for dtype in worst if not wt._has_kernels(0, dtype in HALVES, True)]
    for dtype in refused:
        q, k, v = draw((2, 130, 4, 64), (2, 190, 2, 64), (2, 190, 2, 64), dtype=dtype)
        for function in functions[:2]:
            raises(warptile.NoKernel, "dropout", lambda: gradients(function, (q, k, v)))
        # Torch's own.
        found = gradients(seeded(functions[2]), (q, k, v))
        theirs = lambda *x: F.scaled_dot_product_attention(*(y.transpose(1, 2) for y in x), dropout_p=0.3, enable_gqa=True).transpose(1, 2)
        close(found, gradients(seeded(theirs), (q, k, v)), 2e-2)
        del worst[dtype]
    for dtype, size in itertools.product(worst, (64, 128, 40, 256)):
        q, k, v = draw((2, 130, 4, size), (2, 190, 2, size), (2, 190, 2, size), dtype=dtype)
        expected = gradients(lambda *x: naive(*x, dropout=drop)[0].to(dtype), (q, k, v))
        for function in functions:
            found = gradients(seeded(function), (q, k, v))
            worst[dtype] = max(worst[dtype], close(found, expected, allowed[dtype]))
            checkpointed = lambda *x: torch.utils.checkpoint.checkpoint(function, *x, use_reentrant=False)
            for again in (seeded(function), seeded(checkpointed)):
                assert all(torch.equal(*pair) for pair in zip(found, gradients(again, (q, k, v)))), "other bits with the same seed"
        state = wt._operators.drawn_state(q)
        on_cpu = warptile.attention(*(x.cpu() for x in (q, k, v)), dropout_p=0.5, dropout_state=state.cpu())
        close([warptile.attention(q, k, v, dropout_p=0.5, dropout_state=state).cpu()], [on_cpu], allowed[dtype])
    if torch.bfloat16 in worst:
        tensors = draw(*[(2, 256, 4, 64)] * 3)
        static = [x.clone().requires_grad_() for x in tensors]
        weights, stream = draw(tensors[0].shape, seed=5)[0], torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.autograd.grad(flash_attn_func(*static, 0.3), static, weights)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                out = flash_attn_func(*static, 0.3)
                captured = [out, *torch.autograd.grad(out, static, weights)]
            replays = []
            for _ in range(2):
                graph.replay()
                replays.append([x.detach().clone() for x in captured])
            torch.manual_seed(7)
            graph.replay()
        torch.cuda.synchronize()
        assert not torch.equal(replays[0][0], replays[1][0]), "each replay draws the same mask"
        assert all(torch.equal(*pair) for pair in zip(captured, gradients(seeded(lambda *x: flash_attn_func(*x, 0.3)), tensors)))
        with Active() as active, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            heads = [x.transpose(1, 2) for x in tensors]
            found = gradients(seeded(lambda *x: F.scaled_dot_product_attention(*x, dropout_p=0.3)), heads)
            assert active.calls == 1, active.calls
        close(found, gradients(seeded(lambda *x: wt.scaled_dot_product_attention(*x, dropout_p=0.3)), heads), 1e-2)
    texts = [f"{str(dtype)[6:]} {found:.1e}" for dtype, found in worst.items()]
    return ", ".join(texts + [f"no kernels for {str(dtype)[6:]}: refused, or torch's" for dtype in refused])


@check
def sdpa():
    worst, count = 0.0, 0
    for dtype in (*HALVES, torch.float32):
        q, k, v = (x.transpose(1, 2) for x in draw((2, 70, 8, 64), (2, 90, 8, 64), (2, 90, 8, 64), dtype=dtype))
        mask = torch.rand(2, 1, 70, 90, device="cuda") < 0.8
        bias = torch.randn(8, 70, 90, device="cuda", dtype=dtype)
        cases = [{}, {"is_causal": True}, {"attn_mask": mask}, {"attn_mask": bias}, {"scale": 0.3}]
        for options in cases:
            expected = F.scaled_dot_product_attention(*(x.double() for x in (q, k, v)), **{
                name: option.double() if name == "attn_mask" and option.dtype == dtype else option for name, option in options.items()
            })
            worst = max(worst, error(wt.scaled_dot_product_attention(q, k, v, **options), expected, dtype))
            count += 1
        grouped = wt.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)
        error(grouped, F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True), dtype)
        # Left to torch: another size of the values, three dimensions.
        wt.scaled_dot_product_attention(q, k, v[..., :40])
        wt.scaled_dot_product_attention(q[0], k[0], v[0])
    for dtype in HALVES:
        q, k, v = draw((2, 8, 128, 64), (2, 8, 128, 64), (2, 8, 128, 64), dtype=dtype)
        for causal in (False, True):
            found = gradients(lambda *x: wt.scaled_dot_product_attention(*x, is_causal=causal), (q, k, v))
            expected = gradients(lambda *x: F.scaled_dot_product_attention(*x, is_causal=causal), (q, k, v))
            worst = max(worst, close(found, expected, 2e-2))
    q32 = draw((1, 2, 16, 32), dtype=torch.float32)[0]
    for options in ({"is_causal": True}, {"attn_mask": torch.rand(16, 16, device="cuda") < 0.8}, {"attn_mask": torch.randn(2, 16, 16, device="cuda")}):
        close(
            gradients(lambda *x: wt.scaled_dot_product_attention(*x, **options), (q32, q32, q32)),
            gradients(lambda *x: F.scaled_dot_product_attention(*x, **options), (q32, q32, q32)),
            1e-4,
        )
    close(
        gradients(lambda *x: wt.scaled_dot_product_attention(*x), (q32, q32, q32)),
        gradients(lambda *x: F.scaled_dot_product_attention(*x), (q32, q32, q32)),
        1e-5,
    )
    return f"{count} problems and gradients"


@check
def opcheck():
    q, k, v = draw((2, 4, 64, 64), (2, 4, 64, 64), (2, 4, 64, 64))
    mask = torch.rand(64, 64, device="cuda") < 0.8
    operator = torch.ops.warptile.scaled_dot_product_attention.default
    for arguments in [(q, k, v), (q, k, v, None, True, 0.2), (q, k, v, mask)]:
        torch.library.opcheck(operator, arguments)
    learned = tuple(x.clone().requires_grad_() for x in (q, k, v))
    torch.library.opcheck(operator, learned)
    torch.library.opcheck(torch.ops.warptile.attention.default, (*learned, True), {"causal": True})
    return "5 calls"


def compiled(function):
    """By inductor where there is a compiler, else by AOT autograd alone; with the name of which."""
    for backend in ("inductor", "aot_eager"):
        torch._dynamo.reset()
        made = torch.compile(function, fullgraph=True, backend=backend)
        try:
            made(*draw((1, 2, 32, 64), (1, 2, 32, 64), (1, 2, 32, 64)))
            return made, backend
        except Exception as caught:
            if backend == "aot_eager":
                raise
            print(f"    inductor does not work here: {str(caught).splitlines()[0]:.120}", file=sys.stderr)


@check
def torch_compile():
    def block(q, k, v):
        return wt.scaled_dot_product_attention(q * 2, k, v, is_causal=True) + 1

    made, backend = compiled(block)
    q, k, v = draw((2, 8, 128, 64), (2, 8, 128, 64), (2, 8, 128, 64))
    worst = close([made(q, k, v)], [block(q, k, v)], 2e-2)
    worst = max(worst, close(gradients(made, (q, k, v)), gradients(block, (q, k, v)), 2e-2))
    return f"{backend}, no graph break, with gradients; largest difference {worst:.1e}"


@check
def lists_of_blocks():
    """Against float64, and compiled against not compiled."""
    worst = 0.0
    for dtype, size in itertools.product(HALVES, (64, 128)):
        tensors = draw((2, 500, 8, size), (2, 700, 2, size), (2, 700, 2, size), dtype=dtype)
        mask = draw((2, 8, 8, 11))[0] > 0.5
        mask[..., 0] = True  # A row without keys has no gradient in float64.
        blocks = warptile.BlockList.from_mask(mask)
        seen = mask.repeat_interleave(64, 2).repeat_interleave(64, 3)[:, :, :500, :700]
        listed = lambda q, k, v: warptile.attention(q * 1, k, v, causal=True, block_list=blocks)
        found = gradients(listed, tensors)
        expected = gradients(lambda *x: naive(*x, causal=True, mask=seen)[0].to(dtype), tensors)
        worst = max(worst, close(found, expected, 2e-2))
    made = torch.compile(listed, fullgraph=True, backend="aot_eager")
    assert all(map(torch.equal, gradients(made, tensors), found))
    return f"with gradients; largest difference {worst:.1e}"


class Active:
    """warptile in torch's registry, with the calls of its kernels counted."""

    def __enter__(self):
        self.calls, self.original = 0, wt._unused

        def counted(like):
            self.calls += 1
            return self.original(like)

        wt._unused = counted
        wt.activate()
        return self

    def __exit__(self, *_):
        wt.deactivate()
        wt._unused = self.original


@check
def activated():
    from torch.nn.attention import SDPBackend, current_flash_attention_impl, sdpa_kernel

    worst = 0.0
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        for dtype, causal, size in itertools.product(HALVES, (False, True), (40, 64, 128, 256)):
            q, k, v = draw((2, 8, 190, size), (2, 8, 190, size), (2, 8, 190, size), dtype=dtype)
            expected = gradients(lambda *x: F.scaled_dot_product_attention(*x, is_causal=causal), (q, k, v))
            with Active() as active:
                assert current_flash_attention_impl() == "warptile"
                found = gradients(lambda *x: F.scaled_dot_product_attention(*x, is_causal=causal), (q, k, v))
                assert active.calls == 1, active.calls
            worst = max(worst, close(found, expected, 2e-2))
            assert found[0].stride() == expected[0].stride()
        with Active() as active:
            # q, k and v in one tensor are ours.
            whole = draw((2, 190, 3, 8, 64))[0]
            parts = [x.transpose(1, 2) for x in whole.unbind(2)]
            found = F.scaled_dot_product_attention(*parts, is_causal=True)
            assert active.calls == 1
        close([found], [F.scaled_dot_product_attention(*parts, is_causal=True)], 2e-2)
        assert current_flash_attention_impl() is None
        before = wt._forward
        F.scaled_dot_product_attention(q, k, v)
        assert before is wt._forward
    return f"forward and gradients as torch's within {worst:.1e} of the largest"


@check
def activated_and_compiled():
    def block(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True) * 2

    q, k, v = draw((2, 8, 128, 64), (2, 8, 128, 64), (2, 8, 128, 64))
    expected = gradients(block, (q, k, v))
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), Active() as active:
        made, backend = compiled(block)
        before = active.calls
        worst = close(gradients(made, (q, k, v)), expected, 2e-2)
        assert active.calls > before
        static = q.clone()
        F.scaled_dot_product_attention(static, k, v)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = F.scaled_dot_product_attention(static, k, v)
        static.copy_(q.flip(2))
        graph.replay()
        torch.cuda.synchronize()
    worst = max(worst, close([out], [F.scaled_dot_product_attention(q.flip(2), k, v)], 2e-2))
    return f"{backend}, and a CUDA graph; largest difference {worst:.1e}"


@check
def varlen_attn():
    """torch.nn.attention's function for packed sequences, which comes by the other operator."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as caught:
        raise Skipped("this torch has no varlen_attn") from caught
    q, k, v = draw((130, 8, 64), (130, 8, 64), (130, 8, 64))
    offsets = torch.tensor([0, 50, 130], dtype=torch.int32, device="cuda")
    call = lambda *x: varlen_attn(*x, offsets, offsets, 80, 80)
    expected = gradients(call, (q, k, v))
    before = wt.attention_without_gradient
    calls = []
    wt.attention_without_gradient = lambda *x, **options: calls.append(1) or before(*x, **options)
    try:
        with Active():
            found = gradients(call, (q, k, v))
    finally:
        wt.attention_without_gradient = before
    assert calls, "torch's own kernel ran"
    return f"largest difference {close(found, expected, 2e-2):.1e}"


def train(steps):
    """Losses of a small transformer that learns to repeat sequences."""
    torch.manual_seed(0)
    vocabulary, width, heads, length, batch = 64, 256, 4, 256, 16

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
            self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
            self.mlp = torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width))

        def forward(self, x):
            q, k, v = self.qkv(self.norms[0](x)).view(*x.shape[:2], 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape))
            return x + self.mlp(self.norms[1](x))

    embedding = torch.nn.Embedding(vocabulary, width)
    positions = torch.nn.Embedding(length, width)
    model = torch.nn.ModuleList([embedding, positions, Block(), Block(), torch.nn.Linear(width, vocabulary)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator("cuda").manual_seed(1)
    losses = []
    for _ in range(steps):
        half = torch.randint(vocabulary, (batch, length // 2), generator=generator, device="cuda")
        tokens = torch.cat([half, half], 1)
        with torch.autocast("cuda", torch.bfloat16):
            x = model[0](tokens) + model[1](torch.arange(length, device="cuda"))
            logits = model[4](model[3](model[2](x)))
        loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).cpu()


@check
def training():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    steps = 200
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        own, again = train(steps), train(steps)
        with Active() as active:
            ours = train(steps)
            assert active.calls == 2 * steps, active.calls
    try:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            other = train(steps)
    except RuntimeError:
        other = again
    # The noise is the difference between two of torch's own kernels.
    noise = max((own - again).abs().max().item(), (own - other).abs().max().item())
    difference = (own - ours).abs().max().item()
    assert ours[-10:].mean() < 0.8 * ours[:10].mean(), "it did not learn"
    assert difference <= 3 * noise + 0.01, f"losses differ by {difference}, torch's own by {noise}"
    return f"{steps} steps, loss {ours[0]:.3f} to {ours[-1]:.3f} (torch {own[-1]:.3f}); largest difference {difference:.4f}, of torch's kernels {noise:.4f}"


@check
def transformers():
    try:
        from transformers import AutoModelForCausalLM, LlamaConfig
    except ImportError as caught:
        raise Skipped("there is no transformers") from caught
    wt.register_with_transformers()
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=128, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").cuda().eval()
    tokens = torch.randint(128, (2, 50), device="cuda")
    padding = torch.ones_like(tokens)
    padding[0, :7] = 0
    with torch.no_grad():
        for mask in (None, padding):
            expected = model(tokens, attention_mask=mask).logits
            model.set_attn_implementation("warptile")
            found = model(tokens, attention_mask=mask).logits
            model.set_attn_implementation("sdpa")
            seen = slice(None) if mask is None else slice(7, None)
            close([found[:, seen]], [expected[:, seen]], 3e-2)
        texts = []
        for name in ("sdpa", "warptile"):
            model.set_attn_implementation(name)
            texts.append(model.float().generate(tokens, attention_mask=padding, max_new_tokens=20, do_sample=False))
    assert torch.equal(*texts), "generated other tokens"
    return "logits of a small Llama, with and without padding, and 20 generated tokens"


@check
def host_time():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def measure(call):
        times = []
        for _ in range(15):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(100):
                call()
            times.append((time.perf_counter() - start) / 100)
        torch.cuda.synchronize()
        return statistics.median(times) * 1e6

    q, k, v = draw((2, 8, 512, 64), (2, 8, 512, 64), (2, 8, 512, 64))
    out = torch.empty_like(q)
    rows = [x.transpose(1, 2) for x in (q, k, v)]
    query, new, *caches = draw((4, 1, 8, 64), (4, 1, 8, 64), (4, 1024, 8, 64), (4, 1024, 8, 64))
    lengths = torch.full((4,), 500, dtype=torch.int32, device="cuda")
    options = {"cache_seqlens": lengths, "causal": True}
    sdpa = F.scaled_dot_product_attention
    figures = {}
    with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        figures["attention(out=)"] = measure(lambda: warptile.attention(q, k, v, out=out, layout="bhsd"))
        figures["attention"] = measure(lambda: warptile.attention(q, k, v, layout="bhsd"))
        figures["flash_attn_func"] = measure(lambda: flash_attn_func(*rows))
        figures["flash_attn_with_kvcache"] = measure(lambda: flash_attn_with_kvcache(query, *caches, **options))
        figures["flash_attn_with_kvcache, new keys"] = measure(lambda: flash_attn_with_kvcache(query, *caches, new, new, **options))
        figures["warptile.torch.scaled_dot_product_attention"] = measure(lambda: wt.scaled_dot_product_attention(q, k, v))
        for name, ours in (("torch", False), ("torch after activate()", True)):
            if ours:
                wt.activate()
            figures[name] = measure(lambda: sdpa(q, k, v))
            figures[f"{name}, causal"] = measure(lambda: sdpa(q, k, v, is_causal=True))
            learned = [x.clone().requires_grad_() for x in (q, k, v)]
            with torch.enable_grad():
                figures[f"{name}, to be learned"] = measure(lambda: sdpa(*learned))
        wt.deactivate()
    host_time.figures = figures
    return "; ".join(f"{name} {figure:.1f} us" for name, figure in figures.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="where the results go")
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    machine = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": sys.version.split()[0],
        "warptile": warptile.__version__,
    }
    print("  ".join(f"{name} {value}" for name, value in machine.items()))
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = []
    for function in CHECKS:
        name = function.__name__
        if arguments.names and not any(part in name for part in arguments.names):
            continue
        start = time.perf_counter()
        try:
            result, detail = "ok", function()
            torch.cuda.synchronize()
        except Skipped as reason:
            result, detail = "skipped", str(reason)
        except Exception as caught:
            traceback.print_exc()
            result, detail = "FAILED", f"{type(caught).__name__}: {caught}"
        seconds = time.perf_counter() - start
        rows.append({"check": name, "result": result, "seconds": round(seconds, 2), "detail": detail})
        print(f"{result:8}{name:28}{seconds:7.1f} s  {detail.splitlines()[0] if detail else '':.200}", flush=True)
    failed = [row["check"] for row in rows if row["result"] == "FAILED"]
    report = {"machine": machine, "checks": rows, "host_us": getattr(host_time, "figures", None), "failed": failed}
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(report, file, indent=1)
    else:
        print(json.dumps(report))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
