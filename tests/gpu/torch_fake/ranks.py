"""The code of a rank whose PyTorch has GPUs, on one of them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from hvdlite.cuda.context import Context
from hvdlite.groups import choose
from tests.gpu.fake import Fakes
from tests.gpu.machine.place import IS_MACHINE, held_by_memory, share_gpus
from tests.harness.scenarios import Report, run


@cache
def fakes() -> Fakes:
    """Those of this process."""
    return Fakes(os.environ["FAKE_CUDA"])


def _find_gpus() -> None:
    """Lets hvdlite find the GPUs of this process: those of the machine, or the fakes, which have no files in /dev."""
    if IS_MACHINE:
        share_gpus(int(os.environ["HVDLITE_LOCAL_RANK"]), int(os.environ["HVDLITE_LOCAL_SIZE"]))
        return
    fakes()
    choose.absence_of_gpus = str


def with_gpus() -> None:
    """Lets a program find GPUs. PyTorch's compiler, which would ask them more, must not."""
    _find_gpus()
    if IS_MACHINE:
        return
    for name, answer in {
        "is_available": True,
        "device_count": 2,
        "get_device_name": "a fake",
        "is_bf16_supported": True,
    }.items():
        setattr(torch.cuda, name, lambda *_, answer=answer: answer)


def choose_gpu() -> torch.device:
    """Makes this rank's GPU the current one, and that on which tensors are made, as a script does."""
    _find_gpus()
    count = torch.cuda.device_count() if IS_MACHINE else 2
    device = torch.device("cuda", int(os.environ["HVDLITE_LOCAL_RANK"]) % count)
    torch.cuda.set_device(device.index)
    torch.set_default_device(device)
    return device


@contextmanager
def held(stream: Any) -> Iterator[None]:
    """A context in which the GPU does nothing of what ``stream`` is given."""
    if IS_MACHINE:
        with held_by_memory(stream):
            yield
        return
    context = Context(stream.device_index)  # of which the default stream has no handle
    with context.current():
        fakes().cuda.fake_hold(stream.cuda_stream)
    try:
        yield
    finally:
        with context.current():
            fakes().cuda.fake_release(stream.cuda_stream)
        context.close()


def run_on_gpu(module: str, without: Collection[str]) -> Report:
    """Runs the scenarios of ``module`` that are not named, with tensors on this rank's GPU."""
    choose_gpu()
    return run(module, without)
