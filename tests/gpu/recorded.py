"""The functions of CUDA's driver and of NCCL that hvdlite calls, as their public headers declare them.

Recorded from cuda.h of CUDA 13.0 and nccl.h of NCCL 2.32.3. All return a number, their status, unless `TEXTS` has them.
The fakes are compiled against this table too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

TYPES: Final = {
    "CUresult": "int",
    "CUdevice": "int",
    "CUcontext": "struct CUctx_st*",
    "CUstream": "struct CUstream_st*",
    "CUevent": "struct CUevent_st*",
    "CUmodule": "struct CUmod_st*",
    "CUfunction": "struct CUfunc_st*",
    "CUdeviceptr": "unsigned long long",
    "CUuuid": "struct { char bytes[16]; }",
    "CUpointer_attribute": "int",
    "CUdevice_attribute": "int",
    "CUstreamCaptureMode": "int",
    "CUstreamCaptureStatus": "int",
    "ncclResult_t": "int",
    "ncclDataType_t": "int",
    "ncclRedOp_t": "int",
    "ncclScalarResidence_t": "int",
    "ncclComm_t": "struct ncclComm*",
    "cudaStream_t": "struct CUstream_st*",
    "ncclUniqueId": "struct { char internal[128]; }",
    "ncclConfig_t": "struct { size_t size; unsigned int magic; unsigned int version; int blocking; }",
}
"""What stands behind each name; enumerations are ints. Of ncclConfig_t it is what version 2.14 had."""

CUDA: Final = {
    "cuInit": ["unsigned int"],
    "cuDriverGetVersion": ["int*"],
    "cuGetErrorName": ["CUresult", "const char**"],
    "cuGetErrorString": ["CUresult", "const char**"],
    "cuDeviceGetCount": ["int*"],
    "cuDeviceGet": ["CUdevice*", "int"],
    "cuDeviceGetAttribute": ["int*", "CUdevice_attribute", "CUdevice"],
    "cuDeviceGetUuid_v2": ["CUuuid*", "CUdevice"],
    "cuDevicePrimaryCtxRetain": ["CUcontext*", "CUdevice"],
    "cuDevicePrimaryCtxRelease_v2": ["CUdevice"],
    "cuCtxPushCurrent_v2": ["CUcontext"],
    "cuCtxPopCurrent_v2": ["CUcontext*"],
    "cuCtxGetStreamPriorityRange": ["int*", "int*"],
    "cuStreamCreateWithPriority": ["CUstream*", "unsigned int", "int"],
    "cuStreamIsCapturing": ["CUstream", "CUstreamCaptureStatus*"],
    "cuThreadExchangeStreamCaptureMode": ["CUstreamCaptureMode*"],
    "cuStreamSynchronize": ["CUstream"],
    "cuStreamDestroy_v2": ["CUstream"],
    "cuStreamWaitEvent": ["CUstream", "CUevent", "unsigned int"],
    "cuEventCreate": ["CUevent*", "unsigned int"],
    "cuEventRecord": ["CUevent", "CUstream"],
    "cuEventQuery": ["CUevent"],
    "cuEventSynchronize": ["CUevent"],
    "cuEventDestroy_v2": ["CUevent"],
    "cuPointerGetAttribute": ["void*", "CUpointer_attribute", "CUdeviceptr"],
    "cuMemHostAlloc": ["void**", "size_t", "unsigned int"],
    "cuMemFreeHost": ["void*"],
    "cuMemAllocAsync": ["CUdeviceptr*", "size_t", "CUstream"],
    "cuMemFreeAsync": ["CUdeviceptr", "CUstream"],
    "cuMemcpyAsync": ["CUdeviceptr", "CUdeviceptr", "size_t", "CUstream"],
    "cuMemsetD8Async": ["CUdeviceptr", "unsigned char", "size_t", "CUstream"],
    "cuMemsetD2D8Async": ["CUdeviceptr", "size_t", "unsigned char", "size_t", "size_t", "CUstream"],
    "cuModuleLoadData": ["CUmodule*", "const void*"],
    "cuModuleGetFunction": ["CUfunction*", "CUmodule", "const char*"],
    "cuModuleUnload": ["CUmodule"],
    "cuLaunchKernel": ["CUfunction", *["unsigned int"] * 7, "CUstream", "void**", "void**"],
}

NCCL: Final = {
    "ncclGetVersion": ["int*"],
    "ncclGetErrorString": ["ncclResult_t"],
    "ncclGetLastError": ["ncclComm_t"],
    "ncclGetUniqueId": ["ncclUniqueId*"],
    "ncclCommInitRankConfig": ["ncclComm_t*", "int", "ncclUniqueId", "int", "ncclConfig_t*"],
    "ncclCommGetAsyncError": ["ncclComm_t", "ncclResult_t*"],
    "ncclCommFinalize": ["ncclComm_t"],
    "ncclCommDestroy": ["ncclComm_t"],
    "ncclCommAbort": ["ncclComm_t"],
    "ncclGroupStart": [],
    "ncclGroupEnd": [],
    "ncclRedOpCreatePreMulSum": [
        "ncclRedOp_t*",
        "void*",
        "ncclDataType_t",
        "ncclScalarResidence_t",
        "ncclComm_t",
    ],
    "ncclRedOpDestroy": ["ncclRedOp_t", "ncclComm_t"],
    "ncclAllReduce": [
        "const void*",
        "void*",
        "size_t",
        "ncclDataType_t",
        "ncclRedOp_t",
        "ncclComm_t",
        "cudaStream_t",
    ],
    "ncclReduce": [
        "const void*",
        "void*",
        "size_t",
        "ncclDataType_t",
        "ncclRedOp_t",
        "int",
        "ncclComm_t",
        "cudaStream_t",
    ],
    "ncclReduceScatter": [
        "const void*",
        "void*",
        "size_t",
        "ncclDataType_t",
        "ncclRedOp_t",
        "ncclComm_t",
        "cudaStream_t",
    ],
    "ncclAllGather": ["const void*", "void*", "size_t", "ncclDataType_t", "ncclComm_t", "cudaStream_t"],
    "ncclBroadcast": ["const void*", "void*", "size_t", "ncclDataType_t", "int", "ncclComm_t", "cudaStream_t"],
    "ncclSend": ["const void*", "size_t", "ncclDataType_t", "int", "ncclComm_t", "cudaStream_t"],
    "ncclRecv": ["void*", "size_t", "ncclDataType_t", "int", "ncclComm_t", "cudaStream_t"],
}

NUMBERS: Final = {
    "CUDA_SUCCESS": 0,
    "CUDA_ERROR_INVALID_VALUE": 1,
    "CUDA_ERROR_OUT_OF_MEMORY": 2,
    "CUDA_ERROR_NO_DEVICE": 100,
    "CUDA_ERROR_NOT_READY": 600,
    "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT": 906,
    "CU_STREAM_CAPTURE_STATUS_NONE": 0,
    "CU_STREAM_CAPTURE_MODE_RELAXED": 2,
    "CU_STREAM_NON_BLOCKING": 1,
    "CU_EVENT_BLOCKING_SYNC": 1,
    "CU_EVENT_DISABLE_TIMING": 2,
    "CU_MEMHOSTALLOC_PORTABLE": 1,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": 75,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": 76,
    "CU_POINTER_ATTRIBUTE_MEMORY_TYPE": 2,
    "CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL": 9,
    "CU_MEMORYTYPE_DEVICE": 2,
    "ncclSuccess": 0,
    "ncclInProgress": 7,
    "ncclSum": 0,
    "ncclProd": 1,
    "ncclMax": 2,
    "ncclMin": 3,
    "ncclAvg": 4,
    "ncclInt8": 0,
    "ncclUint8": 1,
    "ncclInt32": 2,
    "ncclInt64": 4,
    "ncclFloat16": 6,
    "ncclFloat32": 7,
    "ncclFloat64": 8,
    "ncclBfloat16": 9,
    "ncclFloat8e4m3": 10,
    "ncclFloat8e5m2": 11,
    "ncclScalarHostImmediate": 1,
    "NCCL_API_MAGIC": 0xCAFEBEEF,
}

TEXTS: Final = {"ncclGetErrorString", "ncclGetLastError"}


def header() -> str:
    """The same as a header of C++."""
    return "\n".join(["#pragma once", "#include <cstddef>", *_types(), 'extern "C" {', *_functions(), "}", ""])


def _types() -> Iterator[str]:
    for name, behind in TYPES.items():
        yield f"typedef {behind} {name};"


def _functions() -> Iterator[str]:
    for name, parameters in {**CUDA, **NCCL}.items():
        yield f"{'const char*' if name in TEXTS else 'int'} {name}({', '.join(parameters)});"
