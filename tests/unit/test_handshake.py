"""The handshake of ring neighbours: who is admitted, and what everybody else gets."""

from __future__ import annotations

import pytest

from hvdlite.dataplane.handshake import Callee, Caller, Refused, session_key

SECRET = bytes(range(32))
OTHER_SECRET = bytes(32)


def callee(secret: bytes = SECRET, session: int = 7) -> Callee:
    return Callee(secret, session, rank=2, caller=1)


def caller(secret: bytes = SECRET, session: int = 7, rank: int = 1, to: int = 2) -> Caller:
    return Caller(secret, session, rank, to)


def challenge(door: Callee, hello: bytes, connection: bytes = b"a") -> bytes:
    reply = door.receive(connection, hello)
    assert reply is not None
    return reply


def test_neighbours_of_one_job_admit_each_other() -> None:
    door, guest = callee(), caller()
    proof = guest.prove(challenge(door, guest.hello))
    assert not door.is_admitted
    assert door.receive(b"a", proof) is None
    assert door.is_admitted
    assert door.refused == 0


def test_a_callee_without_the_secret_is_named() -> None:
    guest = caller()
    with pytest.raises(Refused, match="rank 2 does not have the secret"):
        guest.prove(challenge(callee(OTHER_SECRET), guest.hello))


def test_a_caller_without_the_secret_is_refused_and_the_right_one_still_gets_in() -> None:
    door, stranger, guest = callee(), caller(OTHER_SECRET), caller()
    challenge(door, stranger.hello, b"stranger")
    assert door.receive(b"stranger", bytes(32)) is None
    assert not door.is_admitted
    assert door.refused == 1
    door.receive(b"guest", guest.prove(challenge(door, guest.hello, b"guest")))
    assert door.is_admitted


@pytest.mark.parametrize(
    "other",
    [caller(session=8), caller(rank=0), caller(rank=2, to=1)],
    ids=["another session", "another caller", "another callee"],
)
def test_a_hello_for_somebody_else_is_not_answered(other: Caller) -> None:
    door = callee()
    assert door.receive(b"a", other.hello) is None
    assert door.refused == 1


def test_proofs_cannot_be_used_twice_elsewhere_or_in_the_other_direction() -> None:
    door, guest = callee(), caller()
    answer = challenge(door, guest.hello)
    proof = guest.prove(answer)
    door.receive(b"a", proof)
    later = callee()
    fresh = challenge(later, guest.hello, b"b")
    assert later.receive(b"b", proof) is None
    challenge(later, guest.hello, b"c")
    assert later.receive(b"c", fresh[32:]) is None
    assert not later.is_admitted
    with pytest.raises(Refused):
        caller().prove(answer)


@pytest.mark.parametrize("message", [b"", b"x", bytes(79), bytes(80), bytes(81), bytes(1 << 20)])
def test_anything_else_is_refused(message: bytes) -> None:
    door = callee()
    assert door.receive(b"a", message) is None
    assert door.refused == 1
    with pytest.raises(Refused, match="rank 2 does not speak this protocol"):
        caller().prove(message)


def test_a_crowd_of_strangers_takes_no_memory_and_no_place() -> None:
    door, guest = callee(), caller()
    for i in range(1000):
        challenge(door, caller(OTHER_SECRET).hello, str(i).encode())
    assert len(door._proofs) < 100
    door.receive(b"guest", guest.prove(challenge(door, guest.hello, b"guest")))
    assert door.is_admitted


def test_the_session_key_depends_on_secret_and_session() -> None:
    keys = {session_key(secret, session) for secret in (SECRET, OTHER_SECRET) for session in (0, 1)}
    assert len(keys) == 4
    assert all(0 <= key < 1 << 64 for key in keys)
