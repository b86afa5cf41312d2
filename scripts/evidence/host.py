"""What every part works with: the folder that is filled, commands that are run, and what the GPU and the program are."""

import concurrent.futures
import contextlib
import datetime
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time


BUNDLE = pathlib.Path(__file__).resolve().parent.parent.parent

WARPTILE = BUNDLE / "bin" / "warptile"

# The GPU that is measured, to every command: `choose_gpus` leaves no other visible. And the option of the program that names it.
ORDINAL = 0
DEVICE = f"cuda:{ORDINAL}"
ON = ("--device", DEVICE)

# Tests of the operations other than forward: random cases of an operation are in the module of its family's name.
OPERATION_TESTS = BUNDLE / "tests/attention-gpu"

# The feature of images that take keys and values in pages.
PAGED = "paged keys"

# The feature of images that read keys and values in 8 bits, and no others.
E4M3 = "keys and values in e4m3"

# The schedule of images that take only tiles of several heads.
OF_GROUPS = "persistent, tiles of all heads that share keys"

# The most seconds one command may take. They are for what hangs: no part takes as long as its commands might.
LIMITS = {"tests": 400, "verify": 300, "launches": 400, "tile": 400, "acceptance": 400, "sanitizer": 200, "control": 30, "ncu": 60, "bench": 240}
LIMITS |= {"peers": 400, "default": 60, "errors": 450, "decode": 530, "few": 200, "backward": 120, "backward-errors": 120, "options": 200, "options-errors": 150, "prepare": 200, "examples": 120, "tune": 300, "compile": 400, "start": 30, "find": 120}

# Seconds that a command has to write what it measured when its time is over or the script is told to stop.
LAST_SECONDS = 10

# Processes of one part at a time: one computes on the host while another has the GPU.
SIDE_BY_SIDE = 2

# For the allocator of glibc, where thousands of problems are computed one after the other: memory that one leaves stays the process's, for
# the next one. Given back and asked for again, clearing and mapping it took a quarter of the host's time.
KEEPS_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 32), "MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TOP_PAD_": str(32 << 20)}

# A log is kept as it is up to this size; beyond it its beginning and its end are.
LOG_BYTES = 32 << 10


class Evidence:
    """The folder that is filled, and what went wrong so far."""

    def __init__(self, folder, options):
        self.folder = folder
        self.options = options
        self.gpu, self.second_gpu = choose_gpus(options)
        self.failures, self.logged = [], set()
        self.has_failed = lambda: None  # called after each failure
        self.stamp = {"commit": commit(), "date": now()}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "logs").mkdir(exist_ok=True)

    def write(self, name, **content):
        """A JSON file that says what it is about: commit, date, GPU and driver, then `content`."""
        write_json(self.folder / name, {**self.stamp, **content})

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
        self.logged.add(name)

    def log_commands(self):
        """Which command ran when, in seconds since the script began: what waits for what is seen here."""
        lines = [f"{start - BEGAN:7.1f} {end - BEGAN:7.1f} {code:4} {words[:300]}" for start, end, code, words in sorted(HISTORY)]
        (self.folder / "logs" / "commands.log").write_text("\n".join(["  begin     end code", *lines, ""]))

    def fail(self, what):
        """Records a failure. None is one of commands that were told to stop."""
        if STOP.is_set():
            return
        print(f"FAILED  {what}", flush=True)
        self.failures.append(what)
        self.has_failed()

    def needs(self, tool):
        """Whether a tool is there; a part that needs it fails without it."""
        if shutil.which(tool):
            return True
        self.fail(f"{tool} is not on the PATH")
        return False


def write_json(path, content):
    """All of it or nothing: the process may be killed at any time."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=2) + "\n")
    part.replace(path)


class NoSuchGpu(Exception):
    """A GPU was asked for by a number that none has."""


def choose_gpus(options):
    """Makes `--gpu` the only GPU that the commands to come see: programs, tests and peers take the first one each. Numbers, those in
    CUDA_VISIBLE_DEVICES too, are nvidia-smi's, to the driver as well: by itself it counts from the fastest GPU. Returns what names the GPU to
    nvidia-smi, and what names `--second-gpu` to nvidia-smi and to CUDA_VISIBLE_DEVICES, if there is one. On a host with one GPU, and where
    nvidia-smi lists none, the first GPU is left as it is."""
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    code, output = run(["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"], 60)
    uuids = dict(re.findall(r"^(\d+), *(GPU-\S+)$", output, re.MULTILINE)) if code == 0 else {}
    if len(uuids) < 2 and options.gpu == 0 and options.second_gpu is None:
        return "0", None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    known = [word.strip() for word in visible.split(",")] if visible else list(uuids)

    def named(gpu):
        if known and not 0 <= gpu < len(known):
            raise NoSuchGpu(f"there is no GPU {gpu}; those that can be seen: {', '.join(known)}")
        word = known[gpu] if known else str(gpu)
        # A UUID may be cut short in the variable.
        return uuids.get(word) or next((uuid for uuid in uuids.values() if uuid.startswith(word)), word)

    first, second = (None if gpu is None else named(gpu) for gpu in (options.gpu, options.second_gpu))
    os.environ["CUDA_VISIBLE_DEVICES"] = first
    return first, second


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

# When the script began, and the commands that have ended: begin, end, exit code and words.
BEGAN, HISTORY = time.monotonic(), []


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


class Command:
    """A command that has begun. `variables`: of its environment; `has_input`: whether it reads its standard input, which `finish` gives it."""

    def __init__(self, command, variables=(), has_input=False):
        self.words, self.start, self.process, self.missing = [str(word) for word in command], time.monotonic(), None, None
        if STOP.is_set():
            return
        try:
            self.process = subprocess.Popen(
                self.words,
                stdin=subprocess.PIPE if has_input else None,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=environment() | dict(variables),
                start_new_session=True,
            )
        except FileNotFoundError as missing:
            self.missing = str(missing)
            return
        RUNNING.add(self.process)
        if STOP.is_set():
            tell(self.process, signal.SIGINT)

    def runs(self):
        return self.process is not None and self.process.poll() is None

    def finish(self, limit, text=None):
        """Exit code (124 after the limit, 127 if there is no such program, 130 if the script was told to stop) and output. `text`: its
        standard input."""
        if self.missing is not None:
            return 127, self.missing
        if self.process is None:
            return 130, "not begun: the script was told to stop"
        late = False
        try:
            for seconds, what in ((limit, signal.SIGINT), (LAST_SECONDS, signal.SIGKILL), (None, None)):
                try:
                    output, _ = self.process.communicate(text, timeout=seconds)
                    break
                except subprocess.TimeoutExpired:
                    late, text = True, None
                    tell(self.process, what)
        finally:
            RUNNING.discard(self.process)
        code = 124 if late else self.process.returncode
        HISTORY.append((self.start, time.monotonic(), code, " ".join(self.words).replace(f"{BUNDLE}/", "")))
        return code, output


def run(command, limit, variables=(), text=None):
    """Exit code and output of a command, as `Command.finish` has them."""
    return Command(command, variables, text is not None).finish(limit, text)


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
    """Yields the results of `work` on each job, several at once, in the order of the jobs; none of those that were told to stop."""

    def whole(job):
        result = work(evidence, job)
        return [] if STOP.is_set() else [result]

    with concurrent.futures.ThreadPoolExecutor(workers) as executor:
        for results in executor.map(whole, jobs):
            yield from results


def device(evidence):
    """Looks up device, driver and clocks, and the catalog with the hash of every image, which every part uses. Returns what device.json and
    info.json say, and writes nothing: it may be for nothing."""
    _, _, info = warptile(evidence, "info", ["info"], 60)
    fields = (
        "name,driver_version,compute_cap,vbios_version,pstate,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,"
        "power.limit,power.draw,temperature.gpu,ecc.mode.current,memory.total"
    )
    code, output = run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "-i", evidence.gpu], 60)
    values = dict(zip(fields.split(","), [value.strip() for value in output.strip().split(",")]))
    if code != 0:
        evidence.fail(f"nvidia-smi: {last_lines(output)}")
        values = {"error": last_lines(output)}
    tools = {}
    for tool in ("compute-sanitizer", "ncu"):
        code, output = run([tool, "--version"], 60)
        tools[tool] = last_lines(output, 1) if code == 0 else None
    evidence.stamp |= {"device": values.get("name", "unknown"), "driver": values.get("driver_version", "unknown")}
    info = info or {"images": []}
    here = [image for image in info["images"] if fits(image, info)]
    evidence.images = {image["image"]: image for image in here if image["role"] == "forward"}
    evidence.operations = {image["image"]: image for image in here if image["role"] != "forward"}
    catalog = {key: info[key] for key in info if key not in ("date", "driver")}
    return {"device.json": {"gpu": values, "tools": tools}, "info.json": {**catalog, "cuda": info.get("driver")}}


def fits(image, info):
    """Whether the GPU runs an image: it was compiled for it, and a CTA can have the shared memory that it needs."""
    found = [device for device in info.get("devices", []) if device["ordinal"] == ORDINAL]
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


def gradient_families(evidence):
    """Families of which `verify --backward` computes random problems."""
    roles = [f"{of} gradients" for of in ("all", "key", "query", "bias")]
    return sorted({image["family"] for image in evidence.operations.values() if image["role"] in roles})


def operations(evidence):
    """Families of the operations other than forward that have random tests of their own. The others are steps of gradients and of forward."""
    _, listed = run([OPERATION_TESTS, "--list", "--format=terse"], 60)
    tested = set(re.findall(r"^(\w+)::random", listed, re.MULTILINE))
    return sorted({image["family"] for image in evidence.operations.values()} & tested - set(gradient_families(evidence)))


def operation(evidence, what, family, cases, limit, before=()):
    """Random cases of an operation, by its tests: exit code, output, and the hashes of the images that computed all of them rightly.
    A failure is recorded."""
    # With two threads racecheck "failed to track a kernel launch", and came to no end.
    threads = 1 if before else 2
    command = [*before, OPERATION_TESTS, f"{family}::random", "--include-ignored", "--nocapture", f"--test-threads={threads}"]
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
    return compiled(evidence.images)


def gradient_cubins(evidence):
    """Those of gradients."""
    gradients = gradient_families(evidence)
    return [(family, target) for family, target in compiled(evidence.operations) if family in gradients]


def compiled(images):
    return sorted({(image["family"], image["target"]) for image in images.values() if image["target"].startswith("sm_")})


def ptx(evidence):
    """(family, target) of the images that the driver compiles."""
    images = evidence.images.values()
    return sorted({(image["family"], image["target"]) for image in images if image["target"].startswith("compute_")})
