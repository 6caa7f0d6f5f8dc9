"""Ranks as threads of one process, with raw calls of NCCL."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeVar

from hvdlite.cuda.context import Context
from hvdlite.cuda.streams import Stream
from hvdlite.planes.nccl import library as nccl
from tests.harness import thread_ranks

T = TypeVar("T")


def unique_id() -> nccl.UniqueId:
    made = nccl.UniqueId()
    nccl.library().functions.ncclGetUniqueId(made)
    return made


class RawRank:
    """One rank of a communicator, that blocks, and its stream on GPU ``rank % 2``."""

    def __init__(self, rank: int, size: int, unique: nccl.UniqueId) -> None:
        self.rank, self.size = rank, size
        self.functions = nccl.library().functions
        self.context = Context(rank % 2)
        self.stream = Stream(self.context)
        self.comm = nccl.Comm()
        with self.context.current():
            self.functions.ncclCommInitRankConfig(ctypes.byref(self.comm), size, unique, rank, None)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls NCCL with the communicator and the stream as its last arguments."""
        getattr(self.functions, name)(*arguments, self.comm, self.stream.handle)

    def state(self) -> int:
        found = ctypes.c_int()
        self.functions.ncclCommGetAsyncError(self.comm, ctypes.byref(found))
        return found.value

    def close(self, abort: bool = False) -> None:
        (self.functions.ncclCommAbort if abort else self.functions.ncclCommDestroy)(self.comm)
        self.stream.close()
        self.context.close()


def raw_ranks(size: int, work: Callable[[RawRank], T]) -> list[T]:
    """``work(rank)`` on all ranks at once; the values in rank order."""
    unique = unique_id()

    def run(rank: int) -> T:
        made = RawRank(rank, size, unique)
        aborts = True
        try:
            result = work(made)
            aborts = made.state() != nccl.SUCCESS
            return result
        finally:
            made.close(aborts)

    return thread_ranks(size, run)
