"""A trainer of Ray Train whose workers are ranks: reports, checkpoints, and workers that Ray starts again."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from tests.engines import rays
from tests.engines.rays import driver, executor, in_driver, result_of
from tests.harness.patience import until

pytestmark = rays.needs_ray
STEPS = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[rays.RayCluster]:
    with rays.cluster() as cluster:
        yield cluster


def train(config: dict[str, Any]) -> None:
    """Sums in each of four steps. In the first attempt rank 1 is killed before the third."""
    import ray.train

    hvd.init()
    begun = 0
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            begun = json.loads(Path(folder, "step").read_text()) + 1
    context = ray.train.get_context()
    theirs = [context.get_world_rank(), context.get_world_size(), context.get_local_rank()]
    for step in range(begun, STEPS):
        total = float(hvd.allreduce(np.full(10, hvd.rank() + 1.0), name="step", op=hvd.Sum)[0])
        if step == 2 and begun == 0 and hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        told = {
            "step": step,
            "begun": begun,
            "total": total,
            "ours": hvd.allgather_object([hvd.rank(), hvd.size(), hvd.local_rank()]),
            "theirs": hvd.allgather_object(theirs),
            "setting": os.environ["HVDLITE_START_TIMEOUT"],
        }
        if hvd.rank():
            ray.train.report(told)
            continue
        Path(config["folder"], f"key of the attempt from {begun}").write_text(os.environ["HVDLITE_SECRET"])
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(json.dumps(step))
            ray.train.report(told, checkpoint=ray.train.Checkpoint.from_directory(folder))


def fits(folder: str) -> dict[str, Any]:
    """Fits a trainer; returns its last report."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    from hvdlite.ray import HvdliteConfig

    result = DataParallelTrainer(
        train,
        train_loop_config={"folder": folder},
        backend_config=HvdliteConfig(env_vars={"HVDLITE_START_TIMEOUT": "77"}),
        scaling_config=ScalingConfig(num_workers=3, placement_strategy="SPREAD"),
        run_config=RunConfig(storage_path=f"{folder}/results", failure_config=FailureConfig(max_failures=1)),
    ).fit()
    assert result.checkpoint is not None
    with result.checkpoint.as_directory() as last:
        saved = json.loads(Path(last, "step").read_text())
    return {**(result.metrics or {}), "saved": saved, "error": repr(result.error)}


def test_workers_that_ray_starts_again_go_on_from_their_checkpoint_in_a_new_job(
    cluster: rays.RayCluster, tmp_path: Path
) -> None:
    told = in_driver(cluster, fits, str(tmp_path))
    stored = cluster.stored()
    assert told["error"] == "None"
    assert told["step"] == told["saved"] == STEPS - 1
    assert told["begun"] in (1, 2)  # rank 1 may be killed before the report of the second step has been taken
    assert told["total"] == 6.0
    assert told["ours"] == told["theirs"]
    assert [place[0] for place in told["ours"]] == [0, 1, 2]
    assert sorted(place[2] for place in told["ours"]) == [0, 0, 1]
    assert told["setting"] == "77"
    keys = {path.read_text() for path in tmp_path.glob("key of the attempt from *")}
    assert len(keys) == 2
    assert not any(key in stored for key in keys)


def meet(folder: str, name: str, number: int) -> float:
    """Waits until two ranks of each of four jobs are in their sessions, and then adds up among those of its own."""
    hvd.init()
    Path(folder, f"{name}.{hvd.rank()}").write_text(os.environ["HVDLITE_SECRET"])
    until(lambda: len(list(Path(folder).glob("*.[01]"))) == 8)
    return float(hvd.allreduce(np.full(10, 10.0 * number + hvd.rank()), name="meet", op=hvd.Sum)[0])


def meet_in_trainer(config: dict[str, Any]) -> None:
    import ray.train

    total = meet(config["folder"], config["name"], config["number"])
    with tempfile.TemporaryDirectory() as folder:  # Ray keeps reports with a checkpoint only
        ray.train.report({"total": total}, checkpoint=ray.train.Checkpoint.from_directory(folder))


def trains_twice(folder: str, number: str) -> list[Any]:
    """Has a RayExecutor and a trainer run at the same time; returns the totals of both."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    from hvdlite.ray import HvdliteConfig

    ranks = executor(num_workers=2)
    ranks.start()
    totals = ranks.run_remote(meet, [folder, f"executor {number}", int(number)])
    result = DataParallelTrainer(
        meet_in_trainer,
        train_loop_config={"folder": folder, "name": f"trainer {number}", "number": 10 * int(number)},
        backend_config=HvdliteConfig(),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=f"{folder}/results {number}"),
    ).fit()
    assert result.metrics is not None
    return [ray.get(totals), result.metrics["total"]]


def test_several_trainings_run_side_by_side(cluster: rays.RayCluster, tmp_path: Path) -> None:
    with (
        driver(cluster, trains_twice, str(tmp_path), "1") as first,
        driver(cluster, trains_twice, str(tmp_path), "2") as second,
    ):
        assert result_of(first) == [[21.0, 21.0], 201.0]
        assert result_of(second) == [[41.0, 41.0], 401.0]
    keys = [{path.read_text() for path in tmp_path.glob(f"{name} [12].[01]")} for name in ("executor", "trainer")]
    assert [len(own) for own in keys] == [2, 2]
    assert len(set.union(*keys)) == 4
    stored = cluster.stored()
    assert not any(key in stored for key in set.union(*keys))
