"""Timelines of ranks are joined by one clock, and the summary says where the time went."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hvdlite.launcher.timeline.joining import join
from hvdlite.launcher.timeline.picture import draw
from hvdlite.launcher.timeline.summary import describe, slowest, waits
from hvdlite.launcher.timeline.trace import RankTrace, ranks_of

Event = dict[str, Any]
MS = 1000.0


def head(rank: int, clock: str, clock_us: float, epoch_us: float) -> Event:
    args = {"rank": rank, "host": f"node{rank}", "clock": clock, "clock_us": clock_us, "epoch_us": epoch_us}
    return {"name": "hvdlite", "ph": "M", "pid": rank, "tid": 0, "args": args}


def _span(rank: int, lane: str, begin: float, end: float, number: int, name: str = "X", **args: Any) -> Event:
    place = {"ph": "X", "pid": rank, "tid": 1, "ts": begin, "dur": end - begin}
    return {"name": name, "cat": lane, **place, "args": {"batch": number, "set": 0, **args}}


class _Clocks:
    """Two ranks whose clocks differ, and messages between them that take from 50 to 500 µs."""

    def __init__(self, shift_us: float, drift: float, wrong_us: float, kind: str = "ALLREDUCE") -> None:
        self._random = random.Random(7)
        self._shift_us, self._drift = shift_us, drift
        self.traces = [head(0, "a", 0.0, 1e15), head(1, "b", self._theirs(0.0), 1e15 + wrong_us)]
        self.truth: dict[tuple[int, str], float] = {}
        now = 0.0
        for number in range(1, 2000):
            now = self._batch(number, now + self._random.uniform(0, 200 * MS), kind)

    def _theirs(self, at: float) -> float:
        return at * (1 + self._drift) - self._shift_us

    def _batch(self, number: int, at: float, kind: str) -> float:
        told = [at + self._random.uniform(0, 20 * MS) for _ in range(2)]
        decided = max(told[0], told[1] + self._delay())
        agreed = [decided, decided + self._delay()]
        moved = [each + self._delay() for each in agreed]
        done = [max(moved) + self._delay() for _ in range(2)]
        for rank, clock in enumerate((lambda at: at, self._theirs)):
            lanes = {
                "queue": (told[rank] - 10, told[rank]),
                "wait": (agreed[rank], moved[rank]),
                "move": (moved[rank], done[rank]),
            }
            for lane, (begin, end) in lanes.items():
                self.traces.append(_span(rank, lane, clock(begin), clock(end), number, kind))
                if rank:
                    self.truth[number, lane] = begin
        begin = {"name": "batch", "ph": "s", "id": hex(number << 20 | 1), "pid": 0, "tid": 1, "ts": agreed[0]}
        self.traces.append(begin)
        return max(done)

    def _delay(self) -> float:
        return self._random.uniform(0.05 * MS, 0.5 * MS)

    def errors(self) -> list[float]:
        joined = join(ranks_of(self.traces))
        assert [event.get("ts", -1e18) for event in joined] == sorted(event.get("ts", -1e18) for event in joined)
        spans = [event for event in joined if event["ph"] == "X" and event["pid"] == 1]
        return [event["ts"] - self.truth[event["args"]["batch"], event["cat"]] for event in spans]


@pytest.mark.parametrize("kind", ["ALLREDUCE", "BROADCAST"])
@pytest.mark.parametrize("shift_us", [0.0, 3e9, -7e12])
def test_clocks_of_hosts_are_aligned_by_what_ranks_did_together(kind: str, shift_us: float) -> None:
    assert max(map(abs, _Clocks(shift_us, 0.0, wrong_us=40 * MS, kind=kind).errors())) < 0.5 * MS


def test_clocks_that_drift_are_followed() -> None:
    """By 50 millionths, which is 10 ms in the 200 s of this job, and 3 ms in a window."""
    assert max(map(abs, _Clocks(1e9, 50e-6, wrong_us=0.0).errors())) < 3.5 * MS


def test_without_a_common_batch_the_clocks_of_the_world_count() -> None:
    events = [head(0, "a", 5.0, 1000.0), head(1, "b", 700.0, 1100.0), _span(1, "move", 705.0, 706.0, 1)]
    assert [event["ts"] for event in join(ranks_of(events)) if "ts" in event] == [110.0]


def test_ranks_of_one_host_have_one_clock() -> None:
    events = [head(0, "a", 5.0, 1000.0), head(1, "a", 700.0, 1100.0), _span(1, "move", 705.0, 706.0, 1)]
    assert join(ranks_of(events)) == events


def _traces() -> list[RankTrace]:
    tensors = [["w", "float32", [2, 3], 1.0, 4 * MS], ["b", "float32", [], 1.0, None]]
    root = {"last_rank": 1, "late_us": 3 * MS}
    return ranks_of(
        [
            head(0, "a", 0.0, 0.0),
            head(1, "a", 0.0, 0.0),
            _span(0, "move", 0.0, 10 * MS, 1, "ALLREDUCE", waited_us=4 * MS, tensors=tensors, **root),
            _span(0, "move", 20 * MS, 30 * MS, 2, "ALLREDUCE", waited_us=25 * MS, tensors=tensors[:1], **root),
            _span(1, "move", 0.0, 10 * MS, 1, "ALLREDUCE", waited_us=0.0, tensors=tensors),
            _span(1, "move", 20 * MS, 40 * MS, 2, "ALLREDUCE", waited_us=0.0, tensors=tensors[:1]),
            {"name": "3 batches are missing", "ph": "i", "pid": 1, "tid": 0, "ts": 1.0, "args": {"dropped": 3}},
        ]
    )


def test_what_was_hidden_and_who_waited() -> None:
    by_rank = waits(_traces())
    first, second = by_rank[0], by_rank[1]
    assert (first.moved_s, first.spent.moving_s, first.spent.waiting_s) == pytest.approx((0.02, 0.014, 0.015))
    assert (second.moved_s, second.spent.moving_s, second.spent.waiting_s) == pytest.approx((0.03, 0.0, 0.0))
    assert (first.hidden, second.hidden) == pytest.approx((0.3, 1.0))
    assert (second.late_s, first.late_s) == (pytest.approx([0.003, 0.003]), [])


def test_the_slowest_tensors() -> None:
    (first, weight), (second, bias) = slowest(_traces())
    assert (first, second) == ("w", "b")
    assert (weight.described, weight.runs) == ("float32 2x3", 4)
    assert (weight.negotiated_s, weight.moved_s) == pytest.approx((0.016, 0.05))
    assert (bias.described, bias.runs, bias.negotiated_s) == ("float32 scalar", 2, 0.0)


def test_the_text() -> None:
    assert list(describe(_traces())) == [
        "2 rank(s) on 2 host(s), 0.040 s, 2 batches",
        "3 more batches are missing, because they came faster than they could be written",
        "communication took 0.025 s a rank; 72% of it was hidden",
        "",
        "rank      moved  hidden  waited for it  waited for others  was last  late by  host",
        "   0    0.020 s     30%        0.014 s            0.015 s         0  0.000 s  node0",
        "   1    0.030 s    100%        0.000 s            0.000 s         2  0.006 s  node1",
        "",
        "negotiated       moved    runs  slowest tensors, mean of all runs on all ranks",
        "  4.000 ms   12.500 ms       4  w, float32 2x3",
        "  0.000 ms   10.000 ms       2  b, float32 scalar",
    ]


def test_one_batch_is_no_batches() -> None:
    events = [head(0, "a", 0.0, 0.0), _span(0, "move", 0.0, 10 * MS, 1)]
    assert next(describe(ranks_of(events))) == "1 rank(s) on 1 host(s), 0.010 s, 1 batch"


def test_what_did_not_complete_is_named_with_who_submitted_it() -> None:
    def wait(rank: int, which: str, ph: str, name: str, at: float, number: int = 0) -> Event:
        args = {"set": number, "tensor": [name, "float32", [3]]} if ph == "b" else {}
        place = {"pid": rank, "tid": 0, "ts": at, "args": args}
        return {"name": f"waits for BROADCAST of {name}", "cat": "waits", "id": f"{rank}.{which}", "ph": ph, **place}

    events = [*_traces()[0].events, *_traces()[1].events]
    events += [wait(0, "1", "b", "late", 5 * MS), wait(0, "1", "e", "late", 9 * MS)]
    events += [wait(0, "2", "b", "never", 30 * MS), wait(1, "1", "b", "inside", 20 * MS, 7)]
    for text in (describe(ranks_of(events)), describe(ranks_of(join(ranks_of(events))))):
        assert [line for line in text if line.startswith("not completed")] == [
            "not completed: inside (set 7), float32 3, which rank 1 submitted at 0.020 s",
            "not completed: never, float32 3, which rank 0 submitted at 0.030 s; rank 1 did not submit it",
        ]
    assert draw(ranks_of(events)).count("<title>not completed: waits for BROADCAST of ") == 2
    alone = [event for event in events if event["ph"] == "M" or event.get("cat") == "waits"]
    assert "not completed: waits for BROADCAST of never" in draw(ranks_of(alone))
