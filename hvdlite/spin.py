"""The duration for which a waiting rank spins before it sleeps: as long as a wake-up takes on its host.

A rank that sleeps continues one wake-up late, and a rank that spins takes processor time. Spinning for the time of a
wake-up, and then sleeping, never costs more than twice the better of the two, whenever the peer comes. (The
ski-rental rule: Karlin and others, "Competitive randomized algorithms for nonuniform problems", SODA 1990.)
A virtual machine may wake far more slowly than a real one, especially on a busy host, so the time is measured, once.
Under later load spins that keep failing become rare (``native/kernels/spin.h``).

Ranks that share cores yield to each other before they sleep, within a host: a yield takes a microsecond.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from hvdlite import native
from hvdlite.host.cgroups import cores_limit
from hvdlite.members.membership import Membership
from hvdlite.settings import Settings

_YIELD_NS: Final = 100_000  # of processor time: what a wait may take where no peer comes
_LEAST_US: Final = 50.0  # a message that takes no longer than this comes while its receiver is awake


def spin_us(settings: Settings, ranks: int) -> float:
    """The time that each of the ``ranks`` of this host should spin, in µs; measured unless ``settings`` set it.

    Ranks that share cores, or have a quota, do not spin: the awaited peer may need this rank's core. If other programs
    keep the cores busy, wake-ups are slow because of them, and spinning would add to the load.
    """
    if settings.spin >= 0:
        return settings.spin
    cores = usable_cores()
    if native.absence():  # native code spins
        return 0.0
    if ranks > cores or cores < 2:
        return 0.0
    measured_us = wakeup_us()
    is_crowded = ranks + running_elsewhere() > (os.cpu_count() or 1)
    return _LEAST_US if is_crowded else max(_LEAST_US, measured_us)


def agreed_spin_us(settings: Settings, members: Membership, exchange: Callable[[float], Sequence[float]]) -> float:
    """The time that this rank should spin, in µs. The leader of each host measures it while the others wait.

    ``exchange`` publishes a number and returns the numbers of all ranks.
    """
    leader, *others = members.on_this_host
    measured = exchange(spin_us(settings, 1 + len(others)) if leader == members.rank and members.size > 1 else 0.0)
    return settings.spin if settings.spin >= 0 else float(measured[leader])


def native_spin_ns(spin_us: float, ranks: int) -> int:
    """``most_ns`` of a `native.Spin` for one of the ``ranks`` of this host that spin for ``spin_us``."""
    if spin_us > 0:
        return round(spin_us * 1000)
    return -_YIELD_NS if ranks > len(os.sched_getaffinity(0)) else 0


def usable_cores() -> float:
    """The processor time that this process may use, in cores: those it may run on, or fewer by a quota."""
    cores = len(os.sched_getaffinity(0))
    limit = cores_limit()
    return cores if limit is None else min(cores, limit)


def running_elsewhere() -> int:
    """Counts the other threads of this machine that run or could run now; 0 without /proc."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) - 1
    return 0


def wakeup_us() -> float:
    """Measures how long a wake-up takes here, at most 2,000 µs; 0 with one core. Takes 1 to 35 ms."""
    return float(native.library().hvd_wakeup_ns()) / 1000
