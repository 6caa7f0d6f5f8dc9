"""``horovod.runner.common.util.env``: the variables by which a rank knows itself."""

from __future__ import annotations

from hvdlite.settings import Start

__all__ = ["get_env_rank_and_size"]

__path__: list[str] = []  # a package, because it is also the two above that module


def get_env_rank_and_size() -> tuple[int, int]:
    """Returns this process's rank and the number of ranks, also before `init`; 0 and 1 without a launcher.

    Raises ValueError if the launcher has not set all variables that `init` needs.
    """
    start = Start.read()
    return start.rank, start.size
