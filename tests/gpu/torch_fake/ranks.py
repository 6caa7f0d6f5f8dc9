"""The code of a rank whose PyTorch has GPUs, on one of them."""

from __future__ import annotations

import os
from collections.abc import Collection
from functools import cache

import torch

from hvdlite.planes import choose
from tests.gpu.fake import Fakes
from tests.harness.scenarios import Report, run


@cache
def fakes() -> Fakes:
    """Those of this process."""
    return Fakes(os.environ["FAKE_CUDA"])


def _find_gpus() -> None:
    """Lets hvdlite find the GPUs of this process, which have no files in /dev."""
    fakes()
    choose.absence_of_gpus = str


def with_gpus() -> None:
    """Lets a program find GPUs. PyTorch's compiler, which would ask them more, must not."""
    _find_gpus()
    for name, answer in {"is_available": True, "device_count": 2, "get_device_name": "a fake"}.items():
        setattr(torch.cuda, name, lambda *_, answer=answer: answer)


def choose_gpu() -> torch.device:
    """Makes this rank's GPU the current one, and that on which tensors are made, as a script does."""
    _find_gpus()
    device = torch.device("cuda", int(os.environ["HVDLITE_LOCAL_RANK"]) % 2)
    torch.cuda.set_device(device.index)
    torch.set_default_device(device)
    return device


def run_on_gpu(module: str, without: Collection[str]) -> Report:
    """Runs the scenarios of ``module`` that are not named, with tensors on this rank's GPU."""
    choose_gpu()
    return run(module, without)
