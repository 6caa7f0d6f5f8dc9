"""What a run of the benchmark has written."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from hvdlite.bench.measuring.report import Row


def rows_of(file: Path, printed: list[str]) -> list[Row]:
    """The rows of ``file``, one for each line that was ``printed`` below the heading."""
    rows = json.loads(file.read_text())
    assert all(list(row) == [field.name for field in fields(Row)] for row in rows)
    assert len(printed) == 2 + len(rows)
    return [Row(**row) for row in rows]
