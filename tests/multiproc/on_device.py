"""The code of a rank with the device of `tests.harness.device`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import hvdlite as hvd
from hvdlite.session import current
from tests.harness.device import DEVICE, DeviceArray, DevicePlane, collectives, install
from tests.harness.patience import PATIENCE_S


def begin() -> DevicePlane:
    """The plane of all ranks for the device, in a session that has begun."""
    install()
    hvd.init()
    plane = current().everyone.engine.planes[DEVICE.kind]
    assert isinstance(plane, DevicePlane)
    return plane


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def has_no_threads() -> bool:
    """True if all threads of hvdlite have ended."""
    return not any(thread.name.startswith("hvdlite-") for thread in threading.enumerate())


def ones(count: int = 4) -> DeviceArray:
    return DeviceArray.of(np.ones(count, np.float32))


def start(name: str, count: int = 4) -> Any:
    return collectives.allreduce_async(ones(count), name=name, op=hvd.Sum)


def wait_until_given(plane: DevicePlane, count: int) -> None:
    """Waits until the plane has been given ``count`` collectives."""
    until(lambda: len(plane.given) >= count)
