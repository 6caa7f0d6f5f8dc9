"""What a worker process of `ProcessRanks` runs: one function of a test, its outcome sent over a private channel.

Started as ``python -m tests.harness.worker FD``. It dies with the process that started it, whatever happens to that.
"""

from __future__ import annotations

import ctypes
import importlib
import operator
import os
import resource
import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

from tests.harness import points

_PR_SET_PDEATHSIG = 1


def main() -> int:
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)  # the test sees the end of the channel when this process ends
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    channel: Connection[Any, Any] = Connection(descriptor)
    points.connect(channel)
    module, name, arguments = channel.recv()
    try:
        function = operator.attrgetter(name)(importlib.import_module(module))
        value = function(*arguments)
    except BaseException as error:
        ended_at = time.monotonic()
        traceback.print_exc()
        plain = {key: item for key, item in vars(error).items() if isinstance(item, (int, float, str, list, dict))}
        points.tell("failed", type(error).__name__, str(error), plain, ended_at)
        return 1
    points.tell("returned", value, time.monotonic())
    return 0


if __name__ == "__main__":
    sys.exit(main())
