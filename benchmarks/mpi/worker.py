"""An MPI rank: serves the rank of the benchmark with the same number until that one hangs up.

Requests and replies are lines of JSON. A request describes the collective (op, dtype, elements) and has either
``"check": true``, answered with ``{"is_right": …}``, or ``length`` and ``warmup``, answered with
``{"nanoseconds": […]}``, or neither, answered with ``{"processor_s": …}``. It runs in the virtual environment of the
library, where hvdlite is not installed, and imports only modules of it that need nothing else.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from hvdlite.bench.measuring.pattern import fill, is_first, is_gathered, is_sum, nanoseconds

np: Any = importlib.import_module("numpy")
TYPES = ("uint8", "int8", "int16", "int32", "int64", "float32", "float64")  # in the order of oneccl.cc
IS_RIGHT = {"allreduce": is_sum, "allgather": is_gathered, "broadcast": is_first}


class Work:
    """One collective on its own tensors, written as MPI's users would, or made by a ``shim``."""

    def __init__(self, mpi: Any, shim: Any, op: str, dtype: str, elements: int) -> None:
        self._comm, self._is_right = mpi.COMM_WORLD, IS_RIGHT[op]
        self._tensor = tensor = np.zeros(elements, dtype)
        self._result = np.zeros(elements * self._comm.size, dtype) if op == "allgather" else tensor
        runs: dict[str, Callable[[], None]] = {
            "allreduce": lambda: self._comm.Allreduce(mpi.IN_PLACE, tensor),
            "allgather": lambda: self._comm.Allgather(tensor, self._result),
            "broadcast": lambda: self._comm.Bcast(tensor),
        }
        self._run = runs[op] if shim is None else self._with(shim, op)

    def _with(self, shim: Any, op: str) -> Callable[[], None]:
        tensor, result = self._tensor, self._result
        addresses = [tensor.ctypes.data, result.ctypes.data] if op == "allgather" else [tensor.ctypes.data]
        arguments = [*map(ctypes.c_void_p, addresses), ctypes.c_size_t(tensor.size), TYPES.index(tensor.dtype.name)]
        return partial(getattr(shim, op), *arguments)

    def is_right(self) -> bool:
        """True if this rank's result is correct on fresh data."""
        fill(self._tensor, self._comm.rank)
        self._run()
        return self._is_right(self._result, self._comm.size)

    def block(self, length: int, warmup: int) -> list[int]:
        """Returns the nanoseconds of each iteration."""
        self._comm.Barrier()
        return nanoseconds(self._run, length, warmup)


def serve(mpi: Any, shim: Any, connection: socket.socket) -> None:
    """Answers requests until the connection ends."""
    asked: tuple[Any, ...] = ()
    with connection, connection.makefile("rb") as requests:
        for line in requests:
            request = json.loads(line)
            if asked != (asked := (request["op"], request["dtype"], request["elements"])):
                work = Work(mpi, shim, *asked)
            if "check" in request:
                reply: dict[str, Any] = {"is_right": work.is_right()}
            elif "length" in request:
                reply = {"nanoseconds": work.block(request["length"], request["warmup"])}
            else:
                reply = {"processor_s": time.process_time()}
            connection.sendall(json.dumps(reply).encode() + b"\n")


def opened(path: str, comm: Any) -> Any:
    """Opens the shim at ``path`` on all ranks."""
    shim = ctypes.CDLL(path)
    address = ctypes.create_string_buffer(1024)
    if comm.rank == 0:
        shim.meet(address)
    shim.join(comm.bcast(address.raw), comm.size, comm.rank)
    return shim


def main(folder: str, path: str = "") -> None:
    """Connects to the socket in ``folder`` that is named after this MPI rank, and serves, with the shim at ``path``."""
    mpi: Any = importlib.import_module("mpi4py.MPI")
    shim = opened(path, mpi.COMM_WORLD) if path else None
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(f"{folder}/{mpi.COMM_WORLD.rank}")
    with suppress(ConnectionError):  # the benchmark was killed
        serve(mpi, shim, connection)
    if shim is not None:
        shim.leave()
