"""The page: shared memory in which the ranks of one host agree on what they run next.

Tensors that all ranks know are agreed on here without a message, and without a thread of another rank: whoever submits
the last one decides for all. `native/page/agreement.h` explains how, and why it is safe. Everything else goes over the
control link. The page also gives each message of the root its place in the order of all decisions.

Each rank has a *bell*, an eventfd that another rank writes to when it decides while this rank sleeps. All ranks have
all bells.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

import numpy as np

from hvdlite import native
from hvdlite.errors import HvdError
from hvdlite.memory.arena import Arena, Block, Regions
from hvdlite.memory.segment import create
from hvdlite.negotiation.wire import ProtocolError

MAX_RANKS: Final = 250  # so many descriptors, and a few more, fit into one message
News = tuple[int, bool, float]
"""A rank, whether it was the last one to submit some tensor, and when it submitted, on the monotonic clock."""

CallReport: TypeAlias = tuple[int, int, float, float, int, int, float, float, float]
"""The fields of `native.Call` from ``news_count`` on."""

ABORTED: Final = -1
BUSY: Final = -2
_NONE: Final = {native.ABORTED: ABORTED, native.BUSY: BUSY}
_DAMAGED: Final = "a rank of this host has damaged the memory in which ranks agree"
_WORD: Final = 8  # bytes
_SLOTS: Final = 3  # of each rank
_SLOT_BYTES: Final = 96 << 10  # what a call may copy and reduce in a small part of its time
_ALL_SLOTS_BYTES: Final = 768 << 10
_IF_CROWDED: Final = 512 << 10  # the same for more ranks than _FEW, so that the page has room for names
_FEW: Final = 16
# Parts of what a call moves; only one where ranks only sleep to wait, since each part is a wait. One tensor of more
# parts than _MOST_ALONE (kMostParts of carrier.h) takes less time where ranks share the reduction; many tensors do not.
_MOST_PARTS: Final = 11
_MOST_ALONE: Final = 6
_MOST_SHARED: Final = 16 << 20  # a call should not take longer than about a millisecond
_LEAST_STAGED: Final = 32 << 10
_STAGINGS: Final = (1 << 20, 4 << 20)  # made when needed; longer tensors take as long in the plane, or less
ALIGNMENT: Final = 64  # of each tensor of a call, in bytes
_LINE: Final = 128
# Faster than one field of the structure after the other.
_pack_call: Final = struct.Struct("=QQii").pack_into  # from `version` to `outcome`
_unpack_report: Final[Callable[[Any, int], Any]] = struct.Struct("=i4xQddiiddd").unpack_from  # the rest
_ASKED_AT: Final = native.Call.version.offset
_REPORT_AT: Final = native.Call.news_count.offset


def _slot_bytes(size: int) -> int:
    slots_bytes = _ALL_SLOTS_BYTES if size <= _FEW else _IF_CROWDED
    return min(_SLOT_BYTES, slots_bytes // (_SLOTS * size) // _LINE * _LINE)


class _NewsBuffer:
    """Room for news of ``size`` ranks."""

    def __init__(self, size: int) -> None:
        self._news = (native.News * size)()
        self.address = ctypes.addressof(self._news) if size else None

    def first(self, count: int) -> list[News]:
        return [(each.rank, bool(each.was_last), each.at_ns / 1e9) for each in self._news[:count]]


class PageOffer:
    """The descriptors of a new page for ``size`` ranks: the memory, and all bells.

    It has room for ``names`` tensors: ``capacity``, rounded up to a power of two, or what fits into a mebibyte. Raises
    OSError or HorovodInternalError if the system refuses it.
    """

    def __init__(self, size: int, capacity: int) -> None:
        names = 1 << max(capacity - 1, 63).bit_length()
        while not (nbytes := int(native.library().hvd_page_bytes(size, names, _slot_bytes(size)))):
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

    Turns call the methods, so their calls do not overlap. Any thread may call `arm` and read ``version`` and ``bell``,
    this rank's. One thread at a time may `prepare`, `run` and `resume` a call. While that waits, the page is *busy* for
    turns: it then ends soon, and rings the bell for another turn.

    ``names``: tensors with a bit below are agreed on here. ``most_bytes``: what the tensors of a call may take, each
    rounded up to `ALIGNMENT`; ``most_bytes_alone``: the same for one; ``most_bytes_shared``: for one that it `shares`.
    `next` sets ``is_waiting`` if some ranks have submitted tensors that others have not, ``is_held_back`` if this rank
    was not willing to decide on tensors, and ``calls`` to how many calls of this rank were done before. At the root it
    sets ``news``: what it has read of other ranks, each with whether it was the last one for some tensor, and when it
    submitted, on the monotonic clock, in order of time.
    """

    def __init__(self, fds: Sequence[int], rank: int, size: int, names: int, spin_ns: int = 0) -> None:
        self.names = names
        slot_bytes = _slot_bytes(size)
        has_parts = spin_ns != 0 or size == 1
        self.most_bytes = slot_bytes * (_MOST_PARTS if has_parts else 1)
        self.most_bytes_alone = slot_bytes * _MOST_ALONE if has_parts else slot_bytes - ALIGNMENT  # a line of its own
        self.most_bytes_shared = 0
        self._arena: Arena | None = None
        self._stagings: list[Block] = []
        self._most_staged = 0
        self.is_waiting = self.is_held_back = self.is_watched = False
        self.calls = 0
        self.news: list[News] = []
        self.rank, self.size = rank, size
        self._library = library = native.quick_library()
        self._bells = list(fds[1:])
        self.bell = self._bells[rank]
        self._words = np.zeros(-(-names // 64), np.uint64)
        self._of_turn = _NewsBuffer(size if rank == 0 and size > 1 else 0)
        self._of_call = _NewsBuffer(size if rank == 0 and size > 1 else 0)
        self.call = native.Call(news=self._of_call.address)
        self._call_at = ctypes.addressof(self.call)
        self._decision = native.Decision()
        self._decision_at = ctypes.addressof(self._decision)
        handle = ctypes.c_void_p()
        bells = np.array(self._bells, np.int32)
        try:
            status = library.hvd_page_open(
                fds[0], rank, size, names, slot_bytes, bells.ctypes.data, spin_ns, ctypes.byref(handle)
            )
            native.check(status, "mapping the page")
        except BaseException:
            self._close_bells()
            raise
        finally:
            os.close(fds[0])
        self.handle = handle
        self._is_closed = False
        self._error: HvdError | None = None
        self._version = library.hvd_page_version(handle).contents
        self._run_call = native.library().hvd_page_call
        self._resume_call = native.library().hvd_page_resume
        self._collect = native.library().hvd_page_collect

    def attach_arena(self, regions: Regions) -> None:
        """Lets calls reduce tensors in ``regions``, the ranks' parts of an arena, without copying."""
        if self.most_bytes_alone <= _slot_bytes(self.size):
            return  # each wait is a sleep, and to share a tensor takes one more than to copy it
        numbers = np.array(regions.numbers, np.int32)
        status = self._library.hvd_page_use_arena(self.handle, regions.arena.handle, numbers.ctypes.data)
        native.check(status, "using the arena")
        self._arena = regions.arena
        self.most_bytes_shared = _MOST_SHARED

    def shares(self, source: int, target: int, nbytes: int) -> bool:
        """True if other ranks can reduce a tensor of ``nbytes`` at ``source``, and write its result to ``target``."""
        arena = self._arena
        if arena is None or not arena.is_shared:
            return False
        return nbytes <= self._most_staged or (arena.holds(source) and arena.holds(target))

    def stage(self, nbytes: int) -> None:
        """Makes memory by way of which a tensor of ``nbytes``, which lies elsewhere, may be shared. Any thread.

        If there is too little memory, there will be none.
        """
        arena = self._arena
        if arena is None or self.size == 1:
            return
        if not _LEAST_STAGED <= nbytes <= _STAGINGS[-1] or nbytes <= self._most_staged:
            return
        index, size = next(each for each in enumerate(_STAGINGS) if nbytes <= each[1])
        with suppress(MemoryError):
            block = arena.allocate(size + mmap.PAGESIZE)
            self._stagings.append(block)  # for good: another thread may do the same, and a call may use it
            address = block.__array_interface__["data"][0]
            status = self._library.hvd_page_stage(self.handle, index, address, _LEAST_STAGED - 1, size)
            native.check(status, "staging tensors")
            self._most_staged = max(self._most_staged, size)

    def submit(self, bits: int, blank_bits: int) -> bool:
        """Publishes that this rank has submitted the tensors of ``bits``. False if the page is busy."""
        words = -(-bits.bit_length() // 64)
        nbytes = words * _WORD
        status = self._library.hvd_page_submit(
            self.handle, bits.to_bytes(nbytes, "little"), blank_bits.to_bytes(nbytes, "little"), words
        )
        if status != native.BUSY:
            native.check(status, "submitting tensors in the page")
        return bool(status != native.BUSY)

    def announce(self, messages: int) -> None:
        """At the root: publishes how many messages it has sent since the page exists."""
        self._library.hvd_page_announce(self.handle, messages & 0xFFFFFFFF)

    def request_closing(self) -> None:
        """Publishes that the page must be closed."""
        self._library.hvd_page_request_closing(self.handle)

    def ring(self, rank: int) -> None:
        """Makes ``rank`` take a turn soon."""
        os.eventfd_write(self._bells[rank], 1)

    def watch(self, is_watched: bool) -> None:
        """At the root: from now on, or no longer, whatever any rank submits here wakes this rank."""
        self.is_watched = is_watched
        self._library.hvd_page_watch(self.handle, is_watched)

    def next(self, is_willing: bool) -> tuple[int, int, int, int]:
        """Takes the next decision: its kind (`native.DECIDED_TENSORS` and so on), and its bits, blank and carried ones.

        `BUSY` if the page is, and `ABORTED` if there is no decision and will be none. Raises ProtocolError if a peer
        wrote what no correct peer writes.
        """
        decision, news = self._decision, self._of_turn
        if status := self._library.hvd_page_next(self.handle, is_willing, self._decision_at, news.address):
            if status in _NONE:
                return _NONE[status], 0, 0, 0
            raise ProtocolError(_DAMAGED)
        self.is_waiting, self.is_held_back = bool(decision.is_waiting), bool(decision.is_held_back)
        self.calls = decision.calls
        if news.address:
            self.news = news.first(decision.news)
        if (kind := decision.kind) != native.DECIDED_TENSORS:
            return kind, 0, 0, 0
        nbytes = decision.words * _WORD
        sets = (decision.tensors, decision.blanks, decision.carried)
        bits, blank_bits, carried_bits = (int.from_bytes(ctypes.string_at(each, nbytes), "little") for each in sets)
        return kind, bits, blank_bits, carried_bits

    def reopen(self, messages: int) -> None:
        """Opens the page after a closing; the root has sent ``messages``. Raises ProtocolError as `next` does."""
        while (status := self._library.hvd_page_reopen(self.handle, messages & 0xFFFFFFFF)) == native.BUSY:
            pass  # a call is about to find the page closed
        if status:
            raise ProtocolError(_DAMAGED)

    # ---- calls

    @property
    def version(self) -> int:
        """Changes with everything that this rank publishes or decides here."""
        version: int = self._version.value
        return version

    def prepare(self, version: int, tensors: int, count: int) -> None:
        """Prepares ``call`` for a thread whose rank had nothing in flight at ``version``.

        ``tensors`` is the address of ``count`` `native.Carried`, in the order of their bits.
        """
        _pack_call(self.call, _ASKED_AT, version, tensors, count, native.CALL_REFUSED)

    def run(self) -> int:
        """Runs the tensors of ``call``, in four milliseconds at most. Releases the GIL.

        Returns `native.CALL_REFUSED` if nothing was submitted, else `native.CALL_DONE`, or `native.CALL_LEFT`, or a
        larger number: a ticket for `resume`. ``call.outcome`` is one of the three, LEFT for a ticket.
        """
        outcome: int = self._run_call(self.handle, self._call_at)
        return outcome

    def resume(self, ticket: int) -> int:
        """Goes on with a call for up to 10 ms, as `run` does, unless a turn has taken it over."""
        outcome: int = self._resume_call(self.handle, self._call_at, ticket)
        return outcome

    def report(self) -> CallReport:
        """Returns what is to be known about a call that is done."""
        report: CallReport = _unpack_report(self.call, _REPORT_AT)
        return report

    def news_of_call(self, count: int) -> list[News]:
        """Returns, at the root, the ``count`` news of a call that is done."""
        return self._of_call.first(count)

    def adopt(self) -> bool:
        """Takes over a call that was left, with which this turn goes on. False if there is none."""
        return bool(self._library.hvd_page_adopt(self.handle))

    def collect(self, tensors: ctypes.Array[native.Carried], timeout_s: float) -> None:
        """Moves the tensors of a carried decision, in the order of their bits. Releases the GIL.

        To be called in the order of the decisions. Waits until all ranks have put theirs. Raises the error of
        `give_up`, HorovodInternalError if nothing has come for ``timeout_s``, or ProtocolError.
        """
        status = self._collect(self.handle, tensors, len(tensors), round(timeout_s * 1e9))
        if status != native.OK:
            self._stop_sharing()
        if status == native.INVALID:
            raise ProtocolError(_DAMAGED)
        native.check(status, "moving tensors in the page", self._error)

    def give_up(self, error: HvdError) -> None:
        """Has `collect` raise ``error``, soon and from then on. Any thread."""
        self._error = self._error or error
        self._library.hvd_page_give_up(self.handle)
        self._stop_sharing()  # before the program gets its tensors back

    def _stop_sharing(self) -> None:
        arena = self._arena  # `close` may clear it meanwhile
        if arena is not None and self._library.hvd_page_is_sharing(self.handle):
            arena.stop_sharing()

    # ----

    def submitted(self) -> list[int]:
        """Returns for each rank the bits that it has submitted and that have not run, as far as `next` has read."""
        bits = []
        for rank in range(self.size):
            self._library.hvd_page_waiting(self.handle, rank, self._words.ctypes.data)
            bits.append(int.from_bytes(self._words.tobytes(), "little"))
        return bits

    def arm(self) -> bool:
        """Lets the next decision ring the bell, until `next` is called. True if there is a decision already."""
        return not self._is_closed and bool(self._library.hvd_page_arm(self.handle))

    def has_decision(self) -> bool:
        """True if another rank has decided, or there will be no further decision."""
        return bool(self._library.hvd_page_has_decision(self.handle))

    def abort(self) -> None:
        """Informs all ranks that there may be no further decision, because one of them takes part no more."""
        self._library.hvd_page_abort(self.handle)

    def close(self) -> None:
        """Unmaps the page and closes the bells. A forked child has no mapping, and calls nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._library.hvd_page_close(self.handle)
            self._arena = None
            self._stagings.clear()
            self._close_bells()

    def __del__(self) -> None:
        if handle := getattr(self, "handle", None):
            self._library.hvd_page_free(handle)

    def _close_bells(self) -> None:
        bells, self._bells = self._bells, []
        for bell in bells:
            os.close(bell)
