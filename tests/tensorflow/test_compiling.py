"""The library of the kernels in the user's cache: made once, found again, and refused if it is not the user's own."""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
import tensorflow as tf

import hvdlite.tensorflow as hvd
from hvdlite.settings import cache_home
from hvdlite.tensorflow.operation import compiling, route
from hvdlite.tensorflow.operation.compiling import CannotCompile, library, obstacle
from tests.harness import process_ranks
from tests.harness.forkserver import TENSORFLOW
from tests.harness.patience import PATIENCE_S

_CLONE_NEWNS = 0x20000

FAKE = """#!/bin/sh
echo made >> {count}
{act}
for last; do :; done
echo library > "$last"
"""


def compiler(folder: Path, act: str = "") -> Path:
    """Puts a compiler into ``folder``, which counts its calls in the file that is returned."""
    folder.mkdir()
    count = folder / "count"
    (folder / "g++").write_text(FAKE.format(count=count, act=act))
    (folder / "g++").chmod(0o755)
    return count


def calls(count: Path) -> int:
    return len(count.read_text().splitlines()) if count.exists() else 0


@pytest.fixture
def count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The calls of the only compiler on the path."""
    found = compiler(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return found


def in_process(cache: Path, before: str = "") -> subprocess.Popen[str]:
    """Another process that makes the library."""
    program = f"""
import sys
from pathlib import Path
from hvdlite.tensorflow.operation.compiling import library
{before}
print(library(Path({str(cache)!r}), "2.0"))
"""
    # Not as a module of hvdlite.tensorflow, whose import takes seconds: the file needs nothing of it.
    program = program.replace(
        "from hvdlite.tensorflow.operation.compiling import library",
        f"import runpy; library = runpy.run_path({compiling.__file__!r})['library']",
    )
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


def test_it_is_made_once_and_found_again(tmp_path: Path, count: Path) -> None:
    cache = tmp_path / "cache"
    path = library(cache, "2.0")
    assert library(cache, "2.0") == path
    assert calls(count) == 1
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.stat().st_mode & 0o022
    assert sorted(each.name for each in path.parent.iterdir()) == sorted(["lock", path.name])


def test_it_needs_the_library_of_tensorflow_that_has_the_c_interface() -> None:
    """Some versions of TensorFlow load that for themselves only."""
    path = library(cache_home(), tf.__version__, tf.sysconfig.get_link_flags())
    (name,) = [flag.removeprefix("-l:") for flag in tf.sysconfig.get_link_flags() if flag.startswith("-l:")]
    assert name.encode() in path.read_bytes()


def test_every_version_and_every_source_has_its_own(
    tmp_path: Path, count: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = library(tmp_path, "2.0")
    assert library(tmp_path, "2.1") != first
    other = tmp_path / "kernels.cc"
    other.write_text("// another")
    monkeypatch.setattr(compiling, "SOURCE", other)
    assert library(tmp_path, "2.0") != first
    assert calls(count) == 3


def test_one_of_several_processes_makes_it_while_the_others_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    count = compiler(tmp_path / "bin", f"cat {gate} > /dev/null")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    processes = [in_process(tmp_path / "cache") for _ in range(3)]
    with gate.open("w"):  # opens when the compiler reads
        assert calls(count) == 1
    paths = {process.communicate(timeout=PATIENCE_S)[0] for process in processes}
    assert len(paths) == 1
    assert calls(count) == 1


def test_a_killed_builder_holds_nobody_up_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    count = compiler(tmp_path / "bin", f'for last; do :; done; echo half > "$last"; cat {gate} > /dev/null')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    killed = in_process(tmp_path / "cache")
    with gate.open("w"):  # its compiler is at work, and has written
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        (half,) = (tmp_path / "cache" / "hvdlite").glob("*.so.*")
        with (tmp_path / "cache" / "hvdlite" / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # free, although the compiler lives on
        shutil.rmtree(tmp_path / "bin")
        compiler(tmp_path / "bin")
        path = library(tmp_path / "cache", "2.0")
        assert path.read_text() == "library\n"
        assert not half.exists()
        assert calls(count) == 1


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path, count: Path, mode: int) -> None:
    folder = tmp_path / "hvdlite"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(CannotCompile, match=r"others may write to it; remove it or set its mode"):
        library(tmp_path, "2.0")
    assert calls(count) == 0


def test_a_library_that_others_may_write_to_is_refused(tmp_path: Path, count: Path) -> None:
    library(tmp_path, "2.0").chmod(0o720)
    assert "others may write to it" in obstacle(tmp_path, "2.0")
    with pytest.raises(CannotCompile, match="others may write to it"):
        library(tmp_path, "2.0")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder to somebody else")
def test_a_folder_or_library_of_somebody_else_is_refused(tmp_path: Path, count: Path) -> None:
    path = library(tmp_path, "2.0")
    for place in (path, path.parent):
        os.chown(place, 4711, -1)
        with pytest.raises(CannotCompile, match="belongs to somebody else"):
            library(tmp_path, "2.0")
        os.chown(place, 0, -1)


def test_links_are_refused(tmp_path: Path, count: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "hvdlite").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CannotCompile, match="belongs to somebody else, or"):
        library(tmp_path, "2.0")


def test_what_goes_wrong_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(tmp_path / "bin", "echo 'kernels.cc:1: no such thing' >&2; exit 3")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(CannotCompile, match=r"g\+\+ ended with code 3: kernels.cc:1: no such thing"):
        library(tmp_path, "2.0")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CannotCompile, match=r"there is no compiler \(g\+\+, c\+\+, clang\+\+\)"):
        library(tmp_path, "2.0")
    (tmp_path / "file").touch()
    with pytest.raises(CannotCompile, match="Not a directory"):
        library(tmp_path / "file", "2.0")


def test_what_would_go_wrong_is_known_without_trying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = compiler(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    cache = tmp_path / "cache"
    assert obstacle(cache, "2.0") == ""
    assert not cache.exists()
    library(cache, "2.0")
    monkeypatch.setenv("PATH", "/nowhere")
    assert obstacle(cache, "2.0") == ""
    assert obstacle(cache, "2.1").startswith("there is no compiler")
    assert calls(count) == 1
    (tmp_path / "other" / "hvdlite").mkdir(parents=True)
    (tmp_path / "other" / "hvdlite").chmod(0o777)
    assert "others may write to it" in obstacle(tmp_path / "other", "2.0")


@pytest.mark.parametrize("route", ["auto", "numpy", "no compiler"])
def test_check_build_says_which_route_graphs_take(tmp_path: Path, route: str) -> None:
    without = {"PATH": "/nowhere"} if route == "no compiler" else {}
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), **without}
    if route != "no compiler":
        environ["HVDLITE_TENSORFLOW_ROUTE"] = route
    hvdrun = Path(sys.executable).with_name("hvdrun")
    ended = subprocess.run(
        [sys.executable, hvdrun, "--check-build"], env=environ, capture_output=True, text=True, timeout=PATIENCE_S
    )
    (line,) = [each.strip() for each in ended.stdout.splitlines() if "operations in TensorFlow" in each]
    reason = {"numpy": "HVDLITE_TENSORFLOW_ROUTE=numpy", "no compiler": "there is no compiler (g++, c++, clang++)"}
    what = "compiled operations in TensorFlow's graphs"
    assert line == (f"[ ] {what}  ({reason[route]}; tf.numpy_function is used)" if route in reason else f"[X] {what}")
    assert f"[X] TensorFlow {tf.__version__}" in ended.stdout


def test_without_a_compiler_one_line_says_so_and_numpy_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    monkeypatch.setenv("PATH", "/nowhere")
    for cached in (route._route, route._compiled):
        cached.cache_clear()
    try:
        hvd.init()
        with mock.patch.object(route.logger, "log") as log:
            assert isinstance(route.route(), route.NumpyFunctions)
            assert isinstance(route.route(), route.NumpyFunctions)
        ((level, text, reason), _) = log.call_args
        assert log.call_count == 1
        assert level == logging.WARNING
        assert (text % reason).endswith("which is slower: there is no compiler (g++, c++, clang++)")
        with pytest.raises(ValueError, match="HVDLITE_TENSORFLOW_ROUTE=compiled, but there is no compiler"):
            route._route("compiled")
    finally:
        hvd.shutdown()
        for cached in (route._route, route._compiled):
            cached.cache_clear()


def sum_in_a_graph(cache: str, is_read_only: bool = False) -> tuple[str, float, list[str]] | None:
    """On a rank: the route of a graph, its result, and what was logged, with ``cache`` for the user's caches.

    None if this process may not mount it read-only.
    """
    if is_read_only and not mounted_read_only(cache):
        return None
    os.environ["XDG_CACHE_HOME"] = cache
    for cached in (route._route, route._compiled):
        cached.cache_clear()
    with mock.patch.object(route.logger, "log") as log:
        hvd.init()
        try:
            total = float(tf.function(lambda: hvd.allreduce(hvd.rank() + 1.0, op=hvd.Sum))())
            kind = type(route.route()).__name__
        finally:
            hvd.shutdown()
    lines = [text % tuple(rest) for (level, text, *rest), _ in log.call_args_list if level >= logging.WARNING]
    return kind, total, lines


def mounted_read_only(folder: str) -> bool:
    """Makes ``folder`` read-only for this thread and its children, which root's permissions cannot change."""
    if os.geteuid() != 0 or ctypes.CDLL(None).unshare(_CLONE_NEWNS) != 0:
        return False
    steps = (["--make-rprivate", "/"], ["--bind", folder, folder], ["-o", "remount,bind,ro", folder])
    return all(subprocess.run(["mount", *step], check=False).returncode == 0 for step in steps)


@pytest.mark.parametrize("is_read_only", [True, False])
def test_where_nothing_can_be_kept_one_line_says_so_and_results_are_right(tmp_path: Path, is_read_only: bool) -> None:
    cache = tmp_path / "cache"
    if is_read_only:
        cache.mkdir()
    else:
        cache.write_text("no folder\n")
    outcomes = process_ranks(2, sum_in_a_graph, str(cache), is_read_only, server=TENSORFLOW)
    found = [outcome.result() for outcome in outcomes]
    if None in found:
        pytest.skip("needs the right to mount, for a folder that root cannot write to")
    assert [(kind, total) for kind, total, _ in found] == [("NumpyFunctions", 3.0)] * 2
    (line,) = [line for *_, lines in found for line in lines]
    assert found[0][2] == [line]
    reason = "Read-only file system" if is_read_only else "Not a directory"
    assert f"collectives in graphs run through tf.numpy_function, which is slower: {reason}: {cache}" in line


def sums_of_two_threads() -> list[list[float]]:
    """On a rank: the results of functions that two threads trace at once, before any other."""
    hvd.init()
    together = threading.Barrier(2)

    def total(name: str) -> list[float]:
        together.wait(PATIENCE_S)
        found = tf.function(lambda: hvd.allreduce(tf.constant([1.0, 2.0]), op=hvd.Sum, name=name))()
        return [float(each) for each in found]

    try:
        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(total, ["a", "b"]))
    finally:
        hvd.shutdown()


@pytest.mark.parametrize("choice", ["compiled", "numpy"])
def test_two_threads_may_be_the_first_to_build_graphs(choice: str) -> None:
    if choice == "compiled" and shutil.which("g++") is None:
        pytest.skip("needs g++")
    environ = {"HVDLITE_TENSORFLOW_ROUTE": choice}
    outcomes = process_ranks(2, sums_of_two_threads, server=TENSORFLOW, environ=environ)
    assert [outcome.result() for outcome in outcomes] == [[[2.0, 4.0]] * 2] * 2


def test_of_two_ranks_that_start_with_an_empty_cache_one_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("g++")
    if real is None:
        pytest.skip("needs g++")
    count = compiler(tmp_path / "bin", f'exec {real} "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    environ = {"HVDLITE_TENSORFLOW_ROUTE": "compiled", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    outcomes = process_ranks(2, sum_after_import, environ={**environ, "PATH": os.environ["PATH"]})
    assert [outcome.result() for outcome in outcomes] == [("CompiledKernels", 3.0)] * 2
    assert calls(count) == 1


def sum_after_import() -> tuple[str, float]:
    """On a rank that had no TensorFlow before: the route of a graph, and its result."""
    hvd.init()
    total = float(tf.function(lambda: hvd.allreduce(hvd.rank() + 1.0, op=hvd.Sum))())
    kind = type(route.route()).__name__
    hvd.shutdown()
    return kind, total
