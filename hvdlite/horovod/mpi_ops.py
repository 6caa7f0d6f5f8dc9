"""``horovod.torch.mpi_ops``: all of `hvdlite.torch`, and the object from which test suites get the process sets."""

from __future__ import annotations

from hvdlite import torch
from hvdlite.horovod.basics import HorovodBasics
from hvdlite.torch import *  # noqa: F403 - whatever is public there

__all__ = torch.__all__

_basics = HorovodBasics()
