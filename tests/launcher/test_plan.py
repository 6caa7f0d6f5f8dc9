"""Plans: how many ranks go where, and with which environment."""

from __future__ import annotations

import pytest

from hvdlite.errors import BadHostSpec
from hvdlite.launcher.hosts import Host
from hvdlite.launcher.plan import job_environment, make_plan, place_ranks, rank_environment
from hvdlite.rendezvous.job import Job


def test_without_hosts_all_ranks_are_here_whatever_the_cores() -> None:
    assert [place.host for place in place_ranks((), 5, cores=2)] == ["localhost"] * 5


def test_without_a_size_all_slots_are_used() -> None:
    assert len(place_ranks((Host("localhost", 3),), None, cores=2)) == 3


def test_a_host_without_slots_takes_its_cores() -> None:
    assert len(place_ranks((Host("localhost"),), None, cores=2)) == 2


@pytest.mark.parametrize(
    ("hosts", "size", "message"),
    [
        ((), None, "say how many processes"),
        ((), 0, "1 to 65536 ranks"),
        ((Host("localhost", 2),), 3, "3 ranks do not fit into the 2 slots of localhost:2"),
        ((Host("node17.example", 2),), 2, "'node17.example' is not this machine"),
    ],
)
def test_what_cannot_be_placed(hosts: tuple[Host, ...], size: int | None, message: str) -> None:
    with pytest.raises(BadHostSpec, match=message):
        place_ranks(hosts, size, cores=2)


def test_a_rank_has_its_numbers_under_every_name() -> None:
    place = place_ranks((), 4, cores=2)[3]
    environment = rank_environment(place, 4, cores=2, base={})
    numbers = {"RANK": "3", "SIZE": "4", "LOCAL_RANK": "3", "LOCAL_SIZE": "4", "CROSS_RANK": "0", "CROSS_SIZE": "1"}
    for name, number in numbers.items():
        assert environment[f"HVDLITE_{name}"] == environment[f"HOROVOD_{name}"] == number
    torch_names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    assert [environment[name] for name in torch_names] == ["3", "4", "3", "4"]
    assert environment["HVDLITE_HOSTNAME"] == environment["HOROVOD_HOSTNAME"] == "localhost"


@pytest.mark.parametrize(("cores", "size", "threads"), [(8, 2, "4"), (2, 4, "1"), (7, 2, "3")])
def test_cores_are_shared_out_among_the_ranks_of_a_host(cores: int, size: int, threads: str) -> None:
    place = place_ranks((), size, cores)[0]
    assert rank_environment(place, size, cores, {})["OMP_NUM_THREADS"] == threads
    assert "OMP_NUM_THREADS" not in rank_environment(place, size, cores, {"OMP_NUM_THREADS": "9"})


def test_what_the_user_set_wins_over_defaults_but_not_over_the_job() -> None:
    base = {"MASTER_PORT": "1234", "PYTHONUNBUFFERED": "", "HVDLITE_SECRET": "old", "HOME": "/here"}
    job = Job.create()
    assert job_environment(base, job, master_port=5) == {
        "HOME": "/here",
        "HVDLITE_JOB": job.name,
        "HVDLITE_SECRET": job.secret,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1234",
        "PYTHONUNBUFFERED": "",
        "PYTHONFAULTHANDLER": "1",
    }


def test_a_plan_knows_its_hosts_in_order_and_where_its_ranks_meet() -> None:
    here = place_ranks((Host("localhost", 1), Host("127.0.0.1", 2)), None, cores=1)
    plan = make_plan(["true"], here, 1, {}, Job.create(), master_port=5).meeting_at("ipc://@here")
    assert plan.size == 3
    assert plan.hosts == ("localhost", "127.0.0.1")
    assert plan.ranks_on("127.0.0.1") == (1, 2)
    assert plan.environment["HVDLITE_RENDEZVOUS"] == "ipc://@here"


def test_a_setting_that_every_rank_would_refuse_is_refused_here() -> None:
    with pytest.raises(ValueError, match="HVDLITE_SPIN='fast' must be a number"):
        make_plan(["true"], place_ranks((), 2, 2), 2, {"HVDLITE_SPIN": "fast"}, Job.create(), master_port=5)
