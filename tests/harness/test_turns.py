"""Turns: tests run side by side, except one that must be alone."""

from __future__ import annotations

import fcntl
import threading
import time
from pathlib import Path

from tests.harness.patience import PATIENCE_S
from tests.harness.turns import turn


def _wait_until_somebody_waits(folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with (folder / "next").open("w") as following:
            try:
                fcntl.flock(following, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
    raise AssertionError("nobody waits")


def test_who_is_to_be_alone_waits_for_the_others_and_is_the_next(tmp_path: Path) -> None:
    order: list[str] = []

    def run(name: str, is_alone: bool) -> None:
        with turn(tmp_path, is_alone):
            order.append(name)

    with turn(tmp_path, False):
        with turn(tmp_path, False):  # beside the first
            alone = threading.Thread(target=run, args=("alone", True))
            alone.start()
            _wait_until_somebody_waits(tmp_path)
            later = threading.Thread(target=run, args=("later", False))
            later.start()
        assert order == []
    for thread in (alone, later):
        thread.join(PATIENCE_S)
    assert order == ["alone", "later"]
