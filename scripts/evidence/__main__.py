"""Runs everything that is to be shown of Warptile on a GPU host, and writes what came of it as JSON.

Runs inside a bundle (`cargo xtask bundle`), which holds the program, the test executables and this script; needs no
Rust. docs/evidence.md says what each file means. The work has parts, each of which takes less than 9 minutes; `--only`
runs some of them, and what other parts of the same commit wrote before stays. A step that fails is recorded as failed; a tool
that is missing makes its part fail. Each part writes what it has as it goes; told to stop (Ctrl-C, SIGTERM, SIGHUP, --budget), the script has
what runs write what it has, too, and ends. `--resume` does the rest later. Exit code: 0 everything passed, 1 something failed, 2 wrong usage.
"""

import argparse
import concurrent.futures
import copy
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

from checks import acceptance, alone, controls, examples, launches, sanitizer, tests, tile, verify
from compiled import COMPILED, LAUNCH_PTX, USES, Compiled, Ptx
from host import BUNDLE, ELSEWHERE, STOP, WARPTILE, Evidence, NoSuchGpu, device, now, stop, tell, write_json
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

# Parts that keep what they have finished when they are resumed.
RESUMED = ("verify",)

# Where the parts on the second GPU write until they end.
SECOND_GPU = "second-gpu"

# The file that a call keeps locked in its folder for as long as it runs.
LOCK = ".lock"

# What a summary is of: parts of different ones do not go together.
OF = ("commit", "device", "driver")

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

    def __init__(self, evidence, names, cores, parts):
        """`parts`: what they came to before, as far as that is kept."""
        self.names = [name for name in names if name not in ON_FIRST_GPU]
        self.known = {name: parts[name] for name in self.names if name in parts}
        self.folder = evidence.folder / SECOND_GPU
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        options = evidence.options
        command = [sys.executable, pathlib.Path(__file__).parent, "--out", self.folder, "--only", ",".join(self.names), "--seed", options.seed]
        command += ["--count", options.count, "--long-count", options.long_count, "--samples", options.samples]
        for name in PEERS_BY_PLACE:
            command += [f"--{name}", getattr(options, name)] if getattr(options, name) else []
        command += ["--without-peers"] if options.without_peers else []
        if options.resume:
            command += ["--resume"]
            for file in written(evidence.folder, [name for name in self.names if name in RESUMED]):
                shutil.copy2(file, self.folder)
            # None of these has ended. Which GPU they ran on is not known.
            write_json(self.folder / "summary.json", {"commit": evidence.stamp["commit"], "parts": self.known, "runs": [{}]})
        variables = {"CUDA_VISIBLE_DEVICES": evidence.second_gpu}
        before = os.sched_getaffinity(0)
        self.output = (self.folder / "output").open("w+")
        self.process = None
        if self.names and not STOP.is_set():
            words = [str(word) for word in command]
            os.sched_setaffinity(0, cores)
            self.process = subprocess.Popen(
                words, stdout=self.output, stderr=subprocess.STDOUT, env=os.environ | variables, start_new_session=True
            )
            os.sched_setaffinity(0, before)
            ELSEWHERE.add(self.process)
            if STOP.is_set():
                tell(self.process, signal.SIGINT)

    def finish(self, evidence, run):
        """Waits, and takes its files; what its parts came to. Those that began there have begun in this run."""
        if self.process:
            self.process.wait()
            ELSEWHERE.discard(self.process)
        self.output.seek(0)
        print(self.output.read().split("\n\n")[0], flush=True)
        self.output.close()
        run["parts"] += began(self.folder)
        failure = {"date": now(), "seconds": 0, "passed": False, "cut_short": True}
        parts = {name: {**failure, "failures": [f"{name} was cut short: it did not run"]} for name in self.names}
        parts |= self.known | take(evidence.folder, self.folder, self.names)
        shutil.rmtree(self.folder)
        for name in self.names:
            evidence.failures += parts[name]["failures"]
        return parts


def summary_of(folder):
    """What summary.json of a folder says; nothing if there is none."""
    file = folder / "summary.json"
    return {"commit": None, "parts": {}, "runs": []} | (json.loads(file.read_text()) if file.exists() else {})


def began(folder):
    """The parts that the last run of a folder has begun."""
    return [part for run in summary_of(folder)["runs"][-1:] for part in run.get("parts", ())]


def differ(one, other):
    """Whether two summaries are known to be of different commits, GPUs or drivers."""
    return any(None not in (one.get(key), other.get(key)) and one[key] != other[key] for key in OF)


def told_apart(summary):
    return ", ".join(f"{key} {summary.get(key)}" for key in OF)


def lock(folder):
    """What keeps other calls out of a folder until it is closed; nothing if one is at work there."""
    file = (folder / LOCK).open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def written(folder, parts):
    """The files that these parts have written."""
    return [file for part in parts for pattern in WRITTEN[part] for file in folder.glob(f"{pattern}.json")]


def take(folder, other, names):
    """Copies the files of these parts from another folder, and their logs; what the parts came to there. Of other logs, those that are not
    there, and all of a second GPU. What the folder's summary says of these parts must be gone already."""
    parts = {name: done for name, done in summary_of(other)["parts"].items() if name in names}
    for old in written(folder, parts):
        old.unlink()
    for file in written(other, parts):
        shutil.copy2(file, folder)
    (folder / "logs").mkdir(exist_ok=True)
    logs = {name for done in parts.values() for name in done.get("logs", ())}
    for log in (other / "logs").glob("*.log"):
        to = folder / "logs" / log.name.replace("commands", f"commands-{other.name}")
        if log.stem in logs or other.name == SECOND_GPU or to.name != log.name or not to.exists():
            shutil.copy2(log, to)
    return parts


def ended(done):
    """Whether a part came to its end, passed or not."""
    return done is not None and not done.get("cut_short")


def join(folder, other):
    """Adds to a folder the parts that another one has of the same commit, unless they ended here or are newer, and its runs; then what a run
    that was killed left of its second GPU. False if commits, GPUs or drivers differ; a second GPU may be of another kind."""
    own, theirs = summary_of(folder), summary_of(other)
    of_second = other.name == SECOND_GPU
    if not theirs["commit"] or differ({"commit": own["commit"]} if of_second else own, theirs):
        return False

    def wanted(name, done):
        known = own["parts"].get(name)
        return not ended(known) and (known is None or ended(done) or done["date"] >= known["date"])

    names = [name for name, done in theirs["parts"].items() if wanted(name, done)]
    parts, runs = {name: done for name, done in own["parts"].items() if name not in names}, own["runs"]
    first = own if own["commit"] else theirs
    stamp = {key: first.get(key) for key in ("commit", "date", "device", "driver")}
    # First, so that it claims nothing that is deleted.
    write_json(folder / "summary.json", {**stamp, **summarized(parts, runs)})
    parts |= take(folder, other, names)
    if not of_second:
        known = [(run["date"], run["seconds"]) for run in runs]
        runs += [run for run in theirs["runs"] if (run["date"], run["seconds"]) not in known]
    write_json(folder / "summary.json", {**stamp, **summarized(parts, runs)})
    for file in (other / "device.json", other / "info.json"):
        if file.exists() and not (folder / file.name).exists():
            shutil.copy2(file, folder)
    join_second_gpu(folder, other)
    return True


def join_second_gpu(folder, other):
    """Adds to a folder what a run that was killed in another one, or in it, left of its second GPU."""
    leftover = other / SECOND_GPU
    if summary_of(leftover)["parts"] and join(folder, leftover):
        # Its run is that of the first one.
        of_first, summary = summary_of(other)["runs"][-1:], summary_of(folder)
        for run in summary["runs"]:
            if [run["date"], run["seconds"]] in [[one["date"], one["seconds"]] for one in of_first]:
                run["parts"] += [part for part in began(leftover) if part not in run["parts"]]
        write_json(folder / "summary.json", summary)
    if folder == other:
        shutil.rmtree(leftover, ignore_errors=True)


def clear(evidence, names):
    """Deletes what is about to be written again, and everything of another commit: nothing may seem to be of this run that is
    not. Files of nobody here, such as cpu.json and the baselines, stay. Returns what the summary keeps of parts and of runs; it says so before
    anything is deleted. Of parts that are resumed it keeps that they were cut short."""
    summary = summary_of(evidence.folder)
    if summary["commit"] != evidence.stamp["commit"]:
        names, summary = PARTS, {"parts": {}, "runs": []}
    resumed = RESUMED if evidence.options.resume and summary["runs"] else ()
    parts = {name: done for name, done in summary["parts"].items() if name not in names or evidence.options.resume}
    evidence.write("summary.json", **summarized(parts, summary["runs"]))
    for old in written(evidence.folder, [name for name in names if name not in resumed]):
        old.unlink()
    return parts, summary["runs"]


def summarized(parts, runs):
    missing = [part for part in PARTS if part not in parts]
    passed = not missing and all(done["passed"] for done in parts.values())
    ran = groups([name for name in PARTS if name in parts])
    in_turn = sum(max(sum(parts[name]["seconds"] for name in lane) for lane in lanes) for lanes in ran)
    return {"passed": passed, "missing": missing, "runs": runs, "in_turn": round(in_turn, 1), "parts": parts}


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


def run_part(evidence, name, failures, write):
    """Runs a part, to which failures of before count. The summary says what it came to, and until then that it was cut short."""
    own = copy.copy(evidence)
    own.failures, own.logged = failures, set()
    start = time.monotonic()

    def came_to(failures, cut_short):
        seconds = round(time.monotonic() - start, 1)
        done = {"date": now(), "seconds": seconds, "passed": not failures, "cut_short": cut_short, "failures": failures, "logs": sorted(own.logged)}
        write({name: done})

    def goes_on():
        came_to([*own.failures, f"{name} was cut short: the script was killed"], True)

    own.has_failed = goes_on
    goes_on()
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
        own.failures.append(f"{name} was cut short: the script was told to stop")
    came_to(own.failures, STOP.is_set())
    evidence.failures += own.failures


def main():
    start, parent = time.monotonic(), os.getppid()
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("EVIDENCE_DIR", str(BUNDLE / "evidence"))
    arguments.add_argument("--out", default=default, help="folder for the JSON files (default: evidence/ of the bundle)")
    arguments.add_argument("--only", metavar="PART,...", help=f"run these parts only: {', '.join(PARTS)}")
    arguments.add_argument("--resume", action="store_true", help="of these, run what no run of this commit has finished in the folder; verify goes on where it stopped")
    arguments.add_argument("--budget", type=float, metavar="SECONDS", help="stop then as if told to; what runs has 10 seconds more to write what it has")
    arguments.add_argument("--join", metavar="FOLDER", type=pathlib.Path, help="run nothing: add what runs of the same commit wrote to FOLDER, for which no GPU is needed")
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
    folder = pathlib.Path(options.out).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    leftover, other = folder / SECOND_GPU, options.join.resolve() if options.join else folder
    locks = {place: lock(place) for place in {folder, leftover, other} if place == folder or os.access(place / LOCK, os.W_OK)}
    for place in [place for place, file in locks.items() if not file]:
        print(f"another call is at work in {place}", file=sys.stderr)
        return 2
    join_second_gpu(folder, folder)
    if options.join:
        if other == folder or join(folder, other):
            print(f"see {folder}")
            return 0
        print(f"--join: {other} is of {told_apart(summary_of(other))}, and {folder} of {told_apart(summary_of(folder))}", file=sys.stderr)
        return 2
    if not WARPTILE.exists():
        print(f"{WARPTILE} is missing: run this from an unpacked bundle (`cargo xtask bundle` makes one)", file=sys.stderr)
        return 2
    for what in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if what != signal.SIGHUP or signal.getsignal(what) != signal.SIG_IGN:  # nohup stays nohup
            signal.signal(what, stop)
    if options.budget is not None:
        over = threading.Timer(options.budget, stop)
        over.daemon = True
        over.start()
    # Python handles signals in the main thread, between two of its steps. Where it waits for another thread, it might not until that has ended.
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        collected = executor.submit(collect, options, folder, names, start)
        while not collected.done():
            concurrent.futures.wait([collected], timeout=AWAKE_SECONDS)
            # Without the run that it belongs to, it would only disturb the next one.
            if folder.name == SECOND_GPU and os.getppid() != parent and not STOP.is_set():
                stop()
        return collected.result()


def collect(options, folder, names, start):
    """Runs the parts. The script's exit code."""
    try:
        evidence = Evidence(folder, options)
    except NoSuchGpu as missing:
        print(missing, file=sys.stderr)
        return 2
    before, asked = summary_of(folder), names
    if options.resume and before["commit"] == evidence.stamp["commit"]:
        names = [name for name in names if not ended(before["parts"].get(name))]
        if not names:
            failed = [name for name in asked if not before["parts"][name]["passed"]]
            print(f"nothing is left to do{'; FAILED: ' + ', '.join(failed) if failed else ''}; see {folder}")
            return 1 if failed else 0
    evidence.needs("nvidia-smi")
    # Nothing else runs yet, and nothing has been deleted.
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        looked = executor.submit(missing_peers, evidence, names)
        evidence.controls = controls(evidence) if "sanitizer" in names and options.second_gpu is None else []
        missing = looked.result()
    if missing and not STOP.is_set():
        print(f"a peer that was named is not there:\n{missing}", file=sys.stderr)
        return 2
    files = device(evidence)
    if STOP.is_set():
        print(f"FAILED  the script was told to stop before anything began; nothing has been deleted; see {folder}")
        return 1
    if before["commit"] == evidence.stamp["commit"] and (options.resume or before["parts"].keys() - names) and differ(before, evidence.stamp):
        print(f"{folder} is of {told_apart(before)}, and this is {told_apart(evidence.stamp)}: another folder is needed", file=sys.stderr)
        return 2
    parts, runs = clear(evidence, names)
    for name, content in files.items():
        evidence.write(name, **content)
    # Failures of parts that go on count, until the parts are run anew.
    carried = {name: [what for what in parts[name]["failures"] if not what.startswith(f"{name} was cut short")] for name in names if name in parts}
    run = {"date": now(), "parts": [], "gpus": 1 if options.second_gpu is None else 2, "seconds": 0.0}
    runs.append(run)
    writing = threading.Lock()

    def write(done):
        """What parts came to, as soon as it is known: the host may be taken away at any time."""
        with writing:
            parts.update(done)
            run["seconds"] = round(time.monotonic() - start, 1)
            evidence.write("summary.json", **summarized(parts, runs))
            evidence.log_commands()

    own_cores, compiling_cores, other_cores = shared_cores(options.second_gpu is not None)
    all_names, elsewhere = names, None
    if options.second_gpu is not None:
        elsewhere = OtherGpu(evidence, names, other_cores, parts)
        os.sched_setaffinity(0, own_cores)
        names = [name for name in names if name in ON_FIRST_GPU]
    write({})
    evidence.compiled = Compiled(evidence, all_names, compiling_cores)
    # It is worth its time only while something else runs.
    evidence.ptx = Ptx(evidence) if "verify" in names else None
    # With a second GPU what takes times runs from the beginning: whatever is prepared would disturb it.
    evidence.prepared = Prepared(evidence, names) if options.second_gpu is None else None
    first = next((name for name in PARTS if name in names), None)
    # A failure before the first part counts as a failure of that part.
    early, evidence.failures = (evidence.failures, []) if first else ([], evidence.failures)

    def in_turn(lane):
        for name in lane:
            if not STOP.is_set():
                run["parts"].append(name)
                run_part(evidence, name, carried.get(name, []) + (early if name == first else []), write)

    for lanes in groups([name for name in PARTS if name in names]):
        if STOP.is_set():
            break
        print(f"=== {'; '.join(', '.join(lane) for lane in lanes)}", flush=True)
        with concurrent.futures.ThreadPoolExecutor(len(lanes)) as executor:
            list(executor.map(in_turn, lanes))

    if evidence.prepared:
        evidence.prepared.end()
    if elsewhere:
        parts |= elsewhere.finish(evidence, run)
    write({})
    if STOP.is_set() and not evidence.failures:
        evidence.failures.append("the script was told to stop")
    evidence.failures += [what for name in asked if name not in all_names for what in parts[name]["failures"]]
    print(f"\n{table(evidence, parts)}")
    print(f"{run['seconds']:.0f} s by the clock, on {run['gpus']} GPU{'s' if run['gpus'] > 1 else ''}")
    for failure in evidence.failures:
        print(f"FAILED  {failure}")
    print(f"{'FAILED' if evidence.failures else 'passed'}; see {evidence.folder}")
    return 1 if evidence.failures else 0


if __name__ == "__main__":
    sys.exit(main())
