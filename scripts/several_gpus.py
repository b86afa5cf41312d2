#!/usr/bin/env python3
"""Measures two GPUs of one host, or four, from inside an unpacked bundle: outputs, gradients and decoding by both engines, PyTorch's context_parallel
and ring-flash-attn beside them, and what takes no times: random problems, captured loops, ranks that are killed and stopped.

    scripts/several_gpus.py OUT [--gpus N] [--budget SECONDS] [--ring-flash-attn FOLDER] [--faults] [--only NAME,...] [--resume] [--list]

Needs only the standard library, and PyTorch for the peers. Steps run one after the other, each with a timeout; one that does not fit into the
budget any more is skipped and named. After each step OUT has rows.json (rows as in evidence/distributed.json), table.txt (rows beside their
goals), steps.json (what ran, how long, how it ended) and logs.tar.gz (all that was printed). Told to stop (Ctrl-C, SIGTERM, SIGHUP), the script has
what runs write what it has; `--resume` does the rest later. Nothing else should use the GPUs. Exit code: 0 if everything ran and passed, 1 if
not, 2 for wrong usage.
"""

import argparse
import functools
import importlib.util
import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time

START, TODAY = time.monotonic(), time.strftime("%Y-%m-%d", time.gmtime())
BUNDLE = pathlib.Path(__file__).resolve().parents[1]
# Seconds that a command has to write what it measured.
PATIENCE = 8
HEADS = "h32/8 d128 bf16"
CAUSAL = f"{HEADS} mask=causal"
K = 1024
# 128k rows in all, 1k to 32k each.
DOCUMENTS = "packed=" + ",".join(f"{n}x{n}" for n in (32 * K, 1 * K, 24 * K, 2 * K, 16 * K, 3 * K, 12 * K, 4 * K, 10 * K, 5 * K, 8 * K, 1 * K, 4 * K, 2 * K, 3 * K, 1 * K))
# By the number of GPUs: efficiencies at so many times 1,024 rows, and what a step of decoding gains with so many keys.
GOALS = {
    2: {
        ("peers", "forward"): {16: 0.93, 32: 0.96, 64: 0.975, 128: 0.985, 256: 0.985},
        ("nccl", "forward"): {16: 0.90, 32: 0.94, 64: 0.965, 128: 0.975, 256: 0.98},
        "both": {16: 0.88, 32: 0.93, 64: 0.96, 128: 0.975, 256: 0.98},
    },
    4: {
        ("peers", "forward"): {16: 0.87, 32: 0.94, 64: 0.965, 128: 0.975, 256: 0.98},
        ("nccl", "forward"): {16: 0.84, 32: 0.91, 64: 0.935, 128: 0.945, 256: 0.95},
        "both": {16: 0.83, 32: 0.90, 64: 0.925, 128: 0.935, 256: 0.94},
    },
}
GAINS = {2: {131072: 1.5, 524288: 1.85, 2097152: 1.93}, 4: {1048576: 3.6}}
# The fewest times that the fastest peer takes.
RATIOS = {2: 1.10, 4: 1.15}


def devices(gpus):
    return ",".join(str(number) for number in range(gpus))


def bench(gpus, engine, problems, effort=(30, 0.8)):
    """Least time of a round: 0.2 s for each GPU by itself, at the same time, and for all together; the fewest rounds are a tenth of the samples."""
    samples, seconds = effort
    words = ["bin/warptile", "bench", "--devices", devices(gpus), "--engine", engine, "--samples", samples, "--seconds", seconds, "--yes"]
    for problem in problems:
        words += ["--shape", problem]
    return [str(word) for word in words]


def verify(engine, count, *more, devices="0,1"):
    return ["bin/warptile", "verify", "--devices", devices, "--engine", engine, "--count", str(count), "--seed", "4242", *more]


def causal(length, backward=False):
    return f"q{length * K} {CAUSAL}" + (" backward" if backward else "")


# A round of 256k takes 5.7 s, of gradients of 128k 4.7 s; the host takes about 0.1 ms a row beside that.
TWO, ONE = (20, 0.8), (10, 0.5)

DROPS = ["--case", "q1024 h8/2 d64 bf16 mask=causal dropout=0.2", "--case", "q2048 h8/4 d128 f16 dropout=0.1"]


def checks(gpus):
    """Checks that take no times, all at once: name, command, seconds that it may take. Those of tests are for two GPUs."""
    all_gpus, count = devices(gpus), 4096 if gpus == 2 else 2000
    found = [
        ("verify-nccl", verify("nccl", count, devices=all_gpus), 150),
        ("verify-peers", verify("peers", count, devices=all_gpus), 150),
        ("verify-backward-nccl", verify("nccl", 500, "--backward", devices=all_gpus), 150),
        ("verify-backward-peers", verify("peers", 1000, "--backward", devices=all_gpus), 150),
        ("dropout-nccl", ["bin/warptile", "verify", "--devices", all_gpus, "--engine", "nccl", *DROPS], 60),
        ("dropout-peers", ["bin/warptile", "verify", "--devices", all_gpus, "--engine", "peers", *DROPS], 60),
    ]
    of_two = [
        ("captures", ["tests/distributed-processes", "--include-ignored", "--nocapture", "two_gpus_whose_captured_loop_ends"], 150),
        ("captures-peers", ["tests/distributed-gpu", "--include-ignored", "--nocapture", "captured"], 120),
        ("lost", ["tests/distributed-processes", "--include-ignored", "--nocapture", "two_gpus_of_which_one_is_lost"], 150),
        ("verify-four-ranks", verify("peers", 500, devices="0,1,0,1"), 150),
        ("verify-backward-four-ranks", verify("peers", 200, "--backward", devices="0,1,0,1"), 150),
        ("over-nccl", ["tests/distributed-processes", "--include-ignored", "two_gpus_over_nccl"], 150),
        ("gpu-tests", ["tests/distributed-gpu", "--include-ignored", "--skip", "captured"], 150),
    ]
    return found + (of_two if gpus == 2 else [])


def steps(options):
    """Name, expected seconds, timeout, command. Expected is what two GPUs take."""
    gpus = options.gpus
    of = functools.partial(bench, gpus)
    peers = [sys.executable, "benches/peers/context_parallel.py", str(gpus)]
    ring = ["--ring-flash-attn", options.ring_flash_attn] if options.ring_flash_attn else []
    sequences = {2: ("b1 q1 k131072", "b1 q1 k524288", "b16 q1 k131072"), 4: ("b1 q1 k131072", "b1 q1 k1048576")}[gpus]
    listed = [
        ("forward-peers-128k", 24, 60, of("peers", [causal(128)], TWO)),
        ("forward-nccl-64k-128k", 36, 80, of("nccl", [causal(64), causal(128)], TWO)),
        ("together", 90, 130, None),
        ("peers-16k-32k", 50, 90, [*peers, "16384", "32768", "--both", *ring]),
        ("backward-peers-128k", 36, 80, of("peers", [causal(128, True)], ONE)),
        ("forward-peers-16k-64k", 18, 45, of("peers", [causal(16), causal(32), causal(64)])),
        ("window-and-documents", 30, 140, of("peers", [f"q{128 * K} {HEADS} mask=window,4095,0", f"{DOCUMENTS} {CAUSAL}"], TWO)),
        ("decode", 38, 70, of("peers", [f"{one} {HEADS}" for one in sequences])),
        ("decode-lead", 17, 40, [*of("peers", [f"{one} {HEADS}" for one in sequences[:2]]), "--lead", "13632"]),
        ("backward-peers-16k-64k", 26, 60, of("peers", [causal(16, True), causal(32, True), causal(64, True)])),
        ("decode-nccl", 7, 30, of("nccl", [f"b1 q1 k131072 {HEADS}"])),
        ("backward-nccl-64k", 20, 45, of("nccl", [causal(64, True)])),
        ("forward-nccl-16k-32k", 12, 30, of("nccl", [causal(16), causal(32)])),
        ("backward-nccl-16k-32k", 14, 30, of("nccl", [causal(16, True), causal(32, True)])),
        ("peers-64k", 22, 50, [*peers, "65536", *ring]),
        ("forward-peers-256k", 38, 140, of("peers", [causal(256)], ONE)),
        ("forward-nccl-256k", 40, 140, of("nccl", [causal(256)], ONE)),
        ("backward-nccl-128k", 36, 80, of("nccl", [causal(128, True)], ONE)),
    ]
    return listed


def tell(process, what):
    """Sends a signal to a process and those it has started."""
    try:
        os.killpg(process.pid, what)
    except ProcessLookupError:
        pass


def libnccl():
    """The NCCL beside PyTorch."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ImportError:
        return None
    for folder in spec.submodule_search_locations if spec else []:
        library = pathlib.Path(folder) / "lib" / "libnccl.so.2"
        if library.exists():
            return str(library)
    return None


class Run:
    def __init__(self, options, together):
        """`together`: the checks that run at once."""
        self.options = options
        self.together = together
        self.bundle = BUNDLE
        self.out = pathlib.Path(options.out).resolve()
        self.logs = self.out / "logs"
        commit = self.bundle / "commit.txt"
        self.commit = commit.read_text().strip() if commit.exists() else "unknown"
        self.rows, self.done, self.stopped = [], [], False
        if options.resume:
            self.resume()
        else:
            shutil.rmtree(self.logs, ignore_errors=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        self.variables = os.environ | {"WARPTILE_ROOT": str(self.bundle), "WARPTILE_BIN": str(self.bundle / "bin/warptile"), "NCCL_NVLS_ENABLE": "0", "PYTHONUNBUFFERED": "1"}
        library = libnccl()
        if library:
            self.variables.setdefault("WARPTILE_LIBNCCL", library)

    def resume(self):
        """Takes what an earlier run has. What did not pass stays until it has run again."""
        if not (self.out / "steps.json").exists():
            return
        before = json.loads((self.out / "steps.json").read_text())
        if before["commit"] != self.commit:
            sys.exit(f"--resume: {self.out} is of commit {before['commit']}, and this bundle of {self.commit}")
        self.done, self.rows = before["steps"], json.loads((self.out / "rows.json").read_text())
        if not self.logs.exists():
            with tarfile.open(self.out / "logs.tar.gz") as archive:
                archive.extractall(self.out)

    def passed(self, name):
        return any(step["name"] == name and step["ended"] == 0 for step in self.done)

    def stop(self, *_):
        """Has what runs write what it has. Nothing more is begun."""
        self.stopped = True

    def left(self):
        return 0 if self.stopped else self.options.budget - (time.monotonic() - START)

    def begin(self, name, words, cores):
        log = (self.logs / f"{name}.log").open("w")
        (self.logs / f"{name}.json").unlink(missing_ok=True)  # of an earlier attempt
        words = list(words)
        if words[0].endswith("warptile") or "warptile" in pathlib.Path(words[0]).name:
            words += ["--json", str(self.logs / f"{name}.json")]
        if not words[0].startswith("/"):
            words[0] = str(self.bundle / words[0])
        log.write(" ".join(words) + "\n")
        log.flush()
        try:
            return subprocess.Popen(words, cwd=self.bundle, stdout=log, stderr=subprocess.STDOUT, env=self.variables, start_new_session=True,
                preexec_fn=cores and (lambda: os.sched_setaffinity(0, cores)))  # fmt: skip
        except OSError as error:
            log.write(str(error))
            return None

    def end(self, process):
        """How it ended: its exit code, or why it has none."""
        if process is None:
            return "did not start"
        ended = process.poll()
        if ended is None:
            ended = "stopped" if self.stopped else "timeout"
            tell(process, signal.SIGINT)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                pass
        # With all that it has started.
        tell(process, signal.SIGKILL)
        process.wait()
        return ended

    def take(self, name, seconds, ended):
        log = (self.logs / f"{name}.log").read_text(errors="replace")
        found, written = [], self.logs / f"{name}.json"
        if written.exists():
            try:
                found = json.loads(written.read_text())
            except ValueError:
                found = []
            found = found.get("rows", [found]) if isinstance(found, dict) else found
        for line in log.splitlines():
            if line.startswith("{"):
                try:
                    found.append(json.loads(line))
                except ValueError:
                    pass
        self.rows = [row for row in self.rows if row["step"] != name]
        self.rows += [row | {"run": f"{TODAY}, {self.commit[:8]}", "step": name} for row in found if "key_len" in row]
        tail = [line for line in log.splitlines() if line.strip()][-4:]
        if ended == 0 and "test result:" in log and not re.search(r"^test result: ok\. [1-9]", log, re.MULTILINE):
            ended = "no test ran"
        step = {"name": name, "seconds": round(seconds, 1), "ended": ended, "tail": tail}
        step["notes"] = [line for line in log.splitlines() if " loops have ended" in line or line.startswith("verified ")]
        if name.startswith("verify") or name.startswith("dropout"):
            step["totals"] = found[:1]
        self.done = [one for one in self.done if one["name"] != name] + [step]
        print(f"[{time.monotonic() - START:5.0f} s] {name}: {ended} after {seconds:.1f} s; {tail[-1][:150] if tail else ''}", flush=True)
        self.write()

    def step(self, name, expected, timeout, words):
        """Runs a step, or all that run at once, unless they have passed."""
        commands = [one for one in (self.together if words is None else [(name, words, timeout)]) if not self.passed(one[0])]
        if not commands:
            return
        if self.left() < 0.7 * expected:
            missing = [each for each, *_ in commands if each not in [one["name"] for one in self.done]]
            self.done += [{"name": each, "ended": "skipped", "expected": expected} for each in missing]
            print(f"[{time.monotonic() - START:5.0f} s] {name}: skipped, {self.left():.0f} s are left of {expected} s", flush=True)
            return self.write()
        begin = time.monotonic()
        until = begin + min(timeout, max(self.left(), 1))
        print(f"[{begin - START:5.0f} s] {name}: {expected} s expected", flush=True)
        # Float64 references on the host take all cores that they have, and tests have bounds.
        cores = sorted(os.sched_getaffinity(0))
        few = len(cores) * 3 // 8
        of = lambda command: None if words else (cores[few:] if command[0] == "bin/warptile" else cores[:few]) or cores
        going = [(each, self.begin(each, command, of(command)), min(until, begin + limit)) for each, command, limit in commands]
        while going:
            for one in list(going):
                each, process, limit = one
                if process is None or process.poll() is not None or time.monotonic() > limit or self.stopped:
                    going.remove(one)
                    ended = self.end(process)
                    self.take(each, time.monotonic() - begin, ended)
            time.sleep(0.05)

    def write(self):
        def put(name, text):
            part = self.out / f"{name}.part"
            part.write_text(text)
            part.replace(self.out / name)

        put("rows.json", json.dumps(self.rows, indent=1))
        put("steps.json", json.dumps({"commit": self.commit, "seconds": round(time.monotonic() - START, 1), "steps": self.done}, indent=1))
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            archive.add(self.logs, "logs")
        (self.out / "logs.tar.gz").write_bytes(packed.getvalue())
        try:
            text = table(self.rows, self.done)
        except Exception as error:  # whatever rows lack, they are kept
            text = f"no table: {type(error).__name__}: {error}\n"
        put("table.txt", text + "".join(f"{step['name']}: {line}\n" for step in self.done for line in step.get("notes", ())))


def table(rows, done):
    lines = ["step engine direction rows one_us each all_us p90 n efficiency goal same error one_error"]
    best, ours = {}, {}
    for row in rows:
        if "failed" in row:
            lines.append(f"{row['backend']} {row.get('direction')} {row['key_len']}: failed: {row['failed']}")
            continue
        kilo, key = row["key_len"] // K, (row.get("engine"), row["direction"])
        plain = f"q{row['key_len']} " in row.get("problem", "") and "window" not in row.get("problem", "")
        gpus = row.get("ranks")
        goal = GOALS.get(gpus, {}).get(key, {}).get(kilo) if plain else None
        if row["direction"] == "decode":
            gain = GAINS.get(gpus, {}).get(row["key_len"])
            goal = gain and gain / gpus
        if "window" in row.get("problem", ""):
            goal = 0.97
        if "packed" in row.get("problem", ""):
            goal = 0.93
        mark = "" if goal is None else ("ok" if row["efficiency"] and row["efficiency"] >= goal else "BELOW")
        lines.append(" ".join(str(word) for word in (
            row["step"] if row["backend"] == "warptile" else row["backend"], *key, row["key_len"], round(row["one_us"] or 0), row.get("each_us"), round(row["median_us"], 1),
            row.get("p90_us"), row.get("samples"), row["efficiency"], goal, mark, row.get("same_bits_again"), row["error"], row.get("one_error"))))  # fmt: skip
        if row["backend"] != "warptile":
            kind = (row["key_len"], row["direction"])
            best[kind] = min(best.get(kind, (1e99, "")), (row["median_us"], row["backend"]))
        elif plain:
            ours[key[0], row["key_len"], key[1]] = row
    lines.append("")
    for engine, length, direction in list(ours):
        forward, backward = ours.get((engine, length, "forward")), ours.get((engine, length, "backward"))
        if direction == "forward" and backward:
            one, all_us = (sum(row[name] for row in (forward, backward)) for name in ("one_us", "median_us"))
            gpus = forward["ranks"]
            goal, found = GOALS.get(gpus, {}).get("both", {}).get(length // K), one / gpus / all_us
            mark = "" if goal is None else "ok" if found >= goal else "BELOW"
            lines.append(f"both {engine} {length}: {one:.0f} us alone, {all_us:.0f} us, efficiency {found:.4f}, goal {goal} {mark}")
            ours[engine, length, "both"] = {"median_us": all_us, "ranks": gpus}
    for (length, direction), (us, name) in sorted(best.items()):
        for engine in ("peers", "nccl"):
            row = ours.get((engine, length, direction))
            if row:
                ratio, fewest = us / row["median_us"], RATIOS.get(row["ranks"], 1)
                lines.append(f"best peer {direction} {length}: {name} {us:.0f} us; {engine} {row['median_us']:.0f} us, ratio {ratio:.3f} {'ok' if ratio >= fewest else f'BELOW {fewest}'}")
    lines += [""] + [f"{step['name']}: {step['ended']} {step.get('seconds', '')}" for step in done]
    return "\n".join(lines) + "\n"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out", help="folder for what is written")
    arguments.add_argument("--gpus", type=int, choices=sorted(GOALS), default=2, help="the first so many GPUs (default 2)")
    arguments.add_argument("--budget", type=float, default=900, help="seconds for all (default 900)")
    arguments.add_argument("--ring-flash-attn", help="the folder that has the package ring_flash_attn")
    arguments.add_argument("--faults", action="store_true", help="kernels that fault on purpose, 20 times")
    arguments.add_argument("--only", default="", help="steps whose names have one of these in them, or checks of `together`")
    arguments.add_argument("--resume", action="store_true", help="keep what passed in OUT, of the same commit, and run the rest")
    arguments.add_argument("--list", action="store_true", help="print the steps")
    options = arguments.parse_args()
    if options.ring_flash_attn:
        options.ring_flash_attn = str(pathlib.Path(options.ring_flash_attn).resolve())
    together = checks(options.gpus)
    if options.faults:
        together.append(("faults", ["tests/distributed-processes", "--include-ignored", "--nocapture", "two_gpus_of_which_one_faults"], 120))
    words = options.only.split(",")
    wanted = lambda name: any(word in name for word in words)
    if not wanted("together"):
        together = [check for check in together if wanted(check[0])]
    listed = [step for step in steps(options) if (together if step[3] is None else wanted(step[0]))]
    if not listed:
        arguments.error(f"--only: no step has {options.only} in its name; --list shows all")
    if options.list:
        for name, expected, timeout, words in listed:
            print(f"{name}: {expected} s, at most {timeout}: {' '.join(words) if words else 'at once ' + ', '.join(check[0] for check in together)}")
        print(sum(step[1] for step in listed), "s expected")
        return 0
    if not (BUNDLE / "bin/warptile").exists():
        arguments.error(f"{BUNDLE / 'bin/warptile'} is missing: run this from an unpacked bundle (`cargo xtask bundle` makes one)")
    run = Run(options, together)
    for what in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if what != signal.SIGHUP or signal.getsignal(what) != signal.SIG_IGN:  # nohup stays nohup
            signal.signal(what, run.stop)
    if shutil.which("nvidia-smi"):
        for name, words in (("nvidia-smi", ["-q"]), ("topology", ["topo", "-m"])):
            try:
                subprocess.run(["nvidia-smi", *words], stdout=(run.logs / f"{name}.log").open("w"), timeout=8, check=False)
            except subprocess.TimeoutExpired:
                pass
    for step in listed:
        run.step(*step)
    run.write()
    shutil.rmtree(run.logs)
    print((run.out / "table.txt").read_text())
    return 1 if any(step["ended"] != 0 for step in run.done) else 0


if __name__ == "__main__":
    sys.exit(main())
