"""Gives this process a PyTorch with GPUs. It is imported before PyTorch, which asks only once what devices it has.

``FAKE_CUDA`` names the folder of the fakes, and ``FAKE_TORCH`` the backend.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvdlite.cuda import driver

assert "torch" not in sys.modules
_spec = importlib.util.find_spec("torch")
assert _spec is not None
assert _spec.origin is not None
for _library in (
    Path(os.environ["FAKE_CUDA"], driver.SONAME),
    Path(_spec.origin).parent / "lib" / "libtorch_cpu.so",
    Path(os.environ["FAKE_TORCH"]),
):
    ctypes.CDLL(str(_library), mode=ctypes.RTLD_GLOBAL)

import torch  # noqa: E402 - after its devices


class Stream(torch.Stream):
    """A stream of the fake driver, with the attribute by which PyTorch's streams of CUDA tell their handle."""

    def __new__(cls, device: Any = None, **parts: Any) -> Stream:
        if not parts:
            made = torch.Stream(
                device=torch.device("cuda", torch.accelerator.current_device_index() if device is None else device)
            )
            parts = {"stream_id": made.stream_id, "device_index": made.device_index, "device_type": made.device_type}
        return super().__new__(cls, **parts)  # type: ignore[no-any-return]

    @property
    def cuda_stream(self) -> int:
        return self.stream_id


def _current_stream(device: Any = None) -> Stream:
    found = torch.accelerator.current_stream(device)
    return Stream(stream_id=found.stream_id, device_index=found.device_index, device_type=found.device_type)


class Event:
    """An event that the host waits for when it is recorded, and whose time is the host's."""

    def __init__(self, enable_timing: bool = False) -> None:
        self._time = 0.0

    def record(self) -> None:
        torch.accelerator.current_stream().synchronize()
        self._time = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, later: Event) -> float:
        """Milliseconds."""
        return (later._time - self._time) * 1e3


def _external_stream(handle: int, device: int) -> Stream:
    kind = torch.accelerator.current_stream(device).device_type
    return Stream(stream_id=handle, device_index=device, device_type=kind)


devices_set: set[int] = set()
"""Those that were made current other than for a moment, for each of which CUDA makes a context."""


def _set_device(index: int) -> None:
    devices_set.add(index)
    torch.accelerator.set_device_index(index)


def _set_stream(stream: Stream) -> None:
    """Makes its device current too, as PyTorch does."""
    if stream.device_index != torch.accelerator.current_device_index():
        _set_device(stream.device_index)
    torch.accelerator.set_stream(stream)


@contextlib.contextmanager
def _stream(stream: Stream) -> Iterator[Stream]:
    """At its end sets the device that was current before, as PyTorch does."""
    before, before_there = _current_stream(), _current_stream(stream.device_index)
    _set_stream(stream)
    try:
        yield stream
    finally:
        _set_stream(before_there)
        _set_stream(before)


for _name, _function in {
    "_lazy_init": lambda: None,
    "is_initialized": lambda: True,
    "synchronize": lambda device=None: torch.accelerator.current_stream(device).synchronize(),
    "Event": Event,
    "current_stream": _current_stream,
    "current_device": torch.accelerator.current_device_index,
    "set_device": _set_device,
    "stream": _stream,
    "_exchange_device": torch._C._accelerator_exchangeDevice,
    "_maybe_exchange_device": torch._C._accelerator_maybeExchangeDevice,
    "Stream": Stream,
    "ExternalStream": _external_stream,
}.items():
    setattr(torch.cuda, _name, _function)


def _clone(storage: torch.UntypedStorage, of_cpu: Any = torch.UntypedStorage.clone) -> torch.UntypedStorage:
    if storage.device.type != "cuda":
        return of_cpu(storage)
    whole = torch.empty(0, dtype=torch.uint8, device=storage.device)
    whole.set_(storage, 0, (storage.nbytes(),), (1,))
    return whole.clone().untyped_storage()


torch.UntypedStorage.clone = _clone
