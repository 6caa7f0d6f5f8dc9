"""Rules for every test: it leaves nothing behind, no setting of the caller reaches it, and it may be alone.

A run ends with a line about what was skipped.
"""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.harness import forkserver, leaks, turns
from tests.harness.networks import network, own_network, shared_network  # noqa: F401 - fixtures

leaks.adopt_orphans()
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:  # in a background job, and under nohup; children would inherit it
        signal.signal(number, usual)

for name in [name for name in os.environ if name.startswith(("HVDLITE_", "HOROVOD_"))]:
    del os.environ[name]
os.environ["HVDLITE_SUMMARY"] = "0"  # how long a job takes, and so whether it has a last line, is chance

settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


def pytest_collection_finish() -> None:
    """Leaves what is there before the first test out of garbage collections, which tests ask for by the hundred."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Shares the files of ``--dist loadfile``; without xdist nobody asks."""
    from tests.harness.sharing import TorchTogether

    return TorchTogether(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Around all of a test, with its fixtures and its time limit, which so does not count what it waits for here."""
    with turns.turn(item.config.cache.mkdir("turns"), item.get_closest_marker("alone") is not None):
        return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for all skipped tests, how many for want of what, and one for each that is known to fail, and why."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports)
    if reasons:
        counted = "; ".join(f"{count} ({reason})" for reason, count in reasons.most_common())
        terminalreporter.write_line(f"skipped: {counted}", yellow=True)
    for report in terminalreporter.stats.get("xfailed", []):
        terminalreporter.write_line(f"cannot: {report.nodeid.rpartition('::')[2]}: {report.wasxfail}")


@pytest.fixture(autouse=True, scope="session")
def _fork_server() -> Iterator[None]:
    with forkserver.PLAIN:
        yield


@pytest.fixture(scope="session")
def torch_fork_server() -> Iterator[None]:
    """For the tests whose ranks are forked from `forkserver.TORCH`."""
    with forkserver.TORCH:
        yield


@pytest.fixture(autouse=True)
def _leak_guard() -> Iterator[None]:
    """Fails the test that leaves processes, threads, descriptors, sockets or shared memory behind."""
    before = leaks.holdings()
    yield
    if left := leaks.left_since(before):
        leaks.kill_children_since(before)
        pytest.fail("the test left behind:\n  " + "\n  ".join(left), pytrace=False)
