"""Faults made with control groups: processes that are frozen, starved of the processor, or short of memory.

Works with both versions of control groups. Groups may outlive this process; their names contain its id, and the next
process that makes a group removes those of dead processes.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

_ROOT = Path("/sys/fs/cgroup")
IS_V2 = (_ROOT / "cgroup.controllers").exists()
_PREFIX = "hvdlite-test-"
_PERIOD_US = 100_000
_numbers = itertools.count(1)


@contextmanager
def frozen(processes: Iterable[psutil.Process]) -> Iterator[None]:
    """Stops ``processes`` without a signal, like a paused virtual machine; they cannot notice, nor be killed."""
    with _group("freezer", processes) as group:
        _freeze(group, True)
        try:
            yield
        finally:
            _freeze(group, False)


@contextmanager
def starved(processes: Iterable[psutil.Process], percent: int) -> Iterator[None]:
    """Limits ``processes`` together to this share of one core."""
    with _group("cpu", processes) as group:
        quota_us = _PERIOD_US * percent // 100
        if IS_V2:
            (group / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
        else:
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        yield


@contextmanager
def short_of_memory(processes: Iterable[psutil.Process], more_bytes: int) -> Iterator[None]:
    """Lets ``processes`` allocate ``more_bytes``; beyond that the kernel kills one of them."""
    with _group("memory", processes) as group:
        (group / ("memory.max" if IS_V2 else "memory.limit_in_bytes")).write_text(str(more_bytes))
        yield


@contextmanager
def swept(name: str) -> Iterator[None]:
    """Removes the groups called ``name`` in the end, and all below, which another program makes and leaves."""
    try:
        yield
    finally:
        for top in [*_ROOT.glob(f"*/{name}"), *_ROOT.glob(name)]:
            for group, _, _ in os.walk(top, topdown=False):
                os.rmdir(group)


def missing(controller: str) -> str:
    """Returns why there are no control groups of this kind; empty if there are."""
    _sweep()
    try:
        with _group(controller, ()):
            return ""
    except OSError as error:
        return f"needs the {controller} control group, which this system does not let us make: {error}"


@contextmanager
def _group(controller: str, processes: Iterable[psutil.Process]) -> Iterator[Path]:
    parent = _ROOT if IS_V2 else _ROOT / controller
    group = parent / f"{_PREFIX}{os.getpid()}-{next(_numbers)}"
    if IS_V2 and controller != "freezer":
        (parent / "cgroup.subtree_control").write_text(f"+{controller}")
    group.mkdir()
    try:
        for process in processes:
            (group / "cgroup.procs").write_text(str(process.pid))
        yield group
    finally:
        _leave(group)


def _leave(group: Path) -> None:
    """Moves the processes of ``group`` to the group above, and removes it."""
    while pids := (group / "cgroup.procs").read_text().split():
        for pid in pids:
            with suppress(ProcessLookupError):
                (group.parent / "cgroup.procs").write_text(pid)
    group.rmdir()


def _freeze(group: Path, is_frozen: bool) -> None:
    if IS_V2:
        (group / "cgroup.freeze").write_text(str(int(is_frozen)))
    else:
        (group / "freezer.state").write_text("FROZEN" if is_frozen else "THAWED")


def _sweep() -> None:
    for parent in [_ROOT] if IS_V2 else [_ROOT / kind for kind in ("freezer", "cpu", "memory")]:
        for group in parent.glob(f"{_PREFIX}*"):
            if not psutil.pid_exists(int(group.name.removeprefix(_PREFIX).partition("-")[0])):
                with suppress(OSError):
                    _freeze(group, False)
                _leave(group)
