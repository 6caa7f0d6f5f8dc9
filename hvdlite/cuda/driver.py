"""CUDA's driver: every function that hvdlite calls, with its signature, and its error codes turned into errors.

hvdlite calls the driver and not the runtime, because the driver is there wherever a GPU works: PyTorch loads a runtime,
JAX and TensorFlow have one inside, and the runtime's structures change with its major version. Functions of the driver
keep their form, new forms get new names (``_v2``), and only the driver loads PTX. Streams, events and contexts of the
driver and of the runtime are the same. Calls release the GIL.
"""

from __future__ import annotations

import ctypes
from collections.abc import Container
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from functools import cache
from typing import Any, Final

from hvdlite.cuda.loading import Signatures, declare, file_of, load
from hvdlite.errors import HorovodInternalError, NativeUnavailable

SONAME: Final = "libcuda.so.1"

Status = c_int  # CUresult
Uuid = c_ubyte * 16  # CUuuid
Address = c_uint64  # CUdeviceptr

SUCCESS: Final = 0
INVALID_VALUE: Final = 1
OUT_OF_MEMORY: Final = 2
NO_DEVICE: Final = 100
NOT_READY: Final = 600
CAPTURE_IMPLICIT: Final = 906

STREAM_NON_BLOCKING: Final = 1
CAPTURE_NONE: Final = 0
CAPTURE_RELAXED: Final = 2
EVENT_BLOCKING_SYNC: Final = 1
EVENT_DISABLE_TIMING: Final = 2
HOST_ALLOC_PORTABLE: Final = 1
CAPABILITY_MAJOR: Final = 75
CAPABILITY_MINOR: Final = 76
POINTER_MEMORY_TYPE: Final = 2
POINTER_DEVICE_ORDINAL: Final = 9
MEMORY_ON_DEVICE: Final = 2

SIGNATURES: Final[Signatures] = {
    "cuInit": (Status, (c_uint,)),
    "cuDriverGetVersion": (Status, (POINTER(c_int),)),
    "cuGetErrorName": (Status, (Status, POINTER(c_char_p))),
    "cuGetErrorString": (Status, (Status, POINTER(c_char_p))),
    "cuDeviceGetCount": (Status, (POINTER(c_int),)),
    "cuDeviceGet": (Status, (POINTER(c_int), c_int)),
    "cuDeviceGetAttribute": (Status, (POINTER(c_int), c_int, c_int)),
    "cuDeviceGetUuid_v2": (Status, (POINTER(Uuid), c_int)),
    "cuDevicePrimaryCtxRetain": (Status, (POINTER(c_void_p), c_int)),
    "cuDevicePrimaryCtxRelease_v2": (Status, (c_int,)),
    "cuCtxPushCurrent_v2": (Status, (c_void_p,)),
    "cuCtxPopCurrent_v2": (Status, (POINTER(c_void_p),)),
    "cuCtxGetStreamPriorityRange": (Status, (POINTER(c_int), POINTER(c_int))),
    "cuStreamCreateWithPriority": (Status, (POINTER(c_void_p), c_uint, c_int)),
    "cuStreamWaitEvent": (Status, (c_void_p, c_void_p, c_uint)),
    "cuStreamIsCapturing": (Status, (c_void_p, POINTER(c_int))),
    "cuThreadExchangeStreamCaptureMode": (Status, (POINTER(c_int),)),
    "cuStreamSynchronize": (Status, (c_void_p,)),
    "cuStreamDestroy_v2": (Status, (c_void_p,)),
    "cuEventCreate": (Status, (POINTER(c_void_p), c_uint)),
    "cuEventRecord": (Status, (c_void_p, c_void_p)),
    "cuEventQuery": (Status, (c_void_p,)),
    "cuEventSynchronize": (Status, (c_void_p,)),
    "cuEventDestroy_v2": (Status, (c_void_p,)),
    "cuPointerGetAttribute": (Status, (c_void_p, c_int, Address)),
    "cuMemHostAlloc": (Status, (POINTER(c_void_p), c_size_t, c_uint)),
    "cuMemFreeHost": (Status, (c_void_p,)),
    "cuMemAllocAsync": (Status, (POINTER(Address), c_size_t, c_void_p)),
    "cuMemFreeAsync": (Status, (Address, c_void_p)),
    "cuMemcpyAsync": (Status, (Address, Address, c_size_t, c_void_p)),
    "cuMemsetD8Async": (Status, (Address, c_ubyte, c_size_t, c_void_p)),
    "cuMemsetD2D8Async": (Status, (Address, c_size_t, c_ubyte, c_size_t, c_size_t, c_void_p)),
    "cuModuleLoadData": (Status, (POINTER(c_void_p), c_void_p)),
    "cuModuleGetFunction": (Status, (POINTER(c_void_p), c_void_p, c_char_p)),
    "cuModuleUnload": (Status, (c_void_p,)),
    "cuLaunchKernel": (Status, (c_void_p, *(c_uint,) * 7, c_void_p, POINTER(c_void_p), POINTER(c_void_p))),
}

# The statuses other than success that are answers and not errors.
_ANSWERS: Final[dict[str, Container[int]]] = {
    "cuInit": range(1000),  # `library` looks at it
    "cuEventQuery": (NOT_READY,),
    "cuStreamIsCapturing": (CAPTURE_IMPLICIT,),
    "cuPointerGetAttribute": (INVALID_VALUE,),
    "cuGetErrorName": (INVALID_VALUE,),
    "cuGetErrorString": (INVALID_VALUE,),
}


class OutOfGpuMemory(HorovodInternalError):
    """A GPU has no memory left, and is otherwise as it was."""


@cache
def loaded() -> Any:
    """Loads the driver without initializing it. Its functions raise HorovodInternalError.

    Raises NativeUnavailable, with what to do, if it is missing or too old.
    """
    try:
        found = load(SONAME)
    except NativeUnavailable as error:
        raise NativeUnavailable(
            f"CUDA's driver cannot be loaded ({error}); install NVIDIA's driver, or, in a container, start that with "
            "its GPUs (docker run --gpus all)."
        ) from None
    declare(found, SIGNATURES, file_of(found, "cuInit"), _checked)
    return found


@cache
def library() -> Any:
    """Loads the driver and initializes it. Its functions raise HorovodInternalError unless they succeed.

    Raises NativeUnavailable, with what to do, if it is missing, too old, or finds no GPU.
    """
    found = loaded()
    status = found.cuInit(0)
    if status != SUCCESS:
        advice = (
            "no GPU is visible; look at nvidia-smi and at CUDA_VISIBLE_DEVICES"
            if status == NO_DEVICE
            else "see that nvidia-smi works, and that the driver fits its kernel module"
        )
        raise NativeUnavailable(f"CUDA's driver cannot be initialized: {described(status, found)}; {advice}.")
    return found


def version() -> str:
    """Returns the newest version of CUDA that the driver, initialized or not, can run."""
    found = c_int()
    loaded().cuDriverGetVersion(ctypes.byref(found))
    return f"{found.value // 1000}.{found.value % 1000 // 10}"


def count() -> int:
    """Returns the number of GPUs that this process sees."""
    found = c_int()
    library().cuDeviceGetCount(ctypes.byref(found))
    return found.value


def capability(ordinal: int) -> tuple[int, int]:
    """Returns the compute capability of a GPU."""
    device, major, minor = c_int(), c_int(), c_int()
    library().cuDeviceGet(ctypes.byref(device), ordinal)
    for number, attribute in ((major, CAPABILITY_MAJOR), (minor, CAPABILITY_MINOR)):
        library().cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
    return major.value, minor.value


def described(status: int, driver: Any) -> str:
    """Returns CUDA's name and sentence for ``status``."""
    texts = []
    for function in (driver.cuGetErrorName, driver.cuGetErrorString):
        found = c_char_p()
        function(status, ctypes.byref(found))
        texts.append((found.value or b"an unknown error").decode(errors="replace"))
    return f"{texts[0]} ({status}), {texts[1]}"


def _checked(status: int, function: Any, arguments: tuple[Any, ...]) -> int:
    name = function.__name__
    if status != SUCCESS and status not in _ANSWERS.get(name, ()):
        kind = OutOfGpuMemory if status == OUT_OF_MEMORY else HorovodInternalError
        raise kind(f"{name} failed: {described(status, loaded())}. {_advice(status)}")
    return status


def _advice(status: int) -> str:
    return _ADVICE.get(
        status,
        "A kernel before this call may have caused it: run with CUDA_LAUNCH_BLOCKING=1 and look at the first error.",
    )


_ADVICE: Final = {
    OUT_OF_MEMORY: "GPU out of memory: use smaller batches, check nvidia-smi for other processes, or lower "
    "torch.cuda.set_per_process_memory_fraction.",
    3: "The driver is not initialized: this is perhaps a fork of a process that uses CUDA; start workers by spawn.",
    4: "The process is about to end.",
    100: "No GPU is visible; look at nvidia-smi and at CUDA_VISIBLE_DEVICES.",
    **dict.fromkeys(
        (221, 222, 223),
        "The driver must compile a kernel: in a container give it the capability compute "
        "(NVIDIA_DRIVER_CAPABILITIES), unset CUDA_DISABLE_PTX_JIT, and see that the driver is no older than CUDA 11.",
    ),
    101: "That GPU is not visible; look at CUDA_VISIBLE_DEVICES and torch.cuda.set_device.",
}
