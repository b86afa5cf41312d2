"""The parts that measure: times of the program, of its kernels and of its peers, and its errors next to theirs."""

import concurrent.futures
import csv
import io
import json
import pathlib
import re
import subprocess
import tempfile
import threading
import time

from compiled import USES
from host import BUNDLE, DEVICE, LAST_SECONDS, LIMITS, ON, WARPTILE, Command, environment, last_lines, run, warptile
from problems import BACKWARD, DECODE, FEW, ODD, OPTIONS, OTHER, PROGRAM, SHAPES, SPARSE, UNEVEN, files, of_sequences, problems_of, shapes, sweep
from summary import SPLITS, decode_lines, side_by_side

# Peers whose place is an option.
PEERS_BY_PLACE = ("fa3", "fa4", "flashinfer", "cudnn")

# Seconds that tuning for all problems may take, blocks of the trial in which each new choice is held against the old one once more, and
# the slowest that it may then be.
TUNING, TUNED_BLOCKS, TUNED_LOSS = 180, 25, 0.99

# Seconds that a launch may take before the program ends itself, and with it a kernel that waits for ever; what it says then; and how often it
# may go on without such a kernel. Each is a failure.
PATIENCE, NO_ANSWER, TUNING_ATTEMPTS = 15, " gave no answer for ", 4

# Processes that are timed from their start to their first result.
STARTS = 11

# Shapes that are profiled: the original one and its two long relatives.
PROFILED = (
    ("b2 q512 k512 h8 d64 f16", {"query_len": 512, "head_dim": 64}),
    ("b2 q4096 k4096 h8 d64 f16", {"query_len": 4096, "head_dim": 64}),
    ("b2 q4096 k4096 h8 d128 f16", {"query_len": 4096, "head_dim": 128}),
)

# The target whose images are laid out for 99 KB of shared memory a CTA. An older GPU than it runs none of them.
SMALL_GPU = "compute_89"

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

# The measurements of attention_peers.py, by the name of their log.
MEASURED = {
    "peers": lambda options: [*shapes(of_sequences()), "--samples", options.samples],
    # On the shapes that every kernel is measured on, and apart from the peers: it is one of them.
    "default": lambda options: ["--peer", "default", "--samples", options.samples, *shapes(shape for shape, _ in PROFILED)],
    "errors": lambda _: [*shapes(of_sequences() + [problem for problem in problems_of(DECODE) if " d512 " in problem]), "--errors"],
    "backward": lambda options: ["--file", BACKWARD, "--method", "graph", "--samples", options.samples],
    "backward-errors": lambda _: ["--file", BACKWARD, "--errors"],
    "few": lambda options: ["--file", FEW, "--method", "graph", "--samples", options.samples],
    "options": lambda options: ["--file", OPTIONS, "--method", "graph", "--samples", options.samples],
    "options-errors": lambda _: ["--file", OPTIONS, "--errors"],
    "decode": lambda options: ["--file", DECODE, "--method", "graph", "--samples", options.samples, "--splits", SPLITS],
}

# Those that are prepared while other parts run, by the part that measures them. `decode` is not: such a process crashed three
# times of four, and one that is not prepared takes 45 s for everything.
PREPARED = {"peers": ("peers", "default")}


def missing_peers(evidence, names):
    """Why a peer that an option names cannot be used, if parts will measure it: seconds, where they would find out after minutes."""
    options = evidence.options
    places = [word for peer in PEERS_BY_PLACE if getattr(options, peer) for word in (f"--{peer}", getattr(options, peer))]
    if options.without_peers or not places or not USES.keys() & set(names):
        return None
    code, output = run([*PROGRAM, "--find", *places], LIMITS["find"])
    evidence.log("find-peers", output)
    return (last_lines(output) or f"exit code {code}") if code != 0 else None


def peers(evidence):
    """Every shape on PyTorch's kernels, FlashAttention-3 and 4, and the planner's choice, in turn, and a few on what PyTorch chooses by
    itself; or all on the planner's choice alone."""
    options = evidence.options
    if options.without_peers:
        rows = []
        for name, problems in (("shapes", sweep()), ("other", problems_of(OTHER))):
            arguments = ["bench", *ON, *shapes(problems), "--samples", 30, "--seconds", 0.3]
            rows += warptile(evidence, f"bench {name}", arguments, LIMITS["bench"])[2] or []
        absent = []
    else:
        rows, absent = of_peers(evidence, "peers")
    others = set(problems_of(OTHER))

    def write(name, wanted):
        evidence.write(name, rows=[row for row in rows if wanted(row)], absent=[one for one in absent if wanted({"backend": "", **one})])

    write("other.json", lambda row: row["problem"] in others)
    write("bench-warptile.json", lambda row: row["problem"] not in others and row["backend"] == "warptile")
    if options.without_peers:
        return
    asked_for(evidence, "peers", rows, ("fa3", "fa4"))
    write("bench-peers.json", lambda row: row["problem"] not in others and row["backend"] != "warptile")
    rows, absent = of_peers(evidence, "default")
    evidence.write("default.json", rows=rows, absent=absent)


def errors(evidence):
    """The errors of all contestants against float64, on the same inputs."""
    if evidence.options.without_peers:
        print("errors are computed with PyTorch: left out without peers")
        return
    rows, absent = of_peers(evidence, "errors")
    evidence.write("errors.json", rows=rows, absent=absent)


def backward(evidence):
    """Gradients: PyTorch's kernels and the planner's choice in turn, and how far the gradients of each are from float64."""
    if evidence.options.without_peers:
        arguments = ["bench", *ON, "--file", BACKWARD, "--samples", 30, "--seconds", 0.3]
        rows, absent = warptile(evidence, "backward", arguments, LIMITS["backward"])[2] or [], []
    else:
        rows, absent = with_errors(evidence, "backward")
    write_all(evidence, "backward", BACKWARD, rows, absent)


def options(evidence):
    """Options of scores: PyTorch's kernels and the planner's choice in turn with the program's own calls without them, and errors."""
    if evidence.options.without_peers:
        arguments = ["bench", *ON, "--file", OPTIONS, "--samples", 30, "--seconds", 0.3]
        rows, absent = warptile(evidence, "options", arguments, LIMITS["options"])[2] or [], []
    else:
        rows, absent = with_errors(evidence, "options")
    write_all(evidence, "options", OPTIONS, rows, absent)


# Our own other calls, in turn with that of a problem: they compute something else.
OTHER_CALLS = ("plain", "lengths")


def with_errors(evidence, what):
    """Times of all contestants, each with its error."""
    rows, absent = of_peers(evidence, what)
    found = {(row["backend"], row["problem"]): row for row in of_peers(evidence, f"{what}-errors")[0]}
    for row in rows:
        if row["backend"] in OTHER_CALLS:
            continue
        error = found.get((row["backend"], row["problem"]))
        if error is None:
            evidence.fail(f"{what}: no error of {row['backend']} for {row['problem']}")
        else:
            row |= {name: error[name] for name in ("error_rms", "error_max")}
    return rows, absent


def write_all(evidence, what, file, rows, absent):
    """Writes the rows, of which there must be one of the program for each problem."""
    evidence.write(f"{what}.json", rows=rows, absent=absent)
    for problem in problems_of(file):
        if not any((row["backend"], row["problem"]) == ("warptile", problem) for row in rows):
            evidence.fail(f"{what}: no time for {problem}")


def decode(evidence):
    """Few queries on the keys of a cache: peers, a kernel that only reads, and the planner's choice, in turn; for a step of decoding once
    more with fixed splits, where reading takes the time."""
    for name, problems in (("decode", DECODE), ("few", FEW)):
        absent = []
        if evidence.options.without_peers:
            arguments = ["bench", *ON, "--file", problems, "--samples", 30, "--seconds", 0.3]
            _, _, rows = warptile(evidence, name, arguments, LIMITS[name])
        else:
            rows, absent = of_peers(evidence, name)
        rows = rows or []
        evidence.write(f"{name}.json", rows=rows, absent=absent)
        compared = side_by_side(rows)
        for problem in problems_of(problems):
            # Without peers the lengths are drawn by the program, which names the problem alike.
            if problem not in compared:
                evidence.fail(f"{name}: no time for {problem}")
        if not evidence.options.without_peers:
            asked_for(evidence, name, rows, ("fa3", "flashinfer"))
        print("\n".join(decode_lines(compared)), flush=True)


class Measuring:
    """A process of attention_peers.py. One that `waits` imports all packages and calls each contestant once on each problem, which compiles
    what is compiled in a process; it measures when its rows are asked for."""

    def __init__(self, evidence, what, waits=False):
        options = evidence.options
        self.evidence, self.what, self.waits = evidence, what, waits
        self.folder = tempfile.TemporaryDirectory()
        self.target, self.ready = (pathlib.Path(self.folder.name) / name for name in ("rows.json", "ready"))
        command = [*PROGRAM, "--with", WARPTILE, "--json", self.target, *MEASURED[what](options)]
        # PyTorch's own choice is measured with the libraries that it ships.
        for name in PEERS_BY_PLACE if what != "default" else ():
            place = getattr(options, name)
            command += [f"--{name}", place] if place else []
        self.command = Command([*command, "--wait", self.ready] if waits else command, has_input=waits)

    def prepared(self):
        """Waits until the process waits, or has ended."""
        deadline = time.monotonic() + LIMITS["prepare"]
        while self.command.runs() and not self.ready.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        return self

    def rows(self, evidence):
        """Rows of all contestants, and which of them have none of a problem, or none in one of several ways, and why not. What was measured
        before a failure is kept."""
        code, output = self.command.finish(LIMITS[self.what], "begin\n" if self.waits else None)
        evidence.log(self.what, output)
        if code != 0 or not self.target.exists():
            evidence.fail(f"{self.what}: exit code {code}: {last_lines(output)}")
        found = re.findall(r"^(\w[\w ()=-]*): not for (b\d.*?): (.*)$", output, re.MULTILINE)
        absent = [dict(zip(("backend", "problem", "reason"), row)) for row in found]
        return json.loads(self.target.read_text()) if self.target.exists() else [], absent


class Prepared:
    """Processes that have begun before it is their turn, while parts run that take no times."""

    def __init__(self, evidence, names):
        self.executor = concurrent.futures.ThreadPoolExecutor(len(PREPARED))
        of_parts = {part: whats for part, whats in PREPARED.items() if part in names and not evidence.options.without_peers}
        self.under_way = {what: self.executor.submit(self.prepare, evidence, what) for whats in of_parts.values() for what in whats}

    @staticmethod
    def prepare(evidence, what):
        evidence.compiled.finished(USES.get(what, ()))
        return Measuring(evidence, what, waits=True).prepared()

    def wait(self):
        """Waits until all of them wait."""
        for process in self.under_way.values():
            process.result()

    def take(self, what):
        """The process for this, or none if none was begun."""
        process = self.under_way.pop(what, None)
        return process and process.result()

    def end(self):
        """Ends those that were not taken."""
        for what in list(self.under_way):
            self.take(what).command.finish(0)


def of_peers(evidence, what):
    """Rows of all contestants, and those that are absent."""
    process = evidence.prepared.take(what) if evidence.prepared else None
    if process and not process.command.runs():
        # Packages of peers crash now and then. What ended before it measured anything is begun once more.
        code, output = process.command.finish(LAST_SECONDS)
        evidence.log(f"{what}-prepared", output)
        print(f"{what}: the prepared process ended with exit code {code}; another one measures", flush=True)
        process = None
    return (process or Measuring(evidence, what)).rows(evidence)


def asked_for(evidence, part, rows, names):
    """Fails for a peer whose place was named and which has no time."""
    for name in names:
        if getattr(evidence.options, name) and not any(row["backend"] == name for row in rows):
            evidence.fail(f"{part}: {name} was asked for and has no row")


def bench(evidence):
    """The planner's choice once more and alone, which shows the noise; every kernel on the shapes that are profiled; the best of
    each family on all shapes, and of those of PTX for GPUs with 99 KB of shared memory; sequences of very different lengths, packed
    together and in parts; how long a process takes to its first result."""
    starts(evidence)
    profiled = shapes(shape for shape, _ in PROFILED)
    all_shapes = ["--samples", 10, "--seconds", 0.1, "--file", SHAPES]
    measured = (
        ("noise", ["--file", SHAPES, "--samples", 15, "--seconds", 0.15]),
        ("kernels", ["--kernel", "all", "--samples", 10, "--seconds", 0.1, *profiled]),
        ("families", ["--kernel", "families", *all_shapes]),
        ("small-gpu", ["--kernel", "mma", "--target", SMALL_GPU, *all_shapes]),
        ("uneven", ["--samples", 15, "--seconds", 0.3, "--file", UNEVEN]),
        ("sparse", ["--samples", 20, "--seconds", 0.5, "--file", SPARSE]),
    )
    for name, arguments in measured:
        if name == "small-gpu" and not any(image["target"] == SMALL_GPU for image in evidence.images.values()):
            continue
        _, _, rows = warptile(evidence, f"bench {name}", ["bench", *ON, *arguments], LIMITS["bench"])
        if rows is not None:
            evidence.write(f"{name}.json", rows=rows)


def starts(evidence):
    """Milliseconds from a process's start until it prints that a result is there, and what it says of them, one process after the other."""
    rows = []
    for attempt in range(STARTS):
        command = [BUNDLE / "bin/examples/08_first_result", DEVICE]
        lines, begin, took = [], time.perf_counter(), None
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()) as process:
            limit = threading.Timer(LIMITS["start"], process.kill)
            limit.start()
            for line in process.stdout:
                lines.append(line)
                if " ms  result: " in line:
                    took = (time.perf_counter() - begin) * 1e3
        limit.cancel()
        evidence.log(f"start-{attempt + 1}", "".join(lines))
        stages = {name: float(milliseconds) for milliseconds, name in re.findall(r"^ *([\d.]+) ms  (\w+)", "".join(lines), re.MULTILINE)}
        if process.returncode != 0 or took is None:
            evidence.fail(f"start: exit code {process.returncode}: {last_lines(''.join(lines))}")
        rows.append({"exit_code": process.returncode, "milliseconds": took, "since_main": stages})
        evidence.write("start.json", rows=rows)


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
            command += [WARPTILE, "bench", *ON, "--samples", "1", "--shape", shape, "--kernel", fastest["kernel"]]
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
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for attempt in range(TUNING_ATTEMPTS):
            # What was measured before a kernel gave no answer is kept in the folder, and so is which kernel that was.
            left = max(1, round(TUNING - (time.monotonic() - start)))
            arguments = ["tune", *ON, "--budget", left, "--patience", PATIENCE, *files(SHAPES, DECODE, ODD)]
            what = f"tune {attempt + 1}" if attempt else "tune"
            _, output, result = warptile(evidence, what, arguments, left + 4 * PATIENCE, variables={"XDG_CONFIG_HOME": folder})
            if NO_ANSWER not in output:
                break
    seconds = time.monotonic() - start
    print(last_lines(output, 3), flush=True)
    problems = (result or {}).get("problems", [])
    changed = [problem for problem in problems if problem["verdict"] == "won"]
    requests = [{"case": one["case"], "old": one["old"], "new": one["chosen"], "blocks": TUNED_BLOCKS} for one in changed]
    command = [WARPTILE, "tune-trials", *ON, "--patience", PATIENCE]
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
