"""`RayExecutor` on a cluster of two nodes: where ranks run, what stays from call to call, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.errors import LaunchError
from tests.engines import rays
from tests.engines.rays import digest_of_key, driver, executor, in_driver, place
from tests.engines.starting import outputs, start
from tests.harness.patience import PATIENCE_S, until
from tests.house.blocks import Block, runnable_blocks
from tests.house.tree import ROOT

pytestmark = rays.needs_ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[rays.RayCluster]:
    with rays.cluster() as cluster:
        yield cluster


def total_without_init() -> float:
    return float(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])


def variable(name: str) -> str | None:
    return os.environ.get(name)


def gpus() -> dict[str, list[str]]:
    """The GPUs that this rank sees, and those that Ray has given to it."""
    import ray

    own = ray.get_runtime_context().get_accelerator_ids()["GPU"]
    return {"visible": os.environ["CUDA_VISIBLE_DEVICES"].split(","), "own": own}


class Model:
    """An executable that joins the job when it is made."""

    def __init__(self, start: int, *, step: int) -> None:
        hvd.init()
        self.value, self.step = start, step

    def train(self) -> float:
        self.value += self.step * hvd.rank()
        return float(hvd.allreduce(np.array([float(self.value)]), op=hvd.Sum)[0])


def calls_in_both_forms() -> dict[str, Any]:
    import ray

    from hvdlite.ray import RayExecutor

    found: dict[str, Any] = {}
    settings = RayExecutor.create_settings(timeout_s=PATIENCE_S, placement_group_timeout_s=PATIENCE_S)
    packed = executor(settings, 3, use_gpu=False)
    packed.start(extra_env_vars={"EXTRA": "7"})
    found["packed"] = packed.run(place)
    found["session lasts"] = packed.run(total_without_init)
    found["environment"] = packed.run(variable, args=("EXTRA",))
    found["arguments"] = packed.run(lambda a, b: [a, b], args=[1], kwargs={"b": 2})
    found["references"] = ray.get(packed.run_remote(place))
    found["without executable"] = packed.execute(lambda executable: executable)
    packed.shutdown()
    packed.shutdown()

    spread = executor(num_hosts=2, num_workers_per_host=2, cpus_per_worker=1, use_gpu=True, gpus_per_worker=1)
    spread.start(Model, [10], {"step": 2})
    found["spread"] = spread.run(place)
    found["trained"] = [spread.execute(lambda model: model.train()) for _ in range(2)]
    found["single"] = spread.execute_single(lambda model: model.value)
    found["gpus"] = spread.run(gpus)
    spread.shutdown()
    return found


def test_ranks_are_placed_and_a_session_lasts_from_call_to_call(cluster: rays.RayCluster) -> None:
    found = in_driver(cluster, calls_in_both_forms)
    packed = [[rank, 3, rank, 3, 0, 6.0] for rank in range(3)]
    assert found["packed"] == packed
    assert found["session lasts"] == [3.0] * 3
    assert found["environment"] == ["7"] * 3
    assert found["arguments"] == [[1, 2]] * 3
    assert found["references"] == packed
    assert found["without executable"] == [None] * 3
    assert found["spread"] == [[rank, 4, rank % 2, 2, rank // 2, 10.0] for rank in range(4)]
    assert found["trained"] == [[52.0] * 4, [64.0] * 4]
    assert found["single"] == 10
    for first, second in (found["gpus"][:2], found["gpus"][2:]):  # of one node
        assert first["visible"] == second["visible"] == [*first["own"], *second["own"]]
        assert sorted(first["visible"]) == ["0", "1"]


def in_a_placement_group() -> dict[str, Any]:
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group([{"CPU": 1}] * 3, strategy="SPREAD")
    ray.get(group.ready())
    inside = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)

    @ray.remote(num_cpus=1, scheduling_strategy=inside)
    def caller(size: int, uses: bool, within_s: float) -> Any:
        settings = type(executor(num_workers=1)).create_settings(placement_group_timeout_s=within_s)
        ranks = executor(settings, num_workers=size, use_current_placement_group=uses)
        try:
            ranks.start()
            groups = ray.util.placement_group_table().values()
            return len([one for one in groups if one["state"] == "CREATED"]), ranks.run(place)
        except LaunchError as error:
            return str(error)
        finally:
            ranks.shutdown()

    # Ray lends out the CPU of a task that waits in ray.get, so there is room for three.
    found = {"inside": ray.get(caller.remote(2, True, PATIENCE_S)), "full": ray.get(caller.remote(4, True, 2))}
    found["outside"] = ray.get(caller.remote(2, False, PATIENCE_S))
    found["too many"] = []
    for kwargs in (dict(num_workers=9), dict(num_hosts=3), dict(num_workers=1, use_gpu=True, gpus_per_worker=3)):
        try:
            executor(type(executor(num_workers=1)).create_settings(placement_group_timeout_s=1), **kwargs).start()
        except LaunchError as error:
            found["too many"].append(str(error))
    ray.util.remove_placement_group(group)
    return found


def test_placement_groups_are_used_made_and_refused_in_a_sentence(cluster: rays.RayCluster) -> None:
    found = in_driver(cluster, in_a_placement_group)
    groups, places = found["inside"]
    assert groups == 1
    assert [(rank, size, total) for rank, size, *_, total in places] == [(0, 2, 3.0), (1, 2, 3.0)]
    assert "did not answer within 2 s: does the current placement group have room for 4 ranks" in found["full"]
    groups, places = found["outside"]
    assert groups == 2
    assert len(places) == 2
    many, hosts, gpus = found["too many"]
    assert "did not find room for 9 ranks within 1 s: they need 9 times 1 CPU. The cluster has 2 node(s)" in many
    assert "3 hosts with 1 CPU each" in hosts
    assert "1 times 1 CPU and 3 GPU" in gpus
    assert "4 CPU and 2 GPU; 4 CPU and 2 GPU" in gpus


def two_at_once() -> list[Any]:
    first, second = executor(num_workers=2), executor(num_workers=2)
    first.start()
    second.start()
    import ray

    references = first.run_remote(place), second.run_remote(place)
    found = [*map(ray.get, references), first.run(digest_of_key)[0] != second.run(digest_of_key)[0]]
    first.shutdown()
    found.append(second.run(place))
    second.shutdown()
    return found


def test_several_executors_train_at_the_same_time(cluster: rays.RayCluster) -> None:
    first, second, keys_differ, second_again = in_driver(cluster, two_at_once)
    assert first == second == second_again == [[rank, 2, rank, 2, 0, 3.0] for rank in range(2)]
    assert keys_differ


def write_key(folder: str) -> None:
    hvd.init()
    Path(folder, f"key.{hvd.rank()}").write_text(os.environ["HVDLITE_SECRET"])


def tells_ray_words_beside_ranks(folder: str) -> None:
    import ray

    ranks = executor(num_workers=2)
    ranks.start()
    ranks.run(write_key, [folder])
    beside = "a word beside a class"

    @ray.remote(num_cpus=0)
    class Actor:
        def say(self, word: str) -> str:
            print(word)
            return beside

    runtime_env = {"env_vars": {"WORD": "a word in a runtime_env"}}
    actor = Actor.options(name="a word as a name", runtime_env=runtime_env).remote()  # type: ignore[attr-defined]
    ray.get(actor.say.remote("a word in a log"))
    Path(folder, "ready").touch()
    sys.stdin.read()
    ranks.shutdown()


def test_no_key_is_where_ray_keeps_what_it_shows(cluster: rays.RayCluster, tmp_path: Path) -> None:
    with driver(cluster, tells_ray_words_beside_ranks, str(tmp_path)) as process:
        until(lambda: Path(tmp_path, "ready").exists() or process.poll() is not None)
        stored = cluster.stored()
        rays.result_of(process)
    for word in ("beside a class", "in a runtime_env", "as a name", "in a log"):
        assert f"a word {word}" in stored
    (key,) = {Path(tmp_path, f"key.{rank}").read_text() for rank in range(2)}
    assert key not in stored
    assert key not in cluster.stored()


def as_horovod() -> list[Any]:
    hvd.install_as_horovod()
    from horovod.ray import ElasticRayExecutor, RayExecutor

    def theirs() -> list[Any]:
        import horovod.torch as hvd

        hvd.init()
        return [hvd.rank(), hvd.__name__]

    ranks = RayExecutor(RayExecutor.create_settings(timeout_s=PATIENCE_S), num_workers=2)
    ranks.start()
    found = ranks.run(theirs)
    ranks.shutdown()
    try:
        ElasticRayExecutor(ElasticRayExecutor.create_settings(), min_workers=1)
    except NotImplementedError as error:
        found.append(str(error))
    return found


def test_scripts_of_horovod_find_hvdlite_in_the_ranks(cluster: rays.RayCluster) -> None:
    first, second, elastic = in_driver(cluster, as_horovod)
    assert [first, second] == [[0, "hvdlite.torch"], [1, "hvdlite.torch"]]
    assert elastic.startswith("hvdlite's jobs keep their ranks, so there is no ElasticRayExecutor; use horovod.ray")


@pytest.mark.parametrize("block", list(runnable_blocks(ROOT / "docs/clusters.md", framework="ray")), ids=str)
def test_the_block_of_the_page_runs(cluster: rays.RayCluster, block: Block, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(block.text)
    program = "import runpy, sys; from tests.engines import rays; rays.connect(log_to_driver=False); "
    out, err = outputs(
        start(
            [sys.executable, "-c", f"{program}runpy.run_path(sys.argv[1], run_name='__main__')", str(script)],
            cluster.environment,
        )
    )
    assert out.splitlines() == [f"{rank} [1.0, 2.0, 3.0]" for rank in range(2)], err


def test_without_ray_it_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['ray'] = None\nfrom hvdlite.ray import RayExecutor; RayExecutor(num_workers=1).start()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert "ModuleNotFoundError: hvdlite.ray needs Ray; pip install 'hvdlite[ray]'" in ended.stderr


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ({}, "give either num_workers, or num_hosts"),
        ({"num_workers": 2, "num_hosts": 1}, "give either num_workers, or num_hosts"),
        ({"num_workers": 0}, "num_workers must be a whole number, at least 1; got 0"),
        ({"num_workers": 1, "gpus_per_worker": 1}, "gpus_per_worker needs use_gpu=True"),
        ({"num_workers": 1, "use_gpu": True, "gpus_per_worker": 0}, "gpus_per_worker must be a whole number"),
        ({"num_workers": 2, "min_workers": 1}, "min_workers=1 is not supported: hvdlite's jobs keep their ranks"),
        ({"num_workers": 2, "reset_limit": 3}, "reset_limit=3 is not supported"),
        ({"settings": 2}, r"settings must come from RayExecutor.create_settings\(\), got int"),
    ],
)
def test_invalid_arguments_are_refused_in_a_sentence(kwargs: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        executor(**kwargs)


def test_what_changes_nothing_is_taken() -> None:
    ranks = executor(num_workers=2, min_workers=2, max_workers=2, reset_limit=None, override_discovery=True)
    with pytest.raises(ValueError, match=r"call start\(\) first"):
        ranks.run(place)
    with pytest.raises(ValueError, match="nics is not supported: ranks listen at the address"):
        type(ranks).create_settings(nics={"eth0"})
    with pytest.raises(ValueError, match="callbacks are not supported"):
        ranks.run(place, callbacks=[print])
