"""``horovod.runner.common.util.env``: the variables by which a rank knows itself."""

from __future__ import annotations

from hvdlite.settings import Start

__all__ = ["get_env_rank_and_size"]

__path__: list[str] = []  # a package, because it is also the two above that module


def get_env_rank_and_size() -> tuple[int, int]:
    """Returns the rank and the number of ranks that this process was started with, before `init` too.

    They are 0 and 1 where no launcher has set any. Raises ValueError if it has not set all that `init` needs.
    """
    start = Start.read()
    return start.rank, start.size
