"""Warns if ranks begin to train with different parameters, because ``broadcast_parameters`` was forgotten.

In its first step each rank submits a checksum of every parameter together with its first gradients, and compares when
the sum over all ranks has come; it never waits for that. Every rank that submits gradients submits checksums, so the
sum is complete whenever the gradients are.

Ranks that have joined return with the parameters of earlier steps, and some take their first step only then. So after a
join the next step of each rank is a first one again. All ranks count joins alike, and this number alone decides whether
they compare: a script that joins in every step, to have a barrier, compares more and more rarely.

A joined rank takes part in nothing but sums, with zeros. So a checksum c is sent as c and as its square: n values are
equal if and only if n times the sum of their squares is the square of their sum.

    [ a number for each rank: the checksum of all its parameters, zero for the others | each c | each c squared ]
"""

from __future__ import annotations

import ctypes
import math
import weakref
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic

import numpy as np
import numpy.typing as npt

from hvdlite import native
from hvdlite.engine.group import Group
from hvdlite.errors import HvdError
from hvdlite.log import logger
from hvdlite.members.process_set import ProcessSet
from hvdlite.negotiation.handle import Handle
from hvdlite.ops import group_of, synchronize
from hvdlite.ops.arrays import collectives as arrays
from hvdlite.session import current
from hvdlite.tensors.buffer import Buffer
from hvdlite.tensors.device import CPU
from hvdlite.tensors.dtypes import Sum
from hvdlite.training.naming import P

Checksums = npt.NDArray[np.uint64]
Vector = npt.NDArray[np.int64]

_EACH_OF_JOINS: Final = 64  # and then after twice, four times, ... as many


class ParameterCheck(Generic[P]):
    """Compares the parameters of one optimizer.

    ``ready`` are the checksums from `read` until `submit`; ``under_way`` is their handle from then until `conclude`.
    ``memory_of`` returns None for a parameter that is not trained now, and raises ValueError if it cannot be compared.
    """

    def __init__(self, process_set: ProcessSet, memory_of: Callable[[P], Buffer | None]) -> None:
        self._process_set = process_set
        self._memory_of = memory_of
        self._members: list[tuple[str, P]] = []
        self._known_as = ""  # the first of the names that ranks use, which no other optimizer has
        self._first_step_in: tuple[weakref.ref[Group], int] | None = None
        self.ready: Vector | None = None
        self._names: list[str] = []  # of the parameters that were compared, in the optimizer's order
        self.under_way: Handle | None = None
        self._has_told = False

    def watch(self, members: Sequence[tuple[str, P]], known_as: Sequence[tuple[str, P]]) -> None:
        """Adds parameters, with their names for users and those that ranks use."""
        self._members += members
        self._known_as = min([name for name, _ in known_as] + [self._known_as] * bool(self._known_as))

    def read(self, group: Group) -> None:
        """Computes checksums in a first step of ``group``. Call it in each step, before parameters change."""
        begun = (weakref.ref(group), group.joins)
        if begun == self._first_step_in:
            return
        self._first_step_in = begun
        self.ready = self.under_way = None
        if current().compares_parameters and _compares_after(group.joins):
            of = _zlib_crc32 if group.membership.without_native else native.library().hvd_crc32c
            checksums = [(name, self._checksum(parameter, of)) for name, parameter in self._members]
            moving = [(name, checksum) for name, checksum in checksums if checksum is not None]
            self._names = [name for name, _ in moving]
            self.ready = _packed([checksum for _, checksum in moving], group.rank, group.size)

    def submit(self) -> None:
        """Sends the checksums that `read` took, if any, in the burst of the caller."""
        if self.ready is not None:
            vector, self.ready = self.ready, None
            try:
                name = f"checksum.{self._known_as}"
                self.under_way = arrays.allreduce_async_(vector, None, name, Sum, process_set=self._process_set)
            except (HvdError, ValueError):
                pass  # the gradients, which matter, say what is wrong

    def conclude(self) -> None:
        """Compares the checksums of all ranks if they have come, and warns if they differ."""
        if self.under_way is None or not self.under_way.is_done:
            return
        handle, self.under_way = self.under_way, None
        try:
            total = synchronize(handle)
        except HvdError:  # ranks have other parameters, or there is no session any more: as above
            return
        group = group_of(self._process_set)
        models, differ = _unpacked(total, group.size, len(self._names))
        live = np.flatnonzero(models)
        if differ.any() and not self._has_told:
            self._has_told = True
            if group.rank == live[0]:
                logger.warning("%s", _warning(self._names, differ, models, group.ranks))

    def _checksum(self, parameter: P, of: Callable[[int, int, int], int]) -> int | None:
        """Returns the checksum of the parameter's memory: 0 if the host cannot read it, None if it is not trained."""
        try:
            memory = self._memory_of(parameter)
        except ValueError:
            return 0
        if memory is None:
            return None
        address, dtype, shape, owner, device = memory
        if device.kind != CPU.kind:
            return 0
        checksum = of(0, address, math.prod(shape) * dtype.itemsize)
        del owner, memory  # kept alive until here: it may own a copy's memory
        return checksum


def _compares_after(joins: int) -> bool:
    return joins <= _EACH_OF_JOINS or joins & (joins - 1) == 0


def _zlib_crc32(begun: int, address: int, nbytes: int) -> int:
    """The checksum for groups in which some rank lacks the native library."""
    return zlib.crc32((ctypes.c_ubyte * nbytes).from_address(address), begun) if nbytes else begun


def _packed(checksums: Sequence[int], rank: int, size: int) -> Vector:
    kept = np.array(checksums, np.uint64) & np.uint64((1 << _bits(size)) - 1)
    vector = np.zeros(size + 2 * len(kept), np.int64)
    vector[rank] = 1 + zlib.crc32(kept.tobytes())
    vector[size:] = np.concatenate([kept, kept * kept])
    return vector


def _unpacked(total: Vector, size: int, count: int) -> tuple[Vector, npt.NDArray[np.bool_]]:
    """Returns the number for each rank's parameters, 0 for a joined rank, and the parameters that differ."""
    models, sums = total[:size], total[size:].astype(np.uint64)
    live = np.uint64(np.count_nonzero(models))
    return models, live * sums[count:] != sums[:count] * sums[:count]  # both sides modulo 2 ** 64


def _bits(size: int) -> int:
    """Returns how many bits of a checksum may travel so that the sum of ``size`` squares fits into 63 bits."""
    return (63 - size.bit_length()) // 2


def _warning(names: Sequence[str], differ: Any, models: Vector, ranks: Sequence[int]) -> str:
    first, *others = [name for name, is_different in zip(names, differ, strict=True) if is_different]
    live: list[int] = np.flatnonzero(models).tolist()
    reference = live[0]
    unlike = [str(ranks[index]) for index in live if models[index] != models[reference]]
    more = f", as are {len(others)} more" if others else ""
    return (
        f"ranks begin to train with different parameters: {first!r} is different{more}; rank(s) {', '.join(unlike)} "
        f"do not have those of rank {ranks[reference]}. Call hvd.broadcast_parameters(model.state_dict(), root_rank=0) "
        "before the first step, and after hvd.join(). HVDLITE_CHECK_PARAMETERS=0 turns this check off"
    )
