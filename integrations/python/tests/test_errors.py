"""Everything that is wrong is an exception that says what, and never a crash."""

import unittest

import numpy as np
import warptile
from exporters import ArrayInterface


def tensor(*shape, dtype=np.float32):
    return np.zeros(shape or (2, 5, 4, 16), dtype)


class Errors(unittest.TestCase):
    def fails(self, error, text, *tensors, **options):
        with self.assertRaisesRegex(error, text) as caught:
            warptile.attention(*tensors, **options)
        self.assertIsInstance(caught.exception, warptile.Error)

    def test_classes(self):
        self.assertTrue(issubclass(warptile.InvalidInput, ValueError))
        self.assertTrue(issubclass(warptile.InvalidType, TypeError))
        self.assertTrue(issubclass(warptile.NoKernel, ValueError))
        self.assertTrue(issubclass(warptile.DeviceError, RuntimeError))
        self.assertTrue(issubclass(warptile.OutOfMemory, MemoryError))
        self.assertEqual(repr(warptile.InvalidInput), "<class 'warptile.InvalidInput'>")

    def test_types(self):
        q = tensor()
        self.fails(TypeError, "k is of type int; a tensor must have DLPack", q, 3, q)
        self.fails(TypeError, "q is of type list", [[1.0]], q, q)
        self.fails(TypeError, "q is of type NoneType", None, q, q)
        self.fails(TypeError, "q has elements of type float64, but must have float16", tensor(dtype=np.float64), q, q)
        self.fails(TypeError, "v has elements of type float16, but must have float32, as q has", q, q, tensor(dtype=np.float16))
        self.fails(TypeError, "q has elements of type >f4", tensor(dtype=">f4"), q, q)
        self.fails(TypeError, "complex64", tensor(dtype=np.complex64), q, q)
        self.fails(TypeError, "out has elements of type float16", q, q, q, out=tensor(dtype=np.float16))
        self.fails(TypeError, "lse has elements of type float64", q, q, q, lse=np.zeros((2, 4, 5)))
        self.fails(TypeError, "alibi_slopes has .* float64, but must have float32", q, q, q, alibi_slopes=np.zeros(4))
        self.fails(ValueError, r"key_mask has batch 5, but the call has 2", q, q, q, key_mask=np.ones((5, 5), bool))
        self.fails(TypeError, "key_mask .* must have bool", q, q, q, key_mask=tensor(2, 4, 5, 5))
        self.fails(TypeError, "bias has .*float16, but must have float32, as q has", q, q, q, bias=tensor(5, 5, dtype=np.float16))
        half = tensor(2, 5, 4, 16, dtype=np.float16)
        self.fails(TypeError, "bias has .*float64, but must have float16", half, half, half, bias=tensor(5, 5, dtype=np.float64))
        self.fails(TypeError, "cu_seqlens_q has .*float32, but must have int32", tensor(5, 4, 16), q, q, cu_seqlens_q=tensor(3))
        self.fails(TypeError, "masked array", np.ma.masked_array(q, q > 0), q, q)
        for name, value in (("scale", "big"), ("window", 3), ("window", (1, 2, 3)), ("max_seqlen_q", -1), ("stream", -1), ("layout", 3)):
            with self.subTest(name, value=value), self.assertRaisesRegex((TypeError, warptile.InvalidInput), f"argument '{name}': "):
                warptile.attention(q, q, q, **{name: value})
        self.fails(ValueError, "stream is given, but q is on the CPU", q, q, q, stream=5)

    def test_shapes(self):
        q = tensor()
        self.fails(ValueError, r"q has shape \[5, 4, 16\]; it must have the four dimensions", q[0], q, q)
        self.fails(ValueError, "q has 5 dimensions", q[None], q, q)
        self.fails(ValueError, "k has batch 3, but q has 2", q, tensor(3, 5, 4, 16), tensor(3, 5, 4, 16))
        self.fails(ValueError, "v has length 6, but k has 5", q, q, tensor(2, 6, 4, 16))
        self.fails(ValueError, "k has head size 8, but q has 16", q, tensor(2, 5, 4, 8), q)
        self.fails(ValueError, "query heads a multiple", q, tensor(2, 5, 3, 16), tensor(2, 5, 3, 16))
        self.fails(ValueError, "head size 12; a head size must be a multiple of 8", *[tensor(1, 1, 1, 12)] * 3)
        self.fails(ValueError, "the largest head size is 512", *[tensor(1, 1, 1, 520)] * 3)
        self.fails(ValueError, "out has length 4, but q has 5", q, q, q, out=tensor(2, 4, 4, 16))
        self.fails(ValueError, r"lse has shape \[2, 5, 4\], but must have \[2, 4, 5\]", q, q, q, lse=tensor(2, 5, 4))
        self.fails(ValueError, "lse is not contiguous", q, q, q, lse=tensor(2, 4, 10)[:, :, ::2])
        self.fails(ValueError, r"alibi_slopes has shape \[3\]; it must be \[heads\] or", q, q, q, alibi_slopes=[1.0] * 3)
        self.fails(ValueError, r"alibi_slopes has shape \[3, 4\]; .* for 4 heads and batch 2", q, q, q, alibi_slopes=tensor(3, 4))
        # As many as there should be.
        self.fails(ValueError, r"alibi_slopes has shape \[4, 2\]; .* for 4 heads", q, q, q, alibi_slopes=tensor(4, 2))
        self.fails(ValueError, r"sinks has shape \[5\]; it must be \[heads\], for 4 heads", q, q, q, sinks=np.zeros(5, np.float32))
        self.fails(ValueError, r"sinks has shape \[2, 2\]; it must be \[heads\]", q, q, q, sinks=tensor(2, 2))
        self.fails(ValueError, "bias has keys 4, but the call has 5", q, q, q, bias=tensor(4))
        self.fails(ValueError, "block_table .* two dimensions", q, q, q, block_table=np.zeros(3, np.int32))

    def test_values(self):
        q = tensor()
        self.fails(ValueError, "scale is inf", q, q, q, scale=float("inf"))
        self.fails(ValueError, "softcap is -1", q, q, q, softcap=-1.0)
        self.fails(ValueError, r"sinks\[0\] is NaN", q, q, q, sinks=[float("nan")] * 4)
        self.fails(ValueError, "window has a side of -2 keys", q, q, q, window=(-2, 0))
        self.fails(ValueError, "window has a side of 4294967296 keys", q, q, q, window=(2**32, 0))
        self.fails(ValueError, "diagonal .* needs causal or window", q, q, q, diagonal="top-left")
        self.fails(ValueError, 'diagonal: "left" is not a diagonal', q, q, q, causal=True, diagonal="left")
        self.fails(ValueError, 'diagonal: "2147483648" is not a diagonal', q, q, q, causal=True, diagonal=2**31)
        self.fails(ValueError, 'diagonal: "1.5" is not a diagonal', q, q, q, causal=True, diagonal=1.5)
        self.fails(ValueError, 'layout is "sbhd"', q, q, q, layout="sbhd")
        self.fails(ValueError, r'kernel is "scalar", but the tensors are on the CPU, where it must be "best" or "cpu"', q, q, q, kernel="scalar")

    def test_words_are_quoted_and_cut(self):
        q, hostile = tensor(), "\x1b[2J" + "x" * 100_000
        shown = r'"\\u\{1b\}\[2Jx{56}\.\.\."'
        for name in ("layout", "kernel"):
            self.fails(ValueError, f"{name} is {shown}, but ", q, q, q, **{name: hostile})
        self.fails(ValueError, f"diagonal: {shown} is not a diagonal", q, q, q, causal=True, diagonal=hostile)
        with self.assertRaisesRegex(TypeError, "argument 'causal': 'str' object is not"):
            warptile.attention(q, q, q, causal=hostile)
        with self.assertRaisesRegex(ValueError, f"device: unknown GPU {shown}"):
            warptile.explain(q, q, q, device=hostile)
        with self.assertRaisesRegex(ValueError, f"unknown kernel {shown}"):
            warptile.explain(q, q, q, device="h200", kernel=hostile)
        with self.assertRaisesRegex(TypeError, r"q is of type \w+\.x+\.\.\.; ") as caught:
            warptile.attention(type("x" * 100_000, (), {"__module__": __name__})(), q, q)
        self.assertLess(len(str(caught.exception)), 300)
        with self.assertRaisesRegex(TypeError, "q has elements of type .*, but must have float16") as caught:
            warptile.attention(ArrayInterface(q, typestr=hostile), q, q)
        self.assertLess(len(str(caught.exception)), 300)

    def test_lengths(self):
        packed = tensor(6, 4, 16)
        for offsets, text in [
            ([], "cu_seqlens_q.0. is missing"),
            ([1, 6], "cu_seqlens_q.0. is 1; the first sequence must start at row 0"),
            ([0, 4, 2], "cu_seqlens_q.2. is 2, less than the offset before it"),
            ([0, 7], "cu_seqlens_q.1. is 7, but the tensor has only 6 rows"),
            ([0, 2**40], "cu_seqlens_q.1. is 1099511627776, which does not fit 32 bits"),
        ]:
            with self.subTest(offsets):
                self.fails(ValueError, text, packed, packed, packed, cu_seqlens_q=offsets, cu_seqlens_k=[0, 6])
        self.fails(ValueError, "cu_seqlens_k has 2 sequences, but cu_seqlens_q has 1", packed, packed, packed, cu_seqlens_q=[0, 6], cu_seqlens_k=[0, 3, 6])
        for side in "qk":
            text, longest = f"max_seqlen_{side} is 3, but sequence 1 has 4 rows of {side}", {f"max_seqlen_{side}": 3}
            self.fails(ValueError, text, packed, packed, packed, cu_seqlens_q=[0, 2, 6], cu_seqlens_k=[0, 2, 6], **longest)
        q = tensor()
        self.fails(ValueError, "max_seqlen_k is 3, but sequence 0 has 4 rows of k", q, q, q, seqused_k=[4, 1], max_seqlen_k=3)
        self.fails(TypeError, "block_list must be a warptile.BlockList", q, q, q, block_list=q)
        self.fails(ValueError, "seqused_k.1. is 6, but sequence 1 has 5 rows", q, q, q, seqused_k=[5, 6])
        self.fails(ValueError, "seqused_k.2. ends the list", q, q, q, seqused_k=[1, 1, 1])
        table = np.array([[0], [7]], np.int32)
        self.fails(ValueError, "block_table.1. is 7, but k has 2 pages", q, q, q, block_table=table)
        self.fails(ValueError, "keys in pages are not packed", q, q, q, block_table=table, cu_seqlens_k=[0, 1])

    def test_memory(self):
        q = tensor()
        self.fails(ValueError, "out shares memory with q", q, q.copy(), q.copy(), out=q)
        whole = tensor(2, 9, 4, 16)
        self.fails(ValueError, "out shares memory with k", q, whole[:, :5], whole[:, :5].copy(), out=whole[:, 4:])
        read_only = tensor()
        read_only.flags.writeable = False
        warptile.attention(read_only, read_only, read_only)
        self.fails(ValueError, "out is read-only", q, q, q, out=read_only)
        self.fails(ValueError, "out overlaps itself", q, q, q, out=np.lib.stride_tricks.as_strided(tensor(), strides=(0, 0, 0, 4)))
        self.fails(ValueError, "k has stride -320 in dimension 0", q, q[::-1], q)
        bytes_ = np.zeros(q.nbytes + 4, np.uint8)
        odd = bytes_[1:-3].view(np.float32).reshape(q.shape)
        self.fails(ValueError, "k starts at .*, which is not a multiple of 4 bytes", q, odd, q)
        record = np.zeros(q.shape, [("a", np.float32), ("b", np.uint8)])
        self.fails(ValueError, "stride of 5 bytes in dimension 3, which is not a multiple", q, record["a"], q)

    def test_huge(self):
        lonely = np.lib.stride_tricks.as_strided(tensor(1, 1, 1, 8), (2**19, 2**19, 2**19, 8), (0, 0, 0, 4))
        with self.assertRaises((ValueError, MemoryError)):
            warptile.attention(lonely, lonely, lonely)


if __name__ == "__main__":
    unittest.main()
