#!/usr/bin/env python3
"""How long the attention kernels that PyTorch, FlashAttention-3 and 4, and FlashInfer bring along take.

Measures the problems of a shape file (see shapes.txt and decode.txt) the way `warptile bench` does and writes the same JSON rows:

  graph  GPU time of one call: calls captured in a CUDA graph, events around each replay, inputs that rotate so that
         together they exceed the L2 cache several times over
  call   what one call costs its caller: events around a single call, inputs rotating

With --errors it measures instead how far each result is from float64: root mean square and maximum of the differences over
the whole output, on the same inputs for all; of gradients (the word `backward`) over those of q, k and v together.

Peers: FlashAttention-2, cuDNN and the memory-efficient kernel through PyTorch's scaled_dot_product_attention, and
FlashAttention-3 and 4. cuDNN is PyTorch's own, or that of the folder that --cudnn names. FlashAttention-3 is looked for in the
file that --fa3 names (its extension library, such as xformers/flash_attn_3/_C.so of the xformers wheel; a libcudart.so.12
beside it is loaded first), then in the packages flash_attn_interface (built from its source) and fa3_fwd_interface (fa3-fwd,
which takes no f16); FlashAttention-4 in the folder of packages that --fa4 names, then in the package flash_attn.cute. `default`
is what PyTorch chooses among its kernels by itself; it is measured only with --peer default.

Where queries meet the keys of a cache (fewer queries than keys, pages, lengths, windows, sinks, keys and values in one tensor),
FlashInfer takes part too if it is installed or --flashinfer names the folder of its package, and `read`, a kernel that only reads the keys and values that some
query sees: nothing can be faster. Each peer's result is compared with one computed in float32; of several ways to call it the
fastest is measured. No peer here has sinks: where the problem does, the peers' rows say that they leave them out.

Options of scores (options.txt: a bias, key masks, ALiBi, a bound) are measured where a peer takes them; ALiBi as a bias. Then the program
takes further turns without the option, as the backend `plain`, and with the lengths that a padding mask shows, as `lengths`.

All peers of a problem are measured in turn, round by round, so that a drifting clock touches all alike, and each round has an order
of its own, so that nobody always follows the same one. With --with PROGRAM, the program `warptile` takes its turn too, and with --splits N once more where reading takes the time, with keys cut at multiples
of N, as the backend "warptile splits=N". A peer that can't do a problem has no row; why not goes to standard error.

Needs: an NVIDIA GPU, PyTorch 2.5 or newer. Examples:

    attention_peers.py --file shapes.txt --json peers.json
    attention_peers.py --errors --seeds 8 --with warptile --shape "b1 q8192 k8192 h8 d256 bf16 mask=causal" --query-scale 3
"""

import argparse
import concurrent.futures
import contextlib
import ctypes
import datetime
import functools
import gc
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

import other_cudnn

if __name__ == "__main__":
    # PyTorch loads its own.
    other_cudnn.restart_if_asked()

import torch

import cache_peers
import contestants
import errors
from contestants import ELEMENTS, PEERS, inputs_of, not_for
from problem import PART_OF_MEMORY, Problem

WARM_UP_ROUNDS = 3

# After these rounds a peer is left out of the rest if its median is SLOW times that of the fastest peer.
FEW_ROUNDS, SLOW = 5, 1.25

# Replays by which the fastest variant of a peer is found.
TRIAL_REPLAYS = 5

METHODS = ("graph", "call")


class Run:
    """One peer on one problem: the graph that is replayed, and the calls that are timed one by one."""

    def __init__(self, name, call, copies, calls):
        self.name = name
        self.call = lambda i: call(i % copies)
        self.calls = calls
        self.next = 0
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for i in range(WARM_UP_ROUNDS):
                self.call(i)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        # What the calls return is kept: outputs that are freed and reused would stay in the cache. No garbage is collected meanwhile: an
        # older graph may be part of it, and the end of one breaks off any capture.
        gc.disable()
        try:
            with torch.cuda.graph(self.graph):
                self.outputs = [self.call(i) for i in range(calls)]
        finally:
            gc.enable()
        self.times = {method: [] for method in METHODS}

    def round(self, method):
        if method == "graph":
            self.times[method].append(timed(self.graph.replay) / self.calls)
        else:
            self.next += 1
            self.times[method].append(timed(lambda: self.call(self.next)))


class Warptile:
    """`warptile bench` on one problem after the other, taking a sample whenever it is asked: one process, but for what it fails on."""

    def __init__(self, program, problems, methods, samples, backend="warptile", shape=lambda problem: problem.for_warptile):
        """`shape` gives the words of the problem that the backend is measured on."""
        self.backend, self.shape = backend, shape
        self.program, self.methods, self.samples = program, methods, samples
        # Those to come.
        self.problems = list(problems)
        self.problem = self.process = self.rows = None
        self.failed, self.kept = False, 0

    def takes(self, problem):
        return problem in self.problems

    def begin(self, problem):
        """Begins with a problem, and returns before it is ready for the first round."""
        self.problems = self.problems[self.problems.index(problem) :]
        self.problem, self.failed = problem, False
        if self.process:
            self.attempt(lambda: print("begin", flush=True, file=self.process.stdin))
        else:
            self.start()
        self.problems.pop(0)

    def start(self):
        shapes = [self.shape(one) for one in self.problems]
        self.rows, self.kept = tempfile.NamedTemporaryFile(suffix=".json"), 0
        command = [self.program, "bench", "--device", "cuda:0", "--samples", str(self.samples), "--paced", "--json", self.rows.name]
        command += [word for shape in shapes for word in ("--shape", shape)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def round(self):
        print(flush=True, file=self.process.stdin)
        self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.program} bench --shape '{self.problem.for_warptile}' ended early with exit code {self.process.wait()}")
        return line

    def finish(self):
        """The rows of this problem."""
        # Fields that the program measures as well and that are not needed here.
        for _ in range(len(METHODS) - len(self.methods)):
            print("next", flush=True, file=self.process.stdin)
        self.answer()
        with open(self.rows.name) as file:
            written = json.load(file)
        # An object until the last problem is done.
        rows = written if isinstance(written, list) else written["rows"]
        rows, self.kept = rows[self.kept :], len(rows)
        # The problem as its file words it, which the program may have written otherwise.
        return [{**row, "backend": self.backend, "problem": self.problem.line} for row in rows]

    def end(self):
        if self.process:
            self.process.kill()
            self.process.wait()
        self.process = None

    def attempt(self, work):
        """What `work` returns, or none if it fails, now or before: the peers go on without it."""
        if self.failed:
            return []
        try:
            return work()
        except (RuntimeError, OSError, ValueError) as error:
            not_for(self.backend, self.problem, error)
            self.failed = True
            self.end()  # the next problem begins with a new process
            return []


def timed(work):
    """Microseconds of GPU time between two events around `work`."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def p90(times):
    ordered = sorted(times)
    # Nearest rank, ceil(0.9 n), without rounding errors.
    return ordered[-(-9 * len(ordered) // 10) - 1]


def driver():
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"


def memory():
    return torch.cuda.get_device_properties(0).total_memory


def sequence_runs(problem, found):
    """A run of each peer that can do the problem."""
    inputs = [inputs_of(problem) for _ in range(problem.copies(memory()))]
    runs = {}
    for name, peer in found.items():
        try:
            peer = peer.of(problem)
            prepared = [peer.prepare(problem, *qkv) for qkv in inputs]
            runs[name] = Run(name, lambda i, call=peer.call, prepared=prepared: call(problem, *prepared[i]), len(inputs), problem.calls(len(inputs)))
        except Exception as error:  # whatever a package raises, the others go on
            torch.cuda.synchronize()
            not_for(name, problem, error)
    return runs


def cache_runs(problem, found):
    """A run of each contestant that can do the problem, and does it rightly: of its fastest variant."""
    cache = cache_peers.Cache(problem, ELEMENTS[problem.element], problem.copies(memory()))
    copies = len(cache.q)
    runs = {}
    for name, variants in found.items():
        fastest, failures = None, []
        # Whatever a package raises, the others go on.
        try:
            listed = variants(cache)
        except Exception as error:
            not_for(name, problem, error)
            continue
        for variant, prepare in listed:
            try:
                run = Run(f"{name} ({variant})", prepare(), copies, problem.calls(copies))
                run.graph.replay()
                if name != "read":
                    for i in {0, copies - 1}:
                        cache.check(run.outputs[i], i)
                trial = min(timed(run.graph.replay) for _ in range(TRIAL_REPLAYS))
                if fastest is None or trial < fastest[0]:
                    fastest = (trial, run)
            except Exception as error:
                torch.cuda.synchronize()
                failures.append((f"{name} ({variant})", error))
        if fastest:
            runs[name] = fastest[1]
        if name == "read":  # most of its many block sizes do not fit short pages
            failures = [] if fastest else failures[:1]
        for way, error in failures:
            not_for(way, problem, error)
    return runs


def call_once(problem, found, on_cache):
    """Calls each contestant that can do the problem. What fails fails again, and is reported, where it is measured."""
    calls = []
    with contextlib.suppress(torch.cuda.OutOfMemoryError):
        if problem.on_cache:
            cache = cache_peers.Cache(problem, ELEMENTS[problem.element], 1)
            for variants in on_cache.values():
                with contextlib.suppress(Exception):
                    calls += [lambda prepare=prepare: prepare()(0) for _, prepare in variants(cache)]
        else:
            inputs = inputs_of(problem)
            calls += [lambda peer=peer: peer.of(problem).call(problem, *peer.of(problem).prepare(problem, *inputs)) for peer in found.values()]
    for call in calls:
        with contextlib.suppress(Exception):
            call()
    torch.cuda.synchronize()


def not_slow(runs, method):
    """Those that may be the fastest peer. Of the others a few times are enough."""

    def median(run):
        return statistics.median(run.times[method])

    fastest = min((median(run) for run in runs if not run.name.startswith("read")), default=0)
    return [run for run in runs if run.name.startswith("read") or median(run) <= SLOW * fastest]


def of_program(options, problems):
    """The program on the problems; where reading takes the time with fixed splits, too, if that is asked."""
    if not options.program:
        return []
    # A window reads so few keys that the copies of its cache would not fit twice.
    split = [problem for problem in problems if problem.on_cache and problem.is_reading and problem.window_left < 0]
    backends = [(problems, {})]
    if options.splits:
        words = f"splits={options.splits}"
        backends.append((split, {"backend": f"warptile {words}", "shape": lambda problem: f"{problem.for_warptile} {words}"}))
    with_options = [problem for problem in problems if problem.options]
    padded = [problem for problem in problems if problem.shown_keys]
    backends.append((with_options, {"backend": "plain", "shape": lambda problem: problem.without_options}))
    backends.append((padded, {"backend": "lengths", "shape": lambda problem: problem.with_lengths}))
    methods = options.method or METHODS
    return [Warptile(options.program, of_one, methods, options.samples, **backend) for of_one, backend in backends if of_one]


def measure(problem, prepare, options, machine, programs):
    """Rows of all contestants, which take turns, round by round, and whether `warptile` failed, if it was to take part. `prepare` gives
    the runs of the peers; `programs` are our own."""
    rows = []
    ours = [warptile for warptile in programs if warptile.takes(problem)]
    # The program prepares itself while the peers are prepared, unless their variants are tried: that takes times.
    runs = prepare() if problem.on_cache else None
    for warptile in ours:
        warptile.begin(problem)
    runs = prepare() if runs is None else runs
    for method in options.method or METHODS:
        taking_part = list(runs.values())
        for round in range(WARM_UP_ROUNDS + options.samples):
            if round == WARM_UP_ROUNDS:
                for run in taking_part:
                    run.times[method] = []
            if round == WARM_UP_ROUNDS + FEW_ROUNDS:
                taking_part = not_slow(taking_part, method)
            turns = [functools.partial(run.round, method) for run in taking_part]
            if round >= WARM_UP_ROUNDS:  # it warms up by itself
                turns += [functools.partial(warptile.attempt, warptile.round) for warptile in ours]
            # Under a power limit the clock may depend on who ran before.
            random.Random(round).shuffle(turns)
            for turn in turns:
                turn()
    for warptile in ours:
        rows += warptile.attempt(warptile.finish)
    for name, run in runs.items():
        for method, times in run.times.items():
            if not times:
                continue
            median = statistics.median(times)
            rows.append(
                {
                    "backend": name,
                    "family": name,
                    "kernel": run.name,
                    **problem.row(),
                    "method": method,
                    "samples": len(times),
                    "median_us": median,
                    "p90_us": p90(times),
                    **problem.speeds(median),
                    **({"leaves_out": "sinks"} if problem.sinks else {}),
                    **machine,
                }
            )
    return rows, any(warptile.failed for warptile in ours)


def compile_ahead(options, problems):
    """What is compiled when it is first used: FlashAttention-4's kernels, FlashInfer's, or both side by side."""
    makers = {
        "fa4": lambda: contestants.compile_fa4(options.fa4, problems),
        "flashinfer": lambda: contestants.compiled_flashinfer(options, [problem for problem in problems if problem.on_cache]),
    }
    with concurrent.futures.ThreadPoolExecutor() as executor:
        wanted = [name for name in makers if getattr(options, name) and name in (options.peer or makers)]
        for done in [executor.submit(makers[name]) for name in wanted]:
            done.result()


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--file", action="append", default=[], help="problems, one a line; may be given several times")
    arguments.add_argument("--shape", action="append", default=[], help="one problem; may be given several times")
    arguments.add_argument("--peer", action="append", choices=PEERS, help="measure this peer only; may be given several times")
    arguments.add_argument("--method", action="append", choices=METHODS, help="measure this only (default: both)")
    arguments.add_argument("--samples", type=int, default=30, help="rounds to measure (default 30)")
    arguments.add_argument("--with", dest="program", metavar="PROGRAM", help="the program `warptile`, to be measured in turn")
    arguments.add_argument("--splits", type=int, metavar="N", help="with --with: measure keys cut at multiples of N, too")
    arguments.add_argument("--fa3", metavar="FILE", help="FlashAttention-3's extension library")
    arguments.add_argument("--fa4", metavar="FOLDER", help="the folder that has FlashAttention-4's package, and those it needs")
    arguments.add_argument("--flashinfer", metavar="FOLDER", help="the folder that has FlashInfer's package")
    arguments.add_argument("--cudnn", metavar="FOLDER", help="the folder of another cuDNN than PyTorch's own")
    arguments.add_argument("--find", action="store_true", help="only open the peers that --fa3, --fa4, --flashinfer and --cudnn name; fail if one is not there")
    arguments.add_argument("--compile", action="store_true", help="only compile what FlashInfer and FlashAttention-4 need for the problems")
    arguments.add_argument(
        "--wait",
        metavar="FILE",
        help="first call each contestant once on each problem, which compiles what is compiled then, make this file, and begin when a line comes in",
    )
    arguments.add_argument("--errors", action="store_true", help="measure errors against float64 instead of times")
    arguments.add_argument("--seeds", type=int, default=1, help="with --errors: how many inputs (default 1)")
    arguments.add_argument("--query-scale", type=float, default=1.0, help="with --errors: factor of the queries (default 1)")
    arguments.add_argument("--json", help="write the rows to this file")
    options = arguments.parse_args()

    if options.find:
        found = contestants.named(options)
        print(json.dumps(contestants.versions(found, options)))
        return
    lines = list(options.shape)
    for name in options.file:
        with open(name) as file:
            lines += [line.split("#")[0].strip() for line in file]
    problems = [Problem(line) for line in lines if line]
    if not problems:
        arguments.error("no problems: give --shape or --file")
    if not torch.cuda.is_available():
        sys.exit("PyTorch sees no GPU")

    if options.compile:
        compile_ahead(options, problems)
        return
    if options.errors and not all(problem.is_plain for problem in problems):
        arguments.error("--errors is for whole sequences without windows or sinks, with a causal mask as many queries as keys")
    of_sequences = [problem for problem in problems if options.errors or not problem.on_cache]
    found = contestants.of_sequences(options, of_sequences) if of_sequences else {}
    others = [problem for problem in problems if problem not in of_sequences]
    on_cache = contestants.on_caches(options, others) if others else {}
    machine = {
        "device": torch.cuda.get_device_name(),
        "driver": driver(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "versions": contestants.versions(found | on_cache, options),
    }
    if options.wait:
        for problem in problems:
            call_once(problem, found, on_cache)
        torch.cuda.empty_cache()
        pathlib.Path(options.wait).touch()
        if not sys.stdin.readline():
            sys.exit("the input ended before a line")
    rows = []

    def write():
        if options.json:
            with open(options.json, "w") as file:
                json.dump(rows, file, indent=2)
                file.write("\n")

    if options.errors:
        for of_problem in errors.of_problems(problems, found, options, machine):
            for row in of_problem:
                print(f"{row['problem']:62} {row['backend']:10} rms {row['error_rms']:.3e} max {row['error_max']:.3e}", flush=True)
            rows += of_problem
            write()
            torch.cuda.empty_cache()
        return
    failed, programs = False, of_program(options, problems)
    for problem in problems:
        prepare, peers = (cache_runs, on_cache) if problem.on_cache else (sequence_runs, found)
        try:
            of_problem, without_ours = measure(problem, functools.partial(prepare, problem, peers), options, machine, programs)
        except torch.cuda.OutOfMemoryError as error:
            not_for("all", problem, error)
            failed = True
            continue
        failed |= without_ours
        rows += of_problem
        for row in of_problem:
            speed = f"{row['tb_s']:8.3f} TB/s" if problem.is_reading else f"{row['tflops']:8.1f} TFLOP/s"
            print(f"{problem.line:62} {row['backend']:10} {row['method']:6} {row['median_us']:10.1f} us {speed}", flush=True)
        # Memory is given back only in large amounts, because that takes long.
        if torch.cuda.memory_reserved() > memory() // PART_OF_MEMORY:
            torch.cuda.empty_cache()
        # After each problem, so that little is lost if the rest never comes.
        write()
    write()
    for warptile in programs:
        warptile.end()
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
