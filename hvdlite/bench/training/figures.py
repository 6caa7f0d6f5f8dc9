"""For all studies of training steps: the check of the weights, and the columns of the table."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hvdlite import allgather
from hvdlite.bench.measuring.report import Column, Group, Row
from hvdlite.bench.measuring.systems import Hvdlite

BATCH, TOKENS = 2, 32
"""The tokens of each rank's batch."""


def has_equal_weights(step: Callable[[], None], sum_of_weights: Callable[[], float]) -> Callable[[], bool]:
    """Returns a function that steps once, and is true if all ranks then have the same weights."""

    def is_right() -> bool:
        step()
        return bool(np.ptp(allgather(np.array([sum_of_weights()]))) == 0)

    return is_right


def overhead_us(row: Row, group: Group) -> float:
    """Returns how much longer the step of ``row`` is than the bare step, by the medians."""
    return row.median_us - group["bare"].median_us


def columns(peer: str) -> list[Column]:
    """The columns of a study that compares hvdlite with ``peer``."""

    def overhead(row: Row, group: Group) -> str:
        return f"{overhead_us(row, group) / 1e3:.1f}" if row.system in (Hvdlite.label, peer) else ""

    def ratio(row: Row, group: Group) -> str:
        others = overhead_us(group[peer], group)
        if row.system != Hvdlite.label or others <= 0:  # noise can make the bare step the slower one
            return ""
        return f"{overhead_us(row, group) / others:.3f}"

    return [
        Column("system", 10, lambda row, group: row.system),
        Column("median ms", 11, lambda row, group: f"{row.median_us / 1e3:.1f}"),
        Column("min ms", 11, lambda row, group: f"{row.min_us / 1e3:.1f}"),
        Column("overhead ms", 13, overhead),
        Column(f"overhead/{peer}", len(peer) + 11, ratio),
    ]
