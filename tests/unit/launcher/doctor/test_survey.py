"""A survey goes on without hosts that do not answer, and says why they did not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hvdlite.errors import CannotStart
from hvdlite.host.machine import describe_machine
from hvdlite.launcher.doctor.survey import Survey, SurveyedHost, examine_hosts, examine_network
from hvdlite.launcher.stream.questions import Question


class Agents:
    """Agents that answer ``answers[what]``; ``silent`` are the pairs of a host and a question that it leaves open."""

    def __init__(self, answers: Mapping[str, Any], *silent: tuple[str, str]) -> None:
        self._answers, self._silent = answers, silent
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    def ask(self, what: Mapping[str, Question], timeout_s: float = 1.0) -> dict[str, Any]:
        (name,) = {type(question).__name__.lower() for question in what.values()}
        self.asked.append((name, tuple(what)))
        for host in what:
            if (host, name) in self._silent:
                raise CannotStart(host, f"it did not answer {name!r}.")
        return dict.fromkeys(what, self._answers[name])


ANSWERS = {
    "network": {"network": "one machine", "interfaces": []},
    "machine": {**describe_machine(), "cores": 2},
    "software": {"problem": "", "without_native": "", "wakeup_us": 62.3},
    "clock": 0.0,
}


def hosts(*names: str) -> Survey:
    return Survey({name: SurveyedHost(name) for name in names})


def test_a_host_that_falls_silent_is_left_out_and_the_others_are_examined() -> None:
    agents, survey = Agents(ANSWERS, ("b", "machine")), hosts("a", "b", "c")
    examine_hosts(agents.ask, survey)
    assert survey.usable == ["a", "c"]
    assert survey.hosts["b"].problem == "it did not answer 'machine'."
    assert survey.hosts["b"].software == {}
    assert survey.hosts["c"].machine["cores"] == 2
    assert survey.hosts["c"].clock_ahead_s < -1e9
    assert agents.asked[1:4] == [("machine", ("a", "b", "c")), ("machine", ("a", "c")), ("software", ("a", "c"))]


def test_a_host_that_cannot_be_connected_is_asked_nothing() -> None:
    agents, survey = Agents(ANSWERS), hosts("a", "b")
    survey.hosts["b"].problem = "Permission denied"
    examine_hosts(agents.ask, survey)
    assert all("b" not in names for _, names in agents.asked)


def test_an_answer_about_interfaces_that_is_none_is_a_problem_of_that_host() -> None:
    survey = hosts("a")
    examine_hosts(Agents({**ANSWERS, "network": {}}).ask, survey)
    assert "no valid 'interfaces'" in survey.hosts["a"].problem


def test_one_usable_host_has_no_network_to_examine() -> None:
    agents, survey = Agents(ANSWERS), hosts("a")
    examine_network(agents.ask, survey, (), None)
    assert agents.asked == []


def test_names_of_one_machine_are_not_measured() -> None:
    agents, survey = Agents(ANSWERS), hosts("a", "alias")
    examine_network(agents.ask, survey, (), None)
    assert survey.attempts == []
    assert survey.network_problem is None


def test_an_agent_that_dies_in_the_connect_test_is_the_problem_of_the_network() -> None:
    agents, survey = Agents(ANSWERS, ("b", "network")), hosts("a", "b")
    examine_network(agents.ask, survey, (), None)
    assert isinstance(survey.network_problem, CannotStart)
    assert survey.network_problem.host == "b"
