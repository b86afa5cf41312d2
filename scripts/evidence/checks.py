"""The parts that compute: whether results are right."""

import concurrent.futures
import re
import shutil
import sys
import time
from collections import Counter

from host import (
    BUNDLE,
    E4M3,
    KEEPS_MEMORY,
    LIMITS,
    OF_GROUPS,
    ON,
    OPERATION_TESTS,
    ORDINAL,
    SIDE_BY_SIDE,
    STOP,
    cubins,
    families,
    gradient_cubins,
    gradient_families,
    last_lines,
    operation,
    operations,
    paged_families,
    pool,
    ptx,
    run,
    warptile,
)

SANITIZER_TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")

# How many of them run at once, and the threads of racecheck. The problems leave most of a GPU empty, and under it a launch takes long: over the
# images of `wgmma` it was not done after 24 s with one thread and two launches of each problem, and took 7 s with eight and one. The other
# tools take their time on the host.
SANITIZERS, RACECHECK_THREADS = 2, 8

# Random cases of each operation in the part `verify`; in the part `tests`, which would compute the same once more; and under a tool of the
# sanitizer, where each takes long.
OPERATION_CASES, TESTED_CASES, SANITIZED_CASES = 2000, 100, 40

# Random compositions of batches of which no bit may differ.
COMPOSITIONS = 10000

# Part of the reason for which a test is ignored if it needs several GPUs; xtask/run.sh looks for the same words.
SEVERAL_GPUS = "NVIDIA GPUs"

# Test executables that take the GPU's memory or measure on it: nothing may run beside them.
ALONE = ("_alone", "_memory")

# Random problems that each family must pass: the longest sequence, and the option that says how many.
RANDOM_PROBLEMS = ((1024, "count"), (4096, "long_count"))

# What verify.json leaves out of the totals of a command.
LEFT_OUT = ("commit", "date", "device", "driver", "asked", "images", "problems", "failures", "launches", "runnable", "repeat")

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

# Shared memory that a CTA of a GPU of compute capability 8.9 can have: compute_89 images are planned within it.
SHARED_KIB_89 = 99

# Tokens that the decoder generates in each sequence, and launches of a captured step.
EXAMPLE_TOKENS, EXAMPLE_REPLAYS = 48, 1000


def tests(evidence):
    """Runs every test by name, including those that need a GPU. Leaves out executables that must run alone, and tests that need several GPUs,
    because `choose_gpus` leaves one visible. Executables run side by side."""
    run_tests(evidence, "tests.json", [path for path in executables() if not path.name.endswith(ALONE)], SIDE_BY_SIDE)


def alone(evidence):
    """The tests that take the GPU's memory or measure on it, one executable after the other."""
    run_tests(evidence, "alone.json", [path for path in executables() if path.name.endswith(ALONE)], 1)


def executables():
    return [path for path in sorted((BUNDLE / "tests").iterdir()) if path.suffix != ".so"]


def run_tests(evidence, file, chosen, workers):
    """Runs executables, several at once; writes every test by name, and which were left out."""
    deadline = time.monotonic() + LIMITS["tests"]

    def one(evidence, executable):
        start = time.monotonic()
        _, listed = run([executable, "--list", "--ignored", "--format=terse"], 60)
        gpu_tests = set(re.findall(r"^(.+): test$", listed, re.MULTILINE))
        # They do not run here, and say what they need.
        _, ignored = run([executable, "--exact", *sorted(gpu_tests)], 60) if gpu_tests else (0, "")
        needs = dict(re.findall(r"^test (.+?)(?: - should panic)? \.\.\. ignored, (.+)$", ignored, re.MULTILINE))
        without = [{"executable": executable.name, "test": name, "needs": need} for name, need in needs.items() if SEVERAL_GPUS in need]
        gpu_tests -= {row["test"] for row in without}
        skipped = [word for row in without for word in ("--skip", row["test"])]
        cases = {"QUICKCHECK_TESTS": str(TESTED_CASES), **KEEPS_MEMORY}
        command = [executable, "--include-ignored", "--show-output", "--exact", *skipped]
        code, output = run(command, max(1, deadline - time.monotonic()), cases)
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
        if executable == OPERATION_TESTS:
            invariance(evidence, output)
        seconds = round(time.monotonic() - start, 1)
        print(f"{executable.name}: {sum(row['passed'] for row in rows)} of {len(rows)} passed in {seconds} s, {len(without)} left out", flush=True)
        return executable.name, seconds, rows, without

    rows, left_out, times = [], [], {}
    for name, seconds, of_executable, without in pool(evidence, one, chosen, workers):
        rows += of_executable
        left_out += without
        times[name] = seconds
        evidence.write(file, seconds=times, rows=rows, left_out=left_out)
    if not any(row["gpu"] for row in rows):
        evidence.fail(f"{file}: no GPU test ran")


def invariance(evidence, output):
    """How many random compositions of batches were computed beside each of their sequences alone, with keys cut at fixed places. The test
    ends at the first bit that differs."""
    found = re.search(r"^(\d+) compositions, no bit differs$", output, re.MULTILINE)
    if not found or int(found[1]) < COMPOSITIONS:
        evidence.fail(f"batch invariance: {found[0] if found else 'the test did not say that no bit differs'}")
    evidence.write("invariance.json", compositions=int(found[1]) if found else 0, differing_bits=0 if found else None)


def verify(evidence):
    """Random problems for every family, and in pages for those that take them; random cases of every operation; the images that
    ran, by name, with their hashes. One family after the other: each uses all cores, and streams of one process share the GPU
    better than processes do. The operations' cases, computed by two threads each, run beside them, and so does what has the driver
    compile every image of PTX: families that have none are first."""
    options = evidence.options
    # By name; of an earlier run what is in the folder, until all of it is computed.
    results = {}

    def kept(name, count):
        """Whether an earlier run has computed all of it, without a failure. One stays a failure."""
        found = evidence.read(f"verify-{name}.json")
        if found:
            results[name] = found
        if found.get("failed"):
            evidence.fail(f"verify {name}: {found['failed']} failed before")
        return {"asked": count, "seed": options.seed, "cut_short": False, "failed": 0}.items() <= found.items()

    def write():
        rows = [{key: value for key, value in one.items() if key not in LEFT_OUT} for one in results.values()]
        evidence.write("verify.json", rows=rows)
        evidence.write("images.json", images=images_of(results.values()))

    def keep(name, **result):
        evidence.write(f"verify-{name}.json", **result)
        results[name] = result
        write()

    def cases(evidence, family):
        return operation(evidence, f"verify {family}", family, OPERATION_CASES, LIMITS["verify"])

    def keep_operations(wait):
        """Keeps what those came to that have ended, or waits for all."""
        for family, computed in of_operations[:]:
            if not wait and not computed.done():
                continue
            of_operations.remove((family, computed))
            code, _, ran = computed.result()
            if code and STOP.is_set():
                continue
            failed = OPERATION_CASES if code else 0
            totals = {"count": OPERATION_CASES, "passed": OPERATION_CASES - failed, "failed": failed}
            images = {name: {"sha256": sha256, "persistent": False, "drew_tiles": 0, **totals} for name, sha256 in ran.items()}
            keep(family, family=family, max_len=None, asked=OPERATION_CASES, seed=options.seed, cut_short=False, **totals, images=images)

    beside = concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE)
    of_operations = [(family, beside.submit(cases, evidence, family)) for family in operations(evidence) if not kept(family, OPERATION_CASES)]
    jobs = [(family, *of_length, []) for family in families(evidence) for of_length in RANDOM_PROBLEMS]
    jobs += [(family, *RANDOM_PROBLEMS[0], ["--paged"]) for family in paged_families(evidence)]
    jobs += [(family, *of_length, ["--backward"]) for family in gradient_families(evidence) for of_length in RANDOM_PROBLEMS]
    late = {family for family, _ in ptx(evidence)}
    jobs.sort(key=lambda job: job[0] in late)
    if not paged_families(evidence):
        evidence.fail("verify: no image takes keys and values in pages")
    for family, max_len, how_many, kind in jobs:
        name, count = "-".join([family, *(option.lstrip("-") for option in kind), str(max_len)]), getattr(options, how_many)
        if kept(name, count):
            continue
        arguments = ["verify", *ON, "--kernel", family, "--max-len", max_len, *kind, "--count", count, "--seed", options.seed]
        what = f"verify {name}".replace("-", " ")
        _, output, result = warptile(evidence, what, arguments, LIMITS["verify"], variables=KEEPS_MEMORY)
        print(last_lines(output, 1), flush=True)
        if result:
            kinds = {"paged": "--paged" in kind, "gradients": "--backward" in kind, "asked": count}
            of_all = {key: result[key] for key in result if key not in ("date", "driver", "device")}
            keep(name, family=family, max_len=max_len, **kinds, **of_all)
        keep_operations(wait=False)
    evidence.ptx.wait(evidence)
    keep_operations(wait=True)
    write()
    images = images_of(results.values())
    for name in sorted(evidence.images.keys() - images.keys()):
        evidence.fail(f"verify: {name} ran no problem")
    for name, image in images.items():
        if image["persistent"] and not image["drew_tiles"]:
            evidence.fail(f"verify: {name} drew no tile")
    for name, result in results.items():
        few = result.get("few_multiprocessors", 0)
        if any(image["persistent"] for image in result["images"].values()) and few < FEW_MULTIPROCESSORS * result["count"]:
            what = f"verify {name}".replace("-", " ")
            evidence.fail(f"{what}: only {few} of {result['count']} problems were planned for few multiprocessors")


def images_of(results):
    """What each image did in all of these."""
    images = {}
    for result in results:
        for name, image in result["images"].items():
            known = images.setdefault(name, {"sha256": image["sha256"], "persistent": image["persistent"], "passed": 0, "failed": 0, "drew_tiles": 0})
            for key in ("passed", "failed", "drew_tiles"):
                known[key] += image[key]
    return images


def launches(evidence):
    """Every kernel launched hundreds of times in the same buffers, waited for in four ways."""

    def one(evidence, sync):
        arguments = ["verify", *ON, "--each-kernel", "--repeat", LAUNCHES, "--sync", sync]
        _, output, result = warptile(evidence, f"launches {sync}", arguments, LIMITS["launches"])
        print(last_lines(output, 1), flush=True)
        return sync, result

    rows = []
    for sync, result in pool(evidence, one, SYNCS):
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
    _, output, result = warptile(evidence, "tile", ["verify", *ON, "--tile"], LIMITS["tile"])
    print(last_lines(output, 1), flush=True)
    rows = result["tiles"] if result else []
    computed = {row["image"] for row in rows if row["passed"] or row["fault"]}
    # A tile has rows of one head, and keys in the rows' type.
    takers = {name for name, image in evidence.images.items() if E4M3 not in image["features"] and image["schedule"] != OF_GROUPS}
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
    within the shared memory of such a GPU. An image whose tiles do not hold a problem has no row of it, and a family has none in an element
    type that it has no images for."""
    takers = {(image["family"], image["target"], image["element"]) for image in evidence.images.values() if E4M3 not in image["features"]}
    jobs = [(family, target, []) for family, target in cubins(evidence)]
    jobs += [(family, target, ["--shared-kib", SHARED_KIB_89]) for family, target in ptx(evidence) if target == "compute_89"]
    jobs = [(*job, element) for job in jobs for element in ("f16", "bf16") if (*job[:2], element) in takers]

    def one(evidence, job):
        family, target, within, element = job
        arguments = ["verify", *ON, "--kernel", family, "--target", target, *within]
        for problem in ACCEPTANCE:
            arguments += ["--case", f"{problem} {element} seed=7"]
        what = f"acceptance {family} {target} {element}"
        _, output, result = warptile(evidence, what, arguments, LIMITS["acceptance"])
        print(last_lines(output, 1), flush=True)
        of_job = {"family": family, "target": target, "shared_kib": SHARED_KIB_89 if within else None}
        return [of_job | row for row in result["problems"] if row["applicable"]] if result else []

    rows = []
    for of_job in pool(evidence, one, jobs):
        rows += of_job
        evidence.write("acceptance.json", every_image=True, rows=rows)


def examples(evidence):
    """The examples, which compare a GPU's results themselves: tokens of a small decoder with those of the CPU and of a plain float64
    loop, and a captured step with ordinary calls."""
    jobs = (
        # The GPU is asked for by number: without it the decoder would be content with the CPU.
        ("decoder", ["--tokens", EXAMPLE_TOKENS, *ON], r"^(\S.*?) +\d+ +\d+  the same$", 2),
        ("captured_step", ["--replays", EXAMPLE_REPLAYS, "--device", ORDINAL], rf"^({EXAMPLE_REPLAYS} replays with \d+ sequences, 0 of them differ)$", 1),
    )
    rows = []
    for name, arguments, pattern, wanted in jobs:
        code, output = run([BUNDLE / "bin/examples" / name, *arguments], LIMITS["examples"])
        evidence.log(f"example-{name}", output)
        if STOP.is_set():
            return
        found = re.findall(pattern, output, re.MULTILINE)
        passed = code == 0 and len(found) == wanted
        if not passed:
            evidence.fail(f"example {name}: exit code {code}: {last_lines(output)}")
        rows.append({"example": name, "arguments": [str(word) for word in arguments], "exit_code": code, "passed": passed, "same": found})
        print(f"example {name}: {'; '.join(found) or 'nothing the same'}", flush=True)
        evidence.write("examples.json", rows=rows)


def tool_command(tool):
    return ["compute-sanitizer", "--tool", tool, "--error-exitcode", "86"]


def errors_of(output):
    # Without a summary the count stays empty, and the part fails. The last one counts: one of errors that were not printed comes before it.
    counts = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?)", output)
    return int(counts[-1]) if counts else None


def controls(evidence):
    """A broken kernel under each tool of compute-sanitizer, which must report it: before all parts, as beside six other processes with a GPU
    such a kernel once ended with an error of the driver and without a report (initcheck, CUDA 13). A tool that reports nothing is given its
    kernel once more, by itself; `attempts` says so."""

    def one(evidence, tool, attempt=1):
        code, output = run([*tool_command(tool), sys.executable, BUNDLE / "scripts/controls.py", tool], LIMITS["control"])
        evidence.log(f"control-{tool}" + (f"-{attempt}" if attempt > 1 else ""), output)
        errors = errors_of(output)
        caught = bool(errors) and f"{tool}: launched" in output
        return {"tool": tool, "errors": errors, "caught": caught, "attempts": attempt, "exit_code": code, "last_line": last_lines(output, 1)}

    if not shutil.which("compute-sanitizer"):
        return []
    rows = list(pool(evidence, one, SANITIZER_TOOLS, len(SANITIZER_TOOLS)))
    return [row if row["caught"] else one(evidence, row["tool"], attempt=2) for row in rows]


def sanitizer(evidence):
    """The four tools of compute-sanitizer over two problems of every image that was compiled for this GPU, gradients among them, and over random
    cases of the operations; and whether they reported a broken kernel each, before."""
    if not evidence.needs("compute-sanitizer"):
        return
    every_image, gradients = evidence.images | evidence.operations, gradient_cubins(evidence)

    def one(evidence, job):
        tool, family, target = job
        threads = RACECHECK_THREADS if tool == "racecheck" else 1
        arguments = ["verify", *ON, "--each-kernel", "--once", "--kernel", family, "--target", target, "--threads", threads]
        arguments += ["--backward"] if (family, target) in gradients else []
        what = f"{tool} {family} {target}"
        code, output, result = warptile(evidence, what, arguments, LIMITS["sanitizer"], before=tool_command(tool))
        row = {"tool": tool, "family": family, "target": target, "errors": errors_of(output), "exit_code": code}
        if row["errors"] != 0 and code == 0:
            evidence.fail(f"{what}: {last_lines(output, 1)}")
        if result:
            images = [name for name, image in every_image.items() if (image["family"], image["target"]) == (family, target)]
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

    for row in evidence.controls:
        if not row["caught"]:
            evidence.fail(f"{row['tool']} did not catch its broken kernel: exit code {row['exit_code']}: {row['last_line']}")
    # What takes longest begins first: racecheck, and the family with the most images.
    images = Counter((image["family"], image["target"]) for image in every_image.values())
    jobs = [(tool, *of) for of in cubins(evidence) + gradients for tool in SANITIZER_TOOLS]
    jobs.sort(key=lambda job: (job[0] != "racecheck", -images[job[1:]]))
    jobs += [(tool, family) for family in operations(evidence) for tool in SANITIZER_TOOLS]
    rows = []
    for row in pool(evidence, any_job, jobs, SANITIZERS):
        rows.append(row)
        evidence.write("sanitizer.json", controls=evidence.controls, rows=rows)
