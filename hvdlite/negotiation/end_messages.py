"""The messages about the end of a group: the error that calls raise, and the fate of the rank that caused it."""

from __future__ import annotations

from hvdlite.errors import HorovodInternalError, HvdError, NotInitialized, PeerLost, ShutDown, Stalled
from hvdlite.negotiation.messages import End, EndKind


def error_of(end: End) -> HvdError:
    """Returns the error that calls raise after ``end``."""
    if end.kind in (EndKind.LOST, EndKind.GONE):
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
    if end.kind is EndKind.FORKED:
        return NotInitialized(
            f"{end.cause} was forked from rank {end.rank}, and is no rank itself; run collectives in the rank's "
            "process, and pass their results to this one"
        )
    return HorovodInternalError(f"rank {end.rank} on {end.host} failed: {end.cause}")


def fate_of(end: End) -> str:
    """Returns what happened to the rank that caused ``end``: "was lost: its process ended"; empty if it just left."""
    if end.kind in (EndKind.LOST, EndKind.GONE):
        return f"was lost: {end.cause}"
    if end.kind is EndKind.STALLED:
        names = [name for rank, name in end.missing if rank == end.rank]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return f"stalled: it did not submit {', '.join(names[:3])}{more} within {end.waited_s:.0f} s"
    return f"failed: {end.cause}" if end.kind is EndKind.FAILED else ""
