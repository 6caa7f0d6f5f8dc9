"""The GPU that a rank uses: the one that its first tensor is on, since programs choose it after `init`."""

from __future__ import annotations

from hvdlite.cuda import driver
from hvdlite.cuda.events import Events
from hvdlite.errors import HorovodInternalError, HvdError


class ChosenGpu:
    """The GPU of rank ``label`` in one group, and its events.

    It is chosen by the first submit, or by the first collective if that has no tensor here: then it is the
    ``local_rank``-th. Any thread may call, and takes no lock, since a signal handler may end a submit anywhere.
    """

    def __init__(self, label: int, local_rank: int) -> None:
        self._label = label
        self._local_rank = local_rank
        self._chosen: dict[str, int] = {}  # empty, or with one item, which the first thread sets
        self._events: dict[int, Events] = {}

    def take(self, ordinal: int) -> str:
        """Chooses GPU ``ordinal`` for good. Returns why that cannot be; empty if it can."""
        if self._chosen.get("ordinal", ordinal) == ordinal:
            try:
                self.events(ordinal)
            except HvdError as error:
                return f"a tensor is on GPU {ordinal}, which rank {self._label} cannot use: {error}"
            if self._chosen.setdefault("ordinal", ordinal) == ordinal:
                return ""
        return (
            f"a tensor is on GPU {ordinal}, but rank {self._label} uses GPU {self._chosen['ordinal']} in this group; "
            "call torch.cuda.set_device(hvd.local_rank()) before anything is on a GPU, and use that GPU only"
        )

    def choose(self, ordinal: int | None) -> Events:
        """Returns the events of the GPU, for a collective whose tensors are on GPU ``ordinal``, or that has none here.

        Raises HorovodInternalError if that is another one.
        """
        if ordinal is None:
            ordinal = self._chosen.setdefault("ordinal", self._local_rank % driver.count())
        if reason := self.take(ordinal):
            raise HorovodInternalError(reason)
        return self.events(ordinal)

    def events(self, ordinal: int) -> Events:
        """Returns the events of a GPU. Raises HvdError if there is none of that number."""
        if (found := self._events.get(ordinal)) is None:
            made = Events(ordinal)
            found = self._events.setdefault(ordinal, made)
            if found is not made:  # another thread was faster
                made.close()
        return found

    def close(self) -> None:
        """Frees the events. May be called twice."""
        for events in self._events.values():
            events.close()
