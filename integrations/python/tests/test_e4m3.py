"""Keys and values in float8_e4m3fn, or its bits as uint8, with queries of other types."""

import unittest

import ml_dtypes
import numpy as np
import reference
import warptile
from exporters import ArrayInterface, DLPack
from reference import check, draw
from warptile.flash_attn import flash_attn_with_kvcache


def widened():
    """The number of each of the 256 bytes: sign, 4 bits of exponent against 7, 3 bits of fraction."""
    bits = np.arange(256)
    exponent, fraction = bits >> 3 & 15, bits & 7
    size = np.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0 ** (exponent - 10))
    return np.where(bits & 0x7F == 0x7F, np.nan, np.where(bits & 0x80, -size, size))


NUMBERS = widened()


def quantized(x, scale):
    """The bytes nearest to x / scale, ties to even, at most 448."""
    scaled = (np.asarray(x, np.float32) / np.float32(scale)).astype(np.float64)
    positive = NUMBERS[:127]
    middles = (positive[1:] + positive[:-1]) / 2
    size = abs(scaled)
    below, above = np.searchsorted(middles, size, "left"), np.searchsorted(middles, size, "right")
    nearest = np.where(below % 2 == 0, below, above)
    return (nearest | np.where(np.signbit(scaled), 0x80, 0)).astype(np.uint8)


def restored(bits, scale):
    return NUMBERS[bits] * np.asarray(scale, np.float32).astype(np.float64).reshape(-1, 1)


def typed(bits):
    return bits.view(ml_dtypes.float8_e4m3fn)


def problem(seed=1, dtype=np.float32, k_scale=0.02, v_scale=0.03):
    """Queries, the bits of keys and values, and the right output."""
    q, k, v = draw(seed, (2, 3, 4, 16), (2, 9, 2, 16), (2, 9, 2, 16), dtype=dtype)
    k, v = (quantized(x, np.float32(scale).reshape(-1, 1)) for x, scale in ((k, k_scale), (v, v_scale)))
    expected, _ = reference.attention(q, restored(k, k_scale), restored(v, v_scale), causal=True)
    return q, k, v, expected


def wrong_shapes(sequences, heads):
    """Scales whose extents are not those of the call, each with what is said of it. Most are in order if only one extent is looked at."""
    table = lambda *shape: np.broadcast_to(np.float32(1), shape)
    rows = lambda count, scales: np.broadcast_to(np.ones(scales, np.float32), (count, scales))
    fits = rf"the call has {sequences} sequences and {heads} key/value heads"
    return [
        (np.zeros((0, heads), np.float32), "has 0 numbers; it needs 1"),
        (np.zeros((0, 2**27), np.float32), "has 0 numbers; it needs 1"),
        (np.zeros((0, 1), np.float32), "has 0 numbers; it needs 1"),
        (np.zeros((sequences, 0), np.float32), "has 0 numbers; it needs 1"),
        (np.zeros(0, np.float32), "has 0 numbers; it needs 1"),
        (table(7, heads), fits),
        (rows(7, heads), fits),
        (table(7, 1), fits),
        (table(sequences, 5), fits),
        (table(5), fits),
        (np.zeros((1, 1, 1), np.float32), "has shape .1, 1, 1.; it must be a number, or have the dimensions"),
    ]


class E4m3(unittest.TestCase):
    def test_the_numbers_are_those_of_ml_dtypes(self):
        np.testing.assert_array_equal(typed(np.arange(256, dtype=np.uint8)).astype(np.float64), NUMBERS)
        x = draw(1, (1000,))[0] * 100
        np.testing.assert_array_equal(quantized(x, 0.5), (x / 0.5).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8))

    def test_bits_and_scales(self):
        each = [0.02, 0.5]
        shapes = [
            ({"k_scale": 0.02, "v_scale": 0.03}, 0.02, 0.03),
            ({"k_scale": 0.02, "v_scale": 0.03}, [0.02], np.array([0.03], np.float32)),
            ({"k_scale": 0.02, "v_scale": 0.03}, np.array(0.02, np.float32), np.broadcast_to(np.float32(0.03), (2, 2))),
            ({"k_scale": each, "v_scale": 0.03}, each, 0.03),
            ({"k_scale": each, "v_scale": each}, np.array(each, np.float32), np.broadcast_to(np.array(each, np.float32), (2, 2))),
        ]
        for dtype in (np.float32, np.float16):
            for scales, k_descale, v_descale in shapes:
                q, k, v, expected = problem(3, dtype, **scales)
                found = warptile.attention(q, k, v, causal=True, k_descale=k_descale, v_descale=v_descale)
                self.assertEqual(found.dtype, dtype)
                check(self, found, expected, np.dtype(dtype).name)

    def test_types(self):
        q, k, v, expected = problem()
        options = {"causal": True, "k_descale": 0.02, "v_descale": 0.03}
        for make in (typed, lambda x: DLPack(x, e4m3=True), DLPack, ArrayInterface):
            check(self, warptile.attention(q, make(k), make(v), **options), expected, "float32")
        # A type that says what it is, and no scales.
        with self.assertRaisesRegex(ValueError, "k_descale is missing, but k and v are in float8_e4m3fn"):
            warptile.attention(q, typed(k), typed(v))
        with self.assertRaisesRegex(ValueError, "v_descale is missing"):
            warptile.attention(q, typed(k), typed(v), k_descale=1.0)

    def test_what_is_refused(self):
        q, k, v, _ = problem()
        wide = draw(1, k.shape)[0]
        one = {"k_descale": 1.0, "v_descale": 1.0}
        cases = [
            (TypeError, "k has elements of type uint8, but must have float16, bfloat16 or float32", (q, k, v), {}),
            (ValueError, "k_descale is given, but k has elements of type float32", (q, wide, wide), one),
            (TypeError, "v has elements of type float32, but must have uint8, as k has", (q, k, wide), one),
            (TypeError, "q has elements of type uint8", (k, k, v), one),
            (ValueError, "v_descale has 3 numbers; it needs 1, or one for each of the 2", (q, k, v), {**one, "v_descale": [1.0] * 3}),
            (ValueError, r"k_descale\[1\] is 0, but must be a finite number", (q, k, v), {**one, "k_descale": [1.0, 0.0]}),
            (
                ValueError,
                "k_descale has shape .2, 2.; warptile takes the same scales for all sequences",
                (q, k, v),
                {**one, "k_descale": np.ones((2, 2), np.float32)},
            ),
            (ValueError, "k_descale has stride 2", (q, k, v), {**one, "k_descale": np.ones(4, np.float32)[::2]}),
            (TypeError, "k_descale has elements of type float64", (q, k, v), {**one, "k_descale": np.ones(2)}),
        ]
        for error, text, tensors, options in cases:
            with self.subTest(text), self.assertRaisesRegex(error, text):
                warptile.attention(*tensors, **options)

    def test_scales_of_another_call(self):
        q, k, v, _ = problem()
        new = draw(1, (2, 1, 2, 16))[0]
        write = {"k": new, "v": new, "k_cache": k, "v_cache": v, "cache_seqlens": [0, 0]}
        for scale, text in wrong_shapes(2, 2):
            for name in ("k_descale", "v_descale"):
                scales = {"k_descale": 1.0, "v_descale": 1.0, name: scale}
                with self.subTest(shape=scale.shape, name=name):
                    with self.assertRaisesRegex(ValueError, f"{name} .*{text}"):
                        warptile.attention(q, k, v, **scales)
                    with self.assertRaisesRegex(ValueError, f"{name} .*{text}"):
                        warptile._native.write_cache(**write, **scales)

    def test_cache_that_is_written(self):
        lengths, scales = [5, 7], {"k_descale": [0.02, 0.01], "v_descale": 0.03}
        for dtype in (np.float32, np.float16):
            q, k_before, v_before, k, v = draw(5, (2, 2, 4, 16), *[(2, 12, 2, 16)] * 2, *[(2, 2, 2, 16)] * 2, dtype=dtype)
            bits = [quantized(x, np.float32(s).reshape(-1, 1)) for x, s in zip((k_before, v_before), scales.values())]
            new = [quantized(x, np.float32(s).reshape(-1, 1)) for x, s in zip((k, v), scales.values())]
            dense, written = [x.copy() for x in bits], [x.copy() for x in bits]
            for b, length in enumerate(lengths):
                for cache, rows in zip(written, new):
                    cache[b, length : length + 2] = rows[b]
            out = flash_attn_with_kvcache(q, *dense, k, v, cache_seqlens=lengths, causal=True, **scales)
            for cache, expected in zip(dense, written):
                np.testing.assert_array_equal(cache, expected)
            for b, length in enumerate(lengths):
                keys, values = (
                    restored(x[b : b + 1, : length + 2], s) for x, s in zip(written, scales.values())
                )
                expected, _ = reference.attention(q[b : b + 1], keys, values, causal=True)
                check(self, out[b : b + 1], expected, np.dtype(dtype).name)
            # Pages of 4 rows, in another order.
            order = np.array([[4, 0, 2], [1, 5, 3]], np.int32)
            pages = [np.zeros((6, 4, 2, 16), np.uint8) for _ in range(2)]
            for paged, cache in zip(pages, bits):
                paged[order] = cache.reshape(2, 3, 4, 2, 16)
            paged_out = flash_attn_with_kvcache(q, *pages, k, v, cache_seqlens=lengths, block_table=order, causal=True, **scales)
            np.testing.assert_array_equal(paged_out, out)
            np.testing.assert_array_equal(pages[0][order].reshape(written[0].shape), written[0])

    def test_errors_of_writes(self):
        q, k, v = draw(1, (1, 1, 2, 16), (1, 1, 2, 16), (1, 1, 2, 16))
        cache = np.zeros((1, 4, 2, 16), np.uint8)
        write = lambda **scales: flash_attn_with_kvcache(q, cache, cache.copy(), k, v, cache_seqlens=[0], **scales)
        with self.assertRaisesRegex(TypeError, "k_cache has elements of type uint8, but must have float16, bfloat16 or float32"):
            write()
        with self.assertRaisesRegex(ValueError, "v_descale is missing, but k_cache and v_cache are in float8_e4m3fn"):
            write(k_descale=1.0)
        with self.assertRaisesRegex(ValueError, "k_descale has 3 numbers"):
            write(k_descale=[1.0] * 3, v_descale=1.0)
        with self.assertRaisesRegex(ValueError, r"v_descale\[0\] is -1, but must be"):
            write(k_descale=1.0, v_descale=-1.0)


if __name__ == "__main__":
    unittest.main()
