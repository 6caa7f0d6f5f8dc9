"""NCCL's version, its errors, and its calls, over the fake of it."""

from __future__ import annotations

import ctypes

import pytest

from hvdlite.errors import HorovodInternalError, NativeUnavailable, absence_of
from hvdlite.planes.nccl import library as nccl
from tests.gpu.fake import Fakes


def test_the_loaded_library_is_known_by_version_and_file(fakes: Fakes) -> None:
    loaded = nccl.library()
    assert (loaded.version, loaded.path) == (23203, str(fakes.folder / nccl.SONAME))
    assert absence_of(nccl.library) == nccl.apparent_absence() == ""


@pytest.mark.parametrize(("number", "text"), [(21903, "2.19.3"), (23203, "2.32.3"), (2804, "2.8.4"), (30100, "3.1.0")])
def test_versions_as_people_write_them(number: int, text: str) -> None:
    assert nccl.dotted(number) == text


def test_a_version_that_is_too_old(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "OLDEST", 23204)
    with pytest.raises(NativeUnavailable, match=r"libnccl\.so\.2 is NCCL 2\.32\.3, and hvdlite needs 2\.32\.4"):
        nccl.library()
    assert "is NCCL 2.32.3, and hvdlite needs 2.32.4" in nccl.apparent_absence()  # since it is loaded already


def test_a_missing_library(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "SONAME", "libnccl-of-nobody.so.2")
    assert "libnccl-of-nobody.so.2: cannot open" in absence_of(nccl.library)
    assert "pip install nvidia-nccl-cu12" in absence_of(nccl.library)
    assert nccl.apparent_absence().startswith("there is no libnccl-of-nobody.so.2; install a PyTorch for CUDA")


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (2, "a system error (result 2); NCCL's last error: a fake error of ncclGetUniqueId. Run with NCCL_DEBUG=INFO"),
        (3, "an internal error (result 3); NCCL's last error: a fake error of ncclGetUniqueId. Run with NCCL_DEBUG"),
        (5, "invalid usage (result 5); NCCL's last error: a fake error of ncclGetUniqueId. Two ranks may use one GPU"),
    ],
)
def test_an_error_has_the_call_nccls_own_words_and_what_to_do(fakes: Fakes, status: int, told: str) -> None:
    fakes.fail("ncclGetUniqueId", status)
    with pytest.raises(HorovodInternalError) as raised:
        nccl.library().functions.ncclGetUniqueId(nccl.UniqueId())
    assert str(raised.value).startswith(f"ncclGetUniqueId of NCCL 2.32.3 failed: {told}")


def test_an_error_of_this_ranks_nccl_has_the_way_out(fakes: Fakes) -> None:
    assert "; HVDLITE_GPU_PLANE=staged does without NCCL" in str(nccl.failure(3, "ncclGroupEnd"))
    assert "staged" not in str(nccl.failure(6, "ncclGroupEnd"))  # another rank's process ended
    assert "staged" not in str(nccl.failure(3, "ncclGetUniqueId"))  # it is part of an error that has it


def test_a_call_in_progress_is_no_error(fakes: Fakes) -> None:
    fakes.fail("ncclGroupEnd", nccl.IN_PROGRESS)
    functions = nccl.library().functions
    functions.ncclGroupStart()
    assert functions.ncclGroupEnd() == nccl.IN_PROGRESS


def test_a_configuration_without_blocking_is_that_of_2_14() -> None:
    config = nccl.Config.without_blocking()
    assert (config.size, config.version, config.blocking) == (ctypes.sizeof(nccl.Config), 21400, 0)
