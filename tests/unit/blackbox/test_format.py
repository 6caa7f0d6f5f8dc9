"""The black box of a rank: what a reader gets of whatever is in its memory, and what a rank writes there."""

from __future__ import annotations

import json
import os
import struct
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdlite.blackbox import format as blackbox
from hvdlite.blackbox.format import HEAD, MARK, NBYTES, NOTE, NOTES_AT, RECORD, RECORDS, RECORDS_AT, Phase
from hvdlite.engine.inflight import InFlight
from hvdlite.engine.observer import Observer, State
from hvdlite.errors import HorovodInternalError
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.messages import Kind, Request
from hvdlite.negotiation.replica import Work
from hvdlite.observe.recorder import Mapped, Recorder, memory_at
from hvdlite.tensors.dtypes import DType, Sum
from tests.harness.patience import until


@pytest.fixture
def box() -> Iterator[int]:
    descriptor = blackbox.make()
    yield descriptor
    os.close(descriptor)


def _mapped(box: int) -> Mapped:
    found = memory_at(f"{box}:{os.fstat(box).st_ino}")
    assert found is not None
    return found


@pytest.fixture
def writer(box: int) -> Iterator[Recorder]:
    found = Recorder(_mapped(box), rank=1, size=3)
    yield found
    found.close()


def _entry(name: str) -> Entry:
    return Entry(Request(name, Kind.ALLREDUCE, DType.FLOAT32, (2,), Sum, 1.0, 1.0, 0, True), None, nbytes=8)


def _done(observer: Observer, number: int, *names: str) -> None:
    work = Work([_entry(name) for name in names], [()] * len(names), number)
    work.arrival, work.sent_at, work.agreed_at, work.moved_at, work.nbytes = (2, 1.0, 0, 2.0, 0.5), 3.0, 4.0, 5.0, 16
    observer.done(work)


def _read(box: int) -> blackbox.BlackBox:
    found = blackbox.read(box)
    assert found is not None
    return found


def test_memory_that_no_rank_wrote_to_is_empty(box: int) -> None:
    assert blackbox.read(box) is None
    with pytest.raises(PermissionError):
        os.ftruncate(box, 0)  # a rank that did so would have its agent read nothing


def test_a_record_is_what_the_observer_saw(box: int, writer: Recorder) -> None:
    observer = Observer(InFlight(lambda: None), (0, 1, 2))
    writer.watch(4, observer, (0, 1, 2))
    _done(observer, 7, "weight", "bias")
    (record,) = _read(box).records()
    assert record == _read(box).last()
    assert record[:8] == (0, 4, 7, 2, 16, 3.0, 4.0, 5.0)
    assert (record.last_rank, record.late_s, record.name) == (0, 0.5, "weight")


def test_the_latest_records_stay_in_order_whatever_the_number(box: int, writer: Recorder) -> None:
    observers = [Observer(InFlight(lambda: None), (0, 1, 2)) for _ in range(2)]
    for group, observer in enumerate(observers):
        writer.watch(group, observer, (0, 1, 2))
    for number in range(RECORDS + 10):
        _done(observers[number % 2], number, f"tensor {number}")
    records = _read(box).records()
    assert [record.position for record in records] == list(range(10, RECORDS + 10))
    assert [record.name for record in records] == [f"tensor {number}" for number in range(10, RECORDS + 10)]
    assert {record.group for record in records} == {0, 1}
    assert _read(box).last() == records[-1]


def test_threads_of_several_groups_record_at_once(box: int, writer: Recorder) -> None:
    def run(group: int) -> None:
        observer = Observer(InFlight(lambda: None), (0,))
        writer.watch(group, observer, (0,))
        for number in range(500):
            _done(observer, number, "x")

    threads = [threading.Thread(target=run, args=(group,)) for group in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = _read(box).records()
    assert [record.position for record in records] == list(range(2000))
    for group in range(4):
        assert [record.number for record in records if record.group == group] == list(range(500))


@pytest.mark.parametrize("cut", ["front", "back"])
def test_a_record_that_was_not_finished_is_left_out(box: int, writer: Recorder, cut: str) -> None:
    observer = Observer(InFlight(lambda: None), (0,))
    writer.watch(0, observer, (0,))
    for number in (1, 2, 3):
        _done(observer, number, "x")
    at = RECORDS_AT + 4 * RECORD.size  # of the one that is being written
    os.pwrite(box, struct.pack("<Q", 4), at if cut == "front" else at + RECORD.size - 8)
    assert [record.number for record in _read(box).records()] == [1, 2, 3]
    last = _read(box).last()
    assert last is not None
    assert last.number == 3


def test_the_later_whole_note_counts(box: int) -> None:
    os.pwrite(box, HEAD.pack(MARK, 1, 0, 1, Phase.INSIDE), 0)
    for number, slot, ends in ((1, 1, 1), (2, 0, 2)):
        text = json.dumps({"in_flight": number}).encode()
        os.pwrite(box, NOTE.pack(number, float(number), len(text), text, ends), NOTES_AT + slot * NOTE.size)
    assert _read(box).note == {"in_flight": 2}
    os.pwrite(box, NOTE.pack(3, 3.0, 2, b"{}", 1), NOTES_AT + NOTE.size)  # killed in the middle
    assert (_read(box).noted_at, _read(box).note) == (2.0, {"in_flight": 2})


def test_a_rank_notes_what_its_main_thread_does_and_what_is_in_flight(
    box: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hvdlite.observe.recorder._NOTE_S", 0.01)
    in_flight = InFlight(lambda: None)
    in_flight.submit(_entry("weight"))
    in_flight.submit(_entry("bias"))
    writer = Recorder(_mapped(box), 0, 2)
    writer.watch(0, Observer(in_flight, (0, 1)), (0, 1))
    try:
        until(lambda: _read(box).note.get("in_flight") == 2)
        note = _read(box).note
        assert (note["names"], note["waiting_s"]) == (["weight", "bias"], 0.0)
        assert note["groups"] == {"0": [[], 2, [[Kind.ALLREDUCE, "weight"], [Kind.ALLREDUCE, "bias"]]]}
        handle = _entry("weight")
        in_flight.watch(handle, threading.Lock())
        until(lambda: _read(box).note["waiting_s"] > 0)
        assert any("test_a_rank_notes_what" in call and f"{__file__}:" in call for call in note["stack"])
    finally:
        writer.close()
    assert _read(box).phase is Phase.OUTSIDE


@pytest.mark.parametrize("character", ["x", "\u00e9", "\U0001f600"])
def test_a_note_fits_whatever_the_names_and_paths_are(
    box: int, monkeypatch: pytest.MonkeyPatch, character: str
) -> None:
    """JSON escapes a character to up to 12 bytes."""
    monkeypatch.setattr("hvdlite.observe.recorder._NOTE_S", 0.01)
    monkeypatch.setattr("hvdlite.observe.recorder._OURS", character * 4000)
    monkeypatch.setattr("hvdlite.observe.recorder._stack", lambda frame: [character * 4000] * 8)
    monkeypatch.setattr("hvdlite.observe.recorder.threads", lambda: [(1, 2, character * 24)] * 24)
    in_flight = InFlight(lambda: None)
    for number in range(40):
        in_flight.submit(_entry(f"{number} {character * 2000}"))
    writer = Recorder(_mapped(box), 0, 2)
    for group in range(4):
        writer.watch(group, Observer(in_flight, (0, 1)), (0, 1))
    try:
        until(lambda: _read(box).note.get("in_flight") == 160)
    finally:
        writer.close()


def test_what_was_in_flight_when_the_session_ended_stays_noted(box: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvdlite.observe.recorder._NOTE_S", 0.01)
    observer = Observer(in_flight := InFlight(lambda: None), (0, 1))
    in_flight.submit(_entry("weight"))
    looks = []

    def state(now: float, most: int) -> State:
        looks.append(now)
        return Observer.state(observer, now, most)

    monkeypatch.setattr(observer, "state", state)
    writer = Recorder(_mapped(box), 0, 2)
    writer.watch(0, observer, (0, 1))
    try:
        until(lambda: _read(box).note.get("in_flight") == 1)
        in_flight.forget(HorovodInternalError("the session has ended"))
        seen = len(looks)
        until(lambda: len(looks) > seen + 3)
        assert _read(box).note["names"] == ["weight"]
    finally:
        writer.close()


def test_the_next_session_of_a_process_begins_anew(box: int) -> None:
    for name, batches in (("old", 5), ("new", 1)):
        writer = Recorder(_mapped(box), 1, 3)
        try:
            assert _read(box).records() == []
            observer = Observer(InFlight(lambda: None), (0,))
            writer.watch(0, observer, (0,))
            for number in range(batches):
                _done(observer, number, name)
            assert [record.name for record in _read(box).records()] == [name] * batches
        finally:
            writer.close()
        _done(observer, batches, "late")  # a batch that did not end in time is not recorded, and does no harm


@pytest.mark.parametrize("place", ["", "7", "x:y", "0:1", "99999:1"])
def test_without_such_memory_nothing_is_recorded(place: str) -> None:
    assert memory_at(place) is None
    writer = Recorder(memory_at(place), 0, 1)
    observer = Observer(InFlight(lambda: None), (0,))
    writer.watch(0, observer, (0,))
    _done(observer, 1, "x")
    writer.enter(Phase.INSIDE)
    writer.close()


def test_a_descriptor_that_is_another_file_by_now_is_not_written_to(box: int) -> None:
    place = f"{box}:{os.fstat(box).st_ino + 1}"
    assert memory_at(place) is None
    assert blackbox.read(box) is None


# ---- what is said of it


def _head(phase: Phase) -> Callable[[bytearray], None]:
    return lambda memory: HEAD.pack_into(memory, 0, MARK, 1, 0, 2, phase)


def _described(**note: object) -> list[str]:
    memory = bytearray(NBYTES)
    _head(Phase.INSIDE)(memory)
    text = json.dumps(note).encode()
    NOTE.pack_into(memory, NOTES_AT, 1, 9.0, len(text), text, 1)
    return _sentences(memory)


def _sentences(memory: bytes) -> list[str]:
    descriptor = blackbox.make()
    try:
        os.pwrite(descriptor, memory, 0)
        found = blackbox.read(descriptor)
        return [] if found is None else blackbox.describe(found, at=10.0)
    finally:
        os.close(descriptor)


def test_the_sentences() -> None:
    calls = ["step, train.py:12", "<module>, train.py:20"]
    assert _described(in_flight=5, names=["a", "b", "c", "d"], waiting_s=3.25, stack=calls) == [
        "it had finished no collective",
        "1.0 s before its end it had waited for 3.2 s, with 'a', 'b', 'c' and 2 more in flight",
        "the main thread was in step, train.py:12",
        "called by <module>, train.py:20",
    ]
    (call,) = _described(stack=["\x1b]0;x\x07, a\nb.py:1"])[2:]
    assert call == "the main thread was in ?]0;x?, a b.py:1"  # a terminal obeys nothing of it
    assert _described(in_flight=0, names=[], waiting_s=0.0, stack=[])[1:] == [
        "1.0 s before its end it was at work, with nothing in flight"
    ]


@pytest.mark.parametrize(("phase", "words"), [(Phase.JOINING, "it was in init()"), (Phase.OUTSIDE, "by shutdown()")])
def test_outside_of_a_session_that_is_all(phase: Phase, words: str) -> None:
    memory = bytearray(NBYTES)
    _head(phase)(memory)
    (sentence,) = _sentences(memory)
    assert words in sentence


@pytest.mark.parametrize(
    "note",
    [
        {"in_flight": "many", "names": 7, "waiting_s": "long", "stack": {}},
        {"in_flight": 10**400, "names": [None, "a\nb" * 10_00], "waiting_s": -1, "stack": [1, ["x"]]},
        {"stack": ["x" * 100] * 30},
        {"waiting_s": 10**400},
    ],
)
def test_a_note_of_anything_gives_few_short_lines(note: dict[str, object]) -> None:
    lines = _described(**note)
    assert len(lines) <= 12
    assert all(len(line) <= 300 and "\n" not in line for line in lines)


@given(st.binary(max_size=1500), st.binary(min_size=200, max_size=2000))
def test_any_bytes_are_read(head: bytes, records: bytes) -> None:
    memory = bytearray(NBYTES)
    _head(Phase.INSIDE)(memory)
    memory[NOTES_AT : NOTES_AT + len(head)] = head
    memory[RECORDS_AT : RECORDS_AT + len(records)] = records
    assert 1 <= len(_sentences(memory)) <= 12
