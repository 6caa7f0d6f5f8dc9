"""The supervisor's decisions, with invented times and no process."""

from __future__ import annotations

import signal

import pytest

from hvdlite.errors import ENDED, PeerLost
from hvdlite.launcher.decisions.supervisor import (
    GRACE_S,
    INTERRUPT_GRACE_S,
    LAST_WAIT_S,
    START_S,
    Close,
    Destroy,
    Exit,
    Failure,
    Phase,
    Signal,
    Supervisor,
)
from hvdlite.launcher.screen.texts import describe_failure

INT, TERM, KILL = Signal(signal.SIGINT), Signal(signal.SIGTERM), Signal(signal.SIGKILL)


def job(*hosts: str) -> Supervisor:
    """A job whose ranks have all started."""
    supervisor = Supervisor(dict(enumerate(hosts)), now=0.0)
    for rank in range(len(hosts)):
        supervisor.started(rank)
    return supervisor


HERE = ("here", "here", "here")


def test_all_ranks_end_well() -> None:
    supervisor = job(*HERE[:2])
    assert supervisor.exited(Exit(1, 11, 0, 5.0), 5.0) == []
    assert supervisor.phase is Phase.RUNNING
    assert supervisor.exited(Exit(0, 10, 0, 9.0), 9.0) == [Close()]
    assert supervisor.phase is Phase.CLOSING
    assert supervisor.agent_ended("here", 9.1) == []
    assert (supervisor.phase, supervisor.exit_code, supervisor.failure) == (Phase.FINISHED, 0, None)


def test_the_first_failure_ends_the_others_and_decides_the_code() -> None:
    supervisor = job(*HERE)
    assert supervisor.exited(Exit(1, 11, 7, 5.0), 5.0) == [TERM]
    assert supervisor.deadline == 5.0 + GRACE_S
    assert supervisor.exited(Exit(0, 10, -signal.SIGTERM, 5.1), 5.1) == []
    assert supervisor.exited(Exit(2, 12, 3, 5.2), 5.2) == [Close()]
    assert supervisor.exit_code == 7
    assert supervisor.failure is not None
    assert (supervisor.failure.rank, supervisor.failure.reason) == (1, "ended with code 7")


def test_the_user_says_how_long_ranks_have_after_sigterm() -> None:
    supervisor = Supervisor({0: "here", 1: "here"}, now=0.0, grace_s=25.0)
    for rank in range(2):
        supervisor.started(rank)
    assert supervisor.interrupted(signal.SIGTERM, now=1.0) == [TERM]
    assert supervisor.tick(25.9) == []
    assert supervisor.exited(Exit(0, 10, 0, 26.0), 26.0) == []
    assert supervisor.exited(Exit(1, 11, 0, 26.0), 26.0) == [Close(grace_s=25.0)]


def test_a_signal_is_128_and_its_number() -> None:
    supervisor = job(*HERE[:1])
    supervisor.exited(Exit(0, 10, -signal.SIGSEGV, 1.0), 1.0)
    assert supervisor.exit_code == 128 + signal.SIGSEGV
    assert supervisor.failure is not None
    assert supervisor.failure.reason == "was ended by signal 11 (SIGSEGV)"


def test_an_earlier_failure_that_is_heard_later_is_the_first() -> None:
    supervisor = job("a", "b")
    supervisor.exited(Exit(0, 10, 1, 5.0), 5.0)
    supervisor.exited(Exit(1, 10, 9, 4.9), 5.3)
    assert supervisor.exit_code == 9


def test_of_two_clocks_that_are_not_sure_the_failure_that_was_heard_first_is_the_first() -> None:
    supervisor = job("a", "b", "c")
    supervisor.exited(Exit(0, 10, 1, 5.0, uncertain_s=0.1), 5.0)
    supervisor.exited(Exit(1, 10, 9, 4.9, uncertain_s=0.1), 5.3)
    assert supervisor.exit_code == 1
    supervisor.exited(Exit(2, 10, 8, 4.7, uncertain_s=0.1), 5.4)
    assert supervisor.exit_code == 8


def test_a_victim_is_not_the_cause_although_it_was_heard_first_and_ended_first() -> None:
    supervisor = job(*HERE)
    supervisor.exited(Exit(0, 10, 1, 5.0, ended_by=(2, "was lost: its process ended")), 5.0)
    supervisor.exited(Exit(1, 11, 1, 4.9, ended_by=(2, "was lost: its process ended")), 5.1)
    supervisor.exited(Exit(2, 12, 7, 5.2), 5.2)
    assert supervisor.failure is not None
    assert (supervisor.failure.rank, supervisor.exit_code) == (2, 7)


def test_a_victim_does_not_take_the_place_of_a_cause() -> None:
    supervisor = job(*HERE)
    supervisor.exited(Exit(2, 12, 7, 5.2), 5.2)
    supervisor.exited(Exit(0, 10, 1, 5.0, ended_by=(2, "was lost: its process ended")), 5.3)
    assert supervisor.exit_code == 7


@pytest.mark.parametrize("end", [0, -signal.SIGTERM, -signal.SIGKILL], ids=["well", "SIGTERM", "SIGKILL"])
def test_a_culprit_that_has_no_failure_of_its_own_is_named_by_its_victim(end: int) -> None:
    supervisor = job(*HERE)
    supervisor.exited(Exit(0, 10, 3, 5.0, ended_by=(2, "was lost: its process 12 has been stopped for 2.5 s")), 5.0)
    supervisor.exited(Exit(1, 11, 4, 5.1), 5.1)
    supervisor.tick(5.0 + GRACE_S)
    supervisor.exited(Exit(2, 12, end, 10.1), 10.1)
    failure = supervisor.failure
    assert failure is not None
    assert (failure.rank, failure.to_look_at, supervisor.exit_code) == (0, 2, 3)
    box = list(describe_failure(failure, [], None))
    assert box[0].startswith("+-- hvdrun: rank 2 on here was lost: its process 12 has been stopped for 2.5 s ")
    assert box[1] == "| rank 0 on here ended with code 3 because of that"


def test_a_rank_that_merely_was_done_first_is_thought_of() -> None:
    supervisor = job(*HERE)
    supervisor.exited(Exit(0, 10, 1, 5.0, ended_by=(2, "was lost: its process ended")), 5.0)
    supervisor.exited(Exit(2, 12, 0, 4.9), 5.1)
    assert supervisor.failure is not None
    box = list(describe_failure(supervisor.failure, [], None))
    assert box[2].startswith("| hint: if rank 2 shows no error, it was killed or finished first: ")
    assert supervisor.done == {2}
    box = list(describe_failure(supervisor.failure, [], None, done=True, batches=5))
    assert box[0].startswith("+-- hvdrun: rank 2 on here exited with code 0 after 5 batches of collectives ")
    assert box[2].startswith("| hint: make every call on all ranks")
    lost, stopped = PeerLost(2, "here", ENDED), PeerLost(2, "here", "its process 12 has been stopped for 2.5 s")
    assert ["hvd.join()" in str(error) for error in (lost, stopped)] == [True, False]


def test_those_who_lost_a_host_tell_more_than_its_silence_and_have_the_code() -> None:
    supervisor = job("a", "b")
    supervisor.exited(Exit(0, 10, 3, 3.5, ended_by=(1, "was lost: its host could not be reached for 3.0 s")), 3.5)
    supervisor.host_lost("b", 8.0, "no sign of life from b for 8 s")
    failure = supervisor.failure
    assert failure is not None
    assert (failure.rank, failure.to_look_at, supervisor.exit_code) == (0, 1, 3)
    box = list(describe_failure(failure, [], None))
    assert box[0].startswith("+-- hvdrun: rank 1 on b was lost: its host could not be reached for 3.0 s ")


@pytest.mark.parametrize("named", [0, 3, -1], ids=["itself", "of no job", "negative"])
def test_a_rank_that_names_no_other_is_the_cause_itself(named: int) -> None:
    supervisor = job(*HERE)
    supervisor.exited(Exit(0, 10, 3, 5.0, ended_by=(named, "was lost")), 5.0)
    assert supervisor.failure is not None
    assert (supervisor.failure.culprit, supervisor.failure.to_look_at) == (None, 0)


def test_a_kill_for_want_of_memory_is_named() -> None:
    supervisor = job("a")
    supervisor.exited(Exit(0, 10, -signal.SIGKILL, 5.0, is_oom=True), 5.0)
    assert supervisor.exit_code == 128 + signal.SIGKILL
    assert supervisor.failure is not None
    assert supervisor.failure.reason == "was killed by the kernel: out of memory"
    assert "\n".join(describe_failure(supervisor.failure, [], None)).count("memory") == 1


def test_a_rank_that_its_agent_ended_is_not_to_blame_even_if_others_were_heard_first() -> None:
    supervisor = job("a", "b")
    supervisor.exited(Exit(0, 10, 1, 5.1, ended_by=(1, "was lost: its process ended")), 5.1)
    supervisor.exited(Exit(1, 11, -signal.SIGKILL, 5.0, agent="which got SIGTERM"), 5.2)
    failure = supervisor.failure
    assert failure is not None
    assert (failure.rank, failure.reason) == (1, "was ended by its agent, which got SIGTERM")
    assert not any("hint" in line for line in describe_failure(failure, [], None))


def test_a_job_that_an_agent_cut_short_has_failed_even_if_its_ranks_exit_with_0() -> None:
    supervisor = job("a", "a")
    assert supervisor.exited(Exit(0, 10, 0, 5.0, agent="which got SIGTERM"), 5.0) == [TERM]
    supervisor.exited(Exit(1, 11, 0, 5.1, agent="which got SIGTERM"), 5.1)
    assert supervisor.failure is not None
    assert (supervisor.failure.rank, supervisor.exit_code) == (0, 128 + signal.SIGTERM)


def test_a_host_without_a_sign_of_life_loses_its_ranks_and_is_destroyed_once() -> None:
    supervisor = job("a", "b")
    assert supervisor.host_lost("b", 9.0, "no sign of life from b for 8 s") == [Destroy("b"), TERM]
    assert supervisor.agent_ended("b", 9.1) == []
    assert supervisor.exited(Exit(0, 10, -signal.SIGTERM, 9.2), 9.2) == [Close()]
    assert supervisor.agent_ended("a", 9.3) == []
    assert supervisor.failure is not None
    assert supervisor.failure.reason == "was lost: no sign of life from b for 8 s"
    assert (supervisor.phase, supervisor.exit_code) == (Phase.FINISHED, 1)


def test_ranks_that_ignore_sigterm_are_killed_after_the_grace_and_then_their_agent() -> None:
    supervisor = job(*HERE[:2])
    supervisor.exited(Exit(0, 10, 1, 5.0), 5.0)
    assert supervisor.tick(5.0 + GRACE_S - 0.1) == []
    assert supervisor.tick(5.0 + GRACE_S) == [KILL]
    assert supervisor.phase is Phase.KILLING
    assert supervisor.tick(5.0 + GRACE_S + LAST_WAIT_S) == [Destroy("here")]
    assert (supervisor.phase, supervisor.exit_code) == (Phase.FINISHED, 1)


@pytest.mark.parametrize(("signum", "first"), [(signal.SIGINT, INT), (signal.SIGTERM, TERM), (signal.SIGHUP, TERM)])
def test_one_signal_asks_two_kill_three_destroy(signum: signal.Signals, first: Signal) -> None:
    supervisor = job(*HERE[:2])
    assert supervisor.interrupted(signum, 1.0) == [first]
    assert supervisor.interrupted(signal.SIGINT, 1.1) == [KILL]
    assert supervisor.interrupted(signal.SIGINT, 1.2) == [Destroy("here")]
    assert (supervisor.phase, supervisor.exit_code) == (Phase.FINISHED, 128 + signum)


def test_ranks_that_ignore_ctrl_c_get_sigterm_and_then_sigkill() -> None:
    supervisor = job(*HERE[:2])
    supervisor.interrupted(signal.SIGINT, 1.0)
    assert supervisor.tick(1.0 + INTERRUPT_GRACE_S - 0.1) == []
    assert supervisor.tick(1.0 + INTERRUPT_GRACE_S) == [TERM]
    assert supervisor.tick(1.0 + INTERRUPT_GRACE_S + GRACE_S - 0.1) == []
    assert supervisor.tick(1.0 + INTERRUPT_GRACE_S + GRACE_S) == [KILL]
    assert (supervisor.failure, supervisor.exit_code) == (None, 130)


def test_whatever_a_rank_does_after_ctrl_c_is_no_failure() -> None:
    supervisor = job("a", "a", "a", "b")
    supervisor.interrupted(signal.SIGINT, 1.0)
    assert supervisor.exited(Exit(0, 10, 1, 0.9), 1.1) == []
    assert supervisor.exited(Exit(1, 11, -signal.SIGSEGV, 1.2, ended_by=(0, "was lost: its process ended")), 1.2) == []
    assert supervisor.host_lost("b", 1.3, "no sign of life from b for 8 s") == [Destroy("b")]
    assert supervisor.phase is Phase.INTERRUPTING
    assert supervisor.exited(Exit(2, 12, 0, 3.0), 3.0) == [Close(GRACE_S)]
    assert (supervisor.failure, supervisor.exit_code) == (None, 130)


def test_what_ranks_left_behind_has_time_for_ctrl_c_too() -> None:
    supervisor = job(*HERE[:1])
    supervisor.interrupted(signal.SIGINT, 1.0)
    assert supervisor.exited(Exit(0, 10, -signal.SIGINT, 2.0), 2.0) == [Close(patience_s=GRACE_S)]
    assert supervisor.deadline == 2.0 + 2 * GRACE_S + LAST_WAIT_S
    assert supervisor.interrupted(signal.SIGINT, 2.5) == [KILL]


def test_the_first_signal_decides_the_code_whatever_the_ranks_return() -> None:
    supervisor = job(*HERE[:2])
    supervisor.interrupted(signal.SIGHUP, 1.0)
    supervisor.exited(Exit(0, 10, 0, 1.1), 1.1)
    assert supervisor.exited(Exit(1, 11, -signal.SIGTERM, 1.1), 1.1) == [Close()]
    assert (supervisor.exit_code, supervisor.failure) == (129, None)


def test_a_signal_after_a_failure_does_not_hide_the_failure() -> None:
    supervisor = job(*HERE[:2])
    supervisor.exited(Exit(0, 10, 5, 1.0), 1.0)
    assert supervisor.interrupted(signal.SIGINT, 1.1) == [KILL]
    assert supervisor.exit_code == 5


def test_a_rank_that_cannot_be_started_is_a_failure() -> None:
    supervisor = job(*HERE[:2])
    assert supervisor.not_started(0, "Exec format error", 1.0) == [TERM]
    assert supervisor.exit_code == 1
    assert supervisor.failure is not None
    assert "Exec format error" in supervisor.failure.reason


def test_an_agent_that_dies_takes_its_ranks_and_ends_the_others() -> None:
    supervisor = job("a", "a", "b")
    assert supervisor.agent_ended("a", 1.0) == [Destroy("a"), TERM]
    assert supervisor.phase is Phase.TERMINATING
    assert supervisor.exited(Exit(2, 12, -signal.SIGTERM, 1.1), 1.1) == [Close()]
    supervisor.agent_ended("b", 1.2)
    assert (supervisor.phase, supervisor.exit_code) == (Phase.FINISHED, 1)
    assert supervisor.failure is not None
    assert (supervisor.failure.rank, supervisor.failure.host) == (0, "a")


def test_an_agent_that_does_not_end_is_destroyed() -> None:
    supervisor = job(*HERE[:1])
    supervisor.exited(Exit(0, 10, 0, 1.0), 1.0)
    assert supervisor.tick(1.0 + GRACE_S) == []
    assert supervisor.tick(1.0 + GRACE_S + LAST_WAIT_S) == [Destroy("here")]
    assert (supervisor.phase, supervisor.exit_code) == (Phase.FINISHED, 0)


def test_a_signal_while_leftovers_are_ended_kills_them_and_changes_no_code() -> None:
    supervisor = job(*HERE[:1])
    supervisor.exited(Exit(0, 10, 0, 1.0), 1.0)
    assert supervisor.interrupted(signal.SIGINT, 1.5) == [KILL]
    assert supervisor.agent_ended("here", 1.6) == []
    assert (supervisor.phase, supervisor.exit_code) == (Phase.FINISHED, 0)


def test_a_host_that_starts_nothing_fails_the_job() -> None:
    supervisor = Supervisor({0: "a", 1: "b"}, now=0.0)
    supervisor.started(0)
    assert supervisor.tick(START_S - 1) == []
    assert supervisor.tick(START_S) == [TERM]
    assert supervisor.failure is not None
    assert (supervisor.failure.rank, supervisor.failure.host) == (1, "b")


def test_a_running_job_has_no_deadline() -> None:
    assert job("a", "b").deadline is None


def test_a_policy_may_let_the_others_go_on() -> None:
    class Tolerant:
        """Goes on while two ranks are left."""

        def ends_job(self, failure: Failure, others: frozenset[int]) -> bool:
            return len(others) < 2

    supervisor = Supervisor(dict.fromkeys(range(3), "here"), 0.0, policy=Tolerant())
    assert supervisor.exited(Exit(2, 12, 7, 1.0), 1.0) == []
    assert (supervisor.phase, supervisor.failure, supervisor.alive) == (Phase.RUNNING, None, {0, 1})
    assert supervisor.exited(Exit(1, 11, 5, 2.0), 2.0) == [TERM]
    assert supervisor.exited(Exit(0, 10, 0, 2.1), 2.1) == [Close()]
    assert supervisor.exit_code == 5
