"""Arrays that come through nothing but one protocol, made of numpy's; DLPack's structures by ctypes."""

import ctypes

import numpy as np

CPU, CUDA, CUDA_HOST, METAL, MANAGED = 1, 2, 3, 8, 13
CODES = {"float16": (2, 16), "float32": (2, 32), "float64": (2, 64), "int32": (0, 32), "int64": (0, 64), "uint8": (1, 8), "bool": (6, 8)}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class DLPack:
    """Exports an array, or what is said of it instead: an address, a device, a shape."""

    def __init__(self, array, *, device=(CPU, 0), version=(1, 0), flags=0, address=None, bf16=False, e4m3=False, **changes):
        self.array, self.device, self.version, self.flags = array, device, version, flags
        self.address = array.ctypes.data if address is None else address
        # Types that numpy does not have: the bits are those of another one.
        self.kind = (4, 16) if bf16 else (10, 8) if e4m3 else CODES[array.dtype.name]
        self.changes = changes
        self.streams = []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, max_version=None, copy=None):
        self.streams.append(stream)
        if self.version is None and max_version is not None:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        array = self.array
        numbers = ctypes.c_int64 * max(array.ndim, 1)
        self.shape = numbers(*self.changes.get("shape", array.shape))
        self.strides = numbers(*(step // array.itemsize for step in array.strides))
        tensor = _Tensor(self.address, *self.device, array.ndim, *self.kind, self.changes.get("lanes", 1), self.shape)
        if not array.flags.c_contiguous or self.changes.get("give_strides"):
            tensor.strides = self.strides
        if self.version is None:
            self.managed = _Managed(tensor)
            return _new_capsule(ctypes.addressof(self.managed), self.changes.get("name", b"dltensor"), None)
        self.managed = _Versioned(*self.version, None, None, self.flags, tensor)
        return _new_capsule(ctypes.addressof(self.managed), self.changes.get("name", b"dltensor_versioned"), None)


_Fill = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_Tensor))


class _Exchange(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("others", ctypes.c_void_p * 3),
        ("fill", _Fill),
        ("stream", ctypes.c_void_p),
    ]


class Exchange:
    """DLPack's table of C functions for a class, behind one of a later major version. `of` gives an object as a `DLPack`, or None."""

    def __init__(self, of):
        self.of, self.calls = of, 0
        self.table = _Exchange(1, 3, None, (None,) * 3, _Fill(self.fill), None)
        self.newest = _Exchange(2, 0, ctypes.addressof(self.table), (None,) * 3, _Fill(), None)
        self.capsule = _new_capsule(ctypes.addressof(self.newest), b"dlpack_exchange_api", None)

    def fill(self, item, tensor):
        self.calls += 1
        exported = self.of(item)
        if exported is None:
            # As the function says, with an exception set.
            ctypes.pythonapi.PyErr_SetString(ctypes.py_object(BufferError), b"it cannot be exported")
            return -1
        exported.__dlpack__()
        tensor[0] = exported.managed.tensor
        # The numbers of its shape and strides stay as long as the object.
        item.exported = exported
        return 0


class ArrayInterface:
    """Exports an array through numpy's interface alone."""

    def __init__(self, array, **changes):
        self.array, self.changes = array, changes

    @property
    def __array_interface__(self):
        return {**self.array.__array_interface__, **self.changes}


class CudaArrayInterface:
    """Exports an address of a GPU through CUDA's interface."""

    def __init__(self, shape, address, typestr="<f2", **changes):
        self.interface = {"shape": shape, "typestr": typestr, "data": (address, False), "version": 3, **changes}

    @property
    def __cuda_array_interface__(self):
        return self.interface


def memory(array):
    """A memoryview, which has the buffer protocol alone."""
    return memoryview(np.ascontiguousarray(array))
