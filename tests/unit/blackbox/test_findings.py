"""Findings in a black box: what a rank found out about the job, for its agent, which counts them."""

from __future__ import annotations

import os

from hvdlite.blackbox import format as blackbox
from hvdlite.blackbox.format import FINDING, FINDINGS, FINDINGS_AT, NBYTES, Finding
from hvdlite.engine.inflight import InFlight
from hvdlite.engine.observer import Observer
from hvdlite.observe.recorder import Recorder, memory_at


def _told(box: int, after: int = 0) -> list[tuple[int, str]]:
    return [(number, finding.text) for number, finding in blackbox.findings(os.pread(box, NBYTES, 0), after)]


def test_an_agent_gets_each_finding_once_and_those_of_the_next_session_too() -> None:
    box = blackbox.make()
    place = f"{box}:{os.fstat(box).st_ino}"
    for session in range(2):
        recorder, observer = Recorder(memory_at(place), rank=0, size=2), Observer(InFlight(lambda: None), (0, 1))
        recorder.watch(0, observer, (0, 1))
        for number in range(3):
            observer.found(Finding("stall", f"{session} {number}", {}))
        numbers = [session * 3 + number for number in range(3)]
        assert _told(box, after=session * 3) == [(number + 1, f"{session} {number % 3}") for number in numbers]
        recorder.close()
    assert len(_told(box)) == FINDINGS
    os.close(box)


def test_a_finding_that_is_torn_too_long_or_no_finding_is_left_out() -> None:
    memory = bytearray(NBYTES)
    texts = [b'"abc"', b"[" * 10_000, b'["stall", "well", {}]']
    for number, text in enumerate(texts, 1):
        FINDING.pack_into(memory, FINDINGS_AT + number % FINDINGS * FINDING.size, number, len(text), text, number)
    FINDING.pack_into(memory, FINDINGS_AT, 4, 3, b"[]", 9)
    assert [finding.text for _, finding in blackbox.findings(bytes(memory), 0)] == ["well"]
