"""What is told of CUDA and NCCL to scripts that ask, and by hvdrun --check-build: the truth, whatever is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hvdlite.cuda import driver
from hvdlite.planes.nccl import library as nccl
from tests.gpu.fake import missing
from tests.harness.patience import PATIENCE_S

# Libraries without a GPU or a communicator: only what is asked before either is used does more than to succeed.
_STUBS = """
static int calls = 0;
extern "C" {{
int inits() {{ return calls; }}
int cuInit(unsigned) {{ return calls++, {init}; }}
int cuDriverGetVersion(int* version) {{ return *version = 12040, 0; }}
int cuDeviceGetCount(int* count) {{ return *count = 3, 0; }}
int ncclGetVersion(int* version) {{ {crash} return *version = {nccl}, 0; }}
{others}
}}
"""
# Answers for each case in a child of its own, so that each finds its own libraries. A library that is loaded is found
# by its name.
_ASK = """
import ctypes, json, os, sys
from types import SimpleNamespace
from hvdlite import builds
from hvdlite.cuda import presence
from hvdlite.horovod import checks

answers = {}
for name, (libraries, has_files, environ) in json.loads(sys.argv[1]).items():
    reading, writing = os.pipe()
    if not os.fork():
        loaded = [ctypes.CDLL(library) for library in libraries]
        builds.absence_of_gpus = lambda: presence.absence_of_gpus(environ, ("/proc/self/stat" * has_files,))
        answer = [builds.cuda_built(), builds.nccl_built(), checks.cuda_built(), checks.nccl_built()]
        answer.append(sum(library.inits() for library in loaded))
        for of_torch in (None, "12.4"):
            sys.modules["torch"] = SimpleNamespace(version=SimpleNamespace(cuda=of_torch))
            answer.append(builds.cuda_built())
        os.write(writing, json.dumps([answer, builds.describe_gpus()]).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as answered:
        answers[name] = json.loads(answered.read())
    os.wait()
print(json.dumps(answers))
"""


def _compiled(folder: Path, soname: str, *, init: int = 0, version: int = 22304, crashes: bool = False) -> Path:
    table = driver.SIGNATURES if soname == driver.SONAME else nccl.SIGNATURES
    own = {"cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "ncclGetVersion"}
    others = "\n".join(f"int {name}() {{ return 0; }}" for name in table if name not in own)
    others = others.replace("int cuGetErrorName() { return 0; }", "int cuGetErrorName(int, const char**) { return 1; }")
    others = others.replace("int cuGetErrorString() { return 0; }", "int cuGetErrorString(int, char**) { return 1; }")
    text = _STUBS.format(init=init, nccl=version, crash="__builtin_trap();" * crashes, others=others)
    folder.mkdir(parents=True, exist_ok=True)
    command = ["g++", "-x", "c++", "-", "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", str(folder / soname)]
    subprocess.run(command, input=text, text=True, check=True, timeout=PATIENCE_S)
    return folder / soname


NO_CUDA = "CUDA's driver cannot be loaded (libcuda.so.1: cannot open shared object file"
NO_NCCL = "NCCL cannot be loaded (libnccl.so.2: cannot open shared object file"
NO_FILES = "there is neither "
CUDA, NCCL = "12.4", "2.23.4"
# Libraries, whether there are files in /dev, CUDA_VISIBLE_DEVICES; then what is built, and what check-build says.
CASES: dict[str, tuple[str, bool, str | None, tuple[bool, int], tuple[str, str, str, str]]] = {
    "nothing": ("", False, None, (False, 0), ("", NO_FILES, "", NO_NCCL)),
    "a GPU without a driver": ("", True, None, (False, 0), ("", NO_CUDA, "", NO_NCCL)),
    "NCCL without a GPU": ("nccl", False, None, (False, 22304), ("", NO_FILES, NCCL, "")),
    "NCCL without a driver": ("nccl", True, None, (False, 22304), ("", NO_CUDA, NCCL, "")),
    "a driver without NCCL": ("cuda", True, None, (True, 0), (CUDA, "", "", NO_NCCL)),
    "both": ("cuda nccl", True, None, (True, 22304), (CUDA, "", NCCL, "")),
    "both, and the GPUs are hidden": (
        "cuda nccl",
        True,
        "",
        (False, 22304),
        ("", "CUDA_VISIBLE_DEVICES= hides all GPUs", NCCL, ""),
    ),
    "a driver that finds no GPU": (
        "no-gpu nccl",
        True,
        None,
        (True, 22304),
        (
            "",
            "CUDA's driver cannot be initialized: an unknown error (100), an unknown error; no GPU is visible",
            NCCL,
            "",
        ),
    ),
    "NCCL is too old": (
        "cuda old",
        True,
        None,
        (True, 0),
        (CUDA, "", "", "libnccl.so.2 is NCCL 2.18.5, and hvdlite needs 2.19.3 or newer; update PyTorch"),
    ),
}


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    if reason := missing():
        pytest.skip(reason)
    made = tmp_path_factory.mktemp("stubs")
    return {
        "cuda": _compiled(made / "cuda", driver.SONAME),
        "no-gpu": _compiled(made / "no-gpu", driver.SONAME, init=driver.NO_DEVICE),
        "nccl": _compiled(made / "nccl", nccl.SONAME),
        "old": _compiled(made / "old", nccl.SONAME, version=21805),
        "crash": _compiled(made / "crash", nccl.SONAME, crashes=True),
    }


@pytest.fixture(scope="module")
def answers(stubs: dict[str, Path]) -> Any:
    asked = {
        name: (
            [str(stubs[library]) for library in libraries.split()],
            has_files,
            {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed},
        )
        for name, (libraries, has_files, listed, _, _) in CASES.items()
    }
    command = [sys.executable, "-c", _ASK, json.dumps(asked)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    return json.loads(printed.stdout)


@pytest.mark.parametrize("what", CASES)
def test_scripts_and_check_build_hear_the_truth(what: str, answers: Any) -> None:
    built, told = CASES[what][3:]
    without_cuda = False  # with a PyTorch for CPUs
    assert answers[what][0] == [*built, *built, 0, without_cuda, built[0]]  # 0: without initializing CUDA
    said = answers[what][1]
    assert said["visible_gpus"] == 3 * bool(said["cuda"])
    assert bool(said["nccl_library"]) == bool(said["nccl"])
    keys = ("cuda", "without_cuda", "nccl", "without_nccl")
    for found, expected in zip(map(said.get, keys), told, strict=True):
        assert bool(found) == bool(expected), found
        assert expected in found


def _check_build(folder: Path | None) -> list[str]:
    environ = {**os.environ, "LD_LIBRARY_PATH": str(folder or "")}
    hvdrun = Path(sys.executable).with_name("hvdrun")
    command = [sys.executable, str(hvdrun), "--check-build"]
    shown = subprocess.run(command, env=environ, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout
    begin = shown.index("GPUs:\n")
    return [line.strip() for line in shown[begin : shown.index("\n\n", begin)].splitlines()]


def test_the_report_survives_a_library_that_crashes(stubs: dict[str, Path]) -> None:
    title, _, of_nccl = _check_build(stubs["nccl"].parent)
    assert (title, of_nccl) == ("GPUs:", f"[X] NCCL 2.23.4: {stubs['nccl']}")
    crash = "(it crashed when it was loaded, or took too long)"
    assert _check_build(stubs["crash"].parent) == ["GPUs:", f"[ ] CUDA  {crash}", f"[ ] NCCL  {crash}"]
