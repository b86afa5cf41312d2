//! `benches/peers`, as far as it needs no GPU: problems as the peers read them, and in which order what is measured is started.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;

const CHECKS: &str = r##"
from problem import Problem

def refused(line):
    try:
        Problem(line)
    except ValueError:
        return True

# As in `what_no_query_sees_need_not_be_read` of `warptile bench`: keys and values of 8 heads of 64 entries of 2 bytes.
row = 2 * 8 * 64 * 2
def read(line):
    problem = Problem(line)
    return problem.kv_bytes, problem.is_reading
assert read("b2 q1 k1000 h8 d64 f16") == (2 * 1000 * row, True)
assert read("b3 q1 k1000 h64/8 d64 f16 mask=window,127,0 sinks") == (3 * 128 * row, True)
assert read("b3 q1 k40 h8 d64 f16 pages=16 lengths=40,0,7") == (47 * row, True)
assert read("b1 q512 k8192 h32/8 d64 f16 mask=causal") == (8192 * row, False)
assert not Problem("b1 q8 k8 h8 d64 f16").is_reading

# As many bytes rotate as in `launches_that_read_rotate_through_more`.
assert Problem("b1 q1 k1024 h32/4 d128 bf16").copies(139 << 30) == 256
assert Problem("b16 q1 k8192 h64/8 d64 bf16 mask=window,127,0 sinks").copies(139 << 30) == 128
assert Problem("b16 q1 k8192 h64/8 d64 bf16 mask=window,127,0 sinks").copies(32 << 30) == 31
assert Problem("b2 q512 k512 h8 d64 bf16").copies(0) == 64

# And a graph has as many calls.
assert Problem("b1 q1 k1024 h32/4 d128 bf16").calls(256) == 256
assert Problem("b16 q1 k8192 h64/8 d64 bf16 mask=window,127,0 sinks").calls(31) == 256
assert Problem("b16 q1 k8192 h32/8 d128 bf16").calls(2) == 16
assert Problem("b16 q1 k131072 h32/8 d128 bf16").calls(2) == 2
assert Problem("b2 q512 k512 h8 d64 bf16").calls(64) == 64

# Row i of 16 sees i + 17 of the 32 keys: 392 pairs.
assert Problem("b2 q16 k32 h4/2 d32 f32 mask=causal").flops == 4 * 2 * 4 * 392 * 32
assert Problem("b2 q3 k3 h1 d8 f32 mask=causal").visible_pairs == 2 * 6
assert Problem("b1 q2 k5 h1 d8 f32 mask=window,2,0").seen(1, 5) == (2, 5)

# The peers' queries have what the program has as another scale.
assert Problem("b1 q8 k8 h8 d64 f16 scale=0.25").factor == 2 and Problem("b1 q8 k8 h8 d64 f16").factor == 1
assert refused("b1 q8 k8 h8 d64 f16 scale=0.25 backward") and refused("b1 q8 k8 h8 d64 f16 scale=x")

# The program gets the lengths in numbers; they are the same whenever the line is read.
ragged = Problem("b64 q1 k8192 h32/8 d128 bf16 pages=16 lengths=ragged")
assert ragged.lengths == Problem(ragged.line).lengths and len(set(ragged.lengths)) > 50
assert min(ragged.lengths) >= 1024 and max(ragged.lengths) <= 8192
assert ragged.for_warptile == f"b64 q1 k8192 h32/8 d128 bf16 pages=16 lengths={','.join(map(str, ragged.lengths))}"
assert ragged.pages() == sum(-(-length // 16) for length in ragged.lengths)

# A key has 16 words: pages of 4 rows are 64 words, two blocks. The second sequence ends in its first block;
# the window sees keys 6 to 8 alone, in the second and third pages.
paged = Problem("b2 q1 k12 h1 d64 f16 pages=4 lengths=12,1")
assert paged.read_starts([[3, 0, 2], [1, 9, 9]], 32) == [192, 224, 0, 32, 128, 160, 64]
window = Problem("b2 q1 k9 h1 d64 f16 mask=window,2,0 pages=4")
assert window.read_starts([[0, 1, 2], [5, 4, 3]], 32) == [96, 128, 288, 192]
dense = Problem("b2 q1 k8 h1 d64 f16 mask=window,0,0")
assert dense.read_starts(None, 16) == [112, 240]
try:
    assert not paged.read_starts([[3, 0, 2], [1, 9, 9]], 128)
except RuntimeError:
    pass

# Of keys and values in one tensor [pages or sequences, 2, rows, words of a row], each word that some query sees is read once, and besides
# only what fills the last blocks of a sequence, or the first ones of a window.
def read_once(line, table, words):
    problem = Problem(line)
    assert problem.interleaved and problem.for_warptile.startswith(line.split(" lengths=")[0])
    row, rows = problem.row_bytes // 8, problem.page_rows or problem.key_len
    starts = problem.read_starts(table, words)
    blocks = [begin + start for start in starts for begin in (0, problem.unit_words)]
    covered = [word for block in blocks for word in range(block, block + words)]
    assert len(set(covered)) == len(covered), line
    seen = set()
    for sequence, (first, end) in enumerate(problem.read_ranges()):
        for key in range(first, end):
            place, inside = (table[sequence][key // rows], key % rows) if table else (sequence, key)
            for which in (0, 1):
                begin = ((2 * place + which) * rows + inside) * row
                seen |= set(range(begin, begin + row))
    ends = sum(2 * ((end * row) % words != 0) + 2 * ((first * row) % words != 0) for first, end in problem.read_ranges())
    assert seen <= set(covered) and len(covered) - len(seen) <= ends * (words - 1), line
read_once("b2 q1 k12 h1 d64 f16 layout=interleaved", None, 32)
read_once("b2 q1 k12 h1 d64 f16 layout=interleaved lengths=12,7", None, 32)
read_once("b2 q1 k12 h1 d64 f16 layout=interleaved pages=4", [[3, 0, 5], [1, 4, 2]], 32)
read_once("b3 q1 k12 h1 d64 f16 layout=interleaved pages=4 lengths=12,1,7", [[3, 0, 5], [1, 9, 9], [4, 2, 9]], 64)
read_once("b2 q1 k9 h1 d64 f16 mask=window,2,0 layout=interleaved pages=4", [[0, 1, 2], [5, 4, 3]], 32)
for line in ("b64 q1 k8192 h32/8 d128 bf16 layout=interleaved pages=16 lengths=ragged", "b2 q512 k512 h8 d64 bf16 layout=interleaved"):
    apart = Problem(line.replace(" layout=interleaved", ""))
    # The same keys and values; what makes tensors for whole sequences makes one of each.
    assert Problem(line).key_lengths() == apart.key_lengths() and Problem(line).bytes() == apart.bytes()
    assert Problem(line).on_cache
assert " d128 bf16 layout=interleaved pages=16 lengths=1,2" in Problem("b2 q1 k8 h1 d128 bf16 layout=interleaved pages=16 lengths=1,2").for_warptile
in_runs = Problem("b2 q1 k80 h1 d64 f16 layout=interleaved pages=4 runs=8 lengths=80,7")
assert in_runs.runs == 8 and Problem("b2 q1 k80 h1 d64 f16 pages=4").runs == 1
assert " pages=4 runs=8 lengths=80,7" in in_runs.for_warptile
try:
    Problem("b1 q1 k8 h1 d128 bf16 runs=8")
    raise AssertionError("it has no pages")
except ValueError as error:
    assert "runs of pages" in str(error)
try:
    Problem("b1 q1 k8 h1 d128/64 bf16 layout=interleaved")
    raise AssertionError("it has no shape")
except ValueError as error:
    assert "the same head size" in str(error)

assert not Problem("b1 q2048 k2048 h32/8 d128 bf16 mask=causal").on_cache
assert Problem("b1 q2048 k2048 h32/8 d128 bf16 mask=causal").is_causal
assert not Problem("b1 q1 k8 h1 d8 f16 mask=causal").is_causal
assert all(map(refused, ["b1 q1", "b1 q1 k1 h1 d8 f16 zebra", "b2 q1 k9 h1 d8 f16 lengths=9", "b1 q1 k9 h1 d8 f16 lengths=10", "b1 q1 k9 h1 d8 f16 layout=gaps"]))

for file in ("shapes.txt", "decode.txt"):
    lines = [line.split("#")[0].strip() for line in open(file)]
    problems = [Problem(line) for line in lines if line]
    assert problems and (file == "decode.txt") == any(problem.on_cache for problem in problems)
"##;

/// On a stand-in for PyTorch.
const ORDER: &str = r##"
import pathlib, sys, tempfile, types
from unittest.mock import MagicMock

for name in ("torch", "torch.nn", "torch.nn.attention", "torch.nn.functional"):
    sys.modules[name] = MagicMock()
sys.modules["triton"] = None
import attention_peers, contestants
from problem import Problem

begun = []

class Program:
    def __init__(self, program, problems, methods, samples, backend="warptile", shape=None):
        self.problems, self.splits = problems, backend.partition("splits=")[2]
        self.backend, self.failed = "warptile", False
    def takes(self, problem):
        return problem in self.problems
    def begin(self, problem):
        begun.append(f"program {self.splits}" if self.splits else "program")
        self.rounds = 0
    def attempt(self, work):
        return work()
    def round(self):
        self.rounds += 1
    def finish(self):
        begun.append("finished")
        return [{"backend": self.backend, "samples": self.rounds}]

class Run:
    def __init__(self, name, microseconds):
        self.name, self.microseconds, self.times = name, microseconds, {method: [] for method in attention_peers.METHODS}
    def round(self, method):
        self.times[method].append(self.microseconds)

def prepare():
    begun.append("peers")
    return {"fast": Run("fast", 2.0), "slow": Run("slow", 3.0)}

real, attention_peers.Warptile = attention_peers.Warptile, Program
options = types.SimpleNamespace(program="warptile", splits=512, samples=15, method=["graph"])
orders = {
    "b2 q512 k512 h8 d64 f16": ["program", "peers", "finished"],
    "b1 q1 k8192 h8 d64 f16": ["peers", "program", "program 512", "finished", "finished"],
}
problems = list(map(Problem, orders))
programs = attention_peers.of_program(options, problems)
for problem in problems:
    order = orders[problem.line]
    begun.clear()
    rows, failed = attention_peers.measure(problem, prepare, options, {}, programs)
    assert begun == order and not failed, begun
    samples = {row["backend"]: row["samples"] for row in rows}
    assert samples == {"warptile": 15, "fast": 15, "slow": 5}, samples

# One process measures one problem after the other; what it fails on has no row, and the next problem a new process.
FAILS = """#!/usr/bin/env python3
import json, sys
words = sys.argv
shapes = [words[at + 1] for at, word in enumerate(words) if word == "--shape"]
open(words[0] + ".log", "a").write(f"{len(shapes)}\\n")
rows, last = [], len(shapes) - 1
for at, shape in enumerate(shapes):
    if at and not sys.stdin.readline():
        break
    if "d9" in shape:
        sys.exit("no kernel")
    for method in ("graph", "call"):
        taken = 0
        while taken < 2 and sys.stdin.readline().strip() != "next":
            taken += 1
            print(1.5, flush=True)
        if taken:
            rows.append({"problem": shape, "method": method, "samples": taken})
    with open(words[words.index("--json") + 1], "w") as file:
        json.dump(rows if at == last else {"cut_short": True, "rows": rows}, file)
    print(len(rows), "rows", flush=True)
"""
with tempfile.TemporaryDirectory() as folder:
    program = pathlib.Path(folder, "warptile")
    program.write_text(FAILS)
    program.chmod(0o755)
    lines = [f"b1 q512 k512 h8 d{size} f16" for size in (8, 9, 10, 11)]
    problems = list(map(Problem, lines))
    for methods in (["graph"], ["graph", "call"]):
        warptile, rows, failed = real(program, problems, methods, 2), [], []
        for problem in problems:
            warptile.begin(problem)
            for _ in range(2 * len(methods)):
                warptile.attempt(warptile.round)
            rows += warptile.attempt(warptile.finish)
            failed.append(warptile.failed)
        warptile.end()
        assert failed == [False, True, False, False], failed
        found = [(row["backend"], row["problem"], row["method"], row["samples"]) for row in rows]
        assert found == [("warptile", line, method, 2) for line in lines if "d9" not in line for method in methods], found
    assert pathlib.Path(f"{program}.log").read_text().split() == 2 * ["4", "2"]

# Whoever compiles FlashInfer has the packages that whoever measures has.
with tempfile.TemporaryDirectory() as folder:
    for package in ("flash_attn/cute", "flashinfer"):
        path = pathlib.Path(folder, package, "__init__.py")
        path.parent.mkdir(parents=True)
        path.write_text(f"import sys\nsys.imported.append({package!r})\nflash_attn_func = None\n")
    sys.path.insert(0, folder)
    sys.imported = []
    contestants.find_flashinfer(None, None)
    assert sys.imported == ["flash_attn/cute", "flashinfer"], sys.imported
"##;

#[test]
fn problems_mean_what_the_program_makes_of_them() {
    run(CHECKS);
}

#[test]
fn the_program_starts_beside_peers_that_are_not_tried() {
    run(ORDER);
}

/// Runs a script next to those of the peers.
fn run(script: &str) {
    let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/peers");
    let output = Command::new("python3")
        .args(["-B", "-c", script])
        .current_dir(peers)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
}
