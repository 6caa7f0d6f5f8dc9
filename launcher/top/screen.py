"""`hvdrun top` on a terminal, with rich."""

from __future__ import annotations

import io
import os
import re
import selectors
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hvdlite.host.descriptors import write

from .lines import COLUMNS, TEXT_COLUMNS, aligned, cells, columns_for, found, heading, worst
from .rows import View, Viewer

_PERIOD_S: Final = 1.0
_OTHER_LINES: Final = 7  # besides rows
_PICTURE_WIDTH: Final = 132
_FETCHED_FONT: Final = re.compile(r"\s*@font-face \{[^}]*\}")
_SLOWEST: Final = "bold red"
_NOTABLE: Final = "yellow"


def picture(view: View, width: int, height: int) -> Group:
    """What is drawn on a terminal of this size."""
    rows, left_out = worst(view, height - _OTHER_LINES)
    texts = [cells(row) for row in rows]
    columns = columns_for(width, [COLUMNS, *texts])
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(COLUMNS[column], justify="left" if column in TEXT_COLUMNS else "right", no_wrap=True)
    for row, text in zip(rows, texts, strict=True):
        style = _SLOWEST if row.rank == view.slowest else _NOTABLE if row.state else ""
        table.add_row(*(Text(text[column]) for column in columns), style=style)
    parts: list[Table | Text] = [Text(heading(view), style="bold"), Text(""), table]
    if left_out:
        parts.append(Text(f"and {left_out} more, which are not late and do not wait for long", style="dim"))
    if view.found:
        parts.append(Text(f"\n{found(view)}", style=_SLOWEST if view.slowest is not None else ""))
    return Group(*parts)


def export(view: View, path: Path) -> None:
    """Draws ``view`` into the file ``path``, as SVG. Raises OSError."""
    width = max(len(line) for line in aligned([COLUMNS, *map(cells, view.rows)]))
    width = max(width, min(len(heading(view)), _PICTURE_WIDTH))
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(picture(view, width, _OTHER_LINES + len(view.rows)))
    drawn = console.export_svg(title="hvdrun top")
    write(path, _FETCHED_FONT.sub("", drawn).encode())  # a picture should look the same, and fetch nothing, offline too


def show(viewer: Viewer) -> None:
    """Draws until q is typed. Raises JobEnded."""
    with _keys() as keys, Live(screen=True, auto_refresh=False) as live:
        while not keys.asked_to_end(0.0):
            live.update(picture(viewer.look(), *live.console.size), refresh=True)
            if keys.asked_to_end(_PERIOD_S):
                return


class _Keys:
    """Reads single keys from the terminal ``descriptor``, or none if there is no terminal."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._selector = selectors.DefaultSelector()
        if descriptor is not None:
            self._selector.register(descriptor, selectors.EVENT_READ)

    def asked_to_end(self, timeout_s: float) -> bool:
        """True if q comes within that time; any other key only ends the wait."""
        if self._selector.select(timeout_s) and self._descriptor is not None:
            typed = os.read(self._descriptor, 64)
            return not typed or b"q" in typed.lower()
        return False


@contextmanager
def _keys() -> Iterator[_Keys]:
    if sys.stdin is None or not sys.stdin.isatty():  # None: it was closed
        yield _Keys(None)
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield _Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
