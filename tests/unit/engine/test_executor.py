"""Batches when a driver and the end of the executor meet, and those that a device does by itself."""

from __future__ import annotations

import threading
import time
import weakref
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import pytest

from hvdlite.engine import executor
from hvdlite.engine.device_completions import DeviceCompletions
from hvdlite.engine.executor import Executor
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.messages import Kind
from hvdlite.negotiation.replica import Work
from hvdlite.scope import Scope
from hvdlite.tensors.device import Device
from tests.harness.patience import PATIENCE_S
from tests.unit.replicas import request


def test_a_batch_that_a_driver_leaves_behind_is_run_although_the_end_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver has what it waits for, and the executor's thread looked while the driver still had its turn."""
    ran: list[str] = []
    closed: list[bool] = []

    def close() -> None:
        closed.append(executed.close(Scope.of(PATIENCE_S)))

    closing = threading.Thread(target=close)

    def finish(entries: Any, error: Any = None) -> None:
        (entry,) = entries
        entry.is_done = True
        if entry is first:
            executed.put(work("second"))
            closing.start()
            while not executed._tokens.empty():  # until the thread has taken all that `close` told it
                time.sleep(0.001)

    def work(name: str) -> Any:
        return SimpleNamespace(is_carried=False, entries=[SimpleNamespace(name=name, is_done=False)])

    monkeypatch.setattr(executor, "run", lambda work, _: ran.append(work.entries[0].name))
    plane: Any = SimpleNamespace()
    in_flight: Any = SimpleNamespace(finish=finish, keeps_times=False)
    executed = Executor(plane, in_flight, Mock(), lambda: None, lambda error: None)
    executed.put(of_first := work("first"))
    (first,) = of_first.entries
    assert executed.run_here(until=first)
    closing.join()
    assert closed == [True]
    assert ran == ["first", "second"]


class _Device:
    """A plane's completions, an executor over them, and the names and errors of batches in the order of their ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_end = threading.Event()
        self.error: Exception | None = None
        self.ended: list[tuple[str, str]] = []
        self.failures: list[str] = []
        monkeypatch.setattr(executor, "run", lambda work, _: self if work.entries[0].name == "issued" else None)
        in_flight: Any = SimpleNamespace(finish=self._finish, keeps_times=False)
        planes: Any = {}
        self.executor = Executor(
            planes, in_flight, Mock(), lambda: None, lambda error: self.failures.append(str(error))
        )

    def wait(self) -> None:
        self.may_end.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error

    def put(self, name: str, kind: Kind = Kind.ALLREDUCE) -> Entry:
        entry = Entry(request(name, kind=kind, device=Device("toy")), None)
        self.executor.put(Work((entry,), ((),), 1))
        return entry

    def _finish(self, entries: Any, error: Any = None) -> None:
        self.ended.append((entries[0].name, str(error or "")))


def test_batches_that_follow_what_was_issued_run_before_it_is_done_but_for_a_join(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = _Device(monkeypatch)
    issued = device.put("issued")
    device.put("next")
    assert device.executor.run_here()
    assert device.ended == [("next", "")]
    assert device.executor.backlog == 0
    assert device.executor.entries() == {issued}
    device.put("join", Kind.JOIN)
    joining = threading.Thread(target=device.executor.run_here)
    joining.start()
    due = device.executor._issued["toy"]._due
    while joining.is_alive() and due.empty():  # until the join waits for its turn
        time.sleep(0.001)
    assert device.ended == [("next", "")]
    device.may_end.set()
    joining.join()
    assert device.ended == [("next", ""), ("issued", ""), ("join", "")]
    assert device.executor.entries() == set()
    assert device.executor.close(Scope.of(PATIENCE_S))


def test_what_a_device_fails_in_fails_its_batch_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    device = _Device(monkeypatch)
    device.put("issued")
    device.executor.run_here()
    assert not device.executor.close(Scope.of(0))
    device.error = ArithmeticError("a bug of the device")
    device.may_end.set()
    assert device.executor.close(Scope.of(PATIENCE_S))
    text = "running issued failed: ArithmeticError: a bug of the device"
    assert device.ended == [("issued", text)]
    assert device.failures == [text]


class _Completion:
    """Waits until ``may_end``."""

    def __init__(self, may_end: threading.Event) -> None:
        self._may_end = may_end

    def wait(self) -> None:
        self._may_end.wait(PATIENCE_S)


def test_a_completion_is_let_go_with_its_batch_although_no_other_follows() -> None:
    may_end, is_gone = threading.Event(), threading.Event()
    issued = DeviceCompletions(lambda work, error: None)
    completion = _Completion(may_end)
    weakref.finalize(completion, is_gone.set)
    issued.put(Work((), (), 1), completion)
    del completion
    may_end.set()
    assert is_gone.wait(PATIENCE_S)
    assert issued.close(Scope.of(PATIENCE_S))


def test_closing_again_waits_only_for_devices_that_have_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two, one had ended when the deadline of the first close came."""
    device = _Device(monkeypatch)
    idle, wedged = DeviceCompletions(lambda work, error: None), DeviceCompletions(lambda work, error: None)
    wedged.put(Work((), (), 1), _Completion(device.may_end))
    device.executor._issued.update(idle=idle, wedged=wedged)
    assert idle.close(Scope.of(PATIENCE_S))
    assert not device.executor.close(Scope.of(0))
    device.may_end.set()
    assert device.executor.close(Scope.of(PATIENCE_S))
    assert device.executor.close(Scope.of(0))


def test_a_batch_whose_device_gets_no_thread_fails_and_does_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    device = _Device(monkeypatch)
    device.error = ArithmeticError("the device was waited for")
    device.may_end.set()
    device.put("issued")
    device.put("next")
    with patch.object(executor, "DeviceCompletions", side_effect=RuntimeError("can't start new thread")):
        assert device.executor.run_here()
    text = "running issued failed: ArithmeticError: the device was waited for"
    assert device.ended == [("issued", text), ("next", "")]
    assert device.failures == [text]
    device.error = None
    device.put("issued")
    with patch.object(executor, "DeviceCompletions", side_effect=RuntimeError("can't start new thread")):
        assert device.executor.run_here()
    text = "running issued failed: RuntimeError: can't start new thread"
    assert device.ended[2:] == [("issued", text)]
    assert device.executor.backlog == 0
    assert device.executor.close(Scope.of(PATIENCE_S))
