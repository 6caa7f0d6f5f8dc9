"""What a front end with tensors on GPUs needs from CUDA."""

from __future__ import annotations

from hvdlite.cuda.context import Context
from hvdlite.cuda.presence import KIND
from hvdlite.cuda.streams import Stream
from hvdlite.tensors.device import Device


def gpu(index: int) -> Device:
    """Returns GPU ``index`` of this process."""
    return Device(KIND, index)


def new_stream(index: int) -> int:
    """Makes a stream on GPU ``index`` that is never closed. Returns its CUDA handle."""
    return Stream(Context(index)).handle.value or 0
