"""An agent's part in a connect test between hosts: it listens, and it dials the listeners of others (`probe_listener`).

Each target is dialled by a thread of its own, so that one whose packets vanish does not delay the others and all of
them together take no more than one deadline. Needs only the standard library.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from hvdlite.net.handshake import Caller, Refused
from hvdlite.net.listener import limit
from hvdlite.scope import Scope

from .probe_listener import PING_BYTES, ROUNDS, TOTAL, WIDE_BYTES, ProbeListener

if TYPE_CHECKING:
    from ...stream.questions import Dial, Listen, Target

_MAX_THREADS: Final = 64
_BULK: Final = bytes(256 << 10)
_DRAIN_S: Final = 10.0  # for what the kernel has buffered to cross a slow network
_NO_ROUTE: Final = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EPERM})


class Prober:
    """An agent's answers in a connect test, which are the fields of JSON messages."""

    def __init__(self) -> None:
        self._listener: ProbeListener | None = None

    def listen(self, question: Listen) -> dict[str, Any]:
        """Listens. Returns ``ports`` by address, and ``problems`` by address where that failed."""
        self.close()
        token, host, addresses, limits, lifetime_s = question
        ports = range(limits[0], limits[1] + 1) if limits else None
        self._listener = ProbeListener(bytes.fromhex(token), host, addresses, ports, lifetime_s)
        return {"ports": self._listener.port_by_address, "problems": self._listener.problems}

    def dial(self, question: Dial) -> dict[str, Any]:
        """Dials all targets at once. Returns ``results`` in their order: `reach` says what is in each.

        Of throughputs, only those of one target at a time mean something.
        """
        token, targets = bytes.fromhex(question.token), question.targets
        results: list[dict[str, Any]] = [{} for _ in targets]
        waiting = deque(enumerate(targets))

        def work() -> None:
            with suppress(IndexError):  # nothing is left to dial
                while True:
                    place, target = waiting.popleft()
                    results[place] = reach(token, target, question.timeout_s, question.bulk_s)

        threads = [threading.Thread(target=work, name="hvdrun-dialler") for _ in targets[:_MAX_THREADS]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"results": results}

    def close(self) -> dict[str, Any]:
        """Stops listening."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        return {}


def reach(token: bytes, target: Target, timeout_s: float, bulk_s: float) -> dict[str, Any]:
    """Dials one target: ``{"rtt_us": median}``, with ``"mb_per_s"`` if asked for, or ``{"problem": word}``.

    The words: ``refused``, ``silent`` (no answer in time), ``narrow`` (none to what fills a packet), ``no route``,
    ``stranger`` (something else answers), ``other host`` (with its number as ``host``), ``failed`` (with ``detail``).
    """
    scope = Scope.of(timeout_s)
    problem = "silent"
    try:
        with socket.create_connection((target.address, target.port), timeout_s) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            limit(line, scope)
            host = _greet(line, token)
            if host != target.host:
                return {"problem": "other host", "host": host}
            result = {"rtt_us": _round_trip_us(line)}
            problem = "narrow"
            _exchange(line, bytes(WIDE_BYTES))
            if bulk_s > 0:
                result["mb_per_s"] = _megabytes_per_second(line, bulk_s)
            return result
    except TimeoutError:
        return {"problem": problem}
    except ConnectionRefusedError:
        return {"problem": "refused"}
    except (Refused, ConnectionError):
        return {"problem": "stranger"}
    except OSError as error:
        if error.errno in _NO_ROUTE:
            return {"problem": "no route"}
        return {"problem": "failed", "detail": error.strerror or str(error)}


def _greet(line: socket.socket, token: bytes) -> int:
    """The number of the host that listens. Raises Refused, or ConnectionError, if that does not have the token."""
    caller = Caller(token, 0, 0, 0)
    line.sendall(caller.hello)
    while caller.awaits:
        line.sendall(caller.take(_receive(line, caller.awaits)))
    return caller.received


def _round_trip_us(line: socket.socket) -> float:
    times = []
    for number in range(ROUNDS):
        began = time.perf_counter()
        _exchange(line, number.to_bytes(PING_BYTES, "big"))
        times.append(time.perf_counter() - began)
    return round(sorted(times)[ROUNDS // 2] * 1e6, 1)


def _exchange(line: socket.socket, data: bytes) -> None:
    line.sendall(data)
    _receive(line, len(data))


def _megabytes_per_second(line: socket.socket, bulk_s: float) -> float:
    """The throughput: bytes that arrived, over the time until the other side confirmed them."""
    line.settimeout(_DRAIN_S)
    began = time.perf_counter()
    while time.perf_counter() - began < bulk_s:
        line.sendall(_BULK)
    line.shutdown(socket.SHUT_WR)
    (total,) = TOTAL.unpack(_receive(line, TOTAL.size))
    return round(int(total) / 1e6 / (time.perf_counter() - began), 1)


def _receive(line: socket.socket, length: int) -> bytes:
    """Receives exactly ``length`` bytes. Raises ConnectionError if the other end closes before."""
    received = b""
    while len(received) < length:
        data = line.recv(length - len(received))
        if not data:
            raise ConnectionError
        received += data
    return received
