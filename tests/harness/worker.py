"""The process behind a `ForkServer`, and its forks: workers that run one function of a test each.

Started as ``python -m tests.harness.worker FD MODULE...``. A worker reports over a private channel
how its function ended, and dies with the process that it works for.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import operator
import os
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from hvdlite import session
from tests.harness import network, points
from tests.harness.forkserver import ID_BYTES

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Serves forks until the other end closes; in a fork, does its work. Returns the exit code."""
    server = socket.socket(fileno=int(sys.argv[1]))
    server.set_inheritable(False)
    for module in sys.argv[2:]:
        importlib.import_module(module)
    threads = [Path(task, "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    if len(threads) > 1:
        raise RuntimeError(f"importing {sys.argv[2:]} starts threads ({threads}); a fork would have none of them")
    gc.collect()
    gc.freeze()  # a fork's final collection would touch every object and so copy all of this memory
    while True:
        _, descriptors, _, _ = socket.recv_fds(server, ID_BYTES, 3)
        if not descriptors:
            return 0
        worker = _fork()
        if not worker:
            server.close()
            code, tears_down = work(*descriptors)
            if not tears_down:
                leave(code)
            return code
        for descriptor in descriptors:
            os.close(descriptor)
        server.sendall(worker.to_bytes(ID_BYTES, "little"))


def _fork() -> int:
    """Returns 0 in a new process with its own session, and its id in this one, once the process between is gone."""
    reader, writer = os.pipe()
    intermediate = os.fork()
    if intermediate:
        worker = int.from_bytes(os.read(reader, ID_BYTES), "little")
        os.waitpid(intermediate, 0)
    else:
        if os.fork():
            os._exit(0)
        worker = 0
        os.setsid()
        os.write(writer, os.getpid().to_bytes(ID_BYTES, "little"))
    os.close(reader)
    os.close(writer)
    return worker


def work(descriptor: int, output: int, namespace: int) -> tuple[int, bool]:
    """Runs the function that the channel names, with its environment.

    Returns the exit code, and whether this process is to tear its interpreter down. A rank that has not shut down does,
    as only that sends what its sockets still hold.
    """
    network.enter(namespace)
    os.close(namespace)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    channel: Connection[Any, Any] = Connection(descriptor)
    environment, module, name, arguments, tears_down = channel.recv()  # after this process has got its new parent
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    points.connect(channel)
    os.environ.clear()
    os.environ.update(environment)
    try:
        function = operator.attrgetter(name)(importlib.import_module(module))
        value = function(*arguments)
    except BaseException as error:
        ended_at = time.monotonic()
        traceback.print_exc()
        plain = {key: item for key, item in vars(error).items() if isinstance(item, (int, float, str, list, dict))}
        points.tell("failed", type(error).__name__, str(error), plain, ended_at)
        return 1, True
    points.tell("returned", value, time.monotonic())
    return 0, tears_down or not (session._begun and session._current is None)


def leave(code: int) -> NoReturn:
    """Ends this process once its threads and exit handlers have finished.

    Tearing down the interpreter copies the memory shared with the server: 20 ms of work, and with torch 350.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
