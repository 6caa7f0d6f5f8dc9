"""The generated table of docs/performance.md: one line for each thing measured, one column for each system."""

from __future__ import annotations

from benchmarks.table import Circumstances, render
from hvdlite.bench.measuring.report import Row

NOW = Circumstances("2026-11-22", "A Processor", 2, 1.96, "on a Sunday")


def _row(system: str, op: str, nbytes: int, median_us: float) -> Row:
    processor_us = None if op == "train" else 2 * median_us
    blocks_us = [median_us * (1 + block / 100) for block in range(-7, 8)]
    times = median_us, median_us / 2, None, None, 4 * median_us, processor_us
    return Row(system, 2, op, "float32", nbytes, *times, blocks_us)


def test_the_last_section_of_the_page_is_made_anew() -> None:
    rows = [
        _row("hvdlite", "allreduce", 1 << 10, 151.7),
        _row("gloo", "allreduce", 1 << 10, 781.2),
        _row("openmpi", "allreduce", 1 << 10, 3.1),
        _row("hvdlite", "allreduce", 16 << 20, 2_236.0),
        _row("registered", "allreduce", 16 << 20, 1_120.0),
        _row("memcpy", "allreduce", 16 << 20, 900.0),
        _row("hvdlite", "allreduce x 1000", 1_024_000, 6_800.0),
        _row("gloo", "allreduce x 1000", 1_024_000, 1_362_000.0),
        _row("bare", "train", 108_457_216, 164_000.0),
        _row("hvdlite", "train", 108_457_216, 195_000.0),
        _row("gloo", "train", 108_457_216, 257_000.0),
    ]
    page = render("# Performance\n\nWords.\n\n## The table\n\nwhat was there before\n", rows, NOW)
    head, _, table = page.partition("## The table\n")
    assert head == "# Performance\n\nWords.\n\n"
    assert "2026-11-22" in table
    assert "A Processor, 2 cores, load average 2.0 with the ranks; on a Sunday." in " ".join(table.split())
    assert [line for line in table.splitlines() if line.startswith("| 2 |")] == [
        "| 2 | allreduce of 1 KiB | 152 µs |  | 781 µs |  |  | **3.1 µs** |  |  |",
        "| 2 | allreduce of 16 MiB | 2.2 ms | **1.1 ms** |  |  |  |  |  |  |",
        "| 2 | 1,000 tensors of 1 KiB | **6.8 ms** |  | 1,362 ms |  |  |  |  |  |",
        "| 2 | training step, 164 ms without communication | **195 ms** |  | 257 ms |  |  |  |  |  |",
        "| 2 | allreduce of 1 KiB | 0.19 (0.19 to 0.19) | 49 (49 to 49) |  |  |",
        "| 2 | 1,000 tensors of 1 KiB | 0.00 (0.00 to 0.00) |  |  |  |",
        "| 2 | training step, 164 ms without communication | 0.76 (0.76 to 0.76) |  |  |  |",
        "| 2 | allreduce of 1 KiB | 607 µs, 303 µs |  | 3.1 ms, 1.6 ms |  |  | 12 µs, 6.2 µs |  |  |",
        "| 2 | allreduce of 16 MiB | 8.9 ms, 4.5 ms | 4.5 ms, 2.2 ms |  |  |  |  |  |  |",
    ]
    assert max(map(len, [line for line in table.splitlines() if not line.startswith("|")])) <= 132
    assert render(page, rows, NOW) == page
