#!/usr/bin/env python3
"""Checks the Markdown files of the repository: links lead somewhere, every page of docs/ is linked from README.md, the
pages that begin with a Rust program show the same one, and sizes of the kernels are those of the images. What the blocks of pages print
is checked by check_blocks.py.

Usage: scripts/check_docs.py     (anywhere in the repository; needs git)
"""

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = "https://github.com/warptile/warptile/"
FIRST_PROGRAM = ("README.md", "docs/rust.md", "crates/attention/README.md")
# Where pages say how large the kernels are, in MB: of `all`, of one architecture, and the smallest and the largest of `others`.
SIZES = {
    "README.md": r"by default \((?P<all>[\d.]+) MB; `sm_90` alone: (?P<sm90>[\d.]+) MB\)",
    "docs/rust.md": r"in the program \((?P<all>[\d.]+) MB\)",
    "crates/attention/README.md": r"about (?P<all>[\d.]+) MB to a program, `sm_90` alone (?P<sm90>[\d.]+) MB, "
    r"the others (?P<least>[\d.]+) to (?P<most>[\d.]+) MB",
}
# How far from the images the sizes may be, so that not every new image changes pages.
SIZES_WITHIN = 0.1
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)")


def git(*arguments):
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.strip()


def without_code(text):
    text = FENCE.sub("", text)
    return re.sub(r"`[^`\n]*`", "`code`", text)


def anchors(text):
    """The names GitHub gives the headings of a page."""
    found = set()
    for heading in re.findall(r"^#+ +(.*)$", FENCE.sub("", text), re.MULTILINE):
        name = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        name = re.sub(r"[^\w\- ]", "", name).replace(" ", "-")
        number = 0
        while (f"{name}-{number}" if number else name) in found:
            number += 1
        found.add(f"{name}-{number}" if number else name)
    return found


def first_block(text, language):
    block = re.search(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return block.group(1) if block else None


def wrong_sizes(root):
    """What pages say of the size of the kernels that the images do not have."""
    bytes_in = lambda folder: sum(file.stat().st_size for file in folder.rglob("*.zst"))
    each = {folder.name.removeprefix("images-"): bytes_in(folder) for folder in root.glob("crates/images-*")}
    others = [size for name, size in each.items() if name != "sm90"]
    sizes = {"all": sum(each.values()), "sm90": each["sm90"], "least": min(others), "most": max(others)}
    for name, pattern in SIZES.items():
        found = re.search(pattern, (root / name).read_text(encoding="utf-8"))
        if found is None:
            yield f"{name} does not say how large the kernels are: {pattern}"
            continue
        for part, said in found.groupdict().items():
            if abs(float(said) * 1e6 - sizes[part]) > SIZES_WITHIN * sizes[part]:
                yield f"{name}: {found[0]!r}, but {part} has {sizes[part] / 1e6:.1f} MB"


def check(root):
    """What is wrong, and how many links were followed."""
    pages = [root / name for name in git("-C", str(root), "ls-files", "-z", "--", "*.md").split("\0") if name]
    wrong, followed, linked = [], 0, set()
    for page in pages:
        name = page.relative_to(root)
        for target in LINK.findall(without_code(page.read_text(encoding="utf-8"))):
            if target.startswith(REPOSITORY) and re.match(r"(blob|tree)/[^/]+/", target[len(REPOSITORY) :]):
                target = target[len(REPOSITORY) :].split("/", 2)[2]
                path, _, anchor = target.partition("#")
                path = root / path
            elif re.match(r"[a-z]+:", target):
                continue
            else:
                path, _, anchor = target.partition("#")
                path = (page.parent / path).resolve() if path else page
            followed += 1
            if not path.exists():
                wrong.append(f"{name}: {target} does not exist")
            elif anchor and path.suffix == ".md" and anchor not in anchors(path.read_text(encoding="utf-8")):
                wrong.append(f"{name}: {target}: there is no such heading")
            if page == root / "README.md":
                linked.add(path)
    for page in sorted((root / "docs").glob("*.md")):
        if page not in linked:
            wrong.append(f"{page.relative_to(root)} is not linked from README.md")
    programs = {name: first_block((root / name).read_text(encoding="utf-8"), "rust") for name in FIRST_PROGRAM}
    if None in programs.values() or len(set(programs.values())) != 1:
        wrong.append(f"the first programs differ: {', '.join(programs)}")
    wrong += wrong_sizes(root)
    return wrong, followed


def main():
    root = Path(git("rev-parse", "--show-toplevel"))
    wrong, followed = check(root)
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    print(f"{followed} links followed, {len(wrong)} errors")
    # Without a link there is nothing that could have failed.
    return 1 if wrong or followed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
