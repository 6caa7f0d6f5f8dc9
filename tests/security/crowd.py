"""A crowd of strangers at every listener of a job, and the jobs that it calls at."""

from __future__ import annotations

import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

import hvdlite as hvd

SAID = (b"", b"\xff", b"\xff" + bytes(8) + b"\x7f\x03\x00", b"GET / HTTP/1.1\r\n", b"hvdRing4" + bytes(40))
ELSEWHERE = "127.0.0.66"  # the address of no listener
LISTENERS_EVERY_S = 0.3
REST_S = 0.01  # between two steps, which leaves the crowd most of the cores
ACCEPTS = "00010000"  # the flag of a socket that listens, in /proc/net/unix


def reduce_until_stopped(folder: Path) -> None:
    """Ranks of two hosts that reduce until ``folder`` has a file "stop", and join anew once it has "again"."""
    os.environ["HVDLITE_HOSTID"] = f"host {int(os.environ['HVDLITE_RANK']) // 2}"
    hvd.init()
    print("ready", flush=True)
    steps, is_again = 0, False
    while True:
        votes = [(folder / name).exists() and hvd.rank() == 0 for name in ("again", "stop")]
        again, stop = hvd.allreduce(np.array(votes, np.int32), name="votes", op=hvd.Sum)
        tensor = hvd.allreduce(np.full(1 << 14, hvd.rank(), np.float32), name="data", op=hvd.Sum)
        assert (tensor == sum(range(hvd.size()))).all()
        steps += 1
        time.sleep(REST_S)
        if again and not is_again:
            is_again = True
            began = time.monotonic()
            members = hvd.add_process_set([0, 2])
            took_s = time.monotonic() - began
            if members.included():
                assert hvd.allreduce(np.ones(3), op=hvd.Sum, process_set=members)[0] == 2
            hvd.remove_process_set(members)
            began = time.monotonic()
            hvd.shutdown()
            hvd.init()
            print(f"again {took_s:.3f} {time.monotonic() - began:.3f} {steps}", flush=True)
        if stop:
            break
    print("steps", steps, flush=True)


def stay_until_stopped(folder: Path) -> int:
    """Returns this rank's number once ``folder`` has a file "stop". For `hvdlite.run`."""
    while not (folder / "stop").exists():
        time.sleep(0.02)
    return int(os.environ["HVDLITE_RANK"])


class Listener(NamedTuple):
    """The address of a listening socket, and the arguments that make a socket for it."""

    family: int
    kind: int
    where: Any


def call_at(
    find: Callable[[], list[Listener]], count: int, over_s: float, source: str = ELSEWHERE, midway: Path | None = None
) -> int:
    """Makes ``count`` connections in ``over_s`` seconds to what ``find`` finds, from time to time anew.

    None is ended by this side before all have been made. Those over TCP come from the address ``source``. Half of them
    made, it makes the file ``midway``. Returns how many were.
    """
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, count + 100))
    began, made, look_at = time.monotonic(), 0, 0.0
    found: list[Listener] = []
    with ExitStack() as kept:
        for number in range(count):
            if number == count // 2 and midway is not None:
                midway.touch()
            time.sleep(max(0.0, began + over_s * number / count - time.monotonic()))
            if time.monotonic() >= look_at:
                found = find()
                look_at = time.monotonic() + LISTENERS_EVERY_S
            if not found:
                continue
            family, kind, where = found[number % len(found)]
            link = kept.enter_context(socket.socket(family, kind))
            link.settimeout(0.2)
            with suppress(OSError):
                if family == socket.AF_INET:
                    link.bind((source, 0))
                link.connect(where)
                made += 1
                link.send(SAID[number % len(SAID)])
    return made


def unix_listeners() -> list[Listener]:
    """Those of hvdlite that any user of this machine sees."""
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return [
        Listener(socket.AF_UNIX, int(row[4]), "\0" + row[7][1:].rstrip("@"))
        for row in rows
        if len(row) > 7 and row[7].startswith("@hvdlite") and row[3] == ACCEPTS
    ]


def tcp_listeners(root: int) -> list[Listener]:
    """The ports of all processes below ``root``."""
    found = set[tuple[str, int]]()
    for process in psutil.Process(root).children(recursive=True):
        with suppress(psutil.Error):
            listening = (each for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN)
            found |= {(each.laddr.ip, each.laddr.port) for each in listening}
    return [Listener(socket.AF_INET, socket.SOCK_STREAM, where) for where in sorted(found)]


if __name__ == "__main__":
    reduce_until_stopped(Path(sys.argv[1]))
