"""Which of several copies of a library is used: the one in the process, the one of a Python package, the system's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvdlite.cuda.loading import declare, file_of, load
from hvdlite.errors import NativeUnavailable
from tests.gpu.fake import missing
from tests.harness.patience import PATIENCE_S

NAMES = {"system": "libhvdprobe-a.so.1", "package": "libhvdprobe-b.so.1", "process": "libhvdprobe-c.so.1"}
PACKAGE = "hvdprobe.inner"
# Loads each library, and says which copy that was. The last one is in the process already, and its file is gone.
ASK = """
import ctypes, json, os, sys
from hvdlite.cuda.loading import file_of, load
names, package, elsewhere = json.loads(sys.argv[1])
first = ctypes.CDLL(elsewhere)
os.remove(elsewhere)
answers = {}
for place, name in names.items():
    library = load(name, package)
    answers[place] = [library.probe(), os.path.dirname(file_of(library, "probe")), library._handle == first._handle]
print(json.dumps(answers))
"""


def _compile(folder: Path, soname: str, answer: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / soname
    source = f'extern "C" int probe() {{ return {answer}; }}'
    command = ["g++", "-x", "c++", "-", "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", str(made)]
    subprocess.run(command, input=source, text=True, check=True, timeout=PATIENCE_S)
    return made


def test_the_process_comes_before_the_package_and_that_before_the_system(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    system, package = tmp_path / "system", tmp_path / "path" / "hvdprobe" / "inner" / "lib"
    for name in NAMES.values():
        _compile(system, name, 1)
    for place in ("package", "process"):
        _compile(package, NAMES[place], 2)
    elsewhere = _compile(tmp_path / "elsewhere", NAMES["process"], 3)
    paths = [str(package.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "LD_LIBRARY_PATH": str(system), "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", ASK, json.dumps([NAMES, PACKAGE, str(elsewhere)])]
    printed = subprocess.run(command, env=environ, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    assert json.loads(printed.stdout) == {
        "system": [1, str(system), False],
        "package": [2, str(package), False],
        "process": [3, str(elsewhere.parent), True],
    }


@pytest.mark.parametrize("package", ["", "hvdprobe.of.nobody", "json"])
def test_what_is_nowhere_is_an_error_that_names_it(package: str) -> None:
    with pytest.raises(NativeUnavailable, match=r"libhvdprobe-z\.so\.1: cannot open"):
        load("libhvdprobe-z.so.1", package)


def test_a_library_without_a_function_is_an_error_that_names_both() -> None:
    libm = load("libm.so.6")
    assert file_of(libm, "cos").endswith("libm.so.6")
    with pytest.raises(NativeUnavailable, match="here.so has no function hvd_probe; install a newer version"):
        declare(libm, {"hvd_probe": (None, ())}, "here.so", print)
