"""`hvdrun top` where no terminal is: views one after another, or one in a file."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from .lines import lines
from .rows import Viewer

_PERIOD_S: Final = 1.0


def write(viewer: Viewer, *, is_json: bool, svg: Path | None, is_once: bool) -> None:
    """Writes one view after another. The first one lacks what takes two."""
    viewer.look()
    while True:
        time.sleep(_PERIOD_S)
        view = viewer.look()
        if svg is not None:
            from .screen import export

            export(view, svg)
        elif is_json:
            click.echo(json.dumps(asdict(view)))
        else:
            click.echo("\n".join(lines(view)))
        sys.stdout.flush()
        if is_once:
            return
