"""Ranks whose Python does not run, as their agent sees them in their black boxes."""

from __future__ import annotations

import pytest

from hvdlite.blackbox.format import AWAKE_AT, HEAD, MARK, NBYTES, NUMBER, OFFER, OFFER_AT, Phase
from hvdlite.launcher.agent.inspection.unresponsive import Unresponsive


def _box(awake_at: float, patience_s: float, phase: Phase) -> bytearray:
    memory = bytearray(NBYTES)
    HEAD.pack_into(memory, 0, MARK, 4711, 0, 2, phase)
    NUMBER.pack_into(memory, AWAKE_AT, awake_at)
    OFFER.pack_into(memory, OFFER_AT, 0, 0, 0, 0, patience_s)
    return memory


def test_an_agent_tells_of_a_rank_that_does_not_wake_and_again() -> None:
    unresponsive, box = Unresponsive(), bytes(_box(100.0, 10.0, Phase.INSIDE))
    told = [now for now in range(100, 145) if unresponsive.look(0, box, float(now)) is not None]
    assert told == [110, 120, 130, 140]
    assert unresponsive.look(0, bytes(_box(145.0, 10.0, Phase.INSIDE)), 145.0) is None
    assert [now for now in range(100, 125) if unresponsive.look(1, box, float(now)) is not None] == [113, 123]


@pytest.mark.parametrize(
    "box",
    [
        bytes(NBYTES),
        bytes(_box(100.0, 10.0, Phase.JOINING)),
        bytes(_box(100.0, 10.0, Phase.OUTSIDE)),
        bytes(_box(0.0, 10.0, Phase.INSIDE)),
        bytes(_box(float("nan"), 10.0, Phase.INSIDE)),
        bytes(_box(100.0, 0.0, Phase.INSIDE)),
        bytes(_box(100.0, float("nan"), Phase.INSIDE)),
        bytes(_box(float("inf"), 1.0, Phase.INSIDE)),
    ],
)
def test_of_other_ranks_it_tells_nothing(box: bytes) -> None:
    assert Unresponsive().look(0, box, 1e6) is None
