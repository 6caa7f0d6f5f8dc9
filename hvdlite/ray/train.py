"""`HvdliteConfig`: the ranks of a trainer of Ray Train join a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.train.backend import Backend, BackendConfig

from hvdlite.compat import install_as_horovod, stands_for_horovod
from hvdlite.hosted.joining import Member
from hvdlite.hosted.placement import Node, Seat, seats
from hvdlite.ray.actor import END_S, this_node
from hvdlite.rendezvous.job import Job

_member = Member()  # of this process, which belongs to one attempt of one trainer


@dataclass
class HvdliteConfig(BackendConfig):  # type: ignore[misc]  # Ray has no types here
    """For the argument ``backend_config`` of a `DataParallelTrainer`: its workers are ranks, which `init` joins.

    ``env_vars`` are settings of hvdlite for all ranks. Workers that Ray has restarted are a new job with a new key.
    """

    env_vars: Mapping[str, str] | None = None
    as_horovod: bool = field(default_factory=stands_for_horovod, init=False, repr=False)  # in the driver

    @property
    def backend_cls(self) -> type[Backend]:
        """The class whose methods Ray calls."""
        return _HvdliteBackend


class _HvdliteBackend(Backend):  # type: ignore[misc]
    share_cuda_visible_devices = True  # as Ray's own backend for PyTorch: scripts choose theirs by their local rank

    def on_start(self, worker_group: Any, backend_config: HvdliteConfig) -> None:
        if backend_config.as_horovod:
            worker_group.execute(install_as_horovod)
        nodes: list[Node] = worker_group.execute(this_node)
        taken, job = seats(nodes), Job.create()
        address = worker_group.execute_single(0, _serve, job, taken[0])
        environment = dict(backend_config.env_vars or {})
        joining = [
            worker_group.execute_single_async(seat.rank, _join, seat, job, address, environment) for seat in taken
        ]
        ray.get(joining)

    def on_shutdown(self, worker_group: Any, backend_config: HvdliteConfig) -> None:
        leaving = worker_group.execute_async(_leave)  # waited for only: Ray itself reports workers that have died
        ray.wait(leaving, num_returns=len(leaving), timeout=END_S)


def _serve(job: Job, seat: Seat) -> str:
    return _member.serve(job, seat)


def _join(seat: Seat, job: Job, rendezvous: str, environment: Mapping[str, str]) -> None:
    _member.join(seat, job, rendezvous, environment)


def _leave() -> None:
    _member.leave()
