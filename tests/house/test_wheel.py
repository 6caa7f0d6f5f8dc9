"""One wheel serves every Python: it installs and works where no compiler is, and says honestly where it runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.patience import PATIENCE_S
from tests.house.tree import ROOT, files, module_name

VERSIONS = ("3.11", "3.13")
_PROGRAM = """
import ctypes, numpy, hvdlite, hvdlite.launcher
from hvdlite import native
assert native.library().hvd_abi_version() == native.ABI_VERSION
hvdlite.init()
assert hvdlite.allreduce(numpy.arange(3.0), op=hvdlite.Sum, name="x").tolist() == [0.0, 1.0, 2.0]
hvdlite.shutdown()
print(hvdlite.__file__)
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean copy of the sources."""
    copy = tmp_path_factory.mktemp("sources")
    for path in files():
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, copy / path)
    return copy


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the sources; only objects that are still fresh are not compiled again."""
    copy, folder = sources, tmp_path_factory.mktemp("wheel")
    for objects in ROOT.glob("build/native-*"):
        shutil.copytree(objects, copy / "build" / objects.name)
    command = [*_pip(sys.executable), "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(folder), "."]
    _run(command, cwd=copy)
    (built,) = folder.iterdir()
    return built


def _pip(python: str) -> list[str]:
    """This environment's pip, working on the environment of ``python``."""
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--python", python]


def _run(command: list[str], cwd: Path = ROOT, **environ: str) -> str:
    ended = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environ}, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def _interpreters(version: str) -> Iterator[str]:
    """Candidates for CPython ``version``: this one, one on PATH, one that pyenv keeps."""
    yield sys.executable
    yield f"python{version}"
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(root.glob(f"versions/{version}.*/bin/python{version}")))


def _interpreter(version: str) -> str:
    question = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    for candidate in _interpreters(version):
        found = shutil.which(candidate)
        if found is None:
            continue
        answer = subprocess.run(
            [found, "-c", question], capture_output=True, text=True, timeout=PATIENCE_S
        ).stdout.strip()
        if answer == version:
            return found
    pytest.skip(f"needs CPython {version} with venv")


def test_the_wheel_holds_the_package_and_an_honest_tag(wheel: Path) -> None:
    tag = re.fullmatch(r"hvdlite-[\d.]+-py3-none-((?:manylinux_(\d+)_(\d+)|linux)_\w+)\.whl", wheel.name)
    assert tag is not None
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        library = archive.read("hvdlite/_native/libhvdlite.so")
        assert archive.getinfo("hvdlite/horovod/command/horovodrun").external_attr >> 16 & 0o111  # pip keeps that
    needed = {(int(major), int(minor)) for major, minor in re.findall(rb"\0GLIBC_(\d+)\.(\d+)\0", library)}
    if tag[2]:
        assert max(needed) <= (int(tag[2]), int(tag[3]))
    for dependency in (b"libstdc++.so", b"libgcc_s.so", b"libpython", b"libzmq.so"):
        assert dependency + b"." not in library
    modules = {module_name(path).replace(".", "/") for path in files(".py") if path.parts[0] in ("hvdlite", "launcher")}
    assert modules <= {name.removesuffix(".py").removesuffix("/__init__") for name in names}
    assert "hvdlite/py.typed" in names


@pytest.mark.parametrize("version", VERSIONS)
def test_the_wheel_works_without_a_compiler(
    wheel: Path, version: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    _run([_interpreter(version), "-m", "venv", "--without-pip", str(tmp_path / "venv")])
    programs = tmp_path / "venv/bin"
    pip = _pip(str(programs / "python"))
    downloads = pytestconfig.cache.mkdir(f"wheels-{version}")  # what a second run needs to work offline
    if not any(downloads.iterdir()):
        _run([*pip, "download", "--only-binary", ":all:", "--dest", str(downloads), str(wheel)])
        (downloads / wheel.name).unlink()
    _run(
        [*pip, "install", "--no-compile", "--no-index", "--find-links", str(downloads), str(wheel)], PATH=str(programs)
    )
    printed = _run([str(programs / "python"), "-c", _PROGRAM], cwd=tmp_path, PATH=str(programs))
    assert printed.strip().startswith(str(tmp_path / "venv"))
    assert "Usage" in _run([str(programs / "hvdrun"), "--help"], cwd=tmp_path, PATH=str(programs))


def _build_without_a_compiler(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "setup.py", "--quiet", "build", "--build-base", str(folder)]
    environ = {**os.environ, "CXX": "no-such-compiler", **environ}
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=PATIENCE_S)


def test_without_a_compiler_the_build_says_so_in_one_line_and_goes_on(tmp_path: Path) -> None:
    ended = _build_without_a_compiler(tmp_path)
    assert ended.returncode == 0, ended.stderr
    (line,) = (line for line in ended.stderr.splitlines() if "native" in line)
    assert line.startswith(
        "WARNING: hvdlite is built WITHOUT its native library, as the C++17 compiler 'no-such-compiler'"
    )
    assert "install hvdlite again; HVDLITE_REQUIRE_NATIVE=1 makes this an error" in line
    assert not list(tmp_path.rglob("*.so"))


def test_where_the_library_is_required_the_build_ends_with_what_to_do_in_one_sentence(tmp_path: Path) -> None:
    ended = _build_without_a_compiler(tmp_path, HVDLITE_REQUIRE_NATIVE="1")
    assert ended.returncode == 1
    assert (
        ended.stderr.strip()
        .splitlines()[-1]
        .startswith("error: hvdlite needs a C++17 compiler and 'no-such-compiler' was not found; install g++")
    )
    assert "Traceback" not in ended.stderr


_IN_PYTHON = """
import numpy, hvdlite
from hvdlite.session import current
hvdlite.init()
total = hvdlite.allreduce(numpy.arange(3.0), op=hvdlite.Sum, name="x").tolist()
print(current().plane_name, total, hvdlite.__file__)
"""


def test_without_a_compiler_there_is_a_pure_wheel_that_works(sources: Path, tmp_path: Path) -> None:
    copy, wheels, target = tmp_path / "copy", tmp_path / "wheels", tmp_path / "target"
    shutil.copytree(sources, copy, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    environ = {"CXX": "no-such-compiler", "HVDLITE_REQUIRE_NATIVE": ""}
    command = [*_pip(sys.executable), "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(wheels), "."]
    _run(command, cwd=copy, **environ)
    (built,) = wheels.iterdir()
    assert re.fullmatch(r"hvdlite-[\d.]+-py3-none-any\.whl", built.name)
    with zipfile.ZipFile(built) as archive:
        assert not [name for name in archive.namelist() if "_native" in name or name.endswith(".so")]
        (described,) = (name for name in archive.namelist() if name.endswith(".dist-info/WHEEL"))
        assert "Root-Is-Purelib: true" in archive.read(described).decode()
        archive.extractall(target)  # as pip does
    hvdrun = [sys.executable, "-c", "import sys; from hvdlite.launcher.cli import main; sys.exit(main())"]
    installed = {"PYTHONPATH": str(target)}
    shown = _run([*hvdrun, "--check-build"], cwd=tmp_path, **installed)
    assert re.search(r"^ +\[ \] ABI \d+: .*\(hvdlite's native library cannot be loaded", shown, re.MULTILINE)
    assert "[ ] shm: ranks of one host  (needs the native library)" in shown
    assert "[X] zmq: any ranks, in Python; what jobs use here" in shown
    printed = _run([*hvdrun, "-np", "2", sys.executable, "-c", _IN_PYTHON], cwd=tmp_path, **installed)
    assert printed.count(f"zmq [0.0, 2.0, 4.0] {target}") == 2
