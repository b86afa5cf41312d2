#!/usr/bin/env python3
"""Runs the fenced blocks of Markdown pages as a reader would paste them, and compares what they print with what the page shows.

Usage: scripts/check_blocks.py [--optimised | --lock FILE] PAGE...

The blocks of a page run from top to bottom in one shell, in an empty folder:

- A block `sh` is run. Its first failing command fails the check.
- A block `text` directly after it is what it has to print. Spaces, times, rates and errors (1.2e-4; 0.1 of what is allowed) may
  differ, and a line `...` stands for any number of lines.
- A block of another language whose introduction ends with a file name, as in "`src/main.rs`:", is written into that file.
- A block with a second word is left out: `sh gpu` needs a GPU, `sh release` a published version, `sh shown` is only an example.

`git clone` gives this repository as it is on disk, without a copy. Crates of the reader's own are compiled without optimisation, which
takes a third of the time, unless --optimised is given. With --lock they have the versions of that lock file, which others may have built.
"""

import argparse
import difflib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(?P<before>[^\n]*)\n+^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`([\w./-]+)`[^`]*:$")
TIME = re.compile(r"\b\d+(\.\d+)? ?(ns|us|µs|ms|s|minutes|[KMGT]?B/s|[GT]FLOP/s)(?![\w/])")
SMALL = re.compile(r"\b\d+(\.\d+)?e-\d+\b|\b0\.\d+(?= of what is allowed)")


def steps(text):
    """What a page asks for: (kind, block, file or expected output), in order."""
    found = []
    for match in BLOCK.finditer("\n" + text):
        words, body = match["info"].split(), match["body"]
        language = words[0] if words else ""
        if len(words) > 1:
            found.append(("left out", body, None))
        elif language == "sh":
            found.append(("run", body, None))
        elif language == "text":
            if not found or found[-1][0] != "run":
                continue
            found[-1] = ("run", found[-1][1], body)
        elif file := FILE.search(match["before"]):
            found.append(("write", body, file[1]))
    return found


def normal(text):
    lines = (SMALL.sub("SMALL", TIME.sub("TIME", " ".join(line.split()))) for line in text.splitlines())
    return [line for line in lines if line]


def agrees(printed, expected):
    """Whether lines are the expected ones; an expected line `...` stands for any number of lines."""
    pattern = "".join(r"(.*\n)*" if line == "..." else re.escape(line) + r"\n" for line in expected)
    return re.fullmatch(pattern, "".join(line + "\n" for line in printed)) is not None


def script(page_steps, folder, lock):
    """One shell program for the page, which leaves what each block printed in a file."""
    clone = f'if [[ $1 == clone ]]; then ln -s {shlex.quote(str(ROOT))} "$(basename "$2" .git)"; else command git "$@"; fi'
    lines = ["set -euo pipefail", f"git() {{ {clone}; }}"]
    if lock:
        lines.append(f'cargo() {{ command cargo "$@"; [[ $1 != new ]] || cp {shlex.quote(str(lock.resolve()))} "$2/Cargo.lock"; }}')
    for number, (kind, body, other) in enumerate(page_steps):
        if kind == "write":
            quoted = shlex.quote(other)
            lines.append(f'mkdir -p "$(dirname {quoted})"; cp {folder}/{number}.in {quoted}')
        elif kind == "run":
            lines.append(f"{{ {body}\n}} >{folder}/{number}.out; touch {folder}/{number}.done")
    return "\n".join(lines)


def check(page, folder, lock=None):
    """What is wrong with the blocks of a page, and how many were run. A folder of the same name lets cargo build packages once."""
    page_steps = steps(page.read_text(encoding="utf-8"))
    wrong, run = [], 0
    with tempfile.TemporaryDirectory() as logs:
        work = Path(folder, "page")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        for number, (_, body, _) in enumerate(page_steps):
            Path(logs, f"{number}.in").write_text(body, encoding="utf-8")
        program = script(page_steps, logs, lock)
        command = ["bash", "-c", program]
        ended = subprocess.run(command, cwd=work, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for number, (kind, body, expected) in enumerate(page_steps):
            if kind != "run":
                continue
            run += 1
            if not Path(logs, f"{number}.done").exists():
                wrong.append(f"{page}: this block fails:\n{body}\n{ended.stderr[-4000:]}")
                break
            printed = normal(Path(logs, f"{number}.out").read_text(encoding="utf-8"))
            if expected is not None and not agrees(printed, normal(expected)):
                difference = difflib.unified_diff(normal(expected), printed, "the page", "printed", lineterm="")
                wrong.append(f"{page}: this block prints something else:\n{body}\n" + "\n".join(difference))
    return wrong, run


def check_itself():
    """A page whose output is right passes; one whose output or command is wrong does not."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.md")
        tries = [("echo 7 in 1.2 ms", "7 in 3 ms", True), ("echo 7", "8", False), ("false", "", False), ("seq 9", "1\n...\n9", True)]
        for command, output, right in tries:
            page.write_text(f"Run:\n\n```sh\n{command}\n```\n\n```text\n{output}\n```\n", encoding="utf-8")
            if (check(page, folder)[0] == []) != right:
                sys.exit(f"error: check_blocks.py is wrong about `{command}` and `{output}`")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimised", action="store_true", help="compile as a reader does")
    parser.add_argument("--lock", type=Path, help="lock file of new crates")
    parser.add_argument("pages", nargs="+", type=Path)
    arguments = parser.parse_args()
    check_itself()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        if not arguments.optimised:
            Path(folder, ".cargo").mkdir()
            Path(folder, ".cargo/config.toml").write_text("[profile.release]\nopt-level = 0\n", encoding="utf-8")
        for page in arguments.pages:
            wrong, run = check(page, folder, arguments.lock)
            for text in wrong:
                print(f"error: {text}", file=sys.stderr)
            print(f"{page}: {run} blocks run, {len(wrong)} wrong", flush=True)
            failed |= bool(wrong) or run == 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
