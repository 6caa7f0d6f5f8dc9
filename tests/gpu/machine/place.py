"""Where the tests of GPUs run: on fakes, unless ``TEST_GPU=machine`` says that this machine has real ones."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

IS_MACHINE: Final = os.environ.get("TEST_GPU") == "machine"

ENVIRONMENT: Final = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",  # a stream that a test holds must hold up no other
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # looking for GPUs must not make forks useless
}
_SHARES: Final = (2, 30)  # the first NCCL that takes several ranks on one GPU
_gates: list[Any] = []  # in pinned memory, which streams may still read
_HELD_S: Final = 15.0  # the longest hold: what waits for the stream fails then, and does not hang


def share_gpus(local_rank: int, local_size: int) -> str:
    """Lets the ranks of this host share its GPUs if they are too few. Returns what that does to the transport."""
    import torch

    count = torch.cuda.device_count()
    if local_size <= count:
        return f"a GPU for each of {local_size} ranks"
    version = torch.cuda.nccl.version()
    if version >= _SHARES:
        os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        how = "several ranks on one GPU"
    else:
        os.environ.pop("NCCL_MULTI_RANK_GPU_ENABLE", None)
        os.environ["NCCL_HOSTID"] = f"rank-{local_rank}"
        how = "sockets, since each rank passes for a host"
    return f"{local_size} ranks on {count} GPU(s), NCCL {'.'.join(map(str, version))}: {how}"


@contextmanager
def held_by_memory(stream: Any) -> Iterator[None]:
    """A context in which the GPU does nothing of what PyTorch's ``stream`` is given."""
    import torch

    gate = torch.zeros(1, dtype=torch.int32, device="cpu", pin_memory=True)
    _gates.append(gate)
    wait = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue32_v2  # until the memory is at least the value
    wait.argtypes = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint
    assert wait(stream.cuda_stream, gate.data_ptr(), 1, 0) == 0
    waiting: list[str] = []

    def end() -> None:
        waiting.extend("".join(traceback.format_stack(frame)) for frame in sys._current_frames().values())
        gate.fill_(1)

    timer = threading.Timer(_HELD_S, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        gate.fill_(1)
    assert not waiting, "\n\n".join(["a thread of these waits for a stream that is held", *waiting])
