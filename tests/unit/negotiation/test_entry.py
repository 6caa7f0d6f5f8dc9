"""Results of entries: what the caller of a collective gets for the output."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from hvdlite.negotiation.entry import Entry, OnDevice, converted
from hvdlite.tensors.device import Device
from tests.unit.replicas import request


def _on_host() -> Any:
    return Entry(request("a"), None)


def _on_device() -> Any:
    entry: OnDevice[Any] = OnDevice(request("a", device=Device("toy")), None)
    entry.streams = Mock()
    entry.streams.current.return_value = 7
    entry.launch = Mock(is_done=False, error=None)
    return entry


@pytest.mark.parametrize("make", [_on_host, _on_device], ids=["host", "device"])
def test_the_result_is_converted_as_often_as_it_was_asked_for(make: Any) -> None:
    entry = converted(converted(make(), lambda output: [output]), lambda output: (output, "b"))
    assert entry.output is None
    entry.output = "a"
    assert entry.output == (["a"], "b")
    assert entry.result(set()) == (["a"], "b")
    plain = make()
    plain.output = "a"
    assert plain.output == plain.result(set()) == "a"


def test_the_current_stream_waits_for_a_collective_once_among_results_that_are_read_together() -> None:
    entry = _on_device()
    entry.output = "a"
    synced: Any = set()
    for _ in range(2):
        assert entry.result(synced) == "a"
    entry.launch.hold_back.assert_called_once_with(7)
    assert synced == {(7, entry.launch)}
    entry.streams.use.assert_called_with("a")
