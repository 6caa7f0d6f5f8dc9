"""Processes of other users, or with limits of their own, which need root."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from typing import Any, Final, TypeVar

import pytest

from tests.harness.patience import PATIENCE_S

NOBODY: Final = 65534
LARGE: Final = 2**31 + 5  # negative if read as a signed number

Result = TypeVar("Result")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")


def in_child(work: Callable[..., Result], *arguments: Any, uid: int | None = None) -> Result:
    """Runs ``work`` in a forked process, as user ``uid`` if given. Returns or raises what ``work`` does."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()

    def child() -> None:
        try:
            if uid is not None:
                become(uid)
            there.send((work(*arguments), None))
        except BaseException as error:
            there.send((None, error))

    process = context.Process(target=child)
    process.start()
    try:
        assert here.poll(PATIENCE_S), "the child gave no answer"
        result, error = here.recv()
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]
    finally:
        process.kill()  # it has answered or never will
        process.join()
        process.close()
        here.close()
        there.close()


def become(uid: int) -> None:
    """Turns this process into one of user ``uid`` for good."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
