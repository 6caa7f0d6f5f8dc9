"""Ranks of `RayExecutor` that fail, processes and nodes that are lost, and drivers that are killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.errors import FunctionFailed, LaunchError, WorkerFailed
from tests.engines import rays
from tests.engines.rays import digest_of_key, driver, executor, in_driver, place
from tests.harness.patience import LAST_RESORTS, NEVER_SILENT, PROMPT_S, until
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
    assert found["died"][1].endswith("Then call shutdown() and start(), from your last checkpoint")
    assert "call shutdown() and start()" in found["later"]


def note(folder: str, name: str, **fields: Any) -> None:
    """Tells the test something of this rank, in one piece."""
    new = Path(folder, f"new {name}.{hvd.rank()}")
    new.write_text(json.dumps({"pid": os.getpid(), **fields}))
    new.rename(Path(folder, f"{name}.{hvd.rank()}"))


def notes(folder: Path, name: str) -> dict[int, dict[str, Any]]:
    """What was noted by ranks."""
    return {int(path.suffix[1:]): json.loads(path.read_text()) for path in folder.glob(f"{name}.[0-9]*")}


def wait_in_ranks(folder: str) -> None:
    """Waits for sums that no other rank adds to, and notes what ended that."""
    place()
    note(folder, "ready", node=os.environ["HVDLITE_ADDRESS"])
    try:
        hvd.allreduce(np.ones(10), name=f"of rank {hvd.rank()} alone")
    except hvd.HorovodInternalError as error:
        note(folder, "ended", error=type(error).__name__, rank=getattr(error, "rank", None), text=str(error))
        raise


def waits(folder: str, workers_per_host: str, settings: str) -> dict[str, Any]:
    ranks = executor(num_hosts=2, num_workers_per_host=int(workers_per_host))
    ranks.start(extra_env_vars=json.loads(settings))
    try:
        return {"results": ranks.run(wait_in_ranks, [folder])}
    except LaunchError as error:
        return {"error": type(error).__name__, "rank": getattr(error, "rank", None), "text": str(error)}
    finally:
        ranks.shutdown()


@contextmanager
def waiting(
    cluster: rays.RayCluster, folder: Path, workers_per_host: int, **settings: str
) -> Iterator[tuple[subprocess.Popen[str], dict[int, dict[str, Any]]]]:
    """A driver whose ranks wait for each other, and what they noted of themselves."""
    settings = {**LAST_RESORTS, **settings}
    with driver(cluster, waits, str(folder), str(workers_per_host), json.dumps(settings)) as process:
        until(lambda: len(notes(folder, "ready")) == 2 * workers_per_host or process.poll() is not None)
        yield process, notes(folder, "ready")


def pids(ranks: dict[int, dict[str, Any]]) -> list[int]:
    return [rank["pid"] for rank in ranks.values()]


def loses(process: subprocess.Popen[str], folder: Path, gone: set[int], ranks: set[int], cause: str) -> None:
    """Fails unless the other ``ranks`` lose one that is ``gone``, for this ``cause``, and the driver hears of one."""
    told = rays.result_of(process)
    assert told.get("error") == "WorkerFailed", told
    assert told["rank"] in gone
    assert re.match(rf"rank {told['rank']} on \S+ (died: |was lost: {cause})", told["text"]), told
    ended = notes(folder, "ended")
    for rank in ranks - gone:
        assert (ended[rank]["error"], ended[rank]["rank"] in gone) == ("PeerLost", True), ended
        assert cause in ended[rank]["text"]


def on_the_other_node(ranks: dict[int, dict[str, Any]]) -> set[int]:
    """The ranks that are not on the driver's node."""
    return {rank for rank, ready in ranks.items() if ready["node"] == rays.NODES[1]}


def test_ranks_end_with_a_driver_that_is_killed(cluster: rays.RayCluster, tmp_path: Path) -> None:
    with waiting(cluster, tmp_path, 1) as (process, ranks):
        process.kill()
        process.wait()
        assert still_alive(pids(ranks), PROMPT_S) == []


def test_a_rank_that_is_stopped_is_lost_and_ended(cluster: rays.RayCluster, tmp_path: Path) -> None:
    with waiting(cluster, tmp_path, 1) as (process, ranks):
        (stopped,) = on_the_other_node(ranks)
        os.kill(ranks[stopped]["pid"], signal.SIGSTOP)
        loses(process, tmp_path, {stopped}, set(ranks), "its heartbeats stopped for ")
        assert still_alive(pids(ranks), PROMPT_S) == []


def test_a_node_that_falls_silent_is_lost_and_its_ranks_end_when_it_is_back(
    cluster: rays.RayCluster, tmp_path: Path
) -> None:
    with waiting(cluster, tmp_path, 1) as (process, ranks):
        cluster.stop(rays.NODES[1])
        try:
            loses(process, tmp_path, on_the_other_node(ranks), set(ranks), "its heartbeats stopped for ")
        finally:
            cluster.resume(rays.NODES[1])
        assert still_alive(pids(ranks), PROMPT_S) == []
    cluster.remove(rays.NODES[1])  # Ray may have given it up
    cluster.add(rays.NODES[1])


def test_a_node_whose_processes_end_is_lost_by_its_connections(cluster: rays.RayCluster, tmp_path: Path) -> None:
    with waiting(cluster, tmp_path, 2, **NEVER_SILENT) as (process, ranks):
        cluster.remove(rays.NODES[1])
        loses(process, tmp_path, on_the_other_node(ranks), set(ranks), "its process ended")
        assert still_alive(pids(ranks), PROMPT_S) == []
    cluster.add(rays.NODES[1])
