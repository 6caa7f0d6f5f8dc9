"""The facts about hosts in agents' hellos, and the checks that they match."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from hvdlite.launcher.stream.frames import FrameError
from hvdlite.launcher.stream.hello import Hello

OWN = Hello.describe()


def test_a_hello_passes_through_a_frame_unchanged() -> None:
    assert Hello.parse(OWN.fields()) == OWN
    assert OWN.cores == len(os.sched_getaffinity(0))
    assert OWN.free_memory_bytes > 0


def test_a_host_like_this_one_fits() -> None:
    other = replace(OWN, hostname="other", cores=1, executable="/other/python", folder="/other")
    major, minor, _ = OWN.python.split(".")
    assert replace(other, python=f"{major}.{minor}.99").misfit(OWN) == ""


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
    misfit = replace(OWN, **difference).misfit(OWN)
    assert message in misfit
    assert "and this host has" in misfit
    assert "\n" not in misfit


@pytest.mark.parametrize("wrong", [{"cores": "2"}, {"cores": True}, {"hostname": "x" * 5000}, {"python": None}])
def test_a_hello_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(FrameError, match=f"no valid '{name}'"):
        Hello.parse(OWN.fields() | wrong)
