"""Answers of agents about their ranks, as `launcher.agent.inspection` makes them."""

from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple

from ..stream.fields import Count, Figure, Short, each, integer, mapping, number, optional, record, row, short

MOST_RANKS: Final = 1 << 16
_MOST_NAMES: Final = 16
_rank: Final = integer(0, MOST_RANKS)
_count: Final = integer(0, (1 << 63) - 1)
_any_number: Final = number(-float(1 << 63))

Rank = Annotated[int, _rank]


class Evidence(NamedTuple):
    """What the ``sums`` of a rank grew by in ``over_s``, and the limits of its cgroup: cores, and bytes of memory."""

    rank: Rank
    over_s: Figure
    sums: Annotated[Mapping[str, float], mapping(_any_number)]
    cores: Annotated[float | None, optional(number())]
    memory: Annotated[float | None, optional(number())]


class Rates(NamedTuple):
    """The sums of the latest batches, over ``span_s``; ``late_s`` has for how long all others waited for a rank."""

    span_s: Figure
    batches: Figure
    moved_s: Figure
    waited_s: Figure
    unagreed_s: Figure
    nbytes: Figure
    steps: Count
    steps_per_s: Annotated[float | None, optional(number())]
    late_s: Annotated[tuple[tuple[int, float], ...], each(row(lambda *both: both, (_rank, _any_number)), MOST_RANKS)]


class Last(NamedTuple):
    """The latest batch: its first tensor, how many it had, and when it was done."""

    name: Short
    tensors: Count
    at: Figure


class Status(NamedTuple):
    """What a rank does, ``at`` a time of its host. Without a black box only what the kernel knows is there."""

    rank: Rank
    pid: Count = 0
    at: Figure = 0.0
    state: Short = ""
    cpu_s: Annotated[float | None, number()] = None
    phase: Short = ""
    quantities: Annotated[Mapping[str, float], mapping(number())] = {}
    in_flight: Annotated[int | None, _count] = None
    waiting_s: Figure = 0.0
    unagreed_s: Figure = 0.0
    missing: Annotated[int | None, optional(integer(-1, MOST_RANKS))] = None
    names: Annotated[tuple[str, ...], each(short, _MOST_NAMES)] = ()
    rates: Annotated[Rates | None, optional(record(Rates))] = None
    last: Annotated[Last | None, record(Last)] = None
