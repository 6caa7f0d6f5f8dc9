"""What `hvdrun top` shows of each rank, from the answers of agents, which may contain anything (`..agent.status`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Final, NamedTuple

from hvdlite.blackbox.times import divide, spent
from hvdlite.metrics.table import BATCHES, MOVED_S, NBYTES, UNAGREED_S, WAITED_S, Over, Quantities, of_ranks

from ..agents.fields import count, figure, improper, printable, shown, text
from ..agents.fields import field as checked
from ..monitor.client import Client

_WORTH_A_WORD_S: Final = 1.0  # of waiting
_MARKED: Final = 0.05  # the part of the time that the others wait for a rank that is shown as the slowest
_MOST_LATE: Final = 1 << 16
_SHORTEST_S: Final = 0.5  # of what is averaged over: of less, one batch or one tick of a clock makes any rate
_PHASES: Final = {"JOINING": "in init()", "OUTSIDE": "after shutdown()"}
_STATES: Final = {"T": "stopped", "t": "held by a debugger", "Z": "ended"}


@dataclass(frozen=True, slots=True)
class Row:
    """One rank. What is not known is None.

    ``waits`` is the part of the time in which the program only waited for collectives, and ``for_others`` the part in
    which not all ranks had come yet. For ``late_s`` in each step, or each batch if steps are not known, all others
    waited for this rank: ``late`` of the time. ``cpu`` counts cores. ``idle_s`` ago the ``last`` collective was done.
    ``quantities`` are those of `hvdlite.metrics.table`, by name, since the rank's first session began.
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
    memory_bytes: int | None = None
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
        answers: dict[int, Any] = {}
        problems: dict[str, str] = {}
        for line in self._client.ask("status"):
            host = text(line, "host")
            try:
                if "error" in line:
                    problems[host] = text(line, "error")
                else:
                    answers |= {count(rank, "rank"): rank for rank in checked(line, "answer", list)}
            except ValueError as error:
                problems[host] = str(error)
        alive = set(checked(job, "alive", list))
        late: dict[int, _Late] = {}
        with suppress(ValueError):
            late = _late(answers.get(0))
        rows = []
        for host, ranks in checked(job, "hosts", dict).items():
            for rank in ranks:
                row = Row(rank, host, state=problems.get(host, "") if rank in alive else "ended")
                if rank in answers:
                    try:
                        row = self._row(rank, host, answers[rank], late.get(rank, _Late(0.0, 0.0)))
                    except ValueError as error:
                        row = Row(rank, host, state=str(error))
                rows.append(row)
        rows.sort(key=lambda row: row.rank)
        latest = max(rows, key=lambda row: row.late, default=None)
        slowest = latest.rank if latest is not None and latest.late > _MARKED else None
        return View(
            count(job, "pid"),
            " ".join(shown(word) for word in checked(job, "command", list)),
            figure(job, "ran_s"),
            printable(checked(job, "found", str)),
            figure(job, "found_ago_s"),
            rows,
            slowest,
            _of_all([row.quantities for row in rows]),
        )

    def _row(self, rank: int, host: str, answer: Mapping[str, Any], late: _Late) -> Row:
        now, pid = figure(answer, "at"), count(answer, "pid")
        state = _STATES.get(text(answer, "state"), "") if "state" in answer else ""
        phase = text(answer, "phase") if "phase" in answer else ""
        found: dict[str, Any] = {"late": late.share, "quantities": _quantities(answer)}
        if rates := _rates(answer):
            span_s = figure(rates, "span_s")
            sums = _sums(rates)
            sums[WAITED_S] += figure(answer, "waiting_s")  # a wait that goes on
            sums[UNAGREED_S] += figure(answer, "unagreed_s")
            seconds = divide(span_s, spent(sums, span_s))
            found["waits"] = (seconds.waiting_s + seconds.moving_s) / span_s
            found["for_others"] = seconds.waiting_s / span_s
            found["bytes_per_s"] = sums[NBYTES] / span_s
            found["late_s"] = late.each_s
            if rates.get("steps_per_s") is not None:
                found["steps_per_s"] = figure(rates, "steps_per_s")
        if phase == "INSIDE":
            found["in_flight"] = count(answer, "in_flight")
            if (waiting_s := figure(answer, "waiting_s")) >= _WORTH_A_WORD_S:
                names = ", ".join(map(repr, map(shown, checked(answer, "names", list))))
                state = state or f"waits {waiting_s:.0f} s{f' for {names}' if names else ''}"
            if "last" in answer:
                done = checked(answer, "last", dict)
                tensors = count(done, "tensors")
                found["last"] = f"{text(done, 'name')}{f' +{tensors - 1}' if tensors > 1 else ''}"
                found["idle_s"] = max(0.0, now - figure(done, "at"))
        if "cpu_s" in answer:
            found["cpu"] = self._cores(rank, pid, now, figure(answer, "cpu_s"))
        if "memory_bytes" in answer:
            found["memory_bytes"] = count(answer, "memory_bytes")
        return Row(rank, host, pid, state or _PHASES.get(phase, "" if phase else "before init()"), **found)

    def _cores(self, rank: int, pid: int, now: float, cpu_s: float) -> float | None:
        before = self._used.get(rank)
        cores = None
        if before is not None and before.pid == pid:
            if now - before.at < _SHORTEST_S:
                return before.cores
            cores = max(0.0, cpu_s - before.cpu_s) / (now - before.at)
        self._used[rank] = _Use(pid, now, cpu_s, cores)
        return cores


def _quantities(answer: Mapping[str, Any]) -> dict[str, float]:
    values = checked(answer, "quantities", dict) if "quantities" in answer else {}
    return {row.name: figure(values, row.name) for row in of_ranks() if row.name in values}


def _of_all(ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The quantities of the job."""
    found = {}
    for row in of_ranks():
        values = [each[row.name] for each in ranks if row.name in each]
        if values and row.over_ranks is not Over.NONE:
            found[row.name] = row.over_ranks.combine(values)
    return found


def _rates(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The sums of a rank and the time that they are of; empty if that is too short, or there are none."""
    rates = checked(answer, "rates", dict) if answer.get("rates") else {}
    return rates if rates and figure(rates, "span_s") >= _SHORTEST_S else {}


def _sums(rates: Mapping[str, Any]) -> Quantities:
    return {row: figure(rates, row.name) for row in (BATCHES, MOVED_S, WAITED_S, UNAGREED_S, NBYTES)}


def _late(answer: object) -> dict[int, _Late]:
    """How late each rank is, as rank 0 knows it: in each step, or each batch if steps are not known."""
    late_s: dict[int, float] = {}
    if not isinstance(answer, dict) or not (rates := _rates(answer)):
        return {}
    listed, span_s = checked(rates, "late_s", list), figure(rates, "span_s")
    if len(listed) > _MOST_LATE:
        raise improper("late_s")
    times = count(rates, "steps") or round(_sums(rates)[BATCHES])
    for entry in listed:
        if isinstance(entry, list) and [type(each) for each in entry] == [int, float] and isfinite(entry[1]):
            late_s[entry[0]] = max(0.0, entry[1])
    if type(missing := answer.get("missing")) is int:  # a wait that goes on, in one more step
        late_s[missing] = late_s.get(missing, 0.0) + figure(answer, "unagreed_s")
        times += 1
    return {rank: _Late(min(1.0, seconds / span_s), seconds / max(times, 1)) for rank, seconds in late_s.items()}
