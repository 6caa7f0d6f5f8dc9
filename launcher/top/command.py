"""The command ``hvdrun top``."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ..options.values import PathName

if TYPE_CHECKING:
    from .rows import Viewer

_PERIOD_S: Final = 1.0
_ADVICE: Final = "hvdrun: for a view that stays in place: pip install 'hvdlite[observe]'"


@click.command(
    "top",
    short_help="Show what each rank of a running job does.",
    epilog="waits: the part of the time in which the program did nothing but wait for collectives; for others: that "
    "before all ranks had come. late: for how long all others waited for this rank in each step. queue: tensors "
    "submitted and not done. A step is counted by the name of a tensor that comes again.",
)
@click.argument("pid", type=int, required=False)
@click.option("--once", "is_once", is_flag=True, help="Show one view, and end.")
@click.option("--json", "is_json", is_flag=True, help="Write JSON instead of text, one line a view.")
@click.option("--svg", "svg", type=PathName(dir_okay=False, path_type=Path), help="Draw one view into this file.")
def top(pid: int | None, is_once: bool, is_json: bool, svg: Path | None) -> None:
    """Show what each rank of a running job does: how fast, who waits for whom, on which collective.

    PID is the process of its hvdrun, on this host; it may be left out if you run one job here. On a terminal the view
    is drawn anew every second, until q is typed or the job ends.
    """
    # Imported here, for no job needs them, and every one would start later.
    from ..monitor.choosing import chosen
    from ..monitor.client import JobEnded
    from .rows import Viewer

    has_rich = find_spec("rich") is not None
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if svg is not None and not has_rich:
        raise click.UsageError("--svg needs rich: pip install 'hvdlite[observe]'.")
    with chosen(pid) as client:
        viewer = Viewer(client)
        try:
            if is_once or is_json or svg is not None or not is_terminal or not has_rich:
                if is_terminal and not (is_once or is_json or svg is not None):
                    click.echo(_ADVICE, err=True)
                _write(viewer, is_json=is_json, svg=svg, is_once=is_once or svg is not None)
            else:
                from .screen import show

                show(viewer)
        except JobEnded as ended:
            click.echo(f"hvdrun: {ended}", err=True)
        except KeyboardInterrupt:
            pass  # the other way to end it


def _write(viewer: Viewer, *, is_json: bool, svg: Path | None, is_once: bool) -> None:
    """Writes one view after another. The first one is not shown: it lacks what takes two."""
    from .lines import lines

    viewer.look()
    while True:
        time.sleep(_PERIOD_S)
        view = viewer.look()
        if svg is not None:
            from .screen import export

            export(view, svg)
        else:
            click.echo(json.dumps(asdict(view)) if is_json else "\n".join(lines(view)))
        sys.stdout.flush()
        if is_once:
            return
