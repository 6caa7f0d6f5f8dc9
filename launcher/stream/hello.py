"""An agent's description of its host when it starts, and whether that host fits the job.

Ranks of one job talk to each other in formats that may change from version to version, so all hosts need the same
version of hvdlite, the same ABI of its native library and the same minor version of Python.
"""

import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Self

from hvdlite.cuda.presence import MAX_GPUS, as_cuda_reads
from hvdlite.errors import HorovodInternalError
from hvdlite.host.hostid import kernel_host_id
from hvdlite.members.topology import MAX_RANKS
from hvdlite.version import NATIVE_ABI, __version__

from .fields import Count, integer, text

PROTOCOL: Final = 8  # of the messages between hvdrun and agents
_GPU_FILES: Final = Path("/dev"), "nvidia[0-9]*"

_Text = Annotated[str, text(4096)]  # the names of MAX_GPUS fit


def _gpus(value: Any) -> Any:
    if type(value) is not str or ",".join(as_cuda_reads(value)) != value:
        raise ValueError
    return value


class Hello(NamedTuple):
    """One host as its agent sees it.

    ``machine`` is the same for two names of one host. ``cores`` counts those that the agent may use, and ``gpus`` are
    the GPUs that it sees, as CUDA_VISIBLE_DEVICES lists them.
    """

    protocol: Count
    version: _Text
    native_abi: Count
    python: _Text
    executable: _Text
    folder: _Text
    hostname: _Text
    machine: _Text
    cores: Annotated[int, integer(1, MAX_RANKS)]
    gpus: Annotated[str, _gpus]

    @classmethod
    def describe(cls) -> Self:
        """This host."""
        return cls(
            protocol=PROTOCOL,
            version=__version__,
            native_abi=NATIVE_ABI,
            python=".".join(map(str, sys.version_info[:3])),
            executable=sys.executable,
            folder=str(Path(__file__).resolve().parent.parent),
            hostname=socket.gethostname(),
            machine=_machine(),
            cores=len(os.sched_getaffinity(0)),
            gpus=",".join(visible_gpus(os.environ)),
        )

    def misfit(self, own: Self) -> str:
        """The reason why a job of ``own`` cannot have ranks on this host; empty if it can."""
        if (self.protocol, self.version, self.native_abi) != (own.protocol, own.version, own.native_abi):
            return (
                f"it has hvdlite {self.version} (ABI {self.native_abi}) in {self.folder}, and this host has "
                f"{own.version} (ABI {own.native_abi}) in {own.folder}; install the same version on both"
            )
        if _minor(self.python) != _minor(own.python):
            return (
                f"it has Python {self.python} ({self.executable}), and this host has {own.python} ({own.executable}); "
                "use the same minor version on both, or name the right one with --remote-python"
            )
        return ""


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """Returns the GPUs that a process with this environment sees, by the names that CUDA_VISIBLE_DEVICES has for them.

    They are those of that variable, else all that the kernel shows here, but no more than 64.
    """
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return as_cuda_reads(listed)
    folder, pattern = _GPU_FILES
    return [str(number) for number in range(len(list(folder.glob(pattern))))][:MAX_GPUS]


def _machine() -> str:
    """The id by which ranks know that they share this host; empty if it is not known."""
    with suppress(HorovodInternalError):
        return os.environ.get("HVDLITE_HOSTID") or kernel_host_id()
    return ""


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
