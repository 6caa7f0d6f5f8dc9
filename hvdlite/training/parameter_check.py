"""Warns if ranks train with different parameters.

Parameters differ from the start if the script forgot ``broadcast_parameters``. So in its first step each rank submits a
checksum of every parameter together with its first gradients. Every rank that submits gradients submits checksums, so
the sum over all ranks is complete about when the gradients are. In all other steps ranks compare one slice of the
parameters (`hvdlite.training.slices`).

Ranks that have joined return with the parameters of earlier steps, and some take their first step only then. So after a
join the next step of each rank counts as a first one. All ranks count joins alike, and this number alone decides
whether they compare: a script that joins in every step, as a barrier, compares more and more rarely.

A joined rank takes part only in sums, with zeros. So a rank sends each checksum c and its square: n values are equal if
and only if n times the sum of their squares is the square of their sum.

    [ a number for each rank: the checksum of all its parameters, zero for the others | each c | each c squared ]
"""

from __future__ import annotations

import contextlib
import weakref
import zlib
from collections.abc import Sequence
from typing import Any, Final, Generic

import numpy as np
import numpy.typing as npt

from hvdlite.errors import HvdError, Mismatch
from hvdlite.log import logger
from hvdlite.ops import CPU, Group, Handle, Sum, synchronize
from hvdlite.ops.arrays import collectives as arrays
from hvdlite.ops.memory import checksum_in
from hvdlite.session import current
from hvdlite.training.naming import P
from hvdlite.training.slices import Checksum, Difference, MemoryOf, Slices, checksum_of

Checksums = npt.NDArray[np.uint64]
Vector = npt.NDArray[np.int64]

_SUM: Final = (Sum, 1.0, 1.0)
_EACH_OF_JOINS: Final = 64  # after more joins, only where their number is a power of two


class ParameterCheck(Generic[P]):
    """Compares the parameters of one optimizer.

    ``ready`` are the checksums from `read` until `submit`; ``under_way`` is their handle until `conclude`.
    ``memory_of`` returns None for a parameter that is not trained now, and raises ValueError for one that cannot be
    compared. ``how`` is operation, prescale and postscale of the gradients.
    """

    def __init__(self, memory_of: MemoryOf[P], how: tuple[int, float, float] = _SUM) -> None:
        self._memory_of = memory_of
        self._how = how
        self._members: list[tuple[str, P]] = []
        self._known_as = ""  # the first of the names that ranks use; no other optimizer has it
        self._first_step_in: tuple[weakref.ref[Group], int] | None = None
        self._group: weakref.ref[Group] | None = None
        self._step = 0  # in that group
        self._slices: Slices[P] | None = None  # of that group, from the first step that compares one
        self._compares_slice = False  # in this step
        self.ready: npt.NDArray[Any] | None = None
        self._names: list[str] = []  # of the parameters that were compared, in the optimizer's order
        self.under_way: Handle | None = None
        self._has_warned = False

    def watch(self, members: Sequence[tuple[str, P]], known_as: Sequence[tuple[str, P]]) -> None:
        """Adds parameters, with their names for users and the names that ranks use."""
        self._slices = None
        self._members += members
        self._known_as = min([name for name, _ in known_as] + [self._known_as] * bool(self._known_as))

    def read(self, group: Group) -> None:
        """Computes checksums for one step of ``group``. Call it in each step, before parameters change."""
        if self._group is None or self._group() is not group:
            self._group, self._step, self._slices = weakref.ref(group), 0, None
        self._step += 1
        self.ready = None
        if self.under_way is not None:
            self.start_over()
        if current().check_parameters == "0":
            return
        of = checksum_in(group)
        begun = (self._group, group.joins)
        is_first, self._first_step_in = begun != self._first_step_in, begun
        self._compares_slice = not (is_first and (group.joins <= _EACH_OF_JOINS or group.joins.bit_count() == 1))
        if self._compares_slice:
            if self._slices is None:
                self._slices = Slices(self._members, group, self._memory_of)
            self.ready = self._slices.read(of)
        else:
            checksums = [(name, self._checksum(parameter, of)) for name, parameter in self._members]
            moving = [(name, checksum) for name, checksum in checksums if checksum is not None]
            self._names = [name for name, _ in moving]
            self.ready = _packed([checksum for _, checksum in moving], group.rank, group.size)

    @property
    def name(self) -> str:
        """The name under which the checksums of this step travel."""
        return ("slice." if self._compares_slice else "checksum.") + self._known_as

    def submit(self, group: Group) -> None:
        """Sends the checksums that `read` computed, if any. Call it once a gradient of this step is in flight.

        Then all ranks submit their checksums in this step, and `conclude` waits no longer than for that gradient.
        """
        if self.ready is not None:
            how = self._how if self._compares_slice else _SUM
            with contextlib.suppress(HvdError, ValueError):  # the gradients raise the same
                (entry,) = arrays.entries_of_allreduce(group, True, how, self.name, [self.ready])
                group.submit(entry)
                self.under_way = entry
            self.ready = None

    def conclude(self, group: Group) -> None:
        """Waits for the checksums of all ranks of ``group``, and compares them.

        If they differ, one rank warns, once; with ``HVDLITE_CHECK_PARAMETERS=error`` all ranks raise Mismatch.
        """
        if self.under_way is None:
            return
        try:
            total = synchronize(self.under_way)
        except HvdError:  # ranks have other parameters, or the session has ended: as above
            self.under_way = None
            return
        self.under_way = None
        if self._compares_slice:
            assert self._slices is not None
            difference = self._slices.compare(total, self._step)
        else:
            difference = self._compare(total, group)
        if difference is None:
            return
        if current().check_parameters == "error":
            raise Mismatch(difference.text)
        if not self._has_warned:
            self._has_warned = True
            if group.rank == difference.reporter:
                logger.warning("%s", difference.text)

    def start_over(self) -> None:
        """Waits for checksums that are under way, and forgets them."""
        if self.under_way is not None:
            with contextlib.suppress(HvdError):
                synchronize(self.under_way)
            self.under_way = None

    def _compare(self, total: Vector, group: Group) -> Difference | None:
        models, differ = _unpacked(total, group.size, len(self._names))
        if not differ.any():
            return None
        return Difference(_warning(self._names, differ, models, group.ranks), int(np.flatnonzero(models)[0]))

    def _checksum(self, parameter: P, of: Checksum) -> int | None:
        """Returns the checksum of the parameter's memory: 0 if the host cannot read it, None if it is not trained."""
        try:
            memory = self._memory_of(parameter, ...)
        except ValueError:
            return 0
        if memory is None:
            return None
        return checksum_of(memory, of) if memory[-1].kind == CPU.kind else 0


def _packed(checksums: Sequence[int], rank: int, size: int) -> Vector:
    bits = (63 - size.bit_length()) // 2  # of a checksum: the sum of ``size`` squares must fit into 63 bits
    kept = np.array(checksums, np.uint64) & np.uint64((1 << bits) - 1)
    vector = np.zeros(size + 2 * len(kept), np.int64)
    vector[rank] = 1 + zlib.crc32(kept.tobytes())
    vector[size:] = np.concatenate([kept, kept * kept])
    return vector


def _unpacked(total: Vector, size: int, count: int) -> tuple[Vector, npt.NDArray[np.bool_]]:
    """Returns each rank's number for its parameters, 0 if it has joined, and which parameters differ."""
    models, sums = total[:size], total[size:].astype(np.uint64)
    live = np.uint64(np.count_nonzero(models))
    return models, live * sums[count:] != sums[:count] * sums[:count]  # both sides modulo 2 ** 64


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
