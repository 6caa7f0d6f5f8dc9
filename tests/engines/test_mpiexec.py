"""Jobs that MPICH's mpiexec starts, which does not name them."""

from __future__ import annotations

from tests.engines.starting import JOB, lines, mpiexec, needs_hydra, start

pytestmark = needs_hydra


def test_jobs_side_by_side_do_not_meet() -> None:
    jobs = {size: start([*mpiexec(size), JOB, "sums"]) for size in (2, 3)}
    for size, job in jobs.items():
        assert [line["place"] for line in lines(job)[0]] == [[rank, size, rank, size, 0, 1] for rank in range(size)]


def test_scripts_between_mpiexec_and_python_do_not_matter() -> None:
    nested = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)"
    told, err = lines(start([*mpiexec(2), "-c", nested, JOB, "sums"]))
    assert [line["totals"] for line in told] == [[1.0, 21.0]] * 2, err
