"""The table of quantities: every row is read where it says, and a new row reaches the user by itself."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pkgutil import resolve_name

import pytest

from hvdlite.blackbox import format as blackbox
from hvdlite.engine.inflight import InFlight
from hvdlite.engine.observer import Observer
from hvdlite.host.counters import HostCounters, ProcessCounters
from hvdlite.launcher.agent.inspection.status import status_of
from hvdlite.launcher.top.rows import Viewer
from hvdlite.metrics import table
from hvdlite.metrics.table import Over, Quantities, Quantity, Reader
from hvdlite.observe.account import Account
from hvdlite.observe.interpreter import Interpreter
from hvdlite.observe.recorder import Phase, Recorder, memory_at
from tests.unit.launcher.top.test_rows import Answers


def test_names_are_unique_and_there_is_room_in_the_black_box() -> None:
    names = [row.name for row in table.TABLE]
    assert len(names) == len(set(names)) <= blackbox.MOST_QUANTITIES
    assert [row.slot for row in table.TABLE] == list(range(len(names)))


@pytest.mark.parametrize("reader", Reader)
def test_the_table_says_where_a_quantity_is_read(reader: Reader) -> None:
    assert callable(resolve_name(reader.value))


def test_each_reader_reads_its_rows() -> None:
    observer, interpreter, account = Observer(InFlight(lambda: None), (0,)), Interpreter(), Account(0.0, {})
    interpreter.close()
    assert set(observer.quantities(1.0)) == set(table.read_by(Reader.GROUP))
    assert set(interpreter.quantities()) == set(table.read_by(Reader.PYTHON))
    account.watch(0, observer, (0,), 0.0)
    assert set(account.quantities(1.0, interpreter.quantities)) == set(table.of_ranks())


def test_what_the_kernel_counts_is_in_the_table() -> None:
    process, host = ProcessCounters(os.getpid()), HostCounters()
    try:
        found = {name.partition(".")[0] for name in (*process.read(), *host.read())}
    finally:
        process.close()
        host.close()
    assert found - {"is_stopped", "processor"} <= {row.name for row in table.read_by(Reader.PROCESS, Reader.HOST)}


@pytest.mark.parametrize(("over", "value"), [(Over.SUM, 9.0), (Over.MEAN, 3.0), (Over.MAX, 5.0)])
def test_values_of_ranks_become_one(over: Over, value: float) -> None:
    assert over.combine([1.0, 3.0, 5.0]) == value


@pytest.fixture
def toy() -> Iterator[Quantity]:
    """What a change that adds a gauge adds to the table."""
    row = table.gauge("toy", "B", Reader.GROUP, Over.SUM, "bytes that the test has")
    yield row
    table.TABLE.remove(row)


def test_a_new_gauge_takes_a_row_and_the_place_where_it_is_read(toy: Quantity) -> None:
    """The rest follows the table: the black box, the agent and `hvdrun top`."""

    class ObserverOfToys(Observer):
        def quantities(self, now: float) -> Quantities:
            return super().quantities(now) | {toy: 21.0}

    descriptor = blackbox.make()
    try:
        memory = memory_at(f"{descriptor}:{os.fstat(descriptor).st_ino}")
        recorder = Recorder(memory, rank=0, size=2)
        for number in range(2):  # two groups, whose values are added up
            recorder.watch(number, ObserverOfToys(InFlight(lambda: None), (0, 1)), (0, 1))
        recorder.enter(Phase.INSIDE)
        assert memory is not None
        status = json.loads(json.dumps(status_of(0, os.getpid(), memory, 1.0)))
        recorder.close()
    finally:
        os.close(descriptor)
    view = Viewer(Answers([{**status, "rank": rank, "at": 1.0} for rank in (0, 1)], 2)).look()
    assert [row.quantities["toy"] for row in view.rows] == [42.0, 42.0]
    assert view.quantities["toy"] == 84.0
