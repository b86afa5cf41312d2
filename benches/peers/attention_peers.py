#!/usr/bin/env python3
"""How long the attention kernels that PyTorch, FlashAttention-3 and FlashInfer bring along take.

Measures the problems of a shape file (see shapes.txt and decode.txt) the way `warptile bench` does and writes the same JSON rows:

  graph  GPU time of one call: calls captured in a CUDA graph, events around each replay, inputs that rotate so that
         together they exceed the L2 cache several times over
  call   what one call costs its caller: events around a single call, inputs rotating

With --errors it measures instead how far each result is from float64: root mean square and maximum of the differences over
the whole output, on the same inputs for all.

Peers: FlashAttention-2, cuDNN and the memory-efficient kernel through PyTorch's scaled_dot_product_attention, and
FlashAttention-3. The last is looked for in the file that --fa3 names (its extension library, such as
xformers/flash_attn_3/_C.so of the xformers wheel; a libcudart.so.12 beside it is loaded first), then in the packages
flash_attn_interface (built from its source) and fa3_fwd_interface (fa3-fwd, which takes no f16). `default` is what PyTorch
chooses among its kernels by itself; it is measured only with --peer default.

Where queries meet the keys of a cache (fewer queries than keys, pages, lengths, windows, sinks), FlashInfer takes part too if it
is installed or --flashinfer names the folder of its package, and `read`, a kernel that only reads the keys and values that some
query sees: nothing can be faster. Each peer's result is compared with one computed in float32; of several ways to call it the
fastest is measured. No peer here has sinks: where the problem does, the peers' rows say that they leave them out.

All peers of a problem are measured in turn, round by round, so that a drifting clock touches all alike; with --with PROGRAM,
the program `warptile` takes its turn too, and with --splits N once more where reading takes the time, with keys cut at multiples
of N, as the backend "warptile splits=N". A peer that can't do a problem has no row; why not goes to standard error.

Needs: an NVIDIA GPU, PyTorch 2.5 or newer. Examples:

    attention_peers.py --file shapes.txt --json peers.json
    attention_peers.py --errors --seeds 8 --with warptile --shape "b1 q8192 k8192 h8 d256 bf16 mask=causal" --query-scale 3
"""

import argparse
import collections
import concurrent.futures
import contextlib
import ctypes
import datetime
import json
import math
import os
import pathlib
import re
import statistics
import struct
import subprocess
import sys
import tempfile

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import cache_peers
from problem import Problem

WARM_UP_ROUNDS = 3

# Replays by which the fastest variant of a peer is found.
TRIAL_REPLAYS = 5

METHODS = ("graph", "call")
PEERS = ("fa2", "cudnn", "efficient", "default", "fa3", "flashinfer", "read")

# Measured only if asked for by name: it is one of the others.
BY_NAME_ONLY = ("default",)

# Scores that the float64 reference holds at once: 1 GiB of them.
REFERENCE_SCORES = 1 << 27

# Problems whose errors are computed at a time. Most of what one takes is the program's start and files.
PROBLEMS_UNDER_WAY = 4

ELEMENTS = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


def inputs_of(problem):
    """q, k, v as [batch, length, heads, head size], normally distributed."""

    def tensor(length, heads):
        shape = (problem.batch, length, heads, problem.head_dim)
        return torch.randn(shape, device="cuda", dtype=ELEMENTS[problem.element])

    return tuple(
        tensor(length, heads)
        for length, heads in (
            (problem.query_len, problem.heads),
            (problem.key_len, problem.kv_heads),
            (problem.key_len, problem.kv_heads),
        )
    )


def sdpa(backend=None):
    """A peer through PyTorch's dispatcher, held to one backend if one is given."""

    def prepare(problem, q, k, v):
        # PyTorch wants [batch, heads, length, head size]; as strides, without a copy.
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def call(problem, q, k, v):
        with sdpa_kernel([backend]) if backend is not None else contextlib.nullcontext():
            return scaled_dot_product_attention(
                q, k, v, is_causal=problem.mask == "causal", enable_gqa=problem.heads != problem.kv_heads
            )

    return prepare, call


def fa3_operators(library):
    """FlashAttention-3's operators: those of a library, or of the package that is installed."""
    if library:
        runtime = pathlib.Path(library).with_name("libcudart.so.12")
        if runtime.exists():
            ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
        torch.ops.load_library(library)
    else:
        import flash_attn_interface  # noqa: F401 (it registers them)
    return torch.ops.flash_attn_3


def flash_attention_3(library):
    """FlashAttention-3's own interface: q, k, v, causal to the output."""
    if library:
        operator = fa3_operators(library).fwd
        return lambda q, k, v, causal: operator(q, k, v, is_causal=causal, num_splits=1)[0]
    try:
        from flash_attn_interface import flash_attn_func
    except ImportError:
        from fa3_fwd_interface import flash_attn_func

    def attention(q, k, v, causal):
        output = flash_attn_func(q, k, v, causal=causal)
        # Some releases return the lse, too.
        return output[0] if isinstance(output, tuple) else output

    return attention


def fa3(library):
    """FlashAttention-3 as a peer."""
    attention = flash_attention_3(library)

    def prepare(problem, q, k, v):
        if problem.element == "f32":
            raise RuntimeError("FlashAttention-3 takes no f32")
        return q, k, v

    def call(problem, q, k, v):
        return attention(q, k, v, problem.mask == "causal")

    return prepare, call


def on_caches(wanted, library, flashinfer_folder, problems):
    """Contestants for queries on a cache: from a cache to the variants."""

    def flashinfer():
        if flashinfer_folder:
            sys.path.insert(0, flashinfer_folder)
            major, minor = torch.cuda.get_device_capability()
            os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", f"{major}.{minor}" + ("a" if major >= 9 else ""))
        import flashinfer

        cache_peers.compile_flashinfer(problems, lambda problem: ELEMENTS[problem.element], flashinfer)
        return lambda cache: cache_peers.flashinfer(cache, flashinfer)

    def fa3():
        operators = fa3_operators(library)
        return lambda cache: cache_peers.fa3(cache, operators)

    makers = {
        "fa2": lambda: cache_peers.fa2,
        "cudnn": lambda: cache_peers.cudnn,
        "fa3": fa3,
        "flashinfer": flashinfer,
        "read": lambda: cache_peers.read,
    }
    return found_of(makers, wanted, {"fa3": library, "flashinfer": flashinfer_folder})


def peers(wanted, library):
    makers = {
        "fa2": lambda: sdpa(SDPBackend.FLASH_ATTENTION),
        "cudnn": lambda: sdpa(SDPBackend.CUDNN_ATTENTION),
        "efficient": lambda: sdpa(SDPBackend.EFFICIENT_ATTENTION),
        "default": sdpa,
        "fa3": lambda: fa3(library),
    }
    return found_of(makers, wanted, {"fa3": library})


def found_of(makers, wanted, places):
    """The contestants that are there. `places`: where the command line says that some are."""
    found = {}
    for name, make in makers.items():
        if name not in wanted if wanted else name in BY_NAME_ONLY:
            continue
        try:
            found[name] = make()
        except Exception as error:  # a broken package raises what it likes
            print(f"{name}: not installed ({error})", file=sys.stderr)
            # What was asked for by name must be there.
            if wanted or places.get(name):
                sys.exit(1)
    return found


class Run:
    """One peer on one problem: the graph that is replayed, and the calls that are timed one by one."""

    def __init__(self, name, call, copies):
        self.name = name
        self.call = lambda i: call(i % copies)
        self.copies = copies
        self.next = 0
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for i in range(WARM_UP_ROUNDS):
                self.call(i)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        # What the calls return is kept: outputs that are freed and reused would stay in the cache.
        with torch.cuda.graph(self.graph):
            self.outputs = [self.call(i) for i in range(copies)]
        self.times = {method: [] for method in METHODS}

    def round(self, method):
        if method == "graph":
            self.times[method].append(timed(self.graph.replay) / self.copies)
        else:
            self.next += 1
            self.times[method].append(timed(lambda: self.call(self.next)))


class Warptile:
    """`warptile bench` on one problem, taking a sample whenever it is asked."""

    def __init__(self, program, problem, samples, splits=None):
        self.backend = f"warptile splits={splits}" if splits else "warptile"
        self.problem = problem
        self.failed = False
        self.rows = tempfile.NamedTemporaryFile(suffix=".json")
        shape = problem.for_warptile + (f" splits={splits}" if splits else "")
        command = [program, "bench", "--device", "cuda:0", "--shape", shape, "--samples", str(samples), "--paced"]
        self.process = subprocess.Popen(
            [*command, "--json", self.rows.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def round(self):
        print(flush=True, file=self.process.stdin)
        if not self.process.stdout.readline():
            self.finish()
            raise RuntimeError(f"{self.process.args} ended early")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()  # nothing is left to kill after `finish`
        self.process.wait()

    def finish(self):
        self.process.communicate()
        if self.process.returncode != 0:
            raise RuntimeError(f"{self.process.args} ended with exit code {self.process.returncode}")
        with open(self.rows.name) as file:
            rows = json.load(file)
        # As the file has the problem, whatever the numbers of its lengths.
        return [{**row, "backend": self.backend, "problem": self.problem.line} for row in rows]

    def attempt(self, work):
        """What `work` returns, or none if it fails, now or before: the peers go on without it."""
        if self.failed:
            return []
        try:
            return work()
        except (RuntimeError, OSError, ValueError) as error:
            not_for(self.backend, self.problem, error)
            self.failed = True
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


def first_line(error):
    return (str(error).splitlines() or [type(error).__name__])[0]


def not_for(name, problem, error):
    """Says why a contestant has no row."""
    print(f"{name}: not for {problem.line}: {first_line(error)}", file=sys.stderr, flush=True)


def square_runs(problem, found):
    """A run of each peer that can do the problem."""
    inputs = [inputs_of(problem) for _ in range(problem.copies(memory()))]
    runs = {}
    for name, (prepare, call) in found.items():
        try:
            prepared = [prepare(problem, *qkv) for qkv in inputs]
            runs[name] = Run(name, lambda i, call=call, prepared=prepared: call(problem, *prepared[i]), len(inputs))
        except (RuntimeError, TypeError, ValueError) as error:
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
                run = Run(f"{name} ({variant})", prepare(), copies)
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


def measure(problem, runs, options, machine):
    """Rows of all contestants, which take turns, round by round, and whether `warptile` failed, if it was to take part."""
    rows, ours = [], []
    with contextlib.ExitStack() as stack:
        if options.program:
            several = [None]
            # Of a window so little is read that the copies of its cache would not fit twice.
            if options.splits and problem.on_cache and problem.is_reading and problem.window_left < 0:
                several.append(options.splits)
            for splits in several:
                ours.append(stack.enter_context(Warptile(options.program, problem, options.samples, splits)))
        for method in options.method or METHODS:
            for round in range(WARM_UP_ROUNDS + options.samples):
                if round == WARM_UP_ROUNDS:
                    for run in runs.values():
                        run.times[method] = []
                for run in runs.values():
                    run.round(method)
                if round >= WARM_UP_ROUNDS:  # it warms up by itself
                    for warptile in ours:
                        warptile.attempt(warptile.round)
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


def reference(problem, q, k, v):
    """The output in float64, [batch, length, heads, head size], computed in pieces on the GPU."""
    group = problem.heads // problem.kv_heads

    def heads_first(tensor):
        """[batch * heads, length, head size]"""
        return tensor.transpose(1, 2).reshape(-1, tensor.shape[1], tensor.shape[3])

    q = heads_first(q)
    k, v = (heads_first(tensor.repeat_interleave(group, dim=2)) for tensor in (k, v))
    output = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    rows = min(problem.query_len, 2048)
    heads = max(1, REFERENCE_SCORES // max(1, rows * problem.key_len))
    keys = torch.arange(problem.key_len, device=q.device)
    for head in range(0, q.shape[0], heads):
        of_heads = slice(head, head + heads)
        k_piece, v_piece = k[of_heads].double(), v[of_heads].double()
        for row in range(0, problem.query_len, rows):
            of_rows = slice(row, row + rows)
            scores = torch.bmm(q[of_heads, of_rows].double(), k_piece.transpose(1, 2)) / math.sqrt(problem.head_dim)
            if problem.mask == "causal":
                last = torch.arange(problem.query_len, device=q.device)[of_rows, None]
                scores.masked_fill_(keys > last, -math.inf)
            output[of_heads, of_rows] = torch.bmm(torch.softmax(scores, dim=-1), v_piece)
    output = output.view(problem.batch, problem.heads, problem.query_len, problem.head_dim)
    return output.transpose(1, 2)


def safetensors(path, tensors):
    """Writes tensors to a safetensors file; by hand, so that no package is needed."""
    names = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32"}
    header, end, parts = {}, 0, []
    for name, tensor in tensors.items():
        on_host = tensor.contiguous().cpu()
        data = ctypes.string_at(on_host.data_ptr(), on_host.numel() * on_host.element_size())
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [end, end + len(data)]}
        end += len(data)
        parts.append(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(parts)


def tensor_of(path, name, like):
    """A tensor of a safetensors file, of the type and shape of another."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        start = file.tell()
        begin, end = header[name]["data_offsets"]
        file.seek(start + begin)
        data = bytearray(file.read(end - begin))
    return torch.frombuffer(data, dtype=like.dtype).view(like.shape).to(like.device)


def computed_by_warptile(program, problem, q, k, v):
    """The output of `warptile run`, and the kernel that it names."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        inputs, output = os.path.join(folder, "qkv"), os.path.join(folder, "out")
        safetensors(inputs, {"q": q, "k": k, "v": v})
        command = [program, "run", inputs, "-o", output, "--device", "cuda:0"]
        command += ["--causal"] if problem.mask == "causal" else []
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        kernel = re.search(r"^ran +(\S+) on cuda:", done.stdout, re.MULTILINE)
        return tensor_of(output, "out", q), kernel[1] if kernel else ""


class Errors:
    """How far each contestant's output of a problem is from float64, over all seeds. The program `warptile` computes meanwhile, in
    processes of its own: nothing is timed here."""

    def __init__(self, problem, found, options, processes):
        self.problem, self.query_scale, self.seeds = problem, options.query_scale, options.seeds
        self.squares, self.largest, self.kernels, self.values = {}, {}, {}, 0
        self.ours = []
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            q, k, v = inputs_of(problem)
            q = q * options.query_scale
            if options.program:
                computed = processes.submit(computed_by_warptile, options.program, problem, q, k, v)
            exact = reference(problem, q, k, v)
            self.values += exact.numel()
            if options.program:
                self.ours.append((computed, exact))
            for name, (prepare, call) in found.items():
                try:
                    output = call(problem, *prepare(problem, q, k, v))
                except (RuntimeError, TypeError, ValueError) as error:
                    torch.cuda.synchronize()
                    not_for(name, problem, error)
                    continue
                # Through PyTorch's dispatcher the heads come before the rows.
                self.judge(name, output if name == "fa3" else output.transpose(1, 2), name, exact)

    def judge(self, name, output, kernel, exact):
        difference = output.double() - exact
        self.squares[name] = self.squares.get(name, 0.0) + float((difference * difference).sum())
        # `max` would drop NaN in favour of a number or the other way round, by the order of its arguments.
        most = float(difference.abs().max())
        self.largest[name] = math.nan if math.isnan(most) else max(self.largest.get(name, 0.0), most)
        self.kernels[name] = kernel

    def rows(self, machine):
        """One row for each contestant. Waits for the program."""
        for computed, exact in self.ours:
            self.judge("warptile", *computed.result(), exact)
        return [
            {
                "backend": name,
                "kernel": self.kernels[name],
                **self.problem.row(),
                "query_scale": self.query_scale,
                "seeds": self.seeds,
                "error_rms": math.sqrt(self.squares[name] / self.values),
                "error_max": self.largest[name],
                **machine,
            }
            for name in self.squares
        ]


def errors(problems, found, options, machine):
    """The rows of each problem, in order, while the next ones are under way."""
    under_way = collections.deque()
    with concurrent.futures.ThreadPoolExecutor(PROBLEMS_UNDER_WAY) as processes:
        for problem in problems:
            under_way.append(Errors(problem, found, options, processes))
            if len(under_way) == PROBLEMS_UNDER_WAY:
                yield under_way.popleft().rows(machine)
        while under_way:
            yield under_way.popleft().rows(machine)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--file", help="problems, one a line")
    arguments.add_argument("--shape", action="append", default=[], help="one problem; may be given several times")
    arguments.add_argument("--peer", action="append", choices=PEERS, help="measure this peer only; may be given several times")
    arguments.add_argument("--method", action="append", choices=METHODS, help="measure this only (default: both)")
    arguments.add_argument("--samples", type=int, default=30, help="rounds to measure (default 30)")
    arguments.add_argument("--with", dest="program", metavar="PROGRAM", help="the program `warptile`, to be measured in turn")
    arguments.add_argument("--splits", type=int, metavar="N", help="with --with: measure keys cut at multiples of N, too")
    arguments.add_argument("--fa3", metavar="FILE", help="FlashAttention-3's extension library")
    arguments.add_argument("--flashinfer", metavar="FOLDER", help="the folder that has FlashInfer's package")
    arguments.add_argument("--compile", action="store_true", help="only compile what FlashInfer needs for the problems")
    arguments.add_argument("--errors", action="store_true", help="measure errors against float64 instead of times")
    arguments.add_argument("--seeds", type=int, default=1, help="with --errors: how many inputs (default 1)")
    arguments.add_argument("--query-scale", type=float, default=1.0, help="with --errors: factor of the queries (default 1)")
    arguments.add_argument("--json", help="write the rows to this file")
    options = arguments.parse_args()

    lines = list(options.shape)
    if options.file:
        with open(options.file) as file:
            lines += [line.split("#")[0].strip() for line in file]
    problems = [Problem(line) for line in lines if line]
    if not problems:
        arguments.error("no problems: give --shape or --file")
    if not torch.cuda.is_available():
        sys.exit("PyTorch sees no GPU")

    machine = {
        "device": torch.cuda.get_device_name(),
        "driver": driver(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "versions": {"torch": torch.__version__, "cudnn": str(torch.backends.cudnn.version())},
    }
    rows = []

    def write():
        if options.json:
            with open(options.json, "w") as file:
                json.dump(rows, file, indent=2)
                file.write("\n")

    square = [problem for problem in problems if not problem.on_cache]
    if options.errors and len(square) < len(problems):
        arguments.error("--errors is for as many queries as keys, without pages, lengths, windows or sinks")
    found = peers(options.peer, options.fa3) if square else {}
    others = [problem for problem in problems if problem.on_cache]
    on_cache = on_caches(options.peer, options.fa3, options.flashinfer, others) if others else {}
    if options.compile:
        return
    if options.errors:
        for of_problem in errors(problems, found, options, machine):
            for row in of_problem:
                print(f"{row['problem']:62} {row['backend']:10} rms {row['error_rms']:.3e} max {row['error_max']:.3e}", flush=True)
            rows += of_problem
            write()
            torch.cuda.empty_cache()
        return
    failed = False
    for problem in problems:
        try:
            runs = cache_runs(problem, on_cache) if problem.on_cache else square_runs(problem, found)
        except torch.cuda.OutOfMemoryError as error:
            not_for("all", problem, error)
            failed = True
            continue
        of_problem, without_ours = measure(problem, runs, options, machine)
        failed |= without_ours
        rows += of_problem
        for row in of_problem:
            speed = f"{row['tb_s']:8.3f} TB/s" if problem.is_reading else f"{row['tflops']:8.1f} TFLOP/s"
            print(f"{problem.line:62} {row['backend']:10} {row['method']:6} {row['median_us']:10.1f} us {speed}", flush=True)
        del runs
        torch.cuda.empty_cache()
        # After each problem, so that little is lost if the rest never comes.
        write()
    write()
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
