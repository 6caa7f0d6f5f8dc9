"""A trainer of Ray Train whose workers are ranks: reports, checkpoints, and workers that Ray starts again."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import hvdlite as hvd
from tests.engines import rays

pytestmark = rays.needs_ray
STEPS = 4


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


def test_workers_that_ray_starts_again_go_on_from_their_checkpoint_in_a_new_job(tmp_path: Path) -> None:
    with rays.cluster() as cluster:
        told = rays.in_driver(cluster, fits, str(tmp_path))
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
