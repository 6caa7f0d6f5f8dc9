"""Connecting with the addresses that the others publish, and with a part that fails to connect."""

from __future__ import annotations

from typing import Any
from unittest.mock import DEFAULT, Mock, call

import pytest

from hvdlite.errors import HorovodInternalError
from hvdlite.groups.connecting import Connecting, Connections, NotConnected, connect, look_on
from hvdlite.scope import Cancelled, Scope

_SCOPE = Scope()
GOOD = [None, ["", "unix:listener"], {"cpu": "unix:ring"}]


class _Exchange:
    """With a rank that hands in ``offer`` and then has no failure; ``published`` is what this rank hands in."""

    leave: Any

    def __init__(self, offer: Any) -> None:
        self._offer = offer
        self.published: list[Any] = []

    def __call__(self, offer: Any) -> list[Any]:
        self.published.append(offer)
        return [offer, self._offer if len(self.published) == 1 else {"failure": ""}]


def _connect(
    offer_of_other: Any, leave: Any = None, scope: Scope = _SCOPE, **outcome: Any
) -> tuple[Connections, Mock, list[Any]]:
    """Connects as rank 4 of two with rank 7. Returns what came of it, and what this rank published."""
    connecting = Mock(Connecting, ranks=(4, 7))
    connecting.bind.return_value = GOOD
    connecting.connect.configure_mock(**outcome)
    exchange = _Exchange(offer_of_other)
    if leave is not None:
        exchange.leave = leave
    return connect(connecting, exchange, scope), connecting, exchange.published


def test_connections_are_made_with_what_all_have_published() -> None:
    _, connecting, published = _connect({"addresses": GOOD})
    connecting.connect.assert_called_once_with([GOOD, GOOD], _SCOPE)
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


@pytest.mark.parametrize("is_connecting", [True, False])
@pytest.mark.parametrize("can_leave", [True, False])
def test_the_others_hear_why_a_rank_was_cancelled(is_connecting: bool, can_leave: bool) -> None:
    """While it connects, or just afterwards; it closes what it has only then."""
    leave, scope = Mock(return_value="it left"), Scope()

    def is_interrupted(*_: Any) -> Any:
        scope.cancel("it was interrupted")
        if is_connecting:
            scope.check()
        return DEFAULT

    leaves = is_connecting and can_leave
    with pytest.raises(Cancelled if leaves else NotConnected, match="it was interrupted"):
        _connect({"addresses": GOOD}, leave if can_leave else None, scope, side_effect=is_interrupted)
    assert leave.call_args_list == ([call("it was interrupted")] if leaves else [])


def test_a_rank_that_was_cancelled_before_publishes_the_reason_in_place_of_addresses() -> None:
    scope = Scope()
    scope.cancel("it was interrupted")
    with pytest.raises(NotConnected, match="rank 4: it was interrupted"):
        _connect({"addresses": GOOD}, None, scope)


@pytest.mark.parametrize("values", [[], [None], [None, None, None]], ids=repr)
def test_an_exchange_that_returns_too_few_or_too_many_values_is_refused(values: list[Any]) -> None:
    with pytest.raises(HorovodInternalError, match="the exchange returned . values for 2 ranks"):
        look_on((4, 7), lambda _: values)
