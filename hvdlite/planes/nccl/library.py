"""NCCL: every function that hvdlite calls, with its signature, and its results turned into errors.

`OLDEST` is the version that came with PyTorch 2.2, the oldest PyTorch that hvdlite takes. Communicators that are made
without blocking exist since 2.14. Calls release the GIL.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_void_p
from functools import cache
from typing import Any, Final, NamedTuple

from hvdlite.cuda.loading import Signatures, declare, file_of, is_installed, is_loaded, load
from hvdlite.errors import HorovodInternalError, NativeUnavailable, absence_of
from hvdlite.tensors.dtypes import FLOAT8, DType, ElementType, Max, Min, Product, Sum

SONAME: Final = "libnccl.so.2"
PACKAGE: Final = "nvidia.nccl"  # of the wheels nvidia-nccl-cu12 and nvidia-nccl-cu13
OLDEST: Final = 21903

Result = c_int  # ncclResult_t
Comm = c_void_p

SUCCESS: Final = 0
IN_PROGRESS: Final = 7
OF_PEERS: Final = (2, 6)
"""The errors of the system and of remote processes, which may be the loss of a peer."""

AVERAGE: Final = 4
OPERATIONS: Final = {Sum: 0, Product: 1, Max: 2, Min: 3}
"""NCCL's number of each operation."""
TYPES: Final[dict[ElementType, int]] = {
    DType.INT8: 0,
    DType.UINT8: 1,
    DType.INT32: 2,
    DType.INT64: 4,
    DType.FLOAT16: 6,
    DType.FLOAT32: 7,
    DType.FLOAT64: 8,
    DType.BFLOAT16: 9,
    FLOAT8[0]: 10,
    FLOAT8[1]: 11,
}
"""NCCL's number of each element type that it adds. It has no 16-bit integers; bool is 0 or 1 of the type uint8."""
OLDEST_FLOAT8: Final = 22400
FLOAT8_CAPABILITY: Final = (9, 0)
"""The first compute capability of GPUs on which NCCL adds float8."""
BYTES: Final = TYPES[DType.UINT8]
SCALAR_ON_HOST: Final = 1


class UniqueId(ctypes.Structure):
    """What the first rank of a communicator makes and all its ranks need."""

    _fields_ = (("internal", ctypes.c_ubyte * 128),)


class Config(ctypes.Structure):
    """The options of a communicator in the form of version 2.14, which later versions take as well.

    They look at ``size`` and ``version``, and use defaults for newer options.
    """

    _fields_ = (("size", c_size_t), ("magic", c_uint), ("version", c_uint), ("blocking", c_int))

    @classmethod
    def without_blocking(cls) -> Config:
        """Makes the options of a communicator whose calls never block."""
        return cls(ctypes.sizeof(cls), 0xCAFEBEEF, 21400, 0)


SIGNATURES: Final[Signatures] = {
    "ncclGetVersion": (Result, (POINTER(c_int),)),
    "ncclGetErrorString": (c_char_p, (Result,)),
    "ncclGetLastError": (c_char_p, (Comm,)),
    "ncclGetUniqueId": (Result, (POINTER(UniqueId),)),
    "ncclCommInitRankConfig": (Result, (POINTER(Comm), c_int, UniqueId, c_int, POINTER(Config))),
    "ncclCommGetAsyncError": (Result, (Comm, POINTER(Result))),
    "ncclCommFinalize": (Result, (Comm,)),
    "ncclCommDestroy": (Result, (Comm,)),
    "ncclCommAbort": (Result, (Comm,)),
    "ncclGroupStart": (Result, ()),
    "ncclGroupEnd": (Result, ()),
    "ncclRedOpCreatePreMulSum": (Result, (POINTER(c_int), c_void_p, c_int, c_int, Comm)),
    "ncclRedOpDestroy": (Result, (c_int, Comm)),
    "ncclAllReduce": (Result, (c_void_p, c_void_p, c_size_t, c_int, c_int, Comm, c_void_p)),
    "ncclReduce": (Result, (c_void_p, c_void_p, c_size_t, c_int, c_int, c_int, Comm, c_void_p)),
    "ncclReduceScatter": (Result, (c_void_p, c_void_p, c_size_t, c_int, c_int, Comm, c_void_p)),
    "ncclAllGather": (Result, (c_void_p, c_void_p, c_size_t, c_int, Comm, c_void_p)),
    "ncclBroadcast": (Result, (c_void_p, c_void_p, c_size_t, c_int, c_int, Comm, c_void_p)),
    "ncclSend": (Result, (c_void_p, c_size_t, c_int, c_int, Comm, c_void_p)),
    "ncclRecv": (Result, (c_void_p, c_size_t, c_int, c_int, Comm, c_void_p)),
}


INSTALL: Final = (
    "install a PyTorch for CUDA, which brings it along, or pip install nvidia-nccl-cu12 (or -cu13, whichever CUDA you "
    "have)"
)


class Loaded(NamedTuple):
    """NCCL in this process. ``functions`` has the functions of `SIGNATURES`; failures raise HorovodInternalError."""

    functions: Any
    version: int
    path: str


@cache
def library() -> Loaded:
    """Loads NCCL: what the framework has loaded, else the wheel's, else the system's.

    Raises NativeUnavailable, with what to do, if there is none, or it is too old.
    """
    try:
        functions = load(SONAME, PACKAGE)
    except NativeUnavailable as error:
        raise NativeUnavailable(f"NCCL cannot be loaded ({error}); {INSTALL}.") from None
    path = file_of(functions, "ncclGetVersion")
    number = c_int()
    functions.ncclGetVersion(ctypes.byref(number))
    if number.value < OLDEST:
        raise NativeUnavailable(
            f"{path} is NCCL {dotted(number.value)}, and hvdlite needs {dotted(OLDEST)} or newer; "
            "update PyTorch, or the package nvidia-nccl-cu12."
        )
    declare(functions, SIGNATURES, path, _checked)
    return Loaded(functions, number.value, path)


def apparent_absence() -> str:
    """Returns why this process cannot use NCCL; empty if it seems that it can.

    Loads nothing: that takes a moment, and a framework may load another copy later.
    """
    if is_loaded(SONAME):
        return absence_of(library)
    return "" if is_installed(SONAME, PACKAGE) else f"there is no {SONAME}; {INSTALL}."


def dotted(version: int) -> str:
    """Converts NCCL's number of a version to text: 21903 is 2.19.3, and before 2.9 2804 was 2.8.4."""
    unit = 10_000 if version >= 10_000 else 1000
    return f"{version // unit}.{version % unit // 100}.{version % 100}"


def failure(status: int, name: str, comm: Comm | None = None) -> HorovodInternalError:
    """Returns the error of a call of ``name`` that ended with ``status``, now or later."""
    functions, version, _ = library()
    last = functions.ncclGetLastError(comm).decode(errors="replace").strip()
    reason = functions.ncclGetErrorString(status).decode(errors="replace")
    text = f"{name} of NCCL {dotted(version)} failed: {reason} (result {status})"
    if last:
        text += f"; NCCL's last error: {last}"
    advice = _ADVICE.get(status, _USUAL_ADVICE)
    if status != _OF_ANOTHER and name != "ncclGetUniqueId":  # the latter's error is part of one with that advice
        advice += "; HVDLITE_GPU_PLANE=staged does without NCCL, more slowly"
    return HorovodInternalError(f"{text}. {advice}.")


def _checked(status: int, function: Any, arguments: tuple[Any, ...]) -> int:
    if status not in (SUCCESS, IN_PROGRESS):
        raise failure(status, function.__name__)
    return status


_OF_ANOTHER: Final = 6
_USUAL_ADVICE: Final = "Run with NCCL_DEBUG=INFO to see what it did before"
_ADVICE: Final = {
    1: "The GPU refused something: see the message, and run with NCCL_DEBUG=INFO and CUDA_LAUNCH_BLOCKING=1",
    2: "Run with NCCL_DEBUG=INFO; most often it is the network (NCCL_SOCKET_IFNAME names its interface), /dev/shm that "
    "is too small in a container, or the limit of locked memory",
    5: "Two ranks may use one GPU: call torch.cuda.set_device(hvd.local_rank()) first; run with NCCL_DEBUG=INFO",
    _OF_ANOTHER: "A rank of another process ended or its network failed: see that rank's own output",
}
