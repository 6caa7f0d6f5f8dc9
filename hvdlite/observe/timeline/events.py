"""The events of a timeline, in Chrome's trace format, for the batches of one rank. Pure.

A rank is a process there, and a lane a thread: *queue*, from submit until rank 0 knows; *negotiate*, until the batch is
agreed; *wait*, until its turn; *move*, while bytes move; *finish*, until its handles are done. Overlapping spans of one
lane get lanes of their own, as the format requires. An arrow leads from the decision of a group's first rank to where
the others move the batch. Any rank of a host may decide for all ranks of that host, so there the arrow leads from where
the first rank submitted. A batch moves after both, so the arrow points forward where clocks agree.

A tensor that is in flight for long is a span of its own, whose begin is written before its end.

Times are in microseconds of a monotonic clock. The first event of a rank has the times of that clock and of the wall
clock at one moment.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from hvdlite.members.membership import Membership
from hvdlite.negotiation.messages import Request
from hvdlite.negotiation.replica import Work
from hvdlite.version import __version__

LANES: Final = ("cycles", "queue", "negotiate", "wait", "move", "finish")
_CYCLES, _QUEUE, _NEGOTIATE, _WAIT, _MOVE, _FINISH = range(len(LANES))
_MOST_SLOTS: Final = 100  # lanes for overlapping spans
_MOST_CACHED: Final = 16384
_US: Final = 1e6


class Tensor(NamedTuple):
    """One tensor of a batch: when it was submitted, and when it was sent to rank 0; 0 if unknown."""

    request: Request
    submitted_at: float
    sent_at: float


class Group(NamedTuple):
    """The group of the process set ``number``."""

    number: int
    membership: Membership


class Batch(NamedTuple):
    """A completed batch. ``work`` has the times, but no entries any more."""

    group: Group
    work: Work
    tensors: Sequence[Tensor]


class Cycle(NamedTuple):
    """The begin of a turn of the coordinator."""

    group: Group
    at: float


class Events:
    """The events of one rank of ``world``, each a text of JSON without line ends.

    ``clock`` names this host's monotonic clock. ``shift``, in seconds, is added to all times to convert them to another
    clock.
    """

    def __init__(self, world: Membership, clock: str) -> None:
        self.shift = 0.0
        self._clock = clock
        self._world = world
        self._lines: list[str] = []
        self._ends: dict[tuple[int, int], list[float]] = {}  # by set and lane: when the last span of each slot ends
        self._texts: dict[Request, str] = {}

    def head(self, monotonic: float, epoch: float) -> list[str]:
        """Returns the events that describe the rank, with the times of both clocks at one moment."""
        rank, host = self._world.number, self._world.hosts[self._world.rank]
        known = {
            "rank": rank,
            "size": self._world.size,
            "host": host.name,
            "clock": self._clock,
            "clock_us": round((monotonic + self.shift) * _US),
            "epoch_us": round(epoch * _US),
            "version": __version__,
        }
        self._metadata("hvdlite", 0, known)
        self._metadata("process_name", 0, {"name": f"rank {rank} on {host.name}"})
        self._metadata("process_sort_index", 0, {"sort_index": rank})
        return self._taken()

    def cycle(self, cycle: Cycle) -> list[str]:
        """Returns the mark of one turn."""
        tid = self._tid(cycle.group, _CYCLES, cycle.at, cycle.at)
        self._add(f'"name":"CYCLE_START","ph":"i","s":"t",{self._place(tid)},"ts":{self._ts(cycle.at)}')
        return self._taken()

    def batch(self, batch: Batch) -> list[str]:
        """Returns the spans of one batch, and this rank's end of its arrow."""
        group, work, tensors = batch
        number = group.number
        kind = tensors[0].request.kind.name
        submitted = min((each.submitted_at for each in tensors if each.submitted_at), default=0.0)
        known = [each.sent_at for each in tensors if each.sent_at]
        which = f'"batch":{work.number},"set":{number}'
        if submitted and known:
            self._span(group, _QUEUE, "QUEUE", submitted, max(known), which)
        from_at, from_tid = work.agreed_at, 0
        if known:
            tid = self._span(group, _NEGOTIATE, f"NEGOTIATE_{kind}", min(known), work.agreed_at, which)
        waiting = self._span(group, _WAIT, "WAIT", work.agreed_at, work.moved_at, which)
        if known and group.membership.is_one_host:
            from_at, from_tid = max(known), tid
        details = f'{which},"bytes":{work.nbytes},"waited_us":{_us(work.waited_s)}'
        if work.arrival is not None and work.arrival[2] >= 0:
            details += f',"last_rank":{group.membership.ranks[work.arrival[2]]},"late_us":{_us(work.arrival[4])}'
        if len(tensors) == 1:
            request = tensors[0].request
            details += f',"dtype":"{request.dtype}","shape":{list(request.shape)}'
        details += f',"tensors":[{",".join(self._tensor(each, work.agreed_at) for each in tensors)}]'
        moving = self._span(group, _MOVE, kind, work.moved_at, work.done_at, details)
        finished_at = getattr(work, "finished_at", 0.0)
        if finished_at:
            self._span(group, _FINISH, "FINISH", work.done_at, finished_at, which)
        first, *others = group.membership.ranks
        if first != self._world.number:
            self._arrow('"ph":"f","bp":"e"', number, work.number, self._world.number, moving, work.moved_at)
        else:
            for rank in others:
                self._arrow('"ph":"s"', number, work.number, rank, from_tid or waiting, from_at)
        return self._taken()

    def waits(self, group: Group, tensor: Tensor, number: int, since: float) -> list[str]:
        """Returns the begin of the wait ``number`` of this rank, for a tensor that has been in flight for long."""
        request = tensor.request
        args = f'"set":{group.number},"tensor":[{json.dumps(request.name)},"{request.dtype}",{list(request.shape)}]'
        self._wait("b", f"waits for {request.kind.name} of {request.name}", number, since, args)
        return self._taken()

    def completes(self, tensor: Tensor, number: int, at: float) -> list[str]:
        """Returns the end of that wait."""
        self._wait("e", f"waits for {tensor.request.kind.name} of {tensor.request.name}", number, at, "")
        return self._taken()

    def dropped(self, count: int, at: float) -> list[str]:
        """Returns a mark where ``count`` batches are missing."""
        self._add(
            f'"name":"{count} batches are missing","ph":"i","s":"p",{self._place(0)},"ts":{self._ts(at)},'
            f'"args":{{"dropped":{count}}}'
        )
        return self._taken()

    def _arrow(self, end: str, number: int, batch: int, rank: int, tid: int, at: float) -> None:
        """Adds one end of the arrow to ``rank``. Each rank has its own, because viewers join only two ends."""
        which = number << 52 | (batch & 0xFFFFFFFF) << 20 | rank
        self._add(f'"name":"batch","cat":"batch","id":"{which:#x}",{end},{self._place(tid)},"ts":{self._ts(at)}')

    def _wait(self, end: str, name: str, number: int, at: float, args: str) -> None:
        which = f'"id":"{self._world.number}.{number}"'
        self._add(
            f'"name":{json.dumps(name)},"cat":"waits",{which},"ph":"{end}",{self._place(0)},"ts":{self._ts(at)},'
            f'"args":{{{args}}}'
        )

    def _span(self, group: Group, lane: int, name: str, begin: float, end: float, args: str) -> int:
        """Adds a span, and returns its thread."""
        tid = self._tid(group, lane, begin, end)
        self._add(
            f'"name":"{name}","cat":"{LANES[lane]}","ph":"X",{self._place(tid)},"ts":{self._ts(begin)},'
            f'"dur":{_us(max(0.0, end - begin))},"args":{{{args}}}'
        )
        return tid

    def _tid(self, group: Group, lane: int, begin: float, end: float) -> int:
        """Returns the thread for a span: one in which nothing overlaps it, unless all are in use."""
        ends = self._ends.setdefault((group.number, lane), [])
        free = (slot for slot, ended in enumerate(ends) if ended <= begin)
        slot = next(free, min(len(ends), _MOST_SLOTS - 1))
        tid = (group.number * len(LANES) + lane) * _MOST_SLOTS + slot + 1
        if slot == len(ends):
            ends.append(end)
            of_set = f"set {group.number}: " if group.number else ""
            self._metadata("thread_name", tid, {"name": f"{of_set}{LANES[lane]}{f' {slot + 1}' if slot else ''}"})
            self._metadata("thread_sort_index", tid, {"sort_index": tid})
        ends[slot] = max(ends[slot], end)
        return tid

    def _tensor(self, tensor: Tensor, agreed_at: float) -> str:
        """Returns a list: name, dtype, shape, and the microseconds in the lanes *queue* and *negotiate*."""
        request, submitted_at, sent_at = tensor
        text = self._texts.get(request)
        if text is None:
            text = f'[{json.dumps(request.name)},"{request.dtype}",{list(request.shape)}'
            if request.cacheable:
                if len(self._texts) >= _MOST_CACHED:
                    self._texts.clear()
                self._texts[request] = text
        queued = _us(sent_at - submitted_at) if submitted_at and sent_at else "null"
        return f"{text},{queued},{_us(agreed_at - sent_at) if sent_at else 'null'}]"

    def _metadata(self, name: str, tid: int, args: dict[str, Any]) -> None:
        self._add(f'"name":"{name}","ph":"M",{self._place(tid)},"args":{json.dumps(args)}')

    def _ts(self, at: float) -> str:
        return _us(at + self.shift)

    def _place(self, tid: int) -> str:
        return f'"pid":{self._world.number},"tid":{tid}'

    def _add(self, fields: str) -> None:
        self._lines.append(f"{{{fields}}}")

    def _taken(self) -> list[str]:
        lines, self._lines = self._lines, []
        return lines


def _us(seconds: float) -> str:
    return f"{seconds * _US:.3f}"
