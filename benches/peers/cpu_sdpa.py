#!/usr/bin/env python3
"""The CPU path against PyTorch's scaled_dot_product_attention, on the same cores, in turn.

For each problem PyTorch and `warptile bench --device cpu --paced` take turns of a few calls each, so that whatever else the
machine does meets both alike. A row's time is the median of all its calls, beside the shortest. Rows are written as `warptile bench` and
attention_peers.py write them; rows of other machines, and of problems that were not asked for, stay in the file. Times include what a
call allocates, on both sides.

A problem with one query also has the time that PyTorch takes to read as many bytes as its keys and values have, measured in the
same turns (`read_us`): nothing that reads them can be faster for long.

Needs: PyTorch (`pip install torch numpy`; no GPU), and the program (`cargo build --release`).
Example: cpu_sdpa.py --json evidence/cpu.json
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

from problem import Problem

PROBLEMS = """
b2 q512 k512 h8 d64 f32
b1 q2048 k2048 h8 d64 f32
b1 q2048 k2048 h8 d128 f32 mask=causal
b1 q301 k301 h12 d32 f32
b8 q128 k128 h12 d64 f32
b1 q1 k4096 h32/8 d128 f32
b1 q2048 k2048 h8 d64 f16
b1 q301 k301 h12 d32 f16
b1 q1 k4096 h32/8 d128 f16
b1 q2048 k2048 h8 d64 bf16
b1 q2048 k2048 h8 d128 bf16 mask=causal
b1 q1 k4096 h32/8 d128 bf16
"""

ELEMENTS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}

# Between turns: threads of either side spin for a while before they sleep. PyTorch's had 8 ms of a core behind each call
# (a thread's CPU time with calls 50 ms apart, two threads), which would be in the way of who comes next.
PAUSE_S = 0.015


def timed(call):
    """Microseconds."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


def torch_call(problem):
    """A call of PyTorch's for a problem with random inputs."""

    def tensor(heads, length):
        return torch.randn(problem.batch, heads, length, problem.head_dim).to(ELEMENTS[problem.element])

    q = tensor(problem.heads, problem.query_len)
    k, v = (tensor(problem.kv_heads, problem.key_len) for _ in range(2))
    options = {"is_causal": problem.is_causal, "enable_gqa": problem.heads != problem.kv_heads}
    return lambda: scaled_dot_product_attention(q, k, v, **options)


def read_call(problem):
    """A call that reads as many bytes as the keys and values have."""
    data = torch.ones(problem.kv_bytes // 4)
    return data.sum


def measure(problem, options):
    """Microseconds of all calls of each contestant."""
    calls = {"pytorch": torch_call(problem)}
    if problem.query_len == 1:
        calls["read"] = read_call(problem)
    times = {name: [] for name in ["warptile", *calls]}
    most = 1_000_000
    command = [options.program, "bench", "--device", "cpu", "--paced", "--samples", str(most)]
    command += ["--shape", problem.line + " layout=bhsd"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen(command, **pipes) as warptile:

        def paced():
            warptile.stdin.write("\n")
            return float(warptile.stdout.readline())

        for call in calls.values():
            for _ in range(3):
                call()
        paced()
        end = time.perf_counter() + options.seconds
        while time.perf_counter() < end:
            for name, samples in times.items():
                time.sleep(PAUSE_S)
                for _ in range(options.calls):
                    samples.append(paced() if name == "warptile" else timed(calls[name]))
        warptile.stdin.close()
        warptile.stdout.read()
    return times


def processor():
    """The processor's name, where the system tells."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        return names[0]
    except (OSError, IndexError):
        return platform.processor()


def row_of(problem, backend, times, options):
    """One measurement as `warptile bench` writes it."""
    median = statistics.median(times)
    return {
        "backend": backend,
        "family": "cpu",
        "kernel": "cpu" if backend == "warptile" else f"PyTorch {torch.__version__}",
        "batch": problem.batch,
        "heads": problem.heads,
        "kv_heads": problem.kv_heads,
        "query_len": problem.query_len,
        "key_len": problem.key_len,
        "head_dim": problem.head_dim,
        "element": problem.element,
        "mask": problem.mask,
        "method": "wall",
        "samples": len(times),
        "median_us": median,
        "min_us": min(times),
        "p90_us": sorted(times)[max(0, -(-len(times) * 9 // 10) - 1)],
        "tflops": problem.flops / median * 1e-6,
        "device": options.device,
        "driver": "",
        "date": datetime.date.today().isoformat(),
        "load_before": options.load,
    }


def identity(row):
    """What a later measurement of the same has in common with it."""
    names = ["device", "backend", "batch", "heads", "kv_heads", "query_len", "key_len", "head_dim", "element", "mask"]
    return tuple(row[name] for name in names)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/warptile", help="the warptile program")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of either side")
    parser.add_argument("--seconds", type=float, default=10, help="for each problem")
    parser.add_argument("--only", metavar="TEXT", default="", help="only the problems with this in their line, such as bf16 or q1")
    parser.add_argument("--calls", type=int, default=4, help="calls in each turn")
    parser.add_argument("--name", help="the processor's name, where the system does not tell")
    parser.add_argument("--json", help="write the rows to this file, in place of those of the same machine and problems")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    os.environ["RAYON_NUM_THREADS"] = str(options.threads)
    options.device = f"{options.name or processor()}, {options.threads} threads"
    # Above 0, something else computed on the same cores: the ratio of the two still counts, the times don't.
    options.load = round(os.getloadavg()[0], 2)
    rows, ratios = [], []
    lines = [line for line in PROBLEMS.split("\n") if line and options.only in line]
    if not lines:
        parser.error(f"--only {options.only}: no problem has this in its line")
    for line in lines:
        problem = Problem(line)
        times = measure(problem, options)
        ours, theirs = (row_of(problem, name, times[name], options) for name in ("warptile", "pytorch"))
        text = ""
        if "read" in times:
            ours["read_us"] = statistics.median(times["read"])
            text = f"   {ours['read_us'] / ours['median_us']:.2f} of the speed of reading"
        rows += [ours, theirs]
        ratios.append(theirs["median_us"] / ours["median_us"])
        least = min(times["pytorch"]) / min(times["warptile"])
        print(
            f"{line:40} warptile {ours['median_us'] / 1e3:7.2f} ms   PyTorch {theirs['median_us'] / 1e3:7.2f} ms   "
            f"ratio {ratios[-1]:.2f} (of the shortest calls {least:.2f}; {len(times['pytorch'])} calls each){text}",
            flush=True,
        )
    print(f"geometric mean of the ratios: {statistics.geometric_mean(ratios):.2f}")
    if options.json:
        others = []
        measured = {identity(row) for row in rows}
        if os.path.exists(options.json):
            with open(options.json) as file:
                others = [row for row in json.load(file) if identity(row) not in measured]
        with open(options.json, "w") as file:
            json.dump(others + rows, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
