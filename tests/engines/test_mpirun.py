"""Jobs that Open MPI's mpirun starts."""

from __future__ import annotations

import json
import re
import secrets
from pathlib import Path

import pytest

from tests.engines.starting import JOB, ROOT, inside_hvdrun, lines, mpirun, needs_open_mpi, outputs, run, start

pytestmark = needs_open_mpi


def on_one_host(size: int) -> list[dict[str, object]]:
    rank_sum = size * (size - 1) / 2
    totals = [rank_sum, rank_sum + 10 * size]
    return [{"place": [rank, size, rank, size, 0, 1], "totals": totals} for rank in range(size)]


def test_jobs_side_by_side_do_not_meet() -> None:
    jobs = {size: start([*mpirun(size), JOB, "sums"]) for size in (2, 3)}
    for size, job in jobs.items():
        assert lines(job)[0] == on_one_host(size)


def test_a_rank_that_ended_is_lost_for_the_other() -> None:
    told, err = run([*mpirun(2), JOB, "loses"])
    assert [line["lost"] for line in told] == [1], err


def test_one_rank_is_a_job_of_one() -> None:
    assert run([*mpirun(1), JOB, "sums"])[0] == on_one_host(1)


def test_the_ranks_of_hvdrun_inside_of_mpirun_are_those_of_hvdrun() -> None:
    hvdrun = ["-m", "hvdlite.launcher.cli", "-np", "2", "--output-filename"]
    told, err = run([*mpirun(2), "-c", NESTED, *hvdrun])
    assert told == [{"codes": 0}] * 2, err


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_of_mpirun_inside_of_hvdrun_are_refused(ranks: int) -> None:
    told, err = run(inside_hvdrun(ranks, [*mpirun(2), JOB, "sums"]), succeeds=False)
    assert told == []
    # Whichever of them is refused first ends all.
    assert re.search(rf"rank [01] of {ranks} of the one, and rank [01] of 2 of the other", err), err


def test_single_ranks_of_mpirun_inside_of_hvdrun_are_those_of_hvdrun(tmp_path: Path) -> None:
    run(inside_hvdrun(2, ["--output-filename", str(tmp_path), *mpirun(1), JOB, "sums"]))
    told = [json.loads((tmp_path / f"rank.{rank}/stdout").read_text()) for rank in range(2)]
    assert told == on_one_host(2)


NESTED = f"""
import json, pathlib, subprocess, sys, tempfile
with tempfile.TemporaryDirectory() as folder:
    command = [sys.executable, *sys.argv[1:], folder, sys.executable, {JOB!r}, "sums"]
    ended = subprocess.run(command, capture_output=True, text=True)
    for rank in range(2):
        told = json.loads(pathlib.Path(folder, f"rank.{{rank}}/stdout").read_text())
        assert told["place"] == [rank, 2, rank, 2, 0, 1], told
print(json.dumps({{"codes": ended.returncode}}))
"""


def test_the_example_trains_unchanged() -> None:
    job = start([*mpirun(2), str(ROOT / "examples/torch_digits.py"), "--epochs", "1"])
    assert "with 2 rank(s)" in outputs(job)[0]


def test_ranks_on_several_hosts_find_rank_0_where_mpirun_runs() -> None:
    key = {"HVDLITE_SECRET": secrets.token_hex(32)}
    told, err = run([*mpirun(2), "-c", ON_TWO_HOSTS, JOB, "sums"], key)
    assert told == [{"place": [rank, 2, 0, 1, rank, 2], "totals": [1.0, 21.0]} for rank in range(2)], err


def test_ranks_on_several_hosts_without_a_key_are_told_what_to_do() -> None:
    told, err = run([*mpirun(2), "-c", ON_TWO_HOSTS, JOB, "sums"], succeeds=False)
    assert told == []
    assert "export HVDLITE_SECRET, then start mpirun -x HVDLITE_SECRET" in err


ON_TWO_HOSTS = """
import os, sys
own = {"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "HVDLITE_HOSTID": os.environ["OMPI_COMM_WORLD_RANK"]}
os.execve(sys.executable, [sys.executable, *sys.argv[1:]], os.environ | own)
"""
