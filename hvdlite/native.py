"""The native library: every C function with its signature, and status codes turned into errors.

``native/include/hvdlite.h`` is the same list in C; a test compares the two. The library is found beside this file
(``hvdlite/_native/``), loaded on first use, and refused if its ABI version differs. Calls release the GIL.
If it cannot be used, `absence` returns the reason, and ranks do its work in Python.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_uint16, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, Final

from hvdlite.errors import HorovodInternalError, HvdError, NativeUnavailable, absence_of
from hvdlite.version import NATIVE_ABI

ABI_VERSION: Final = NATIVE_ABI
LIBRARY: Final = Path(__file__).parent / "_native" / "libhvdlite.so"

OK: Final = 0
ABORTED: Final = 1
TIMED_OUT: Final = 2
CORRUPT: Final = 3
INVALID: Final = 4
SYSTEM: Final = 5
BUSY: Final = 6

DECIDED_NOTHING: Final = 0
DECIDED_TENSORS: Final = 1
DECIDED_MESSAGE: Final = 2
DECIDED_CLOSING: Final = 3

CALL_REFUSED: Final = 0
CALL_DONE: Final = 1
CALL_LEFT: Final = 2


class Reduction(ctypes.Structure):
    """The computation of an all-reduce: ``postscale * op(prescale * x)``."""

    _fields_ = (("dtype", c_int32), ("op", c_int32), ("prescale", c_double), ("postscale", c_double))


class Spin(ctypes.Structure):
    """State that decides, from earlier waits, whether a thread spins before it sleeps."""

    _fields_ = (("most_ns", c_int64), ("vain", c_uint32), ("is_idle", c_uint16), ("is_near", c_uint16))


class Decision(ctypes.Structure):
    """What the ranks of a host decided in their page. Pointers are to sets of names, 64 in a word."""

    _fields_ = (
        ("kind", c_int32),
        ("is_held_back", c_int32),
        ("is_waiting", c_int32),
        ("news", c_int32),
        ("words", c_int32),
        ("calls", c_uint64),
        ("tensors", c_void_p),
        ("blanks", c_void_p),
        ("carried", c_void_p),
    )


class News(ctypes.Structure):
    """When a rank published what it had submitted."""

    _fields_ = (("at_ns", c_int64), ("rank", c_int32), ("was_last", c_int32))


class Piece(ctypes.Structure):
    """Bytes of the tensor of a rank."""

    _fields_ = (("rank", c_int32), ("offset", c_int32), ("bytes", c_int32))


class Recipe(ctypes.Structure):
    """What a rank makes of the tensors of all ranks, of at most ``bytes``: pieces, or pieces that are reduced."""

    _fields_ = (
        ("reduction", POINTER(Reduction)),
        ("pieces", POINTER(Piece)),
        ("count", c_int32),
        ("is_everything", c_int32),
        ("bytes", c_uint64),
    )


class Carried(ctypes.Structure):
    """A tensor of a call: the addresses of its bytes and of its result, its recipe and its bit."""

    _fields_ = (
        ("source", c_void_p),
        ("target", c_void_p),
        ("recipe", POINTER(Recipe)),
        ("name", c_uint32),
        ("bytes", c_uint32),
    )


class Call(ctypes.Structure):
    """A call in a page: what is asked, how it ended, and what there is to know if it is done."""

    _fields_ = (
        ("news", c_void_p),
        ("version", c_uint64),
        ("tensors", c_void_p),
        ("count", c_int32),
        ("outcome", c_int32),
        ("news_count", c_int32),
        ("number", c_uint64),
        ("begun_at", c_double),
        ("done_at", c_double),
        ("first_rank", c_int32),
        ("last_rank", c_int32),
        ("first_at", c_double),
        ("last_at", c_double),
        ("late_s", c_double),
    )


SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "hvd_abi_version": (c_int32, ()),
    "hvd_reduce": (c_int32, (c_void_p, POINTER(c_void_p), c_int32, c_uint64, POINTER(Reduction))),
    "hvd_open_partials": (c_int32, (c_void_p, c_void_p, c_uint64, POINTER(Reduction))),
    "hvd_close_partials": (c_int32, (c_void_p, c_void_p, c_uint64, POINTER(Reduction))),
    "hvd_crc32c": (c_uint32, (c_uint32, c_void_p, c_uint64)),
    "hvd_stream_copy": (None, (c_void_p, c_void_p, c_uint64)),
    "hvd_keep_freed": (None, (c_uint64,)),
    "hvd_wakeup_ns": (c_int64, ()),
    "hvd_spin_poll": (c_int32, (c_void_p, c_int32, c_int32, c_int32)),
    "hvd_page_bytes": (c_uint64, (c_int32, c_int32, c_int32)),
    "hvd_page_open": (
        c_int32,
        (c_int32, c_int32, c_int32, c_int32, c_int32, c_void_p, c_int64, POINTER(c_void_p)),
    ),
    "hvd_page_submit": (c_int32, (c_void_p, c_void_p, c_void_p, c_int32)),
    "hvd_page_announce": (None, (c_void_p, c_uint32)),
    "hvd_page_request_closing": (None, (c_void_p,)),
    "hvd_page_watch": (None, (c_void_p, c_int32)),
    "hvd_page_next": (c_int32, (c_void_p, c_int32, c_void_p, c_void_p)),
    "hvd_page_reopen": (c_int32, (c_void_p, c_uint32)),
    "hvd_page_waiting": (None, (c_void_p, c_int32, c_void_p)),
    "hvd_page_version": (POINTER(c_uint64), (c_void_p,)),
    "hvd_page_call": (c_int64, (c_void_p, c_void_p)),
    "hvd_page_resume": (c_int64, (c_void_p, c_void_p, c_int64)),
    "hvd_page_adopt": (c_int32, (c_void_p,)),
    "hvd_page_collect": (c_int32, (c_void_p, c_void_p, c_int32, c_int64)),
    "hvd_page_use_arena": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "hvd_page_stage": (c_int32, (c_void_p, c_int32, c_void_p, c_uint64, c_uint64)),
    "hvd_page_is_sharing": (c_int32, (c_void_p,)),
    "hvd_page_give_up": (None, (c_void_p,)),
    "hvd_page_arm": (c_int32, (c_void_p,)),
    "hvd_page_has_decision": (c_int32, (c_void_p,)),
    "hvd_page_poll": (c_int32, (c_void_p, c_void_p, c_int32, c_int32, c_int32)),
    "hvd_page_abort": (None, (c_void_p,)),
    "hvd_page_close": (None, (c_void_p,)),
    "hvd_page_free": (None, (c_void_p,)),
    "hvd_arena_open": (c_int32, (c_int32, c_int32, c_int32, c_uint64, POINTER(c_void_p))),
    "hvd_arena_address": (c_uint64, (c_void_p,)),
    "hvd_arena_use_huge_pages": (None, (c_void_p, c_int32, c_uint64, c_uint64)),
    "hvd_arena_release": (c_int32, (c_void_p, c_uint64, c_uint64)),
    "hvd_arena_stop_sharing": (None, (c_void_p,)),
    "hvd_arena_make_private": (c_int32, (c_void_p, c_int32, c_uint64, c_uint64)),
    "hvd_arena_after_fork": (c_int32, (c_void_p, c_int32)),
    "hvd_arena_leave_peers": (None, (c_void_p,)),
    "hvd_arena_close": (None, (c_void_p,)),
    "hvd_shm_bytes": (c_uint64, (c_int32, c_uint64, c_int32)),
    "hvd_shm_open": (
        c_int32,
        (c_int32, c_int32, c_int32, c_uint64, c_int32, c_int64, c_int64, POINTER(c_void_p)),
    ),
    "hvd_shm_use_arena": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "hvd_shm_allreduce": (c_int32, (c_void_p, c_void_p, c_uint64, POINTER(Reduction))),
    "hvd_shm_allgather": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "hvd_shm_reducescatter": (c_int32, (c_void_p, c_void_p, c_void_p, POINTER(Reduction), c_void_p)),
    "hvd_shm_alltoall": (c_int32, (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)),
    "hvd_shm_barrier": (c_int32, (c_void_p,)),
    "hvd_shm_copied_bytes": (c_uint64, (c_void_p,)),
    "hvd_shm_abort": (None, (c_void_p,)),
    "hvd_shm_close": (None, (c_void_p,)),
    "hvd_ring_open": (
        c_int32,
        (
            c_int32,
            c_int32,
            c_uint64,
            c_uint64,
            c_int32,
            c_int32,
            c_int32,
            c_char_p,
            c_int64,
            c_int64,
            POINTER(c_void_p),
        ),
    ),
    "hvd_ring_detach_left": (c_uint64, (c_void_p, c_int32)),
    "hvd_ring_attach_left": (c_int32, (c_void_p, c_int32, c_int32, c_void_p)),
    "hvd_ring_detach_right": (None, (c_void_p, c_int32)),
    "hvd_ring_attach_right": (c_int32, (c_void_p, c_int32, c_int32, c_uint64, c_void_p)),
    "hvd_ring_flush": (c_int32, (c_void_p, c_int32)),
    "hvd_ring_corrupt": (c_uint64, (c_void_p,)),
    "hvd_ring_allreduce": (c_int32, (c_void_p, c_void_p, c_uint64, POINTER(Reduction))),
    "hvd_ring_allgather": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "hvd_ring_reducescatter": (c_int32, (c_void_p, c_void_p, c_void_p, POINTER(Reduction))),
    "hvd_ring_alltoall": (c_int32, (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)),
    "hvd_ring_barrier": (c_int32, (c_void_p,)),
    "hvd_ring_abort": (None, (c_void_p,)),
    "hvd_ring_close": (None, (c_void_p,)),
}


@cache
def library() -> Any:
    """Loads the library. Raises NativeUnavailable, with what to do, if it is missing, broken or of another version."""
    return _load(ctypes.CDLL)


@cache
def quick_library() -> Any:
    """Returns the library for calls that take less time than to release the GIL and get it again. Raises as above."""
    return _load(ctypes.PyDLL)


def _load(kind: type[ctypes.CDLL]) -> Any:
    try:
        loaded = kind(str(LIBRARY), use_errno=True)
    except OSError as error:
        raise NativeUnavailable(
            f"hvdlite's native library cannot be loaded ({error}); "
            "run 'make native' in a checkout, or install hvdlite again from its folder where g++ is, or from a wheel."
        ) from None
    found = loaded.hvd_abi_version()
    if found != ABI_VERSION:
        raise NativeUnavailable(
            f"hvdlite's native library has ABI {found} but this Python package needs {ABI_VERSION}; "
            "reinstall hvdlite so that both come from one version."
        )
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype = result
        function.argtypes = arguments
    return loaded


@cache
def absence() -> str:
    """Returns why the library cannot be used; empty if it can."""
    return absence_of(library)


def check(status: int, what: str, aborted_by: HvdError | None = None) -> None:
    """Raises the error of ``status`` unless it is OK; for an abort, ``aborted_by``."""
    if status == OK:
        return
    if status == ABORTED and aborted_by is not None:
        raise aborted_by
    if status == SYSTEM:
        number = ctypes.get_errno()
        raise HorovodInternalError(f"{what} failed: {os.strerror(number)} (errno {number})")
    reason = {
        ABORTED: "it was aborted",
        TIMED_OUT: "no bytes moved within HVDLITE_PROGRESS_TIMEOUT; a rank is stopped or far behind",
        CORRUPT: "a frame arrived damaged however often it was resent; look at the network between the two",
        INVALID: "an argument is out of range",
    }.get(status, f"unknown status {status}")
    raise HorovodInternalError(f"{what} failed: {reason}")
