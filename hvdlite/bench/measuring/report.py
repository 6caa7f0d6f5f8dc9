"""Rows of figures: a table that grows while they are measured, and JSON for programs."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np

from hvdlite.bench.measuring.systems import OWN
from hvdlite.bench.measuring.timing import Measured, Times


@dataclass(frozen=True)
class Row:
    """The figures of one system. Times in µs, bandwidths of the median in 10⁹ bytes per second (None: no transfer).

    ``processor_us`` is for one iteration on all ranks; None if it was not measured. ``blocks_us`` are the medians of
    the blocks in which systems took turns.
    """

    system: str
    ranks: int
    op: str
    dtype: str
    bytes: int
    median_us: float
    min_us: float
    algbw_GBps: float | None
    busbw_GBps: float | None
    p99_us: float
    processor_us: float | None
    blocks_us: Sequence[float]


class Ratio(NamedTuple):
    """A time over another one: the median over pairs of blocks, and its 95 % interval, None of fewer than six pairs."""

    median: float
    interval: tuple[float, float] | None


Group = Mapping[str, Row]
"""Rows that were measured together, by system."""


class Column(NamedTuple):
    """A column of the table. ``text(row, group)`` is a cell."""

    heading: str
    width: int
    text: Callable[[Row, Group], str]


class Study(NamedTuple):
    """Something to measure. Iterating over ``groups`` measures; all ranks do it alike."""

    headline: str
    columns: Sequence[Column]
    groups: Iterator[Group]


def make_row(
    system: str,
    ranks: int,
    op: str,
    dtype: str,
    nbytes: int,
    taken: Measured | Times,
    bus_factor: float | None = None,
) -> Row:
    """The row of what was ``taken``; ``bus_factor`` is busbw / algbw, None for what has no bandwidth."""
    times, processor_s, medians = (
        taken if isinstance(taken, Measured) else (taken, None, np.median(taken, keepdims=True))
    )
    median, shortest, p99 = float(np.median(times)), float(times.min()), float(np.percentile(times, 99))
    algbw = None if bus_factor is None else nbytes / median / 1e9
    busbw = None if algbw is None or bus_factor is None else algbw * bus_factor
    return Row(
        system,
        ranks,
        op,
        dtype,
        nbytes,
        _microseconds(median),
        _microseconds(shortest),
        algbw,
        busbw,
        _microseconds(p99),
        None if processor_s is None else _microseconds(processor_s),
        [_microseconds(float(each)) for each in medians],
    )


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)  # the clock counts whole nanoseconds


def ratio_of(row: Row, other: Row) -> Ratio:
    """The time of ``row`` over that of ``other``, which took turns with it.

    The interval is that of the sign test: in a sorted list of n ratios, the k-th least and the k-th largest, with the
    largest k for which fewer than k heads in n tosses of a coin are less probable than 2.5 %.
    """
    ratios = sorted(own / others for own, others in zip(row.blocks_us, other.blocks_us, strict=True))
    tosses, below, chance = len(ratios), 0, 0.0
    while (chance := chance + math.comb(tosses, below) / 2**tosses) <= 0.025:
        below += 1
    return Ratio(statistics.median(ratios), (ratios[below - 1], ratios[-below]) if below else None)


def ratio_columns(labels: Sequence[str]) -> list[Column]:
    """Columns that compare hvdlite with each of the others: the ratio of times, its interval, and its inverse."""

    def cell(other: str, text: Callable[[Ratio], str]) -> Callable[[Row, Group], str]:
        return lambda row, group: text(ratio_of(row, group[other])) if row.system in OWN else ""

    def interval(ratio: Ratio) -> str:
        return "" if ratio.interval is None else "{:.2f} to {:.2f}".format(*ratio.interval)

    return [
        column
        for other in labels
        if other not in OWN
        for column in (
            Column(f"time/{other}", 12, cell(other, lambda ratio: f"{ratio.median:.3f}")),
            Column("95 %", 13, cell(other, interval)),
            Column("speed-up", 9, cell(other, lambda ratio: f"{1 / ratio.median:.2f}×")),
        )
    ]


def heading(columns: Sequence[Column]) -> str:
    """The first line of the table, which begins with ``#`` as in nccl-tests."""
    return "#" + _line([column.heading for column in columns], columns)[1:]


def lines(group: Group, columns: Sequence[Column]) -> Iterator[str]:
    """The lines of a group, one for each system."""
    for row in group.values():
        yield _line([column.text(row, group) for column in columns], columns).rstrip()


def _line(cells: Sequence[str], columns: Sequence[Column]) -> str:
    return " ".join(cell.rjust(column.width) for cell, column in zip(cells, columns, strict=True))


def to_markdown(study: Study, notes: Iterable[str], groups: Iterable[Group]) -> str:
    """The table of a measured study, for a document."""
    cells = [[column.heading for column in study.columns], ["---"] * len(study.columns)]
    cells += [[column.text(row, group) for column in study.columns] for group in groups for row in group.values()]
    table = ["| " + " | ".join(line) + " |" for line in cells]
    return "\n".join([f"{study.headline}.", "", *(f"- {note}" for note in notes), "", *table, ""])


def to_json(rows: Iterable[Row]) -> str:
    """A JSON list with one object per line."""
    return "[\n" + ",\n".join(json.dumps(asdict(row)) for row in rows) + "\n]\n"
