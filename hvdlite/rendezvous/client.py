"""A rank's side of the rendezvous: give a card, get everybody's."""

from __future__ import annotations

import json
import time
from typing import Any

import zmq

from hvdlite.errors import HorovodInternalError
from hvdlite.rendezvous.job import Job

MAX_ROSTER_BYTES = 64 << 20
_GRACE_S = 5.0  # how much longer than the server, which knows who is missing, a rank waits for its answer


def exchange(
    context: zmq.Context[Any], job: Job, address: str, *, number: int, rank: int, size: int, card: Any, deadline: float
) -> list[Any]:
    """Publishes this rank's ``card`` (JSON) in round ``number`` and returns the cards of all ranks in rank order.

    ``deadline`` is on the monotonic clock, in seconds. Raises HorovodInternalError that names the ranks that did not
    come in time, or says that nobody answers at ``address``.
    """
    socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    try:
        socket.linger = 0
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_ROSTER_BYTES)
        job.dial(socket)
        socket.connect(address)
        timeout_s = max(0.0, deadline - time.monotonic())
        request = {"round": number, "rank": rank, "size": size, "timeout_s": timeout_s, "card": card}
        socket.send(json.dumps(request).encode())
        if not socket.poll(int((timeout_s + _GRACE_S) * 1000)):
            raise HorovodInternalError(
                f"rank {rank} got no answer from the launcher at {address}; is hvdrun still running?"
            )
        answer = json.loads(socket.recv())
    finally:
        socket.close()
    if "missing" in answer:
        ranks = ", ".join(map(str, answer["missing"]))
        raise HorovodInternalError(
            f"rank {rank} waited {timeout_s:.0f} s in init() but rank(s) {ranks} did not call it. "
            "Look at their output, or raise HVDLITE_START_TIMEOUT."
        )
    if "error" in answer:
        raise HorovodInternalError(f"rank {rank} was refused by the launcher: {answer['error']}")
    cards: list[Any] = answer["cards"]
    return cards
