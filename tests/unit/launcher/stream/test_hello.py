"""The facts about hosts in agents' hellos, and the checks that they match."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hvdlite.launcher.stream import hello
from hvdlite.launcher.stream.fields import read
from hvdlite.launcher.stream.frames import FrameError
from hvdlite.launcher.stream.hello import Hello, visible_gpus

OWN = Hello.describe()
MIG = "MIG-GPU-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f/13/0"
MANY = ",".join(
    f"MIG-GPU-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f/{part:011}" for part in range(99)
)  # of the longest names


def test_a_hello_passes_through_a_frame_unchanged() -> None:
    assert read(Hello, OWN._asdict()) == OWN
    assert OWN.cores == len(os.sched_getaffinity(0))


def test_a_host_like_this_one_fits() -> None:
    other = OWN._replace(hostname="other", cores=1, executable="/other/python", folder="/other")
    major, minor, _ = OWN.python.split(".")
    assert other._replace(python=f"{major}.{minor}.99").misfit(OWN) == ""


@pytest.mark.parametrize(
    ("difference", "message"),
    [
        ({"version": "9.9.9"}, "it has hvdlite 9.9.9 "),
        ({"native_abi": 99}, "(ABI 99)"),
        ({"protocol": 1}, "install the same version on both"),
        ({"python": "3.99.1", "executable": "/far/python"}, "it has Python 3.99.1 (/far/python), and this host has"),
    ],
)
def test_what_does_not_fit_names_both_sides(difference: dict[str, Any], message: str) -> None:
    misfit = OWN._replace(**difference).misfit(OWN)
    assert message in misfit
    assert "and this host has" in misfit
    assert "\n" not in misfit


@pytest.mark.parametrize(
    ("listed", "seen"),
    [
        (None, ["0", "1", "2"]),
        ("", []),
        ("4", ["4"]),
        ("1, 0", ["1", "0"]),
        ("2,-1,3", ["2"]),
        ("-1", []),
        ("GPU-8932f937-d72c,MIG-GPU-89/1/0", ["GPU-8932f937-d72c", "MIG-GPU-89/1/0"]),
        (MIG, [MIG]),
        ("0,,1", ["0"]),
        ("0,1,0", []),
        ("1,-1,1", ["1"]),
        ("NoDevFiles", []),
        ("none", []),
        ("3,void", ["3"]),
        ("0," + "x" * 5000, ["0"]),
        ("0,GPU-" + "x" * 5000, ["0"]),
        ("9" * 5000, []),
        (MANY, MANY.split(",")[:64]),
    ],
)
def test_gpus_are_those_that_cuda_would_see(
    listed: str | None, seen: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia7", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.setattr(hello, "_GPU_FILES", (tmp_path, "nvidia[0-9]*"))
    assert visible_gpus({} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}) == seen
    assert read(Hello, OWN._asdict() | {"gpus": ",".join(seen)}).gpus == ",".join(seen)


def test_no_host_has_more_gpus_than_its_hello_can_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(65):
        (tmp_path / f"nvidia{number}").touch()
    monkeypatch.setattr(hello, "_GPU_FILES", (tmp_path, "nvidia[0-9]*"))
    assert visible_gpus({}) == list(map(str, range(64)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"gpus": "0,$(x)"},
        {"gpus": "0\0"},
        {"gpus": "-1"},
        {"gpus": "0,0"},
        {"gpus": "0,"},
        {"gpus": "NoDevFiles"},
        {"gpus": ",".join(map(str, range(65)))},
        {"cores": 0},
        {"cores": -2},
        {"cores": (1 << 16) + 1},
        {"gpus": None},
        {"cores": "2"},
        {"cores": True},
        {"hostname": "x" * 5000},
        {"python": None},
    ],
)
def test_a_hello_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(FrameError, match=f"no valid '{name}'"):
        read(Hello, OWN._asdict() | wrong)
