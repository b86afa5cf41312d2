"""The names of the flash_attn package, on the CPU with numpy."""

import inspect
import unittest

import numpy as np
import reference
import warptile
from reference import check, draw
from warptile.flash_attn import (
    flash_attn_combine,
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)


def rotated(x, cos, sin, interleaved):
    """`[rows, heads, head size]`, rotated by the rows of the tables."""
    pairs = cos.shape[1]
    turned = x.astype(np.float64).copy()
    parts = (np.s_[0 : 2 * pairs : 2], np.s_[1 : 2 * pairs : 2]) if interleaved else (np.s_[:pairs], np.s_[pairs : 2 * pairs])
    a, b = (x[..., part].astype(np.float64) for part in parts)
    turned[..., parts[0]], turned[..., parts[1]] = a * cos[:, None] - b * sin[:, None], a * sin[:, None] + b * cos[:, None]
    return turned


class FlashAttn(unittest.TestCase):
    def test_signatures(self):
        """As in flash_attn 2.8."""
        common = "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None"
        rest = "deterministic=False, return_attn_probs=False"
        expected = {
            flash_attn_qkvpacked_func: f"(qkv, {common}, {rest})",
            flash_attn_kvpacked_func: f"(q, kv, {common}, {rest})",
            flash_attn_varlen_qkvpacked_func: f"(qkv, cu_seqlens, max_seqlen, {common}, {rest})",
            flash_attn_varlen_kvpacked_func: f"(q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, {common}, {rest})",
            flash_attn_func: f"(q, k, v, {common}, {rest})",
            flash_attn_varlen_func: f"(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, {common}, {rest}, block_table=None)",
            flash_attn_with_kvcache: "(q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, "
            "cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, window_size=(-1, -1), "
            "softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0, return_softmax_lse=False, "
            "k_descale=None, v_descale=None, cu_seqlens_k_new=None)",
        }
        for function, signature in expected.items():
            parameters = inspect.signature(function).parameters
            untyped = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters.values()]
            self.assertEqual(str(inspect.Signature(untyped)), signature)
            if "packed" in function.__name__:
                continue
            for name in parameters:
                self.assertRegex(function.__doc__, rf"(?m)^ +([a-z_]+, )*{name}(, [a-z_]+)*: ", function.__name__)

    def test_a_right_side_of_all_keys_is_no_limit(self):
        """As in flash_attn 2, also for queries before the first key."""
        q, k, v = draw(1, (2, 9, 4, 16), (2, 4, 2, 16), (2, 4, 2, 16))
        offsets = [np.arange(3, dtype=np.int32) * rows for rows in (9, 4)]
        flat = lambda x: x.reshape(-1, *x.shape[2:])

        def packed(window_size):
            return flash_attn_varlen_func(flat(q), flat(k), flat(v), *offsets, 9, 4, window_size=window_size).reshape(q.shape)

        functions = (lambda window_size: flash_attn_func(q, k, v, window_size=window_size), packed, lambda window_size: flash_attn_with_kvcache(q, k, v, window_size=window_size))
        for function in functions:
            for given, meant in (((-1, 4), (-1, -1)), ((2, 7), (2, -1)), ((-1, np.array(4)), (-1, -1))):
                np.testing.assert_array_equal(function(given), function(meant))
            self.assertFalse(np.array_equal(function((-1, 3)), function((-1, -1))))
        out, lse, _ = flash_attn_func(q, k, v, window_size=(-1, 3), return_attn_probs=True)
        self.assertTrue((out[:, 0] == 0).all() and (lse[:, :, 0] == -np.inf).all())

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

    def test_values_of_another_head_size(self):
        for size in (8, 40):
            q, k, v = draw(1, (2, 9, 4, 24), (2, 17, 2, 24), (2, 17, 2, size))
            expected, expected_lse = reference.attention(q, k, v, causal=True)
            out, lse, _ = flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
            self.assertEqual(out.shape, (2, 9, 4, size))
            check(self, out, expected, q.dtype)
            check(self, lse, expected_lse, q.dtype)

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

    def test_lengths_are_any_sequence_of_numbers(self):
        q, k, v, new_k, new_v = draw(5, (2, 1, 4, 16), *[(2, 9, 2, 16)] * 2, *[(2, 1, 2, 16)] * 2)
        padding = np.array([1, 2], np.int32)
        outputs = [
            flash_attn_with_kvcache(q, k.copy(), v.copy(), new_k, new_v, cache_seqlens=lengths, cache_leftpad=padding)
            for lengths in ([6, 3], (6, 3), np.array([6, 3], np.int32))
        ]
        np.testing.assert_array_equal(outputs[0], outputs[1])
        np.testing.assert_array_equal(outputs[0], outputs[2])

    def test_new_keys_and_values(self):
        q, k, v = draw(6, (2, 2, 4, 16), (2, 2, 2, 16), (2, 2, 2, 16))
        past_k, past_v = draw(7, (2, 9, 2, 16), (2, 9, 2, 16))
        lengths = np.array([7, 3], np.int32)
        k_cache, v_cache = past_k.copy(), past_v.copy()
        out = flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True)
        pages = np.zeros((8, 4, 2, 2, 16), np.float32)
        table = np.array([[6, 1, 0], [3, 5, 7]], np.int32)
        for b in range(2):
            for page in range(2):
                pages[table[b, page], :, 0] = past_k[b, 4 * page : 4 * page + 4]
                pages[table[b, page], :, 1] = past_v[b, 4 * page : 4 * page + 4]
        # Keys and values in one tensor.
        paged = flash_attn_with_kvcache(
            q, pages[:, :, 0], pages[:, :, 1], k, v, cache_seqlens=lengths.tolist(), block_table=table, causal=True
        )
        np.testing.assert_array_equal(out, paged)
        for b, length in enumerate(lengths):
            past_k[b, length : length + 2], past_v[b, length : length + 2] = k[b], v[b]
            expected, _ = reference.attention(
                q[b : b + 1], past_k[b : b + 1, : length + 2], past_v[b : b + 1, : length + 2], causal=True
            )
            check(self, out[b : b + 1], expected, q.dtype)
        np.testing.assert_array_equal(k_cache, past_k)
        np.testing.assert_array_equal(v_cache, past_v)
        np.testing.assert_array_equal(pages[6, 3, 0], past_k[0, 3])
        np.testing.assert_array_equal(pages[1, 3, 1], v[0, 0])

    def test_new_values_of_another_head_size(self):
        q, k, v = draw(16, (2, 2, 4, 24), (2, 2, 2, 24), (2, 2, 2, 16))
        k_cache, v_cache = draw(17, (2, 9, 2, 24), (2, 9, 2, 16))
        lengths = np.array([7, 3], np.int32)
        out = flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True)
        self.assertEqual(out.shape, (2, 2, 4, 16))
        for b, length in enumerate(lengths):
            np.testing.assert_array_equal(k_cache[b, length : length + 2], k[b])
            np.testing.assert_array_equal(v_cache[b, length : length + 2], v[b])
            past = (cache[b : b + 1, : length + 2] for cache in (k_cache, v_cache))
            expected, _ = reference.attention(q[b : b + 1], *past, causal=True)
            check(self, out[b : b + 1], expected, q.dtype)

    def test_rotation(self):
        angles = np.outer(np.arange(20), 0.5 ** np.arange(4))
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        q, k, v = draw(8, (2, 3, 4, 16), (2, 3, 2, 16), (2, 3, 2, 16))
        for interleaved in (True, False):
            k_cache, v_cache = np.zeros((2, 20, 2, 16), np.float32), np.zeros((2, 20, 2, 16), np.float32)
            lengths = np.array([5, 0], np.int32)
            before = q.copy()
            out = flash_attn_with_kvcache(
                q, k_cache, v_cache, k, v, cos, sin, cache_seqlens=lengths, causal=True, rotary_interleaved=interleaved
            )
            np.testing.assert_array_equal(q, before)
            for b, length in enumerate(lengths):
                rows = slice(length, length + 3)
                turned = rotated(k[b], cos[rows], sin[rows], interleaved)
                np.testing.assert_allclose(k_cache[b, rows], turned, rtol=1e-5, atol=1e-5)
                queries = rotated(q[b], cos[rows], sin[rows], interleaved)[None]
                expected, _ = reference.attention(
                    queries, k_cache[b : b + 1, : length + 3], v_cache[b : b + 1, : length + 3], causal=True
                )
                check(self, out[b : b + 1], expected, q.dtype)

    def test_packed_new_keys(self):
        """The same bits in cache and output as one sequence after the other, dense, in pages and rotated."""
        lengths, new, rows, page = [3, 0, 6], [2, 0, 4], 12, 4
        offsets = np.cumsum([0, *new]).astype(np.int32)
        k, v = draw(70, (6, 2, 16), (6, 2, 16))
        q, *dense = draw(71, (3, 1, 4, 16), (3, rows, 2, 16), (3, rows, 2, 16))
        angles = np.outer(np.arange(16), 0.5 ** np.arange(4))
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        table = np.arange(9, dtype=np.int32).reshape(3, 3)
        for rotation in ({}, {"rotary_cos": cos, "rotary_sin": sin}):
            for pages in (False, True):
                with self.subTest(rotation=bool(rotation), pages=pages):
                    shape = (9, page, 2, 16) if pages else (3, rows, 2, 16)
                    caches = [cache.copy().reshape(shape) for cache in dense]
                    expected = [cache.copy() for cache in dense]
                    together = flash_attn_with_kvcache(
                        q, *caches, k, v, cache_seqlens=np.array(lengths, np.int32), causal=True, cu_seqlens_k_new=offsets,
                        block_table=table if pages else None, **rotation,
                    )
                    for at in (0, 2):
                        one = slice(at, at + 1)
                        part = slice(offsets[at], offsets[at + 1])
                        alone = flash_attn_with_kvcache(
                            q[one], *(cache[one] for cache in expected), k[None, part], v[None, part], cache_seqlens=[lengths[at]],
                            causal=True, **rotation,
                        )
                        np.testing.assert_array_equal(together[one], alone)
                    for cache, wanted in zip(caches, expected):
                        np.testing.assert_array_equal(cache.reshape(wanted.shape), wanted)
        for wrong in ([0, 2, 6], [0, 2, 1, 6], [0, 2, 2, 5]):
            with self.assertRaisesRegex(warptile.InvalidInput, "cu_seqlens_k_new must have 4 offsets that rise from 0 to 6"):
                flash_attn_with_kvcache(q, *dense, k, v, cache_seqlens=lengths, cu_seqlens_k_new=wrong)

    def test_combine(self):
        q, k, v = draw(72, (2, 5, 4, 16), (2, 40, 2, 16), (2, 40, 2, 16))
        expected, expected_lse = warptile.attention(q, k, v, return_lse=True)
        found = [warptile.attention(q, k[:, at : at + 1], v[:, at : at + 1], return_lse=True) for at in range(40)]
        out, lse = flash_attn_combine(np.stack([out for out, _ in found]), np.stack([lse for _, lse in found]).swapaxes(-1, -2))
        np.testing.assert_allclose(out, expected, atol=1e-5)
        np.testing.assert_allclose(lse, expected_lse.swapaxes(-1, -2), atol=1e-5)
        into = np.empty_like(out)
        half, _ = flash_attn_combine(np.stack([out]), lse[None], out=into, out_dtype=np.float16)
        self.assertIs(half, into)
        self.assertEqual(flash_attn_combine(np.stack([out]), lse[None], out_dtype=np.float16)[0].dtype, np.float16)

    def test_caches_of_all_kinds(self):
        """Chosen sequences and rows of padding, pages of any size, rotation of any number of queries: all together, drawn at random."""
        random = np.random.default_rng(11)
        flip = lambda: bool(random.integers(2))
        for trial in range(120):
            batch, queries, size = 2, int(random.choice([1, 3, 7])), int(random.choice([8, 13, 32]))
            rows, page = [(24, 8), (21, 3), (600, 300)][random.integers(3)]
            paged, chosen, padded, new, causal, interleaved = (flip() for _ in range(6))
            turns = new and flip()
            added = queries if flip() else int(random.integers(1, queries + 1))
            entries = 2 * batch if chosen else batch
            q, k, v, past_k, past_v = draw(
                trial,
                (batch, queries, 4, size),
                (batch, added, 2, size),
                (batch, added, 2, size),
                (entries, rows, 2, size),
                (entries, rows, 2, size),
            )
            lengths = random.integers(0 if new else 1, rows - (queries if new else 0) + 1, batch, np.int32)
            padding = np.array([random.integers(0, max(1, length)) for length in lengths], np.int32) if padded else None
            places = random.permutation(entries)[:batch].astype(np.int32) if chosen else None
            angles = random.random((rows, size // 4)) * 6
            cos, sin = (np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)) if turns else (None, None)
            k_cache, v_cache, table = past_k, past_v, None
            if paged:
                table = random.permutation(entries * rows // page).reshape(entries, -1).astype(np.int32)
                k_cache, v_cache = (np.empty((table.size, page, 2, size), np.float32) for _ in range(2))
                for pages, dense in ((k_cache, past_k), (v_cache, past_v)):
                    pages[table.reshape(-1)] = dense.reshape(pages.shape)
            out, lse = flash_attn_with_kvcache(
                q,
                k_cache,
                v_cache,
                *((k, v) if new else (None, None)),
                cos,
                sin,
                lengths,
                places,
                padding,
                table,
                causal=causal,
                rotary_interleaved=interleaved,
                num_splits=3,
                return_softmax_lse=True,
            )
            for b, length in enumerate(lengths):
                place = places[b] if chosen else b
                keys, values = k_cache[place], v_cache[place]
                if paged:
                    keys, values = (pages[table[place]].reshape(rows, 2, size) for pages in (k_cache, v_cache))
                asking = q[b]
                if new:
                    positions = length + np.arange(added)
                    turned = rotated(k[b], cos[positions], sin[positions], interleaved) if turns else k[b]
                    np.testing.assert_allclose(keys[positions], turned, rtol=1e-5, atol=1e-5)
                    np.testing.assert_array_equal(values[positions], v[b])
                    positions = length + (np.arange(queries) if causal else np.zeros(queries, int))
                    asking = rotated(q[b], cos[positions], sin[positions], interleaved) if turns else asking
                    length += added
                used = slice(padding[b] if padded else 0, length)
                expected, expected_lse = reference.attention(asking[None], keys[None, used], values[None, used], causal=causal)
                with self.subTest(trial, sequence=b):
                    check(self, out[b : b + 1], expected, q.dtype)
                    check(self, lse[b : b + 1], expected_lse, q.dtype)

    def test_tensors_in_one(self):
        qkv, kv = draw(12, (2, 9, 3, 4, 16), (2, 9, 2, 2, 16))
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        offsets = np.array([0, 9, 18], np.int32)
        flat = lambda x: x.reshape(18, *x.shape[2:])
        pairs = [
            (flash_attn_qkvpacked_func(qkv, causal=True), flash_attn_func(q, k, v, causal=True)),
            (flash_attn_kvpacked_func(q, kv, softcap=2.0), flash_attn_func(q, kv[:, :, 0], kv[:, :, 1], softcap=2.0)),
            (
                flash_attn_varlen_qkvpacked_func(flat(qkv), offsets, 9, window_size=(3, 1)),
                flat(flash_attn_func(q, k, v, window_size=(3, 1))),
            ),
            (
                flash_attn_varlen_kvpacked_func(flat(q), flat(kv), offsets, offsets, 9, 9, softmax_scale=0.3),
                flat(flash_attn_func(q, kv[:, :, 0], kv[:, :, 1], softmax_scale=0.3)),
            ),
        ]
        for found, expected in pairs:
            np.testing.assert_array_equal(found, expected)

    def test_head_sizes_between_those_of_kernels(self):
        for size in (1, 5, 59):
            q, k, v = draw(13, (2, 9, 4, size), (2, 17, 2, size), (2, 17, 2, size))
            expected, expected_lse = reference.attention(q, k, v, causal=True)
            out, lse, _ = flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
            self.assertEqual(out.shape, q.shape)
            check(self, out, expected, q.dtype)
            check(self, lse, expected_lse, q.dtype)

    def test_wrong_caches(self):
        q, k = np.zeros((2, 1, 2, 8), np.float32), np.zeros((2, 1, 2, 8), np.float32)
        cache, other = np.zeros((2, 4, 2, 8), np.float32), np.zeros((2, 4, 2, 8), np.float32)
        angles = np.zeros((9, 4), np.float32)
        read_only = cache.copy()
        read_only.flags.writeable = False
        cases = [
            ("cache_seqlens is missing", (q, cache, other, k, k), {}),
            ("k and v are given together", (q, cache, other, k), {"cache_seqlens": 1}),
            ("rotary_cos is given, but no new k", (q, cache, other, None, None, angles, angles), {"cache_seqlens": 1}),
            ("rotary_cos and rotary_sin are given together", (q, cache, other, k, k, angles), {"cache_seqlens": 1}),
            ("k_cache is read-only", (q, read_only, other, k, k), {"cache_seqlens": 1}),
            ("v_cache has heads 1, but", (q, cache, other[:, :, :1], k, k), {"cache_seqlens": 1}),
            ("k_cache has batch 1, but", (q, cache[:1], other[:1], k, k), {"cache_seqlens": 1}),
            ("k_cache shares memory with k;", (q, cache, other, cache[:, :1], k), {"cache_seqlens": 1}),
            ("v_cache shares memory with k_cache, but does not come after it", (q, cache[:, 1:], cache[:, :3], k, k), {"cache_seqlens": 1}),
            ("k_cache overlaps v_cache", (q, cache, cache, k, k), {"cache_seqlens": 1}),
            (r"cache_seqlens.0. is 4, and 1 row follows, but there is room for 4", (q, cache, other, k, k), {"cache_seqlens": 4}),
        ]
        for text, tensors, options in cases:
            with self.subTest(text), self.assertRaisesRegex(warptile.InvalidInput, text):
                flash_attn_with_kvcache(*tensors, **options)
        part = np.zeros((2, 300, 2, 8), np.float32)[:, :290]
        for option in ("cache_batch_idx", "cache_leftpad"):
            with self.assertRaisesRegex(warptile.InvalidInput, "k_cache has gaps between its sequences"):
                flash_attn_with_kvcache(q, part, part, cache_seqlens=2, **{option: np.zeros(2, np.int32)})
        with self.assertRaisesRegex(warptile.InvalidType, "v has elements of type float64"):
            flash_attn_with_kvcache(q, cache, other, k, k.astype(np.float64), cache_seqlens=1)

    def test_errors_have_the_names_of_the_function(self):
        q, pages = np.zeros((2, 5, 4, 16), np.float32), np.zeros((3, 8, 4, 16), np.float32)
        rows = q.reshape(10, 4, 16)
        table = np.zeros((2, 1), np.int32)
        wide = np.zeros((2, 5, 3, 4, 520), np.float32)
        cases = [
            ("^softmax_scale is inf", flash_attn_func, (q, q, q), {"softmax_scale": float("inf")}),
            ("argument 'softmax_scale'", flash_attn_func, (q, q, q), {"softmax_scale": "big"}),
            ("^window_size has a side of 4294967296 keys", flash_attn_func, (q, q, q), {"window_size": (2**32, 0)}),
            ("^k has head size 24, but q has 16", flash_attn_func, (q, np.zeros((2, 5, 4, 24), np.float32), q), {}),
            ("^qkv has head size 520; the largest", flash_attn_qkvpacked_func, (wide,), {}),
            (r"^qkv has shape \[2, 5, 4, 16\]; it must be \[batch, length, 3, heads", flash_attn_qkvpacked_func, (q,), {}),
            (r"^kv has shape \[2, 5, 3, 4, 520\]; it must be \[batch, length, 2, heads", flash_attn_kvpacked_func, (q, wide), {}),
            (r"^qkv has shape .*; it must be \[rows, 3, heads", flash_attn_varlen_qkvpacked_func, (rows, [0, 5, 10], 5), {}),
            ("^max_seqlen is 4, but sequence 0 has 5 rows of qkv", flash_attn_varlen_qkvpacked_func, (np.stack([rows] * 3, 1), [0, 5, 10], 4), {}),
            ("^window_size is 3, but must be two numbers", flash_attn_func, (q, q, q), {"window_size": 3}),
            (r"^window_size is \(1,\), but must be two numbers", flash_attn_func, (q, q, q), {"window_size": (1,)}),
            ("^cache_batch_idx has length 1, but q has batch 2", flash_attn_with_kvcache, (q, pages, pages), {"cache_batch_idx": [1]}),
            ("^cache_leftpad has length 3, but q has batch 2", flash_attn_with_kvcache, (q, pages, pages), {"cache_leftpad": [0, 1, 0]}),
            ("^kv has batch 2, but q has 1", flash_attn_kvpacked_func, (q[:1], np.zeros((2, 5, 2, 4, 16), np.float32)), {}),
            (r"^cu_seqlens\[2\] is 11", flash_attn_varlen_qkvpacked_func, (np.stack([rows] * 3, 1), [0, 5, 11], 6), {}),
            (r"^cu_seqlens_k\[2\] is 11", flash_attn_varlen_func, (rows, rows, rows, [0, 5, 10], [0, 5, 11], 5, 6), {}),
            (r"^cu_seqlens_k\[1\] is 9", flash_attn_varlen_func, (rows, pages, pages, [0, 5, 10], [0, 5, 14], 5, 9), {"block_table": table}),
            (r"^cache_seqlens\[1\] is 9", flash_attn_with_kvcache, (q, pages, pages), {"cache_seqlens": [3, 9], "block_table": table}),
            ("^v_cache has length 6, but k_cache has 5", flash_attn_with_kvcache, (q, q, np.zeros((2, 6, 4, 16), np.float32)), {}),
            ("^k_cache has elements of type float64", flash_attn_with_kvcache, (q, q.astype(np.float64), q), {}),
        ]
        for text, function, tensors, options in cases:
            with self.subTest(text), self.assertRaisesRegex((warptile.Error, TypeError), text):
                function(*tensors, **options)

    def test_what_is_refused_has_written_nothing(self):
        odd = np.frombuffer(bytearray(2 * 4 * 16 * 4 + 1), np.float32, 2 * 4 * 16, 1).reshape(2, 1, 4, 16)
        for size, rows in ((16, 16), (13, 16), (16, 600)):
            q, k, v = draw(21, (2, 1, 4, size), (2, 1, 2, size), (2, 1, 2, size))
            past = draw(22, (2, rows, 2, size), (2, rows, 2, size))
            angles = np.ones((rows, 2), np.float32)
            table = np.array([[1], [0]], np.int32)
            cases = [
                ("softcap is -1", {"softcap": -1.0}),
                ("^softmax_scale is NaN", {"softmax_scale": float("nan")}),
                (r"alibi_slopes has shape \[1\]", {"alibi_slopes": [1.0]}),
                (r"alibi_slopes\[3\] is NaN", {"alibi_slopes": [0.0, 0.0, 0.0, float("nan")]}),
                (r"cache_batch_idx\[0\] is 5, but k_cache has 2 sequences", {"cache_batch_idx": [5, 0]}),
                (r"cache_batch_idx\[1\] is 2, but block_table has 2 sequences", {"cache_batch_idx": [0, 2], "block_table": table}),
                (r"cache_leftpad\[1\] is 9, but sequence 1 has 8 rows", {"cache_leftpad": [0, 9]}),
                ("head size", {"q": q[..., :8]}),
                ("q has 3 heads and k_cache has 2", {"q": q[:, :, :3]}),
                ("softcap is -1", {"softcap": -1.0, "rotary_cos": angles, "rotary_sin": angles}),
                (r"block_table\[\d\] is", {"block_table": np.array([[1], [7]], np.int32)}),
            ]
            if size == 16:
                cases.append(("q starts at .* not a multiple of 4", {"q": odd}))
            for text, options in cases:
                k_cache, v_cache = (x.copy() for x in past)
                given = {"q": q, "k": k, "v": v, "cache_seqlens": 7, **options}
                with self.subTest(text, size=size, rows=rows), self.assertRaisesRegex(warptile.InvalidInput, text):
                    flash_attn_with_kvcache(k_cache=k_cache, v_cache=v_cache, **given)
                np.testing.assert_array_equal(k_cache, past[0], text)
                np.testing.assert_array_equal(v_cache, past[1], text)

    def test_tables_of_angles_that_are_too_short(self):
        q, k, v = draw(23, (2, 1, 4, 16), (2, 1, 2, 16), (2, 1, 2, 16))
        pages = np.zeros((6, 4, 2, 16), np.float32)
        angles = lambda rows: np.ones((rows, 8), np.float32)
        table = np.arange(6, dtype=np.int32).reshape(2, 3)
        dense = {"k_cache": pages.reshape(2, 12, 2, 16), "v_cache": np.zeros((2, 12, 2, 16), np.float32)}
        paged = {"k_cache": pages, "v_cache": np.zeros_like(pages), "block_table": table}
        for caches in (dense, {**dense, "cache_batch_idx": [1, 0]}, paged):
            for queries in (q, np.concatenate([q, q], 1)):
                write = lambda cos, sin: flash_attn_with_kvcache(
                    queries, k=k, v=v, rotary_cos=cos, rotary_sin=sin, cache_seqlens=2, causal=True, **caches
                )
                write(angles(12), angles(12))
                pages[:] = 0
                for name, tables in (("cos", (angles(11), angles(11))), ("sin", (angles(12), angles(11)))):
                    text = f"rotary_{name} has 11 positions, but a sequence of the cache can have 12 rows"
                    with self.assertRaisesRegex(warptile.InvalidInput, text):
                        write(*tables)
                    self.assertFalse(pages.any())

    def test_tables_of_angles_in_the_cache(self):
        q, k, v = draw(24, (2, 1, 4, 16), (2, 1, 2, 16), (2, 1, 2, 16))
        for name in ("rotary_cos", "rotary_sin"):
            for cache in ("k_cache", "v_cache"):
                caches = {each: np.zeros((2, 16, 2, 16), np.float32) for each in ("k_cache", "v_cache")}
                tables = {each: np.ones((16, 8), np.float32) for each in ("rotary_cos", "rotary_sin")}
                tables[name] = caches[cache].reshape(-1)[100:228].reshape(16, 8)
                with self.assertRaisesRegex(warptile.InvalidInput, f"{cache} shares memory with {name}"):
                    flash_attn_with_kvcache(q, k=k, v=v, cache_seqlens=7, **caches, **tables)
                self.assertFalse(caches[cache].any())

    def test_numbers_of_sequences_and_padding_are_not_negative(self):
        q, k, v = draw(25, (2, 1, 4, 16), (2, 9, 2, 16), (2, 9, 2, 16))
        table = np.array([[0], [1]], np.int32)
        for options in ({}, {"block_table": table}):
            for places in ([-1, 0], np.array([-1, 0])):
                with self.assertRaisesRegex(warptile.InvalidInput, r"cache_batch_idx\[0\] is -1, but .* has 2 sequences"):
                    flash_attn_with_kvcache(q, k, v, cache_seqlens=8, cache_batch_idx=places, **options)
            for padding in ([0, -3], np.array([0, -3])):
                with self.assertRaisesRegex(warptile.InvalidInput, r"cache_leftpad\[1\] is -3, but must be 0 or more"):
                    flash_attn_with_kvcache(q, k, v, cache_seqlens=5, cache_leftpad=padding, **options)
        for name in ("cache_batch_idx", "cache_leftpad"):
            for wrong in (np.int32(1), [[0], [1]], [0.5, 1.0]):
                with self.assertRaisesRegex(warptile.InvalidInput, f"{name} must be whole numbers in the one dimension"):
                    flash_attn_with_kvcache(q, k, v, cache_seqlens=8, **{name: wrong})

    def test_one_length_of_any_kind_of_number(self):
        q, k, v, new_k, new_v = draw(26, (2, 1, 4, 16), *[(2, 9, 2, 16)] * 2, *[(2, 1, 2, 16)] * 2)
        call = lambda length: flash_attn_with_kvcache(q, k.copy(), v.copy(), new_k, new_v, cache_seqlens=length)
        for length in (np.int64(7), np.uint8(7), np.array(7)):
            np.testing.assert_array_equal(call(length), call(7))
        for length in (np.float32(7), np.array(7.0)):
            with self.assertRaises((warptile.InvalidInput, warptile.InvalidType)):
                call(length)


if __name__ == "__main__":
    unittest.main()
