"""Sinks: nothing waits for a reader, and what is lost is counted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hvdlite.launcher.stream.sink import Sink


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


def read_all(descriptor: int) -> bytes:
    os.set_blocking(descriptor, False)
    pieces = []
    with suppress(BlockingIOError):
        while piece := os.read(descriptor, 1 << 20):
            pieces.append(piece)
    return b"".join(pieces)


def test_what_the_reader_does_not_take_is_kept_in_order(pipe: tuple[int, int]) -> None:
    read, write = pipe
    sink = Sink(write, "pipe")
    lines = [b"%06d\n" % number for number in range(40_000)]
    for line in lines:
        sink.write(line)
    assert sink.waiting_bytes
    found = read_all(read)
    while sink.waiting_bytes:
        sink.flush()
        found += read_all(read)
    sink.close()
    assert found == b"".join(lines)
    assert sink.lost_bytes == 0


def test_the_descriptor_that_others_share_stays_blocking(pipe: tuple[int, int]) -> None:
    sink = Sink(pipe[1], "pipe")
    sink.write(b"x")
    assert os.get_blocking(pipe[1])
    sink.close()


def test_beyond_the_limit_whole_writes_are_dropped_and_counted(pipe: tuple[int, int]) -> None:
    sink = Sink(pipe[1], "pipe", limit_bytes=100_000)
    for _ in range(3000):
        sink.write(b"x" * 100)
    assert sink.lost_bytes > 0
    assert sink.lost_bytes % 100 == 0
    assert "too slow" in sink.problem
    sink.drain(patience_s=0.0)
    sink.close()
    assert len(read_all(pipe[0])) + sink.lost_bytes == 300_000


def test_a_reader_that_left_is_a_problem_and_no_exception(pipe: tuple[int, int]) -> None:
    sink = Sink(pipe[1], "pipe")
    os.close(pipe[0])
    sink.write(b"x" * 10)
    sink.write(b"x" * 5)
    assert (sink.problem, sink.lost_bytes, sink.waiting_bytes) == ("Broken pipe", 15, 0)
    sink.close()


def test_a_full_disk_is_a_problem_and_no_exception() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    sink = Sink(full, "disk")
    sink.write(b"x" * 10)
    sink.close()
    os.close(full)
    assert (sink.problem, sink.lost_bytes) == ("No space left on device", 10)


def test_a_file_is_continued_where_its_descriptor_stands(tmp_path: Path) -> None:
    path = tmp_path / "out"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, b"before\n")
    sink = Sink(descriptor, "file")
    sink.write(b"after\n")
    sink.close()
    os.close(descriptor)
    assert path.read_bytes() == b"before\nafter\n"
