"""``horovod.ray``: what is there without Ray."""

from __future__ import annotations

import inspect

import pytest

from hvdlite.horovod import ray


def test_there_is_no_actor_to_derive_from() -> None:
    class Worker(ray.BaseHorovodWorker):
        pass

    with pytest.raises(
        NotImplementedError, match=r"no BaseHorovodWorker; .* horovod\.ray\.RayExecutor\.start\(executable"
    ):
        Worker(world_rank=0, world_size=2)


def test_there_are_no_elastic_jobs() -> None:
    for make in (ray.ElasticRayExecutor, ray.ElasticRayExecutor.create_settings):
        with pytest.raises(NotImplementedError, match=r"no ElasticRayExecutor; use horovod\.ray\.RayExecutor"):
            make(min_workers=1)


def test_the_signatures_are_those_of_horovod() -> None:
    assert " ".join(inspect.signature(ray.RayExecutor).parameters) == (
        "settings num_workers num_hosts num_workers_per_host cpus_per_worker use_gpu gpus_per_worker "
        "use_current_placement_group min_workers max_workers reset_limit cooldown_range elastic_timeout "
        "override_discovery"
    )
    assert " ".join(inspect.signature(ray.RayExecutor.create_settings).parameters) == (
        "timeout_s ssh_identity_file ssh_str placement_group_timeout_s nics"
    )
