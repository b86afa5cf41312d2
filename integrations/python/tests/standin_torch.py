"""As much of torch as the native module asks of it, over numpy: run by test_torch.py in a process of its own, with the argument `dlpack` as
a torch whose tensors have DLPack's C functions, else as an older one.

Tensors on a "GPU" have addresses that nobody reads; the driver is the stand-in, if there is one.
"""

import contextlib
import ctypes
import itertools
import os
import sys
import types

import numpy as np
from exporters import CODES, CPU, CUDA, DLPack, Exchange

calls = []


class dtype:
    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"torch.{self.name}"


class Size(tuple):
    pass


class Tensor:
    addresses = itertools.count(1)

    # `name`: of a type that numpy does not have.
    def __init__(self, array, device="cpu", requires_grad=False, negative=False, name=None):
        self.name = name or array.dtype.name
        self.array, self.device, self.requires_grad, self.negative = array, device, requires_grad, negative
        self.address = array.ctypes.data if device == "cpu" else next(Tensor.addresses) << 40

    is_cuda = property(lambda self: self.device.startswith("cuda"))
    is_cpu = property(lambda self: self.device == "cpu")
    dtype = property(lambda self: getattr(torch, self.name))
    shape = property(lambda self: Size(self.array.shape))

    def get_device(self):
        return int(self.device.split(":")[1]) if self.is_cuda else -1

    def stride(self):
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def data_ptr(self):
        return self.address

    def untyped_storage(self):
        return Storage(self)

    def is_neg(self):
        return self.negative

    def narrow(self, dimension, start, length):
        assert (dimension, start) == (0, 0)
        return Tensor(self.array[:length], self.device)

    def zero_(self):
        calls.extend(["zero_", ("zeroed on", cuda.current)])
        self.array[...] = 0
        return self

    def __dlpack__(self, **_):
        raise AssertionError("torch's tensors are read by their attributes")

    __dlpack_device__ = __dlpack__


class Storage:
    """The memory of a tensor, and of no other; as large as it needs, if nobody has resized it."""

    def __init__(self, tensor):
        self.tensor = tensor

    def nbytes(self):
        reach = 1 + sum((extent - 1) * step for extent, step in zip(self.tensor.shape, self.tensor.stride()))
        whole = reach * self.tensor.array.itemsize if 0 not in self.tensor.shape else 0
        return getattr(self.tensor, "shrunk", whole)

    def data_ptr(self):
        return self.tensor.address


class Parameter(Tensor):
    pass


def empty_strided(shape, strides, *, dtype, device):
    calls.extend([("empty_strided", shape, strides, dtype, device), ("made on", cuda.current)])
    count = 1 + sum((extent - 1) * step for extent, step in zip(shape, strides)) if 0 not in shape else 0
    flat = np.full(count, 7, dtype.name)
    return Tensor(np.lib.stride_tricks.as_strided(flat, shape, [step * flat.itemsize for step in strides]), device)


def empty_like(tensor):
    return empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def current_raw_stream(ordinal):
    calls.append(("stream", ordinal))
    return cuda.current


@contextlib.contextmanager
def stream(of):
    before, cuda.current = cuda.current, of
    yield
    cuda.current = before


cuda = types.ModuleType("torch.cuda")
cuda.current, cuda.stream, cuda.default_stream = 0, stream, lambda ordinal: 0
cuda.ExternalStream = lambda handle, ordinal: handle or "one of torch's own"
torch = types.ModuleType("torch")
for name in ("float16", "bfloat16", "float32", "float64", "int32", "int64", "bool", "uint8", "int16", "float8_e4m3fn"):
    setattr(torch, name, dtype(name))
torch.grad = True
torch.is_grad_enabled = lambda: torch.grad
torch.empty_like, torch.empty_strided = empty_like, empty_strided
torch._C = types.SimpleNamespace(_cuda_getCurrentRawStream=current_raw_stream)
torch.nn = types.SimpleNamespace(Parameter=Parameter)
torch.Tensor = Tensor


def exported(tensor):
    kind = {"cpu": CPU, "cuda": CUDA}.get(tensor.device.partition(":")[0])
    if kind is None or tensor.array.dtype.name not in CODES:
        return None
    return DLPack(
        tensor.array,
        device=(kind, max(tensor.get_device(), 0)),
        address=tensor.address,
        e4m3=tensor.name == "float8_e4m3fn",
        give_strides=True,
    )


exchange, quickly = Exchange(exported), set()
if "dlpack" in sys.argv:
    Tensor.__dlpack_c_exchange_api__ = exchange.capsule
    # With the functions by which torch's compiler makes tensors; GPU 0 is the current one.
    def quick(device):
        def make(shape, strides, dtype):
            quickly.add(device)
            return empty_strided(shape, strides, dtype=dtype, device=device)

        return make

    guards = types.SimpleNamespace(_empty_strided_cpu=quick("cpu"), _empty_strided_cuda=quick("cuda:0"))
    torch._C._dynamo, torch._C._cuda_getDevice = types.SimpleNamespace(guards=guards), lambda: 0
Tensor.__module__, Parameter.__module__ = "torch", "torch.nn.parameter"
sys.modules["torch"], sys.modules["torch.cuda"] = torch, cuda

import reference  # noqa: E402
import warptile  # noqa: E402


def fails(error, text, call):
    try:
        call()
    except error as caught:
        assert text in str(caught), caught
        return
    raise AssertionError(f"no exception for {text}")


def on_the_cpu():
    arrays = reference.draw(1, (2, 9, 4, 16), (2, 12, 2, 16), (2, 12, 2, 16))
    q, k, v = map(Tensor, arrays)
    expected, expected_lse = reference.attention(*arrays, causal=True)
    out, lse = warptile.attention(q, k, v, causal=True, return_lse=True)
    assert type(out) is Tensor and out.dtype is torch.float32
    np.testing.assert_allclose(out.array, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(lse.array, expected_lse, rtol=1e-5, atol=1e-5)
    # In the queries' storage order.
    swapped = Tensor(arrays[0].transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3))
    out = warptile.attention(swapped, k, v, causal=True)
    np.testing.assert_allclose(out.array, expected, rtol=1e-5, atol=1e-5)
    assert out.stride() == swapped.stride() == (576, 16, 144, 1)
    del calls[:]
    packed = [Tensor(x[0]) for x in arrays]
    out = warptile.attention(*packed, cu_seqlens_q=Tensor(np.array([0, 5])), cu_seqlens_k=Tensor(np.array([0, 12], np.int32)))
    assert "zero_" in calls and (out.array[5:] == 0).all()
    learned = Parameter(arrays[0], requires_grad=True)
    out, lse = warptile.attention(q, k, v, causal=True, return_lse=True)
    gradients = warptile.attention_backward(out, learned, k, v, out, lse, causal=True)
    assert all(type(x) is Tensor for x in gradients[:3]) and gradients[0].stride() == learned.stride()
    fails(ValueError, "parts[].out requires a gradient, which this function does not compute", lambda: warptile.merge([(learned, lse)]))
    assert type(warptile._native.attention_without_gradient(learned, k, v)) is Tensor
    torch.grad = False
    assert type(warptile.attention(learned, k, v)) is Tensor
    torch.grad = True
    fails(ValueError, "k is a lazily negated view", lambda: warptile.attention(q, Tensor(arrays[1], negative=True), v))
    shrunk = Tensor(arrays[1].copy())
    shrunk.shrunk = shrunk.array.nbytes - 1
    fails(ValueError, "k reaches over 3072 bytes, but its storage has 3071 from there on", lambda: warptile.attention(q, shrunk, v))
    freed = Tensor(arrays[2])
    freed.address = 0
    fails(ValueError, "v has no memory", lambda: warptile.attention(q, k, freed))
    fails(ValueError, "q is on meta", lambda: warptile.attention(Tensor(arrays[0], "meta"), k, v))
    fails(TypeError, "torch.int16", lambda: warptile.attention(Tensor(np.zeros((2, 9, 4, 16), np.int16)), k, v))
    fails(ValueError, "5 dimensions", lambda: warptile.attention(Tensor(arrays[0][None]), k, v))


def keys_in_e4m3():
    # Twos.
    keys = Tensor(np.full((1, 4, 2, 16), 0x40, np.uint8), name="float8_e4m3fn")
    q = Tensor(np.ones((1, 1, 2, 16), np.float16))
    out = warptile.attention(q, keys, keys, k_descale=1.0, v_descale=0.25)
    assert out.dtype is torch.float16 and (out.array == 0.5).all(), out.array
    fails(ValueError, "k_descale is missing, but k and v are in float8_e4m3fn", lambda: warptile.attention(q, keys, keys))


def on_a_gpu():
    half = np.zeros((2, 512, 8, 64), np.float16)
    q, k, v = (Tensor(half, "cuda:0") for _ in range(3))
    del calls[:]
    out, lse = warptile.attention(q, k, v, causal=True, return_lse=True)
    assert out.device == lse.device == "cuda:0" and lse.shape == (2, 8, 512)
    assert ("stream", 0) in calls
    warptile.attention(q, k, v, out=out)
    del calls[:]
    gradients = warptile.attention_backward(q, q, k, v, out, lse, causal=True)
    assert [x and (x.device, x.shape, x.dtype) for x in gradients] == [*[("cuda:0", q.shape, torch.float16)] * 3, None, None]
    # The workspace alone is zeroed, its counter: two numbers for each query and head follow, and perhaps sums of dq.
    assert calls.count("zero_") == 1
    [[bytes_needed]] = [call[1] for call in calls if call[0] == "empty_strided" and call[3] is torch.uint8]
    assert 2 * 4 * 2 * 8 * 512 < bytes_needed < 67 * 4 * 2 * 8 * 512, bytes_needed
    some = warptile.attention_backward(q, q, k, v, out, lse, d_lse=lse, needs=(False, True, False, False, False))
    assert [x is None for x in some] == [True, False, True, True, True]
    fails(ValueError, "lse is on the CPU, but q is on cuda:0", lambda: warptile.attention_backward(q, q, k, v, out, Tensor(lse.array)))
    fails(ValueError, "k is on the CPU, but q is on cuda:0", lambda: warptile.attention(q, Tensor(half), v))
    fails(ValueError, "k is on cuda:1", lambda: warptile.attention(q, Tensor(half, "cuda:1"), v))
    # Each block of queries sees the block of keys with its number.
    blocks = [Tensor(np.arange(count, dtype=np.int32), "cuda:0") for count in (9, 8)]
    listed = {"block_list": warptile.BlockList(*blocks), "causal": True}
    out, lse = warptile.attention(q, k, v, return_lse=True, **listed)
    assert warptile.attention_backward(q, q, k, v, out, lse, **listed)[1].shape == k.shape
    dropped = {**listed, "dropout_p": 0.5, "dropout_state": Tensor(np.zeros(8, np.int32), "cuda:0")}
    fails(warptile.NoKernel, "lists of blocks", lambda: warptile.attention_backward(q, q, k, v, out, lse, **dropped))
    fails(ValueError, "block_indices is on the CPU", lambda: warptile.attention(q, k, v, block_list=warptile.BlockList(blocks[0], [0] * 8)))
    offsets = Tensor(np.zeros(3, np.int32), "cuda:0")
    packed = Tensor(half[0], "cuda:0")
    options = {"cu_seqlens_q": offsets, "cu_seqlens_k": offsets, "max_seqlen_q": 9, "max_seqlen_k": 9}
    out, lse = warptile.attention(packed, packed, packed, return_lse=True, **options)
    assert "zero_" in calls and out.shape == (512, 8, 64)
    del calls[:]
    assert warptile.attention_backward(packed, packed, packed, packed, out, lse, **options)[1].shape == (512, 8, 64)
    # Rows that no sequence may own, and the workspace.
    assert calls.count("zero_") == 4
    # Results are made, and zeroed, in the order of the stream that computes them.
    fake, context, other = ctypes.CDLL(os.environ["WARPTILE_LIBCUDA"]), ctypes.c_void_p(), ctypes.c_void_p()
    fake.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    fake.cuCtxSetCurrent(context)
    assert fake.cuStreamCreateWithPriority(ctypes.byref(other), 1, 0) == 0
    del calls[:]
    out, lse = warptile.attention(packed, packed, packed, return_lse=True, stream=other.value, **options)
    warptile.merge([(out, lse)] * 2, stream=other.value)
    assert [calls.count((what, other.value)) for what in ("made on", "zeroed on")] == [4, 2], calls
    warptile.attention(packed, packed, packed, out=out, stream=1, **options)
    assert cuda.current == 0 and ("made on", 0) not in calls and ("zeroed on", 0) not in calls
    with stream(other.value):
        for default in (0, 1):
            warptile.attention(packed, packed, packed, stream=default, **options)
    assert calls.count(("made on", 0)) == 2, calls


on_the_cpu()
keys_in_e4m3()
if os.environ.get("WARPTILE_LIBCUDA"):
    on_a_gpu()
assert (exchange.calls > 0) == ("dlpack" in sys.argv)
devices = {"cpu", "cuda:0"} if os.environ.get("WARPTILE_LIBCUDA") else {"cpu"}
assert quickly == (devices if "dlpack" in sys.argv else set()), quickly
print("done")
