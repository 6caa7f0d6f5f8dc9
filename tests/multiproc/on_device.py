"""The code of a rank with the device of `tests.harness.device`."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import hvdlite as hvd
from hvdlite.session import current
from tests.harness.device import DEVICE, DeviceArray, DevicePlane, collectives, install
from tests.harness.patience import until
from tests.multiproc import calls, oracle
from tests.multiproc.test_grid import KINDS, grid

_EVERY = 23  # not a divisor of the number of ops, dtypes or shapes


def begin() -> DevicePlane:
    """The plane of all ranks for the device, in a session that has begun."""
    install()
    hvd.init()
    plane = current().everyone.planes[DEVICE.kind]
    assert isinstance(plane, DevicePlane)
    return plane


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


def every_collective(
    front_end: Any, of: Callable[[calls.Array], Any], is_taken: Callable[[calls.Call], bool] = lambda call: True
) -> list[str]:
    """Makes every kind of call in every form, all of a set at once, each beside the same one over arrays of the host.

    ``of`` copies an array to the device, for ``front_end``, which gets the calls that it ``is_taken`` to make. Returns
    what was wrong.
    """
    edge = hvd.add_process_set([0, hvd.size() - 1]) if hvd.size() > 2 else hvd.global_process_set
    failures = []
    for process_set in (hvd.global_process_set, edge):
        ranks = list(process_set.ranks or ())
        if hvd.rank() not in ranks:
            continue
        member, size = ranks.index(hvd.rank()), len(ranks)
        for kind, mode in itertools.product(KINDS, ("", "_", "_async", "_async_")):
            if mode.endswith("_") and kind not in calls.IN_PLACE:
                continue
            started = []
            for call in itertools.islice(grid(kind, size), 0, None, _EVERY):
                if call.op == hvd.Adasum or not calls.takes_part(call, member, size):
                    continue
                given = calls.tensors(call, member, size)
                for passed, api in (([of(each) for each in given], front_end), (given, hvd)):
                    if api is hvd or is_taken(call):
                        name = f"{call} {api is hvd}"
                        value = calls.start(call, name, mode, passed, ranks, process_set, api)
                        started.append((call, value, api))
            for call, value, api in started:
                result = hvd.synchronize(value) if "async" in mode else value
                wanted = oracle.expected(call, member, size)
                try:
                    oracle.assert_results(call, result if api is hvd else _on_the_host(result), wanted)
                except AssertionError as error:
                    failures.append(f"rank {hvd.rank()} in {ranks}: {mode}: {call}: {error}")
    return failures


def _on_the_host(result: Any) -> Any:
    if isinstance(result, (list, tuple)):
        return [_on_the_host(each) for each in result]
    return result if result is None else result.on_device().copy()
