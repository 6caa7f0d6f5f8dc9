"""Whether this process may have GPUs, as far as that can be known without calling CUDA.

Every `init` of every program checks it. CUDA's driver is not called, because a process that has initialized it breaks
CUDA in its later forks, such as the workers of a data loader, and programs choose their GPU after `init`.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping
from typing import Final

KIND: Final = "cuda"  # of the devices
MAX_GPUS: Final = 64  # of a host
_GPU: Final = re.compile(r"\d{1,9}|(GPU|MIG)-[\w/-]{1,58}", re.ASCII)  # such as 0, GPU-8932f937, MIG-GPU-8932f937/1/0
# Of NVIDIA's kernel module, of Windows' under WSL, and of the GPU in a Jetson, by its older name and its newer one.
_CONTROL_FILES: Final = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvhost-ctrl-gpu", "/dev/nvgpu/igpu0/ctrl")


def absence_of_gpus(environ: Mapping[str, str] = os.environ, control_files: tuple[str, ...] = _CONTROL_FILES) -> str:
    """Returns why this process can have no GPU; empty if it may have one."""
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None and not as_cuda_reads(listed):
        return f"CUDA_VISIBLE_DEVICES={listed:.60} hides all GPUs"
    if not any(map(os.path.exists, control_files)):
        return f"there is neither {' nor '.join(control_files)}; in a container, start it with the GPUs of its host"
    return ""


def as_cuda_reads(listed: str) -> list[str]:
    """The names in a list of GPUs up to the first that is invalid; none if one of them is repeated."""
    names = list(itertools.takewhile(_GPU.fullmatch, map(str.strip, listed.split(","))))
    return names[:MAX_GPUS] if len(set(names)) == len(names) else []
