"""What a rank says of where its time went."""

from __future__ import annotations

import pytest

from hvdlite.engine.inflight import InFlight
from hvdlite.engine.observer import Observer
from hvdlite.metrics.table import (
    EARLIER_S,
    JOINED_AT,
    LATEST_RANK,
    LATEST_RANK_S,
    LEFT_AT,
    LOADING_S,
    Quantities,
)
from hvdlite.observe import account as module
from hvdlite.observe.account import Account


class Data:
    """Loads for as long as the test says."""

    def __init__(self) -> None:
        self.loaded_s = 0.0

    def seconds(self, now: float) -> float:
        return self.loaded_s


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Data:
    found = Data()
    monkeypatch.setattr(module, "loading", found)
    return found


def test_only_data_that_is_loaded_in_the_session_counts(data: Data) -> None:
    account = Account(5.0, {})
    data.loaded_s = 5.0
    assert account.quantities(10.0)[LOADING_S] == 0.0
    account.join(10.0)
    data.loaded_s = 7.0
    assert account.quantities(20.0)[LOADING_S] == 2.0


def test_the_sessions_of_a_process_add_up(data: Data) -> None:
    earlier: Quantities = {}
    for begun in (10.0, 50.0, 100.0):
        account = Account(begun - 1.0, earlier)
        account.join(begun)
        data.loaded_s += 1.0
        account.leave(begun + 20.0)
        account.leave(begun + 21.0)  # again, at exit
        earlier = account.quantities(begun + 30.0)
    assert (earlier[JOINED_AT], earlier[LEFT_AT], earlier[EARLIER_S]) == (100.0, 120.0, 40.0)
    assert earlier[LOADING_S] == 3.0


def test_the_latest_rank_is_the_one_for_which_most_was_waited(data: Data) -> None:
    account = Account(5.0, {})
    account.watch(0, _waited_for(0.0, 1.0, 0.0, 2.0), (0, 1, 2, 3), 100.0)
    account.watch(1, _waited_for(5.0, 0.0), (1, 3), 100.0)
    found = account.quantities(100.0)
    assert (found[LATEST_RANK], found[LATEST_RANK_S]) == (1.0, 8.0)  # by three others, and by one


def test_the_latest_rank_of_earlier_sessions_counts(data: Data) -> None:
    earlier: Quantities = {}
    for _ in range(2):
        account = Account(5.0, earlier)
        account.watch(0, _waited_for(0.0, 7.0), (0, 1), 100.0)
        earlier = account.quantities(100.0)
    assert (earlier[LATEST_RANK], earlier[LATEST_RANK_S]) == (1.0, 14.0)


def test_a_process_set_that_was_removed_counts_although_another_has_its_number(data: Data) -> None:
    account = Account(5.0, {})
    account.watch(0, _waited_for(0.0, 0.0, 2.0), (0, 1, 2), 100.0)
    for _ in range(3):
        account.watch(1, _waited_for(0.0, 3.0), (0, 1), 100.0)
    found = account.quantities(100.0)
    assert (found[LATEST_RANK], found[LATEST_RANK_S]) == (1.0, 9.0)
    assert len(account.groups) == 2  # else a process that adds and removes sets grows


def _waited_for(*late_s: float) -> Observer:
    """The observer of a root: the others have waited that long for each rank."""
    observer = Observer(InFlight(lambda: None), tuple(range(len(late_s))))
    for rank, seconds in enumerate(late_s):
        observer.arrived((rank + 1) % len(late_s), False, 10.0)
        observer.arrived(rank, True, 10.0 + seconds)
        observer.decided()
    return observer
