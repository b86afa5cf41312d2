#!/usr/bin/env python3
"""The CPU path against PyTorch's scaled_dot_product_attention, on the same cores, in turn.

For each problem PyTorch and `warptile bench --device cpu` are measured alternately, round by round, so that whatever else
the machine does meets both alike. A round's result is the median of its calls; the row's is the median over the rounds.
Rows are written as `warptile bench` and attention_peers.py write them. Times include what a call allocates, on both sides.

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
import tempfile
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

# Batch, heads, length, head size, causal.
PROBLEMS = [
    (2, 8, 512, 64, False),
    (1, 8, 2048, 64, False),
    (1, 8, 2048, 128, True),
    (1, 12, 301, 32, False),
]

WARM_UP = 3


def flops(batch, heads, length, head_dim, causal):
    """4 per visible pair of query and key, head and head dimension."""
    pairs = length * (length + 1) // 2 if causal else length * length
    return 4 * batch * heads * pairs * head_dim


def p90(times):
    return sorted(times)[max(0, -(-len(times) * 9 // 10) - 1)]


def time_torch(problem, samples):
    """Median and 90th percentile of a round, in microseconds."""
    batch, heads, length, head_dim, causal = problem
    q, k, v = (torch.randn(batch, heads, length, head_dim) for _ in range(3))
    times = []
    for sample in range(WARM_UP + samples):
        start = time.perf_counter()
        scaled_dot_product_attention(q, k, v, is_causal=causal)
        if sample >= WARM_UP:
            times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times), p90(times)


def time_warptile(program, problem, samples):
    """Median and 90th percentile of a round, in microseconds."""
    batch, heads, length, head_dim, causal = problem
    mask = "causal" if causal else "none"
    shape = f"b{batch} q{length} k{length} h{heads} d{head_dim} f32 mask={mask} layout=bhsd"
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.json")
        command = [program, "bench", "--device", "cpu", "--samples", str(samples), "--shape", shape, "--json", path]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with open(path) as file:
            row = json.load(file)[0]
    return row["median_us"], row["p90_us"]


def processor():
    """The processor's name, where the system tells."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        return names[0]
    except (OSError, IndexError):
        return platform.processor()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/warptile", help="the warptile program")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of either side")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--samples", type=int, default=20, help="calls per round")
    parser.add_argument("--json", help="write the rows to this file")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    os.environ["RAYON_NUM_THREADS"] = str(options.threads)
    device = f"{processor()}, {options.threads} threads"
    date = datetime.date.today().isoformat()
    # Above 0, something else computed on the same cores: the ratio of the two still counts, the times don't.
    load = round(os.getloadavg()[0], 2)
    rows = []
    for problem in PROBLEMS:
        batch, heads, length, head_dim, causal = problem
        rounds = {"warptile": [], "pytorch": []}
        for _ in range(options.rounds):
            rounds["pytorch"].append(time_torch(problem, options.samples))
            rounds["warptile"].append(time_warptile(options.program, problem, options.samples))
        for backend, times in rounds.items():
            median = statistics.median(time[0] for time in times)
            rows.append(
                {
                    "backend": backend,
                    "family": "cpu",
                    "kernel": "cpu" if backend == "warptile" else f"PyTorch {torch.__version__}",
                    "batch": batch,
                    "heads": heads,
                    "kv_heads": heads,
                    "query_len": length,
                    "key_len": length,
                    "head_dim": head_dim,
                    "element": "f32",
                    "mask": "causal" if causal else "none",
                    "method": "wall",
                    "samples": options.rounds * options.samples,
                    "median_us": median,
                    "p90_us": statistics.median(time[1] for time in times),
                    "tflops": flops(*problem) / median * 1e-6,
                    "device": device,
                    "driver": "",
                    "date": date,
                    "load_before": load,
                }
            )
        ours, theirs = (row["tflops"] * 1e3 for row in rows[-2:])
        ratios = sorted(t[0] / o[0] for o, t in zip(rounds["warptile"], rounds["pytorch"]))
        print(
            f"{str(problem):32} warptile {ours:6.1f} GFLOP/s   PyTorch {theirs:6.1f} GFLOP/s   "
            f"times as fast, by round: median {statistics.median(ratios):.2f}, {ratios[0]:.2f} to {ratios[-1]:.2f}"
        )
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
