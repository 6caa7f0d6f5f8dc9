"""Builds the backend of this folder, for the PyTorch of this environment and the fakes of CUDA and NCCL."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import torch

from hvdlite.cuda import driver
from tests.gpu.fake import SOURCES, made_once
from tests.harness.patience import PATIENCE_S

NAME = "libtorch_fake.so"

_OWN = Path(__file__).parent
_TORCH = Path(torch.__file__).parent
_FLAGS = ["-std=c++20", "-O0", "-Wall", "-fPIC"]  # PyTorch's headers warn of more


def built(cache: Path, fakes: Path) -> Path:
    """The backend in ``cache`` as its sources are now, for the ``fakes`` that were built; compiles it if need be."""
    text = b"".join(path.read_bytes() for path in sorted(_OWN.glob("*.[ch]*")))
    digest = hashlib.sha256(text + f"{torch.__version__} {fakes.name} {_FLAGS}".encode()).hexdigest()
    return made_once(cache / f"torch-{digest[:16]}", lambda folder: _build(folder, fakes)) / NAME


def _build(folder: Path, fakes: Path) -> None:
    sources = sorted(_OWN.glob("*.cc"))
    headers = [f"-I{path}" for path in (fakes, SOURCES, _TORCH / "include")]
    compiling = [
        subprocess.Popen(["g++", *_FLAGS, *headers, "-c", source, "-o", folder / f"{source.stem}.o"])
        for source in sources
    ]
    assert [process.wait(2 * PATIENCE_S) for process in compiling] == [0] * len(sources)
    objects = [folder / f"{source.stem}.o" for source in sources]
    libraries = [f"-L{_TORCH / 'lib'}", "-ltorch_cpu", "-lc10", f"-L{fakes}", f"-l:{driver.SONAME}"]
    subprocess.run(["g++", "-shared", *objects, *libraries, "-o", folder / NAME], check=True, timeout=2 * PATIENCE_S)
