"""PyTorch's context_parallel over the GPUs of one host, on the problems of docs/several-gpus.md: the command line has the
number of GPUs, then lengths; each length gives a JSON row for each backend of attention and each way of passing keys on.

    python3 context_parallel.py 2 16384 65536
"""

import json
import math
import os
import statistics
import sys
import time

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


def error(out, rows, q, k, v):
    """The root mean square of the error of some rows over that of the float64 result, over all ranks."""
    sums = torch.zeros(2, dtype=torch.float64, device="cuda")
    for head in (0, HEADS - 1):
        keys, values = (t[0, head * KV_HEADS // HEADS].double() for t in (k, v))
        for at, row in rows:
            scores = keys[: row + 1] @ q[0, head, row].double() / math.sqrt(DIM)
            expected = scores.softmax(0) @ values[: row + 1]
            sums += torch.stack([(out[0, head, at].double() - expected).square().sum(), expected.square().sum()])
    dist.all_reduce(sums)
    return math.sqrt(sums[0] / sums[1])


def measure(mesh, backend, rotation, length):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    calls = min(max((2 << 34) // (length * length), 3), 200)
    whole = data(length, HEADS, 1), data(length, KV_HEADS, 2), data(length, KV_HEADS, 3)
    half = length // ranks // 2
    # Each rank has one chunk of rows from the sequence's head and one from its tail.
    local = [0, half - 1, half, 2 * half - 1][:SAMPLED]
    rows = [(at, (rank if at < half else 2 * ranks - 2 - rank) * half + at) for at in local]

    def call(q, k, v):
        # By its module, as context_parallel replaces it there.
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    with sdpa_kernel(BACKENDS[backend]), torch.no_grad():
        one_us = median_us(calls, lambda: call(*whole))
        set_rotate_method(rotation)
        shards = [t.clone() for t in whole]
        with context_parallel(mesh, buffers=shards, buffer_seq_dims=[2] * 3, no_restore_buffers=set(shards)):
            us = median_us(calls, lambda: call(*shards))
            found = error(call(*shards), rows, *whole)
    return {
        "backend": f"context_parallel {backend} {rotation}",
        "engine": "nccl",
        "ranks": ranks,
        "key_len": length,
        "direction": "forward",
        "one_us": round(one_us, 1),
        "median_us": round(us, 1),
        "efficiency": round(one_us / us / ranks, 4),
        "error": float(f"{found:.3e}"),
    }


def of_rank(rank, ranks, lengths):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK=str(rank), WORLD_SIZE=str(ranks))
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    mesh = init_device_mesh("cuda", (ranks,))
    for length in lengths:
        for backend in BACKENDS:
            for rotation in ("allgather", "alltoall"):
                try:
                    row = measure(mesh, backend, rotation, length)
                except RuntimeError as failure:
                    row = {"backend": f"context_parallel {backend} {rotation}", "key_len": length, "failed": str(failure)[:300]}
                if rank == 0:
                    print(json.dumps(row), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    ranks = int(sys.argv[1])
    multiprocessing.spawn(of_rank, (ranks, [int(length) for length in sys.argv[2:]]), nprocs=ranks)
