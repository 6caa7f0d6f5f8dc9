"""``hvdrun doctor`` over real hosts: what it measures, what it finds, and its exit code."""

from __future__ import annotations

import json
from subprocess import CompletedProcess
from typing import Any

from hvdlite.version import __version__
from tests.harness.faults import rule
from tests.harness.hosts import Network
from tests.hosts.jobs import hvdrun


def examined(ended: CompletedProcess[str]) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(ended.stdout)
    assert report["would_run"] == (ended.returncode == 0)
    return report


def test_all_pairs_are_measured_and_hosts_described(network: Network) -> None:
    report = examined(hvdrun(network["a"], "doctor", "-H", "a,b,c", "--json"))
    assert report["would_run"]
    assert sorted((pair["from"], pair["to"]) for pair in report["pairs"]) == [
        (one, other) for one in "abc" for other in "abc" if one != other
    ]
    assert all(pair["rtt_us"] > 0 and pair["mb_per_s"] > 0 for pair in report["pairs"])
    for name, host in report["hosts"].items():
        assert host["address"] == network[name].address
        assert host["software"]["hvdlite"] == __version__
        assert host["software"]["problem"] == ""
        assert abs(host["clock_ahead_s"]) < 1.0
        assert host["machine"]["cores"] > 0


def test_a_host_that_cannot_be_reached_is_a_problem_and_the_others_are_examined(network: Network) -> None:
    ended = hvdrun(network["a"], "doctor", "-H", "a,nowhere,b")
    assert ended.returncode == 1
    assert "nowhere: no rank can be started: ssh: Could not resolve hostname nowhere" in ended.stdout
    assert "From the host of a row to that of a column: round trip and bandwidth" in ended.stdout
    assert ended.stdout.endswith("1 problem(s): a job would not run.\n")
    assert "\x1b" not in ended.stdout


def test_hosts_that_do_not_reach_each_other_are_a_problem(network: Network) -> None:
    with rule(network["b"], "input", "tcp dport != 22 tcp flags & (syn | ack) == syn reject with tcp reset"):
        report = examined(hvdrun(network["a"], "doctor", "-H", "a,b,c", "--json"))
    assert not report["would_run"]
    assert report["pairs"] == []
    (problem,) = [finding for finding in report["findings"] if finding["weight"] == "problem"]
    assert "no address of b works" in problem["text"]
    assert "not by a, c: connection refused" in "\n".join(problem["details"])


def test_this_host_alone(network: Network) -> None:
    report = examined(hvdrun(network["a"], "doctor", "--json"))
    assert list(report["hosts"]) == ["localhost"]
    assert report["pairs"] == []
