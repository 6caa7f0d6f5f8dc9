"""Plans: how many ranks go where, and with which environment."""

from __future__ import annotations

import pytest

from hvdlite.compat import FALLBACK, FOLDER
from hvdlite.errors import BadHostSpec
from hvdlite.launcher.decisions.plan import (
    Resources,
    Size,
    job_environment,
    make_plan,
    place_ranks,
    rank_environment,
    wanted_hosts,
)
from hvdlite.launcher.where.hosts import Host
from hvdlite.members.topology import Placement
from hvdlite.rendezvous.job import Job


def here(size: int) -> tuple[Placement, ...]:
    return place_ranks((Host("localhost", size),), None, {})


def test_without_hosts_all_ranks_are_here_whatever_the_cores() -> None:
    assert wanted_hosts((), 5) == (Host("localhost", 5),)
    assert wanted_hosts((), None, 3) == (Host("localhost", 3),)


def test_no_host_takes_more_ranks_than_was_said() -> None:
    hosts = (Host("a", 8), Host("b", 2), Host("c"))
    assert [host.slots for host in wanted_hosts(hosts, None, 4)] == [4, 2, 4]
    assert wanted_hosts(hosts, 5) == hosts


def test_something_must_say_how_many_ranks_there_are() -> None:
    with pytest.raises(BadHostSpec, match="say how many processes"):
        wanted_hosts((), None)


def test_ranks_of_this_host_have_no_other_user() -> None:
    with pytest.raises(BadHostSpec, match="localhost is this host, where ranks run as you; leave out me@"):
        wanted_hosts((Host("localhost", 2, "me"),), 2)


def test_without_a_size_all_slots_are_used() -> None:
    assert len(place_ranks((Host("localhost", 3),), None, {})) == 3


def test_a_host_without_slots_takes_its_cores() -> None:
    placements = place_ranks(
        (Host("a"), Host("b"), Host("c", 1)), None, {"a": Resources(2), "b": Resources(1), "c": Resources(9)}
    )
    assert [place.host for place in placements] == ["a", "a", "b", "c"]


@pytest.mark.parametrize(
    ("size", "gpus_per_rank", "hosts"),
    [
        (None, None, "aabbbc"),
        ("auto", None, "aaabbbc"),
        ("auto", 1, "aaac"),
        ("auto", 2, "ac"),
        (None, 2, "ac"),
        (2, 3, "ac"),
    ],
)
def test_a_rank_for_each_gpu(size: Size, gpus_per_rank: int | None, hosts: str) -> None:
    resources = {"a": Resources(2, ("0", "1", "2")), "b": Resources(3), "c": Resources(9)}
    placements = place_ranks((Host("a"), Host("b"), Host("c", 1)), size, resources, gpus_per_rank)
    assert "".join(place.host for place in placements) == hosts


@pytest.mark.parametrize(
    ("size", "per_host", "gpus_per_rank", "hosts"),
    [
        ("auto", 4, None, "aabb"),
        ("auto", 1, None, "ab"),
        ("auto", 4, 1, "aabb"),
        ("auto", 4, 2, "abb"),
        (None, 4, 1, "aabb"),
        (None, 4, None, "aaaabb"),
        (2, 1, 1, "ab"),
    ],
)
def test_at_most_so_many_on_a_host(size: Size, per_host: int, gpus_per_rank: int | None, hosts: str) -> None:
    wanted = wanted_hosts((Host("a"), Host("b", 2)), size, per_host, gpus_per_rank)
    resources = {"a": Resources(8, ("0", "1")), "b": Resources(8, ("0", "1"))}
    placements = place_ranks(wanted, size, resources, gpus_per_rank, per_host)
    assert "".join(place.host for place in placements) == hosts


def test_gpus_decide_how_many_ranks_this_machine_has() -> None:
    for size, per_host, gpus_per_rank in (("auto", None, None), ("auto", 4, None), (None, None, 1), (None, 4, 1)):
        assert wanted_hosts((), size, per_host, gpus_per_rank) == (Host("localhost"),)


def test_two_names_of_this_machine_do_not_share_its_gpus() -> None:
    twice = (Host("localhost", 1), Host("far", 1), Host("127.0.0.1", 1))
    with pytest.raises(BadHostSpec, match=r"localhost and 127.0.0.1 are one machine.*; use one name with --gpus-per"):
        wanted_hosts(twice, 2, None, 1)
    assert wanted_hosts(twice, "auto") == twice


def test_two_names_of_another_machine_share_its_cores_and_not_its_gpus() -> None:
    far = Resources(8, ("0", "1"), "far")
    resources = {
        "localhost": Resources(8, (), "here"),
        "far": far,
        "10.97.0.2": far,
        "b": Resources(8),
        "c": Resources(8),
    }
    placements = place_ranks([Host(name, 1 + (name == "far")) for name in resources], None, resources)
    plan = make_plan(["true"], placements, resources, {}, Job.create(), ports=[5])
    assert plan.aliases == (("far", "10.97.0.2"),)
    assert [own["OMP_NUM_THREADS"] for own in plan.of_rank] == ["8", "2", "2", "2", "8", "8"]
    with pytest.raises(
        BadHostSpec, match=r"far and 10\.97\.0\.2 are one machine and ranks .*; use one name with --gpus"
    ):
        make_plan(["true"], placements[1:4], resources, {}, Job.create(), gpus_per_rank=1, ports=[5])


def test_ranks_have_gpus_of_their_own() -> None:
    resources = {"a": Resources(8, ("4", "GPU-1", "6", "7")), "b": Resources(8, ("0", "1"))}
    placements = place_ranks((Host("a", 2), Host("b", 1)), None, resources, 2)
    plan = make_plan(["true"], placements, resources, {}, Job.create(), gpus_per_rank=2, ports=[5])
    assert [own["CUDA_VISIBLE_DEVICES"] for own in plan.of_rank] == ["4,GPU-1", "6,7", "0,1"]


def test_a_host_with_too_few_gpus_is_named() -> None:
    placements = place_ranks((Host("a", 3),), None, {}, 1)
    two = {"a": Resources(8, ("0", "1"))}
    with pytest.raises(BadHostSpec, match=r"a has 2 GPU\(s\), too few for 3 rank\(s\) with --gpus-per-proc 1; start"):
        make_plan(["true"], placements, two, {}, Job.create(), gpus_per_rank=1, ports=[5])
    with pytest.raises(BadHostSpec, match=r"no host has 2 GPU\(s\) for a rank; see nvidia-smi"):
        place_ranks((Host("a"),), "auto", {"a": Resources(8, ("0",))}, 2)


def test_more_ranks_than_slots_are_refused() -> None:
    with pytest.raises(BadHostSpec, match="3 ranks do not fit into the 2 slots of localhost:2"):
        place_ranks((Host("localhost", 2),), 3, {})


def test_a_rank_has_its_numbers_under_every_name() -> None:
    place = here(4)[3]
    environment = rank_environment(place, 4, Resources(2), base={})
    numbers = {"RANK": "3", "SIZE": "4", "LOCAL_RANK": "3", "LOCAL_SIZE": "4", "CROSS_RANK": "0", "CROSS_SIZE": "1"}
    for name, number in numbers.items():
        assert environment[f"HVDLITE_{name}"] == environment[f"HOROVOD_{name}"] == number
    torch_names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    assert [environment[name] for name in torch_names] == ["3", "4", "3", "4"]
    assert environment["HVDLITE_HOSTNAME"] == environment["HOROVOD_HOSTNAME"] == "localhost"


@pytest.mark.parametrize(("cores", "size", "threads"), [(8, 2, "4"), (2, 4, "1"), (7, 2, "3")])
def test_cores_are_shared_out_among_the_ranks_of_a_host(cores: int, size: int, threads: str) -> None:
    place = here(size)[0]
    assert rank_environment(place, size, Resources(cores), {})["OMP_NUM_THREADS"] == threads
    assert "OMP_NUM_THREADS" not in rank_environment(place, size, Resources(cores), {"OMP_NUM_THREADS": "9"})


def test_what_the_user_set_wins_over_defaults_but_not_over_the_job() -> None:
    base = {"MASTER_PORT": "1234", "PYTHONUNBUFFERED": "", "HVDLITE_SECRET": "old", "HOME": "/here"}
    job = Job.create()
    assert job_environment(base, job, "127.0.0.1", [5, 6, 7]) == {
        "HOME": "/here",
        "HVDLITE_JOB": job.name,
        "HVDLITE_SECRET": job.secret,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1234",
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": "127.0.0.1:6",
        "JAX_COORDINATOR_ADDRESS": "127.0.0.1:7",
        "PYTHONUNBUFFERED": "",
        "PYTHONFAULTHANDLER": "1",
    }


def test_frameworks_meet_where_ports_are_free_and_never_by_tf_config() -> None:
    found = job_environment({}, Job.create(), "fe80::1", [5, 6])
    assert found["KERAS_DISTRIBUTION_JOB_ADDRESSES"] == "[fe80::1]:6"
    assert not {"JAX_COORDINATOR_ADDRESS", "TF_CONFIG"} & found.keys()
    places = [rank_environment(place, 2, Resources(2), {}) for place in here(2)]
    assert [(each["KERAS_DISTRIBUTION_PROCESS_ID"], each["KERAS_DISTRIBUTION_NUM_PROCESSES"]) for each in places] == [
        ("0", "2"),
        ("1", "2"),
    ]


def test_a_plan_knows_its_hosts_in_order_and_where_its_ranks_meet() -> None:
    placements = place_ranks((Host("localhost", 1), Host("127.0.0.1", 2)), None, {})
    resources = {"localhost": Resources(1), "127.0.0.1": Resources(1)}
    plan = make_plan(["true"], placements, resources, {}, Job.create(), ports=[5]).meeting_at("unix://@here")
    assert plan.size == 3
    assert plan.hosts == ("localhost", "127.0.0.1")
    assert plan.ranks_on("127.0.0.1") == (1, 2)
    assert plan.environment["HVDLITE_RENDEZVOUS"] == "unix://@here"
    assert plan.on("127.0.0.1").environment == plan.environment


def test_another_host_gets_what_belongs_to_the_job_and_meets_through_a_socket_of_its_own() -> None:
    names = "PATH PYTHONPATH NCCL_DEBUG VIRTUAL_ENV OMP_PROC_BIND KERAS_BACKEND WANTED"
    base = dict.fromkeys(names.split(), "x")
    kept_here = dict.fromkeys(("HOME", "SSH_AUTH_SOCK", "CUDA_VISIBLE_DEVICES", "HVDLITE_HOSTID", "EDITOR"), "x")
    placements = place_ranks((Host("localhost", 1), Host("far", 1)), None, {})
    plan = make_plan(
        ["true"],
        placements,
        {"localhost": Resources(4), "far": Resources(8)},
        {**base, **kept_here},
        Job.create(),
        ports=[5],
        named={"WANTED"},
        of_host={"localhost": {"HVDLITE_ADDRESS": "10.0.0.1"}, "far": {"HVDLITE_ADDRESS": "10.0.0.2"}},
        folders={"far": "/over/there"},
    ).meeting_at("unix://@here")
    near, far = plan.on("localhost"), plan.on("far")
    assert near.environment.keys() >= base.keys() | kept_here.keys()
    assert (near.environment["HVDLITE_RENDEZVOUS"], near.services, near.names) == ("unix://@here", {}, {})
    assert far.environment.keys() >= base.keys()
    assert not far.environment.keys() & kept_here.keys()
    assert far.environment["HVDLITE_RENDEZVOUS"] == f"unix://@{far.names['HVDLITE_RENDEZVOUS']}" != "unix://@here"
    assert far.services == {"HVDLITE_RENDEZVOUS": "here"}
    assert (near.environment["HVDLITE_ADDRESS"], far.environment["HVDLITE_ADDRESS"]) == ("10.0.0.1", "10.0.0.2")
    assert near.environment["MASTER_ADDR"] == far.environment["MASTER_ADDR"] == "10.0.0.1"
    assert [rank["OMP_NUM_THREADS"] for rank in plan.of_rank] == ["4", "8"]
    assert (far.cwd, far.ranks) == ("/over/there", (1,))


@pytest.mark.parametrize(("path", "is_appended"), [(FALLBACK, True), (f"mine:{FALLBACK}", False), (FOLDER, False)])
def test_another_host_keeps_its_own_pythonpath_if_there_is_none_here(path: str, is_appended: bool) -> None:
    placements = place_ranks((Host("localhost", 1), Host("far", 1)), None, {})
    resources = {"localhost": Resources(4), "far": Resources(8)}
    plan = make_plan(["true"], placements, resources, {"PYTHONPATH": path}, Job.create(), ports=[5])
    assert plan.on("localhost").environment["PYTHONPATH"] == path
    far = plan.on("far")
    assert far.environment.get("PYTHONPATH") == (None if is_appended else path)
    assert far.appended == ({"PYTHONPATH": path} if is_appended else {})


def test_a_setting_that_every_rank_would_refuse_is_refused_here() -> None:
    with pytest.raises(ValueError, match="HVDLITE_SPIN='fast' must be a number"):
        make_plan(["true"], here(2), {"localhost": Resources(2)}, {"HVDLITE_SPIN": "fast"}, Job.create(), ports=[5])
