"""The resources of this process, so that a test which leaves one behind fails by name.

A `Holdings` is a set of (kind, description): descendants, threads, descriptors, and shared memory that is mapped.
Threads of ZeroMQ give themselves their names when they first run, so the numbers of unnamed threads are in it too.
Orphans stay descendants, since the process adopts them (`adopt_orphans`), and on a test host its process 1 does. So all
of them belong to this process. Files in /dev/shm do not show who made them; a test host has its own /dev/shm, which
`networks` checks.

It is taken twice per test, so it is cheap, and contains only what identifies a resource. Details, such as the command
of a process or the address of a socket, are looked up for leaks only; a starting process has no command yet.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import signal
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.harness.patience import PROMPT_S

Holdings = frozenset[tuple[str, str]]

_PR_SET_CHILD_SUBREAPER = 36
_CHILDREN = "children"  # of a thread, in /proc, which kernels without CONFIG_PROC_CHILDREN lack
_NUMBER = "number of a thread"
_apart: set[int] = set()
_ZMQ_THREAD = re.compile(r"ZMQbg")


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent has died."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


@contextmanager
def apart(pid: int) -> Iterator[None]:
    """Leaves out what is below ``pid``, such as a cluster whose own processes come and go, as long as that lives."""
    _apart.add(pid)
    try:
        yield
    finally:
        _apart.remove(pid)


def holdings() -> Holdings:
    """The resources that this process holds now."""
    kinds = {
        "process": _processes(),
        "thread": _threads(),
        _NUMBER: set(os.listdir("/proc/self/task")),
        "descriptor": _descriptors(),
        "mapped memory": _mappings(),
    }
    return frozenset((kind, text) for kind, texts in kinds.items() for text in texts)


def left_since(before: Holdings, patience_s: float = PROMPT_S) -> list[str]:
    """Resources held now but not ``before``, as lines to print.

    Threads of a closed ZeroMQ context and killed processes take a moment to end: a leak is still there after
    ``patience_s`` seconds.
    """
    deadline = time.monotonic() + patience_s
    while left := {each for each in holdings() - before if each[0] != _NUMBER and not _was_unnamed(each, before)}:
        gc.collect()
        if time.monotonic() > deadline:
            break
        psutil.wait_procs(psutil.Process().children(recursive=True), timeout=0.02)
    return [f"{kind}: {text}{_command(text) if kind == 'process' else _address(text)}" for kind, text in sorted(left)]


def kill_children_since(before: Holdings) -> None:
    """Ends the processes that a failed test left behind, before the next test."""
    for child in psutil.Process().children(recursive=True):
        if ("process", f"pid {child.pid}") not in before:
            with suppress(psutil.NoSuchProcess):
                child.send_signal(signal.SIGKILL)
                child.wait(PROMPT_S)


def _was_unnamed(held: tuple[str, str], before: Holdings) -> bool:
    """True for a thread that ran ``before`` under another name."""
    kind, text = held
    return kind == "thread" and (_NUMBER, text.rpartition("(")[2].removesuffix(")")) in before


def _processes() -> set[str]:
    found = set()
    for pid in _descendants(os.getpid()):
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            else:
                found.add(f"pid {pid}")
    return found


def _descendants(pid: int) -> set[int]:
    """The processes below ``pid``. Looking at all others of the machine for that would take a millisecond."""
    if not Path("/proc/thread-self", _CHILDREN).exists():
        below = {child.pid for child in psutil.Process(pid).children(recursive=True)}
        return below - {child.pid for head in _apart & below for child in psutil.Process(head).children(recursive=True)}
    found = _listed_below(pid)
    while (again := _listed_below(pid)) != found:  # a list may lack a process if another ends while it is read
        found = again
    return found


def _listed_below(pid: int) -> set[int]:
    found: set[int] = set()
    if pid in _apart:
        return found
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(FileNotFoundError, ProcessLookupError):
                found.update(map(int, Path(f"/proc/{pid}/task/{task}/{_CHILDREN}").read_text().split()))
    return found.union(*map(_listed_below, found))


def _command(text: str) -> str:
    """The command of the process ``text``, such as ``pid 123``; empty if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return f" {' '.join(psutil.Process(int(text.removeprefix('pid '))).cmdline())[:120]}"
    return ""


def _threads() -> set[str]:
    found = {f"{thread.name} ({thread.native_id})" for thread in threading.enumerate()}
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            name = (task / "comm").read_text().strip()
            if _ZMQ_THREAD.match(name):
                found.add(f"{name} ({task.name})")
    return found


def _descriptors() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if stat.S_ISDIR(os.fstat(int(name)).st_mode) and target.startswith("/proc/"):
                continue  # the listing itself
            found.add(f"{name} -> {target}")
    return found


def _address(text: str) -> str:
    """The address of the socket at the end of ``text``, such as ``5 -> socket:[123]``; empty for anything else."""
    _, is_socket, inode = text.removesuffix("]").rpartition("socket:[")
    if not is_socket:
        return ""
    for table in ("tcp", "tcp6", "unix"):
        with suppress(FileNotFoundError):
            for line in Path("/proc/self/net", table).read_text().splitlines():
                if f" {inode} " in f"{line} ":
                    return f" {table} {' '.join(line.split()[1:3] if table != 'unix' else line.split()[7:])}"
    return ""


def _mappings() -> set[str]:
    text = Path("/proc/self/maps").read_bytes()  # a thousand lines with torch
    if b"/memfd:" not in text and b"/dev/shm/" not in text:
        return set()
    lines = text.decode().splitlines()
    shared = [line.split(maxsplit=5) for line in lines if "/memfd:" in line or "/dev/shm/" in line]
    return {f"{path} (inode {inode})" for _, _, _, _, inode, path in shared}
