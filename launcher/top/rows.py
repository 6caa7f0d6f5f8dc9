"""What `hvdrun top` shows of each rank, from the answers of agents, which may say anything (`..agent.status`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, NamedTuple

from ..agents.fields import count, field, figure, improper, printable, shown, text
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

    ``waits`` is the part of the time in which the program did nothing but wait for collectives, and ``for_others`` that
    in which not all ranks had come yet. For ``late_s`` in each step, or each batch if steps are not known, all others
    waited for this rank: ``late`` of the time. ``cpu`` counts cores. ``idle_s`` ago the ``last`` collective was done.
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


@dataclass(frozen=True, slots=True)
class View:
    """A job at one moment, its ranks in their order. ``slowest`` is the rank for which the others wait, if any.

    ``found`` is what was found out about the job ``found_ago_s`` ago, empty if that is nothing.
    """

    pid: int
    command: str
    ran_s: float
    found: str
    found_ago_s: float
    rows: Sequence[Row]
    slowest: int | None

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
                    answers |= {count(rank, "rank"): rank for rank in field(line, "answer", list)}
            except ValueError as error:
                problems[host] = str(error)
        alive = set(field(job, "alive", list))
        late: dict[int, _Late] = {}
        with suppress(ValueError):
            late = _late(answers.get(0))
        rows = []
        for host, ranks in field(job, "hosts", dict).items():
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
        command = " ".join(shown(word) for word in field(job, "command", list))
        found = printable(field(job, "found", str))
        found_ago_s = figure(job, "found_ago_s")
        return View(count(job, "pid"), command, figure(job, "ran_s"), found, found_ago_s, rows, slowest)

    def _row(self, rank: int, host: str, told: Mapping[str, Any], late: _Late) -> Row:
        rates = _rates(told)
        now, pid = figure(told, "at"), count(told, "pid")
        state = _STATES.get(text(told, "state"), "") if "state" in told else ""
        phase = text(told, "phase") if "phase" in told else ""
        steps_per_s = waits = for_others = bytes_per_s = late_s = None
        last, idle_s = "", None
        if rates:
            span_s = figure(rates, "span_s")
            if rates.get("steps_per_s") is not None:
                steps_per_s = figure(rates, "steps_per_s")
            waiting_s = figure(told, "waiting_s")
            waits = min(1.0, (figure(rates, "held_s") + waiting_s) / span_s)
            for_others = min(waits, (figure(rates, "others_s") + figure(told, "unagreed_s")) / span_s)
            bytes_per_s = count(rates, "nbytes") / span_s
            late_s = late.each_s
        if phase == "INSIDE":
            if (waiting_s := figure(told, "waiting_s")) >= _WORTH_A_WORD_S:
                names = ", ".join(map(repr, map(shown, field(told, "names", list))))
                state = state or f"waits {waiting_s:.0f} s{f' for {names}' if names else ''}"
            if "last" in told:
                done = field(told, "last", dict)
                tensors = count(done, "tensors")
                last = f"{text(done, 'name')}{f' +{tensors - 1}' if tensors > 1 else ''}"
                idle_s = max(0.0, now - figure(done, "at"))
        return Row(
            rank,
            host,
            pid,
            state or _PHASES.get(phase, "" if phase else "before init()"),
            steps_per_s,
            waits,
            for_others,
            bytes_per_s,
            late_s,
            late.share,
            count(told, "in_flight") if phase == "INSIDE" else None,
            self._cores(rank, pid, now, figure(told, "cpu_s")) if "cpu_s" in told else None,
            count(told, "memory_bytes") if "memory_bytes" in told else None,
            last,
            idle_s,
        )

    def _cores(self, rank: int, pid: int, now: float, cpu_s: float) -> float | None:
        before = self._used.get(rank)
        cores = None
        if before is not None and before.pid == pid:
            if now - before.at < _SHORTEST_S:
                return before.cores
            cores = max(0.0, cpu_s - before.cpu_s) / (now - before.at)
        self._used[rank] = _Use(pid, now, cpu_s, cores)
        return cores


def _rates(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """The sums of a rank and the time that they are of; empty if that is too short, or there are none."""
    rates = field(told, "rates", dict) if told.get("rates") else {}
    return rates if rates and figure(rates, "span_s") >= _SHORTEST_S else {}


def _late(told: object) -> dict[int, _Late]:
    """How late each rank is, as rank 0 knows it: in each step, or each batch if steps are not known."""
    late_s: dict[int, float] = {}
    if not isinstance(told, dict) or not (rates := _rates(told)):
        return {}
    listed, span_s = field(rates, "late_s", list), figure(rates, "span_s")
    if len(listed) > _MOST_LATE:
        raise improper("late_s")
    times = _steps(rates) or count(rates, "batches")
    for entry in listed:
        if isinstance(entry, list) and [type(each) for each in entry] == [int, float] and isfinite(entry[1]):
            late_s[entry[0]] = max(0.0, entry[1])
    if type(missing := told.get("missing")) is int:  # a wait that goes on, in one more step
        late_s[missing] = late_s.get(missing, 0.0) + figure(told, "unagreed_s")
        times += 1
    return {rank: _Late(min(1.0, seconds / span_s), seconds / max(times, 1)) for rank, seconds in late_s.items()}


def _steps(rates: Mapping[str, Any]) -> int:
    """The steps that were counted; 0 if they are not known. Their rate is no measure, as it falls in a pause."""
    if "steps" in rates:
        return count(rates, "steps")
    return round(figure(rates, "steps_per_s") * figure(rates, "span_s")) if rates.get("steps_per_s") else 0
