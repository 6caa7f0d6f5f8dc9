"""Requests at the rendezvous: one that cannot be is refused, and the ranks of the job meet all the same."""

from __future__ import annotations

import json
import time

import pytest

from hvdlite.errors import HorovodInternalError
from hvdlite.net.calls import ask
from hvdlite.rendezvous.client import ROUNDS_OF_INIT, Meeting, exchange
from hvdlite.rendezvous.job import Job
from hvdlite.rendezvous.server import RendezvousServer, Request, read_request
from tests.harness.patience import PATIENCE_S

GOOD = {"round": 0, "rank": 0, "size": 1, "timeout_s": 5.0, "card": {"host": "node7"}}
BAD = {
    **{f"{field} is missing": json.dumps({k: v for k, v in GOOD.items() if k != field}) for field in GOOD},
    **{f"rank {value}": json.dumps({**GOOD, "rank": value}) for value in (0.5, True, "0", None, [], float("inf"))},
    **{f"timeout {value}": json.dumps({**GOOD, "timeout_s": value}) for value in (-1, 1e9, "1", float("nan"), None)},
    "a timeout beyond all numbers": json.dumps(GOOD).replace("5.0", "1e999"),
    "a deep card": json.dumps(GOOD).replace('"node7"', "[" * 20_000 + "]" * 20_000),
    "a list": "[]",
    "a number": "7",
    "no JSON": "{",
}


def test_a_good_request_is_read() -> None:
    assert read_request(json.dumps(GOOD).encode()) == Request(0, 0, 1, 5.0, json.dumps(GOOD["card"]))


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_no_request(name: str) -> None:
    with pytest.raises(ValueError):
        read_request(BAD[name].encode())


def test_the_server_refuses_them_and_goes_on() -> None:
    job = Job.create()
    with RendezvousServer(job, 1) as server:
        deadline = time.monotonic() + PATIENCE_S
        times = {"start_by": deadline, "answer_by": deadline, "limit": 1 << 20}
        for text in BAD.values():
            answer = ask(server.address, job.key("rendezvous"), text.encode(), **times)  # type: ignore[arg-type]
            assert json.loads(answer) == {"error": "the request is malformed"}
        meeting = Meeting(job, server.address)
        cards = exchange(meeting, number=0, rank=0, size=1, card=GOOD["card"], deadline=deadline)
    assert cards == [GOOD["card"]]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "rank(s) 1 did not call it"),
        (1, "rank(s) 1 have called it and did not go on"),
        (ROUNDS_OF_INIT, "rank(s) 1 did not call it"),
    ],
)
def test_who_is_missing_has_called_init_or_not(number: int, words: str) -> None:
    job = Job.create()
    with RendezvousServer(job, 2) as server:
        meeting, deadline = Meeting(job, server.address), time.monotonic() + 0.2
        with pytest.raises(HorovodInternalError) as raised:
            exchange(meeting, number=number, rank=0, size=2, card="", deadline=deadline)
    assert words in str(raised.value)
