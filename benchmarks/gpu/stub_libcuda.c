/* A CUDA driver that does nothing: Triton's launcher compiles, caches and "launches" kernels on a machine without a GPU.
   It claims an H100's shared memory and number of multiprocessors. Compiled by benchmarks/gpu/baked.py. */
#include "cuda.h"

#define OK CUDA_SUCCESS

CUresult cuInit(unsigned int flags) { return OK; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = 0; return OK; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 227 * 1024; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
    default: *value = 1024;
    }
    return OK;
}
CUresult cuGetErrorString(CUresult error, const char **text) { *text = "stub"; return OK; }
CUresult cuCtxGetCurrent(CUcontext *context) { *context = (CUcontext)1; return OK; }
CUresult cuCtxSetCurrent(CUcontext context) { return OK; }
CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return OK; }
CUresult cuCtxGetLimit(size_t *value, CUlimit limit) { *value = 0; return OK; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { *context = (CUcontext)1; return OK; }
CUresult cuModuleLoadData(CUmodule *module, const void *image) { *module = (CUmodule)1; return OK; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    *function = (CUfunction)1;
    return OK;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return OK;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) { return OK; }
CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { return OK; }
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer) {
    *(CUdeviceptr *)data = pointer;
    return OK;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
    return OK;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *elements, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill) {
    return OK;
}
CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *config) {
    *clusters = 1;
    return OK;
}
