"""The back end ``hvdlite`` of torch.distributed: ``init_process_group("hvdlite")``.

torch finds it by its name (`hvdlite.torch.door`), so programs need not import this module.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hvdlite.ops import open_over_store
from hvdlite.torch.distributed.process_group import ProcessGroup

__all__ = ["ProcessGroup", "open_group"]


def open_group(options: Any) -> ProcessGroup:
    """Opens the group that torch's ``DistributedBackendOptions`` describe. All its ranks call it."""
    ranks = list(options.global_ranks_in_group) or range(options.group_size)
    timeout: timedelta = options.timeout
    group = open_over_store(options.store, ranks, options.group_rank, _server(options.store), timeout.total_seconds())
    return ProcessGroup(group, timeout)


def _server(store: Any) -> str:
    """The host of a TCPStore, or empty."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return str(getattr(store, "host", ""))
