"""The handshake of ring neighbours: who is admitted, and what everybody else gets."""

from __future__ import annotations

import secrets

import pytest

from hvdlite.net.handshake import Callee, Caller, Disagrees, Refused, session_key

SECRET = bytes(range(32))
OTHER_SECRET = bytes(32)


def callee(secret: bytes = SECRET, session: int = 7, connections: int = 1) -> Callee:
    return Callee(secret, session, 2, 1, connections)


def caller(secret: bytes = SECRET, session: int = 7, rank: int = 1, to: int = 2) -> Caller:
    return Caller(secret, session, rank, to)


@pytest.mark.parametrize("received", [0, 7, (1 << 64) - 1])
def test_neighbours_of_one_job_admit_each_other_and_agree_where_to_go_on(received: int) -> None:
    door, guest = callee(), caller()
    assert len(guest.hello) == door.awaits
    challenge = door.take(guest.hello)
    assert len(challenge) == guest.awaits
    proof = guest.take(challenge)
    assert len(proof) == door.awaits
    assert door.take(proof) == b""
    assert door.awaits == 0
    welcome = door.welcome(received)
    assert len(welcome) == guest.awaits
    assert guest.take(welcome) == b""
    assert guest.awaits == 0
    assert guest.received == received


def test_the_callee_is_told_which_connection_it_is() -> None:
    door, guest = callee(connections=3), Caller(SECRET, 7, 1, 2, 2, 3)
    assert door.take(guest.take(door.take(guest.hello))) == b""
    assert (door.connection, door.awaits) == (2, 0)


def test_the_number_of_a_connection_cannot_be_changed_on_the_way() -> None:
    door, guest = callee(connections=3), Caller(SECRET, 7, 1, 2, 2, 3)
    other = Caller(SECRET, 7, 1, 2, 1, 3).hello
    changed = other[:-64] + guest.hello[-64:]
    with pytest.raises(Refused):
        guest.take(door.take(changed))


@pytest.mark.parametrize(("connection", "connections"), [(0, 1), (0, 4), (3, 3), (65535, 65535)])
def test_a_caller_that_makes_another_number_of_connections_disagrees(connection: int, connections: int) -> None:
    door, guest = callee(connections=3), Caller(SECRET, 7, 1, 2, connection, connections)
    with pytest.raises(Disagrees, match=f"it makes {connections} connections instead of 3"):
        door.take(guest.take(door.take(guest.hello)))
    assert door.awaits > 0


def test_a_stranger_is_not_heard_about_the_number_of_connections() -> None:
    door = callee(connections=3)
    with pytest.raises(Refused, match="does not have the secret") as caught:
        door.take(Caller(OTHER_SECRET, 7, 1, 2, 0, 4).hello)
    assert not isinstance(caught.value, Disagrees)


def test_the_first_message_tells_a_caller_of_the_job_from_a_stranger() -> None:
    door = callee()
    with pytest.raises(Refused, match="does not have the secret"):
        door.take(caller(OTHER_SECRET).hello)
    assert not door.knows_secret
    door.take(caller().hello)
    assert door.knows_secret


def test_a_callee_without_the_secret_is_named() -> None:
    guest = caller()
    with pytest.raises(Refused, match="rank 2 does not have the secret"):
        guest.take(bytes(guest.awaits))


def test_who_repeats_the_hello_of_another_is_refused() -> None:
    door = callee()
    door.take(caller().hello)
    with pytest.raises(Refused, match="does not have the secret"):
        door.take(bytes(32))
    assert door.awaits > 0


@pytest.mark.parametrize(
    "other",
    [caller(session=8), caller(rank=0), caller(rank=2, to=1)],
    ids=["another session", "another caller", "another callee"],
)
def test_a_hello_for_somebody_else_is_not_answered(other: Caller) -> None:
    with pytest.raises(Refused, match="not the neighbour that is expected"):
        callee().take(other.hello)


def test_proofs_cannot_be_used_twice_elsewhere_or_in_the_other_direction() -> None:
    door, guest = callee(), caller()
    challenge = door.take(guest.hello)
    proof = guest.take(challenge)
    later = callee()
    later.take(guest.hello)
    with pytest.raises(Refused):
        later.take(proof)
    reflected = callee()
    answer = reflected.take(guest.hello)
    with pytest.raises(Refused):
        reflected.take(answer[32:])
    with pytest.raises(Refused):
        caller().take(challenge)


def test_a_welcome_cannot_be_changed_or_come_from_another_handshake() -> None:
    door, guest = callee(), caller()
    door.take(guest.take(door.take(guest.hello)))
    welcome = door.welcome(5)
    another_door, another_guest = callee(), caller()
    another_door.take(another_guest.take(another_door.take(another_guest.hello)))
    for wrong in (bytes([6]) + welcome[1:], welcome[:-1] + bytes([welcome[-1] ^ 1]), another_door.welcome(5)):
        with pytest.raises(Refused):
            guest.take(wrong)
    guest.take(welcome)
    assert guest.received == 5


def test_noise_is_refused_on_either_side() -> None:
    door, guest = callee(), caller()
    for noise in (bytes, secrets.token_bytes):
        with pytest.raises(Refused):
            door.take(noise(door.awaits))
        with pytest.raises(Refused):
            guest.take(noise(guest.awaits))


def test_the_session_key_depends_on_secret_and_session() -> None:
    keys = {session_key(secret, session) for secret in (SECRET, OTHER_SECRET) for session in (0, 1)}
    assert len(keys) == 4
    assert all(0 <= key < 1 << 64 for key in keys)
