// Memory for the example and the tests: of the host, or of a GPU by way of its driver, which is opened at run time. A program that uses
// CUDA has all of this already.
#ifndef MEMORY_H
#define MEMORY_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "warptile.h"

#define DRIVER_FUNCTIONS(X)                                                                                  \
    X(cuInit, (unsigned flags))                                                                              \
    X(cuDeviceGet, (int *device, int ordinal))                                                               \
    X(cuDevicePrimaryCtxRetain, (void **context, int device))                                                \
    X(cuCtxSetCurrent, (void *context))                                                                      \
    X(cuCtxGetCurrent, (void **context))                                                                     \
    X(cuMemAlloc_v2, (uint64_t * pointer, size_t bytes))                                                     \
    X(cuMemFree_v2, (uint64_t pointer))                                                                      \
    X(cuMemcpyHtoD_v2, (uint64_t to, const void *from, size_t bytes))                                        \
    X(cuMemcpyDtoH_v2, (void *to, uint64_t from, size_t bytes))                                              \
    X(cuMemsetD8_v2, (uint64_t to, unsigned char value, size_t bytes))                                       \
    X(cuStreamCreateWithPriority, (void **stream, unsigned flags, int priority))                             \
    X(cuStreamDestroy_v2, (void *stream))                                                                    \
    X(cuStreamSynchronize, (void *stream))                                                                   \
    X(cuStreamBeginCapture_v2, (void *stream, int mode))                                                     \
    X(cuStreamEndCapture, (void *stream, void **graph))                                                      \
    X(cuGraphInstantiateWithFlags, (void **executable, void *graph, uint64_t flags))                         \
    X(cuGraphLaunch, (void *executable, void *stream))                                                       \
    X(cuGraphExecDestroy, (void *executable))                                                                \
    X(cuGraphDestroy, (void *graph))

typedef struct {
    void *library;
#define FIELD(name, arguments) int(*name) arguments;
    DRIVER_FUNCTIONS(FIELD)
#undef FIELD
} driver_functions;

static driver_functions cuda;

// The device that memory is of, or WARPTILE_CPU.
static int memory_device = WARPTILE_CPU;

static inline void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

// Ends the program if a function of warptile's fails.
static inline void check(int status, const char *what) {
    if (status != WARPTILE_OK) fail(what, warptile_last_error());
}

static inline void check_cuda(int status, const char *what) {
    char text[32];
    if (status == 0) return;
    snprintf(text, sizeof text, "CUDA error %d", status);
    fail(what, text);
}

static inline void *driver_function(const char *name) {
    void *function = dlsym(cuda.library, name);
    if (!function) fail(name, "the driver lacks this function");
    return function;
}

// Opens the driver, and makes the primary context of a device current on this thread.
static inline void open_device(int device) {
    const char *path = getenv("WARPTILE_LIBCUDA");
    void *context;
    int handle;
    cuda.library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW);
    if (!cuda.library) fail("no CUDA driver", dlerror());
#define LOAD(name, arguments) *(void **)&cuda.name = driver_function(#name);
    DRIVER_FUNCTIONS(LOAD)
#undef LOAD
    check_cuda(cuda.cuInit(0), "cuInit");
    check_cuda(cuda.cuDeviceGet(&handle, device), "cuDeviceGet");
    check_cuda(cuda.cuDevicePrimaryCtxRetain(&context, handle), "cuDevicePrimaryCtxRetain");
    check_cuda(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    memory_device = device;
}

static inline uint64_t address_of(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }

// Zeroed memory where the calls are computed; null for no bytes.
static inline void *allocate(size_t bytes) {
    uint64_t address = 0;
    if (bytes == 0) return NULL;
    if (memory_device == WARPTILE_CPU) {
        void *memory = calloc(bytes, 1);
        if (!memory) fail("calloc", "out of memory");
        return memory;
    }
    check_cuda(cuda.cuMemAlloc_v2(&address, bytes), "cuMemAlloc");
    check_cuda(cuda.cuMemsetD8_v2(address, 0, bytes), "cuMemsetD8");
    return (void *)(uintptr_t)address;
}

static inline void release(void *memory) {
    if (memory_device == WARPTILE_CPU) free(memory);
    else if (memory) check_cuda(cuda.cuMemFree_v2(address_of(memory)), "cuMemFree");
}

static inline void upload(void *to, const void *from, size_t bytes) {
    if (bytes == 0) return;
    if (memory_device == WARPTILE_CPU) memcpy(to, from, bytes);
    else check_cuda(cuda.cuMemcpyHtoD_v2(address_of(to), from, bytes), "cuMemcpyHtoD");
}

// Waits for everything before, on a GPU.
static inline void download(void *to, const void *from, size_t bytes) {
    if (bytes == 0) return;
    if (memory_device == WARPTILE_CPU) memcpy(to, from, bytes);
    else check_cuda(cuda.cuMemcpyDtoH_v2(to, address_of(from), bytes), "cuMemcpyDtoH");
}

static inline void *uploaded(const void *from, size_t bytes) {
    void *memory = allocate(bytes);
    upload(memory, from, bytes);
    return memory;
}

#endif
