"""The screen, without processes: signs of life in a log, and one progress bar on a terminal."""

from __future__ import annotations

import os
import pty
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hvdlite.launcher.screen import screen as module
from hvdlite.launcher.screen.output import Stream
from hvdlite.launcher.screen.screen import Screen
from tests.launcher.hvdrun import read_until


@contextmanager
def terminal(columns: int) -> Iterator[tuple[Screen, int]]:
    """A screen on a terminal of that width, and the terminal's other end."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    shown = Screen(theirs, theirs, {"NO_COLOR": "1"}, has_timestamps=False)
    yield shown, ours
    shown.close(patience_s=1.0)
    os.close(theirs)
    os.close(ours)


def test_a_log_gets_a_sign_of_life_from_a_long_progress_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    shown = Screen(log, log, {}, has_timestamps=False)
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    for second in range(12):
        now = 100.0 + second
        shown.show(3, Stream.STDERR, b"\r%d s" % second)
    shown.show(3, Stream.STDERR, b"\rdone\n")
    shown.close(patience_s=1.0)
    os.close(log)
    assert (tmp_path / "log").read_text() == "[3]<stderr>:5 s\n[3]<stderr>:10 s\n[3]<stderr>:done\n"


def test_the_lowest_rank_has_the_progress_bar() -> None:
    with terminal(columns=80) as (shown, other_end):
        shown.show(1, Stream.STDERR, b"\rone")
        shown.redraw()
        assert read_until(other_end, lambda found: found.endswith(b"one")) == b"[1]<stderr>:one"
        shown.show(0, Stream.STDERR, b"\rzero")
        shown.redraw()
        assert read_until(other_end, lambda found: found.endswith(b"zero")) == b"\r\x1b[K[0]<stderr>:zero"
        shown.show(0, Stream.STDERR, b"\n")
        shown.redraw()
        rest = read_until(other_end, lambda found: found.endswith(b"one"))
        assert rest == b"\r\x1b[K[0]<stderr>:zero\r\n[1]<stderr>:one"


def test_a_bar_fits_its_line_and_moves_no_cursor() -> None:
    with terminal(columns=20) as (shown, other_end):
        shown.show(0, Stream.STDERR, b"\r\x1b[2A" + b"#" * 100)
        shown.redraw()
        assert read_until(other_end, lambda found: found.endswith(b"#")) == b"[0]<stderr>:#######"


def test_hvdruns_own_messages_do_not_cut_a_bar() -> None:
    with terminal(columns=80) as (shown, other_end):
        shown.show(0, Stream.STDERR, b"\r50%")
        shown.redraw()
        shown.message("hvdrun: a word")
        shown.redraw()
        expected = b"[0]<stderr>:50%\r\x1b[Khvdrun: a word\r\n[0]<stderr>:50%"
        assert read_until(other_end, lambda found: len(found) >= len(expected)) == expected


@pytest.mark.parametrize("is_one", [True, False])
def test_a_tail_is_in_sight_until_others_have_written_as_much_as_a_terminal_shows(is_one: bool) -> None:
    nulls = [os.open(path, os.O_WRONLY) for path in (os.devnull, os.devnull if is_one else "/dev/full")]
    shown = Screen(nulls[0], nulls[1], {}, has_timestamps=False)
    assert not shown.is_in_sight(0)
    shown.show(0, Stream.STDOUT, b"a\nb\n")
    assert shown.is_in_sight(0) == is_one
    shown.show(0, Stream.STDERR, b"c\nd\n")
    shown.show(1, Stream.STDERR, b"more\n" * 27)
    shown.message("one")
    assert shown.is_in_sight(0)
    shown.message("one", "two")
    assert not shown.is_in_sight(0)
    assert shown.is_in_sight(1)
    shown.close(patience_s=1.0)
    for null in nulls:
        os.close(null)


def test_the_tail_of_a_rank_is_its_last_lines_of_stderr() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    shown = Screen(null, null, {}, has_timestamps=False)
    shown.show(0, Stream.STDERR, b"".join(b"%d\n" % number for number in range(100)) + b"unfinished")
    shown.show(0, Stream.STDOUT, b"other\n")
    shown.end(0)
    shown.close(patience_s=1.0)
    os.close(null)
    assert shown.tail(0) == [*map(str, range(81, 100)), "unfinished"]
    assert shown.tail(1) == []


def test_a_terminal_obeys_nothing_that_a_message_quotes() -> None:
    with terminal(columns=80) as (shown, other_end):
        shown.message("hvdrun: a\x1b]0;title\x07\tb\n\x1b[31mred\x1b[0m \udce9\r", "end")
        assert read_until(other_end, lambda found: b"end" in found) == (
            b"hvdrun: a?]0;title?     b\r\nred ??\r\nend\r\n"
        )
