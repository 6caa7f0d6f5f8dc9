"""The files of --output-filename: ``DIR/rank.N/stdout`` and ``stderr``, byte for byte what each rank wrote.

Beside them is the black box of each rank that has ended, for ``hvdrun blackbox DIR``.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from hvdlite.host.descriptors import followed, opened, write

from ..screen.output import Stream

BOX: Final = "blackbox"


class Logs:
    """One pair of files for each of ``size`` ranks. N has leading zeros so that names sort as numbers do."""

    def __init__(self, folder: str, size: int) -> None:
        """Creates empty files. Raises OSError if that fails."""
        self.folder = str(followed(folder))
        self.lost_bytes = 0
        self.problem = ""
        self._paths: dict[tuple[int, Stream], Path] = {}
        self._files: dict[tuple[int, Stream], int] = {}
        self._boxes: list[Path] = []
        digits = len(str(size - 1))
        for rank in range(size):
            rank_folder = followed(Path(self.folder) / f"rank.{rank:0{digits}}")
            rank_folder.mkdir(parents=True, exist_ok=True)
            self._boxes.append(rank_folder / BOX)
            self._boxes[rank].unlink(missing_ok=True)  # an earlier job's
            for stream in Stream:
                path = self._paths[rank, stream] = rank_folder / stream.value
                self._files[rank, stream] = opened(path, os.O_WRONLY | os.O_TRUNC)

    def path(self, rank: int, stream: Stream) -> Path:
        return self._paths[rank, stream]

    def write(self, rank: int, stream: Stream, data: bytes) -> None:
        """Appends ``data``. A full disk must not end training, so what does not fit is dropped and counted."""
        try:
            while data:
                data = data[os.write(self._files[rank, stream], data) :]
        except OSError as error:
            self.lost_bytes += len(data)
            self.problem = f"{error.strerror}: {self._paths[rank, stream]}"

    def keep_box(self, rank: int, text: bytes) -> None:
        """Writes the black box of ``rank``, if there is room for it."""
        try:
            write(self._boxes[rank], text)
        except OSError as error:
            if not self._boxes[rank].is_symlink():  # one of another user, perhaps, and not written to
                with suppress(OSError):
                    self._boxes[rank].unlink()  # half a box would hide those of the others
            self.problem = f"{error.strerror}: {self._boxes[rank]}"

    def close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])
