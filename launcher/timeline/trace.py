"""Reads the files of timelines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path
from typing import Any, Final

from hvdlite.blackbox.format import Record

Event = dict[str, Any]
LANES: Final = ("queue", "negotiate", "wait", "move", "finish")
_US: Final = 1e6


class NoTimeline(ValueError):
    """The file is none; the text says which, and why."""


@dataclass(slots=True)
class Batch:
    """The spans of one batch on one rank, by lane: begin and end in µs. ``args`` are those of the span in *move*."""

    name: str = ""
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)
    args: Event = field(default_factory=dict)

    @property
    def moved_s(self) -> float:
        """For how long its bytes moved."""
        begin, end = self.spans.get("move", (0.0, 0.0))
        return (end - begin) / _US


@dataclass(slots=True)
class Wait:
    """A tensor of the process set ``number`` that was submitted at ``since``, in µs, and never completed."""

    number: int
    tensor: tuple[str, str, tuple[int, ...]]
    what: str
    since: float


@dataclass(slots=True)
class RankTrace:
    """What one rank did: its batches by process set and number, in the order in which they moved.

    ``waits`` are for what had not completed when the timeline ended, ``until`` being its last time.
    """

    rank: int
    host: str
    clock: str
    clock_us: float
    epoch_us: float
    batches: dict[tuple[int, int], Batch] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    dropped: int = 0
    waits: dict[str, Wait] = field(default_factory=dict)
    until: float = -inf


def records(trace: RankTrace) -> Iterator[Record]:
    """The batches of a rank as its black box would have them, as far as the timeline has what is there."""
    for position, ((group, number), batch) in enumerate(trace.batches.items()):
        moved, done = batch.spans.get("move", (0.0, 0.0))
        agreed, _ = batch.spans.get("wait", (moved, moved))
        waited, late = (float(batch.args.get(name, 0.0)) / _US for name in ("waited_us", "late_us"))
        tensors, nbytes = len(batch.args.get("tensors", ())), int(batch.args.get("bytes", 0))
        times = (0.0, agreed / _US, moved / _US, done / _US, waited)
        last_rank = int(batch.args.get("last_rank", -1))
        yield Record(position, group, number, tensors, nbytes, *times, last_rank, late, 0, batch.name)


def read(path: Path) -> list[RankTrace]:
    """Returns the ranks of the file. Raises NoTimeline, and OSError if it cannot be read."""
    try:
        return ranks_of(json.loads(path.read_bytes(), parse_float=_finite, parse_constant=_finite))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError):
        raise NoTimeline(f"{path} is no timeline of hvdlite") from None


def _finite(text: str) -> float:
    if isfinite(number := float(text)):
        return number
    raise ValueError(f"{text} is no time")


def first_us(traces: Sequence[RankTrace]) -> float:
    """When the first span began, by the clock of ``traces``."""
    begins = [begin for trace in traces for batch in trace.batches.values() for begin, _ in batch.spans.values()]
    return min([*begins, *(wait.since for trace in traces for wait in trace.waits.values())], default=0.0)


def ranks_of(events: list[Event]) -> list[RankTrace]:
    """Sorts events by rank. Raises KeyError, ValueError and the like if they are not those of a timeline."""
    traces: dict[int, RankTrace] = {}
    for event in events:
        if event["name"] == "hvdlite" and event["pid"] not in traces:
            args = event["args"]
            rank, host, clock = int(event["pid"]), str(args["host"]), str(args["clock"])
            traces[rank] = RankTrace(rank, host, clock, float(args["clock_us"]), float(args["epoch_us"]))
    for event in events:
        trace = traces[event["pid"]]
        trace.events.append(event)
        trace.until = max(trace.until, float(event.get("ts", -inf)) + float(event.get("dur", 0.0)))
        if event.get("cat") == "waits" and event["ph"] == "b":
            name, dtype, shape = event["args"]["tensor"]
            tensor = str(name), str(dtype), tuple(map(int, shape))
            trace.waits[event["id"]] = Wait(int(event["args"]["set"]), tensor, str(event["name"]), float(event["ts"]))
        elif event.get("cat") == "waits":
            trace.waits.pop(event["id"], None)
        elif event["ph"] == "X":
            begin, args = float(event["ts"]), event["args"]
            batch = trace.batches.setdefault((int(args["set"]), int(args["batch"])), Batch())
            batch.spans[event["cat"]] = begin, begin + float(event["dur"])
            if event["cat"] == "move":
                batch.name, batch.args = str(event["name"]), args
        elif "dropped" in event.get("args", ()):
            trace.dropped += int(event["args"]["dropped"])
    if not traces:
        raise ValueError("there is no rank")
    return [traces[rank] for rank in sorted(traces)]
