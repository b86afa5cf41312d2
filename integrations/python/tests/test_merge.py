"""Results over disjoint keys, merged on the CPU into those over all keys."""

import unittest

import numpy as np
import reference
import warptile
from reference import check, draw


class Merge(unittest.TestCase):
    def setUp(self):
        self.q, self.k, self.v = draw(1, (2, 9, 4, 24), (2, 40, 2, 24), (2, 40, 2, 24))

    def parts(self, *ends, dtype=np.float32, **options):
        q, k, v = (x.astype(dtype) for x in (self.q, self.k, self.v))
        return [
            warptile.attention(q, k[:, start:end], v[:, start:end], return_lse=True, **options)
            for start, end in zip((0, *ends), (*ends, k.shape[1]), strict=True)
        ]

    def test_keys_in_parts(self):
        expected, expected_lse = reference.attention(self.q, self.k, self.v)
        for ends in ((), (7,), (1, 20, 33), range(1, 32)):
            out, lse = warptile.merge(self.parts(*ends))
            check(self, out, expected, np.dtype(np.float32))
            check(self, lse, expected_lse, np.dtype(np.float32))
        out, lse = warptile.merge(self.parts(20, dtype=np.float16))
        self.assertEqual((out.dtype, lse.dtype), (np.float16, np.float32))
        check(self, out, expected, np.dtype(np.float16))

    def test_layouts(self):
        parts = self.parts(20)
        expected, expected_lse = warptile.merge(parts)
        swapped = [(out.transpose(0, 2, 1, 3).copy(), lse) for out, lse in parts]
        out, lse = warptile.merge(swapped, layout="bhsd")
        np.testing.assert_array_equal(out.transpose(0, 2, 1, 3), expected)
        np.testing.assert_array_equal(lse, expected_lse)
        # Packed sequences, and an lse with strides between its elements.
        packed = [(out[1], np.repeat(lse, 2, axis=2)[1, :, ::2]) for out, lse in parts]
        out, lse = warptile.merge(packed)
        np.testing.assert_array_equal(out, expected[1])
        np.testing.assert_array_equal(lse, expected_lse[1])

    def test_outputs_of_ones_own(self):
        parts = self.parts(20)
        expected, expected_lse = warptile.merge(parts)
        gaps, lse = np.full((2, 9, 4, 30), 7, np.float32), np.zeros((2, 9, 4), np.float32)
        out = gaps[..., :24]
        results = warptile.merge(parts, out=out, lse=lse.transpose(0, 2, 1))
        self.assertIs(results[0], out)
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_array_equal(lse.transpose(0, 2, 1), expected_lse)
        self.assertTrue((gaps[..., 24:] == 7).all())

    def test_base_two(self):
        parts = self.parts(20)
        expected, expected_lse = warptile.merge(parts)
        out, lse = warptile.merge([(out, lse / np.float32(np.log(2))) for out, lse in parts], base_two=True)
        check(self, out, expected, np.dtype(np.float32))
        check(self, lse * np.log(2), expected_lse, np.dtype(np.float32))

    def test_rows_without_keys(self):
        (out, lse), (other, other_lse) = self.parts(20)
        lse[:, 1], out[:, :, 1] = -np.inf, np.nan
        lse[:, 2], other_lse[:, 2] = np.inf, -np.inf
        merged, merged_lse = warptile.merge([(out, lse), (other, other_lse)])
        np.testing.assert_array_equal(merged[:, :, 1], other[:, :, 1])
        np.testing.assert_array_equal(merged_lse[:, 1], other_lse[:, 1])
        np.testing.assert_array_equal(merged[:, :, 2], 0)
        np.testing.assert_array_equal(merged_lse[:, 2], -np.inf)

    def test_errors(self):
        (out, lse), other = self.parts(20)
        cases = [
            (ValueError, "parts is empty", [], {}),
            (ValueError, "parts has count 33", [(out, lse)] * 33, {}),
            (TypeError, r"parts\[\].lse has elements of type float64, but must have float32", [(out, lse.astype(np.float64))], {}),
            (TypeError, r"parts\[\].out has elements of type float16, but must have float32, as", [other, (out.astype(np.float16), lse)], {}),
            (TypeError, r"parts\[\].out is of type int", [(1, lse)], {}),
            (ValueError, r"parts\[1\].out has length 8, but parts\[0\].out has 9", [other, (out[:, :8], lse)], {}),
            (ValueError, r"parts\[0\].lse has heads 3, but parts\[0\].out has 4", [(out, lse[:, :3])], {}),
            (ValueError, r"lse has shape \[2, 4\]; it must have the three dimensions", [(out, lse[..., 0])], {}),
            (ValueError, r"lse has shape .*; of packed sequences it must have", [(out[0], lse)], {}),
            (ValueError, r"out shares memory with parts\[\].out", [(out, lse), other], {"out": out}),
            (ValueError, r"lse shares memory with parts\[\].lse", [(out, lse), other], {"lse": lse}),
            (ValueError, "out has length 8", [(out, lse)], {"out": np.zeros((2, 8, 4, 24), np.float32)}),
            (TypeError, "lse has elements of type float16", [(out, lse)], {"lse": np.zeros((2, 4, 9), np.float16)}),
            (ValueError, "layout is", [(out, lse)], {"layout": "sbhd"}),
        ]
        for error, text, parts, options in cases:
            with self.subTest(text), self.assertRaisesRegex(error, text) as caught:
                warptile.merge(parts, **options)
            self.assertIsInstance(caught.exception, warptile.Error)
        for bad in (out, 3, [out], [(out,)], [(out, lse, lse)]):
            with self.assertRaises((TypeError, ValueError)):
                warptile.merge(bad)

    def test_nothing_to_do(self):
        out, lse = warptile.merge([(np.zeros((0, 3, 2, 8), np.float32), np.zeros((0, 2, 3), np.float32))])
        self.assertEqual((out.shape, lse.shape), ((0, 3, 2, 8), (0, 2, 3)))


if __name__ == "__main__":
    unittest.main()
