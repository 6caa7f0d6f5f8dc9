"""Which ranks can use GPUs: looked for without loading anything of NVIDIA's, and told where a tensor is submitted."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.cuda import driver, loading, presence
from hvdlite.cuda.loading import is_installed, is_loaded
from hvdlite.cuda.presence import KIND, absence_of_gpus
from hvdlite.groups import choose
from hvdlite.planes.base import Planes
from hvdlite.planes.local import LocalPlane
from hvdlite.planes.nccl import library as nccl
from hvdlite.planes.nccl import plane
from hvdlite.session import current
from hvdlite.settings import Start
from hvdlite.tensors.device import CPU, Device
from tests.gpu.fake import Fakes
from tests.gpu.program import Gpu
from tests.harness import process_ranks
from tests.harness.patience import STALLED, until
from tests.multiproc.on_device import has_no_threads

HIDDEN = "hides all GPUs"


@pytest.mark.parametrize(
    ("listed", "files", "told"),
    [
        (None, ["nvidiactl"], ""),
        (None, ["dxg"], ""),
        (None, ["nvhost-ctrl-gpu"], ""),
        (None, [], "there is neither"),
        ("0", ["nvidiactl"], ""),
        ("1,0", ["nvidiactl"], ""),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", ["nvidiactl"], ""),
        ("MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0", ["nvidiactl"], ""),
        ("0,-1", ["nvidiactl"], ""),
        ("0", [], "there is neither"),
        ("", ["nvidiactl"], HIDDEN),
        ("-1", ["nvidiactl"], HIDDEN),
        ("-1,0", ["nvidiactl"], HIDDEN),
        ("NoDevFiles", ["nvidiactl"], HIDDEN),
        ("0,0", ["nvidiactl"], HIDDEN),
    ],
)
def test_what_says_that_there_may_be_gpus(listed: str | None, files: list[str], told: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).touch()
    environ = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    found = absence_of_gpus(environ, tuple(str(tmp_path / Path(each).name) for each in presence._CONTROL_FILES))
    assert bool(found) == bool(told)
    assert told in found


@pytest.mark.parametrize("place", ["nowhere", "package", "path", "conda", "system"])
def test_where_a_library_is_installed(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, cache = "libhvdprobe-d.so.1", tmp_path / "ld.so.cache"
    cache.write_bytes(b"libc.so.6\0" + (name.encode() + b"\0") * (place == "system"))
    folders = {
        "package": tmp_path / "hvdprobe4" / "inner" / "lib",
        "path": tmp_path / "path",
        "conda": tmp_path / "lib",
    }
    if place in folders:
        folders[place].mkdir(parents=True)
        (folders[place] / name).touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(loading, "_CACHE", cache)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    environ = {"LD_LIBRARY_PATH": f":/nowhere:{folders['path']}"}
    assert is_installed(name, "hvdprobe4.inner", environ) == (place != "nowhere")
    assert not is_loaded(name)


def test_ranks_without_gpus_are_named_as_ranges() -> None:
    planes = Planes(cpu=LocalPlane())
    planes.lacking[KIND] = list(range(3, 14))
    told = "a tensor is on cuda:1, but rank(s) 3-13 found no cuda device at hvd.init(); "
    assert planes.absence_for(Device(KIND, 1)).startswith(told)
    assert planes.absence_for(CPU) == ""
    told = "a tensor is on xpu:0, and hvdlite moves no such memory; pass a copy on cpu"
    assert planes.absence_for(Device("xpu")) == told


def _mapped() -> list[str]:
    return [name for name in (driver.SONAME, nccl.SONAME) if name in Path("/proc/self/maps").read_text()]


def _used_without_gpus(folder: str) -> None:
    """A program for CPUs on a host with GPUs and NCCL; then a session of one that uses them."""
    os.environ["LD_LIBRARY_PATH"] = folder
    choose.absence_of_gpus = str
    hvd.init()
    assert hvd.allreduce(np.ones(3), op=hvd.Sum, name="x").tolist() == [hvd.size()] * 3
    hvd.barrier()
    assert current().everyone.planes.keys() == {"cpu", KIND}
    assert not any(map(is_loaded, (driver.SONAME, nccl.SONAME)))
    assert _mapped() == []
    hvd.shutdown()
    gpu = Gpu(folder)
    assert gpu.collectives.allreduce(gpu.array(np.ones(3)), op=hvd.Sum).on_device().tolist() == [hvd.size()] * 3
    assert _mapped() == [driver.SONAME, nccl.SONAME]
    gpu.leave()


def test_a_session_loads_nothing_of_nvidias_before_a_tensor_is_on_a_gpu(loaded_fakes: Fakes) -> None:
    for outcome in process_ranks(2, _used_without_gpus, str(loaded_fakes.folder), environ=STALLED):
        outcome.result()


def _refused(folder: str, lacking: str) -> list[str]:
    """Rank 1 of 2 lacks something. Returns what submits of a tensor on a GPU are told."""
    if Start.read().rank == 1:
        if lacking == "nccl":
            plane.apparent_absence = lambda: "there is no NCCL; install one."
        else:
            Gpu.looks_at_files = True
    gpu = Gpu(folder)
    front_end: Any = gpu.collectives
    texts = []
    for form in ("allreduce", "allgather", "broadcast_", "alltoall", "reducescatter"):
        with pytest.raises(ValueError) as caught:
            getattr(front_end, form)(gpu.array(np.ones(4)), *([0] * form.startswith("broadcast")), name="x")
        texts.append(str(caught.value))
        getattr(hvd, form)(np.ones(4), *([0] * form.startswith("broadcast")), name="x")
    alone = hvd.add_process_set([0])
    if alone.included():
        array = gpu.array(np.ones(4))
        assert front_end.allreduce(array, op=hvd.Sum, process_set=alone).on_device().tolist() == [1] * 4
    hvd.barrier()
    hvd.shutdown()
    until(has_no_threads)
    return texts


@pytest.mark.parametrize(
    ("lacking", "told"),
    [
        (
            "gpu",
            "a tensor is on cuda:{}, but rank(s) 1 found no cuda device at hvd.init(); run hvdrun --check-build in "
            "their environment to see why, or pass a copy on cpu",
        ),
        ("nccl", "tensors on GPUs need NCCL on all ranks, but on rank 1 there is no NCCL; install one."),
    ],
)
def test_what_one_rank_lacks_is_told_to_all_that_submit(loaded_fakes: Fakes, lacking: str, told: str) -> None:
    """And the session lives on, with tensors on CPUs, and on GPUs in a process set whose ranks have all."""
    environ = {**STALLED, "HVDLITE_GPU_PLANE": "nccl"}
    outcomes = process_ranks(2, _refused, str(loaded_fakes.folder), lacking, environ=environ)
    assert [outcome.result() for outcome in outcomes] == [[told.format(rank)] * 5 for rank in range(2)]
