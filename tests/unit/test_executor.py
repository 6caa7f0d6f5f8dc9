"""Who runs batches when a driver and the end of the executor meet."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from hvdlite.engine import executor
from hvdlite.engine.executor import Executor
from tests.harness.patience import PATIENCE_S


def test_a_batch_that_a_driver_leaves_behind_is_run_although_the_end_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver has what it waits for, and the executor's thread looked while the driver still had its turn."""
    ran: list[str] = []
    closed: list[bool] = []

    def close() -> None:
        closed.append(executed.close(time.monotonic() + PATIENCE_S))

    closing = threading.Thread(target=close)

    def finish(entries: Any, error: Any) -> None:
        (entry,) = entries
        entry.is_done = True
        if entry is first:
            executed.put(work("second"))
            closing.start()
            while not executed._tokens.empty():  # until the thread has taken all that `close` told it
                time.sleep(0.001)

    def work(name: str) -> Any:
        return SimpleNamespace(entries=[SimpleNamespace(name=name, is_done=False)])

    monkeypatch.setattr(executor, "run", lambda work, _: ran.append(work.entries[0].name))
    plane: Any = SimpleNamespace()
    in_flight: Any = SimpleNamespace(finish=finish)
    executed = Executor(plane, in_flight, lambda: None, lambda error: None)
    executed.put(of_first := work("first"))
    (first,) = of_first.entries
    assert executed.run_here(until=first)
    closing.join()
    assert closed == [True]
    assert ran == ["first", "second"]
