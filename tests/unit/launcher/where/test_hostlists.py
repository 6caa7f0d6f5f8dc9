"""Lists of hosts that schedulers and operators have left for a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdlite.errors import BadHostSpec
from hvdlite.launcher.where.hostlists import hosts_of
from hvdlite.launcher.where.hosts import Host

AB = (Host("a", 2), Host("b", 1))
# As `bsub -n 3`, `qsub -l select=1:mpiprocs=2+1:mpiprocs=1` and `qsub -pe mpi 3` leave them.
FILES = {
    "OMPI_MCA_orte_default_hostfile": "a slots=2\nb slots=1\n",
    "HYDRA_HOST_FILE": "a:2\nb:1\n",
    "I_MPI_HYDRA_HOST_FILE": "a:2\nb:1\n",
    "LSB_DJOB_RANKFILE": "a\na\nb\n",
    "PBS_NODEFILE": "a\na\nb\n",
    "PE_HOSTFILE": "a 2 all.q@a UNDEFINED\nb 1 all.q@b <NULL>\n",
}
MARKS = {"LSB_JOBID": "7", "PBS_JOBID": "7.server", "JOB_ID": "7"}


@pytest.mark.parametrize("variable", FILES)
def test_the_files_of_each(tmp_path: Path, variable: str) -> None:
    (tmp_path / "hosts").write_text(FILES[variable])
    assert hosts_of({**MARKS, variable: str(tmp_path / "hosts")}) == AB


@pytest.mark.parametrize(
    ("variable", "text"), [("LSB_MCPU_HOSTS", "a 2 b 1"), ("LSB_MCPU_HOSTS", "a 1 b 1 a 1"), ("LSB_HOSTS", "a a b")]
)
def test_the_variables_of_lsf(variable: str, text: str) -> None:
    assert hosts_of({**MARKS, variable: text}) == AB


def test_without_the_number_of_a_job_a_variable_is_somebody_elses(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a\n")
    for variable in ("LSB_DJOB_RANKFILE", "PBS_NODEFILE", "PE_HOSTFILE"):
        assert hosts_of({variable: str(tmp_path / "hosts")}) == ()
    assert hosts_of({}) == ()


def test_an_operators_worker_may_have_a_long_name(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("train-worker-0.train.team.svc slots=8\n\ntrain-worker-1.train.team.svc:8\n")
    assert hosts_of({"OMPI_MCA_orte_default_hostfile": str(tmp_path / "hosts")}) == (
        Host("train-worker-0.train.team.svc", 8),
        Host("train-worker-1.train.team.svc", 8),
    )


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"PBS_NODEFILE": "/nowhere/hosts"}, "PBS_NODEFILE=/nowhere/hosts cannot be read: No such file"),
        ({"OMPI_MCA_orte_default_hostfile": "/nowhere"}, "OMPI_MCA_orte_default_hostfile /nowhere cannot be read"),
        ({"LSB_MCPU_HOSTS": "a 2 b"}, "LSB_MCPU_HOSTS='a 2 b' has no number of slots for each host"),
        ({"LSB_HOSTS": "  "}, "LSB_HOSTS lists no host"),
        ({"LSB_HOSTS": "a -oProxyCommand=x"}, "LSB_HOSTS: '-oProxyCommand=x:1' is not a host"),
    ],
)
def test_a_list_that_cannot_be_used_is_named(environ: dict[str, str], words: str) -> None:
    with pytest.raises(BadHostSpec) as caught:
        hosts_of({**MARKS, **environ})
    assert words in str(caught.value)


def test_a_file_of_sge_without_slots_is_named(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a\n")
    with pytest.raises(BadHostSpec, match="has no number of slots"):
        hosts_of({**MARKS, "PE_HOSTFILE": str(tmp_path / "hosts")})
