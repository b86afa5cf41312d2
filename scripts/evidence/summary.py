"""What came of it, in a few lines."""

import math
import re
import statistics

from checks import SANITIZER_TOOLS

# A row of decode loses if the best peer is faster by more than this, and is at the ceiling if it takes so much of the time of a
# kernel that only reads.
LOST, CEILING = 0.99, 1.02

# Keys that a split has where the cost of fixed splits is measured.
SPLITS = 512


class Compared:
    """The rows of one problem: ours, ours with fixed splits, the fastest peer's, and that of the kernel that only reads; None for one
    that is not there."""

    def __init__(self, of_problem):
        self.ours = of_problem.pop("warptile", None)
        self.fixed = of_problem.pop(f"warptile splits={SPLITS}", None)
        self.read = of_problem.pop("read", None)
        self.best = min(of_problem.values(), key=lambda row: row["median_us"], default=None)


def side_by_side(rows):
    """The problems that we have a row of."""
    problems = {}
    for row in rows:
        if row["method"] == "graph":
            problems.setdefault(row["problem"], {})[row["backend"]] = row
    compared = {problem: Compared(of_problem) for problem, of_problem in problems.items()}
    return {problem: of_problem for problem, of_problem in compared.items() if of_problem.ours}


def ratio_to(other, ours):
    """Our speed over that of another row."""
    return other["median_us"] / ours["median_us"] if other else math.inf


def decode_lines(compared):
    """A line for each problem, the losing ones first."""
    lines = []
    for problem, of_problem in sorted(compared.items(), key=lambda item: ratio_to(item[1].best, item[1].ours)):
        ours, best, read, fixed = of_problem.ours, of_problem.best, of_problem.read, of_problem.fixed
        # Without pages, nothing is measured in one tensor.
        dense = compared.get(re.sub(r"( layout=interleaved)? pages=\d+", "", problem))
        line = f"{problem:62} {ours['median_us']:8.1f} us {ours['tb_s']:6.3f} TB/s"
        if best:
            line += f"; {best['backend']:10} {best['median_us']:8.1f} us, ratio {ratio_to(best, ours):.3f}"
            line += " LOST" if ratio_to(best, ours) < LOST else ""
        if read:
            line += f"; {1 / ratio_to(read, ours):.3f} of reading's {read['median_us']:.1f} us"
        if dense and dense is not of_problem:
            line += f"; {1 / ratio_to(dense.ours, ours):.3f} of dense"
        if fixed:
            line += f"; {ratio_to(fixed, ours):.3f} with splits={SPLITS}"
        lines.append(f"{line}; {ours['kernel']}")
    return lines


def ratios(rows):
    """Our speed over that of the fastest peer, by problem."""
    fastest, ours = {}, {}
    for row in rows:
        if row["method"] == "graph":
            times = ours if row["backend"] == "warptile" else fastest
            times[row["problem"]] = min(row["median_us"], times.get(row["problem"], math.inf))
    return {problem: fastest[problem] / ours[problem] for problem in ours if problem in fastest}


def table(evidence, parts):
    """What came of it, in a few lines."""

    def rows(name, key="rows"):
        return evidence.read(name).get(key, [])

    lines = []
    sweep, others = ratios(rows("bench-peers.json") + rows("bench-warptile.json")), ratios(rows("other.json"))
    of_element = [(element, {problem: sweep[problem] for problem in sweep if f" {element}" in problem}) for element in ("bf16", "f16")]
    for what, of_problem in [*of_element, ("other problems", others)]:
        if of_problem:
            mean = math.exp(sum(map(math.log, of_problem.values())) / len(of_problem))
            worst = min(of_problem, key=of_problem.get)
            behind = sum(ratio < 1 for ratio in of_problem.values())
            lowest = f"lowest {of_problem[worst]:.2f}: {worst}"
            lines.append((f"ratio to the best peer, {what}", f"{mean:.3f} (mean of {len(of_problem)}), {behind} under 1.00, {lowest}"))
    compared = side_by_side(rows("decode.json"))
    against = {problem: ratio_to(row.best, row.ours) for problem, row in compared.items() if row.best}
    if against:
        worst = min(against, key=against.get)
        lost = sum(ratio < LOST for ratio in against.values())
        lines.append(("decode against the best peer", f"{lost} of {len(against)} lost, lowest {against[worst]:.3f}: {worst}"))
    shares = [1 / ratio_to(row.read, row.ours) for row in compared.values() if row.read and row.ours["query_len"] <= 64]
    if shares:
        near = sum(share <= CEILING for share in shares)
        lines.append(("decode against reading alone", f"{near} of {len(shares)} within {CEILING}, highest {max(shares):.3f}"))
    costs = [ratio_to(row.fixed, row.ours) for row in compared.values() if row.fixed]
    if costs:
        mean = math.exp(sum(map(math.log, costs)) / len(costs))
        lines.append((f"decode with splits={SPLITS}", f"{mean:.3f} of the time without (mean of {len(costs)}), highest {max(costs):.3f}"))
    for row in rows("verify.json"):
        if row["max_len"] is None:
            lines.append((f"random cases, {row['family']}", f"{row['passed']} of {row['count']} passed"))
            continue
        worst = (row["worst_out"] or {}).get("ratio", 0)
        speed = f"{row['problems_per_second']:.0f} a second on {row['threads']} threads"
        passed = f"{row['passed']} of {row['count']} passed, worst {worst:.2f} of its bound"
        drew = f"{row['few_multiprocessors']} on few multiprocessors, {row['drew_tiles']} drew tiles"
        kind = " in pages" if row["paged"] else ", gradients" if row["gradients"] else ""
        lines.append((f"random problems to {row['max_len']}{kind}, {row['family']}", f"{passed}; {drew}; {speed}"))
    images = rows("images.json", "images")
    if images:
        persistent = [image for image in images.values() if image["persistent"]]
        drew = sum(image["drew_tiles"] > 0 for image in persistent)
        lines.append(("images that ran", f"{len(images)}; {drew} of {len(persistent)} persistent ones drew tiles"))
    for row in rows("launches.json", "matrix"):
        lines.append((f"{row['launches']} launches, waiting: {row['sync']}", f"{row['passed']} of {row['problems']} on {len(row['images'])} images"))
    tuned = rows("tune.json", "problems")
    if tuned:
        won = [row for row in tuned if row["verdict"] == "won"]
        again = f", {min(row['again'] or 0 for row in won):.3f} and more once more" if won else ""
        lines.append(("tuned", f"{len(tuned)} problems in {evidence.read('tune.json')['seconds']:.0f} s, {len(won)} choices changed{again}"))
    starts = [row["milliseconds"] for row in rows("start.json") if row["milliseconds"]]
    if starts:
        lines.append(("start to a first result", f"{statistics.median(starts):.0f} ms in the median of {len(starts)} processes, the first took {starts[0]:.0f}"))
    tiles = rows("tile.json")
    if tiles:
        lines.append(("tiles, each score and weight", f"{sum(row['passed'] for row in tiles)} of {len(tiles)} passed"))
    accepted = rows("acceptance.json")
    if accepted:
        lines.append(("acceptance problems", f"{sum(row['passed'] for row in accepted)} of {len(accepted)}"))
    for row in rows("examples.json"):
        lines.append((f"example {row['example']}", "; ".join(row["same"]) if row["passed"] else "FAILED"))
    for tool in SANITIZER_TOOLS:
        of_tool = [row for row in rows("sanitizer.json") if row["tool"] == tool]
        if of_tool:
            found = [row["errors"] for row in of_tool]
            caught = any(row["caught"] for row in rows("sanitizer.json", "controls") if row["tool"] == tool)
            count = "no answer" if None in found else sum(found)
            visited = sum(len(row["images"]) for row in of_tool)
            lines.append((tool, f"errors: {count}, on {visited} images; broken kernel {'caught' if caught else 'NOT CAUGHT'}"))
    gpu_tests = [row for row in rows("tests.json") + rows("alone.json") if row["gpu"]]
    if gpu_tests:
        left_out = rows("tests.json", "left_out") + rows("alone.json", "left_out")
        without = f"; {len(left_out)} left out, which need several GPUs" if left_out else ""
        lines.append(("GPU tests", f"{sum(row['passed'] for row in gpu_tests)} of {len(gpu_tests)} passed{without}"))
    invariance = evidence.read("invariance.json")
    if invariance:
        lines.append(("batch invariance", f"{invariance['differing_bits']} differing bits over {invariance['compositions']} compositions"))
    for name, done in parts.items():
        lines.append((f"part {name}", f"{done['seconds']:.0f} s, {'passed' if done['passed'] else 'cut short' if done.get('cut_short') else 'FAILED'}"))
    width = max((len(name) for name, _ in lines), default=0)
    return "\n".join(f"{name:{width}}  {value}" for name, value in lines)
