"""Connecting with the addresses that the others publish, and with a part that fails to connect."""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import Mock

import pytest

from hvdlite.engine.connecting import Connecting, Connections, NotConnected, connect

GOOD = [None, ["", "unix:listener"], {"cpu": "unix:ring"}]


def _connect(offer_of_other: Any, leave: Any = None, **outcome: Any) -> tuple[Connections, Mock, list[Any]]:
    """Connects as rank 4 of two with rank 7. Returns what came of it, and what this rank published."""
    connecting = Mock(Connecting, ranks=(4, 7))
    connecting.bind.return_value = GOOD
    connecting.connect.configure_mock(**outcome)
    published: list[Any] = []

    def exchange(offer: Any) -> list[Any]:
        published.append(offer)
        return [offer, offer_of_other if len(published) == 1 else {"failure": ""}]

    return connect(connecting, exchange, math.inf, leave=leave), connecting, published


def test_connections_are_made_with_what_all_have_published() -> None:
    _, connecting, published = _connect({"addresses": GOOD})
    connecting.connect.assert_called_once_with([GOOD, GOOD], math.inf)
    assert published == [{"addresses": GOOD}, {"failure": ""}]


@pytest.mark.parametrize(
    "offer",
    [
        None,
        [],
        {},
        {"addresses": None},
        {"addresses": GOOD[:2]},
        {"addresses": [*GOOD, ""]},
        {"addresses": [7, *GOOD[1:]]},
        {"addresses": [None, "", {}]},
        {"addresses": [None, ["", 7], {}]},
        {"addresses": [None, [""], {}]},
        {"addresses": [*GOOD[:2], []]},
    ],
    ids=repr,
)
def test_a_rank_without_addresses_is_named(offer: Any) -> None:
    with pytest.raises(NotConnected, match="rank 4: rank 7 published no addresses"):
        _connect(offer)


@pytest.mark.parametrize("bug", [KeyError("x"), TypeError("x"), IndexError("x")], ids=repr)
def test_a_bug_in_a_part_is_raised_as_it_is_and_the_others_are_told(bug: Exception) -> None:
    leave = Mock()
    with pytest.raises(type(bug)) as caught:
        _connect({"addresses": GOOD}, leave, side_effect=bug)
    assert caught.value is bug
    leave.assert_called_once_with(f"{type(bug).__name__}: {bug}")
