"""``make bench-table``: the table of docs/performance.md, from the rows that `hvdlite.bench --json` has written.

A line of the table is one thing that was measured, and a column is one system. Its cells are median times.
"""

from __future__ import annotations

import json
import os
import platform
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import click

import hvdlite
from hvdlite.bench.measuring.report import Group, Ratio, Row, ratio_of
from hvdlite.bench.measuring.timing import BLOCKS

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
_BEGIN: Final = "## The table\n"
_COLUMNS: Final = {
    "hvdlite": "hvdlite",
    "registered": "hvdlite, `shared_empty`",
    "gloo": "Gloo",
    "oneccl": "oneCCL",
    "impi": "Intel MPI",
    "openmpi": "Open MPI",
    "openmpi-sm": "Open MPI, `coll_sm`",
    "mpich": "MPICH",
}
_PEERS: Final = ("oneccl", "impi", "openmpi", "openmpi-sm", "mpich")
_MIB: Final = 1 << 20


class Circumstances(NamedTuple):
    """The date and the machine of the measurement."""

    date: str
    processor: str
    cores: int
    load: float
    note: str = ""

    @classmethod
    def of_this_machine(cls, note: str) -> Circumstances:
        """Those of now. The load is the average of the last 15 minutes, in which the ranks have run."""
        date = datetime.now(UTC).date().isoformat()
        return cls(date, _processor(), os.cpu_count() or 1, os.getloadavg()[2], note)


def render(page: str, rows: Iterable[Row], measured: Circumstances) -> str:
    """``page`` with its last section, the table, made anew."""
    head, _, _ = page.partition(_BEGIN)
    groups = _groups(rows)
    lines = [
        _paragraph(
            f"Median times of one run of `make bench-table` on {measured.date}, with hvdlite {hvdlite.__version__}: "
            f"{measured.processor}, {measured.cores} cores, load average {measured.load:.1f} with the ranks"
            f"{measured.note and f'; {measured.note}'}. Tensors are float32 and reduced in place. The fastest time of "
            "each line is bold."
        ),
        "",
        *_heading(),
        *map(_line, groups),
        "",
        _paragraph(
            f"Of the same runs: hvdlite's time over another's, as the median of {BLOCKS} ratios of blocks that took "
            "turns, and its 95 % interval. *MPI* is the fastest of the line: oneCCL, Intel MPI, Open MPI, or MPICH."
        ),
        "",
        "| ranks | | hvdlite / Gloo | hvdlite / MPI | `shared_empty` / Gloo | `shared_empty` / MPI |",
        "|---|---|---|---|---|---|",
        *(_line_of_ratios(group) for group in groups if "gloo" in group),
        "",
        "Of the same runs: the time below which 99 % of the calls stay, and the processor time of a call on all ranks.",
        "",
        *_heading(),
        *(_line(group, _spread) for group in groups if _is_call(group)),
    ]
    return f"{head}{_BEGIN}\n" + "\n".join(lines) + "\n"


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 130, break_on_hyphens=False)


def _heading() -> list[str]:
    return [f"| ranks | | {' | '.join(_COLUMNS.values())} |", f"|---|---|{'---|' * len(_COLUMNS)}"]


def _is_call(group: Group) -> bool:
    return all(row.processor_us is not None and " x " not in row.op for row in group.values()) and "bare" not in group


def _line_of_ratios(group: Group) -> str:
    fastest = min((group[label] for label in _PEERS if label in group), key=lambda row: row.median_us, default=None)
    cells = []
    for row in (group.get("hvdlite"), group.get("registered")):
        cells += [
            "" if row is None or other is None else _ratio(ratio_of(row, other)) for other in (group["gloo"], fastest)
        ]
    return f"| {group['gloo'].ranks} | {_what(group, group['gloo'])} | {' | '.join(cells)} |"


def _ratio(ratio: Ratio) -> str:
    median, *ends = (f"{value:.{2 if value < 10 else 0}f}" for value in (ratio.median, *(ratio.interval or ())))
    return f"{median} ({' to '.join(ends)})" if ends else median


def _groups(rows: Iterable[Row]) -> list[Group]:
    """Rows of the same thing, in the order in which they come."""
    found: dict[tuple[int, str, str, int], dict[str, Row]] = {}
    for row in rows:
        found.setdefault((row.ranks, row.op, row.dtype, row.bytes), {})[row.system] = row
    return list(found.values())


def _median(row: Row) -> str:
    return _time(row.median_us)


def _spread(row: Row) -> str:
    assert row.processor_us is not None
    return f"{_time(row.p99_us)}, {_time(row.processor_us)}"


def _line(group: Group, text_of: Callable[[Row], str] = _median) -> str:
    compared = [row for system, row in group.items() if system in _COLUMNS]
    fastest = min(compared, key=lambda row: row.median_us)
    cells = []
    for system in _COLUMNS:
        text = text_of(group[system]) if system in group else ""
        cells.append(f"**{text}**" if system == fastest.system and text_of is _median else text)
    return f"| {fastest.ranks} | {_what(group, fastest)} | {' | '.join(cells)} |"


def _what(group: Group, row: Row) -> str:
    if "bare" in group:
        return f"training step, {_time(group['bare'].median_us)} without communication"
    op, _, count = row.op.partition(" x ")
    return f"{int(count):,} tensors of {_size(row.bytes // int(count))}" if count else f"{op} of {_size(row.bytes)}"


def _size(nbytes: int) -> str:
    return f"{nbytes // _MIB} MiB" if nbytes >= _MIB else f"{nbytes >> 10} KiB" if nbytes >= 1024 else f"{nbytes} B"


def _time(microseconds: float) -> str:
    if microseconds < 1000:
        return f"{microseconds:.{1 if microseconds < 10 else 0}f} µs"
    return f"{microseconds / 1000:,.{1 if microseconds < 100_000 else 0}f} ms"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def read(files: Sequence[Path]) -> Iterator[Row]:
    """The rows of all files, in order."""
    for file in files:
        yield from (Row(**row) for row in json.loads(file.read_text()))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--note", default="", metavar="TEXT", help="What else a reader should know about this run.")
def main(files: tuple[Path, ...], note: str) -> None:
    """Writes the rows of FILES, which hvdlite.bench --json has made, to docs/performance.md."""
    PAGE.write_text(render(PAGE.read_text(), read(files), Circumstances.of_this_machine(note)))


if __name__ == "__main__":
    main()
