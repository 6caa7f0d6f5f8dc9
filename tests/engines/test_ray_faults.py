"""Ranks of `RayExecutor` that fail, processes and nodes that are lost, and drivers that are killed."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.errors import FunctionFailed, LaunchError, WorkerFailed
from tests.engines import rays
from tests.engines.rays import digest_of_key, driver, executor, in_driver, place
from tests.harness.patience import PATIENCE_S, PROMPT_S, until
from tests.launcher.hvdrun import still_alive

pytestmark = rays.needs_ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[rays.RayCluster]:
    with rays.cluster() as cluster:
        yield cluster


def fails_on(rank: int) -> None:
    place()
    if hvd.rank() == rank:
        raise OSError("the disk is full")
    hvd.allreduce(np.ones(10), name="never complete")


def dies_on(rank: int) -> None:
    place()
    if hvd.rank() == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.allreduce(np.ones(10), name="never complete")


def returns_a_lock() -> Any:
    place()
    return threading.Lock() if hvd.rank() == 1 else None


def failures() -> dict[str, Any]:
    found: dict[str, Any] = {}
    ranks = executor(num_workers=3)
    ranks.start()
    keys = ranks.run(digest_of_key)
    for name, function, args in (("raises", fails_on, (1,)), ("lock", returns_a_lock, ())):
        try:
            ranks.run(function, args)
        except FunctionFailed as error:
            found[name] = [error.rank, str(error), getattr(error, "__notes__", [])]
        found[f"after {name}"] = ranks.run(place)
    found["keys"] = len({*keys, *ranks.run(digest_of_key)})
    import ray

    try:
        ray.get(ranks.run_remote(fails_on, (0,)))
    except FunctionFailed as error:
        found["remote"] = str(error)
    found["after remote"] = ranks.run(place)
    try:
        ranks.run(dies_on, (1,))
    except WorkerFailed as error:
        found["died"] = [error.rank, str(error)]
    try:
        ranks.run(place)
    except LaunchError as error:
        found["later"] = str(error)
    ranks.shutdown()
    ranks.start()
    found["again"] = ranks.run(place)
    ranks.shutdown()
    return found


def test_the_first_failure_is_raised_and_the_ranks_go_on_in_a_new_job(cluster: rays.RayCluster) -> None:
    found = in_driver(cluster, failures)
    placed = [[rank, 3, rank, 3, 0, 6.0] for rank in range(3)]
    assert found["raises"][0] == 1
    assert "OSError: the disk is full" in found["raises"][1]
    assert found["raises"][2] == []  # the others failed because it had left
    assert found["lock"][0] == 1
    assert "lock" in found["lock"][1]
    assert found["after raises"] == found["after lock"] == found["after remote"] == found["again"] == placed
    assert found["keys"] == 2
    assert "the function failed on rank" in found["remote"]
    assert found["died"][0] == 1
    assert "died: The actor is dead because its worker process has died" in found["died"][1]
    assert "call shutdown() and start()" in found["later"]


def wait_in_ranks(folder: str) -> None:
    """Tells the test by a file that this rank has joined, and waits for the others as long as they live."""
    place()
    Path(folder, f"{hvd.rank()}.new").write_text(str(os.getpid()))
    os.rename(f"{folder}/{hvd.rank()}.new", f"{folder}/{hvd.rank()}")
    if hvd.rank() == 0:
        hvd.allreduce(np.ones(10), name="never complete")
    threading.Event().wait()


def waits(folder: str) -> None:
    ranks = executor(num_hosts=2)
    ranks.start()
    try:
        ranks.run(wait_in_ranks, [folder])
    except (WorkerFailed, FunctionFailed) as error:
        print(json.dumps([type(error).__name__, error.rank, str(error)]), flush=True)
        os._exit(0)


def pids_of_ranks(folder: Path) -> list[int]:
    until(lambda: {"0", "1"} <= set(os.listdir(folder)))
    return [int(Path(folder, str(rank)).read_text()) for rank in range(2)]


def test_ranks_end_with_a_driver_that_is_killed(cluster: rays.RayCluster, tmp_path: Path) -> None:
    with driver(cluster, waits, str(tmp_path)) as process:
        ranks = pids_of_ranks(tmp_path)
        process.kill()
        process.wait()
        assert still_alive(ranks, PROMPT_S) == []


def test_a_lost_node_is_named(cluster: rays.RayCluster, tmp_path: Path) -> None:
    with driver(cluster, waits, str(tmp_path)) as process:
        ranks = pids_of_ranks(tmp_path)
        cluster.remove(rays.NODES[1])  # the driver is at the other
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        name, rank, text = json.loads(out.splitlines()[-1])
        assert name == "WorkerFailed"
        assert rank in (0, 1)
        assert f"rank {rank} on " in text
        assert still_alive(ranks, PROMPT_S) == []
    cluster.add(rays.NODES[1])
