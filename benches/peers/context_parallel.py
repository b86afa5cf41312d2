"""PyTorch's context_parallel, and ring-flash-attn, over the GPUs of one host, on the problems of docs/several-gpus.md. Each length
gives a JSON row for each contestant. The time of `both` is that of an output and its gradients together, its error that of dq.

    python3 context_parallel.py 2 16384 65536 --both --ring-flash-attn FOLDER

FOLDER has the package ring_flash_attn. What it calls of flash_attn is computed by PyTorch's own operators of FlashAttention-2.
"""

import argparse
import functools
import importlib
import json
import math
import os
import pathlib
import statistics
import sys
import time
import types

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, KV_HEADS, DIM = 32, 8, 128
PERIOD = 1_000_003
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION}
SAMPLED = 4  # rows of each rank whose error is measured


def data(length, heads, seed):
    """Normally distributed numbers as [1, heads, length, head size], as `warptile bench` has them; the same on every rank."""
    block = torch.randn(PERIOD, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")
    count = length * heads * DIM
    block = block.to(torch.bfloat16).repeat(-(-count // PERIOD))[:count]
    return block.view(1, length, heads, DIM).transpose(1, 2).contiguous()


def median_us(calls, call):
    """Microseconds per call on the slowest rank: the median of five runs."""
    times = []
    for _ in range(6):
        torch.cuda.synchronize()
        dist.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        took = torch.tensor((time.perf_counter() - start) * 1e6 / calls, device="cuda")
        dist.all_reduce(took, dist.ReduceOp.MAX)
        times.append(took.item())
    return statistics.median(times[1:])  # the first warms up


def error(found, rows, q, k, v, d_out):
    """The root mean square of the error of some rows over that of the float64 result, over all ranks: rows of the output, or of dq if
    there is a gradient of the output. All tensors are [1, heads, rows, head size]."""
    sums = torch.zeros(2, dtype=torch.float64, device=q.device)
    for head in (0, HEADS - 1):
        keys, values = (t[0, head * KV_HEADS // HEADS].double() for t in (k, v))
        for at, row in rows:
            seen, scale = keys[: row + 1], 1 / math.sqrt(DIM)
            weights = (seen @ q[0, head, row].double() * scale).softmax(0)
            expected = weights @ values[: row + 1]
            if d_out is not None:
                of_weights = values[: row + 1] @ d_out[0, head, row].double()
                expected = (weights * (of_weights - weights @ of_weights)) @ seen * scale
            sums += torch.stack([(found[0, head, at].double() - expected).square().sum(), expected.square().sum()])
    dist.all_reduce(sums)
    return math.sqrt(sums[0] / sums[1])


def sdpa(q, k, v):
    # By its module, as context_parallel replaces it there.
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def calls_of(direction, attention, inputs, d_out):
    """The call that is timed, of leaves or of tensors without gradients, and what its error is measured of."""
    if direction == "forward":
        return lambda: attention(*inputs)

    def both():
        out = attention(*inputs)
        return torch.autograd.grad(out, inputs, d_out)[0]

    return both


@functools.cache
def flash_attn():
    """The functions of flash_attn that ring-flash-attn calls, by PyTorch's operators of FlashAttention-2."""
    ops = torch.ops.aten
    number = {}

    def forward(q, k, v, lengths, dropout_p, softmax_scale, causal):
        out, lse, *state, _ = ops._flash_attention_forward(q, k, v, *lengths, dropout_p, causal, False, scale=softmax_scale)
        number["state"] = state  # of dropout, which is off
        return out, lse, None, None

    def backward(dout, q, k, v, out, lse, into, lengths, dropout_p, softmax_scale, causal):
        operands = (dout, q, k, v, out, lse.contiguous(), *lengths, dropout_p, causal, *number["state"])
        for to, found in zip(into, ops._flash_attention_backward(*operands, scale=softmax_scale)):
            to.copy_(found)

    # ring-flash-attn passes arguments by these names, and takes all others at their defaults.
    def _flash_attn_forward(
        q, k, v, dropout_p, softmax_scale, causal, window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None, return_softmax=False
    ):
        return forward(q, k, v, (None, None, q.shape[1], k.shape[1]), dropout_p, softmax_scale, causal)

    def _flash_attn_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, window_size_left=-1, window_size_right=-1, softcap=0.0,
        alibi_slopes=None, deterministic=False, rng_state=None
    ):  # fmt: skip
        lengths = (None, None, q.shape[1], k.shape[1])
        backward(dout, q, k, v, out, softmax_lse, (dq, dk, dv), lengths, dropout_p, softmax_scale, causal)

    def _flash_attn_varlen_forward(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window_size_left=-1,
        window_size_right=-1, softcap=0.0, alibi_slopes=None, return_softmax=False
    ):  # fmt: skip
        lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        return forward(q, k, v, lengths, dropout_p, softmax_scale, causal)

    def _flash_attn_varlen_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
        window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None, deterministic=False, rng_state=None
    ):  # fmt: skip
        lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        backward(dout, q, k, v, out, softmax_lse, (dq, dk, dv), lengths, dropout_p, softmax_scale, causal)

    return [_flash_attn_forward, _flash_attn_backward, _flash_attn_varlen_forward, _flash_attn_varlen_backward]


def ring_flash_attn(folder, ring):
    """A function of ring-flash-attn on this rank's rows, [1, rows, heads, head size]."""
    interface = types.ModuleType("flash_attn.flash_attn_interface")
    for function in flash_attn():
        setattr(interface, function.__name__, function)
    # The package without what it imports of transformers.
    package = types.ModuleType("ring_flash_attn")
    package.__path__ = [str(pathlib.Path(folder) / "ring_flash_attn")]
    flash = types.ModuleType("flash_attn")
    sys.modules |= {"flash_attn": flash, "flash_attn.flash_attn_interface": interface, "ring_flash_attn": package}
    if ring == "zigzag":
        module = importlib.import_module("ring_flash_attn.zigzag_ring_flash_attn")
        return functools.partial(module.zigzag_ring_flash_attn_func, causal=True)
    module = importlib.import_module("ring_flash_attn.llama3_flash_attn_varlen")

    def llama3(q, k, v):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        ends = torch.tensor([0, q.shape[1] * ranks], dtype=torch.int32, device=q.device)
        prepared = module.llama3_flash_attn_prepare_cu_seqlens(ends, True, rank, ranks)
        rows = (t.squeeze(0) for t in (q, k, v))
        # Keys of half of the heads travel while the others are computed.
        *lengths, keys = prepared
        return module.llama3_flash_attn_varlen_func(*rows, *lengths, KV_HEADS // 2, keys, causal=True).unsqueeze(0)

    return llama3


def chunks_of(rank, ranks, length, contiguous):
    """This rank's rows: one chunk from the sequence's head and one from its tail, or one for each rank in turn."""
    part = length // ranks // 2
    first = 2 * rank if contiguous else rank
    last = first + 1 if contiguous else 2 * ranks - 1 - rank
    return [range(at * part, (at + 1) * part) for at in (first, last)]


def measure(mesh, contestant, direction, length, folder, one_us):
    """The row of a contestant: its name, and how it passes keys on."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    name, way = contestant
    work = length * length * (1 if direction == "forward" else 4)
    calls = min(max((1 << 34) // work, 3), 100)
    whole = data(length, HEADS, 1), data(length, KV_HEADS, 2), data(length, KV_HEADS, 3)
    d_out = data(length, HEADS, 4) if direction == "both" else None
    chunks = chunks_of(rank, ranks, length, way == "llama3")
    numbers = [row for chunk in chunks for row in chunk]
    half = length // ranks // 2
    rows = [(at, numbers[at]) for at in (0, half - 1, half, 2 * half - 1)[:SAMPLED]]

    def cut(tensor):
        return torch.cat([tensor[:, :, chunk.start : chunk.stop] for chunk in chunks], 2)

    def leaf(tensor):
        return tensor.detach().clone().requires_grad_(direction == "both")

    given = None if d_out is None else cut(d_out)
    if name == "ring_flash_attn":
        attention = ring_flash_attn(folder, way)
        inputs = [leaf(cut(t).transpose(1, 2).contiguous()) for t in whole]
        call = calls_of(direction, attention, inputs, None if given is None else given.transpose(1, 2).contiguous())
        with torch.set_grad_enabled(direction == "both"):
            us = median_us(calls, call)
            found = error(call().transpose(1, 2), rows, *whole, d_out)
    else:
        backend = name.split()[-1]
        with sdpa_kernel(BACKENDS[backend]), torch.set_grad_enabled(direction == "both"):
            if (backend, direction) not in one_us:
                one_us[backend, direction] = median_us(calls, calls_of(direction, sdpa, [leaf(t) for t in whole], d_out))
            set_rotate_method(way)
            shards = [t.clone() for t in whole]
            with context_parallel(mesh, buffers=shards, buffer_seq_dims=[2] * 3, no_restore_buffers=set(shards)):
                call = calls_of(direction, sdpa, [leaf(t) for t in shards], given)
                us = median_us(calls, call)
                found = error(call(), rows, *whole, d_out)
    # That of the attention that it computes with.
    one = one_us.get((name.split()[-1] if name != "ring_flash_attn" else "fa2", direction))
    return {
        "backend": f"{name} {way}",
        "engine": "nccl",
        "ranks": ranks,
        "key_len": length,
        "direction": direction,
        "one_us": one and round(one, 1),
        "median_us": round(us, 1),
        "efficiency": one and round(one / us / ranks, 4),
        "error": float(f"{found:.3e}"),
    }


def of_rank(rank, options):
    ranks, folder = options.ranks, options.ring_flash_attn
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK=str(rank), WORLD_SIZE=str(ranks))
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    mesh = init_device_mesh("cuda", (ranks,))
    contestants = [(f"context_parallel {backend}", way) for backend in BACKENDS for way in ("allgather", "alltoall")]
    contestants += [("ring_flash_attn", way) for way in ("zigzag", "llama3") if folder]
    for length in options.lengths:
        for direction in ["forward", "both"][: 1 + options.both]:
            one_us = {}
            for contestant in contestants:
                try:
                    row = measure(mesh, contestant, direction, length, folder, one_us)
                except Exception as failure:  # of whatever refuses the problem
                    row = {"backend": " ".join(contestant), "key_len": length, "direction": direction, "failed": str(failure)[:300]}
                if rank == 0:
                    print(json.dumps(row), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("ranks", type=int, help="how many GPUs")
    arguments.add_argument("lengths", type=int, nargs="+", help="lengths of sequences; multiples of twice the number of GPUs")
    arguments.add_argument("--both", action="store_true", help="an output and its gradients, too")
    arguments.add_argument("--ring-flash-attn", metavar="FOLDER", help="the folder that has ring-flash-attn's package")
    options = arguments.parse_args()
    multiprocessing.spawn(of_rank, (options,), nprocs=options.ranks)
