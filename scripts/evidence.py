#!/usr/bin/env python3
"""Runs everything that is to be shown of Warptile on a GPU host, and writes what came of it as JSON.

Runs inside a bundle (`cargo xtask bundle`), which holds the program, the test executables and this script; needs no
Rust. docs/evidence.md says what each file means. The work has parts, each of which takes less than 9 minutes; `--only`
runs some of them, and what other parts of the same commit wrote before stays. A step that fails is recorded as failed; a tool
that is missing makes its part fail. Each part writes what it has as it goes; told to stop (Ctrl-C, SIGTERM), the script has what
runs write what it has, too, and ends. Exit code: 0 everything passed, 1 something failed, 2 wrong usage.
"""

import argparse
import concurrent.futures
import contextlib
import csv
import datetime
import hashlib
import io
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

BUNDLE = pathlib.Path(__file__).resolve().parent.parent
WARPTILE = BUNDLE / "bin" / "warptile"
SHAPES = BUNDLE / "benches/peers/shapes.txt"
UNEVEN = BUNDLE / "benches/peers/uneven.txt"
DECODE = BUNDLE / "benches/peers/decode.txt"
ODD = BUNDLE / "benches/peers/odd.txt"
PEERS = BUNDLE / "benches/peers/attention_peers.py"
SANITIZER_TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")

# Tests of the operations beside forward: random cases of an operation are in the module of its family's name.
OPERATION_TESTS = BUNDLE / "tests/attention-gpu"

# Random cases of each operation in the part `verify`; in the part `tests`, which would compute the same once more; and under a tool of the
# sanitizer, where each takes long.
OPERATION_CASES, TESTED_CASES, SANITIZED_CASES = 2000, 100, 40

# What images that take keys and values in pages say of themselves.
PAGED = "paged keys"

# The feature of images that read keys and values in 8 bits, and no others.
E4M3 = "keys and values in e4m3"

# A row of decode loses if the best peer is faster by more than this, and is at the ceiling if it takes so much of the time of a
# kernel that only reads.
LOST, CEILING = 0.99, 1.02

# Seconds that tuning for all problems may take, blocks of the trial in which each new choice is held against the old one once more, and
# the slowest that it may then be.
TUNING, TUNED_BLOCKS, TUNED_LOSS = 180, 25, 0.99

# The most seconds one command may take. They are for what hangs: no part takes as long as its commands might.
LIMITS = {"tests": 400, "verify": 300, "launches": 400, "tile": 400, "acceptance": 400, "sanitizer": 450, "ncu": 60, "bench": 240}
LIMITS |= {"peers": 400, "default": 60, "errors": 450, "decode": 530, "examples": 120, "tune": 300, "compile": 300}

# Seconds that a command has to write what it measured when its time is over or the script is told to stop.
LAST_SECONDS = 10

# Test executables that take the GPU's memory or measure on it: nothing may run beside them.
ALONE = ("_alone", "_memory")

# Processes that share one GPU and its host well: most of what they do is on the host.
SIDE_BY_SIDE = 4

# Random problems that each family must pass: the longest sequence, and the option that says how many.
RANDOM_PROBLEMS = ((1024, "count"), (4096, "long_count"))

# The least part of a persistent family's random problems that must be planned for 1 to 5 multiprocessors.
FEW_MULTIPROCESSORS = 1 / 3

# Launches of every kernel in a row, and when they are waited for.
LAUNCHES = 500
SYNCS = ("each", "tenth", "end", "none")

# The acceptance tests of the project's predecessor, in f16 and bf16.
ACCEPTANCE = (
    "b1 q512 k512 h8 d64",
    "b1 q512 k512 h8 d64 mask=causal",
    "b2 q2048 k2048 h8 d64",
    "b2 q2048 k2048 h8 d64 mask=causal",
    "b2 q2048 k2048 h8 d128",
)

# Keys that a split has where the cost of fixed splits is measured.
SPLITS = 512

# Shared memory that a CTA of a GPU of compute capability 8.9 can have: compute_89 images are planned within it.
SHARED_KIB_89 = 99

# Tokens that the decoder generates in each sequence, and launches of a captured step.
EXAMPLE_TOKENS, EXAMPLE_REPLAYS = 48, 1000

# A log is kept as it is up to this size; beyond it its beginning and its end are.
LOG_BYTES = 32 << 10

# Shapes that are profiled: the original one and its two long relatives.
PROFILED = (
    ("b2 q512 k512 h8 d64 f16", {"query_len": 512, "head_dim": 64}),
    ("b2 q4096 k4096 h8 d64 f16", {"query_len": 4096, "head_dim": 64}),
    ("b2 q4096 k4096 h8 d128 f16", {"query_len": 4096, "head_dim": 128}),
)

# The machine instruction of a family's matrix products. Its counter is recorded; that of another would count the wrong pipe.
TENSOR_COUNTERS = {"hmma": ("wmma", "mma", "decode"), "gmma": ("wgmma",)}

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

    def __init__(self, folder, options):
        self.folder = folder
        self.options = options
        self.parts = []
        self.failures = []
        self.stamp = {"commit": commit(), "date": now()}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "logs").mkdir(exist_ok=True)

    def write(self, name, **content):
        """A JSON file that says what it is about: commit, date, GPU and driver, then `content`."""
        (self.folder / name).write_text(json.dumps({**self.stamp, **content}, indent=2) + "\n")

    def read(self, name):
        """A file of this or an earlier part; empty if there is none."""
        path = self.folder / name
        return json.loads(path.read_text()) if path.exists() else {}

    def log(self, name, output):
        data = output.encode(errors="replace")
        if len(data) > LOG_BYTES:
            half = LOG_BYTES // 2
            cut = f"\n[... {len(data) - 2 * half} bytes ...]\n".encode()
            data = data[:half] + cut + data[-half:]
        (self.folder / "logs" / f"{name}.log").write_bytes(data)

    def fail(self, what):
        print(f"FAILED  {what}", flush=True)
        self.failures.append(what)

    def needs(self, tool):
        """Whether a tool is there; a part that needs it fails without it."""
        if shutil.which(tool):
            return True
        self.fail(f"{tool} is not on the PATH")
        return False


def commit():
    """What the bundle was made from; the digest of the program if that is not known."""
    if os.environ.get("WARPTILE_COMMIT"):
        return os.environ["WARPTILE_COMMIT"]
    recorded = BUNDLE / "commit.txt"
    if recorded.exists():
        return recorded.read_text().strip()
    return "unknown; bin/warptile has SHA-256 " + hashlib.sha256(WARPTILE.read_bytes()).hexdigest()


# Whether the script was told to stop; the processes that it has started and not seen end; and itself on a second GPU.
STOP, RUNNING, ELSEWHERE = threading.Event(), set(), set()


def stop(*_):
    """Has what runs write what it has. Nothing more is begun."""
    STOP.set()
    for process in [*RUNNING, *ELSEWHERE]:
        tell(process, signal.SIGINT)
    late = threading.Timer(LAST_SECONDS, lambda: [tell(process, signal.SIGKILL) for process in list(RUNNING)])
    late.daemon = True
    late.start()


def tell(process, what):
    """Sends a signal to a process and those it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, what)


def run(command, limit, variables=(), text=None):
    """Exit code (124 after the limit, 127 if there is no such program, 130 if the script was told to stop) and output of a command.
    `variables`: of its environment; `text`: its standard input."""
    if STOP.is_set():
        return 130, "not begun: the script was told to stop"
    try:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=None if text is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment() | dict(variables),
            start_new_session=True,
        )
    except FileNotFoundError as missing:
        return 127, str(missing)
    RUNNING.add(process)
    if STOP.is_set():
        tell(process, signal.SIGINT)
    late = False
    try:
        for seconds, what in ((limit, signal.SIGINT), (LAST_SECONDS, signal.SIGKILL), (None, None)):
            try:
                output, _ = process.communicate(text, timeout=seconds)
                break
            except subprocess.TimeoutExpired:
                late = True
                tell(process, what)
    finally:
        RUNNING.discard(process)
    return 124 if late else process.returncode, output


def warptile(evidence, what, arguments, limit, before=(), variables=()):
    """Output and JSON of one command of the program; a failure is recorded. `before` is a tool that runs it."""
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder) / "out.json"
        # A file, not standard output: a tool around the program writes there, too.
        code, output = run([*before, WARPTILE, *arguments, "--json", target], limit, variables)
        evidence.log(what.replace(" ", "-"), output)
        if code != 0:
            evidence.fail(f"{what}: exit code {code}: {last_lines(output)}")
        content = json.loads(target.read_text()) if target.exists() else None
        # A measurement that failed leaves the rows that it had, and says so; the failure is recorded above.
        if isinstance(content, dict) and content.get("cut_short") and "rows" in content:
            content = content["rows"]
        return code, output, content


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


def pool(evidence, work, jobs, workers=SIDE_BY_SIDE):
    """Yields the results of `work` on each job, several at once, in the order of the jobs."""
    with concurrent.futures.ThreadPoolExecutor(workers) as executor:
        yield from executor.map(lambda job: work(evidence, job), jobs)


# --- what is there --------------------------------------------------------------------------------------------------


def device(evidence):
    """Device, driver and clocks, and the catalog with the hash of every image. Every part begins with it."""
    _, _, info = warptile(evidence, "info", ["info"], 60)
    fields = (
        "name,driver_version,compute_cap,vbios_version,pstate,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,"
        "power.limit,power.draw,temperature.gpu,ecc.mode.current,memory.total"
    )
    code, output = run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "-i", evidence.options.gpu], 60)
    values = dict(zip(fields.split(","), [value.strip() for value in output.strip().split(",")]))
    if code != 0:
        evidence.fail(f"nvidia-smi: {last_lines(output)}")
        values = {"error": last_lines(output)}
    tools = {}
    for tool in ("compute-sanitizer", "ncu"):
        code, output = run([tool, "--version"], 60)
        tools[tool] = last_lines(output, 1) if code == 0 else None
    evidence.stamp |= {"device": values.get("name", "unknown"), "driver": values.get("driver_version", "unknown")}
    evidence.write("device.json", gpu=values, tools=tools)
    info = info or {"images": []}
    evidence.write("info.json", **{key: info[key] for key in info if key not in ("date", "driver")}, cuda=info.get("driver"))
    here = [image for image in info["images"] if fits(image, info, evidence.options.gpu)]
    evidence.images = {image["image"]: image for image in here if image["role"] == "forward"}
    evidence.operations = {image["image"]: image for image in here if image["role"] != "forward"}


def fits(image, info, gpu):
    """Whether a GPU runs an image: it was compiled for it, and a CTA can have the shared memory that it needs."""
    found = [device for device in info.get("devices", []) if device["ordinal"] == gpu]
    return any(
        runs(image["target"], device["compute_capability"]) and image["shared_bytes"] <= device["shared_bytes_per_cta"]
        for device in found
    )


def runs(target, capability):
    """Whether a device of this compute capability, such as 9.0, runs an image for this target."""
    device, number = capability.replace(".", ""), re.fullmatch(r"(sm|compute)_(\d+)(a?)", target)
    if not number or not device.isdigit():
        return False
    kind, built_for, exact = number[1], int(number[2]), number[3]
    if kind == "compute":
        return built_for <= int(device)
    return built_for == int(device) if exact else built_for // 10 == int(device) // 10 and built_for <= int(device)


def families(evidence):
    return sorted({image["family"] for image in evidence.images.values()})


def paged_families(evidence):
    return sorted({image["family"] for image in evidence.images.values() if PAGED in image["features"]})


def operations(evidence):
    """Families of the operations beside forward."""
    return sorted({image["family"] for image in evidence.operations.values()})


def operation(evidence, what, family, cases, limit, before=()):
    """Random cases of an operation, by its tests: exit code, output, and the hashes of the images that computed all of them rightly.
    A failure is recorded."""
    command = [*before, OPERATION_TESTS, f"{family}::random", "--include-ignored", "--nocapture", "--test-threads=1"]
    code, output = run(command, limit, {"QUICKCHECK_TESTS": str(cases)})
    evidence.log(what.replace(" ", "-"), output)
    if code != 0:
        evidence.fail(f"{what}: exit code {code}: {last_lines(output)}")
    names = set(re.findall(r"^(?:test .* )?ran (\S+)$", output, re.MULTILINE)) & evidence.operations.keys()
    for name in sorted(name for name, image in evidence.operations.items() if image["family"] == family and name not in names):
        evidence.fail(f"{what}: {name} computed nothing")
    return code, output, {name: evidence.operations[name]["sha256"] for name in sorted(names)}


def cubins(evidence):
    """(family, target) of the images that were compiled for this GPU."""
    images = evidence.images.values()
    return sorted({(image["family"], image["target"]) for image in images if image["target"].startswith("sm_")})


def on(evidence):
    return ["--device", f"cuda:{evidence.options.gpu}"]


# --- parts ----------------------------------------------------------------------------------------------------------


def tests(evidence):
    """Every test by name, those that need a GPU included. Executables run side by side, but for those that must be alone."""
    executables = [path for path in sorted((BUNDLE / "tests").iterdir()) if path.suffix != ".so"]
    alone = [path for path in executables if path.name.endswith(ALONE)]
    deadline = time.monotonic() + LIMITS["tests"]

    def one(evidence, executable):
        start = time.monotonic()
        _, listed = run([executable, "--list", "--ignored", "--format=terse"], 60)
        gpu_tests = set(re.findall(r"^(.+): test$", listed, re.MULTILINE))
        cases = {"QUICKCHECK_TESTS": str(TESTED_CASES)}
        code, output = run([executable, "--include-ignored"], max(1, deadline - time.monotonic()), cases)
        evidence.log(executable.name, output)
        found = re.findall(r"^test (.+?)(?: - should panic)? \.\.\. (ok|FAILED)", output, re.MULTILINE)
        rows = [
            {"executable": executable.name, "test": name, "gpu": name in gpu_tests, "passed": result == "ok"} for name, result in found
        ]
        # A test that prints while it runs, or one that took the process with it, has no line of its own.
        for name in sorted(gpu_tests - {name for name, _ in found}):
            rows.append({"executable": executable.name, "test": name, "gpu": True, "passed": code == 0})
        if code != 0:
            evidence.fail(f"{executable.name}: exit code {code}: {last_lines(output)}")
        seconds = round(time.monotonic() - start, 1)
        print(f"{executable.name}: {sum(row['passed'] for row in rows)} of {len(rows)} passed in {seconds} s", flush=True)
        return executable.name, seconds, rows

    rows, times = [], {}
    for jobs, workers in (([path for path in executables if path not in alone], SIDE_BY_SIDE), (alone, 1)):
        for name, seconds, of_executable in pool(evidence, one, jobs, workers):
            rows += of_executable
            times[name] = seconds
            evidence.write("tests.json", seconds=times, rows=rows)
    if not any(row["gpu"] for row in rows):
        evidence.fail("no GPU test ran")


def verify(evidence):
    """Random problems for every family, and in pages for those that take them; random cases of every operation; the images that
    ran, by name, with their hashes. One family after the other: each uses all cores, and streams of one process share the GPU
    better than processes do. The operations' cases, computed by one thread each, run beside them."""
    options = evidence.options
    totals, images = [], {}

    def cases(evidence, family):
        return operation(evidence, f"verify {family}", family, OPERATION_CASES, LIMITS["verify"])

    def write():
        evidence.write("verify.json", rows=totals)
        evidence.write("images.json", images=images)

    beside = concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE)
    of_operations = [(family, beside.submit(cases, evidence, family)) for family in operations(evidence)]
    jobs = [(family, *of_length, []) for family in families(evidence) for of_length in RANDOM_PROBLEMS]
    jobs += [(family, *RANDOM_PROBLEMS[0], ["--paged"]) for family in paged_families(evidence)]
    if not paged_families(evidence):
        evidence.fail("verify: no image takes keys and values in pages")
    for family, max_len, how_many, paged in jobs:
        name = f"{family}-paged-{max_len}" if paged else f"{family}-{max_len}"
        what = f"verify {name}".replace("-", " ")
        arguments = ["verify", *on(evidence), "--kernel", family, "--max-len", max_len, *paged]
        arguments += ["--count", getattr(options, how_many), "--seed", options.seed]
        _, output, result = warptile(evidence, what, arguments, LIMITS["verify"])
        print(last_lines(output, 1), flush=True)
        if not result:
            continue
        of_all = {key: result[key] for key in result if key not in ("date", "driver", "device")}
        evidence.write(f"verify-{name}.json", max_len=max_len, paged=bool(paged), **of_all)
        shown = [key for key in of_all if key not in ("images", "problems", "failures", "launches", "runnable", "repeat")]
        totals.append({"family": family, "max_len": max_len, "paged": bool(paged), **{key: of_all[key] for key in shown}})
        few = result["few_multiprocessors"]
        if any(image["persistent"] for image in result["images"].values()) and few < FEW_MULTIPROCESSORS * result["count"]:
            evidence.fail(f"{what}: only {few} of {result['count']} problems were planned for few multiprocessors")
        for name, image in result["images"].items():
            known = images.setdefault(name, {**image, "passed": 0, "failed": 0, "drew_tiles": 0})
            for key in ("passed", "failed", "drew_tiles"):
                known[key] += image[key]
        write()
    for name in sorted(evidence.images.keys() - images.keys()):
        evidence.fail(f"verify: {name} ran no problem")
    for name, image in images.items():
        if image["persistent"] and not image["drew_tiles"]:
            evidence.fail(f"verify: {name} drew no tile")
    for family, computed in of_operations:
        code, _, ran = computed.result()
        failed = OPERATION_CASES if code else 0
        passed = OPERATION_CASES - failed
        totals.append({"family": family, "max_len": None, "count": OPERATION_CASES, "passed": passed, "failed": failed})
        for name, sha256 in ran.items():
            images[name] = {"sha256": sha256, "persistent": False, "passed": passed, "failed": failed, "drew_tiles": 0}
        write()


def launches(evidence):
    """Every kernel launched hundreds of times in the same buffers, waited for in four ways."""

    def one(evidence, sync):
        arguments = ["verify", *on(evidence), "--each-kernel", "--repeat", LAUNCHES, "--sync", sync]
        _, output, result = warptile(evidence, f"launches {sync}", arguments, LIMITS["launches"])
        print(last_lines(output, 1), flush=True)
        return result

    rows = []
    for sync, result in zip(SYNCS, pool(evidence, one, SYNCS)):
        if result:
            rows.append(
                {
                    "sync": sync,
                    "launches": LAUNCHES,
                    "problems": result["count"],
                    "passed": result["passed"],
                    "failed": result["failed"],
                    "images": {name: image["sha256"] for name, image in result["images"].items()},
                }
            )
            unvisited(evidence, f"launches {sync}", evidence.images, result)
            evidence.write("launches.json", matrix=rows)


def tile(evidence):
    """Each score and weight of one tile of every image that takes one."""
    _, output, result = warptile(evidence, "tile", ["verify", *on(evidence), "--tile"], LIMITS["tile"])
    print(last_lines(output, 1), flush=True)
    rows = result["tiles"] if result else []
    computed = {row["image"] for row in rows if row["passed"] or row["fault"]}
    # A tile has rows of one head, and keys in the rows' type.
    takers = {name for name, image in evidence.images.items() if E4M3 not in image["features"] and "_groups_" not in name}
    for name in sorted(takers - computed):
        evidence.fail(f"tile: {name} computed no tile")
    evidence.write("tile.json", rows=rows)


def unvisited(evidence, what, images, result):
    """Fails for every image that computed nothing."""
    reasons = {row["image"]: row["reason"] for row in result["problems"]}
    for name in sorted(set(images) - set(result["images"])):
        evidence.fail(f"{what}: {name} computed no problem: {reasons.get(name)}")


def acceptance(evidence):
    """The acceptance problems, in f16 and bf16, on every image that takes them: those compiled for this GPU, and those of compute_89
    within the shared memory of such a GPU. An image whose tiles do not hold a problem has no row of it."""
    takers = {(image["family"], image["target"]) for image in evidence.images.values() if E4M3 not in image["features"]}
    jobs = [(family, target, []) for family, target in cubins(evidence) if (family, target) in takers]
    for family in sorted(family for family, target in takers if target == "compute_89"):
        jobs.append((family, "compute_89", ["--shared-kib", SHARED_KIB_89]))
    jobs = [(*job, element) for job in jobs for element in ("f16", "bf16")]

    def one(evidence, job):
        family, target, within, element = job
        arguments = ["verify", *on(evidence), "--kernel", family, "--target", target, *within]
        for problem in ACCEPTANCE:
            arguments += ["--case", f"{problem} {element} seed=7"]
        what = f"acceptance {family} {target} {element}"
        _, output, result = warptile(evidence, what, arguments, LIMITS["acceptance"])
        print(last_lines(output, 1), flush=True)
        return [row for row in result["problems"] if row["applicable"]] if result else []

    rows = []
    for (family, target, within, _), problems in zip(jobs, pool(evidence, one, jobs)):
        for problem in problems:
            rows.append({"family": family, "target": target, "shared_kib": SHARED_KIB_89 if within else None, **problem})
        evidence.write("acceptance.json", every_image=True, rows=rows)


def examples(evidence):
    """The examples, which compare a GPU's results themselves: tokens of a small decoder with those of the CPU and of a plain float64
    loop, and a captured step with ordinary calls."""
    gpu = evidence.options.gpu
    jobs = (
        # The GPU is asked for by number: without it the decoder would be content with the CPU.
        ("decoder", ["--tokens", EXAMPLE_TOKENS, "--device", f"cuda:{gpu}"], r"^(\S.*?) +\d+ +\d+  the same$", 2),
        ("captured_step", ["--replays", EXAMPLE_REPLAYS, "--device", gpu], rf"^({EXAMPLE_REPLAYS} replays with \d+ sequences, 0 of them differ)$", 1),
    )
    rows = []
    for name, arguments, pattern, wanted in jobs:
        code, output = run([BUNDLE / "bin/examples" / name, *arguments], LIMITS["examples"])
        evidence.log(f"example-{name}", output)
        found = re.findall(pattern, output, re.MULTILINE)
        passed = code == 0 and len(found) == wanted
        if not passed:
            evidence.fail(f"example {name}: exit code {code}: {last_lines(output)}")
        rows.append({"example": name, "arguments": [str(word) for word in arguments], "exit_code": code, "passed": passed, "same": found})
        print(f"example {name}: {'; '.join(found) or 'nothing the same'}", flush=True)
        evidence.write("examples.json", rows=rows)


def sanitizer(evidence):
    """The four tools of compute-sanitizer over two problems of every image that was compiled for this GPU, over random cases of the
    operations, and over a broken kernel each, which they must report."""
    if not evidence.needs("compute-sanitizer"):
        return

    def tool_command(tool):
        return ["compute-sanitizer", "--tool", tool, "--error-exitcode", "86"]

    def errors_of(output):
        # No summary is no evidence: the count stays empty, and the part fails.
        summary = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?)", output)
        return int(summary[1]) if summary else None

    def control(evidence, tool):
        code, output = run([*tool_command(tool), sys.executable, BUNDLE / "scripts/controls.py", tool], LIMITS["sanitizer"])
        evidence.log(f"control-{tool}", output)
        errors = errors_of(output)
        caught = bool(errors) and f"{tool}: launched" in output
        if not caught:
            evidence.fail(f"{tool} did not catch its broken kernel: exit code {code}: {last_lines(output)}")
        return {"tool": tool, "errors": errors, "caught": caught}

    def one(evidence, job):
        tool, family, target = job
        # One thread: the tools slow down whatever runs side by side.
        arguments = ["verify", *on(evidence), "--each-kernel", "--kernel", family, "--target", target, "--threads", 1]
        what = f"{tool} {family} {target}"
        code, output, result = warptile(evidence, what, arguments, LIMITS["sanitizer"], before=tool_command(tool))
        row = {"tool": tool, "family": family, "target": target, "errors": errors_of(output), "exit_code": code}
        if row["errors"] != 0 and code == 0:
            evidence.fail(f"{what}: {last_lines(output, 1)}")
        if result:
            images = [name for name, image in evidence.images.items() if (image["family"], image["target"]) == (family, target)]
            unvisited(evidence, what, images, result)
        visited = result["images"] if result else {}
        print(f"{what}: {row['errors']} errors over {len(visited)} images", flush=True)
        return {
            **row,
            "problems": result["count"] if result else 0,
            "images": {name: image["sha256"] for name, image in visited.items()},
            "drew_tiles": sorted(name for name, image in visited.items() if image["drew_tiles"]),
            "last_line": last_lines(output, 1),
        }

    def one_operation(evidence, tool, family):
        what = f"{tool} {family}"
        code, output, ran = operation(evidence, what, family, SANITIZED_CASES, LIMITS["sanitizer"], before=tool_command(tool))
        row = {"tool": tool, "family": family, "target": None, "errors": errors_of(output), "exit_code": code}
        if row["errors"] != 0 and code == 0:
            evidence.fail(f"{what}: {last_lines(output, 1)}")
        print(f"{what}: {row['errors']} errors over {len(ran)} images", flush=True)
        return {**row, "problems": SANITIZED_CASES, "images": ran, "drew_tiles": [], "last_line": last_lines(output, 1)}

    def any_job(evidence, job):
        return one(evidence, job) if len(job) == 3 else one_operation(evidence, *job)

    controls = list(pool(evidence, control, SANITIZER_TOOLS))
    jobs = [(tool, family) for family in operations(evidence) for tool in SANITIZER_TOOLS]
    jobs += [(tool, family, target) for family, target in cubins(evidence) for tool in SANITIZER_TOOLS]
    rows = []
    for row in pool(evidence, any_job, jobs, workers=2 * SIDE_BY_SIDE):
        rows.append(row)
        evidence.write("sanitizer.json", controls=controls, rows=rows)


def peers(evidence):
    """Every shape on PyTorch's kernels, FlashAttention-3 and the planner's choice, in turn, and a few on what PyTorch chooses by itself; or
    all on the planner's choice alone."""
    options = evidence.options
    if options.without_peers:
        arguments = ["bench", *on(evidence), "--file", SHAPES, "--samples", 30, "--seconds", 0.3]
        _, _, rows = warptile(evidence, "bench", arguments, LIMITS["bench"])
        evidence.write("bench-warptile.json", rows=rows or [])
        return
    rows, absent = of_peers(evidence, "peers", ["--file", SHAPES, "--samples", options.samples])
    evidence.write("bench-warptile.json", rows=[row for row in rows if row["backend"] == "warptile"])
    evidence.write("bench-peers.json", rows=[row for row in rows if row["backend"] != "warptile"], absent=absent)
    # On the shapes that every kernel is measured on, and apart from the peers: it is one of them.
    profiled = [word for shape, _ in PROFILED for word in ("--shape", shape)]
    rows, absent = of_peers(evidence, "default", ["--peer", "default", "--samples", options.samples, *profiled])
    evidence.write("default.json", rows=rows, absent=absent)


def errors(evidence):
    """The errors of all contestants against float64, on the same inputs. Nothing is timed, so what FlashInfer compiles for the part
    `decode` is compiled meanwhile."""
    options = evidence.options
    if options.without_peers:
        print("errors are computed with PyTorch: left out without peers")
        return
    with concurrent.futures.ThreadPoolExecutor(1) as beside:
        if options.flashinfer and "decode" in evidence.parts:
            command = [sys.executable, PEERS, "--file", DECODE, "--flashinfer", options.flashinfer, "--peer", "flashinfer", "--compile"]
            # What fails fails again in `decode`, and is said there.
            beside.submit(run, command, LIMITS["compile"])
        rows, absent = of_peers(evidence, "errors", ["--file", SHAPES, "--errors"])
        evidence.write("errors.json", rows=rows, absent=absent)


def decode(evidence):
    """Few queries on the keys of a cache: peers, a kernel that only reads, and the planner's choice, in turn; where reading takes the
    time the latter once more, with fixed splits."""
    options, absent = evidence.options, []
    if options.without_peers:
        arguments = ["bench", *on(evidence), "--file", DECODE, "--samples", 30, "--seconds", 0.3]
        _, _, rows = warptile(evidence, "decode", arguments, LIMITS["decode"])
    else:
        arguments = ["--file", DECODE, "--method", "graph", "--samples", options.samples, "--splits", SPLITS]
        if options.flashinfer:
            arguments += ["--flashinfer", options.flashinfer]
        rows, absent = of_peers(evidence, "decode", arguments)
    rows = rows or []
    evidence.write("decode.json", rows=rows, absent=absent)
    compared = side_by_side(rows)
    problems = [line.split("#")[0].strip() for line in DECODE.read_text().splitlines()]
    for problem in problems:
        # Without peers the lengths are drawn by the program, which names the problem alike.
        if problem and problem not in compared:
            evidence.fail(f"decode: no time for {problem}")
    if options.flashinfer and not any(row["backend"] == "flashinfer" for row in rows):
        evidence.fail("decode: FlashInfer was asked for and has no row")
    print("\n".join(decode_lines(compared)), flush=True)


class Compared:
    """The rows of one problem: ours, ours with fixed splits, the fastest peer's, and that of the kernel that only reads; None for one
    that is not there."""

    def __init__(self, of_problem):
        self.ours = of_problem.pop("warptile", None)
        self.fixed = of_problem.pop(f"warptile splits={SPLITS}", None)
        self.read = of_problem.pop("read", None)
        self.best = min(of_problem.values(), key=lambda row: row["median_us"], default=None)


def side_by_side(rows):
    """The problems that we have a row of."""
    problems = {}
    for row in rows:
        if row["method"] == "graph":
            problems.setdefault(row["problem"], {})[row["backend"]] = row
    compared = {problem: Compared(of_problem) for problem, of_problem in problems.items()}
    return {problem: of_problem for problem, of_problem in compared.items() if of_problem.ours}


def ratio_to(other, ours):
    """Our speed over that of another row."""
    return other["median_us"] / ours["median_us"] if other else math.inf


def decode_lines(compared):
    """A line for each problem, the losing ones first."""
    lines = []
    for problem, of_problem in sorted(compared.items(), key=lambda item: ratio_to(item[1].best, item[1].ours)):
        ours, best, read, fixed = of_problem.ours, of_problem.best, of_problem.read, of_problem.fixed
        dense = compared.get(re.sub(r" pages=\d+", "", problem))
        line = f"{problem:62} {ours['median_us']:8.1f} us {ours['tb_s']:6.3f} TB/s"
        if best:
            line += f"; {best['backend']:10} {best['median_us']:8.1f} us, ratio {ratio_to(best, ours):.3f}"
            line += " LOST" if ratio_to(best, ours) < LOST else ""
        if read:
            line += f"; {1 / ratio_to(read, ours):.3f} of reading's {read['median_us']:.1f} us"
        if dense and dense is not of_problem:
            line += f"; {1 / ratio_to(dense.ours, ours):.3f} of dense"
        if fixed:
            line += f"; {ratio_to(fixed, ours):.3f} with splits={SPLITS}"
        lines.append(f"{line}; {ours['kernel']}")
    return lines


def of_peers(evidence, what, arguments):
    """Rows of all contestants, and which of them have none of a problem, or none in one of several ways, and why not. What was measured
    before a failure is kept."""
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder) / "rows.json"
        command = [sys.executable, PEERS, "--with", WARPTILE, "--json", target, *arguments]
        if evidence.options.fa3:
            command += ["--fa3", evidence.options.fa3]
        code, output = run(command, LIMITS[what])
        evidence.log(what, output)
        if code != 0 or not target.exists():
            evidence.fail(f"{what}: exit code {code}: {last_lines(output)}")
        found = re.findall(r"^(\w[\w ()=-]*): not for (b\d.*?): (.*)$", output, re.MULTILINE)
        absent = [dict(zip(("backend", "problem", "reason"), row)) for row in found]
        return json.loads(target.read_text()) if target.exists() else [], absent


def bench(evidence):
    """The planner's choice once more and alone, which shows the noise; every kernel on the shapes that are profiled; the best of
    each family on all shapes; sequences of very different lengths, packed together and in parts."""
    profiled = [word for shape, _ in PROFILED for word in ("--shape", shape)]
    for name, arguments in (
        ("noise", ["--file", SHAPES, "--samples", 30, "--seconds", 0.3]),
        ("kernels", ["--kernel", "all", "--samples", 10, "--seconds", 0.1, *profiled]),
        ("families", ["--kernel", "families", "--samples", 10, "--seconds", 0.1, "--file", SHAPES]),
        ("uneven", ["--samples", 15, "--seconds", 0.3, "--file", UNEVEN]),
    ):
        _, _, rows = warptile(evidence, f"bench {name}", ["bench", *on(evidence), *arguments], LIMITS["bench"])
        evidence.write(f"{name}.json", rows=rows or [])


def ncu(evidence):
    """Hardware counters of the fastest kernel of each family on the main shapes, as the part `bench` found them."""
    if not evidence.needs("ncu"):
        return
    rows = evidence.read("kernels.json").get("rows", [])
    if not rows:
        evidence.fail("ncu: kernels.json is missing; the part `bench` writes it")
        return
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
            asked = [metric for metric in metrics if counts(metric, family)]
            command = ["ncu", "--clock-control", "none", "--csv", "--metrics", ",".join(asked), "--kernel-name", "regex:warptile_"]
            command += ["--launch-skip", "2", "--launch-count", "1", "--target-processes", "all"]
            command += [WARPTILE, "bench", *on(evidence), "--samples", "1", "--shape", shape, "--kernel", fastest["kernel"]]
            code, output = run(command, LIMITS["ncu"])
            values = ncu_values(output)
            if code != 0 or not values:
                evidence.fail(f"ncu on {fastest['kernel']}: exit code {code}: {last_lines(output)}")
                continue
            same = {key: fastest[key] for key in ("kernel", "sha256")}
            profiles.append({"shape": shape, "family": family, **same, "metrics": values})
            evidence.write("ncu.json", meaning={metric: METRICS[metric] for metric in metrics}, profiles=profiles)


def counts(metric, family):
    """Whether a metric counts something that the family does."""
    owners = [families for word, families in TENSOR_COUNTERS.items() if f"_op_{word}" in metric]
    if owners:
        return family in owners[0]
    return family != "scalar" or "pipe_tensor" not in metric


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


def tune(evidence):
    """`warptile tune` without a rates file, for the problems that are published and some that no kernel was chosen for. Each choice that
    it changes is held against the old one once more, in a new process: it may lose nowhere."""
    with tempfile.TemporaryDirectory() as folder:
        configuration = {"XDG_CONFIG_HOME": folder}
        start = time.monotonic()
        files = [word for file in (SHAPES, DECODE, ODD) for word in ("--file", file)]
        arguments = ["tune", "--device", f"cuda:{evidence.options.gpu}", "--budget", TUNING, *files]
        _, output, result = warptile(evidence, "tune", arguments, LIMITS["tune"], variables=configuration)
        seconds = time.monotonic() - start
    print(last_lines(output, 3), flush=True)
    problems = (result or {}).get("problems", [])
    changed = [problem for problem in problems if problem["verdict"] == "won"]
    requests = [{"case": one["case"], "old": one["old"], "new": one["chosen"], "blocks": TUNED_BLOCKS} for one in changed]
    command = [WARPTILE, "tune-trials", "--device", f"cuda:{evidence.options.gpu}"]
    code, output = run(command, LIMITS["tune"], text=json.dumps(requests))
    ratios = [json.loads(line) for line in output.splitlines() if line.startswith("[")]
    if code != 0 or len(ratios) != len(changed):
        evidence.fail(f"tune, once more: exit code {code}: {last_lines(output)}")
    for problem, of_problem in zip(changed, ratios):
        problem["again"] = sorted(of_problem)[len(of_problem) // 2]
        if problem["again"] < TUNED_LOSS:
            evidence.fail(f"tune: {problem['problem']} has {problem['again']:.3f} of its speed before")
    open_problems = [problem["problem"] for problem in problems if not problem["screened"]]
    if open_problems:
        evidence.fail(f"tune: {len(open_problems)} problems were not reached in {TUNING} s, {open_problems[0]} the first")
    evidence.write("tune.json", budget=TUNING, seconds=round(seconds, 1), problems=[slim(problem) for problem in problems])


def slim(problem):
    """What tuning found for a problem, without the times of candidates that are far from the fastest."""
    fastest = min((one["microseconds"] for one in problem["screened"]), default=0)
    near = [one for one in problem["screened"] if one["microseconds"] <= 1.1 * fastest]
    kept = ("problem", "verdict", "old", "chosen", "gain", "first_bound", "repeat_bound", "again")
    return {**{key: problem.get(key) for key in kept}, "candidates": len(problem["screened"]), "near": near}


PARTS = {
    "errors": errors,
    "peers": peers,
    "decode": decode,
    "bench": bench,
    "ncu": ncu,
    "tune": tune,
    "verify": verify,
    "launches": launches,
    "tile": tile,
    "acceptance": acceptance,
    "examples": examples,
    "sanitizer": sanitizer,
    "tests": tests,
}

# Parts that stay on the first GPU with --second-gpu: those with peers, and those that take times. The others go to the second one.
ON_FIRST_GPU = ("errors", "peers", "decode", "bench", "ncu")

# What a part writes; device.json, info.json and summary.json are every part's.
WRITTEN = {
    "peers": ("bench-warptile", "bench-peers", "default"),
    "errors": ("errors",),
    "decode": ("decode",),
    "bench": ("noise", "kernels", "families", "uneven"),
    "ncu": ("ncu",),
    "tune": ("tune",),
    "verify": ("verify", "verify-*", "images"),
    "launches": ("launches",),
    "tile": ("tile",),
    "acceptance": ("acceptance",),
    "examples": ("examples",),
    "sanitizer": ("sanitizer",),
    "tests": ("tests",),
}


class OtherGpu:
    """The parts that run on the second GPU, by this script in a process and a folder of its own. Each process has half of the host's
    cores, so that what one computes does not slow the other's calls."""

    def __init__(self, evidence, names):
        self.names = [name for name in names if name not in ON_FIRST_GPU]
        self.folder = evidence.folder / "second-gpu"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        options = evidence.options
        command = [sys.executable, __file__, "--out", self.folder, "--only", ",".join(self.names), "--seed", options.seed]
        command += ["--count", options.count, "--long-count", options.long_count, "--samples", options.samples]
        command += ["--fa3", options.fa3] if options.fa3 else []
        command += ["--flashinfer", options.flashinfer] if options.flashinfer else []
        command += ["--without-peers"] if options.without_peers else []
        variables = {"CUDA_VISIBLE_DEVICES": str(options.second_gpu)}
        cores = sorted(os.sched_getaffinity(0))
        half = len(cores) // 2
        if half:
            os.sched_setaffinity(0, cores[half:])
        self.output = (self.folder / "output").open("w+")
        self.process = None
        if self.names:
            words = [str(word) for word in command]
            self.process = subprocess.Popen(
                words, stdout=self.output, stderr=subprocess.STDOUT, env=os.environ | variables, start_new_session=True
            )
            ELSEWHERE.add(self.process)
        if half:
            os.sched_setaffinity(0, cores[:half])

    def finish(self, evidence):
        """Waits, and takes its files; what its parts came to."""
        if self.process:
            self.process.wait()
            ELSEWHERE.discard(self.process)
        self.output.seek(0)
        print(self.output.read().split("\n\n")[0], flush=True)
        self.output.close()
        parts = {name: {"passed": False, "seconds": 0, "date": now(), "failures": ["did not run"]} for name in self.names}
        summary = self.folder / "summary.json"
        if summary.exists():
            parts |= json.loads(summary.read_text())["parts"]
        for name in self.names:
            for pattern in WRITTEN[name]:
                for file in self.folder.glob(f"{pattern}.json"):
                    file.replace(evidence.folder / file.name)
        for log in (self.folder / "logs").glob("*.log"):
            log.replace(evidence.folder / "logs" / log.name)
        shutil.rmtree(self.folder)
        for name in self.names:
            evidence.failures += parts[name]["failures"]
        return parts


def clear(evidence, parts):
    """Deletes what is about to be written again, and everything of another commit: nothing may seem to be of this run that is
    not. Files of nobody here, such as cpu.json and the baselines, stay."""
    summary = evidence.read("summary.json")
    if summary.get("commit") != evidence.stamp["commit"] or "parts" not in summary:
        parts, summary = PARTS, {}
    for part in parts:
        for pattern in WRITTEN[part]:
            for old in evidence.folder.glob(f"{pattern}.json"):
                old.unlink()
    return {name: done for name, done in summary.get("parts", {}).items() if name not in parts}


def table(evidence, parts):
    """What came of it, in a few lines."""

    def rows(name, key="rows"):
        return evidence.read(name).get(key, [])

    lines = []
    fastest, ours = {}, {}
    for row in rows("bench-peers.json") + rows("bench-warptile.json"):
        if row["method"] == "graph":
            times = ours if row["backend"] == "warptile" else fastest
            times[row["problem"]] = min(row["median_us"], times.get(row["problem"], math.inf))
    for element in ("bf16", "f16"):
        ratios = {problem: fastest[problem] / ours[problem] for problem in ours if problem in fastest and f" {element}" in problem}
        if ratios:
            mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
            worst = min(ratios, key=ratios.get)
            lines.append((f"ratio to the best peer, {element}", f"{mean:.3f} (mean of {len(ratios)}), lowest {ratios[worst]:.2f}: {worst}"))
    compared = side_by_side(rows("decode.json"))
    against = {problem: ratio_to(row.best, row.ours) for problem, row in compared.items() if row.best}
    if against:
        worst = min(against, key=against.get)
        lost = sum(ratio < LOST for ratio in against.values())
        lines.append(("decode against the best peer", f"{lost} of {len(against)} lost, lowest {against[worst]:.3f}: {worst}"))
    shares = [1 / ratio_to(row.read, row.ours) for row in compared.values() if row.read and row.ours["query_len"] <= 64]
    if shares:
        near = sum(share <= CEILING for share in shares)
        lines.append(("decode against reading alone", f"{near} of {len(shares)} within {CEILING}, highest {max(shares):.3f}"))
    costs = [ratio_to(row.fixed, row.ours) for row in compared.values() if row.fixed]
    if costs:
        mean = math.exp(sum(map(math.log, costs)) / len(costs))
        lines.append((f"decode with splits={SPLITS}", f"{mean:.3f} of the time without (mean of {len(costs)}), highest {max(costs):.3f}"))
    for row in rows("verify.json"):
        if row["max_len"] is None:
            lines.append((f"random cases, {row['family']}", f"{row['passed']} of {row['count']} passed"))
            continue
        worst = (row["worst_out"] or {}).get("ratio", 0)
        speed = f"{row['problems_per_second']:.0f} a second on {row['threads']} threads"
        passed = f"{row['passed']} of {row['count']} passed, worst {worst:.2f} of its bound"
        drew = f"{row['few_multiprocessors']} on few multiprocessors, {row['drew_tiles']} drew tiles"
        pages = " in pages" if row["paged"] else ""
        lines.append((f"random problems to {row['max_len']}{pages}, {row['family']}", f"{passed}; {drew}; {speed}"))
    images = rows("images.json", "images")
    if images:
        persistent = [image for image in images.values() if image["persistent"]]
        drew = sum(image["drew_tiles"] > 0 for image in persistent)
        lines.append(("images that ran", f"{len(images)}; {drew} of {len(persistent)} persistent ones drew tiles"))
    for row in rows("launches.json", "matrix"):
        lines.append((f"{row['launches']} launches, waiting: {row['sync']}", f"{row['passed']} of {row['problems']} on {len(row['images'])} images"))
    tuned = rows("tune.json", "problems")
    if tuned:
        won = [row for row in tuned if row["verdict"] == "won"]
        again = f", {min(row['again'] or 0 for row in won):.3f} and more once more" if won else ""
        lines.append(("tuned", f"{len(tuned)} problems in {evidence.read('tune.json')['seconds']:.0f} s, {len(won)} choices changed{again}"))
    tiles = rows("tile.json")
    if tiles:
        lines.append(("tiles, each score and weight", f"{sum(row['passed'] for row in tiles)} of {len(tiles)} passed"))
    accepted = rows("acceptance.json")
    if accepted:
        lines.append(("acceptance problems", f"{sum(row['passed'] for row in accepted)} of {len(accepted)}"))
    for row in rows("examples.json"):
        lines.append((f"example {row['example']}", "; ".join(row["same"]) if row["passed"] else "FAILED"))
    for tool in SANITIZER_TOOLS:
        of_tool = [row for row in rows("sanitizer.json") if row["tool"] == tool]
        if of_tool:
            found = [row["errors"] for row in of_tool]
            caught = any(row["caught"] for row in rows("sanitizer.json", "controls") if row["tool"] == tool)
            count = "no answer" if None in found else sum(found)
            visited = sum(len(row["images"]) for row in of_tool)
            lines.append((tool, f"errors: {count}, on {visited} images; broken kernel {'caught' if caught else 'NOT CAUGHT'}"))
    gpu_tests = [row for row in rows("tests.json") if row["gpu"]]
    if gpu_tests:
        lines.append(("GPU tests", f"{sum(row['passed'] for row in gpu_tests)} of {len(gpu_tests)} passed"))
    for name, done in parts.items():
        lines.append((f"part {name}", f"{done['seconds']:.0f} s, {'passed' if done['passed'] else 'FAILED'}"))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:{width}}  {value}" for name, value in lines)


def summarize(evidence, parts):
    missing = [part for part in PARTS if part not in parts]
    passed = not missing and all(done["passed"] for done in parts.values())
    evidence.write("summary.json", passed=passed, missing=missing, parts=parts)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("EVIDENCE_DIR", str(BUNDLE / "evidence"))
    arguments.add_argument("--out", default=default, help="folder for the JSON files (default: evidence/ of the bundle)")
    arguments.add_argument("--only", metavar="PART,...", help=f"run these parts only: {', '.join(PARTS)}")
    arguments.add_argument("--gpu", type=int, default=0, help="which GPU, as the driver counts (default 0)")
    arguments.add_argument("--second-gpu", type=int, metavar="N", help=f"run all parts but {', '.join(ON_FIRST_GPU)} on this GPU, meanwhile")
    arguments.add_argument("--count", type=int, default=20000, help="random problems up to length 1,024 for each family, and as many in pages (default 20000)")
    arguments.add_argument("--long-count", type=int, default=200, help="random problems up to length 4,096 for each family (default 200)")
    arguments.add_argument("--seed", type=int, default=1, help="seed of the random problems (default 1)")
    arguments.add_argument("--samples", type=int, default=15, help="rounds of the measurement against peers (default 15)")
    arguments.add_argument("--fa3", help="FlashAttention-3's extension library, as attention_peers.py takes it")
    arguments.add_argument("--flashinfer", help="the folder that has FlashInfer's package, as attention_peers.py takes it")
    arguments.add_argument("--without-peers", action="store_true", help="leave out PyTorch and FlashAttention-3")
    options = arguments.parse_args()
    names = options.only.split(",") if options.only else list(PARTS)
    for name in names:
        if name not in PARTS:
            arguments.error(f"there is no part called {name}; there are {', '.join(PARTS)}")
    if not WARPTILE.exists():
        print(f"{WARPTILE} is missing: run this from an unpacked bundle (`cargo xtask bundle` makes one)", file=sys.stderr)
        return 2
    evidence = Evidence(pathlib.Path(options.out).resolve(), options)
    for what in (signal.SIGINT, signal.SIGTERM):
        signal.signal(what, stop)
    evidence.parts = names
    evidence.needs("nvidia-smi")
    parts = clear(evidence, names)
    device(evidence)
    elsewhere = OtherGpu(evidence, names) if options.second_gpu is not None else None
    if elsewhere:
        names = [name for name in names if name in ON_FIRST_GPU]
    seen = 0
    # In the order of PARTS: times early, while nothing else uses the GPU, and tests, one of which takes all of its memory, last.
    for name in [name for name in PARTS if name in names]:
        if STOP.is_set():
            break
        start = time.monotonic()
        print(f"=== {name}", flush=True)
        try:
            PARTS[name](evidence)
        except Exception as error:  # what other parts found is kept, whatever this one met
            evidence.fail(f"{name}: {type(error).__name__}: {error}")
        if STOP.is_set():
            evidence.failures[seen:] = [f"{name} was cut short: the script was told to stop"]
        failures, seen = evidence.failures[seen:], len(evidence.failures)
        parts[name] = {"date": now(), "seconds": round(time.monotonic() - start, 1), "passed": not failures, "failures": failures}
        summarize(evidence, parts)

    if elsewhere:
        parts |= elsewhere.finish(evidence)
        summarize(evidence, parts)
    print(f"\n{table(evidence, parts)}")
    for failure in evidence.failures:
        print(f"FAILED  {failure}")
    print(f"{'FAILED' if evidence.failures else 'passed'}; see {evidence.folder}")
    return 1 if evidence.failures else 0


if __name__ == "__main__":
    sys.exit(main())
