"""Horovod's command ``horovodrun``, for scripts that call it: beside hvdrun, or on the PATH of ranks.

The script ``hvdlite/horovod/command/horovodrun`` looks for hvdrun beside it and on PATH, and ``hvdrun
--install-horovodrun`` copies it. A file that begins with other lines, perhaps Horovod's own, is left alone. pip does
not know of the copy: it survives an upgrade of hvdlite, and prints advice if hvdlite is gone.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from hvdlite.compat import COMMANDS

_NAME: Final = "horovodrun"
_SOURCE: Final = Path(COMMANDS, _NAME)


def install() -> Iterator[str]:
    """Writes the command, and yields lines for the user. Raises UsageError if it cannot be written."""
    path = folder_of_hvdrun() / _NAME
    _check(path)
    try:
        _write(path)
    except OSError as error:
        raise click.UsageError(
            f"{path} cannot be written: {error.strerror}; make a link in a folder of PATH that you may write to, "
            f"as in ln -s {_SOURCE} ~/.local/bin/."
        ) from None
    yield f"{path} is hvdrun --horovod-compat"
    first = shutil.which(_NAME)
    if first is None:
        yield f"{path.parent} is not on PATH; add it"
    elif not os.path.samefile(first, path):
        yield f"PATH has {first} before it"


def uninstall() -> Iterator[str]:
    """Removes the command, and yields lines for the user. Raises UsageError if it cannot be removed."""
    path = folder_of_hvdrun() / _NAME
    if not os.path.lexists(path):
        yield f"there is no {path}"
        return
    _check(path)
    try:
        path.unlink()
    except OSError as error:
        raise click.UsageError(f"{path} cannot be removed: {error.strerror}.") from None
    yield f"{path} is removed"


def search_path(present: str, *, is_lent: bool, comes_first: bool) -> str:
    """The ``PATH`` on which ranks find the command if it ``is_lent``, with hvdrun; ``present`` is its value so far.

    A command of that name that is there already is found before, unless this one ``comes_first``.
    """
    others = [folder for folder in present.split(os.pathsep) if folder != COMMANDS]
    if not is_lent:
        return os.pathsep.join(others)
    if not shutil.which("hvdrun", path=os.pathsep.join(others)):
        others.append(str(folder_of_hvdrun()))
    return os.pathsep.join([COMMANDS, *others] if comes_first else [*others, COMMANDS])


def folder_of_hvdrun() -> Path:
    """The folder of the hvdrun that was called, or of the hvdrun of this Python."""
    called = Path(sys.argv[0])
    if called.name in ("hvdrun", _NAME):
        return called.parent.absolute()
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    folders = [Path(sysconfig.get_path("scripts", scheme)) for scheme in schemes]
    return next((folder for folder in folders if (folder / "hvdrun").is_file()), folders[0])


def _check(path: Path) -> None:
    """Raises UsageError if something is at ``path`` that is not of hvdlite."""
    if os.path.lexists(path) and not _is_ours(path):
        raise click.UsageError(f"{path} is not of hvdlite, perhaps Horovod's own, and stays as it is.")


def _is_ours(path: Path) -> bool:
    with suppress(OSError), open(path, "rb") as file, open(_SOURCE, "rb") as source:
        return [file.readline(), file.readline()] == [source.readline(), source.readline()]
    return False


def _write(path: Path) -> None:
    """Copies the command to ``path`` at once: a shell may be reading an older one there."""
    with tempfile.TemporaryDirectory(prefix=f".{_NAME}-", dir=path.parent) as folder:
        shutil.copyfile(_SOURCE, new := Path(folder, _NAME))
        new.chmod(0o755)
        new.replace(path)
