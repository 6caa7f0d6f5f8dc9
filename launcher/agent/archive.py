"""The agent's side of --sync: receives an archive and unpacks it into a folder of this user's cache.

The archive is unpacked beside that folder and each file is then moved to its place, so that a rank of another job that
runs there never sees half a file. No member of an archive may point outside (`tarfile`'s data filter).
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

_DAMAGED: Final = (tarfile.TarError, EOFError, zlib.error)


class Archive:
    """An archive that is received in pieces and then unpacked."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._problem: OSError | None = None

    def write(self, piece: bytes) -> None:
        """Takes the next bytes; `unpack` raises if there was no room for them."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by unpack
            self._file.write(piece)
        except OSError as error:
            self._problem = error

    def unpack(self, name: str) -> str:
        """Makes the folder called ``name`` hold what the archive has, and returns its path.

        Files that an earlier archive brought and this one lacks are removed; all others stay. Raises OSError and
        ValueError with the folder as it was, or with some of the new files in place.
        """
        file = self._file
        if self._problem is not None:
            raise self._problem
        if file is None:
            raise ValueError(f"no archive for {name!r} has come")
        self._file = None
        folder = Path.home() / ".cache" / "hvdlite" / "sync" / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with file, tempfile.TemporaryDirectory(prefix=f"{name}.", dir=folder.parent) as fresh:
            file.seek(0)
            try:
                with tarfile.open(fileobj=file, mode="r:gz") as tar:
                    tar.extractall(fresh, filter="data")
            except (*_DAMAGED, TypeError) as error:  # TypeError: a Python before 3.11.4 without filters
                raise ValueError(f"the working directory cannot be unpacked: {error}") from None
            names = list(_names(Path(fresh)))
            record = folder.with_suffix(".files")
            _remove_old(folder, record, keep=names)
            for fresh_name in names:
                _move(Path(fresh) / fresh_name, folder / fresh_name)
            record.write_text(json.dumps(names))
        return str(folder)


def _names(fresh: Path) -> Iterator[str]:
    """The files in ``fresh``, links to folders among them."""
    for parent, folders, files in os.walk(fresh):
        links = (name for name in folders if (Path(parent) / name).is_symlink())
        yield from (str((Path(parent) / name).relative_to(fresh)) for name in (*files, *links))


def _remove_old(folder: Path, record: Path, keep: Sequence[str]) -> None:
    """Removes the files of the last archive except ``keep``, where its folders and links are still in place."""
    with suppress(FileNotFoundError, ValueError):
        for name in set(json.loads(record.read_text())).difference(keep):
            with suppress(OSError):
                (folder / name).unlink()


def _move(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)  # what is a file here now was a folder before
    path.replace(target)
