"""The names of the flash_attn package, on the CPU with numpy."""

import inspect
import unittest

import numpy as np
import reference
import warptile
from reference import check, draw
from warptile.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache


class FlashAttn(unittest.TestCase):
    def test_signatures(self):
        """As in flash_attn 2.8."""
        common = "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None"
        rest = "deterministic=False, return_attn_probs=False"
        expected = {
            flash_attn_func: f"(q, k, v, {common}, {rest})",
            flash_attn_varlen_func: f"(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, {common}, {rest}, block_table=None)",
            flash_attn_with_kvcache: "(q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, "
            "cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, window_size=(-1, -1), "
            "softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0, return_softmax_lse=False)",
        }
        for function, signature in expected.items():
            self.assertEqual(str(inspect.signature(function)), signature)
            for name in inspect.signature(function).parameters:
                self.assertRegex(function.__doc__, rf"(?m)^        {name}: ", function.__name__)

    def test_dense(self):
        q, k, v = draw(1, (2, 9, 4, 16), (2, 17, 2, 16), (2, 17, 2, 16))
        slopes = draw(2, (4,))[0]
        cases = [
            ({}, {}),
            ({"causal": True}, {"causal": True}),
            ({"window_size": (3, 1)}, {"window": (3, 1)}),
            ({"softcap": 5.0, "softmax_scale": 0.5}, {"softcap": 5.0, "scale": 0.5}),
            ({"alibi_slopes": slopes}, {"slopes": slopes}),
        ]
        for options, meant in cases:
            with self.subTest(str(options)):
                expected, expected_lse = reference.attention(q, k, v, **meant)
                check(self, flash_attn_func(q, k, v, **options), expected, q.dtype)
                out, lse, probabilities = flash_attn_func(q, k, v, **options, return_attn_probs=True)
                check(self, out, expected, q.dtype)
                check(self, lse, expected_lse, q.dtype)
                self.assertIsNone(probabilities)

    def test_packed(self):
        q, k, v = draw(3, (11, 4, 16), (19, 2, 16), (19, 2, 16))
        ends_q, ends_k = np.array([0, 5, 11], np.int32), np.array([0, 7, 19], np.int32)
        out, lse, _ = flash_attn_varlen_func(q, k, v, ends_q, ends_k, 6, 12, causal=True, return_attn_probs=True)
        self.assertEqual(lse.shape, (4, 11))
        for b in range(2):
            rows, keys = slice(*ends_q[b : b + 2]), slice(*ends_k[b : b + 2])
            expected, _ = reference.attention(q[None, rows], k[None, keys], v[None, keys], causal=True)
            check(self, out[rows], expected[0], q.dtype)

    def test_pages(self):
        q, k_pages, v_pages = draw(4, (5, 4, 16), (6, 4, 2, 16), (6, 4, 2, 16))
        table, lengths = np.array([[5, 0, 3], [2, 1, 4]], np.int32), np.array([10, 7], np.int32)
        out = flash_attn_varlen_func(q, k_pages, v_pages, [0, 2, 5], [0, 10, 17], 3, 10, causal=True, block_table=table)
        dense = np.stack([q[0:1], q[2:3]])
        cached = flash_attn_with_kvcache(dense, k_pages, v_pages, cache_seqlens=lengths, block_table=table)
        for b, (start, end) in enumerate([(0, 2), (2, 5)]):
            k, v = (x[table[b]].reshape(1, 12, 2, 16)[:, : lengths[b]] for x in (k_pages, v_pages))
            expected, _ = reference.attention(q[None, start:end], k, v, causal=True)
            check(self, out[start:end], expected[0], q.dtype)
            expected, _ = reference.attention(dense[b : b + 1], k, v)
            check(self, cached[b : b + 1], expected, q.dtype)

    def test_one_length_for_all(self):
        q, k, v = draw(5, (2, 1, 4, 16), (2, 9, 2, 16), (2, 9, 2, 16))
        out, lse = flash_attn_with_kvcache(q, k, v, cache_seqlens=6, return_softmax_lse=True)
        expected, expected_lse = reference.attention(q, k[:, :6], v[:, :6])
        check(self, out, expected, q.dtype)
        check(self, lse, expected_lse, q.dtype)

    def test_what_is_not_supported_is_named(self):
        q = np.zeros((2, 3, 2, 8), np.float32)
        cases = [
            ("dropout_p", lambda: flash_attn_func(q, q, q, dropout_p=0.1)),
            ("dropout_p", lambda: flash_attn_varlen_func(q[0], q[0], q[0], [0, 3], [0, 3], 3, 3, dropout_p=0.1)),
            ("cache_batch_idx", lambda: flash_attn_with_kvcache(q, q, q, cache_batch_idx=np.zeros(2, np.int32))),
            ("cache_leftpad", lambda: flash_attn_with_kvcache(q, q, q, cache_leftpad=np.zeros(2, np.int32))),
            ("num_splits", lambda: flash_attn_with_kvcache(q, q, q, num_splits=4)),
        ]
        for name, call in cases:
            with self.assertRaisesRegex(warptile.Unsupported, f"^{name} is not supported") as caught:
                call()
            self.assertIsInstance(caught.exception, NotImplementedError)


if __name__ == "__main__":
    unittest.main()
