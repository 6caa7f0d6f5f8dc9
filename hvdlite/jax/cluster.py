"""The ranks of hvdrun as processes of `jax.distributed`, which then needs no numbers.

JAX asks each of its cluster classes whether it runs there. hvdrun's is the first, because hvdrun works inside of all
other clusters. JAX reads the coordinator's address from JAX_COORDINATOR_ADDRESS, which hvdrun sets.
"""

from __future__ import annotations

from jax._src.clusters import ClusterEnv

from hvdlite.settings import Start


class Hvdrun(ClusterEnv):  # type: ignore[misc]
    """JAX's questions about a process, answered for ranks that hvdrun has started."""

    name = "hvdrun"

    @classmethod
    def is_env_present(cls) -> bool:
        try:
            return bool(Start.read().rendezvous)
        except ValueError:  # variables of another launcher; `init` reports the error
            return False

    @classmethod
    def get_coordinator_address(cls, timeout_secs: int | None, override_coordinator_port: str | None) -> str:
        raise ValueError(
            "JAX_COORDINATOR_ADDRESS is not set, although hvdrun sets it where it finds a free port; pass "
            "coordinator_address='HOST:PORT', with a free port on the host of rank 0, to jax.distributed.initialize()"
        )

    @classmethod
    def get_process_count(cls) -> int:
        return Start.read().size

    @classmethod
    def get_process_id(cls) -> int:
        return Start.read().rank

    @classmethod
    def get_local_process_id(cls) -> int | None:
        return Start.read().local_rank


ClusterEnv._cluster_types.remove(Hvdrun)
ClusterEnv._cluster_types.insert(0, Hvdrun)
