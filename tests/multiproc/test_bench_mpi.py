"""The benchmark beside MPI: a library that only pretends, and the real ones where they are installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.mpi import environment
from benchmarks.mpi.environment import Unavailable, bin_folder, environ, folder_of
from benchmarks.mpi.libraries import LIBRARIES
from benchmarks.mpi.peers import WORDS
from hvdlite.bench.peers import parse_peers
from tests.harness.patience import PATIENCE_S
from tests.launcher.hvdrun import COMMAND, read_until, started, still_alive

MPIEXEC = f"""#!/bin/sh
exec "{sys.executable}" -c '
import os, subprocess, sys
at = sys.argv.index("-n") + 1
ranks = [
    subprocess.Popen(sys.argv[at + 1 :], env={{**os.environ, "FAKE_RANK": str(rank), "FAKE_SIZE": sys.argv[at]}})
    for rank in range(int(sys.argv[at]))
]
sys.exit(max(rank.wait() for rank in ranks))
' "$@"
"""

MPI4PY = """
import os
from pathlib import Path
IN_PLACE = object()
class World:
    rank, size = int(os.environ["FAKE_RANK"]), int(os.environ["FAKE_SIZE"])
    def Barrier(self):
        pass
    def Allreduce(self, given, tensor):
        assert given is IN_PLACE
        from hvdlite.bench.measuring.pattern import pattern
        for index, values in enumerate(zip(*map(pattern, range(self.size)))):
            tensor[index::3] = sum(values)
        FAULT
COMM_WORLD = World()
Path(__file__).with_name(f"pid.{COMM_WORLD.rank}").write_text(str(os.getpid()))
def Get_library_version():
    return "Fake MPI 1.0, built for tests"
"""


def _pretend(cache: Path, fault: str = "pass", mpiexec: str = MPIEXEC) -> Path:
    """Puts a library in the place of Intel MPI's environment; the folder where its ranks write their process ids."""
    folder = cache / "hvdlite" / "bench" / f"impi-python{sys.version_info.major}.{sys.version_info.minor}"
    programs, modules = folder / "venv" / "bin", folder / "modules"
    programs.mkdir(parents=True)
    (modules / "mpi4py").mkdir(parents=True)
    (modules / "mpi4py" / "__init__.py").touch()
    (modules / "mpi4py" / "MPI.py").write_text(MPI4PY.replace("FAULT", fault))
    python = f'#!/bin/sh\nshift\nPYTHONPATH="{modules}" exec "{sys.executable}" "$@"\n'  # without its first option, -I
    for name, text in (("mpiexec", mpiexec), ("python", python)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (folder / "installed").write_text("impi-rt\nmpi4py>=4\nnumpy")
    return modules / "mpi4py"


def _bench(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "-np", "2", sys.executable, "-m", "benchmarks", "--sizes", "1K,64K", *arguments]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(cache)}
    return subprocess.run(
        command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S
    )


def test_mpi_is_a_system_like_others(tmp_path: Path) -> None:
    pids = _pretend(tmp_path)
    ended = _bench(tmp_path, "--compare", "impi", "--iters", "6", "--json", str(tmp_path / "rows"))
    assert ended.returncode == 0, ended.stderr
    rows = json.loads((tmp_path / "rows").read_text())
    assert [(row["system"], row["bytes"]) for row in rows] == [
        (system, nbytes) for nbytes in (1 << 10, 64 << 10) for system in ("hvdlite", "impi")
    ]
    assert all(0 < row["min_us"] <= row["median_us"] for row in rows)
    assert "# impi is Fake MPI 1.0\n" in ended.stdout
    assert still_alive([int(path.read_text()) for path in pids.glob("pid.*")], within_s=PATIENCE_S) == []


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("tensor[-1] += self.rank", "impi gave a wrong result on rank 1"),
        ("self.rank == 1 and os._exit(3)", "the MPI rank of impi beside rank 1 has ended"),
    ],
)
def test_what_goes_wrong_in_mpi_ends_the_benchmark(fault: str, said: str, tmp_path: Path) -> None:
    _pretend(tmp_path, fault)
    ended = _bench(tmp_path, "--compare", "impi", "--iters", "1")
    assert ended.returncode == 1
    assert said in ended.stderr


def test_a_library_that_does_not_start_is_left_out_with_a_note(tmp_path: Path) -> None:
    _pretend(tmp_path, mpiexec="#!/bin/sh\necho no fabric here >&2\nexit 3\n")
    ended = _bench(tmp_path, "--compare", "impi", "--iters", "1", "--json", str(tmp_path / "rows"))
    assert ended.returncode == 0, ended.stderr
    assert "# impi is left out: mpiexec ended with 3: no fabric here\n" in ended.stdout
    assert {row["system"] for row in json.loads((tmp_path / "rows").read_text())} == {"hvdlite"}


def test_no_rank_of_mpi_outlives_a_killed_hvdrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pids = _pretend(tmp_path)
    program = (sys.executable, "-m", "benchmarks", "--sizes", "1K:1G:*2", "--compare", "impi")
    with started("-np", "2", *program) as hvdrun:
        assert hvdrun.stdout is not None
        read_until(hvdrun.stdout.fileno(), lambda found: found.count(b"impi") > 3)  # a size has been measured
        ranks = [int(path.read_text()) for path in pids.glob("pid.*")]
        assert len(ranks) == 2
        hvdrun.kill()
        assert still_alive(ranks, within_s=PATIENCE_S) == []


def test_an_environment_that_cannot_be_made_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'no such package' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(environment.sys, "executable", str(program))
    for _ in range(2):  # what failed is not taken for installed
        with pytest.raises(Unavailable, match="python ended with 1: no such package"):
            bin_folder(LIBRARIES["openmpi"])


def test_mpi_is_not_told_that_it_runs_inside_another_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    told = ("HVDLITE_SECRET", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
    for name in (*told, "I_MPI_PIN"):
        monkeypatch.setenv(name, "1")
    assert not set(told) & set(environ())
    assert environ()["I_MPI_PIN"] == "1"  # a user's own tuning


def test_peers_are_a_list_and_mpi_is_all_of_its_libraries() -> None:
    assert parse_peers(["gloo"], WORDS) == ["gloo"]
    assert parse_peers(["mpi, gloo", "impi"], WORDS) == ["impi", "openmpi", "openmpi-sm", "mpich", "gloo"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--compare", "impi", "--dtype", "float16"], "MPI does not take float16"),
        (["--compare", "mpi", "--many", "2", "1K"], "No such option"),
        (
            ["--compare", "gloo,ucc"],
            "cannot compare with 'ucc'; choose from gloo, nccl, impi, openmpi, openmpi-sm, mpich, oneccl, mpi.",
        ),
    ],
)
def test_what_mpi_cannot_do_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("label", "name", "op"),
    [
        ("impi", "Intel(R) MPI", "allreduce"),
        ("oneccl", "oneccl-devel==2021.15.2 over Intel(R) MPI", "allgather"),
        ("oneccl", "oneccl-devel==2021.15.2 over Intel(R) MPI", "broadcast"),
        ("openmpi", "Open MPI v5", "allgather"),
        ("openmpi", "Open MPI v5", "broadcast"),
    ],
)
def test_a_real_library(label: str, name: str, op: str, tmp_path: Path) -> None:
    if not (folder_of(LIBRARIES[label]) / "installed").exists():
        pytest.skip(f"{label} is not installed; 'hvdrun -np 2 python -m benchmarks --compare {label}' installs it")
    cache = folder_of(LIBRARIES[label]).parents[2]
    ended = _bench(cache, "--compare", label, "--op", op, "--iters", "2", "--json", str(tmp_path / "rows"))
    assert ended.returncode == 0, ended.stderr
    assert f"# {label} is {name}" in ended.stdout
    assert [row["system"] for row in json.loads((tmp_path / "rows").read_text())] == ["hvdlite", label] * 2
