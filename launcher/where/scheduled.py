"""The hosts that a scheduler or operator has given to the job that hvdrun was started in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .hostlists import hosts_of, list_of
from .hosts import Host
from .slurm import SLURM, allocation_of


class Scheduled(NamedTuple):
    """``why`` says how hvdrun reaches ``hosts``, and what lists them: "over ssh, as PBS says (PBS_NODEFILE)"."""

    hosts: tuple[Host, ...]
    why: str


def scheduled_hosts(environ: Mapping[str, str], size: int | None = None, by_gpus: bool = False) -> Scheduled | None:
    """The hosts for ``size`` ranks, or for one on each GPU; None if nothing lists hosts in ``environ``.

    Raises BadHostSpec if a list is invalid, or if Slurm has given fewer slots than there are ranks.
    """
    if allocation := allocation_of(environ):
        why = f"through srun, as job {allocation.job} of {SLURM} says"
        return Scheduled(allocation.hosts(size, by_gpus=by_gpus), why)
    if found := list_of(environ):
        return Scheduled(hosts_of(environ), f"over ssh, as {found.name} says ({found.variable})")
    return None
