"""Arrays of libraries other than numpy: DLPack, the array interfaces, the buffer protocol."""

import array
import sys
import types
import unittest
import unittest.mock

import numpy as np
import reference
import warptile
from exporters import CUDA_HOST, METAL, ArrayInterface, DLPack, memory
from reference import check, draw


class Protocols(unittest.TestCase):
    def setUp(self):
        self.tensors = draw(1, (2, 7, 4, 16), (2, 9, 2, 16), (2, 9, 2, 16))
        self.expected, _ = reference.attention(*self.tensors)

    def computes(self, make):
        out = warptile.attention(*(make(x) for x in self.tensors))
        self.assertIsInstance(out, np.ndarray)
        check(self, out, self.expected, "float32")

    def test_dlpack(self):
        self.computes(DLPack)
        self.computes(lambda x: DLPack(x, version=None))
        self.computes(lambda x: DLPack(x, version=(1, 9)))
        self.computes(lambda x: DLPack(x, device=(CUDA_HOST, 0)))
        self.computes(lambda x: DLPack(x, give_strides=True))
        self.computes(lambda x: DLPack(x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3)))

    def test_dlpack_gets_no_stream_on_the_cpu(self):
        q, k, v = (DLPack(x) for x in self.tensors)
        warptile.attention(q, k, v)
        self.assertEqual((q.streams, k.streams, v.streams), ([None], [None], [None]))

    def test_dlpack_of_bfloat16(self):
        bits = [(x.view(np.uint32) >> 16).astype(np.uint16) for x in self.tensors]
        rounded = [(x.astype(np.uint32) << 16).view(np.float32) for x in bits]
        q, k, v = (DLPack(x.view(np.float16), bf16=True) for x in bits)
        out = np.zeros(q.array.shape, np.uint16)
        warptile.attention(q, k, v, out=DLPack(out.view(np.float16), bf16=True))
        expected, _ = reference.attention(*rounded)
        check(self, (out.astype(np.uint32) << 16).view(np.float32), expected, "bfloat16")

    def test_other_interfaces(self):
        self.computes(ArrayInterface)
        self.computes(memory)
        out = array.array("f", [0.0] * 4)
        out[:] = array.array("f", [1.0, 2.0, 3.0, 4.0])
        q, k, v = self.tensors
        expected, _ = reference.attention(q, k, v, sinks=out)
        check(self, warptile.attention(q, k, v, sinks=out), expected, "float32")
        half = np.float16
        expected, _ = reference.attention(*(x.astype(half) for x in self.tensors))
        check(self, warptile.attention(*(memory(x.astype(half)) for x in self.tensors)), expected, "float16")

    def test_what_cannot_be_read(self):
        q, k, v = self.tensors
        cases = [
            (ValueError, "q is on a device that warptile cannot use .DLPack type 8", DLPack(q, device=(METAL, 0))),
            (TypeError, "q comes as DLPack 2.0, but warptile reads version 1", DLPack(q, version=(2, 0))),
            (ValueError, "q has extent -2 in dimension 0", DLPack(q, shape=(-2, 7, 4, 16))),
            (TypeError, "q has elements of type DLPack .2, 32, 4.", DLPack(q, lanes=4)),
            (ValueError, "PyCapsule_GetPointer", DLPack(q, name=b"used_dltensor_versioned")),
            (ValueError, "q has no memory", DLPack(q, address=0)),
            (TypeError, "q has a mask", ArrayInterface(q, mask=ArrayInterface(q))),
            (TypeError, "q does not say where its data is", ArrayInterface(q, data=None)),
            (TypeError, "q has an array interface without shape", ArrayInterface(q, shape=None)),
            (TypeError, "q has elements of type <q9", ArrayInterface(q, typestr="<q9")),
            (TypeError, "q has elements of type f", ArrayInterface(q, typestr="f")),
            (ValueError, "q has 4 dimensions and 2 strides", ArrayInterface(q, strides=(4, 4))),
            (TypeError, "q has elements of type .*buffer protocol", memoryview(q.astype(np.complex128))),
        ]
        for error, text, bad in cases:
            with self.subTest(text), self.assertRaisesRegex(error, text):
                warptile.attention(bad, k, v)

    def test_read_only_outputs(self):
        q, k, v = self.tensors
        out = np.zeros_like(q)
        for read_only in (DLPack(out, flags=1), DLPack(out, flags=2), memory(out).toreadonly()):
            with self.assertRaisesRegex(warptile.InvalidInput, "out is read-only"):
                warptile.attention(q, k, v, out=read_only)
        warptile.attention(q, k, v, out=DLPack(out))
        check(self, out, self.expected, "float32")

    def test_arrays_of_jax_are_not_written_into(self):
        class ArrayImpl(DLPack):
            __module__ = "jaxlib._jax"

        q, k, v = self.tensors
        with self.assertRaisesRegex(warptile.InvalidInput, "out is an array of jax, which must not be written into"):
            warptile.attention(q, k, v, out=ArrayImpl(np.zeros_like(q)))
        out = np.zeros_like(q)
        warptile.attention(ArrayImpl(q), ArrayImpl(k), v, out=out)
        check(self, out, self.expected, "float32")

    def test_results_for_jax_are_on_its_device(self):
        class ArrayImpl(DLPack):
            __module__ = "jaxlib._jax"

            def devices(self):
                return {"cpu:1"}

        jax = types.ModuleType("jax")
        jax.device_put = lambda array, device: (device, array)
        q, k, v = map(ArrayImpl, self.tensors)
        with unittest.mock.patch.dict(sys.modules, jax=jax):
            (at, out), (lse_at, lse) = warptile.attention(q, k, v, return_lse=True)
            check(self, out, self.expected, "float32")
            merged = warptile.merge([(ArrayImpl(out), lse)])
            gradients = warptile.attention_backward(q, q, k, v, out, lse)
        self.assertEqual({at, lse_at, *(device for device, _ in (*merged, *gradients[:3]))}, {"cpu:1"})

    def test_exceptions_of_others_pass_through(self):
        class Refuses:
            def __dlpack_device__(self):
                return (1, 0)

            def __dlpack__(self, **_):
                raise BufferError("not today")

        with self.assertRaisesRegex(BufferError, "not today"):
            warptile.attention(Refuses(), *self.tensors[1:])

    def test_capsules_are_given_back(self):
        q, k, v = (DLPack(x) for x in self.tensors)
        before = sys.getrefcount(q)
        for _ in range(10):
            warptile.attention(q, k, v)
        self.assertEqual(sys.getrefcount(q), before)


if __name__ == "__main__":
    unittest.main()
