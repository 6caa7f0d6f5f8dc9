"""The page: shared memory in which the ranks of one host agree on what they run next.

Tensors that all ranks know are agreed on here without a message, and without a thread of another rank: whoever submits
the last one decides for all. `native/page/agreement.h` explains how, and why it is safe. Everything else goes over the
control link. The page also gives each message of the root its place in the order of all decisions.

Each rank has a *bell*, an eventfd that another rank writes to when it decides while this rank sleeps. All ranks have
all bells.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Final

import numpy as np

from hvdlite import native
from hvdlite.memory.segment import create
from hvdlite.negotiation.wire import ProtocolError

MAX_RANKS: Final = 250  # so many descriptors, and a few more, fit into one message
ABORTED: Final = -1
_WORD: Final = 8  # bytes


class PageOffer:
    """The descriptors of a new page for ``size`` ranks: the memory, and all bells.

    It has room for ``names`` tensors: ``capacity``, rounded up to a power of two, or what fits into a mebibyte. Raises
    OSError or HorovodInternalError if the system refuses it.
    """

    def __init__(self, size: int, capacity: int) -> None:
        names = 1 << max(capacity - 1, 63).bit_length()
        while not (nbytes := int(native.library().hvd_page_bytes(size, names))):
            names //= 2
        self.names = names
        self.fds = [create(nbytes)]
        try:
            self.fds += [os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(size)]
        except OSError:
            self.close()
            raise

    def take(self) -> list[int]:
        """Returns the descriptors, which the caller closes."""
        fds, self.fds = self.fds, []
        return fds

    def close(self) -> None:
        """Closes the descriptors, unless they were taken."""
        for fd in self.take():
            os.close(fd)


class Page:
    """One rank's end. ``fds`` are those of the `PageOffer`; this object closes them, also if the constructor fails.

    Turns call the methods, so their calls do not overlap; any thread may call `arm` and read ``bell``, this rank's.
    ``names``: tensors with a bit below are agreed on here. `next` sets ``is_waiting`` if some ranks have submitted
    tensors that others have not, and ``is_held_back`` if this rank was not willing to decide on tensors.
    """

    def __init__(self, fds: Sequence[int], rank: int, size: int, names: int) -> None:
        self.names = names
        self.is_waiting = self.is_held_back = self.is_watched = False
        self._size = size
        self._library = native.quick_library()
        self._bells = list(fds[1:])
        self.bell = self._bells[rank]
        self._words = np.zeros(-(-names // 64), np.uint64)
        self._news = (native.News * size)()
        self._decision = native.Decision()
        self._decision_at = ctypes.addressof(self._decision)
        handle = ctypes.c_void_p()
        bells = np.array(self._bells, np.int32)
        try:
            status = self._library.hvd_page_open(fds[0], rank, size, names, bells.ctypes.data, ctypes.byref(handle))
            native.check(status, "mapping the page")
        except BaseException:
            self._close_bells()
            raise
        finally:
            os.close(fds[0])
        self.handle = handle

    def submit(self, bits: int, blank_bits: int) -> None:
        """Publishes that this rank has submitted the tensors of ``bits``."""
        words = -(-bits.bit_length() // 64)
        nbytes = words * _WORD
        status = self._library.hvd_page_submit(
            self.handle, bits.to_bytes(nbytes, "little"), blank_bits.to_bytes(nbytes, "little"), words
        )
        native.check(status, "submitting tensors in the page")

    def announce(self, messages: int) -> None:
        """At the root: publishes how many messages it has sent since the page exists."""
        self._library.hvd_page_announce(self.handle, messages & 0xFFFFFFFF)

    def request_closing(self) -> None:
        """Publishes that the page must be closed."""
        self._library.hvd_page_request_closing(self.handle)

    def watch(self, is_watched: bool) -> None:
        """At the root: from now on, or no longer, whatever any rank submits here wakes this rank."""
        self.is_watched = is_watched
        self._library.hvd_page_watch(self.handle, is_watched)

    def next(self, is_willing: bool) -> tuple[int, int, int]:
        """Takes the next decision: its kind (`native.DECIDED_TENSORS` and so on), its bits, and its blank bits.

        `ABORTED` if there is none and will be none. Raises ProtocolError if a peer wrote what no correct peer writes.
        """
        decision = self._decision
        if status := self._library.hvd_page_next(self.handle, is_willing, self._decision_at):
            if status == native.ABORTED:
                return ABORTED, 0, 0
            raise ProtocolError("a rank of this host has damaged the memory in which ranks agree")
        self.is_waiting, self.is_held_back = bool(decision.is_waiting), bool(decision.is_held_back)
        if (kind := decision.kind) != native.DECIDED_TENSORS:
            return kind, 0, 0
        nbytes = decision.words * _WORD
        bits = int.from_bytes(ctypes.string_at(decision.tensors, nbytes), "little")
        return kind, bits, int.from_bytes(ctypes.string_at(decision.blanks, nbytes), "little")

    def reopen(self, messages: int) -> None:
        """Opens the page after a closing; the root has sent ``messages``. Raises ProtocolError as `next` does."""
        if self._library.hvd_page_reopen(self.handle, messages & 0xFFFFFFFF):
            raise ProtocolError("a rank of this host has damaged the memory in which ranks agree")

    def submitted(self) -> list[int]:
        """Returns for each rank the bits that it has submitted and that have not run, as far as `next` has read."""
        bits = []
        for rank in range(self._size):
            self._library.hvd_page_waiting(self.handle, rank, self._words.ctypes.data)
            bits.append(int.from_bytes(self._words.tobytes(), "little"))
        return bits

    def news(self) -> list[tuple[int, bool, float]]:
        """Returns what `next` has read since the last call: a rank, whether it was the last one for some tensor, and
        when it submitted, on the monotonic clock. In order of time. The first call returns nothing.
        """
        count = self._library.hvd_page_take_news(self.handle, self._news)
        return [(each.rank, bool(each.was_last), each.at_ns / 1e9) for each in self._news[:count]]

    def arm(self) -> bool:
        """Lets the next decision ring the bell, until `next` is called. True if there is a decision already."""
        return bool(self.handle and self._library.hvd_page_arm(self.handle))

    def abort(self) -> None:
        """Tells all ranks that there may be no further decision, because one of them takes part no more."""
        self._library.hvd_page_abort(self.handle)

    def close(self) -> None:
        """Unmaps the page and closes the bells. A forked child has no mapping, and calls nothing."""
        handle, self.handle = self.handle, ctypes.c_void_p()
        if handle:
            self._library.hvd_page_close(handle)
            self._close_bells()

    def _close_bells(self) -> None:
        bells, self._bells = self._bells, []
        for bell in bells:
            os.close(bell)
