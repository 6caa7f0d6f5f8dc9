"""Why a rank is slow: what its main thread lost time by, compared with the other ranks.

Of each cause there is an estimate of the time that a rank loses by it, in seconds of each second. What the named rank
loses more than the others do may explain why it is late. Some causes show in others: a rank that its cgroup throttles
also waits for a processor. So there is an order, and a cause is preferred to those after it unless one of them explains
twice as much. What explains less than `_ENOUGH` of the lateness is no cause.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from statistics import median_low
from typing import Final, NamedTuple

from hvdlite.metrics.table import COVERED_S, TABLE, of_ranks

from ..agents.answers import Evidence
from ..stream.fields import listed, read

_OF_RANKS: Final = frozenset(of_ranks())
_ENOUGH: Final = 0.4
_RATHER: Final = 0.5
_PERIOD_S: Final = 0.1  # in which Linux counts quotas of cgroups
_RESEND_S: Final = 0.2  # the shortest that TCP waits before it sends again
_MANY_FAULTS: Final = 1000.0  # per second
_SOME_READS: Final = 5.0  # per second
_MOST_STRAIN: Final = 3.0
_LEAST_S: Final = 0.1  # between two looks, which are a second apart


class Window(NamedTuple):
    """What the sums of a rank grew by, per second, in its latest ``over_s``; and the limits of its cgroup."""

    host: str
    over_s: float
    rates: Mapping[str, float]
    cores: float | None = None
    memory: float | None = None


class Cause(NamedTuple):
    """Why a rank is slow: in few words, and in a sentence about "it"."""

    name: str
    short: str
    text: str


class _Kind(NamedTuple):
    name: str
    short: str
    lost: Callable[[Window, float], float]
    template: str

    def text(self, window: Window, seconds: float) -> str:
        """The sentence about a rank that loses so many ``seconds`` of each second."""
        rates, cores, memory = window.rates, window.cores, window.memory
        return self.template.format(
            s=_s(seconds),
            cores="" if cores is None else f" (limit {cores:g} cores)",
            memory="" if memory is None else f" (limit {memory / (1 << 20):.0f} MiB)",
            speed=1 - rates.get("slowed_s", 0.0),
            faults=rates.get("minor_faults", 0.0),
        )


def windows(answer: object, host: str, ranks: frozenset[int]) -> dict[int, Window]:
    """What the agent of ``host`` answered about some of ``ranks``. Raises ValueError if it is no such thing."""
    found = {}
    for rank, over_s, sums, cores, memory in map(partial(read, Evidence), listed(answer)):
        if rank not in ranks or over_s < _LEAST_S:
            raise ValueError(f"the agent's answer has no valid rank {rank}")
        # A rank writes its quantities once a second or less often, so they may cover another time than the looks.
        covered_s = sums.get(COVERED_S.name, 0.0)
        # A process that began anew counts from 0.
        rates = {
            row.name: max(0.0, sums[row.name]) / (covered_s if row in _OF_RANKS and covered_s >= _LEAST_S else over_s)
            for row in TABLE
            if row.name in sums
        }
        found[rank] = Window(host, over_s, rates, cores, memory)
    return found


def explain(rank: int, share: float, found: Mapping[int, Window]) -> Cause:
    """Why ``rank`` makes all others wait for this ``share`` of the time; the name is empty if it is not known."""
    own = found.get(rank)
    others = [window for other, window in found.items() if other != rank]
    if own is None or not others:
        return Cause("", "", "there is not enough evidence of the cause: its host, or all others, did not answer")
    strain = median_low([_strain(other) for other in others])
    lost = {kind: kind.lost(own, strain) - median_low([kind.lost(other, strain) for other in others]) for kind in KINDS}
    lost[_PACKETS] = _lost_packets(own, found)
    enough = {kind: seconds for kind, seconds in lost.items() if seconds >= _ENOUGH * share}
    for kind, seconds in enough.items():  # in their order
        if seconds >= _RATHER * max(value for each, value in enough.items() if each is not _COMPUTING or each is kind):
            shown_s = min(seconds, max(share, kind.lost(own, 0.0)))
            return Cause(kind.name, kind.short, kind.text(own, shown_s))
    rates = own.rates
    return Cause(
        "",
        "",
        "there is not enough evidence of the cause; of each second "
        f"its main thread ran for {_s(rates.get('run_s', 0.0))}, waited for a processor for "
        f"{_s(rates.get('delay_s', 0.0))} and slept for {_s(_asleep(own))} outside of hvdlite: "
        "hvdrun stacks shows where it is",
    )


def _strain(window: Window) -> float:
    """For how long the main thread waits for a processor, for each second that it runs.

    On a busy host all ranks do, and the more the longer they run. So whatever makes a rank run for longer costs it that
    as well.
    """
    run_s, delay_s = (window.rates.get(name, 0.0) for name in ("run_s", "delay_s"))
    return min(_MOST_STRAIN, delay_s / run_s) if run_s > 0 else 0.0


def _lost_packets(own: Window, found: Mapping[int, Window]) -> float:
    """Whichever end of a connection sends again waits, so both count: that of this host, and that of the root."""
    root = found.get(0)
    if root is None or root.host == own.host:
        return 0.0
    return min(1.0, _RESEND_S * (own.rates.get("timeouts", 0.0) + root.rates.get("timeouts", 0.0)))


# ---- what a rank loses, in seconds of each second, on a host where a second of running costs so much waiting


def _rate(name: str) -> Callable[[Window, float], float]:
    return lambda window, strain: min(1.0, window.rates.get(name, 0.0))


def _running(name: str) -> Callable[[Window, float], float]:
    return lambda window, strain: min(1.0, window.rates.get(name, 0.0) * (1 + strain))


def _queueing(window: Window, strain: float) -> float:
    """Beyond what others wait for the same time of running."""
    return min(1.0, max(0.0, window.rates.get("delay_s", 0.0) - strain * window.rates.get("run_s", 0.0)))


def _asleep(window: Window) -> float:
    """For how long the main thread slept, but for what hvdlite knows of."""
    rates = window.rates
    if "run_s" not in rates:
        return 0.0
    known = ("run_s", "delay_s", "stopped_s", "waited_s", "loading_s")
    return max(0.0, 1.0 - sum(rates.get(name, 0.0) for name in known))


def _throttled(window: Window, strain: float) -> float:
    """The kernel's own sum leaves out what a thread waits that was not running when the quota ended."""
    rates = window.rates
    waited_s = min(rates.get("delay_s", 0.0), rates.get("throttles", 0.0) * _PERIOD_S)
    return min(1.0, max(rates.get("throttled_s", 0.0), waited_s))


def _reading(window: Window, strain: float) -> float:
    return min(1.0, window.rates.get("system_s", 0.0) * (1 + strain) + _asleep(window))


def _swapping(window: Window, strain: float) -> float:
    rates = window.rates
    is_swapping = min(rates.get("swapped_in", 0.0), rates.get("major_faults", 0.0)) >= _SOME_READS
    return _reading(window, strain) if is_swapping else 0.0


def _reclaiming(window: Window, strain: float) -> float:
    """The kernel says how long it took, or only how often."""
    rates = window.rates
    if rates.get("reclaims", 0.0) < 1.0:
        return 0.0
    return min(1.0, rates.get("memory_s") or _reading(window, strain))


def _faulting(window: Window, strain: float) -> float:
    rates = window.rates
    if rates.get("major_faults", 0.0) >= _SOME_READS:
        return _reading(window, strain)
    return _running("system_s")(window, strain) if rates.get("minor_faults", 0.0) >= _MANY_FAULTS else 0.0


def _slowed(window: Window, strain: float) -> float:
    return window.rates.get("slowed_s", 0.0) * min(1.0, window.rates.get("run_s", 0.0))


def _without_gil(window: Window, strain: float) -> float:
    """Each time that the main thread begins to run it may have waited for the GIL.

    It has lost no more by that than the other threads have computed, nor than it slept or waited for a processor,
    which a thread has that waits for the GIL too.
    """
    rates = window.rates
    sleeps = rates.get("gil_sleeps", 0.0)
    if not sleeps:
        return 0.0
    late_s = rates["slices"] * rates.get("gil_late_s", 0.0) / sleeps if "slices" in rates else 0.0
    others_s = max(0.0, rates.get("cpu_s", 0.0) - rates.get("run_s", 0.0))
    return min(late_s, others_s, _asleep(window) + rates.get("delay_s", 0.0))


def _s(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{1000 * seconds:.0f} ms"


_COMPUTING: Final = _Kind(
    "computing",
    "computing",
    _running("run_s"),
    "it computes {s} of each second longer than the others; is its part of the work larger?",
)
_PACKETS: Final = _Kind(
    "packets",
    "lost packets",
    lambda window, strain: 0.0,
    "packets between its host and that of rank 0 are lost: TCP sends again what it waited {s} of each second for; look "
    "at the network (hvdrun doctor)",
)
KINDS: Final = (
    _Kind(
        "stopped",
        "stopped by a signal",
        _rate("stopped_s"),
        "a signal stopped it for {s} of each second (SIGSTOP, a debugger, a scheduler)",
    ),
    _Kind(
        "throttled",
        "throttled by its cgroup",
        _throttled,
        "its cgroup throttles it, {s} of each second{cores}; raise the limit or give the ranks fewer threads",
    ),
    _Kind(
        "swapping",
        "waiting for swapped memory",
        _swapping,
        "its host swaps, which takes it {s} of each second; give it more memory, or less to do",
    ),
    _Kind(
        "memory",
        "at its memory limit",
        _reclaiming,
        "its cgroup is at its memory limit{memory}, which takes it {s} of each second; raise it",
    ),
    _Kind(
        "steal",
        "on a processor that others share",
        _rate("steal_s"),
        "the host of its virtual machine gives its processors to others {s} of each second",
    ),
    _Kind(
        "frequency",
        "on a slow processor",
        _slowed,
        "its processor runs at {speed:.0%} of its highest frequency; look at its cooling, and the limits of its power",
    ),
    _Kind(
        "collecting",
        "collecting garbage",
        _rate("collected_s"),
        "Python collects garbage there for {s} of each second; make fewer objects, or call gc.freeze()",
    ),
    _Kind(
        "faults",
        "in page faults",
        _faulting,
        "page faults take it {s} of each second ({faults:.0f} of them); keep memory instead of allocating it anew",
    ),
    _Kind(
        "gil",
        "waiting for the GIL",
        _without_gil,
        "its main thread waits for the GIL {s} of each second, because another thread computes",
    ),
    _Kind(
        "queue",
        "waiting for a processor",
        _queueing,
        "it waits for a processor {s} of each second; others have it: look for other programs, and give the ranks "
        "fewer threads",
    ),
    _Kind(
        "loading",
        "loading data",
        _rate("loading_s"),
        "it waits for data {s} of each second; give its loader more workers, or faster storage",
    ),
    _PACKETS,
    _COMPUTING,
)
"""In their order."""
