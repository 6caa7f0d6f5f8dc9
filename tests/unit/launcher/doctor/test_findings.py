"""The findings of hvdrun doctor from facts about hosts, and its report."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from hvdlite.errors import CannotStart
from hvdlite.launcher.doctor.findings import Finding, Weight, find
from hvdlite.launcher.doctor.report import as_json, describe
from hvdlite.launcher.doctor.survey import Survey, SurveyedHost, rounds
from hvdlite.launcher.network.attempts import Attempt, HostsUnreached
from hvdlite.launcher.network.candidates import Candidate, Network, rank_candidates
from hvdlite.launcher.stream.fields import read

GIB = 1 << 30
MACHINE = {
    "kernel": "Linux 6.1",
    "cores": 8,
    "cores_limit": None,
    "load": 0.5,
    "memory": 64 * GIB,
    "free_memory": 60 * GIB,
    "memory_limit": None,
    "used_swap": 0,
    "shm": 32 * GIB,
    "files": 65536,
    "locked_memory": None,
    "infiniband": [],
    "gpus": [],
}
SOFTWARE = {
    "python": "3.11.7",
    "hvdlite": "0.1.0",
    "abi": 1,
    "has_curve": True,
    "problem": "",
    "without_native": "",
    "wakeup_us": 62.3,
    "frameworks": {"torch": "2.5.1"},
}


def network(number: int) -> Network:
    row = dict(is_up=True, is_loopback=False, is_virtual=False, mtu=1500, speed_mbps=10_000)
    interface = {"name": "eth0", "addresses": [f"10.0.0.{number}/24"], **row}
    return read(Network, {"network": f"n{number}", "interfaces": [interface]})


def survey(count: int = 3) -> Survey:
    """Hosts a, b, c, ... that lack nothing."""
    networks = {name: network(number) for number, name in enumerate("abcdefgh"[:count], 1)}
    chosen: dict[str, Candidate] = {name: listed[0] for name, listed in rank_candidates(networks).items()}
    hosts = {
        name: SurveyedHost(name, 0.2, machine=MACHINE, software=SOFTWARE, network=networks[name], address=chosen[name])
        for name in networks
    }
    pairs = [(one, other) for one in hosts for other in hosts if one != other]
    return Survey(hosts, [Attempt(one, chosen[other], rtt_us=40.0, mb_per_s=1170.0) for one, other in pairs])


def with_machine(**facts: Any) -> Callable[[Survey], None]:
    def change(survey: Survey) -> None:
        survey.hosts["b"].machine = {**MACHINE, **facts}

    return change


def with_software(**facts: Any) -> Callable[[Survey], None]:
    def change(survey: Survey) -> None:
        survey.hosts["b"].software = {**SOFTWARE, **facts}

    return change


def with_host(**facts: Any) -> Callable[[Survey], None]:
    def change(survey: Survey) -> None:
        for name, value in facts.items():
            setattr(survey.hosts["b"], name, value)

    return change


def with_pair(**figures: Any) -> Callable[[Survey], None]:
    def change(survey: Survey) -> None:
        one = survey.attempts[0]
        survey.attempts[0] = Attempt(one.dialler, one.candidate, **figures)

    return change


def with_pairs(**figures: Any) -> Callable[[Survey], None]:
    def change(survey: Survey) -> None:
        survey.attempts = [Attempt(one.dialler, one.candidate, **figures) for one in survey.attempts]

    return change


def test_hosts_that_lack_nothing() -> None:
    assert find(survey(), {}) == []
    lines = list(describe(survey(), []))
    assert lines[-1] == "A job would run on these hosts."


@pytest.mark.parametrize(
    ("change", "weight", "text"),
    [
        (with_software(without_native="no such file"), Weight.WARNING, "through ZeroMQ, slowly: no such file"),
        (with_host(problem="Permission denied"), Weight.PROBLEM, "no rank can be started: Permission denied"),
        (with_software(problem="no libstdc++"), Weight.PROBLEM, "hvdlite does not work: no libstdc++"),
        (with_software(has_curve=False), Weight.PROBLEM, "without CURVE"),
        (with_machine(cores_limit=1.5), Weight.WARNING, "may use 1.5 cores' time, but sees 8"),
        (with_machine(load=9.0), Weight.WARNING, "load 9.0 on 8 core(s)"),
        (with_machine(free_memory=200 << 20), Weight.WARNING, "only 200 MiB of memory are free"),
        (with_machine(free_memory=10 * GIB, used_swap=GIB), Weight.WARNING, "has swapped out 1024 MiB"),
        (with_machine(files=256), Weight.WARNING, "only 256 files"),
        (with_machine(memory_limit=2 * GIB), Weight.NOTE, "may use 2.0 of its 64.0 GiB"),
        (with_machine(shm=64 << 20), Weight.NOTE, "/dev/shm has 64 MiB"),
        (with_host(clock_ahead_s=-3600.0), Weight.NOTE, "clock is 3600.0 s behind"),
        (with_machine(cores=4), Weight.NOTE, "differ in cores: 8 (a, c), 4 (b)"),
        (with_software(frameworks={}), Weight.WARNING, "differ in torch: 2.5.1 (a, c), none (b)"),
        (with_pair(rtt_us=40.0, mb_per_s=90.0), Weight.WARNING, "b sends 90 MB/s to a, and the median pair 1170"),
        (with_pair(problem="silent"), Weight.WARNING, "did not reach a at 10.0.0.1 (eth0) again: no answer within 2 s"),
        (with_pairs(rtt_us=40.0, mb_per_s=117.0), Weight.NOTE, "carries 117 MB/s"),
        (with_pairs(rtt_us=20_000.0, mb_per_s=1000.0), Weight.NOTE, "takes 20.0 ms"),
    ],
)
def test_each_fact_is_one_finding_with_advice(change: Callable[[Survey], None], weight: Weight, text: str) -> None:
    changed = survey()
    changed.attempts = [changed.attempts[2], *changed.attempts[:2], *changed.attempts[3:]]  # b to a is the first
    assert (changed.attempts[0].dialler, changed.attempts[0].candidate.host) == ("b", "a")
    change(changed)
    (finding,) = find(changed, {})
    assert finding.weight is weight
    assert text in finding.text
    assert finding.advice
    assert json.loads(json.dumps(as_json(changed, [finding])))["would_run"] == (weight is not Weight.PROBLEM)


GPU = {"name": "NVIDIA H100", "memory_mib": "81559", "driver": "550.54"}
WITH_GPUS = {**SOFTWARE, "cuda": "12.4", "without_cuda": "", "nccl": "2.23.4", "without_nccl": ""}


@pytest.mark.parametrize(
    ("facts", "text", "line"),
    [
        ({}, "", "    CUDA 12.4, NCCL 2.23.4"),
        (
            {"nccl": "", "without_nccl": "there is none; install it."},
            "tensors on GPUs would go through memory of the hosts, slowly: there is none",
            "    CUDA 12.4, no NCCL",
        ),
        ({"cuda": "", "without_cuda": "no driver"}, "ranks there cannot use its GPUs: no driver", ""),
        ({"nccl": "2.20.5"}, "hosts differ in NCCL: 2.23.4 (a, c), 2.20.5 (b)", "    CUDA 12.4, NCCL 2.20.5"),
    ],
)
def test_what_gpus_need(facts: dict[str, str], text: str, line: str) -> None:
    changed = survey()
    for host in changed.hosts.values():
        host.machine, host.software = {**MACHINE, "gpus": [GPU]}, WITH_GPUS
    changed.hosts["b"].software = {**WITH_GPUS, **facts}
    assert [finding.text for finding in find(changed, {})] == [text] * bool(text)
    lines = list(describe(changed, []))
    of_b = lines[lines.index("b: connected in 0.20 s") : lines.index("c: connected in 0.20 s")]
    assert [each for each in of_b if "CUDA" in each] == [line] * bool(line)


def test_gpus_that_cannot_lock_memory_or_that_others_lack() -> None:
    changed = survey(2)
    with_machine(gpus=[GPU, GPU], infiniband=["mlx5_0"], locked_memory=64 << 10)(changed)
    texts = [finding.text for finding in find(changed, {})]
    assert any("only 64 KiB of memory may be locked" in text for text in texts)
    assert "hosts differ in GPUs: 0 (a), 2 (b)" in texts
    assert "    GPUs: 2 × NVIDIA H100 (81559 MiB, driver 550.54)" in list(describe(changed, []))


def test_what_hosts_share_is_one_finding_and_the_gravest_comes_first() -> None:
    changed = survey()
    for host in changed.hosts.values():
        host.machine = {**MACHINE, "shm": 64 << 20}
    with_host(problem="gone")(changed)
    first, second, third = find(changed, {"OMP_NUM_THREADS": "16"})
    assert (first.weight, first.hosts) == (Weight.PROBLEM, ("b",))
    assert (second.weight, second.hosts) == (Weight.WARNING, ("a", "b", "c"))
    assert "OMP_NUM_THREADS=16" in second.text
    assert third.hosts == ("a", "b", "c")


def test_hosts_that_do_not_reach_each_other_are_a_problem_with_the_whole_report() -> None:
    changed = survey(2)
    attempts = [Attempt("a", changed.attempts[0].candidate, "refused")]
    changed.network_problem = HostsUnreached(attempts, None)
    (finding,) = find(changed, {})
    assert any("connection refused" in line for line in finding.details)
    assert list(describe(changed, [finding]))[-1] == "1 problem(s): a job would not run."
    changed.network_problem = CannotStart("b", "it has no network interface ib0; it has eth0 10.0.0.2.")
    (finding,) = find(changed, {})
    assert (finding.hosts, finding.weight) == (("b",), Weight.PROBLEM)


def test_the_report_is_aligned() -> None:
    lines = list(describe(survey(2), [Finding(Weight.NOTE, ("a", "b"), "text", "advice " * 20, ("  detail",))]))
    assert lines == [
        "a: connected in 0.20 s",
        "    Linux 6.1, 8 core(s), load 0.50, 60 GiB of 64 GiB memory free",
        "    65536 open files, any locked memory, 32 GiB in /dev/shm",
        "    hvdlite 0.1.0 (ABI 1), Python 3.11.7, torch 2.5.1",
        "    a wake-up takes 62 µs",
        "    eth0: 10.0.0.1/24, 10 Gbit/s, MTU 1500  <- used: 10.0.0.1",
        "",
        "b: connected in 0.20 s",
        "    Linux 6.1, 8 core(s), load 0.50, 60 GiB of 64 GiB memory free",
        "    65536 open files, any locked memory, 32 GiB in /dev/shm",
        "    hvdlite 0.1.0 (ABI 1), Python 3.11.7, torch 2.5.1",
        "    a wake-up takes 62 µs",
        "    eth0: 10.0.0.2/24, 10 Gbit/s, MTU 1500  <- used: 10.0.0.2",
        "",
        "From the host of a row to that of a column: round trip and bandwidth",
        "                     a                b",
        "    a                -  40 µs 1170 MB/s",
        "    b  40 µs 1170 MB/s                -",
        "",
        "note: a, b: text",
        "      detail",
        "    -> " + "advice " * 12 + "advice",
        "       " + "advice " * 6 + "advice",
        "",
        "A job would run on these hosts.",
    ]


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_a_round_measures_no_host_twice_and_all_rounds_measure_all(count: int) -> None:
    names = "abcdefgh"[:count]
    calls = [(one, other) for one in names for other in names if one != other]
    measured = list(rounds(calls))
    for together in measured:
        hosts = [host for call in together for host in call]
        assert len(hosts) == len(set(hosts))
    assert sorted(call for together in measured for call in together) == sorted(calls)
