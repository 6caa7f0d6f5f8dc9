"""The public names of ``hvdlite``: collectives for numpy arrays, and what every front end has."""

# ruff: noqa: F403, I001 - one statement for each module

# Before the modules below, which import it from deeper down: the frames there happen to fill one of CPython's chunks,
# and numpy's own imports would map and unmap the next chunk some 700 times.
import numpy as _numpy  # noqa: F401
from hvdlite.public.names import *
from hvdlite.public.names import __version__ as __version__
from hvdlite.compat import install_as_horovod as install_as_horovod
from hvdlite.errors import (
    FunctionFailed as FunctionFailed,
    LaunchError as LaunchError,
    WorkerFailed as WorkerFailed,
)
from hvdlite.ops.array_forms import *
from hvdlite.ops.memory import shared_empty as shared_empty
from hvdlite.running import run as run
