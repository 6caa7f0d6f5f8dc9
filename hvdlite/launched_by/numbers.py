"""The variables with the rank of a process, under hvdlite's names and under names that other libraries read."""

from __future__ import annotations

from hvdlite.members.topology import Placement


def numbers_of(placement: Placement, size: int) -> dict[str, str]:
    """The variables of the rank with this ``placement`` in a job of ``size`` ranks."""
    numbers = {
        "RANK": placement.rank,
        "SIZE": size,
        "LOCAL_RANK": placement.local_rank,
        "LOCAL_SIZE": placement.local_size,
        "CROSS_RANK": placement.cross_rank,
        "CROSS_SIZE": placement.cross_size,
    }
    variables = {
        "HOROVOD_HOSTNAME": placement.host,
        "HVDLITE_HOSTNAME": placement.host,
        "RANK": str(placement.rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(placement.local_rank),
        "LOCAL_WORLD_SIZE": str(placement.local_size),
        "KERAS_DISTRIBUTION_PROCESS_ID": str(placement.rank),
        "KERAS_DISTRIBUTION_NUM_PROCESSES": str(size),
    }
    for name, number in numbers.items():
        variables |= {f"HOROVOD_{name}": str(number), f"HVDLITE_{name}": str(number)}
    return variables
