"""What `hvdrun top` shows of each rank, from the answers of agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from hvdlite.blackbox.times import divide, spent
from hvdlite.metrics.table import BATCHES, MOVED_S, NBYTES, TABLE, UNAGREED_S, WAITED_S, Over, Quantities

from ..agents.answers import Rates, Status
from ..monitor.client import Client
from ..stream.fields import listed, read, shown

_WORTH_A_WORD_S: Final = 1.0  # of waiting
_MARKED: Final = 0.05  # the part of the time that the others wait for a rank that is shown as the slowest
_SHORTEST_S: Final = 0.5  # of what is averaged over: of less, one batch or one tick of a clock makes any rate
_PHASES: Final = {"JOINING": "in init()", "OUTSIDE": "after shutdown()"}
_STATES: Final = {"T": "stopped", "t": "held by a debugger", "Z": "ended"}


@dataclass(frozen=True, slots=True)
class Row:
    """One rank. What is not known is None.

    ``waits`` is the part of the time in which the program only waited for collectives, and ``for_others`` the part in
    which not all ranks had come yet. For ``late_s`` in each step, or each batch if steps are not known, all others
    waited for this rank: ``late`` of the time. ``cpu`` counts cores. ``idle_s`` ago the ``last`` collective was done.
    ``quantities`` are those of `hvdlite.metrics.table`, by name; counters, since the rank's first session began.
    """

    rank: int
    host: str
    pid: int | None = None
    state: str = ""
    steps_per_s: float | None = None
    waits: float | None = None
    for_others: float | None = None
    bytes_per_s: float | None = None
    late_s: float | None = None
    late: float = 0.0
    in_flight: int | None = None
    cpu: float | None = None
    last: str = ""
    idle_s: float | None = None
    quantities: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class View:
    """A job at one moment, its ranks in their order. ``slowest`` is the rank for which the others wait, if any.

    ``found`` is what was found out about the job ``found_ago_s`` ago, empty if that is nothing. ``quantities`` are the
    values of all ranks, combined as the table says.
    """

    pid: int
    command: str
    ran_s: float
    found: str
    found_ago_s: float
    rows: Sequence[Row]
    slowest: int | None
    quantities: Mapping[str, float]

    @property
    def steps_per_s(self) -> float | None:
        """The steps of the slowest; all ranks take the same, but some may have waited for none for a while."""
        return min((row.steps_per_s for row in self.rows if row.steps_per_s is not None), default=None)


class _Late(NamedTuple):
    """For what part of the time all others waited for a rank, and for how long in each step."""

    share: float
    each_s: float


@dataclass(frozen=True, slots=True)
class _Use:
    """The processor time ``cpu_s`` that process ``pid`` had had at ``at``, when it had just used so many ``cores``."""

    pid: int
    at: float
    cpu_s: float
    cores: float | None


class Viewer:
    """Asks ``client`` for one view after another. What needs two of them, as CPU does, is there from the second on."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._used: dict[int, _Use] = {}  # by rank

    def look(self) -> View:
        """Returns the next view. Raises JobEnded, and ValueError if an answer is none."""
        job = self._client.job()
        found: dict[int, Status] = {}
        silent: dict[int, str] = {}
        invalid: dict[int, str] = {}
        for line in self._client.ask("status"):
            silent |= dict.fromkeys(line["ranks"], shown(line.get("error", "")))
            for each in listed(line.get("answer")):
                try:
                    status = read(Status, each)
                    found[status.rank] = status
                except ValueError as error:
                    if isinstance(each, dict) and isinstance(rank := each.get("rank"), int):
                        invalid[rank] = str(error)
        late = _late(found[0]) if 0 in found else {}
        rows = []
        for host, ranks in job.hosts.items():
            for rank in ranks:
                if rank in found:
                    rows.append(self._row(host, found[rank], late.get(rank, _Late(0.0, 0.0))))
                else:
                    state = silent.get(rank, "") if rank in job.alive else "ended"
                    rows.append(Row(rank, host, state=invalid.get(rank, state)))
        rows.sort(key=lambda row: row.rank)
        latest = max(rows, key=lambda row: row.late, default=None)
        slowest = latest.rank if latest is not None and latest.late > _MARKED else None
        quantities = _of_all([row.quantities for row in rows])
        command = " ".join(job.command)
        return View(job.pid, command, job.ran_s, job.found, job.found_ago_s, rows, slowest, quantities)

    def _row(self, host: str, status: Status, late: _Late) -> Row:
        state, phase = _STATES.get(status.state, ""), status.phase
        known = {row.name: status.quantities[row.name] for row in TABLE if row.name in status.quantities}
        found: dict[str, Any] = {"late": late.share, "quantities": known}
        if rates := _averaged(status):
            span_s, sums = rates.span_s, _sums(rates)
            sums[WAITED_S] += status.waiting_s  # a wait that goes on
            sums[UNAGREED_S] += status.unagreed_s
            seconds = divide(span_s, spent(sums, span_s))
            found["waits"] = (seconds.waiting_s + seconds.moving_s) / span_s
            found["for_others"] = seconds.waiting_s / span_s
            found["bytes_per_s"] = rates.nbytes / span_s
            found["late_s"] = late.each_s
            found["steps_per_s"] = rates.steps_per_s
        if phase == "INSIDE":
            found["in_flight"] = status.in_flight
            if status.waiting_s >= _WORTH_A_WORD_S:
                names = ", ".join(map(repr, status.names))
                state = state or f"waits {status.waiting_s:.0f} s{f' for {names}' if names else ''}"
        if done := status.last:
            found["last"] = f"{done.name}{f' +{done.tensors - 1}' if done.tensors > 1 else ''}"
            found["idle_s"] = max(0.0, status.at - done.at)
        if status.cpu_s is not None:
            found["cpu"] = self._cores(status, status.cpu_s)
        state = state or _PHASES.get(phase, "" if phase else "before init()")
        return Row(status.rank, host, status.pid, state, **found)

    def _cores(self, status: Status, cpu_s: float) -> float | None:
        before = self._used.get(status.rank)
        cores = None
        if before is not None and before.pid == status.pid:
            if status.at - before.at < _SHORTEST_S:
                return before.cores
            cores = max(0.0, cpu_s - before.cpu_s) / (status.at - before.at)
        self._used[status.rank] = _Use(status.pid, status.at, cpu_s, cores)
        return cores


def _of_all(ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The quantities of the job."""
    found = {}
    for row in TABLE:
        values = [each[row.name] for each in ranks if row.name in each]
        if values and row.over_ranks is not Over.NONE:
            found[row.name] = row.over_ranks.combine(values)
    return found


def _averaged(status: Status) -> Rates | None:
    """The sums of a rank, unless the time that they are of is too short."""
    return status.rates if status.rates and status.rates.span_s >= _SHORTEST_S else None


def _sums(rates: Rates) -> Quantities:
    return {row: getattr(rates, row.name) for row in (BATCHES, MOVED_S, WAITED_S, UNAGREED_S, NBYTES)}


def _late(root: Status) -> dict[int, _Late]:
    """How late each rank is, as rank 0 knows it: in each step, or each batch if steps are not known."""
    if (rates := _averaged(root)) is None:
        return {}
    late_s = {rank: max(0.0, seconds) for rank, seconds in rates.late_s}
    times = rates.steps or round(rates.batches)
    if root.missing is not None:  # a wait that goes on, in one more step
        late_s[root.missing] = late_s.get(root.missing, 0.0) + root.unagreed_s
        times += 1
    return {rank: _Late(min(1.0, s / rates.span_s), s / max(times, 1)) for rank, s in late_s.items()}
