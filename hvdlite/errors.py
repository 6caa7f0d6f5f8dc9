"""Every error a user can meet, in one tree.

The type shows whose fault it is; the message names ranks, tensor and what to do next::

    HvdError(RuntimeError)
    ├── HorovodInternalError      a collective did not happen (the class Horovod's users catch)
    │   ├── NotInitialized        it was called before init(), after shutdown(), or in a fork
    │   ├── Mismatch              ranks disagree about a tensor or a process set; the session stays usable
    │   ├── PeerLost              a rank died or went silent; the session is over
    │   ├── Stalled               a rank never submitted a tensor; the session is over
    │   └── ShutDown              a rank left the job; the session is over
    ├── NativeUnavailable         the native library is missing or of another version
    └── LaunchError               hvdrun could not start or finish the job
        ├── BadHostSpec
        ├── CannotStart
        ├── WorkerFailed
        └── FunctionFailed       what hvdlite.run() called raised an error

Wrong arguments are ``ValueError`` (``DuplicateName`` among them), raised at the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final


class HvdError(RuntimeError):
    """The root of hvdlite's errors. All of them can be copied and pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[HvdError], args: tuple[Any, ...], attributes: dict[str, Any]) -> HvdError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class HorovodInternalError(HvdError):
    """A collective failed; its result must not be used.

    ``blamed`` is the rank that made `init` fail, and its fate; None if unknown.
    """

    blamed: tuple[int, str] | None = None


class NotInitialized(HorovodInternalError):
    """A collective was called outside of a session."""


class Mismatch(HorovodInternalError):
    """Ranks submitted one name with different descriptions, or different process sets. All ranks raise it."""


ENDED: Final = "its process ended"
"""The cause of a loss that may be a failure, or merely a script that finished first."""


class PeerLost(HorovodInternalError):
    """A rank died or stopped answering.

    Attributes: ``rank`` of the lost peer, its ``host``, and the ``cause`` as it was observed.
    """

    def __init__(self, rank: int, host: str, cause: str) -> None:
        advice = "See that rank's own output for the reason"
        if cause == ENDED:
            advice += (
                "; if it shows no error, that rank was killed or finished first: make every call on all ranks, equally "
                "often, or call hvd.join() after the last one"
            )
        super().__init__(f"rank {rank} on {host} was lost: {cause}. {advice}.")
        self.rank = rank
        self.host = host
        self.cause = cause


class Stalled(HorovodInternalError):
    """Some ranks submitted a tensor and others did not within the allowed time.

    ``missing_by_rank`` maps each late rank to the names that it did not submit.
    """

    def __init__(self, missing_by_rank: Mapping[int, Sequence[str]], waited_s: float) -> None:
        parts = "; ".join(f"rank {rank} is missing {', '.join(names)}" for rank, names in missing_by_rank.items())
        super().__init__(
            f"stalled for {waited_s:.0f} s: {parts}. "
            "Look at what those ranks are doing, or raise HVDLITE_STALL_SHUTDOWN_TIME_SECONDS."
        )
        self.missing_by_rank = dict(missing_by_rank)
        self.waited_s = waited_s


class ShutDown(HorovodInternalError):
    """The session ended before the collective could run. ``rank`` is the rank that left first."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(reason)
        self.rank = rank


class NativeUnavailable(HvdError, ImportError):
    """The native library cannot be loaded; the message says how to build it."""


def absence_of(library: Callable[[], object]) -> str:
    """Returns why ``library``, which loads one, cannot: the text of its NativeUnavailable; empty if it can."""
    try:
        library()
    except NativeUnavailable as error:
        return str(error)
    return ""


class DuplicateName(ValueError):
    """A tensor of this name is already in flight on this rank. The first one completes normally."""


class LaunchError(HvdError):
    """hvdrun could not start or finish the job; the shell gets ``exit_code``."""

    exit_code = 1


class BadHostSpec(LaunchError):
    """An invalid host list, slot count or process count."""

    exit_code = 2


class CannotStart(LaunchError):
    """The ranks of a host could not be started."""

    def __init__(self, host: str, reason: str, exit_code: int = 1) -> None:
        super().__init__(f"cannot start on {host}: {reason}")
        self.host = host
        self.reason = reason
        self.exit_code = exit_code


class WorkerFailed(LaunchError):
    """A rank ended with a non-zero code, or by a signal (``code`` is then 128 + the signal's number).

    ``how`` replaces the code in the message if an engine does not report it.
    """

    def __init__(self, rank: int, host: str, code: int, last_lines: Sequence[str], how: str = "") -> None:
        super().__init__(f"rank {rank} on {host} {how or f'ended with code {code}'}")
        self.rank = rank
        self.host = host
        self.code = code
        self.exit_code = code
        self.last_lines = list(last_lines)


class FunctionFailed(LaunchError):
    """The function that `hvdlite.run` called raised an error on ``rank``; ``traceback`` is its text."""

    def __init__(self, rank: int, host: str, traceback: str) -> None:
        super().__init__(f"the function failed on rank {rank} on {host}:\n\n{traceback.rstrip()}")
        self.rank = rank
        self.host = host
        self.traceback = traceback
