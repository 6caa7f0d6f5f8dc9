"""The options of a `RayExecutor`: how many ranks, on how many hosts, and what each may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """What `RayExecutor.create_settings` returns; times in seconds."""

    timeout_s: float | None = None
    placement_group_timeout_s: float = 100


@dataclass(frozen=True, slots=True)
class Workers:
    """``count`` ranks, each with ``cpus`` and ``gpus``, of which ``per_bundle`` share a bundle of a placement group."""

    count: int
    per_bundle: int
    spread: bool
    cpus: float
    gpus: int

    @property
    def bundles(self) -> list[dict[str, float]]:
        """What each bundle must have."""
        bundle: dict[str, float] = {"CPU": self.cpus * self.per_bundle}
        if self.gpus:
            bundle["GPU"] = self.gpus * self.per_bundle
        return [dict(bundle) for _ in range(self.count // self.per_bundle)]


_UNCHANGED: Final[Mapping[str, Any]] = {
    "min_workers": None,
    "max_workers": None,
    "reset_limit": None,
    "cooldown_range": None,
    "elastic_timeout": 600,
    "override_discovery": True,
}


def refuse_elastic(given: Mapping[str, Any], num_workers: int | None) -> None:
    """Raises ValueError for options of elastic jobs, unless they say that the number of ranks stays as it is."""
    for name, usual in _UNCHANGED.items():
        fixed = (usual, num_workers) if name in ("min_workers", "max_workers") else (usual,)
        if given[name] not in fixed:
            raise ValueError(
                f"{name}={given[name]!r} is not supported: hvdlite's jobs keep their ranks; leave it out, save "
                "checkpoints, and call shutdown() and start() again when a rank is lost"
            )


def workers(
    num_workers: int | None,
    num_hosts: int | None,
    num_workers_per_host: int,
    cpus_per_worker: float,
    use_gpu: bool,
    gpus_per_worker: int | None,
) -> Workers:
    """The ranks that the options of a `RayExecutor` ask for. Raises ValueError for invalid ones."""
    if (num_workers is None) == (num_hosts is None):
        raise ValueError("give either num_workers, or num_hosts with num_workers_per_host")
    for name, number in (
        ("num_workers", num_workers),
        ("num_hosts", num_hosts),
        ("num_workers_per_host", num_workers_per_host),
        ("gpus_per_worker", gpus_per_worker),
    ):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise ValueError(f"{name} must be a whole number, at least 1; got {number!r}")
    if cpus_per_worker < 0:
        raise ValueError(f"cpus_per_worker must not be negative; got {cpus_per_worker!r}")
    if gpus_per_worker is not None and not use_gpu:
        raise ValueError("gpus_per_worker needs use_gpu=True")
    gpus = (gpus_per_worker or 1) if use_gpu else 0
    if num_workers is not None:
        return Workers(num_workers, 1, False, cpus_per_worker, gpus)
    assert num_hosts is not None
    return Workers(num_hosts * num_workers_per_host, num_workers_per_host, True, cpus_per_worker, gpus)
