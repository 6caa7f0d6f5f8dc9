"""Ranks that hvdrun did not start meet in init, on one host by the name of their job and across hosts by a key."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.net.local_listener import LocalListener
from hvdlite.rendezvous.across_hosts import meet_across_hosts
from hvdlite.rendezvous.client import Exchanges
from hvdlite.rendezvous.handover import _call_repeatedly, meet_on_one_host
from hvdlite.scope import Scope
from hvdlite.settings import Start
from tests.harness import Outcome, ProcessRanks, pause_at, process_ranks, thread_ranks
from tests.harness.network import kept_port
from tests.harness.patience import PATIENCE_S

KEY = "c4" * 32
ON_ONE_HOST = {"HVDLITE_RENDEZVOUS": "", "HVDLITE_SECRET": ""}
SECONDS = {"HVDLITE_START_TIMEOUT": "3"}  # many times what the ranks need that come


@pytest.fixture
def job(request: pytest.FixtureRequest) -> dict[str, str]:
    """The settings of ranks on one host that an engine started."""
    return {**ON_ONE_HOST, "HVDLITE_JOB": f"engine {os.getpid()} {request.node.name}"}


@pytest.fixture
def across() -> Iterator[dict[str, str]]:
    """The settings of ranks across hosts that an engine started."""
    with kept_port() as port:
        yield {"HVDLITE_RENDEZVOUS": "", "HVDLITE_SECRET": KEY, "HVDLITE_COORDINATOR": f"127.0.0.1:{port}"}


HOSTS = {rank: {"HVDLITE_HOSTID": f"h{rank // 2}"} for rank in range(4)}


def _three_sessions() -> list[float]:
    sums = []
    for session in range(3):
        hvd.init()
        sums.append(float(hvd.allreduce(np.full(4, hvd.rank() + session), op=hvd.Sum)[0]))
        hvd.shutdown()
    return sums


def test_ranks_of_one_host_meet_again_and_again(job: dict[str, str]) -> None:
    for outcome in process_ranks(3, _three_sessions, environ=job):
        assert outcome.result() == [3, 6, 9]


def test_ranks_across_hosts_meet_again_and_again(across: dict[str, str]) -> None:
    for outcome in process_ranks(3, _three_sessions, environ=across, environ_by_rank=HOSTS):
        assert outcome.result() == [3, 6, 9]


def _init_when_released() -> None:
    pause_at("started")
    hvd.init()
    hvd.shutdown()


def _init_without(rank: int, environ: dict[str, str], by_rank: dict[int, dict[str, str]]) -> list[Outcome]:
    with ProcessRanks(3, _init_when_released, environ=environ | SECONDS, environ_by_rank=by_rank) as ranks:
        ranks.wait_for("started")
        others = [other for other in range(3) if other != rank]
        ranks.release(*others)
        ranks.wait_for_end(*others)
        ranks.kill(rank)
        outcomes = ranks.join()
    return [outcomes[other] for other in others]


@pytest.mark.parametrize("rank", [0, 2])
def test_init_on_one_host_names_the_rank_that_did_not_come(rank: int, job: dict[str, str]) -> None:
    for outcome in _init_without(rank, job, {}):
        assert outcome.error == "HorovodInternalError"
        assert f"rank(s) {rank} did not call it" in outcome.message


def test_init_across_hosts_names_the_rank_that_did_not_come(across: dict[str, str]) -> None:
    for outcome in _init_without(2, across, HOSTS):
        assert outcome.error == "HorovodInternalError"
        assert "rank(s) 2 did not call it" in outcome.message


def test_init_across_hosts_says_where_rank_0_should_be(across: dict[str, str]) -> None:
    for outcome in _init_without(0, across, HOSTS):
        assert outcome.error == "HorovodInternalError"
        assert f"got no answer at tcp://{across['HVDLITE_COORDINATOR']}: Connection refused; rank 0 " in outcome.message
        assert "rank 0 is expected on 127.0.0.1" in outcome.message


def test_the_end_of_rank_0_in_init_is_noticed_at_once(job: dict[str, str]) -> None:
    address, token = _door(job["HVDLITE_JOB"])
    place = {"HVDLITE_RANK": "1", "HVDLITE_SIZE": "3", "HVDLITE_LOCAL_SIZE": "3"}
    with LocalListener(token, address) as listener, ProcessRanks(1, _init_when_told, environ=job | place) as ranks:
        link, greeting = next(listener.admit(Scope.of(PATIENCE_S)))
        assert greeting == b"1 3"
        link.close()
        (outcome,) = ranks.join()
    assert outcome.error == "HorovodInternalError"
    assert "rank 1 lost its connection to rank 0" in outcome.message


def _door(job: str) -> tuple[str, bytes]:
    """Returns the address of rank 0 of this user's ``job``, and the token."""
    name = hashlib.blake2b(f"{os.geteuid()} {job}".encode(), digest_size=16)
    return f"hvdlite-meeting-{name.hexdigest()}", name.digest()


def test_two_ranks_of_one_number_are_told(job: dict[str, str]) -> None:
    with ProcessRanks(3, _init_when_told, environ=job, environ_by_rank={2: {"HVDLITE_RANK": "1"}}) as ranks:
        second = ranks.wait_for_an_end(1, 2)
        assert ranks.is_running(0)
        assert ranks.is_running(3 - second)
        for waiting in {0, 1, 2} - {second}:
            ranks.kill(waiting)
        outcome = ranks.join()[second]
    assert "rank 1 is present already; two processes have the same rank" in outcome.message


def test_a_rank_of_another_size_is_refused(job: dict[str, str]) -> None:
    sizes = {1: {"HVDLITE_SIZE": "3", "HVDLITE_LOCAL_SIZE": "3"}}
    assert "rank 1 of 3 is not of this job of 2 ranks" in _refused_while_rank_0_waits(job, sizes)


def _refused_while_rank_0_waits(environ: dict[str, str], by_rank: dict[int, dict[str, str]]) -> str:
    """Returns the error of rank 1 of two."""
    with ProcessRanks(2, _init_when_told, environ=environ, environ_by_rank=by_rank) as ranks:
        ranks.wait_for_end(1)
        assert ranks.is_running(0)
        ranks.kill(0)
        return ranks.join()[1].message


def _init_when_told() -> None:
    hvd.init()


@contextmanager
def _squatter(name: str) -> Iterator[None]:
    """Somebody listens at the abstract ``name`` who is another user, as the kernel sees it when listening begins."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind("\0" + name)
        os.seteuid(65534)
        try:
            listener.listen()
        finally:
            os.seteuid(0)
        yield


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be another user")
def test_another_user_who_took_the_name_gets_nobody(job: dict[str, str]) -> None:
    with _squatter(_door(job["HVDLITE_JOB"])[0]):
        first, second = process_ranks(2, _init_when_told, environ=job)
    assert "another process, perhaps another user's, already serves job" in first.message
    assert "belongs to another user" in second.message


def test_a_wrong_key_is_a_stranger(across: dict[str, str]) -> None:
    keys = {1: {"HVDLITE_SECRET": "ee" * 32, "HVDLITE_HOSTID": "h1", **SECONDS}}
    assert "it has another HVDLITE_SECRET" in _refused_while_rank_0_waits(across, keys)


def test_a_stranger_at_the_coordinator_gets_no_answer_and_stops_nobody(across: dict[str, str]) -> None:
    coordinator = across["HVDLITE_COORDINATOR"]
    host, port = coordinator.split(":")
    starts = [Start(rank=rank, size=2, secret=KEY, coordinator=coordinator) for rank in range(2)]

    def offer_of_both(rank: int) -> list[str]:
        with meet_across_hosts(starts[1], 0) as meeting:
            return Exchanges(meeting, rank, 2, Scope.of(PATIENCE_S))(f"offer {rank}")

    with meet_across_hosts(starts[0], 0), socket.create_connection((host, int(port)), timeout=PATIENCE_S) as stranger:
        stranger.sendall(b'{"epoch": -1, "round": 0, "rank": 1, "size": 2, "timeout_s": 9, "offer": {}}' * 100)
        assert thread_ranks(2, offer_of_both) == [["offer 0", "offer 1"]] * 2
        said = b""
        with suppress(ConnectionResetError):
            said = stranger.recv(4096)
    assert said == b""


def test_who_greets_rank_0_with_nonsense_is_dropped_and_the_others_meet(job: dict[str, str]) -> None:
    scope = Scope.of(PATIENCE_S)
    starts = [Start(rank=rank, size=2, job=job["HVDLITE_JOB"]) for rank in range(2)]
    nonsense = (
        b"",
        b"x",
        b"1",
        b"1 2 3",
        b"-1 2",
        b"\xff \xff",
        b"1 " + b"9" * 4000,
        "\N{ARABIC-INDIC DIGIT ONE} 2".encode(),
    )

    def meet(rank: int) -> str:
        for greeting in nonsense if rank else ():
            with _call_repeatedly(rank, *_door(job["HVDLITE_JOB"]), greeting, scope) as stranger:
                assert stranger.recv(1) == b""
        with meet_on_one_host(starts[rank], 0, scope) as meeting:
            return meeting.address

    assert len(set(thread_ranks(2, meet))) == 1


def test_a_port_in_use_is_named(across: dict[str, str]) -> None:
    host, port = across["HVDLITE_COORDINATOR"].split(":")
    with socket.create_server((host, int(port))):
        environ = across | {"HVDLITE_START_TIMEOUT": "0.5"}  # of rank 1, which waits for rank 0 in vain
        outcome = process_ranks(2, _init_when_told, environ=environ, environ_by_rank=HOSTS)[0]
    assert outcome.error == "HorovodInternalError"
    assert f"the port {port} of 127.0.0.1 is in use. Set HVDLITE_COORDINATOR=127.0.0.1:PORT" in outcome.message


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"HVDLITE_COORDINATOR": "198.51.100.9:5000"}, "HorovodInternalError", "cannot listen at 198.51.100.9"),
        ({"HVDLITE_COORDINATOR": "no-such-host.invalid"}, "HorovodInternalError", "cannot be found"),
        ({"HVDLITE_COORDINATOR": "n1;reboot"}, "ValueError", "must be HOST, HOST:PORT or [IPV6]:PORT"),
        ({"HVDLITE_COORDINATOR": "n1:99999"}, "ValueError", "must be HOST, HOST:PORT or [IPV6]:PORT"),
        ({"HVDLITE_SECRET": ""}, "ValueError", "needs HVDLITE_SECRET beside it"),
        ({"HVDLITE_SECRET": "1234"}, "ValueError", "HVDLITE_SECRET must be 64 hexadecimal digits"),
        ({"HVDLITE_COORDINATOR": ""}, "ValueError", "nothing says where the others are"),
        ({"HVDLITE_RENDEZVOUS": "tcp://127.0.0.1:1", "HVDLITE_SECRET": ""}, "ValueError", "HVDLITE_RENDEZVOUS needs"),
    ],
)
def test_a_place_that_cannot_be_is_refused_at_once(
    change: dict[str, str], error: str, message: str, across: dict[str, str]
) -> None:
    environ = {**across, "HVDLITE_SIZE": "2", "HVDLITE_LOCAL_SIZE": "1", **change}
    (outcome,) = process_ranks(1, _init_when_told, environ=environ)
    assert outcome.error == error
    assert message in outcome.message
