// What candle asks of CUDA's libraries while it opens a device, beside what the stand-in for the driver has. Everything else that
// it links to is in run.sh's lists of names, and ends the process.
#include <stddef.h>
#include <string.h>

typedef int Result;
enum { SUCCESS = 0, NO_DEVICE = 100, NOT_SUPPORTED = 801 };

#if defined DEVICES && !DEVICES
Result cuInit(unsigned flags) { return NO_DEVICE; }
#endif

Result cuMemPoolCreate(void **pool, const void *properties);
Result cuMemAllocFromPoolAsync(unsigned long long *pointer, size_t bytes, void *pool, void *stream);
Result cuStreamCreateWithPriority(void **stream, unsigned flags, int priority);
Result cuStreamGetCtx(void *stream, void **context);
Result cuDevicePrimaryCtxRetain(void **context, int device);
Result cuDevicePrimaryCtxRelease_v2(int device);

enum { DEVICES_AT_MOST = 8 };

// The device whose primary context a stream is of.
static int device_of(void *stream) {
    void *context = NULL, *primary;
    if (cuStreamGetCtx(stream, &context) != SUCCESS) return 0;
    for (int device = 0; device < DEVICES_AT_MOST; device++) {
        if (cuDevicePrimaryCtxRetain(&primary, device) != SUCCESS) break;
        cuDevicePrimaryCtxRelease_v2(device);
        if (primary == context) return device;
    }
    return 0;
}

// From a device's own pool; here from one that is like it.
Result cuMemAllocAsync(unsigned long long *pointer, size_t bytes, void *stream) {
    static void *pools[DEVICES_AT_MOST];
    const int device = device_of(stream);
    if (!pools[device]) {
        // CUmemPoolProps: pinned memory of the device.
        struct { int type, handles, location, device; char rest[72]; } properties;
        memset(&properties, 0, sizeof properties);
        properties.type = properties.location = 1;
        properties.device = device;
        Result made = cuMemPoolCreate(&pools[device], &properties);
        if (made != SUCCESS) return made;
    }
    return cuMemAllocFromPoolAsync(pointer, bytes, pools[device], stream);
}

Result cuStreamCreate(void **stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }
Result cuCtxDestroy_v2(void *context) { return NOT_SUPPORTED; }
Result cuModuleLoad(void **module, const char *file) { return NOT_SUPPORTED; }
Result cuModuleLoadData(void **module, const void *image) { return NOT_SUPPORTED; }

Result cublasCreate_v2(void **handle) { *handle = handle; return SUCCESS; }
Result cublasDestroy_v2(void *handle) { return SUCCESS; }
Result cublasSetStream_v2(void *handle, void *stream) { return SUCCESS; }
Result cublasDgemmStridedBatched(void) { return NOT_SUPPORTED; }
Result cublasGemmStridedBatchedEx(void) { return NOT_SUPPORTED; }
Result curandCreateGenerator(void **handle, int kind) { *handle = handle; return SUCCESS; }
Result curandDestroyGenerator(void *handle) { return SUCCESS; }
Result curandSetStream(void *handle, void *stream) { return SUCCESS; }
Result curandSetPseudoRandomGeneratorSeed(void *handle, unsigned long long seed) { return SUCCESS; }
Result curandGenerateNormal(void) { return NOT_SUPPORTED; }
Result curandGenerateNormalDouble(void) { return NOT_SUPPORTED; }
Result curandGenerateUniform(void) { return NOT_SUPPORTED; }
Result curandGenerateUniformDouble(void) { return NOT_SUPPORTED; }
