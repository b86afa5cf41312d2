"""Random problems in random layouts, against float64; each is drawn from a number, which a failure names."""

import unittest

import numpy as np
import reference
import warptile
from exporters import ArrayInterface, DLPack, memory
from reference import check


def view(generator, shape, dtype):
    """An array of this shape whose dimensions lie in memory in a random order, with gaps, and sometimes repeated."""
    order = [*generator.permutation(3), 3]
    stored = [shape[dimension] + int(generator.integers(0, 3)) for dimension in order]
    whole = generator.standard_normal(stored).astype(dtype)
    starts = [int(generator.integers(0, stored[place] - shape[dimension] + 1)) for place, dimension in enumerate(order)]
    part = whole[tuple(slice(start, start + shape[dimension]) for start, dimension in zip(starts, order))]
    part = part.transpose(np.argsort(order))
    if generator.random() < 0.2:
        dimension = int(generator.integers(0, 3))
        part = np.broadcast_to(part.take([0], dimension), shape) if shape[dimension] else part
        part = part if part.strides[3] == part.itemsize else np.ascontiguousarray(part)
    return part


def problem(number):
    generator = np.random.default_rng(number)
    pick = lambda *values: values[int(generator.integers(0, len(values)))]
    dtype = pick(np.float16, np.float32)
    batch, kv_heads, size = pick(1, 2, 3), pick(1, 2, 3), 8 * pick(1, 2, 3, 5, 8)
    heads = kv_heads * pick(1, 2, 4)
    queries, keys = int(generator.integers(0, 40)), int(generator.integers(0, 90))
    q = view(generator, (batch, queries, heads, size), dtype)
    k, v = (view(generator, (batch, keys, kv_heads, size), dtype) for _ in range(2))
    options, meant = {}, {}
    if generator.random() < 0.5:
        options["causal"] = meant["causal"] = True
    if generator.random() < 0.3:
        options["window"] = meant["window"] = (pick(None, 0, 7), pick(0, 7))
    if options and generator.random() < 0.5:
        options["diagonal"] = meant["diagonal"] = pick("top-left", "bottom-right", int(generator.integers(-50, 100)))
    if generator.random() < 0.3:
        options["softcap"] = meant["softcap"] = 3.0
    if generator.random() < 0.3:
        options["scale"] = meant["scale"] = pick(0.1, -0.3, 0.0)
    if generator.random() < 0.3:
        meant["slopes"] = generator.standard_normal(pick((heads,), (batch, heads))).astype(np.float32)
        options["alibi_slopes"] = meant["slopes"]
    if generator.random() < 0.3:
        options["sinks"] = meant["sinks"] = generator.standard_normal(heads).astype(np.float32)
    if generator.random() < 0.2:
        shape = tuple(extent if generator.random() < 0.5 else 1 for extent in (batch, heads, queries, keys))
        options["bias"] = meant["bias"] = generator.standard_normal(shape).astype(pick(dtype, np.float32))
    return q, k, v, options, meant, pick("numpy", "dlpack", "interface", "bhsd", "memory")


class Random(unittest.TestCase):
    def test_problems(self):
        for number in range(300):
            q, k, v, options, meant, how = problem(number)
            with self.subTest(number=number, how=how, q=q.shape, k=k.shape, options=list(options)):
                expected, expected_lse = reference.attention(q, k, v, **meant)
                given = {"numpy": (q, k, v), "dlpack": map(DLPack, (q, k, v)), "interface": map(ArrayInterface, (q, k, v))}
                given["bhsd"] = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
                given["memory"] = map(memory, (q, k, v))
                layout = "bhsd" if how == "bhsd" else "bshd"
                out, lse = warptile.attention(*given[how], layout=layout, return_lse=True, **options)
                check(self, out.transpose(0, 2, 1, 3) if how == "bhsd" else out, expected, q.dtype)
                check(self, lse, expected_lse, q.dtype)


if __name__ == "__main__":
    unittest.main()
