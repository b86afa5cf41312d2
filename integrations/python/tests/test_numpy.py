"""Results of every option on the CPU against float64."""

import unittest

import numpy as np
import reference
import warptile
from reference import check, draw

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None


class Results(unittest.TestCase):
    def compare(self, q, k, v, reference_options=None, **options):
        expected, expected_lse = reference.attention(q, k, v, **(reference_options or options))
        out, lse = warptile.attention(q, k, v, return_lse=True, **options)
        self.assertEqual(out.dtype, q.dtype)
        self.assertEqual(lse.dtype, np.float32)
        check(self, out, expected, q.dtype)
        check(self, lse, expected_lse, np.dtype(np.float32))

    def test_element_types(self):
        dtypes = [np.float16, np.float32]
        if ml_dtypes is not None:
            dtypes.append(ml_dtypes.bfloat16)
        for dtype in dtypes:
            with self.subTest(dtype):
                q, k, v = draw(1, (2, 33, 4, 64), (2, 50, 2, 64), (2, 50, 2, 64), dtype=dtype)
                self.compare(q, k, v, causal=True)

    def test_masks(self):
        q, k, v = draw(2, (1, 20, 2, 16), (1, 31, 2, 16), (1, 31, 2, 16))
        for options in [
            {},
            {"causal": True},
            {"causal": True, "diagonal": "bottom-right"},
            {"causal": True, "diagonal": "top-left"},
            {"causal": True, "diagonal": -3},
            {"window": (3, 2), "diagonal": np.int32(17)},
            {"window": (3, 2)},
            {"window": (None, 0)},
            {"window": (-1, 4)},
            {"window": (5, None)},
            {"causal": True, "window": (4, None)},
            {"causal": True, "window": (4, 7)},
        ]:
            with self.subTest(**options):
                self.compare(q, k, v, **options)

    def test_scores(self):
        q, k, v = draw(3, (2, 9, 4, 24), (2, 17, 2, 24), (2, 17, 2, 24))
        per_head, per_batch, bias, sinks = draw(4, (4,), (2, 4), (2, 1, 9, 17), (4,))
        mask = np.random.default_rng(5).random((1, 4, 1, 17)) < 0.7
        padding = np.arange(17) < np.array([[17], [5]])
        cases = [
            ({"scale": 0.3}, None),
            ({"scale": -1.0}, None),
            ({"softcap": 2.0}, None),
            ({"softcap": 0.0}, None),
            ({"alibi_slopes": per_head}, {"slopes": per_head}),
            ({"alibi_slopes": per_head.tolist(), "causal": True}, {"slopes": per_head, "causal": True}),
            ({"alibi_slopes": per_batch}, {"slopes": per_batch}),
            ({"sinks": sinks}, None),
            ({"sinks": tuple(sinks.tolist())}, {"sinks": sinks}),
            ({"bias": bias}, None),
            ({"bias": bias[0, 0]}, None),
            ({"key_mask": mask}, {"mask": mask}),
            ({"key_mask": mask.view(np.uint8)}, {"mask": mask}),
            ({"key_mask": padding}, {"mask": padding[:, None, None]}),
            ({"key_mask": padding[:1]}, {"mask": padding[:1, None, None]}),
        ]
        for options, expected in cases:
            with self.subTest(str(options)):
                self.compare(q, k, v, expected, **options)

    def test_layouts(self):
        q, k, v = draw(6, (2, 9, 4, 24), (2, 17, 2, 24), (2, 17, 2, 24))
        expected, expected_lse = reference.attention(q, k, v)
        swapped = [x.transpose(0, 2, 1, 3).copy() for x in (q, k, v)]
        out, lse = warptile.attention(*swapped, layout="bhsd", return_lse=True)
        check(self, out.transpose(0, 2, 1, 3), expected, q.dtype)
        check(self, lse, expected_lse, q.dtype)
        self.assertTrue(out.flags.c_contiguous)
        # A transposed view has the same elements in another order, and so does the output.
        out = warptile.attention(*(x.transpose(0, 2, 1, 3) for x in swapped))
        check(self, out, expected, q.dtype)
        self.assertTrue(out.transpose(0, 2, 1, 3).flags.c_contiguous)

    def test_strides(self):
        whole = draw(7, (2, 11, 3, 5, 48))[0]
        q, k, v = (whole[:, :, index, :, 8:40] for index in range(3))
        self.compare(q, k, v)
        self.compare(q, np.broadcast_to(k[:, :1], k.shape), v)
        self.compare(np.broadcast_to(q[:1, :1], q.shape), k[::, ::2], v[:, ::2])
        # Rows that start at any element.
        shape = (2, 11, 5, 32)
        odd = [np.concatenate([[0], x.ravel()]).astype(np.float16)[1:].reshape(shape) for x in (q, k, v)]
        self.assertTrue(all(x.ctypes.data % 16 for x in odd))
        self.compare(*odd)
        fortran = np.asfortranarray(q)
        with self.assertRaisesRegex(ValueError, "q has stride .* in its last dimension"):
            warptile.attention(fortran, k, v)

    def test_out_and_lse(self):
        q, k, v = draw(8, (2, 9, 4, 16), (2, 9, 4, 16), (2, 9, 4, 16))
        expected, expected_lse = reference.attention(q, k, v)
        gaps = np.full((2, 9, 4, 20), 7, np.float32)
        out, lse = gaps[..., :16], np.zeros((2, 4, 9), np.float32)
        self.assertIs(warptile.attention(q, k, v, out=out, lse=lse), out)
        check(self, out, expected, q.dtype)
        check(self, lse, expected_lse, q.dtype)
        self.assertTrue((gaps[..., 16:] == 7).all())
        both = warptile.attention(q, k, v, out=out, lse=lse, return_lse=True)
        self.assertIs(both[0], out)
        self.assertIs(both[1], lse)

    def test_packed_sequences(self):
        q, k, v = draw(9, (12, 4, 16), (20, 2, 16), (20, 2, 16))
        offsets_q, offsets_k = np.array([0, 5, 5, 11], np.int32), np.array([0, 7, 9, 19], np.int64)
        for as_list in (False, True):
            out, lse = warptile.attention(
                q,
                k,
                v,
                causal=True,
                cu_seqlens_q=offsets_q.tolist() if as_list else offsets_q,
                cu_seqlens_k=offsets_k.tolist() if as_list else offsets_k,
                max_seqlen_q=6,
                max_seqlen_k=10,
                return_lse=True,
            )
            self.assertEqual(lse.shape, (4, 12))
            for b in range(3):
                rows, keys = slice(*offsets_q[b : b + 2]), slice(*offsets_k[b : b + 2])
                expected, expected_lse = reference.attention(q[None, rows], k[None, keys], v[None, keys], causal=True)
                check(self, out[rows], expected[0], q.dtype)
                check(self, lse[:, rows], expected_lse[0], q.dtype)
            # The last row belongs to no sequence.
            self.assertTrue((out[11:] == 0).all())

    def test_used_lengths(self):
        q, k, v = draw(10, (2, 4, 2, 16), (2, 9, 2, 16), (2, 9, 2, 16))
        out = warptile.attention(q, k, v, seqused_q=[2, 4], seqused_k=np.array([9, 3], np.uint32), causal=True)
        for b, (rows, keys) in enumerate([(2, 9), (4, 3)]):
            expected, _ = reference.attention(q[b : b + 1, :rows], k[b : b + 1, :keys], v[b : b + 1, :keys], causal=True)
            check(self, out[b : b + 1, :rows], expected, q.dtype)
            self.assertTrue((out[b, rows:] == 0).all())

    def test_pages(self):
        q, k_pages, v_pages = draw(11, (2, 3, 4, 16), (6, 4, 2, 16), (6, 4, 2, 16))
        table, lengths = np.array([[5, 0, 3, -1], [2, 1, -1, -1]], np.int32), [10, 7]
        options = {"seqused_k": lengths, "causal": True}
        out = warptile.attention(q, k_pages, v_pages, block_table=table, **options)
        wide = np.full((2, 9), -1, np.int32)
        wide[:, :4] = table
        heads_first = [pages.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) for pages in (k_pages, v_pages)]
        same = warptile.attention(q, *heads_first, block_table=wide[:, :4], **options)
        np.testing.assert_array_equal(out, same)
        for b, length in enumerate(lengths):
            pages = table[b, : -(-length // 4)]
            k, v = (x[pages].reshape(1, -1, 2, 16)[:, :length] for x in (k_pages, v_pages))
            expected, _ = reference.attention(q[b : b + 1], k, v, causal=True)
            check(self, out[b : b + 1], expected, q.dtype)

    def test_nothing_to_do(self):
        q, k = np.zeros((2, 3, 2, 8), np.float32), np.zeros((2, 0, 2, 8), np.float32)
        out, lse = warptile.attention(q, k, k, return_lse=True)
        self.assertTrue((out == 0).all())
        self.assertTrue((lse == -np.inf).all())
        self.assertEqual(warptile.attention(k, q, q).shape, (2, 0, 2, 8))
        empty = np.zeros((0, 3, 2, 8), np.float32)
        self.assertEqual(warptile.attention(empty, empty, empty).shape, (0, 3, 2, 8))

    def test_explain(self):
        q = np.zeros((2, 512, 8, 64), np.float16)
        self.assertIn("device   cpu", warptile.explain(q, q, q, causal=True))
        self.assertIn("mask=causal", warptile.explain(q, q, q, causal=True))
        text = warptile.explain(q, q, q, device="h200")
        self.assertIn("NVIDIA H200", text)
        self.assertIn("not      scalar_d64", text)
        self.assertIn("NVIDIA GeForce RTX 4090", warptile.explain(q, q, q, device="rtx4090"))
        self.assertIn("device   sm_86", warptile.explain(q, q, q, device="8.6"))
        with self.assertRaisesRegex(warptile.InvalidInput, 'device: unknown GPU "h20"; did you mean h200'):
            warptile.explain(q, q, q, device="h20")
        named = warptile.explain(q, q, q, device="h200", kernel="scalar")
        self.assertIn("forward  scalar_", named)
        with self.assertRaisesRegex(warptile.InvalidInput, "unknown kernel .*did you mean"):
            warptile.explain(q, q, q, device="h200", kernel="wgma_d64")
        with self.assertRaisesRegex(TypeError, "unexpected keyword argument 'casual'"):
            warptile.explain(q, q, q, casual=True)


if __name__ == "__main__":
    unittest.main()
