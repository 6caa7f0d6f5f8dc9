"""The end of a group as the error that every waiting and later call raises."""

from __future__ import annotations

from hvdlite.core.messages import End, EndKind
from hvdlite.errors import HorovodInternalError, HvdError, PeerLost, ShutDown, Stalled


def error_of(end: End) -> HvdError:
    """The error that tells a user about ``end``."""
    if end.kind is EndKind.LOST:
        return PeerLost(end.rank, end.host, end.cause)
    if end.kind is EndKind.STALLED:
        missing: dict[int, list[str]] = {}
        for rank, name in end.missing:
            missing.setdefault(rank, []).append(name)
        return Stalled(missing, end.waited_s)
    if end.kind is EndKind.LEFT:
        return ShutDown(
            end.rank,
            f"rank {end.rank} on {end.host} has shut down, so this collective cannot run. "
            "Every rank must submit the same collectives before any of them calls shutdown() or exits.",
        )
    if end.kind is EndKind.REMOVED:
        return HorovodInternalError(
            f"rank {end.rank} on {end.host} has removed the process set, so this collective cannot run. "
            "Wait for the collectives of a process set before you call remove_process_set()."
        )
    return HorovodInternalError(f"rank {end.rank} on {end.host} failed: {end.cause}")
