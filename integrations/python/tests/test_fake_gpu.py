"""The path to a GPU, against the stand-in driver: it runs no kernel, but records launches and finds what is wrong with them.

Skipped unless WARPTILE_FAKE_CUDA names the stand-in's library.
"""

import ctypes
import multiprocessing
import os
import subprocess
import sys
import threading
import unittest

import numpy as np
import warptile
from exporters import CUDA, MANAGED, CudaArrayInterface, DLPack
from reference import draw
from test_e4m3 import wrong_shapes

LIBRARY = os.environ.get("WARPTILE_FAKE_CUDA")
if LIBRARY:
    os.environ["WARPTILE_LIBCUDA"] = LIBRARY
OUT_OF_MEMORY, LAUNCH_FAILED = 2, 719


def in_child(queue):
    """What a forked process gets: of the GPU an error, of the CPU the result."""
    q = GpuTensors()
    try:
        q.attention()
        queue.put("no error")
    except warptile.DeviceError as error:
        queue.put(str(error))
    x = draw(1, (1, 16, 2, 16))[0]
    queue.put(warptile.attention(x, x, x))


class GpuTensors:
    """q, k, v and out at addresses that only have to be apart from each other."""

    def __init__(self, shape=(2, 512, 8, 64), dtype=np.float16, kv_shape=None, device=(CUDA, 0)):
        like = [np.broadcast_to(np.zeros((), dtype), shape) for _ in range(4)]
        for index in (1, 2):
            like[index] = np.broadcast_to(np.zeros((), dtype), kv_shape or shape)
        self.q, self.k, self.v, self.out = (
            DLPack(np.lib.stride_tricks.as_strided(x, strides=self.dense(x)), device=device, address=(i + 1) << 40)
            for i, x in enumerate(like)
        )

    @staticmethod
    def dense(x):
        return tuple(int(np.prod(x.shape[d + 1 :])) * x.itemsize for d in range(x.ndim))

    def attention(self, **options):
        return warptile.attention(self.q, self.k, self.v, **{"out": self.out, **options})


@unittest.skipUnless(LIBRARY, "WARPTILE_FAKE_CUDA is not set")
class FakeGpu(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.fake = ctypes.CDLL(LIBRARY)
        cls.fake.fake_calls.restype = ctypes.c_uint64
        cls.fake.fake_launch_count.restype = ctypes.c_size_t
        cls.fake.fake_violation_count.restype = ctypes.c_size_t
        cls.fake.fake_live.restype = ctypes.c_size_t
        cls.fake.fake_set_device_count(2)
        # Opens the device.
        GpuTensors().attention()
        cls.fake.cuInit(0)
        cls.context = ctypes.c_void_p()
        cls.fake.cuDevicePrimaryCtxRetain(ctypes.byref(cls.context), 0)

    def setUp(self):
        self.fake.cuCtxSetCurrent(self.context)
        self.fake.cuCtxSynchronize()
        self.fake.fake_forget_launches()

    def tearDown(self):
        self.fake.cuCtxSynchronize()
        self.assertEqual(self.fake.fake_violation_count(), 0)

    def launches(self):
        self.fake.cuCtxSynchronize()
        return self.fake.fake_launch_count()

    def stream(self):
        stream = ctypes.c_void_p()
        self.assertEqual(self.fake.cuStreamCreateWithPriority(ctypes.byref(stream), 1, 0), 0)
        return stream

    def memory(self, count):
        address = ctypes.c_uint64()
        self.assertEqual(self.fake.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(count)), 0)
        return address.value

    def numbers(self, *shape, dtype=np.int32):
        return DLPack(np.zeros(shape, dtype), device=(CUDA, 0), address=self.memory(8 * int(np.prod(shape)) + 8))

    def test_one_kernel_a_call(self):
        tensors = GpuTensors()
        self.assertIs(tensors.attention(), tensors.out)
        self.assertEqual(self.launches(), 1)
        tensors.attention(causal=True, softcap=3.0)
        self.assertEqual(self.launches(), 2)

    def test_dropout(self):
        tensors, state = GpuTensors(), self.numbers(8)
        with self.assertRaisesRegex(warptile.InvalidInput, "dropout_state is on the CPU, but q is on cuda:0"):
            tensors.attention(dropout_p=0.5, dropout_state=[0] * 8)
        with self.assertRaisesRegex(warptile.InvalidInput, "dropout_state has 7 values; 8 are needed"):
            tensors.attention(dropout_p=0.5, dropout_state=self.numbers(7))
        if warptile._native.has_kernels(0, True, True):
            tensors.attention(dropout_p=0.5, dropout_state=state)
            self.assertGreater(self.launches(), 0)
        else:
            with self.assertRaisesRegex(warptile.NoKernel, "does not support dropout"):
                tensors.attention(dropout_p=0.5, dropout_state=state)
        tensors.attention(dropout_p=0.0, dropout_state=state)

    def test_gpus_without_kernels(self):
        self.assertTrue(warptile._native.has_kernels(0, True, False) and warptile._native.has_kernels(0, False, False))
        program = "import warptile\nfake = __import__('ctypes').CDLL({!r})\nfake.fake_set_compute_capability(7, 5)\nprint(warptile._native.has_kernels(0, True, False))"
        done = subprocess.run([sys.executable, "-c", program.format(LIBRARY)], capture_output=True, text=True, timeout=300)
        self.assertEqual((done.stdout, done.stderr), ("False\n", ""))

    def test_a_known_problem_makes_few_driver_calls(self):
        tensors = GpuTensors((2, 4096, 8, 64))
        tensors.attention()
        before = self.fake.fake_calls(None)
        tensors.attention()
        # The context in and out, the stream's number and capture, three tensor maps, the launch.
        self.assertLessEqual(self.fake.fake_calls(None) - before, 9)

    def test_the_producer_is_told_the_stream(self):
        tensors, stream = GpuTensors(), self.stream()
        tensors.attention()
        self.assertEqual(tensors.q.streams, [1])
        tensors.attention(stream=stream.value)
        self.assertEqual(tensors.q.streams, [1, stream.value])
        self.assertEqual(tensors.out.streams, [1, stream.value])

    def test_managed_memory(self):
        GpuTensors(device=(MANAGED, 0)).attention()
        self.assertEqual(self.launches(), 1)

    def test_keys_in_e4m3(self):
        tensors = GpuTensors((2, 1, 8, 64), kv_shape=(2, 128, 2, 64))
        k, v = (
            DLPack(np.broadcast_to(np.uint8(0), (2, 128, 2, 64)), device=(CUDA, 0), address=(i + 9) << 40, e4m3=True) for i in range(2)
        )
        for cache in (k, v):
            cache.array = np.lib.stride_tricks.as_strided(cache.array, strides=GpuTensors.dense(cache.array))
        scales = {"k_descale": self.numbers(2, dtype=np.float32), "v_descale": self.numbers(1, dtype=np.float32)}
        warptile.attention(tensors.q, k, v, out=tensors.out, **scales)
        self.assertEqual(self.launches(), 1)
        text = warptile.explain(tensors.q, k, v, **scales)
        self.assertIn("_e4m3", text.splitlines()[2])
        new = GpuTensors((2, 1, 2, 64))
        write = {"k": new.q, "v": new.k, "k_cache": k, "v_cache": v, "cache_seqlens": self.numbers(2)}
        warptile._native.write_cache(**write, **scales)
        self.assertEqual(self.launches(), 2)
        # Numbers of the host are copied to the GPU once.
        on_host = {"k_descale": 0.5, "v_descale": [0.25, 2]}
        warptile.attention(tensors.q, k, v, out=tensors.out, **on_host)
        calls = []
        for _ in range(2):
            before = self.fake.fake_calls(None)
            warptile.attention(tensors.q, k, v, out=tensors.out, **on_host)
            calls.append(self.fake.fake_calls(None) - before)
        self.assertEqual(calls[0], calls[1])
        self.assertLess(calls[0], 9)
        warptile._native.write_cache(**write, **on_host)
        self.assertEqual(self.launches(), 6)
        for wrong, text in ((-1.0, r"k_descale\[0\] is -1, but must be"), ([1.0] * 3, "k_descale has 3 numbers")):
            with self.assertRaisesRegex(ValueError, text):
                warptile.attention(tensors.q, k, v, out=tensors.out, **{**scales, "k_descale": wrong})
            with self.assertRaisesRegex(ValueError, text):
                warptile._native.write_cache(**write, **{**scales, "k_descale": wrong})
        with self.assertRaisesRegex(ValueError, "v_descale has 3 numbers"):
            warptile.attention(tensors.q, k, v, out=tensors.out, **{**scales, "v_descale": self.numbers(3, dtype=np.float32)})
        for scale, text in wrong_shapes(2, 2):
            for name in scales:
                wrong = {**scales, name: DLPack(scale, device=(CUDA, 0), address=self.memory(64))}
                with self.subTest(shape=scale.shape, name=name):
                    with self.assertRaisesRegex(ValueError, f"{name} .*{text}"):
                        warptile.attention(tensors.q, k, v, out=tensors.out, **wrong)
                    with self.assertRaisesRegex(ValueError, f"{name} .*{text}"):
                        warptile._native.write_cache(**write, **wrong)
        self.assertEqual(self.launches(), 6)

    def test_devices_must_agree(self):
        tensors, other = GpuTensors(), GpuTensors(device=(CUDA, 1))
        with self.assertRaisesRegex(warptile.InvalidInput, "k is on cuda:1, but q is on cuda:0"):
            warptile.attention(tensors.q, other.k, tensors.v, out=tensors.out)
        with self.assertRaisesRegex(warptile.InvalidInput, "k is on the CPU, but q is on cuda:0"):
            warptile.attention(tensors.q, np.zeros((2, 512, 8, 64), np.float16), tensors.v, out=tensors.out)
        with self.assertRaisesRegex(warptile.InvalidInput, "v is on cuda:0, but q is on the CPU"):
            x = np.zeros((2, 512, 8, 64), np.float16)
            warptile.attention(x, x, tensors.v)
        with self.assertRaisesRegex(warptile.InvalidInput, "sinks is on the CPU"):
            tensors.attention(sinks=np.ones(8, np.float32))
        with self.assertRaisesRegex(warptile.DeviceError, "device"):
            GpuTensors(device=(CUDA, 7)).attention()
        other.attention()

    def test_results_need_a_place(self):
        tensors = GpuTensors()
        with self.assertRaisesRegex(warptile.InvalidInput, "out is missing"):
            warptile.attention(tensors.q, tensors.k, tensors.v)
        with self.assertRaisesRegex(warptile.InvalidInput, "out overlaps k"):
            tensors.attention(out=tensors.k)
        tensors.q.address += 1
        with self.assertRaisesRegex(warptile.InvalidInput, "q starts at .*, which is not a multiple of 2 bytes"):
            tensors.attention()

    def test_unaligned_tensors_get_another_kernel(self):
        tensors = GpuTensors()
        tensors.q.address += 2
        tensors.attention()
        self.assertEqual(self.launches(), 1)
        text = warptile.explain(tensors.q, tensors.k, tensors.v)
        self.assertIn("unaligned", text)

    def test_lengths_on_the_device(self):
        packed = GpuTensors((100, 8, 64))
        offsets = self.numbers(4)
        lse = DLPack(np.zeros((8, 100), np.float32), device=(CUDA, 0), address=self.memory(4000))
        lengths = {"cu_seqlens_q": offsets, "cu_seqlens_k": offsets, "max_seqlen_q": 60, "max_seqlen_k": 60}
        packed.attention(**lengths, lse=lse, causal=True)
        self.assertEqual(self.launches(), 1)
        with self.assertRaisesRegex(warptile.InvalidType, "cu_seqlens_q .* int64, but must have int32 or uint32 on a GPU"):
            packed.attention(cu_seqlens_q=self.numbers(4, dtype=np.int64), cu_seqlens_k=offsets)
        with self.assertRaisesRegex(warptile.InvalidInput, "cu_seqlens_q is on the CPU"):
            packed.attention(cu_seqlens_q=[0, 100], cu_seqlens_k=offsets)
        with self.assertRaisesRegex(warptile.InvalidInput, r"cu_seqlens_q\[0\] is missing: one offset more than sequences is needed"):
            packed.attention(cu_seqlens_q=self.numbers(0), cu_seqlens_k=offsets)
        cache = GpuTensors((2, 1, 8, 64), kv_shape=(9, 16, 2, 64))
        cache.attention(block_table=self.numbers(2, 4), seqused_k=self.numbers(2), max_seqlen_k=50)
        self.assertEqual(self.launches(), 2)
        with self.assertRaisesRegex(warptile.NoKernel, "does not support"):
            GpuTensors((2, 1, 8, 64), np.float32, (9, 16, 2, 64)).attention(block_table=self.numbers(2, 4), seqused_k=self.numbers(2))
        floats = self.numbers(7, dtype=np.float32)
        with self.assertRaisesRegex(warptile.InvalidInput, r"sinks has shape \[7\]; it must be \[heads\], for 8 heads"):
            cache.attention(sinks=floats, block_table=self.numbers(2, 4), seqused_k=self.numbers(2))

    def test_a_refused_call_writes_no_cache(self):
        tensors, new = GpuTensors((2, 1, 8, 64), kv_shape=(9, 16, 2, 64)), GpuTensors((2, 1, 2, 64))
        new.k.address, new.v.address = 1 << 45, 1 << 46
        table = self.numbers(2, 4)
        write = dict.fromkeys(("q", "rotary_cos", "rotary_sin", "k_descale", "v_descale"))
        write.update(k=new.k, v=new.v, k_cache=tensors.k, v_cache=tensors.v, cache_seqlens=self.numbers(2), block_table=table, interleaved=True)
        options = {"out": tensors.out, "block_table": table, "seqused_k": self.numbers(2)}
        seen = []
        call = lambda **more: warptile._native.attention_after_write(
            write, tensors.q, tensors.k, tensors.v, between=lambda: seen.append(self.launches()), **{**options, **more}
        )
        self.assertIs(call(), tensors.out)
        self.assertEqual((seen, self.launches()), ([1], 2))
        overlapping = DLPack(tensors.q.array, device=(CUDA, 0), address=tensors.k.address)
        bias = DLPack(np.zeros((1, 1, 1, 64), np.float16), device=(CUDA, 0), address=self.memory(128))
        cases = [
            (warptile.InvalidInput, "softcap is -1", lambda: call(softcap=-1.0)),
            (warptile.InvalidInput, "unknown kernel", lambda: call(kernel="decode_d65")),
            (warptile.NoKernel, "wgmma", lambda: call(kernel="wgmma", bias=bias)),
            (warptile.InvalidInput, "out overlaps k", lambda: call(out=overlapping)),
        ]
        for error, text, refused in cases:
            with self.subTest(text), self.assertRaisesRegex(error, text):
                refused()
            self.assertEqual((seen, self.launches()), ([1], 2))

    def test_cache_writes(self):
        new, cache = GpuTensors((2, 1, 2, 64)), GpuTensors((9, 16, 2, 64))
        options = {"k": new.k, "v": new.v, "k_cache": cache.k, "v_cache": cache.v, "cache_seqlens": self.numbers(2)}
        options["block_table"] = self.numbers(2, 4)
        # One after the other in memory, as k and v of one tensor would be: apart from new's addresses.
        cache.k.address, cache.v.address = 1 << 45, 1 << 46
        write = lambda **more: warptile._native.write_cache(**{**options, **more})
        self.assertIsNone(write())
        self.assertEqual(self.launches(), 1)
        angles = self.numbers(100, 16, dtype=np.float32)
        write(rotary_cos=angles, rotary_sin=angles)
        self.assertEqual(self.launches(), 2)
        with self.assertRaisesRegex(warptile.InvalidInput, "out is missing"):
            write(rotary_cos=angles, rotary_sin=angles, q=GpuTensors((2, 1, 8, 64)).q)
        with self.assertRaisesRegex(warptile.InvalidInput, "cache_seqlens is on the CPU, but k is on cuda:0"):
            write(cache_seqlens=[1, 2])
        # Nobody sees on a GPU how many rows a table has.
        for rows in (1, 3):
            with self.assertRaisesRegex(warptile.InvalidInput, f"block_table has {rows} rows, but k has batch 2"):
                write(block_table=self.numbers(rows, 4))
        self.assertEqual(self.launches(), 2)
        with self.assertRaisesRegex(warptile.InvalidInput, "k_cache overlaps v_cache"):
            cache.v.address = cache.k.address
            write()

    def test_merges(self):
        parts = [GpuTensors(), GpuTensors()]
        lse = lambda place: DLPack(np.zeros((2, 8, 512), np.float32), device=(CUDA, 0), address=place << 45)
        parts[1].q.address = 1 << 44
        pairs = [(parts[0].q, lse(1)), (parts[1].q, lse(2))]
        results = warptile.merge(pairs, out=parts[0].out, lse=lse(3))
        self.assertIs(results[0], parts[0].out)
        self.assertEqual(self.launches(), 1)
        stream = self.stream()
        warptile.merge(pairs, out=parts[0].out, lse=lse(3), stream=stream.value)
        self.assertEqual(parts[0].q.streams, [1, stream.value])
        with self.assertRaisesRegex(warptile.InvalidInput, "out is missing"):
            warptile.merge(pairs)
        with self.assertRaisesRegex(warptile.InvalidInput, r"parts\[\].lse is on the CPU, but parts\[\].out is on cuda:0"):
            warptile.merge([(parts[0].q, np.zeros((2, 8, 512), np.float32))], out=parts[0].out, lse=lse(3))
        with self.assertRaisesRegex(warptile.InvalidInput, "out overlaps parts"):
            warptile.merge(pairs, out=parts[1].q, lse=lse(3))

    def test_the_cuda_array_interface(self):
        shape = (2, 512, 8, 64)
        places = [self.memory(2 * 512 * 8 * 64 * 2) for _ in range(4)]
        q, k, v, out = (CudaArrayInterface(shape, at) for at in places)
        warptile.attention(q, k, v, out=out)
        self.assertEqual(self.launches(), 1)
        waits = lambda: self.fake.fake_calls(b"cuStreamSynchronize")
        before = waits()
        warptile.attention(CudaArrayInterface(shape, places[0], stream=1), k, v, out=out)
        self.assertEqual(waits(), before)
        warptile.attention(CudaArrayInterface(shape, places[0], stream=self.stream().value), k, v, out=out)
        self.assertEqual(waits(), before + 1)
        with self.assertRaisesRegex(warptile.InvalidInput, "q has the CUDA array interface, but 0x10 is not"):
            warptile.attention(CudaArrayInterface(shape, 16), k, v, out=out)

    def test_each_stream_and_each_capture_has_a_workspace(self):
        # Few queries on many keys: the kernel's CTAs share them, and meet in device memory.
        tensors, graph = GpuTensors((1, 1, 8, 128), kv_shape=(1, 65536, 8, 128)), ctypes.c_void_p()
        DEVICE_MEMORY = 3

        def growth(call):
            before = self.fake.fake_live(DEVICE_MEMORY)
            call()
            return self.fake.fake_live(DEVICE_MEMORY) - before

        first, second = self.stream(), self.stream()

        def capture(stream):
            self.assertEqual(self.fake.cuStreamBeginCapture_v2(stream, 0), 0)
            tensors.attention(stream=stream.value)
            tensors.attention(stream=stream.value)
            self.assertEqual(self.fake.cuStreamEndCapture(stream, ctypes.byref(graph)), 0)

        for stream in (first, second):
            self.assertEqual(growth(lambda: tensors.attention(stream=stream.value)), 1)
            self.assertEqual(growth(lambda: tensors.attention(stream=stream.value)), 0)
        # Until nothing is left of other tests' graphs.
        while growth(lambda: capture(first)) == 0:
            pass
        for stream in (first, first, second):
            self.assertEqual(growth(lambda: capture(stream)), 1)
        self.assertEqual(growth(lambda: tensors.attention(stream=first.value)), 0)

    def test_a_graph_takes_over_the_workspace_of_one_that_is_gone(self):
        tensors, stream = GpuTensors((1, 1, 8, 128), kv_shape=(1, 65536, 8, 128)), self.stream()
        more = GpuTensors((1, 1, 64, 128), kv_shape=(1, 65536, 8, 128))
        DEVICE_MEMORY, USER_OBJECTS = 3, 9

        def check(code):
            self.assertEqual(code, 0)

        def captured(*calls):
            graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
            check(self.fake.cuStreamBeginCapture_v2(stream, 0))
            for call in calls:
                call.attention(stream=stream.value)
            check(self.fake.cuStreamEndCapture(stream, ctypes.byref(graph)))
            check(self.fake.cuGraphInstantiateWithFlags(ctypes.byref(ready), graph, ctypes.c_uint64(0)))
            check(self.fake.cuGraphDestroy(graph))
            return ready

        # Kernels are loaded, and other tests' graphs have left what they had.
        kept = [captured(tensors, more) for _ in range(3)]
        before = self.fake.fake_live(DEVICE_MEMORY), self.fake.fake_live(USER_OBJECTS)
        for ready in kept:
            check(self.fake.cuGraphExecDestroy(ready))
        for _ in range(10):
            kept = [captured(tensors, more, tensors) for _ in range(3)]
            for ready in kept:
                check(self.fake.cuGraphLaunch(ready, stream))
                # A launch is under way: its workspace is not free.
                check(self.fake.cuGraphExecDestroy(ready))
            self.assertEqual(self.fake.fake_live(USER_OBJECTS), before[1])
            self.fake.cuCtxSynchronize()
            self.assertLess(self.fake.fake_live(USER_OBJECTS), before[1])
        self.assertEqual(self.fake.fake_live(DEVICE_MEMORY), before[0])
        # A capture that comes to nothing leaves its own, too.
        check(self.fake.cuStreamBeginCapture_v2(stream, 0))
        more.attention(stream=stream.value)
        self.fake.cuStreamSynchronize(stream)
        with self.assertRaisesRegex(warptile.DeviceError, "broken"):
            more.attention(stream=stream.value)
        graph = ctypes.c_void_p()
        self.assertNotEqual(self.fake.cuStreamEndCapture(stream, ctypes.byref(graph)), 0)
        self.assertEqual(self.fake.fake_live(DEVICE_MEMORY), before[0])

    def test_captures(self):
        tensors, stream, graph = GpuTensors((1, 2048, 8, 128)), self.stream(), ctypes.c_void_p()
        tensors.attention(stream=stream.value)
        for _ in range(2):
            self.assertEqual(self.fake.cuStreamBeginCapture_v2(stream, 0), 0)
            tensors.attention(stream=stream.value)
            tensors.attention(stream=stream.value, causal=True)
            self.assertEqual(self.fake.cuStreamEndCapture(stream, ctypes.byref(graph)), 0)
        self.assertEqual(self.launches(), 1)

    def test_a_wait_for_an_arrays_producer_breaks_no_capture(self):
        shape, stream, graph = (2, 512, 8, 64), self.stream(), ctypes.c_void_p()
        q, k, v, out = (CudaArrayInterface(shape, self.memory(2 * 512 * 8 * 64 * 2), stream=self.stream().value) for _ in range(4))
        self.assertEqual(self.fake.cuStreamBeginCapture_v2(stream, 0), 0)
        warptile.attention(q, k, v, out=out, stream=stream.value)
        self.assertEqual(self.fake.cuStreamEndCapture(stream, ctypes.byref(graph)), 0)

    def test_failures_of_the_driver(self):
        tensors = GpuTensors((1, 2048, 8, 256), dtype=np.float16)
        self.fake.fake_fail_always(b"cuLaunchKernel cuLaunchKernelEx", LAUNCH_FAILED)
        try:
            with self.assertRaisesRegex(warptile.DeviceError, "CUDA_ERROR_LAUNCH_FAILED"):
                tensors.attention()
        finally:
            self.fake.fake_fail_always(b"", 0)
        stream = self.stream()
        self.fake.fake_fail_always(b"cuMemAlloc_v2 cuMemAllocFromPoolAsync", OUT_OF_MEMORY)
        try:
            with self.assertRaises(warptile.OutOfMemory):
                tensors.attention(stream=stream.value)
        finally:
            self.fake.fake_fail_always(b"", 0)
        tensors.attention(stream=stream.value)

    def test_threads(self):
        errors = []

        def work():
            try:
                for _ in range(50):
                    GpuTensors().attention()
            except Exception as error:
                errors.append(error)

        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        self.assertEqual(errors, [])
        self.assertEqual(self.launches(), 200)

    @unittest.skipUnless(hasattr(os, "fork"), "there is no fork")
    def test_forked_processes(self):
        fork = multiprocessing.get_context("fork")
        queue = fork.Queue()
        child = fork.Process(target=in_child, args=(queue,))
        child.start()
        self.assertRegex(queue.get(timeout=300), f"process {os.getpid()} had initialized CUDA before it forked.*spawn")
        x = draw(1, (1, 16, 2, 16))[0]
        np.testing.assert_array_equal(queue.get(timeout=300), warptile.attention(x, x, x))
        child.join()
        self.assertEqual(child.exitcode, 0)


if __name__ == "__main__":
    unittest.main()
