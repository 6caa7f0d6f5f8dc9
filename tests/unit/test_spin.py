"""The time that a rank spins before it sleeps, and how a driver waits on the control link."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from hvdlite import spin
from hvdlite.control.inbox import Inbox
from hvdlite.control.unixlink import UnixLink
from hvdlite.net.local_listener import LocalListener
from hvdlite.net.wake import Wake
from hvdlite.settings import Settings
from hvdlite.spin import native_spin_ns, running_elsewhere, spin_us, usable_cores, wakeup_us
from tests.harness.members import member
from tests.unit.links import LEFT, next_from, soon

_MINUTE_US = 60e6
_HOUR_NS = 3600 * 10**9


def _host(monkeypatch: pytest.MonkeyPatch, cores: int, quota: float | None, wakeup: float, running: int = 0) -> None:
    monkeypatch.setattr(spin.os, "sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.setattr(spin.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(spin, "running_elsewhere", lambda: running)
    monkeypatch.setattr(spin, "cores_limit", lambda: quota)
    monkeypatch.setattr(spin, "wakeup_us", lambda: wakeup)


@pytest.mark.parametrize(
    ("ranks", "cores", "quota", "wakeup", "expected"),
    [
        (2, 2, None, 300.0, 300.0),
        (2, 2, None, 12.0, 50.0),  # a message takes longer than this wake-up
        (1, 2, None, 300.0, 300.0),  # its peers are on other hosts
        (3, 2, None, 300.0, 0.0),
        (2, 8, 1.5, 300.0, 0.0),  # a container with the time of fewer cores than it sees
        (2, 8, 2.0, 300.0, 300.0),
        (1, 1, None, 0.0, 0.0),
    ],
)
def test_a_rank_with_a_core_of_its_own_spins_as_long_as_a_wakeup_takes(
    monkeypatch: pytest.MonkeyPatch, ranks: int, cores: int, quota: float | None, wakeup: float, expected: float
) -> None:
    _host(monkeypatch, cores, quota, wakeup)
    assert spin_us(Settings(), ranks) == expected
    assert spin_us(Settings(spin=7), ranks) == 7
    assert spin_us(Settings(spin=0), ranks) == 0


def test_ranks_that_share_cores_yield_and_others_with_no_time_to_spin_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    _host(monkeypatch, 2, None, 300.0)
    assert [native_spin_ns(0, ranks) for ranks in (1, 2, 3)] == [0, 0, -100_000]
    assert [native_spin_ns(-1, ranks) for ranks in (2, 3)] == [0, -100_000]  # as without a session
    assert [native_spin_ns(0.5, ranks) for ranks in (2, 3)] == [500, 500]


@pytest.mark.parametrize(("running", "expected"), [(2, 300.0), (3, 50.0), (40, 50.0)])
def test_a_core_that_others_keep_busy_does_not_make_it_spin_longer(
    monkeypatch: pytest.MonkeyPatch, running: int, expected: float
) -> None:
    _host(monkeypatch, 4, None, 300.0, running)
    assert spin_us(Settings(), 2) == expected


def test_what_runs_elsewhere_is_counted() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    try:
        assert busy.stdout is not None
        busy.stdout.readline()
        assert running_elsewhere() >= 1
    finally:
        busy.kill()
        busy.communicate()


def test_a_wakeup_is_measured_in_microseconds() -> None:
    assert (usable_cores() >= 2) <= (0 < wakeup_us() <= 2000)


@pytest.mark.parametrize("spin_us", [0, _MINUTE_US])
def test_a_driver_sees_messages_and_its_wake_whether_or_not_it_spins(spin_us: float) -> None:
    leaf = UnixLink(member(1, "aa"), Settings(spin=spin_us))
    root = UnixLink(member(0, "aa"), Settings())
    with LocalListener(member(0, "aa").key_for("listener")) as listener:
        leaf.dial(listener.address, soon())
        root.accept(listener, soon())
    wake = Wake()
    wake.set()
    leaf.inbox.sleep_as_driver(None, wake)
    root.send(LEFT)
    leaf.inbox.sleep_as_driver(None, wake)
    assert next_from(leaf) == (0, LEFT)
    for each in (leaf, root, wake):
        each.close()


@pytest.fixture
def inbox_and_wake() -> Iterator[tuple[Inbox, Wake]]:
    inbox, wake = Inbox(spin_ns=1000), Wake()
    yield inbox, wake
    for each in (inbox, wake):
        each.close()


def _spins(inbox: Inbox, wake: Wake) -> bool:
    """True if a wait spins for something that has come already: only a spin counts as one that was enough."""
    inbox.spin.vain = max(inbox.spin.vain, 1)
    wake.set()
    inbox.sleep_as_driver(None, wake)
    return inbox.spin.vain == 0


def test_a_driver_spins_once_and_then_sleeps_until_something_comes(inbox_and_wake: tuple[Inbox, Wake]) -> None:
    inbox, wake = inbox_and_wake
    assert _spins(inbox, wake)
    for _ in range(2):
        inbox.sleep_as_driver(1, wake)
    inbox.spin.most_ns = _HOUR_NS  # it would outlast any test
    inbox.sleep_as_driver(1, wake)
    assert not _spins(inbox, wake)
    assert _spins(inbox, wake)


def test_a_driver_whose_spins_are_in_vain_spins_ever_more_rarely(inbox_and_wake: tuple[Inbox, Wake]) -> None:
    inbox, wake = inbox_and_wake
    inbox.spin.vain, inbox.spin.most_ns = 3, _HOUR_NS
    inbox.sleep_as_driver(1, wake)
    inbox.spin.vain, inbox.spin.is_idle = 3, 0
    assert not _spins(inbox, wake)
    inbox.spin.vain = 16
    assert _spins(inbox, wake)
