"""The lists of problems to measure, and the program that measures them together with their peers."""

import re
import sys

from host import BUNDLE

# Each file says what it has.
SHAPES, OTHER, DECODE, FEW, SPARSE, UNEVEN, ODD, BACKWARD, OPTIONS = (
    BUNDLE / f"benches/peers/{name}.txt" for name in ("shapes", "other", "decode", "few", "sparse", "uneven", "odd", "backward", "options")
)

# The program that measures them together with their peers.
PROGRAM = (sys.executable, BUNDLE / "benches/peers/attention_peers.py")


def problems_of(file):
    """The lines of a shape file."""
    lines = [line.split("#")[0].strip() for line in file.read_text().splitlines()]
    return [line for line in lines if line]


def in_type(problems, element):
    """The problems in another element type, except those that are listed already."""
    others = [re.sub(r" (f16|bf16|f32)\b", f" {element}", problem) for problem in problems]
    return [problem for problem in dict.fromkeys(others) if problem not in problems]


def files(*several):
    """Options that name files of problems."""
    return [word for file in several for word in ("--file", file)]


def shapes(problems):
    """Options that name problems."""
    return [word for problem in problems for word in ("--shape", problem)]


def sweep():
    """What SHAPES has, and all of it in f16: the file has most in bf16 only."""
    problems = problems_of(SHAPES)
    return problems + in_type(problems, "f16")


def of_sequences():
    """All that peers of whole sequences are measured on."""
    return sweep() + problems_of(OTHER)
