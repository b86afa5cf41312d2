#!/usr/bin/env python3
"""Runs everything that is to be shown of Warptile on a GPU host, and writes what came of it as JSON.

Runs inside a bundle (`cargo xtask bundle`), which holds the program, the test executables and this script; needs no
Rust. docs/evidence.md says what each file means. A step that fails is recorded as failed; a tool that is missing makes the
run fail too. Exit code: 0 everything passed, 1 something failed, 2 wrong usage.
"""

import argparse
import concurrent.futures
import csv
import datetime
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

BUNDLE = pathlib.Path(__file__).resolve().parent.parent
WARPTILE = BUNDLE / "bin" / "warptile"
SANITIZER_TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")

# The most seconds one command of a step may take. They are for what hangs: all steps together take less than 8 minutes.
LIMITS = {"tests": 150, "verify": 240, "sanitizer": 120, "ncu": 60, "bench": 120, "peers": 120}

# How many random problems each family must pass.
RANDOM_PROBLEMS = {"scalar": 2000, "others": 5000}

# The files this script writes, without their ending.
WRITTEN = ("device", "info", "tests", "launches", "verify", "verify-*", "images", "sanitizer", "bench-warptile", "bench-peers")
WRITTEN += ("noise", "kernels", "families", "ncu", "summary")

# Shapes that are profiled: the original one and its two long relatives.
PROFILED = (
    ("b2 q512 k512 h8 d64 f16", {"query_len": 512, "head_dim": 64}),
    ("b2 q4096 k4096 h8 d64 f16", {"query_len": 4096, "head_dim": 64}),
    ("b2 q4096 k4096 h8 d128 f16", {"query_len": 4096, "head_dim": 128}),
)

# What ncu is asked for, by what it means. A GPU has only some of these; those it has are recorded.
METRICS = {
    "gpu__time_duration.sum": "time",
    "sm__inst_executed_pipe_tensor.sum": "tensor instructions",
    "sm__inst_executed_pipe_tensor_op_hmma.sum": "tensor instructions, HMMA",
    "sm__inst_executed_pipe_tensor_op_gmma.sum": "tensor instructions, HGMMA",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": "tensor pipe, % of its peak",
    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active": "tensor pipe (HMMA), % of its peak",
    "sm__inst_executed_pipe_xu.sum": "exp and other special-function instructions",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "SM throughput, % of its peak",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": "shared-memory bank conflicts",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": "shared-memory bank conflicts, loads",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum": "shared-memory bank conflicts, stores",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": "shared-memory wavefronts",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "DRAM throughput, % of its peak",
    "dram__bytes.sum": "DRAM bytes",
    "lts__t_sector_hit_rate.pct": "L2 hit rate, %",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "warps resident, % of the most",
}


class Evidence:
    """The folder that is filled, and what went wrong so far."""

    def __init__(self, folder):
        self.folder = folder
        self.failures = []
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, name, value):
        (self.folder / name).write_text(json.dumps(value, indent=2) + "\n")

    def fail(self, what):
        print(f"FAILED  {what}", flush=True)
        self.failures.append(what)


def run(command, limit, **options):
    """Exit code (124 after the limit, 127 if there is no such program) and output of a command."""
    try:
        done = subprocess.run(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=limit,
            env=environment(),
            **options,
        )
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        output = late.stdout or b""
        return 124, output if isinstance(output, str) else output.decode(errors="replace")
    except FileNotFoundError as missing:
        return 127, str(missing)


def environment():
    return {
        **os.environ,
        "WARPTILE_ROOT": str(BUNDLE),
        "WARPTILE_BIN": str(WARPTILE),
    }


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def last_lines(output, count=5):
    return "\n".join(output.strip().splitlines()[-count:])


# --- steps ----------------------------------------------------------------------------------------------------------


def device(evidence, options):
    """Device, driver and clocks, and the catalog with the hash of every image."""
    code, output = run([WARPTILE, "info", "--json", evidence.folder / "info.json"], 60)
    if code != 0:
        evidence.fail(f"warptile info: exit code {code}: {last_lines(output)}")
    fields = (
        "name,driver_version,compute_cap,vbios_version,pstate,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,"
        "power.limit,power.draw,temperature.gpu,ecc.mode.current,memory.total"
    )
    code, output = run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "-i", options.gpu], 60)
    values = dict(zip(fields.split(","), [value.strip() for value in output.strip().split(",")]))
    if code != 0:
        evidence.fail(f"nvidia-smi: {last_lines(output)}")
        values = {"error": last_lines(output)}
    tools = {}
    for tool in ("compute-sanitizer", "ncu"):
        code, output = run([tool, "--version"], 60)
        tools[tool] = last_lines(output, 1) if code == 0 else None
    commit = os.environ.get("WARPTILE_COMMIT")
    evidence.write("device.json", {"date": now(), "gpu": values, "tools": tools, "commit": commit})
    info = evidence.folder / "info.json"
    return json.loads(info.read_text()) if info.exists() else {"images": []}


def tests(evidence, options):
    """Every test by name, those that need a GPU included."""
    executables = [path for path in sorted((BUNDLE / "tests").iterdir()) if path.suffix != ".so"]
    rows = []
    deadline = time.monotonic() + LIMITS["tests"]
    for executable in executables:
        _, listed = run([executable, "--list", "--ignored", "--format=terse"], 60)
        gpu_tests = set(re.findall(r"^(.+): test$", listed, re.MULTILINE))
        code, output = run([executable, "--include-ignored"], max(1, deadline - time.monotonic()))
        (evidence.folder / "logs").mkdir(exist_ok=True)
        (evidence.folder / "logs" / f"{executable.name}.log").write_text(output)
        found = re.findall(r"^test (.+?)(?: - should panic)? \.\.\. (ok|FAILED)", output, re.MULTILINE)
        for name, result in found:
            rows.append(
                {
                    "executable": executable.name,
                    "test": name,
                    "gpu": name in gpu_tests,
                    "passed": result == "ok",
                }
            )
        # A test that prints while it runs, or one that took the process with it, has no line of its own.
        for name in sorted(gpu_tests - {name for name, _ in found}):
            rows.append({"executable": executable.name, "test": name, "gpu": True, "passed": code == 0})
        if code != 0:
            evidence.fail(f"{executable.name}: exit code {code}: {last_lines(output)}")
    if not any(row["gpu"] for row in rows):
        evidence.fail("no GPU test ran")
    evidence.write("tests.json", rows)
    # The tests of repeated launches are one module of the GPU tests; they make the matrix.
    matrix = [row for row in rows if row["test"].startswith("repetition::")]
    if not matrix:
        evidence.fail("no test of repeated launches ran")
    evidence.write("launches.json", matrix)


def families(info):
    return sorted({image["family"] for image in info["images"]})


def verify(evidence, options, info):
    """Random problems for every family; the images that ran, by name, with their hashes."""

    def one(family):
        target = evidence.folder / f"verify-{family}.json"
        command = [WARPTILE, "verify", "--device", f"cuda:{options.gpu}", "--family", family]
        count = options.count or RANDOM_PROBLEMS.get(family, RANDOM_PROBLEMS["others"])
        command += ["--count", str(count), "--seed", str(options.seed), "--json", target]
        code, output = run(command, LIMITS["verify"])
        print(last_lines(output, 1), flush=True)
        if code != 0:
            evidence.fail(f"verify --family {family}: exit code {code}: {last_lines(output)}")
        return json.loads(target.read_text()) if target.exists() else None

    # Each waits for its GPU while others work on the CPU.
    with concurrent.futures.ThreadPoolExecutor() as pool:
        results = zip(families(info), pool.map(one, families(info)))
    totals, images = [], {}
    for family, result in results:
        if result:
            keys = ("count", "passed", "failed", "not_applicable", "seed")
            totals.append({"family": family, **{key: result[key] for key in keys}})
            images.update(result["images"])
    evidence.write("verify.json", totals)
    evidence.write("images.json", images)


def side_by_side(evidence, options, works, info):
    """Works that leave both CPU and GPU time over."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for done in [pool.submit(work, evidence, options, info) for work in works]:
            done.result()


def sanitizer(evidence, options, info):
    """The four tools of compute-sanitizer over a few random problems of each family."""
    jobs = [(tool, family) for family in families(info) for tool in SANITIZER_TOOLS]

    def one(job):
        tool, family = job
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "86", WARPTILE, "verify"]
        command += ["--device", f"cuda:{options.gpu}", "--family", family, "--count", "24", "--seed", str(options.seed)]
        code, output = run(command, LIMITS["sanitizer"])
        summary = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?)", output)
        return {
            "tool": tool,
            "family": family,
            # No summary is no evidence: the count stays empty, and the step fails.
            "errors": int(summary.group(1)) if summary else None,
            "exit_code": code,
            "last_line": last_lines(output, 1),
        }

    # The tools spend their time on the host; four at once share one GPU well.
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(one, jobs))
    for row in rows:
        if row["errors"] != 0 or row["exit_code"] != 0:
            evidence.fail(f"{row['tool']} on {row['family']}: {row['last_line']}")
    evidence.write("sanitizer.json", rows)


def bench(evidence, options, name):
    """Benchmark rows of the planner's choice on every shape."""
    target = evidence.folder / name
    command = [WARPTILE, "bench", "--device", f"cuda:{options.gpu}", "--file", BUNDLE / "benches/peers/shapes.txt"]
    command += ["--samples", "30", "--seconds", "0.3", "--json", target]
    code, output = run(command, LIMITS["bench"])
    if code != 0:
        evidence.fail(f"bench: exit code {code}: {last_lines(output)}")
    return json.loads(target.read_text()) if target.exists() else []


def bench_kernels(evidence, options):
    """Every kernel that applies on the shapes that are profiled, and the best of each family on all shapes."""
    profiled = [word for shape, _ in PROFILED for word in ("--shape", shape)]
    everywhere = ["--file", BUNDLE / "benches/peers/shapes.txt"]
    rows = []
    for name, kernels, problems in (("kernels.json", "all", profiled), ("families.json", "families", everywhere)):
        target = evidence.folder / name
        command = [WARPTILE, "bench", "--device", f"cuda:{options.gpu}", "--kernel", kernels, "--json", target]
        command += ["--samples", "10", "--seconds", "0.1", *problems]
        code, output = run(command, LIMITS["bench"])
        if code != 0:
            evidence.fail(f"bench --kernel {kernels}: exit code {code}: {last_lines(output)}")
        if name == "kernels.json" and target.exists():
            rows = json.loads(target.read_text())
    return rows


def peers(evidence, options):
    """Every shape on PyTorch's kernels, FlashAttention-3 and the planner's choice, in turn."""
    command = ["python3", BUNDLE / "benches/peers/attention_peers.py", "--file", BUNDLE / "benches/peers/shapes.txt"]
    target = evidence.folder / "bench-peers.json"
    command += ["--samples", "15", "--with", WARPTILE, "--json", target]
    code, output = run(command, LIMITS["peers"])
    if code != 0:
        evidence.fail(f"peers: exit code {code}: {last_lines(output)}")
        return
    rows = json.loads(target.read_text())
    evidence.write("bench-warptile.json", [row for row in rows if row["backend"] == "warptile"])
    evidence.write("bench-peers.json", [row for row in rows if row["backend"] != "warptile"])


def ncu(evidence, options, rows):
    """Hardware counters of the fastest kernel of each family on the main shapes."""
    code, listed = run(["ncu", "--query-metrics"], 60)
    known = set(re.findall(r"^(\w+__\w+)", listed, re.MULTILINE))
    metrics = [metric for metric in METRICS if metric.split(".")[0] in known]
    if code != 0 or not metrics:
        evidence.fail(f"ncu --query-metrics: {last_lines(listed)}")
        return
    profiles = []
    for shape, wanted in PROFILED:
        of_shape = [row for row in rows if row["method"] == "graph" and wanted.items() <= row.items()]
        for family in sorted({row["family"] for row in of_shape}):
            fastest = min((row for row in of_shape if row["family"] == family), key=lambda row: row["median_us"])
            command = ["ncu", "--clock-control", "none", "--csv", "--metrics", ",".join(metrics), "--kernel-name", "regex:warptile_"]
            command += ["--launch-skip", "2", "--launch-count", "1", "--target-processes", "all"]
            command += [WARPTILE, "bench", "--device", f"cuda:{options.gpu}", "--samples", "1"]
            command += ["--shape", shape, "--kernel", fastest["kernel"]]
            code, output = run(command, LIMITS["ncu"])
            values = ncu_values(output)
            if code != 0 or not values:
                evidence.fail(f"ncu on {fastest['kernel']}: exit code {code}: {last_lines(output)}")
                continue
            profiles.append({"shape": shape, "family": family, "kernel": fastest["kernel"], "metrics": values})
    evidence.write("ncu.json", {"meaning": {metric: METRICS[metric] for metric in metrics}, "profiles": profiles})


def ncu_values(output):
    """Metric to value and unit, from ncu's CSV, which begins after the program's own output."""
    start = output.find('"ID"')
    if start < 0:
        return {}
    values = {}
    for row in csv.DictReader(io.StringIO(output[start:])):
        try:
            value = float(row["Metric Value"].replace(",", ""))
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
        values[row["Metric Name"]] = {"value": value, "unit": row.get("Metric Unit", "")}
    return values


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("EVIDENCE_DIR", str(BUNDLE / "evidence"))
    arguments.add_argument("--out", default=default, help="folder for the JSON files (default: evidence/ of the bundle)")
    arguments.add_argument("--gpu", default="0", help="which GPU, as the driver counts (default 0)")
    arguments.add_argument("--count", type=int, help="random problems for each family (default 2000 for scalar, 5000 for others)")
    arguments.add_argument("--seed", type=int, default=1, help="seed of the random problems (default 1)")
    arguments.add_argument("--without-peers", action="store_true", help="leave out PyTorch and FlashAttention-3")
    options = arguments.parse_args()
    if not WARPTILE.exists():
        print(f"{WARPTILE} is missing: run this from an unpacked bundle (`cargo xtask bundle` makes one)", file=sys.stderr)
        return 2
    missing = [tool for tool in ("nvidia-smi", "compute-sanitizer", "ncu") if not shutil.which(tool)]
    evidence = Evidence(pathlib.Path(options.out).resolve())
    for tool in missing:
        evidence.fail(f"{tool} is not on the PATH")

    # What a step that fails does not write must not be an older run's.
    for pattern in WRITTEN:
        for old in evidence.folder.glob(f"{pattern}.json"):
            old.unlink()

    start = time.monotonic()
    seconds = {}

    def step(name, work, *parts):
        before = time.monotonic()
        print(f"=== {name}", flush=True)
        result = work(evidence, options, *parts)
        seconds[name] = round(time.monotonic() - before, 1)
        print(f"=== {name}: {seconds[name]} s", flush=True)
        return result

    info = step("device", device)
    # Times first, while nothing else uses the GPU; then once more alone, which shows the noise.
    if options.without_peers:
        step("bench", bench, "bench-warptile.json")
    else:
        step("peers", peers)
    step("bench again", bench, "noise.json")
    rows = step("kernels", bench_kernels)
    step("ncu", ncu, rows)
    step("verify and sanitizer", side_by_side, (verify, sanitizer), info)
    # Alone: one of them takes all of the device's memory.
    step("tests", tests)

    evidence.write(
        "summary.json",
        {
            "date": now(),
            "passed": not evidence.failures,
            "failures": evidence.failures,
            "seconds": seconds,
            "total_seconds": round(time.monotonic() - start, 1),
        },
    )
    for failure in evidence.failures:
        print(f"FAILED  {failure}")
    print(f"{'FAILED' if evidence.failures else 'passed'} in {time.monotonic() - start:.0f} s; see {evidence.folder}")
    return 1 if evidence.failures else 0


if __name__ == "__main__":
    sys.exit(main())
