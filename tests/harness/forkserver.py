"""Processes that start in milliseconds, forked from one that has already imported the modules that they need.

Importing numpy and hvdlite takes half a second of work, and importing torch with what training needs takes three. A
`ForkServer` is a process with one thread (worker.py) that imports modules once, and then forks on request. It starts
before the tests that need it and only forks, so no test can spoil it for the next.

    this process --(descriptors)--> server --fork--> intermediate --fork--> worker, in a session of its own
                 <--(worker's id)--

The intermediate process ends at once. This process adopts orphans (`leaks.adopt_orphans`), so the worker becomes its
child, like one that it had started itself. Environment variables that act when Python or a library is loaded
come too late for the worker.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final

import psutil

from tests.harness import network
from tests.harness.patience import PATIENCE_S

ID_BYTES: Final = 4
_ROOT: Final = Path(__file__).resolve().parents[2]


class ForkServer:
    """A server that has imported ``modules`` and runs while its context is entered."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ForkServer:
        self._socket, there = socket.socketpair()
        self._socket.settimeout(PATIENCE_S)
        with there:
            worker = ["-m", "tests.harness.worker", str(there.fileno()), *self._modules]
            self._process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", *worker],
                cwd=_ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[there.fileno()],
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._socket.close()
        self._process.kill()  # it has nothing to clean up
        self._process.wait()
        self._process = None

    def fork(self, channel: int, output: int) -> psutil.Process:
        """A new worker, on this thread's network, that takes its task from ``channel`` and prints to ``output``.

        Raises RuntimeError when there is no server.
        """
        if self._process is None:
            raise RuntimeError(f"no fixture has started the fork server of {', '.join(self._modules)}")
        namespace = network.namespace()
        try:
            socket.send_fds(self._socket, [b"fork"], [channel, output, namespace])
            answer = self._socket.recv(ID_BYTES)
        except ConnectionError:
            answer = b""
        finally:
            os.close(namespace)
        if not answer:
            raise RuntimeError(f"the fork server of {', '.join(self._modules)} has ended; see what it printed")
        return psutil.Process(int.from_bytes(answer, "little"))


# The package itself imports its public names when the first is used, which would be in each rank.
PLAIN: Final = ForkServer("hvdlite.public.numpy_api", "hvdlite.public.publish", "numpy.testing", "psutil", "pytest")
# dynamo is what the first optimizer of a process imports.
TORCH: Final = ForkServer("hvdlite.torch", "pytest", "tests.harness.dynamo", "sklearn.datasets")
TENSORFLOW: Final = ForkServer("hvdlite.tensorflow", "keras", "pytest", "numpy.testing", "sklearn.datasets")
