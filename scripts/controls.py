#!/usr/bin/env python3
"""Launches one of the broken kernels of controls.ptx, for compute-sanitizer to find what is wrong with it.

    compute-sanitizer --tool memcheck python3 controls.py memcheck

Needs the NVIDIA driver and no package. Ends with exit code 0 whatever the kernel does, 2 if it could not be launched: what
is wrong must come from the tool.
"""

import ctypes
import pathlib
import sys

KERNELS = ("memcheck", "racecheck", "initcheck", "synccheck")
THREADS = 64
PTX = pathlib.Path(__file__).with_name("controls.ptx")


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in KERNELS:
        print(f"usage: controls.py {'|'.join(KERNELS)}", file=sys.stderr)
        return 2
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, module, kernel = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    data = ctypes.c_uint64()

    def call(name, *arguments):
        code = getattr(cuda, name)(*arguments)
        if code != 0:
            print(f"{name} failed with error {code}", file=sys.stderr)
            sys.exit(2)

    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    # The driver wants a final 0.
    call("cuModuleLoadData", ctypes.byref(module), ctypes.create_string_buffer(PTX.read_bytes()))
    call("cuModuleGetFunction", ctypes.byref(kernel), module, sys.argv[1].encode())
    call("cuMemAlloc_v2", ctypes.byref(data), ctypes.c_size_t(4 * THREADS))
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(data))
    sizes = [ctypes.c_uint(size) for size in (1, 1, 1, THREADS, 1, 1, 0)]
    call("cuLaunchKernel", kernel, *sizes, None, arguments, None)
    # The kernel may have ended with an error of its own: that is the tool's to report.
    code = cuda.cuCtxSynchronize()
    print(f"{sys.argv[1]}: launched, then {code}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
