"""Memory of each rank that all ranks of its host have mapped, so that tensors there are reduced without a copy.

One sparse memfd has a region for each rank of the host, and every rank maps all of it when the session begins. A rank
allocates in its own region without sending a message, since all offsets in it are mapped everywhere already. Pages,
huge ones if the system has some, are reserved when something is allocated and returned when it is freed. So a region
may be as large as the machine's memory: it costs addresses only.

An array there owns a `Block`, which owns the mapping, so arrays outlive the session. Then they are ordinary memory. So
they are in a forked child, which has its parent's data there and writes to copies of the pages.

When a collective fails halfway, a late peer may write its part after the user has gone on. So the failing rank makes
its allocations private (`Arena.stop_sharing`) before the error is raised: the same addresses, with pages of its own.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from hvdlite import native
from hvdlite.host.proc import memory
from hvdlite.log import logger
from hvdlite.memory.free_list import FreeList
from hvdlite.memory.segment import create_sparse

_LIMIT_BYTES: Final = 1 << 44  # of addresses, of which a process has 2 ** 47
_PAGE_BYTES: Final = 2 << 20  # that are reserved and given back: huge ones, as in native/include/hvdlite.h
_CACHE_LINE: Final = 64
_STEP_BYTES: Final = 64 << 20  # reserved at once, so that a signal interrupts little


def create_arena(count: int) -> int | None:
    """The descriptor of an arena of ``count`` regions. None if the system allows no file of this size."""
    try:
        return create_sparse(_page_down(min(_physical_bytes(), _LIMIT_BYTES // count)) * count)
    except OSError as error:
        logger.info("shared arrays will be ordinary arrays: %s", error)
        return None


class Arena:
    """One rank's view of the arena ``fd`` of ``count`` ranks, of which region ``own`` is its own. Takes over ``fd``.

    Raises HorovodInternalError if the address space is too small. Any thread may use it.
    """

    def __init__(self, fd: int, own: int, count: int) -> None:
        self._fd = fd
        self._library: Any = native.library()
        self._owner_pid = os.getpid()
        self._nbytes = os.fstat(fd).st_size // count
        self._position = own * self._nbytes
        self.is_shared = True  # collectives may still use what is allocated here
        self._lock = threading.RLock()  # guards _free and the pages; reentrant only to see who has it
        self._free = FreeList(self._nbytes - _PAGE_BYTES)
        # Blocks freed by any thread, perhaps while some thread has the lock; its next holder takes them back.
        self._freed: deque[tuple[int, int]] = deque()
        self.handle = ctypes.c_void_p()
        status = self._library.hvd_arena_open(fd, own, count, self._nbytes, ctypes.byref(self.handle))
        if status != native.OK:
            os.close(fd)
        native.check(status, "mapping the memory that ranks of a host share")
        self._address: int = self._library.hvd_arena_address(self.handle)
        _arenas.add(self)

    def holds(self, address: int) -> bool:
        """True for addresses in this rank's region."""
        return 0 <= address - self._address < self._nbytes

    def allocate(self, nbytes: int) -> Block:
        """``nbytes`` of uninitialised memory, aligned to cache lines or, from a page on, to pages.

        Raises MemoryError if the machine has no more.
        """
        alignment = mmap.PAGESIZE if nbytes >= mmap.PAGESIZE else _CACHE_LINE
        rounded = -(-nbytes // alignment) * alignment
        try:
            with self._lock:
                self._take_back()
                offset = self._free.take(rounded, alignment)
                if offset is None:
                    raise _no_memory(nbytes)
                self._reserve(offset, rounded, nbytes)
        finally:
            self._drain()
        return Block(self, offset, rounded, self._address + offset, nbytes)

    def free(self, offset: int, nbytes: int) -> None:
        """Frees a block's memory. Never waits: the garbage collector calls it, anywhere."""
        if os.getpid() == self._owner_pid:
            self._freed.append((offset, nbytes))
            self._drain()

    def stop_sharing(self) -> None:
        """Makes all allocations private: peers no longer see them, and writes of peers no longer arrive."""
        with self._lock:
            if not self.is_shared:
                return
            self.is_shared = False
            self._library.hvd_arena_stop_sharing(self.handle)
            done = 0
            for begin, end in self._free.taken():
                first, done = max(done, _page_down(begin)), _page_up(end)
                if first < done and self._library.hvd_arena_make_private(self.handle, self._fd, first, done - first):
                    logger.error("no memory for copies of shared arrays: a rank that is late may still write into them")
                    return

    def leave(self) -> None:
        """Ends this process's use of peers' memory, after the last collective. Allocations stay."""
        if os.getpid() == self._owner_pid:
            self._library.hvd_arena_leave_peers(self.handle)

    def after_fork_in_child(self) -> None:
        """Detaches a forked child, which is no rank, from the memory of others, and makes its writes private."""
        self.is_shared = False
        self._library.hvd_arena_after_fork(self.handle, self._fd)

    def _reserve(self, offset: int, rounded: int, nbytes: int) -> None:
        begin, end = self._pages_of(offset, rounded)
        try:
            if rounded > _STEP_BYTES and rounded > memory().available:
                raise _no_memory(nbytes)  # before the system ends some process for it
            for step in range(begin, end, _STEP_BYTES):
                step_bytes = min(_STEP_BYTES, end - step)
                self._library.hvd_arena_use_huge_pages(self.handle, self._fd, step, step_bytes)
                os.posix_fallocate(self._fd, self._position + step, step_bytes)
        except BaseException as error:
            self._give_back(offset, rounded)
            if isinstance(error, OSError):
                raise _no_memory(nbytes) from None
            raise

    def _pages_of(self, offset: int, nbytes: int) -> tuple[int, int]:
        """The pages that hold nothing but this block."""
        begin, end = self._free.around(offset, nbytes)
        first, last = max(_page_up(begin), _page_down(offset)), min(_page_down(end), _page_up(offset + nbytes))
        return first, max(first, last)

    def _drain(self) -> None:
        lock: Any = self._lock
        if lock._is_owned():  # a block is freed in the middle of another call, which drains at its end
            return
        try:
            while self._freed and lock.acquire(blocking=False):
                self._take_back()
                lock.release()
        finally:
            if lock._is_owned():  # a signal handler has raised
                lock.release()

    def _take_back(self) -> None:
        while self._freed:
            self._give_back(*self._freed.popleft())

    def _give_back(self, offset: int, nbytes: int) -> None:
        """Frees a block, and the pages that hold nothing else."""
        first, last = self._pages_of(offset, nbytes)
        self._free.give(offset, nbytes)
        if first < last:
            self._library.hvd_arena_release(self.handle, first, last - first)

    def __del__(self) -> None:
        # At the end of the interpreter a thread may still be in a collective, and the kernel is quicker anyway.
        if self.handle and not sys.is_finalizing():
            self._library.hvd_arena_close(self.handle)
            os.close(self._fd)


class Block:
    """A block of an arena, allocated for as long as this object lives. ``numpy.asarray`` gives its bytes."""

    __slots__ = ("_address", "_arena", "_nbytes", "_offset", "_reserved")

    def __init__(self, arena: Arena, offset: int, reserved: int, address: int, nbytes: int) -> None:
        self._arena = arena
        self._offset = offset
        self._reserved = reserved
        self._address = address
        self._nbytes = nbytes

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "typestr": "|u1", "shape": (self._nbytes,), "data": (self._address, False)}

    def __del__(self) -> None:
        self._arena.free(self._offset, self._reserved)


class Regions(NamedTuple):
    """The regions of a group's ranks in the arena, by the ``numbers`` that they have on their host."""

    arena: Arena
    numbers: Sequence[int]

    def of(self, ranks: Sequence[int]) -> Regions:
        """The regions of a group of some ``ranks`` of this one."""
        return Regions(self.arena, [self.numbers[rank] for rank in ranks])


def _physical_bytes() -> int:
    return mmap.PAGESIZE * os.sysconf("SC_PHYS_PAGES")


def _page_down(nbytes: int) -> int:
    return nbytes & -_PAGE_BYTES


def _page_up(nbytes: int) -> int:
    return _page_down(nbytes + _PAGE_BYTES - 1)


def _no_memory(nbytes: int) -> MemoryError:
    return MemoryError(
        f"cannot allocate {nbytes} bytes of memory that ranks of this host share; free memory on this host, run fewer "
        "ranks on it, or use ordinary arrays, which collectives take as well."
    )


_arenas: weakref.WeakSet[Arena] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for arena in _arenas:
        arena.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
