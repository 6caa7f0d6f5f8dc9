"""`hvdrun top` as lines of text, and where no terminal is: views one after another, or one in a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from hvdlite.metrics.table import MEMORY_BYTES

from .rows import Row, View

COLUMNS: Final = (
    "rank",
    "host",
    "steps/s",
    "waits",
    "for others",
    "late",
    "bytes/s",
    "queue",
    "CPU",
    "memory",
    "last collective",
)
TEXT_COLUMNS: Final = (COLUMNS.index("host"), COLUMNS.index("last collective"))
"""Those whose cells begin in one column; the others end in one."""

_DISPENSABLE: Final = tuple(map(COLUMNS.index, ("memory", "queue", "bytes/s", "CPU", "host", "for others")))
"""Columns, the least important first."""
_LAST_WIDTH: Final = 24  # that the last column should have at least

_UNKNOWN: Final = "-"
_UNITS: Final = ("B", "KB", "MB", "GB", "TB", "PB")
_MOST_CHARACTERS: Final = 60


def cells(row: Row) -> list[str]:
    """The cells of one row, in the order of `COLUMNS`."""
    return [
        str(row.rank),
        row.host,
        _UNKNOWN if row.steps_per_s is None else f"{row.steps_per_s:.3g}",
        _percent(row.waits),
        _percent(row.for_others),
        _UNKNOWN if row.late_s is None else _seconds(row.late_s),
        _size(row.bytes_per_s),
        _UNKNOWN if row.in_flight is None else str(row.in_flight),
        _percent(row.cpu),
        _size(row.quantities.get(MEMORY_BYTES.name)),
        _doing(row)[:_MOST_CHARACTERS],
    ]


def heading(view: View) -> str:
    """What is shown of the job as a whole."""
    hosts = len({row.host for row in view.rows})
    parts = [f"{len(view.rows)} rank(s) on {hosts} host(s)", f"{_duration(view.ran_s)}"]
    if view.steps_per_s is not None:
        parts.append(f"{view.steps_per_s:.3g} steps/s")
    if view.slowest is not None:
        late = view.rows[view.slowest].late
        parts.append(f"all others wait for rank {view.slowest} {_percent(late)} of the time")
    return f"{view.pid}: {view.command[:_MOST_CHARACTERS]}: {', '.join(parts)}"


def found(view: View) -> str:
    """What was found out about the job last, if anything was."""
    return f"{_seconds(view.found_ago_s)} ago: {view.found}"


def lines(view: View) -> Iterator[str]:
    """The view as a table."""
    yield heading(view)
    yield from aligned([COLUMNS, *(cells(row) for row in view.rows)])
    if view.found:
        yield found(view)


def aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    """The rows of ``table``, of which the first has the names of the columns."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    for row in table:
        padded = [
            cell.ljust(width) if column in TEXT_COLUMNS else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(padded).rstrip()


def columns_for(width: int, table: Sequence[Sequence[str]]) -> list[int]:
    """The columns of ``table`` that fit into a terminal of this width."""
    columns = list(range(len(COLUMNS)))
    widths = [max(len(row[column]) for row in table) for column in columns]
    widths[-1] = min(widths[-1], _LAST_WIDTH)
    for column in _DISPENSABLE:
        if sum(widths[each] + 2 for each in columns) <= width:
            break
        columns.remove(column)
    return columns


def worst(view: View, most: int) -> tuple[list[Row], int]:
    """At most that many rows, those that are late or wait first of all, by rank; and how many are left out."""
    ranked = sorted(view.rows, key=lambda row: (not row.state, -row.late, -(row.idle_s or 0.0), row.rank))
    shown = sorted(ranked[: max(most, 1)], key=lambda row: row.rank)
    return shown, len(view.rows) - len(shown)


def _doing(row: Row) -> str:
    last = f"{row.last}, {_seconds(row.idle_s)} ago" if row.idle_s is not None else ""
    return "; ".join(part for part in (row.state, last) if part) or _UNKNOWN


def _seconds(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.0f} s"


def _percent(part: float | None) -> str:
    return _UNKNOWN if part is None else f"{100 * part:.0f} %"


def _size(count: float | None) -> str:
    if count is None:
        return _UNKNOWN
    for unit in _UNITS[:-1]:
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} {_UNITS[-1]}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
