"""The figures that a folder has, beside what hvdlite aims at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MIB = 1 << 20


def table(folder: Path) -> str:
    """A table in Markdown. What was not measured says so; nothing fails."""
    lines = ["| what | hvdlite | torch over NCCL | ratio | target |", "|---|---|---|---|---|"]
    rows = [*_bandwidths(folder), *_calls(folder), *_models(folder), *_fusions(folder), *_parts(folder)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _rows(folder: Path, name: str) -> list[dict[str, Any]]:
    file = folder / f"{name}.json"
    found: list[dict[str, Any]] = json.loads(file.read_text()) if file.is_file() else []
    return found


def _pairs(folder: Path, name: str) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """The rows of hvdlite, each with torch's of the same size."""
    rows = _rows(folder, name)
    for own in rows:
        if own["system"] == "hvdlite":
            key = own["bytes"]
            yield own, next((row for row in rows if (row["system"], row["bytes"]) == ("nccl", key)), None)


def _bandwidths(folder: Path) -> Iterator[tuple[str, ...]]:
    for name in ("bandwidth", "staged"):
        files = sorted(folder.glob(f"{name}*.json"))
        pairs = sorted(
            (pair for file in files for pair in _pairs(folder, file.stem)), key=lambda pair: pair[0]["bytes"]
        )
        for own, other in pairs:
            target = "≥ 0.98" if name == "bandwidth" and own["bytes"] >= MIB else ""
            cells = [f"{row['busbw_GBps']:.3f} GB/s" if row else "not measured" for row in (own, other)]
            ratio = f"{other['median_us'] / own['median_us']:.3f}" if other else ""
            yield f"{name}, {own['bytes']:,} bytes", *cells, ratio, target
        if not pairs:
            yield name, "not measured", "", "", "≥ 0.98" if name == "bandwidth" else ""


def _times(folder: Path, name: str, target: str) -> Iterator[tuple[str, ...]]:
    pairs = list(_pairs(folder, name))
    for own, other in pairs:
        cells = [f"{row['median_us'] / 1e3:.3f} ms" if row else "not measured" for row in (own, other)]
        yield name, *cells, f"{own['median_us'] / other['median_us']:.3f}" if other else "", target
    if not pairs:
        yield name, "not measured", "", "", target


def _calls(folder: Path) -> Iterator[tuple[str, ...]]:
    yield from _times(folder, "calls", "≤ 1.2")


def _models(folder: Path) -> Iterator[tuple[str, ...]]:
    for model in ("resnet50", "transformer"):
        for precision in ("float32", "bfloat16"):
            yield from _times(folder, f"{model}-{precision}", "≤ 1")


def _fusions(folder: Path) -> Iterator[tuple[str, ...]]:
    for file in sorted(folder.glob("fusion-*.json")):
        times = {row["system"]: row["median_us"] for row in json.loads(file.read_text())}
        told = ", ".join(f"{system} {time:.0f} µs" for system, time in times.items())
        yield file.stem, told, "", "", "hvdlite is the faster one"


def _parts(folder: Path) -> Iterator[tuple[str, ...]]:
    for name, target in (("parts", "reported"), ("trace", "all submits inside backward")):
        for row in _rows(folder, name):
            told = f" ({row['op']})" if name == "trace" and row["op"] else ""
            yield f"{name}, {row['bytes']:,} bytes: {row['system']}", f"{row['median_us']:.0f} µs{told}", "", "", target
