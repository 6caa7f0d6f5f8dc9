"""Named points in a rank's function, where the test can observe it or interfere.

In a worker process they talk to the test over the worker's private channel.
"""

from __future__ import annotations

import threading
import time
from multiprocessing.connection import Connection
from typing import Any

_channel: Connection[Any, Any] | None = None
_lock = threading.Lock()


def connect(channel: Connection[Any, Any]) -> None:
    """Sets the ``channel`` to the test. The worker calls it once."""
    global _channel
    _channel = channel


def tell(*message: Any) -> None:
    """Sends one message to the test."""
    if _channel is None:
        raise RuntimeError("only the function of process_ranks can reach a point")
    with _lock:
        _channel.send(message)


def reached(point: str) -> None:
    """Tells the test that this rank is at ``point``, and goes on."""
    tell("reached", point, time.monotonic())


def pause_at(point: str) -> None:
    """Tells the test that this rank is at ``point`` and waits for `ProcessRanks.release`. One thread of a rank only."""
    reached(point)
    assert _channel is not None
    _channel.recv()
