"""The timeline, as users see it: what each rank did when, in a file that Perfetto shows.

It may be started and stopped at any time, on any rank.
"""

from __future__ import annotations

import os

from hvdlite.session import current

__all__ = ["start_timeline", "stop_timeline"]


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Records the collectives of this rank in a file from now on, with a mark for each cycle if ``mark_cycles``.

    Each of several ranks that calls it writes a file of its own, ``FILE_PATH.rank0`` and so on; ``file_path`` is
    replaced if it exists. A recording that is going on ends. Raises HorovodInternalError before `init`, and OSError if
    the file cannot be written.
    """
    current().start_timeline(os.fspath(file_path), mark_cycles)


def stop_timeline() -> None:
    """Ends the recording, if there is one: nothing is recorded any more, and the file is complete.

    Raises HorovodInternalError before `init`.
    """
    current().stop_timeline()
