"""A rank in a child process, for engines whose tasks are threads, which cannot be killed.

The call, which contains the job's key, and its outcome are pickled in two memfds that the child inherits, so neither
process waits for the other to read.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO, Final, NamedTuple

from hvdlite.host.processes import die_with_parent, processes, signal_group
from hvdlite.hosted.outcomes import Outcome, attempt, lost
from hvdlite.hosted.placement import Seat
from hvdlite.rendezvous.job import Job
from hvdlite.running.functions import dump, load
from hvdlite.scope import Scope

_LOOK_S: Final = 0.2  # between two looks at the child and at ``is_wanted``
_TERM_S: Final = 5.0  # from SIGTERM to SIGKILL

# The child finds modules where its parent does.
_BOOT: Final = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from hvdlite.hosted.child import main; main()"


class Call(NamedTuple):
    """A call on one rank. ``function`` is a pickle of a function, its arguments and keyword arguments."""

    function: bytes
    seat: Seat
    job: Job
    rendezvous: str
    environment: dict[str, str]


def call_in_child(call: Call, is_wanted: Callable[[], bool]) -> Outcome:
    """Runs ``call`` in a child process. Ends the child and its process group once ``is_wanted`` returns False.

    The child also ends with the thread that called this function.
    """
    with _memory_file("call") as request, _memory_file("outcome") as reply:
        request.write(dump(call))
        request.seek(0)
        numbers = [str(number) for number in (request.fileno(), reply.fileno(), os.getpid())]
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, json.dumps(sys.path), *numbers],
            stdin=subprocess.DEVNULL,
            pass_fds=(request.fileno(), reply.fileno()),
            start_new_session=True,
        )
        try:
            while not _has_ended(process, _LOOK_S) and is_wanted():
                pass
        finally:
            _end(process)
        reply.seek(0)
        if data := reply.read():
            outcome: Outcome = load(data)
            return outcome
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return Outcome(call.seat.rank, call.seat.host, death=_death(process.returncode), code=code)


def main() -> None:
    """The child process. Its arguments are ``sys.path``, the descriptors of call and outcome, and the parent's pid."""
    request, reply, parent = map(int, sys.argv[2:])
    del sys.argv[1:]
    die_with_parent(signal.SIGKILL, parent)
    with open(request, "rb") as file:
        call: Call = load(file.read())
    outcome = attempt(_loaded, (call.function,), {}, call.seat, call.job, call.rendezvous, call.environment)
    with open(reply, "wb") as file:
        file.write(dump(outcome))


def _loaded(function: bytes) -> Any:
    call, args, kwargs = load(function)
    return call(*args, **kwargs)


def _memory_file(name: str) -> BinaryIO:
    return open(os.memfd_create(f"hvdlite-{name}"), "w+b")


def _has_ended(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout_s)
    return process.returncode is not None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the child and what is left of its group after its own end."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        signal_group(process.pid, signum)
        scope = Scope.of(_TERM_S)
        while not _has_ended(process, _LOOK_S) or _has_members(process.pid):
            if scope.is_over:
                break
        else:
            return
    process.wait()


def _has_members(group: int) -> bool:
    """True if a process of ``group`` runs. Zombies do not count: a container may have no init that reaps them."""
    return any(each.group == group and each.state != "Z" for each in processes())


def _death(code: int) -> str:
    if code == -signal.SIGKILL:
        return lost("was ended by SIGKILL")
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return (
        f"ended with code {code}" if code else "ended without a result; the function must return, not end its process"
    )
