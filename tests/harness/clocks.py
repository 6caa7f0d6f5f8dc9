"""A wall clock that is wrong, and may jump, for the processes that a test chooses."""

from __future__ import annotations

import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("wall_clock.c")


class WallClock:
    """A clock that is ``shift_s`` seconds off for processes with `environment`. Its files are in ``folder``."""

    def __init__(self, folder: Path, shift_s: int) -> None:
        self._file, library = folder / "shift", folder / "wall_clock.so"
        self._file.write_bytes(bytes(8))
        self.set(shift_s)
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE)], check=True)
        self.environment = {"LD_PRELOAD": str(library), "WALL_CLOCK_SHIFT": str(self._file)}

    def set(self, shift_s: int) -> None:
        """Makes the clock jump at once."""
        with self._file.open("r+b") as file:
            file.write(shift_s.to_bytes(8, "little", signed=True))
