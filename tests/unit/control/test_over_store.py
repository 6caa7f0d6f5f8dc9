"""Groups whose ranks meet through a store: what lies in it is not trusted."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from hvdlite.errors import HorovodInternalError
from hvdlite.groups.over_store import leave_group, open_over_store
from hvdlite.ops.arrays import collectives
from hvdlite.ops.handles import run
from tests.harness import thread_ranks
from tests.harness.patience import PATIENCE_S


class _Store(dict[str, bytes]):
    """A store in memory, in which some keys have other values than those that were set."""

    def __init__(self, **forged: bytes) -> None:
        self._forged = {key.replace("_", "/"): value for key, value in forged.items()}
        self._is_new = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._is_new:
            self[key.removeprefix("k")] = value.encode()
            self._is_new.notify_all()

    def add(self, key: str, amount: int) -> int:
        return amount  # each rank opens one group

    def get(self, key: str) -> Any:  # type: ignore[override]
        with self._is_new:
            if not self._is_new.wait_for(lambda: key in self, PATIENCE_S):
                raise TimeoutError(key)
        return self._forged.get("k" + key, self[key])


def _open_alone(store: _Store) -> None:
    leave_group(open_over_store(store, [0], 0, "", PATIENCE_S), PATIENCE_S)


def test_ranks_meet_and_reduce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HVDLITE_SECRET", raising=False)
    store = _Store()

    def part(rank: int) -> Any:
        import numpy as np

        group = open_over_store(store, [3, 5, 8], rank, "", PATIENCE_S)
        try:
            return run(collectives.draft("allreduce", group, np.ones(2, np.float32), op=1)).tolist(), group.ranks
        finally:
            leave_group(group, PATIENCE_S)

    assert thread_ranks(3, part) == [([3.0, 3.0], (3, 5, 8))] * 3


@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        (b"x" * ((1 << 20) + 1), "rank 0 has put 1048577 bytes into the store"),
        (b"{", "what rank 0 has put into the store is no JSON"),
        (b"\xff\xfe", "what rank 0 has put into the store is no JSON"),
        (b"[]", "what rank 0 has put into the store is no offer"),
        (b"{}", "what rank 0 has put into the store is no offer"),
        (json.dumps({"host": "a", "hostid": "a", "reach": "", "without_native": "", "salt": "00"}).encode(), "1 bytes"),
        (json.dumps({"host": "a", "hostid": "a", "reach": "", "without_native": "", "salt": "x"}).encode(), "no offer"),
    ],
)
def test_what_lies_in_the_store_is_checked(forged: bytes, reason: str) -> None:
    with pytest.raises(HorovodInternalError, match=reason):
        _open_alone(_Store(k1_0_0=forged))


def test_a_rank_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(_Store):
        def get(self, key: str) -> Any:
            raise TimeoutError(f"no {key}")

    with pytest.raises(HorovodInternalError, match="rank 0 has not come to the store: no 1/0/0"):
        _open_alone(Silent())
