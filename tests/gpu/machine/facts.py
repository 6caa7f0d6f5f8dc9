"""``python -m tests.gpu.machine.facts``: what is on this machine, and whether it has what hvdlite calls.

The exit code is 1 if a library lacks a function, or a header that lies beside it declares one otherwise.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from hvdlite.cuda import driver
from hvdlite.planes.nccl import library as nccl
from tests.gpu import recorded
from tests.gpu.machine.place import IS_MACHINE, share_gpus


def main() -> int:
    if not IS_MACHINE:
        from tests.gpu.torch_fake import preload  # noqa: F401 - before PyTorch
        from tests.gpu.torch_fake.ranks import with_gpus

        with_gpus()
    import torch

    print(f"python {platform.python_version()}, {platform.platform()}")
    print(f"torch {torch.__version__} for CUDA {torch.version.cuda}, {torch.cuda.device_count()} GPU(s)")
    if IS_MACHINE:
        query = ["nvidia-smi", "--query-gpu=name,uuid,driver_version,memory.total,mig.mode.current", "--format=csv"]
        has_tool = shutil.which(query[0]) is not None  # of the driver; in some containers it is missing
        print(subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip() if has_tool else "")
        print(f"two ranks: {share_gpus(0, 2)}")
    cuda, loaded = driver.library(), nccl.library()
    print(f"CUDA's driver is {driver.file_of(cuda, 'cuInit')}")
    print(f"NCCL {nccl.dotted(loaded.version)} is {loaded.path}")
    lacking = [name for name in driver.SIGNATURES if not hasattr(cuda, name)]
    lacking += [name for name in nccl.SIGNATURES if not hasattr(loaded.functions, name)]
    print(f"functions: {len(driver.SIGNATURES)} of CUDA, {len(nccl.SIGNATURES)} of NCCL; missing: {lacking or 'none'}")
    differences = [*differing("nccl.h", _beside(loaded.path)), *differing("cuda.h", Path("/usr/local/cuda/include"))]
    for difference in differences:
        print(difference)
    return 1 if lacking or differences else 0


def _beside(library: str) -> Path:
    """The folder of headers of a wheel's library."""
    return Path(library).resolve().parents[1] / "include"


def differing(name: str, folder: Path) -> Iterator[str]:
    """What ``folder``'s header declares otherwise than it is recorded."""
    if not (folder / name).is_file():
        print(f"{name}: not in {folder}, so nothing is compared")
        return
    text = (folder / name).read_text(errors="replace")
    names = {new: old for old, new in re.findall(r"#define (cu\w+)\s+(cu\w+_v2)\b", text)}
    functions = recorded.NCCL if name == "nccl.h" else recorded.CUDA
    print(f"{name}: {len(functions)} functions and their constants are compared with {folder / name}")
    for function, wanted in functions.items():
        of_header = re.escape(names.get(function, function))
        found = re.search(rf"^[A-Za-z][\w ]*[ *]+{of_header}\(([^)]*)\);", text, re.MULTILINE)
        given = [_type(each) for each in found[1].split(",") if each.strip() not in ("", "void")] if found else None
        if given != list(wanted):
            yield f"DIFFERS {function}: {given} in {name}, {list(wanted)} recorded"
    for constant, value in recorded.NUMBERS.items():
        found = re.search(rf"\b{constant}\s*=?\s*(0x[0-9a-fA-F]+|\d+)\s*[,/}}\n ]", text)
        if found and int(found[1], 0) != value:
            yield f"DIFFERS {constant}: {found[1]} in {name}, {value} recorded"


def _type(parameter: str) -> str:
    """The type of a declared parameter, without its name."""
    text = re.sub(r"\s*\*\s*", "*", re.sub(r"\s+", " ", parameter.strip()))
    match = None if text.endswith("*") else re.match(r"^(.*?[*\s])(\w+)$", text)
    return (match[1] if match else text).strip()


if __name__ == "__main__":
    sys.exit(main())
