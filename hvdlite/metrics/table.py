"""The table of quantities: one row for each number that hvdlite keeps about a rank while it runs.

To add a quantity, add a row at the end of the rows of a rank, and return its value in the function that the row's
`Reader` names. What happens to batches is counted in `Observer.done` and `Observer.called`, or by the coordinator,
which has the observer. Counters of data planes are not here, but in `Group.statistics`.

The rank writes its quantities to its black box once a second and at its end, and its agent reads them there. The growth
of counters explains slow ranks, and ``hvdrun top --json`` shows what a rank counts. Agents import this module, so it
needs the standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean
from typing import Final


class Reader(Enum):
    """The function in which a quantity is read."""

    GROUP = "hvdlite.engine.observer.Observer.quantities"
    """In each group of a rank. The values of all its groups are added up."""
    BATCHES = "hvdlite.blackbox.times.add_up"
    """In the latest batches, which a black box records, because a sum would cost every batch."""
    SESSION = "hvdlite.observe.account.Account.quantities"
    """In the session of a rank."""
    PYTHON = "hvdlite.observe.interpreter.Interpreter.quantities"
    """In the Python of a rank."""
    PROCESS = "hvdlite.host.counters.ProcessCounters.read"
    """By the agent, which asks the kernel about the rank's process; gauges when somebody asks the agent."""
    HOST = "hvdlite.host.counters.HostCounters.read"
    """By the agent, which asks the kernel about its host."""


class Over(Enum):
    """How the values of several ranks become one value of the job."""

    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    NONE = "none"
    """The value has a meaning for one rank only."""

    def combine(self, values: Sequence[float]) -> float:
        """The value of the job."""
        match self:
            case Over.SUM:
                return sum(values)
            case Over.MEAN:
                return fmean(values)
            case Over.MAX:
                return max(values)
            case Over.NONE:
                raise ValueError("values of several ranks have no common value")


@dataclass(frozen=True, eq=False, slots=True)
class Quantity:
    """One row. A counter only grows, also from one session of a process to the next; a gauge may also fall.

    ``slot`` is the place of the row in the table, and of its value in a black box.
    """

    slot: int
    name: str
    unit: str
    is_counter: bool
    reader: Reader
    over_ranks: Over
    meaning: str


Quantities = dict[Quantity, float]
"""Values, by row."""

TABLE: Final[list[Quantity]] = []


def counter(name: str, unit: str, reader: Reader, over_ranks: Over, meaning: str) -> Quantity:
    """Adds the row of a counter."""
    TABLE.append(row := Quantity(len(TABLE), name, unit, True, reader, over_ranks, meaning))
    return row


def gauge(name: str, unit: str, reader: Reader, over_ranks: Over, meaning: str) -> Quantity:
    """Adds the row of a gauge."""
    TABLE.append(row := Quantity(len(TABLE), name, unit, False, reader, over_ranks, meaning))
    return row


def read_by(*readers: Reader) -> Iterable[Quantity]:
    """The rows that are read in one of these places."""
    return (row for row in TABLE if row.reader in readers)


def of_ranks() -> Iterable[Quantity]:
    """The rows that a rank itself reads and writes to its black box."""
    return read_by(Reader.GROUP, Reader.SESSION, Reader.PYTHON)


def by_name(quantities: Quantities) -> dict[str, float]:
    """The values as they stand in JSON."""
    return {row.name: value for row, value in quantities.items()}


# ---- batches and waits

BATCHES: Final = counter("batches", "", Reader.GROUP, Over.MAX, "batches that have run or failed")
MOVED_S: Final = counter("moved_s", "s", Reader.GROUP, Over.MEAN, "the bytes of batches moved")
WAITED_S: Final = counter("waited_s", "s", Reader.GROUP, Over.MEAN, "some thread only waited for collectives")
UNAGREED_S: Final = counter(
    "unagreed_s", "s", Reader.GROUP, Over.MEAN, "part of waited_s: not all ranks had submitted the batch yet"
)

# ---- the session

LOADING_S: Final = counter("loading_s", "s", Reader.SESSION, Over.MEAN, "the training loop waited for data")
EARLIER_S: Final = counter("earlier_s", "s", Reader.SESSION, Over.NONE, "the sessions before the latest one lasted")
JOINED_AT: Final = gauge(
    "joined_at", "s", Reader.SESSION, Over.NONE, "the latest session began, on the host's monotonic clock"
)
LEFT_AT: Final = gauge("left_at", "s", Reader.SESSION, Over.NONE, "it ended; 0 until then")
LATEST_RANK: Final = gauge(
    "latest_rank", "", Reader.SESSION, Over.NONE, "the rank for which the others waited longest, if this is a root"
)
LATEST_RANK_S: Final = gauge(
    "latest_rank_s", "s", Reader.SESSION, Over.NONE, "the time for which they waited for it, added up over them"
)

# ---- Python

COLLECTED_S: Final = counter("collected_s", "s", Reader.PYTHON, Over.MEAN, "the garbage collector ran")
GIL_LATE_S: Final = counter("gil_late_s", "s", Reader.PYTHON, Over.MEAN, "a thread that had slept waited for the GIL")
GIL_SLEEPS: Final = counter("gil_sleeps", "", Reader.PYTHON, Over.SUM, "times that it slept")
COVERED_S: Final = counter("covered_s", "s", Reader.PYTHON, Over.NONE, "the time of which the rank has written this")

# ---- bytes and tensors

IN_FLIGHT: Final = gauge("in_flight", "", Reader.GROUP, Over.MAX, "tensors that are submitted and not done")
NBYTES: Final = counter("nbytes", "B", Reader.BATCHES, Over.SUM, "bytes of the tensors that this rank has submitted")

# New rows of a rank go here: the order is the black box's, and a rank and its agent may have different versions.

# ---- the process, its control groups and its host, as the kernel counts

for _name, _unit, _reader, _meaning in (
    ("run_s", "s", Reader.PROCESS, "its main thread ran"),
    ("delay_s", "s", Reader.PROCESS, "its main thread waited for a processor"),
    ("slices", "", Reader.PROCESS, "times that its main thread began to run"),
    ("cpu_s", "s", Reader.PROCESS, "processor time of all its threads"),
    ("system_s", "s", Reader.PROCESS, "part of cpu_s: the kernel worked for it"),
    ("minor_faults", "", Reader.PROCESS, "page faults"),
    ("major_faults", "", Reader.PROCESS, "page faults for which something had to be read"),
    ("throttled_s", "s", Reader.PROCESS, "its control groups had used up their processor time"),
    ("throttles", "", Reader.PROCESS, "times that they had"),
    ("reclaims", "", Reader.PROCESS, "times that its control groups reached their memory limit"),
    ("memory_s", "s", Reader.PROCESS, "it lost this time because of that"),
    ("stopped_s", "s", Reader.PROCESS, "a signal had stopped it"),
    ("slowed_s", "s", Reader.PROCESS, "its processor lacked this much of its highest frequency, in seconds of that"),
    ("swapped_in", "", Reader.HOST, "pages that were read back from swap"),
    ("timeouts", "", Reader.HOST, "times that TCP got no answer in time"),
    ("resent", "", Reader.HOST, "segments that TCP sent again"),
    ("steal_s", "s", Reader.HOST, "the host of this virtual machine gave its processors to others"),
):
    counter(_name, _unit, _reader, Over.SUM, _meaning)

MEMORY_BYTES: Final = gauge("memory_bytes", "B", Reader.PROCESS, Over.SUM, "memory that it has mapped and touched")
