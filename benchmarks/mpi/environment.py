"""The virtual environment of an MPI library, created once in the user's cache folder.

A stamp, written last, says what was installed. An environment without it, or with another one, is created again.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.mpi.libraries import Library
from hvdlite.errors import HvdError

_INSTALL_S: Final = 300.0
_ENGINES: Final = ("HVDLITE_", "PMI", "OMPI_COMM_", "OMPI_UNIVERSE_", "PRTE_", "HYD")


class Unavailable(HvdError):
    """A library cannot be measured here."""


def folder_of(library: Library) -> Path:
    """Returns the folder in which ``library`` is installed, for this Python."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = library.shares or library.label
    return cache / "hvdlite" / "bench" / f"{name}-python{sys.version_info.major}.{sys.version_info.minor}"


def bin_folder(library: Library) -> Path:
    """The folder with mpiexec and python of ``library``, which is installed if necessary. Raises Unavailable."""
    folder = folder_of(library)
    requirements = [library.requirement, *library.needs, "mpi4py>=4", "numpy"]
    stamp, wanted = folder / "installed", "\n".join(requirements)
    if library.shim is not None:
        wanted += "\n" + library.shim.read_text()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not stamp.exists() or stamp.read_text() != wanted:
                stamp.unlink(missing_ok=True)
                _install(folder / "venv", requirements, alone=library.requirement if library.needs else "")
                if library.shim is not None:
                    _compile(library.shim, folder / "venv")
                stamp.write_text(wanted)
    except BlockingIOError:
        raise Unavailable(f"another benchmark is installing {library.requirement}; try again when it is done") from None
    except OSError as error:
        raise Unavailable(f"its virtual environment cannot be made: {error}") from None
    return folder / "venv" / "bin"


def shim_of(venv: Path) -> Path:
    """Where the compiled shim of a library is."""
    return venv / "shim.so"


def environ() -> dict[str, str]:
    """This process's environment without the variables by which an engine or hvdrun identifies a rank."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_ENGINES)}


def run(command: Sequence[str | Path], timeout_s: float) -> str:
    """Returns the output of ``command``. Raises Unavailable, with its last line, if it fails or takes too long."""
    try:
        ended = subprocess.run(
            command,
            env=environ(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{Path(command[0]).name} took longer than {timeout_s:.0f} s") from None
    if ended.returncode:
        said = (ended.stderr.strip() or ended.stdout.strip() or "no message").splitlines()[-1]
        raise Unavailable(f"{Path(command[0]).name} ended with {ended.returncode}: {said}")
    return ended.stdout


def _install(venv: Path, requirements: Sequence[str], alone: str = "") -> None:
    """Makes the environment. What ``alone`` requires is not installed with it."""
    print(f"benchmarks: installing {', '.join(requirements)} in {venv}", file=sys.stderr, flush=True)
    run([sys.executable, "-m", "venv", "--clear", venv], _INSTALL_S)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-input"]
    run([*pip, *(each for each in requirements if each != alone)], _INSTALL_S)
    if alone:
        run([*pip, "--no-deps", alone], _INSTALL_S)


def _compile(shim: Path, venv: Path) -> None:
    include, lib = venv / "include", venv / "lib"
    command = ["g++", "-std=c++17", "-O2", "-shared", "-fPIC", f"-I{include}", f"-L{lib}", f"-Wl,-rpath,{lib}"]
    libraries = [str(lib / "ccl" / "cpu" / "lib" / "libccl.a"), "-l:libhwloc.so.15", "-ldl", "-pthread"]
    run([*command, shim, "-o", shim_of(venv), *libraries], _INSTALL_S)
