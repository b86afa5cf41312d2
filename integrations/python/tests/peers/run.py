"""Runs the tests of flash-attention through warptile's functions on a GPU, and lists what passes, what is refused, and why.

    git clone https://github.com/Dao-AILab/flash-attention
    python run.py flash-attention --commit $(git rev-parse --short HEAD)

Writes `results.json` and the list in `README.md`, both beside this file. Needs torch with CUDA, triton, einops and pytest. The tests are called
as they are, with the parameters that they are marked with. There are hundreds of thousands of such cases, so of each test a sample is run, the
same one every time: `--share 1` (or less) of the numbers in `TESTS`. `python run.py --list` only writes the list anew.
"""

import argparse
import collections
import contextlib
import datetime
import gc
import hashlib
import importlib.util
import io
import itertools
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import time
import traceback
import types

# How many cases of each test are taken at `--share 1`.
TESTS = {
    "tests/test_flash_attn.py": {
        "test_flash_attn_qkvpacked": 800,
        "test_flash_attn_varlen_qkvpacked": 800,
        "test_flash_attn_output": 2500,
        "test_flash_attn_varlen_output": 2500,
        "test_flash_attn_causal": 480,
        "test_flash_attn_varlen_causal": 900,
        "test_flash_attn_splitkv": 900,
        "test_flash_attn_kvcache": 4000,
        "test_flash_attn_race_condition": 60,
        "test_flash_attn_bwd_overflow": 30,
        "test_flash_attn_bwd_transpose": 32,
        "test_flash_attn_bwd_varlen_overflow": 6,
        "test_flash_attn_deterministic": 240,
        "test_flash_attn_varlen_deterministic": 240,
        "test_flash_attn_varlen_paged_kv_num_splits": 2,
        "test_flash_attn_kvcache_paged_block_table_bounds": 2,
        "test_flash_attn_generator_arg_must_be_none": 1,
    },
    "hopper/test_flash_attn.py": {
        "test_flash_attn_output": 700,
        "test_flash_attn_varlen_output": 900,
        "test_flash_attn_kvcache": 1500,
        "test_flash_attn_cluster": 2,
        "test_flash_attn_race_condition": 24,
        "test_flash_attn_combine": 20,
        "test_flash_attn_varlen_combine_linearize": 1,
        "test_flash3_bw_compatibility": 1,
    },
}

# The results of a case, and their names in the list. `forward`: all but the gradients, which are refused.
RESULTS = {
    "passed": "Passed",
    "forward": "Forward only",
    "refused": "Refused",
    "differs": "Differs by design",
    "failed": "Failed",
    "skipped": "Skipped by the test",
}

# Tests of what warptile does otherwise, and why.
DIFFERS = {
    "test_flash_attn_kvcache_paged_block_table_bounds": "it expects an error for a cache_seqlens on the GPU that exceeds the pages of block_table;"
    " warptile does not wait for the GPU to read it, and its kernels take no more keys than the pages hold",
}

HERE = pathlib.Path(__file__).resolve().parent

# A worker gives its cached memory back when it holds more.
MOST_CACHED = 6 << 30


def load(checkout, path):
    """A test file as a module."""
    spec = importlib.util.spec_from_file_location(path.replace("/", "_")[:-3], checkout / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if hasattr(module, "normalize_flash_attn_S"):
        prepare_for_dropout(module)
    if path.startswith("hopper"):
        # Loops within its tests over what warptile refuses would keep the rest of them from being run: `attention_chunk`, and values
        # of another head size than the keys', which is the last of the list.
        module.DISABLE_LOCAL = True
        module.itertools = types.SimpleNamespace(
            product=lambda first, second: itertools.product(first[-1:] if second == [0] else first, second)
        )
        # It takes 70 GB to simulate load, in each of many processes.
        module.torch = Replaced(module.torch, empty=lambda *size, **options: None)
    return module


def prepare_for_dropout(module):
    """Replaces what the tests of dropout ask of a test file."""
    import names

    def probabilities(signs, q, k, v, query_padding_mask, key_padding_mask, attn_bias, is_dropout, **options):
        """They are never stored. These are those of the reference, so that a comparison with them says nothing."""
        return module.attention_ref(q, k, v, query_padding_mask, key_padding_mask, attn_bias, **options)[1]

    def fraction(mask, *given, **options):
        """The share that is dropped. The tests allow 0.01, which is less than chance where weights are few: the share is `dropout_p` if it
        is not further away than four standard deviations.
        """
        found, p = share_of(mask, *given, **options), names.probabilities[-1]
        deviation = (p * (1 - p) / counted[-1].sum().item()) ** 0.5
        return torch.full_like(found, p) if abs(found.item() - p) <= 4 * deviation else found

    def ones_like(mask):
        # The weights that count are marked in it.
        counted[:] = [torch.ones_like(mask)]
        return counted[0]

    counted, share_of, torch = [], module.get_dropout_fraction, module.torch
    module.normalize_flash_attn_S, module.get_dropout_fraction = probabilities, fraction
    module.torch = Replaced(torch, ones_like=ones_like)


class Replaced:
    """A module with some of its names replaced."""

    def __init__(self, module, **names):
        self.__dict__.update(names)
        self._module = module

    def __getattr__(self, name):
        return getattr(self._module, name)


def grid(function):
    """The parameters of a test: `[(names, values)]`."""
    axes = []
    for mark in getattr(function, "pytestmark", []):
        if mark.name == "parametrize":
            names, values = mark.args
            names = [name.strip() for name in names.split(",")]
            axes.append((names, list(values)))
    return axes


def grid_size(axes):
    size = 1
    for _, values in axes:
        size *= len(values)
    return size


def case_of(axes, index):
    """The parameters of case `index` of a grid."""
    case = {}
    for names, values in axes:
        index, place = divmod(index, len(values))
        value = values[place]
        case.update(zip(names, value if len(names) > 1 else (value,)))
    return case


def sampled(path, name, size, share):
    """Which cases of a test are run: the same each time, and of a smaller share the first of a larger."""
    wanted = min(size, max(1, round(TESTS[path][name] * share)))
    order = random.Random(f"{path} {name}").sample(range(size), min(size, max(wanted, TESTS[path][name])))
    return order[:wanted]


def work(modules, share, only):
    """All cases that are run, as `(path, test, axes, index)`, so that of every beginning each test has its part."""
    cases = []
    for path, module in modules.items():
        for name in TESTS[path]:
            if only and not re.search(only, f"{path}::{name}"):
                continue
            axes = grid(getattr(module, name))
            indices = sampled(path, name, grid_size(axes), share)
            for place, index in enumerate(indices):
                cases.append(((place + 0.5) / len(indices), path, name, axes, index))
    return [case[1:] for case in sorted(cases, key=lambda case: case[:3])]


def shown(value):
    return str(value).removeprefix("torch.")


def reason_of(error):
    """The message without the numbers of one case."""
    text = str(error).splitlines()[0] if str(error) else ""
    text = re.sub(r"\[[\d, ]+\]", "[…]", text)
    return re.sub(r"(?<![\d.])\b\d+\b(?!\.\d)", "N", text)[:200]


def run_case(function, case, refused_gradients):
    """How a case ends, and why."""
    import pytest
    import torch
    import warptile

    refused_gradients.clear()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            function(**case)
            torch.cuda.synchronize()
    except pytest.skip.Exception as skipped:
        return "skipped", str(skipped)
    except (warptile.Unsupported, warptile.NoKernel, warptile.InvalidInput, warptile.InvalidType) as refusal:
        return "refused", f"{type(refusal).__name__}: {reason_of(refusal)}"
    except AssertionError as failure:
        line = traceback.extract_tb(failure.__traceback__)[-1].line or ""
        if refused_gradients and re.search(r"\bd(q|k|v|qkv)\d?\b|grad", line):
            return "forward", reason_of(refused_gradients[0])
        return "failed", line + (f" [{reason_of(failure)}]" if str(failure) else "")
    except pytest.fail.Exception as failure:
        if function.__name__ in DIFFERS:
            return "differs", DIFFERS[function.__name__]
        return "failed", reason_of(failure)
    except AttributeError as missing:
        if "flash_attn_3" in str(missing):
            return "refused", "the operators of torch.ops.flash_attn_3 are private"
        raise
    if refused_gradients:
        return "forward", reason_of(refused_gradients[0])
    return "passed", ""


def worker(arguments):
    """Runs every n-th case from one on, and writes a line before and after each."""
    import torch

    checkout = arguments.checkout
    import names

    names.install(checkout)
    modules = {path: load(checkout, path) for path in TESTS}
    cases = work(modules, arguments.share, arguments.only)
    place, workers = arguments.worker
    end = arguments.until
    with open(arguments.log, "a", buffering=1) as log:
        for number in range(place + arguments.after * workers, len(cases), workers):
            if time.time() > end:
                break
            path, name, axes, index = cases[number]
            case = case_of(axes, index)
            log.write(json.dumps({"start": number}) + "\n")
            function = getattr(modules[path], name)
            start = time.perf_counter()
            for attempt in range(6):
                try:
                    result, why = run_case(function, case, names.refused_gradients)
                except torch.OutOfMemoryError as error:
                    result, why = "failed", f"out of memory: {reason_of(error)}"
                    gc.collect()
                    torch.cuda.empty_cache()
                    time.sleep(1 + attempt)
                    continue
                except Exception as error:
                    result, why = "failed", f"{type(error).__name__}: {reason_of(error)}"
                break
            seconds = time.perf_counter() - start
            log.write(json.dumps({"done": number, "result": result, "why": why, "seconds": round(seconds, 3)}) + "\n")
            if torch.cuda.is_available():
                if torch.cuda.memory_reserved() > MOST_CACHED:
                    gc.collect()
                    torch.cuda.empty_cache()
                try:
                    torch.cuda.synchronize()
                except Exception:
                    sys.exit(3)
    sys.exit(0)


def run_workers(arguments, logs):
    """Starts the workers, and restarts one that a case has ended."""
    until = time.time() + arguments.seconds

    def start(place, after):
        command = [sys.executable, __file__, str(arguments.checkout), "--worker", str(place), str(arguments.workers)]
        command += ["--until", str(until), "--after", str(after), "--log", str(logs[place]), "--share", str(arguments.share)]
        command += ["--only", arguments.only] if arguments.only else []
        with open(logs[place].with_suffix(".txt"), "w") as errors:
            return subprocess.Popen(command, stderr=errors)

    running = {place: start(place, 0) for place in range(arguments.workers)}
    crashes, refused_starts = {}, 0
    while running:
        time.sleep(0.2)
        for place, process in list(running.items()):
            if process.poll() is None:
                continue
            del running[place]
            message = logs[place].with_suffix(".txt").read_text(errors="replace").strip()
            if process.returncode == 0:
                continue
            started = [json.loads(line)["start"] for line in open(logs[place]) if '"start"' in line] if logs[place].exists() else []
            if not started:
                refused_starts += 1
                print(f"worker {place} did not start:\n{message[-3000:]}", file=sys.stderr)
                continue
            crashes.setdefault(started[-1], f"the process ended ({process.returncode}): {message.splitlines()[-1][:160] if message else ''}")
            if time.time() < until:
                running[place] = start(place, (started[-1] - place) // arguments.workers + 1)
    if refused_starts == arguments.workers:
        sys.exit("no worker started")
    return crashes


def gather(arguments, logs, crashes):
    """A row for each test: counts, by parameter as well, and reasons."""
    import names

    names.install(arguments.checkout)
    modules = {path: load(arguments.checkout, path) for path in TESTS}
    cases = work(modules, arguments.share, arguments.only)
    ended = {number: {"result": "failed", "why": why, "seconds": 0} for number, why in crashes.items()}
    for log in logs:
        for line in open(log) if log.exists() else []:
            line = json.loads(line)
            if "done" in line:
                ended.setdefault(line["done"], line)
    rows = {
        f"{path}::{name}": {
            "grid": grid_size(grid(getattr(modules[path], name))),
            "chosen": 0,
            "ran": 0,
            **dict.fromkeys(RESULTS, 0),
            "seconds": 0.0,
            "parameters": {},
            "why": {},
            "failures": [],
        }
        for path, tests in TESTS.items()
        for name in tests
    }
    for number, (path, name, axes, index) in enumerate(cases):
        row = rows[f"{path}::{name}"]
        row["chosen"] += 1
        if number not in ended:
            continue
        end, case = ended[number], case_of(axes, index)
        row["ran"] += 1
        row[end["result"]] += 1
        row["seconds"] += end["seconds"]
        for parameter, value in case.items():
            counts = row["parameters"].setdefault(parameter, {}).setdefault(shown(value), [0] * len(RESULTS))
            counts[list(RESULTS).index(end["result"])] += 1
        if end["why"]:
            why = row["why"].setdefault(end["result"], {})
            why[end["why"]] = why.get(end["why"], 0) + 1
        if end["result"] == "failed":
            row["failures"].append({"case": {key: shown(value) for key, value in case.items()}, "why": end["why"]})
    for row in rows.values():
        row["seconds"] = round(row["seconds"], 1)
    return rows


def listed(report):
    """The list in the README: a table of the tests, and the reasons of what did not pass."""
    lines = [
        f"Run on {report['date']}: {report['gpu']}, driver {report['driver']}, torch {report['torch']}, warptile {report['warptile']} of commit"
        f" {report['commit']}, flash-attention {report['flash_attention']}.",
        "",
        "| Test | Cases | Ran | " + " | ".join(RESULTS.values()) + " |",
        "|---|" + "---:|" * (2 + len(RESULTS)),
    ]
    keys = ("grid", "ran", *RESULTS)
    for name, row in report["tests"].items():
        lines.append(f"| `{name}` | " + " | ".join(f"{row[key]:,}" for key in keys) + " |")
    total = (sum(row[key] for row in report["tests"].values()) for key in keys)
    lines.append("| all | " + " | ".join(f"{count:,}" for count in total) + " |")
    for result in ("refused", "forward", "differs", "failed"):
        cases, tests = collections.Counter(), collections.defaultdict(list)
        for name, row in report["tests"].items():
            for reason, count in row["why"].get(result, {}).items():
                cases[reason] += count
                tests[reason].append(name.split("::")[1].removeprefix("test_") + (" (hopper)" if name.startswith("hopper") else ""))
        if cases:
            lines += ["", f"{RESULTS[result]}, by reason:", "", "| Cases | Reason | Tests |", "|---:|---|---|"]
            lines += [f"| {count:,} | {reason.replace('|', '/')} | {', '.join(tests[reason])} |" for reason, count in cases.most_common()]
    return "\n".join(lines) + "\n"


def compact(report):
    """JSON with a line for each test."""
    tests = ",\n".join(f" {json.dumps(name)}: {json.dumps(row, separators=(',', ':'))}" for name, row in report["tests"].items())
    head = json.dumps({key: value for key, value in report.items() if key != "tests"}, indent=1)
    return head.removesuffix("\n}") + ',\n "tests": {\n' + tests + "\n }\n}\n"


LIST = re.compile(r"(<!-- list: python run.py --list -->\n).*(<!-- end of the list -->)", re.DOTALL)


def with_list(text, report):
    """The README's text with this report's list."""
    made, count = LIST.subn(lambda marks: f"{marks[1]}{listed(report)}{marks[2]}", text)
    if count != 1:
        sys.exit("README.md has no place for the list")
    return made


def write_list(report):
    readme = HERE / "README.md"
    readme.write_text(with_list(readme.read_text(), report))


def driver_version():
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=pathlib.Path, nargs="?", help="flash-attention's repository")
    parser.add_argument("--list", action="store_true", help="only write the list of results.json into README.md anew")
    parser.add_argument("--commit", default="unknown", help="the commit that the package was built of, for the list")
    parser.add_argument("--seconds", type=float, default=200, help="when no more cases are begun")
    parser.add_argument("--workers", type=int, default=min(16, os.cpu_count() or 1), help="processes")
    parser.add_argument("--share", type=float, default=1.0, help="of the cases in TESTS")
    parser.add_argument("--only", help="tests whose file and name this regular expression finds")
    parser.add_argument("--logs", type=pathlib.Path, default=pathlib.Path("peer-logs"), help="a folder for the workers' notes")
    parser.add_argument("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--after", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--log", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.list:
        write_list(json.loads((HERE / "results.json").read_text()))
        return
    if arguments.checkout is None:
        parser.error("flash-attention's repository is missing")
    sys.path.insert(0, str(HERE))
    if arguments.worker:
        worker(arguments)
    arguments.logs.mkdir(exist_ok=True)
    logs = [arguments.logs / f"{place}.jsonl" for place in range(arguments.workers)]
    for log in logs:
        log.unlink(missing_ok=True)
    crashes = run_workers(arguments, logs)

    import torch
    import warptile

    tests = hashlib.sha256(b"".join((arguments.checkout / path).read_bytes() for path in TESTS)).hexdigest()[:12]
    version = re.search(r'__version__ = "([^"]+)"', (arguments.checkout / "flash_attn/__init__.py").read_text())
    report = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "driver": driver_version(),
        "torch": torch.__version__,
        "warptile": warptile.__version__,
        "commit": arguments.commit,
        "flash_attention": f"{version[1] if version else '?'} (sha256 of the tests {tests})",
        "workers": arguments.workers,
        "share": arguments.share,
        "tests": gather(arguments, logs, crashes),
    }
    (HERE / "results.json").write_text(compact(report))
    write_list(report)
    print(listed(report))
    sys.exit(any(row["failed"] for row in report["tests"].values()))


if __name__ == "__main__":
    main()
