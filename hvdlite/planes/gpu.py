"""What the planes for the memory of CUDA devices have in common."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hvdlite.cuda import driver
from hvdlite.cuda.events import Events, Moment
from hvdlite.cuda.memory import device_of
from hvdlite.cuda.presence import KIND
from hvdlite.errors import HorovodInternalError, HvdError
from hvdlite.members.membership import Membership
from hvdlite.planes.base import DevicePlane
from hvdlite.tensors.device import Device


class GpuPlane(DevicePlane):
    """A plane of one of the ``members``, for the GPU of its first tensor, since programs choose a GPU after `init`.

    The first submit chooses the GPU, or the first collective if it has no tensor here: then it is the GPU of the rank's
    number on its host. Choosing takes no lock, since a signal handler may end a submit anywhere.

    CUDA cannot be used in a forked child, so there the plane is of no use, and must free nothing.
    """

    def __init__(self, members: Membership) -> None:
        self.rank, self.size = members.rank, members.size
        self._label = members.number
        self._local_rank = members.on_this_host.index(members.rank)
        self._chosen: dict[str, int] = {}  # empty, or with one item, which the first thread sets
        self._events: dict[int, Events] = {}  # by GPU
        self._marks: Sequence[Moment] = ()  # for which the next collective waits
        self._owner_pid = os.getpid()
        self._is_closed = False

    def record(self, ordinal: int, stream: int) -> Moment:
        return self._events_of(ordinal).record_callers(stream)

    def wait_for(self, marks: Sequence[Moment]) -> None:
        self._marks = marks

    def choose(self, device: Device) -> None:
        if self._chosen.get("ordinal", device.ordinal) == device.ordinal:
            try:
                self._events_of(device.ordinal)
            except HvdError as error:
                raise ValueError(
                    f"a tensor is on GPU {device.ordinal}, which rank {self._label} cannot use: {error}"
                ) from None
            if self._chosen.setdefault("ordinal", device.ordinal) == device.ordinal:
                return
        raise ValueError(
            f"a tensor is on GPU {device.ordinal}, but rank {self._label} uses GPU {self._chosen['ordinal']} in this "
            "group; call torch.cuda.set_device(hvd.local_rank()) before anything is on a GPU, and use that GPU only"
        )

    @property
    def _is_forked(self) -> bool:
        return os.getpid() != self._owner_pid

    def _events_for(self, address: int) -> Events:
        """Returns the events of the plane's GPU. ``address`` is in its memory, or 0.

        Raises HorovodInternalError if the plane cannot be used, or the memory is another GPU's.
        """
        if self._is_closed or self._is_forked:
            reason = "the plane is closed" if self._is_closed else "this process is a forked child of the rank's"
            raise HorovodInternalError(
                f"rank {self._label} cannot use its GPU: {reason}; call hvdlite.init() here first."
            )
        device = device_of(address) if address else None
        if device is None:
            ordinal = self._chosen.setdefault("ordinal", self._local_rank % driver.count())
            device = Device(KIND, ordinal)
        try:
            GpuPlane.choose(self, device)
        except ValueError as error:
            raise HorovodInternalError(str(error)) from None
        return self._events_of(device.ordinal)

    def _events_of(self, ordinal: int) -> Events:
        """Returns the events of a GPU. Raises HvdError if there is none of that number."""
        if (found := self._events.get(ordinal)) is None:
            made = Events(ordinal)
            found = self._events.setdefault(ordinal, made)
            if found is not made:  # another thread was faster
                made.close()
        return found

    def _close_events(self) -> None:
        """Frees the events. May be called twice."""
        for events in self._events.values():
            events.close()
