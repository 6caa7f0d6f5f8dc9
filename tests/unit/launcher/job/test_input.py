"""hvdrun's stdin, where the shell may move hvdrun between background and foreground at any instant."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from hvdlite.launcher.job.input import Input
from hvdlite.launcher.stream.loop import Timer


class Loop:
    """Holds what is watched, and the timer, for the test to call."""

    def __init__(self) -> None:
        self.handler: Callable[[], None] | None = None
        self.timer = Timer(set(), lambda: None)

    def at(self, when: None, call: Callable[[], None]) -> Timer:
        self.timer = Timer(set(), call)
        return self.timer

    def watch(self, descriptor: int, handler: Callable[[], None]) -> None:
        self.handler = handler

    def unwatch(self, descriptor: int) -> None:
        self.handler = None


def begin(terminal: int) -> tuple[Input, Loop, list[tuple[int, bytes]]]:
    """Forwards from ``terminal`` to rank 0, with what that was sent."""
    loop, sent = Loop(), list[tuple[int, bytes]]()
    forwarded = Input(loop, terminal, [0], lambda rank, data: sent.append((rank, data)), lambda: None)  # type: ignore[arg-type]
    forwarded.begin()
    return forwarded, loop, sent


def refuse(*_: int) -> bytes:
    raise OSError(errno.EIO, "in the background")


def test_a_read_in_the_background_is_no_end_although_the_foreground_comes_before_the_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, terminal = os.openpty()
    forwarded, loop, sent = begin(terminal)
    monkeypatch.setattr("os.tcgetpgrp", lambda _: os.getpgrp())  # by the time of any look
    with monkeypatch.context() as background:
        background.setattr("os.read", refuse)
        assert loop.handler is not None
        loop.handler()
    assert not sent
    assert loop.handler is None
    assert loop.timer.is_set
    os.write(ours, b"a line\n")
    loop.timer.fire()
    assert loop.handler is not None
    loop.handler()
    assert sent == [(0, b"a line\n")]
    forwarded.close()
    os.close(ours)
    os.close(terminal)


def test_a_terminal_that_is_gone_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, terminal = os.openpty()
    forwarded, loop, sent = begin(terminal)
    os.close(ours)
    monkeypatch.setattr("os.read", refuse)
    assert loop.handler is not None
    loop.handler()
    assert sent == [(0, b"")]
    assert forwarded.is_over
    os.close(terminal)
