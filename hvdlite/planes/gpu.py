"""What the planes for the memory of CUDA devices have in common."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hvdlite.cuda.chosen import ChosenGpu
from hvdlite.cuda.events import Events, Moment
from hvdlite.cuda.memory import device_of
from hvdlite.errors import HorovodInternalError
from hvdlite.members.membership import Membership
from hvdlite.planes.base import DevicePlane
from hvdlite.tensors.device import Device


class GpuPlane(DevicePlane):
    """A plane of one of the ``members``. `ChosenGpu` chooses its GPU.

    CUDA cannot be used in a forked child, so there the plane is of no use, and must free nothing.
    """

    def __init__(self, members: Membership) -> None:
        self.rank, self.size = members.rank, members.size
        self._label = members.number
        self._chosen = ChosenGpu(members.number, members.on_this_host.index(members.rank))
        self._marks: Sequence[Moment] = ()  # for which the next collective waits
        self._owner_pid = os.getpid()
        self._is_closed = False

    def record(self, ordinal: int, stream: int) -> Moment:
        return self._chosen.events(ordinal).record_callers(stream)

    def wait_for(self, marks: Sequence[Moment]) -> None:
        self._marks = marks

    def choose(self, device: Device) -> None:
        if reason := self._chosen.take(device.ordinal):
            raise ValueError(reason)

    @property
    def _is_forked(self) -> bool:
        return os.getpid() != self._owner_pid

    def _events_for(self, address: int) -> Events:
        """Returns the events of the plane's GPU, whose memory ``address`` is, unless that is 0.

        Raises HorovodInternalError if the plane cannot be used, or the memory is another GPU's.
        """
        if self._is_closed or self._is_forked:
            reason = "the plane is closed" if self._is_closed else "this process is a forked child of the rank's"
            raise HorovodInternalError(
                f"rank {self._label} cannot use its GPU: {reason}; call hvdlite.init() here first."
            )
        device = device_of(address) if address else None
        return self._chosen.choose(device and device.ordinal)
