"""Runs everything that is to be shown of Warptile on a GPU host, and writes what came of it as JSON.

Runs inside a bundle (`cargo xtask bundle`), which holds the program, the test executables and this script; needs no
Rust. docs/evidence.md says what each file means. The work has parts, each of which takes less than 9 minutes; `--only`
runs some of them, and what other parts of the same commit wrote before stays. A step that fails is recorded as failed; a tool
that is missing makes its part fail. Each part writes what it has as it goes; told to stop (Ctrl-C, SIGTERM), the script has what
runs write what it has, too, and ends. Exit code: 0 everything passed, 1 something failed, 2 wrong usage.
"""

import argparse
import concurrent.futures
import copy
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from checks import acceptance, alone, controls, examples, launches, sanitizer, tests, tile, verify
from compiled import COMPILED, LAUNCH_PTX, USES, Compiled, Ptx
from host import BUNDLE, ELSEWHERE, STOP, WARPTILE, Evidence, NoSuchGpu, device, now, stop
from summary import table
from times import PEERS_BY_PLACE, Prepared, backward, bench, decode, errors, missing_peers, ncu, options, peers, tune

# In the order in which they run: first those that take no times, while what peers need is compiled; `verify`, which takes all cores, when that
# is done. Then those that take times, one after the other, nothing beside them; `ncu` takes what `bench` found. Tests that take all of the
# GPU's memory come last.
PARTS = {
    "sanitizer": sanitizer,
    "errors": errors,
    "examples": examples,
    "launches": launches,
    "tile": tile,
    "acceptance": acceptance,
    "tests": tests,
    "verify": verify,
    "bench": bench,
    "ncu": ncu,
    "tune": tune,
    "peers": peers,
    "decode": decode,
    "backward": backward,
    "options": options,
    "alone": alone,
}

# Parts that take times.
TIMED = ("bench", "ncu", "tune", "peers", "decode", "backward", "options")

# Parts that stay on the first GPU with --second-gpu: those that take times, and those with peers. The others go to the second one.
ON_FIRST_GPU = ("errors", *TIMED)

# Of the half of the host's cores that they have then, those on which nothing is compiled: what takes times uses no more.
QUIET_CORES = 4

# Seconds after which the main thread, which waits for what the others do, sees a signal at the latest.
AWAKE_SECONDS = 0.2

# Parts that take no times and run side by side: each of these one after the other. Processes share a GPU by turns of milliseconds, in which one
# with small kernels uses little of it: with 21 at once, a tile of each image took more than 67 s, and 3 by itself. So few are at work at a
# time, and each of them in many threads. Parts that wait for what is compiled are not the first of theirs.
LANES = (("sanitizer", "launches"), ("examples", "tests", "acceptance", "tile"), ("errors",))

# A part that keeps host and GPU busy by itself, and begins when nothing is compiled any more.
BUSY = "verify"

# The files that a part writes; device.json, info.json and summary.json are every part's.
WRITTEN = {
    "peers": ("bench-warptile", "bench-peers", "other", "default"),
    "errors": ("errors",),
    "decode": ("decode", "few"),
    "backward": ("backward",),
    "options": ("options",),
    "bench": ("start", "noise", "kernels", "families", "small-gpu", "uneven", "sparse"),
    "ncu": ("ncu",),
    "tune": ("tune",),
    "verify": ("verify", "verify-*", "images"),
    "launches": ("launches",),
    "tile": ("tile",),
    "acceptance": ("acceptance",),
    "examples": ("examples",),
    "sanitizer": ("sanitizer",),
    "tests": ("tests", "invariance"),
    "alone": ("alone",),
}


def shared_cores(two_gpus):
    """The cores of the parts on the first GPU, those that compile meanwhile, and those of the parts on the second GPU, so that what one
    computes does not slow the other's calls. On one GPU all have all."""
    cores = sorted(os.sched_getaffinity(0))
    if not two_gpus:
        return cores, cores, cores
    half = len(cores) // 2
    first = cores[:half] or cores
    return first, first[QUIET_CORES:] or first, cores[half:]


class OtherGpu:
    """The parts that run on the second GPU, by this script in a process and a folder of its own."""

    def __init__(self, evidence, names, cores):
        self.names = [name for name in names if name not in ON_FIRST_GPU]
        self.folder = evidence.folder / "second-gpu"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        options = evidence.options
        command = [sys.executable, pathlib.Path(__file__).parent, "--out", self.folder, "--only", ",".join(self.names), "--seed", options.seed]
        command += ["--count", options.count, "--long-count", options.long_count, "--samples", options.samples]
        for name in PEERS_BY_PLACE:
            command += [f"--{name}", getattr(options, name)] if getattr(options, name) else []
        command += ["--without-peers"] if options.without_peers else []
        variables = {"CUDA_VISIBLE_DEVICES": evidence.second_gpu}
        before = os.sched_getaffinity(0)
        self.output = (self.folder / "output").open("w+")
        self.process = None
        if self.names:
            words = [str(word) for word in command]
            os.sched_setaffinity(0, cores)
            self.process = subprocess.Popen(
                words, stdout=self.output, stderr=subprocess.STDOUT, env=os.environ | variables, start_new_session=True
            )
            os.sched_setaffinity(0, before)
            ELSEWHERE.add(self.process)

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
            log.replace(evidence.folder / "logs" / log.name.replace("commands", "commands-second-gpu"))
        shutil.rmtree(self.folder)
        for name in self.names:
            evidence.failures += parts[name]["failures"]
        return parts


def clear(evidence, parts):
    """Deletes what is about to be written again, and everything of another commit: nothing may seem to be of this run that is
    not. Files of nobody here, such as cpu.json and the baselines, stay. Returns what the summary keeps of parts and of runs."""
    summary = evidence.read("summary.json")
    if summary.get("commit") != evidence.stamp["commit"] or "parts" not in summary:
        parts, summary = PARTS, {}
    for part in parts:
        for pattern in WRITTEN[part]:
            for old in evidence.folder.glob(f"{pattern}.json"):
                old.unlink()
    return {name: done for name, done in summary.get("parts", {}).items() if name not in parts}, summary.get("runs", [])


def summarize(evidence, parts, runs):
    missing = [part for part in PARTS if part not in parts]
    passed = not missing and all(done["passed"] for done in parts.values())
    ran = groups([name for name in PARTS if name in parts])
    in_turn = sum(max(sum(parts[name]["seconds"] for name in lane) for lane in lanes) for lanes in ran)
    evidence.write("summary.json", passed=passed, missing=missing, runs=runs, in_turn=round(in_turn, 1), parts=parts)


def groups(names):
    """The parts in order: each entry has lanes that run at the same time, and each lane parts one after the other."""
    side_by_side = [lane for lane in ([name for name in lane if name in names] for lane in LANES) if lane]
    listed = []
    for name in names:
        if not any(name in lane for lane in LANES):
            listed.append([[name]])
        elif side_by_side not in listed:
            listed.append(side_by_side)
    return listed


def run_part(evidence, name):
    """What the summary says of a part that has run."""
    own = copy.copy(evidence)
    own.failures = []
    start = time.monotonic()
    try:
        # On one GPU, whatever takes times or all of the memory waits, too.
        undisturbed = name in (*TIMED, "alone") and own.options.second_gpu is None
        if undisturbed or name == BUSY:
            own.compiled.finished(COMPILED)
        own.compiled.wait(own, USES.get(name, ()))
        if undisturbed and own.prepared:
            own.prepared.wait()
        if own.ptx and name in LAUNCH_PTX:
            own.ptx.wait(own)
        start = time.monotonic()  # of its own work
        PARTS[name](own)
    except Exception as error:  # what other parts found is kept, whatever this one met
        own.fail(f"{name}: {type(error).__name__}: {error}")
    if STOP.is_set():
        own.failures = [f"{name} was cut short: the script was told to stop"]
    seconds = round(time.monotonic() - start, 1)
    return {"date": now(), "seconds": seconds, "passed": not own.failures, "failures": own.failures}


def main():
    start = time.monotonic()
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("EVIDENCE_DIR", str(BUNDLE / "evidence"))
    arguments.add_argument("--out", default=default, help="folder for the JSON files (default: evidence/ of the bundle)")
    arguments.add_argument("--only", metavar="PART,...", help=f"run these parts only: {', '.join(PARTS)}")
    arguments.add_argument("--gpu", type=int, default=0, help="which GPU, as nvidia-smi counts, or of those in CUDA_VISIBLE_DEVICES (default 0)")
    arguments.add_argument("--second-gpu", type=int, metavar="N", help=f"run all parts but {', '.join(ON_FIRST_GPU)} on this GPU, meanwhile")
    arguments.add_argument("--count", type=int, default=20000, help="random problems up to length 1,024 for each family, and as many in pages (default 20000)")
    arguments.add_argument("--long-count", type=int, default=200, help="random problems up to length 4,096 for each family (default 200)")
    arguments.add_argument("--seed", type=int, default=1, help="seed of the random problems (default 1)")
    arguments.add_argument("--samples", type=int, default=15, help="rounds of the measurement against peers (default 15)")
    arguments.add_argument("--fa3", help="FlashAttention-3's extension library, as attention_peers.py takes it")
    arguments.add_argument("--fa4", help="the folder that has FlashAttention-4's package, as attention_peers.py takes it")
    arguments.add_argument("--flashinfer", help="the folder that has FlashInfer's package, as attention_peers.py takes it")
    arguments.add_argument("--cudnn", help="the folder of another cuDNN than PyTorch's own, as attention_peers.py takes it")
    arguments.add_argument("--without-peers", action="store_true", help="leave out PyTorch and all other peers")
    options = arguments.parse_args()
    names = options.only.split(",") if options.only else list(PARTS)
    for name in names:
        if name not in PARTS:
            arguments.error(f"there is no part called {name}; there are {', '.join(PARTS)}")
    if not WARPTILE.exists():
        print(f"{WARPTILE} is missing: run this from an unpacked bundle (`cargo xtask bundle` makes one)", file=sys.stderr)
        return 2
    for what in (signal.SIGINT, signal.SIGTERM):
        signal.signal(what, stop)
    # Python handles signals in the main thread, between two of its steps. Where it waits for another thread, it might not until that has ended.
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        collected = executor.submit(collect, options, names, start)
        while not collected.done():
            concurrent.futures.wait([collected], timeout=AWAKE_SECONDS)
        return collected.result()


def collect(options, names, start):
    """Runs the parts. The script's exit code."""
    try:
        evidence = Evidence(pathlib.Path(options.out).resolve(), options)
    except NoSuchGpu as missing:
        print(missing, file=sys.stderr)
        return 2
    evidence.needs("nvidia-smi")
    # Nothing else runs yet, and nothing has been deleted.
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        looked = executor.submit(missing_peers, evidence, names)
        evidence.controls = controls(evidence) if "sanitizer" in names and options.second_gpu is None else []
        missing = looked.result()
    if missing and not STOP.is_set():
        print(f"a peer that was named is not there:\n{missing}", file=sys.stderr)
        return 2
    parts, runs = clear(evidence, names)
    run = {"date": now(), "parts": [name for name in PARTS if name in names], "gpus": 1 if options.second_gpu is None else 2, "seconds": 0.0}
    runs.append(run)

    def write():
        run["seconds"] = round(time.monotonic() - start, 1)
        summarize(evidence, parts, runs)
        evidence.log_commands()

    device(evidence)
    own_cores, compiling_cores, other_cores = shared_cores(options.second_gpu is not None)
    all_names, elsewhere = names, None
    if options.second_gpu is not None:
        elsewhere = OtherGpu(evidence, names, other_cores)
        os.sched_setaffinity(0, own_cores)
        names = [name for name in names if name in ON_FIRST_GPU]
    evidence.compiled = Compiled(evidence, all_names, compiling_cores)
    # It is worth its time only while something else runs.
    evidence.ptx = Ptx(evidence) if "verify" in names else None
    # With a second GPU what takes times runs from the beginning: whatever is prepared would disturb it.
    evidence.prepared = Prepared(evidence, names) if options.second_gpu is None else None
    for lanes in groups([name for name in PARTS if name in names]):
        if STOP.is_set():
            break
        print(f"=== {'; '.join(', '.join(lane) for lane in lanes)}", flush=True)
        with concurrent.futures.ThreadPoolExecutor(len(lanes)) as executor:
            ended = list(executor.map(lambda lane: [(name, run_part(evidence, name)) for name in lane], lanes))
        done = dict(one for lane in ended for one in lane)
        # A failure before the first part counts as a failure of that part.
        if evidence.failures and not parts.keys() & set(names):
            first = next(iter(done.values()))
            first["failures"][:0] = evidence.failures
            first["passed"] = False
            evidence.failures = []
        parts |= done
        evidence.failures += [failure for one in done.values() for failure in one["failures"]]
        write()

    if evidence.prepared:
        evidence.prepared.end()
    if elsewhere:
        parts |= elsewhere.finish(evidence)
    write()
    if STOP.is_set() and not evidence.failures:
        evidence.fail("the script was told to stop")
    print(f"\n{table(evidence, parts)}")
    print(f"{run['seconds']:.0f} s by the clock, on {run['gpus']} GPU{'s' if run['gpus'] > 1 else ''}")
    for failure in evidence.failures:
        print(f"FAILED  {failure}")
    print(f"{'FAILED' if evidence.failures else 'passed'}; see {evidence.folder}")
    return 1 if evidence.failures else 0


if __name__ == "__main__":
    sys.exit(main())
