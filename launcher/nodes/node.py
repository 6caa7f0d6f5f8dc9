"""Any node but node 0: hvdrun there finds node 0, runs an agent for it, and ends with the exit code of the job.

It carries bytes between the agent and the connection to node 0, passes the signals that it gets to node 0, and does
nothing else with the job. When the connection ends without a word, so do the agent and its ranks. A node 0 that stops
before it has started ranks is given up after the start timeout.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from hvdlite.errors import LaunchError
from hvdlite.net.calls import shake_hands
from hvdlite.net.handshake import Refused
from hvdlite.net.listening import endpoint
from hvdlite.net.poll import ENDED, comes
from hvdlite.scope import Scope

from ..agents.ways import ProcessWay, Receiver
from ..spawners import SshOptions
from ..stream.fields import MOST_CHARACTERS, parse_fields, read
from ..stream.frames import FrameError
from ..stream.hello import Hello
from ..stream.loop import Loop
from ..stream.messages import Decoder, Start
from ..stream.outbox import Outbox
from ..stream.signals import ANNOUNCING, ENDING, caught
from ..where.hosts import Host
from .place import NodePlace
from .records import Channel, Introduction, Over, Reason, Record, Welcome, key_of

_ATTEMPT_S: Final = 5.0
_BETWEEN_ATTEMPTS_S: Final = 0.5
_QUIET_S: Final = 2.0  # of failed attempts, before hvdrun reports them
_ANSWER_S: Final = 10.0  # for node 0 to let this node in
_PING_S: Final = 2.0
_SILENCE_S: Final = 10.0  # of node 0, which answers pings
_LOOK_S: Final = 1.0  # how soon an end is noticed that nobody reads, because something else takes no more
_AGENT_S: Final = 10.0  # for the agent to end, which kills what it started after two

Say = Callable[[str], None]


class _NotYet(Exception):
    """Node 0 cannot be reached, for a reason that may pass."""


def join(place: NodePlace, secret: str, slots: int | None, timeout_s: float, say: Say) -> int:
    """Runs this node of ``place``, which takes ``slots`` ranks, until the job is over; returns the job's exit code.

    Raises LaunchError if node 0 is not there in ``timeout_s``, refuses this node, or is lost, ValueError for a bad
    ``secret``, and NoLibcrypto.
    """
    introduction = Introduction(place.rank, place.count, slots or 0, Hello.describe())
    channel, host = _join(place, key_of(secret), introduction, timeout_s, say)
    try:
        return _Node(channel, place, host, timeout_s, say).run()
    finally:
        channel.sock.close()


@contextmanager
def ending_by_signal() -> Iterator[None]:
    """A context in which SIGTERM and SIGHUP raise SystemExit, even in process 1, where they would do nothing."""

    def end(signum: int, _: Any) -> None:
        raise SystemExit(128 + signum)

    signals = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL]
    try:
        for signum in signals:
            signal.signal(signum, end)
        yield
    finally:
        for signum in signals:
            signal.signal(signum, signal.SIG_DFL)


def _join(place: NodePlace, key: bytes, introduction: Introduction, timeout_s: float, say: Say) -> tuple[Channel, str]:
    """A connection over which node 0 has let this node in, and the name of node 0."""
    scope = Scope.of(timeout_s)
    report_at, shown = time.monotonic() + _QUIET_S, ""
    while True:
        try:
            channel = _attempt(place, key, Scope.of(_ATTEMPT_S, scope))
            try:
                return channel, _introduce(channel, introduction, place)
            except BaseException:
                channel.sock.close()
                raise
        except _NotYet as error:
            problem = str(error)
        if scope.left_s <= _BETWEEN_ATTEMPTS_S:
            raise LaunchError(_not_reached(place, timeout_s, problem))
        if time.monotonic() >= report_at and problem != shown:
            shown = problem
            say(f"waiting for node 0 at {place.master}: {problem}")
        time.sleep(_BETWEEN_ATTEMPTS_S)


def _attempt(place: NodePlace, key: bytes, scope: Scope) -> Channel:
    """A connection to node 0. Raises _NotYet that says why there is none."""
    try:
        found = socket.getaddrinfo(place.master.host, place.master.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise _NotYet(f"the name does not resolve ({error.strerror})") from None
    problem = ""
    addresses = list(dict.fromkeys(_address(entry[4]) for entry in found))
    for number, address in enumerate(addresses):
        share = Scope.of(scope.left_s / (len(addresses) - number))  # one that drops everything leaves time for others
        try:
            return Channel(*shake_hands(endpoint(address, place.master.port), key, share), is_caller=True)
        except Refused:
            problem = "what listens there has another key; HVDLITE_SECRET has to be the same on all nodes"
        except ConnectionRefusedError:
            problem = "nobody listens there"
        except TimeoutError:
            problem = "no answer"
        except ConnectionResetError:
            problem = "it hangs up, as on callers that have another key; HVDLITE_SECRET has to be the same on all nodes"
        except OSError as error:
            problem = error.strerror or str(error)
    raise _NotYet(problem)


def _not_reached(place: NodePlace, timeout_s: float, problem: str) -> str:
    return (
        f"node 0 was not reached at {place.master} within {timeout_s:g} s: {problem}. See that it runs there, "
        "or give it more time with --start-timeout"
    )


def _address(where: tuple[Any, ...]) -> str:
    """The address in a socket address, with the interface of one that is valid on a single link."""
    host, _, *rest = where
    return f"{host}%{rest[1]}" if rest and rest[1] else str(host)


def _introduce(channel: Channel, introduction: Introduction, place: NodePlace) -> str:
    """Introduces this node; returns the name of node 0.

    Raises LaunchError if that does not want it, and _NotYet if there is no answer.
    """
    scope = Scope.of(_ANSWER_S)
    try:
        channel.sock.sendall(channel.seal(Record.INTRODUCTION, **introduction.fields()))
        while comes(channel.sock, select.POLLIN, scope.left_s):
            for kind, payload in channel.receive():
                fields = parse_fields(payload)
                if kind is Record.REFUSAL:
                    reason = read(Reason, fields).reason
                    raise LaunchError(f"node 0 at {place.master} says of this node: {reason}")
                if kind is Record.WELCOME:
                    return read(Welcome, fields).host
                raise FrameError(f"a record of kind {kind.name}")
        problem = f"it did not answer within {_ANSWER_S:g} s"
    except (OSError, ValueError) as error:
        problem = str(error) or "it hung up"
    raise _NotYet(f"it did not let this node in: {problem}")


class _Node:
    """The rest of this node's life: an agent and a connection to node 0, on ``host``.

    Node 0 is asked for signs of life until it starts ranks here, and again when the agent has ended. In between the
    agent sees to that, by its lease: node 0 may be suspended for as long as its user likes.
    """

    def __init__(self, channel: Channel, place: NodePlace, host: str, timeout_s: float, say: Say) -> None:
        self._channel, self._place, self._host, self._say = channel, place, host, say
        self._timeout_s = timeout_s
        self._decoder: Decoder | None = Decoder()  # of what the agent is sent, up to Start
        self._loop = Loop()
        self._up = Outbox(self._loop, channel.sock.fileno(), "node 0", self._hold_agent)
        self._agent = ProcessWay(Host("localhost"), SshOptions())
        self._agent_has_ended = False
        self._signalled = 0
        self._takes_no_more = False  # the agent
        self._outcome: Over | None = None
        self._lost = ""  # why node 0 is gone, in a sentence
        self._next_ping = self._loop.at(None, self._ping)
        self._silence_end = self._loop.at(None, self._give_up_node_0)  # set while a ping has no answer

    def run(self) -> int:
        receiver = Receiver(self._from_agent, self._say, self._hold_node_0, _ignore_signal)
        self._agent.attach(self._loop, receiver)
        self._loop.watch(self._channel.sock.fileno(), self._from_node_0)
        try:
            with caught((*ENDING, *ANNOUNCING)) as signals:
                self._loop.watch(signals, lambda: self._take_signals(signals))
                self._obey(self._channel.rest())
                while not (self._lost or (self._agent_has_ended and self._outcome)):
                    self._turn()
                self._loop.unwatch(signals)
                self._end_agent()
        finally:
            self._agent.kill()
            self._agent.close()
            self._up.drain(0.0)
            self._up.close()
            self._loop.close()
        if self._outcome is None:
            raise LaunchError(self._lost)
        code, text = self._outcome
        if text:
            raise _JobNotStarted(f"node 0 on {self._host} did not start the job: {text}", code)
        if code:
            self._say(f"the job ended with code {code}; what hvdrun wrote on node 0, {self._host}, says why")
        return code

    def _turn(self) -> None:
        if self._patience_s is None:
            self._next_ping.move(None)
            self._silence_end.move(None)
        elif not self._next_ping.is_set:
            self._next_ping.move(time.monotonic())
        self._loop.turn(time.monotonic() + _LOOK_S if self._up.is_full or self._takes_no_more else None)
        if not self._agent_has_ended:
            # Who takes no more may have ended, and that end is behind data for which there is no room.
            if self._up.is_full and self._agent.wait(0.0):
                self._agent.hold(False)
            if self._takes_no_more and comes(self._channel.sock, ENDED):
                self._hold_node_0(False)

    def _ping(self) -> None:
        now = time.monotonic()
        self._next_ping.move(now + _PING_S)
        if not self._silence_end.is_set and self._patience_s is not None:
            self._silence_end.move(now + self._patience_s)
        self._up.write(self._channel.seal(Record.PING))

    def _give_up_node_0(self) -> None:
        if self._agent_has_ended:
            self._lose(f"it gave no sign of life for {_SILENCE_S:g} s")
        else:
            problem = "it let this node in, and has given no sign of life since"
            self._lost = _not_reached(self._place, self._timeout_s, problem)

    @property
    def _patience_s(self) -> float | None:
        """How long node 0 may leave a ping without an answer; None if it is not asked."""
        if self._agent_has_ended:
            return _SILENCE_S
        return None if self._decoder is None or self._takes_no_more else self._timeout_s

    def _from_node_0(self) -> None:
        self._silence_end.move(None)
        self._obey(self._channel.receive())

    def _look_for_start(self, data: bytes) -> None:
        if self._decoder is not None and any(isinstance(each, Start) for each in self._decoder.feed(data)):
            self._decoder = None

    def _obey(self, records: Iterator[tuple[Record, bytes]]) -> None:
        try:
            for kind, payload in records:
                if kind is Record.STREAM:
                    self._agent.send(payload)
                    self._look_for_start(payload)
                elif kind is Record.END:
                    self._agent.hang_up()
                elif kind is Record.OVER:
                    self._outcome = read(Over, parse_fields(payload))
                elif kind is not Record.PING:
                    raise FrameError(f"a record of kind {kind.name}")
        except ConnectionError as error:
            self._lose(f"the connection broke: {error}" if str(error) else "it ended without a word")
        except FrameError as error:
            self._lose(f"it sent an invalid message: {error}")

    def _lose(self, why: str) -> None:
        self._loop.unwatch(self._channel.sock.fileno())
        self._lost = (
            f"node 0 on {self._host} is lost: {why}. What ran here was ended; see the log of node 0, and start the job "
            "again on all nodes"
        )

    def _from_agent(self, data: bytes) -> None:
        if data:
            for record in self._channel.seal_stream(data):
                self._up.write(record)
            return
        self._agent.ignore()
        self._agent_has_ended = True
        self._agent.hang_up()
        reason = self._agent.explain() if self._agent.wait(_AGENT_S) else "its agent does not end"
        self._up.write(self._channel.seal(Record.END, reason=reason[:MOST_CHARACTERS]))
        self._silence_end.move(None)

    def _take_signals(self, signals: int) -> None:
        for signum in os.read(signals, 64):
            self._up.write(self._channel.seal(Record.SIGNAL, signum=signum))
            if signum not in ENDING:
                continue
            self._signalled += 1
            if self._signalled == 1:
                name = signal.Signals(signum).name
                self._say(f"{name}: node 0 on {self._host} is to end the job; once more kills the ranks here at once")
            else:
                self._agent.destroy()

    def _end_agent(self) -> None:
        """Waits until all that runs here has ended, which takes as long as the agent gives it."""
        self._agent.hang_up()
        if not self._agent.wait(_AGENT_S):
            self._agent.destroy()
            self._agent.wait(_AGENT_S)

    def _hold_agent(self, is_held: bool) -> None:
        if not self._agent_has_ended:
            self._agent.hold(is_held)

    def _hold_node_0(self, is_held: bool) -> None:
        self._takes_no_more = is_held
        if is_held:
            self._loop.unwatch(self._channel.sock.fileno())
        elif not self._lost:
            # What came meanwhile is read first, and may be why the connection broke, which a write would hide.
            self._silence_end.move(None)
            self._next_ping.move(time.monotonic() + _PING_S)
            self._loop.watch(self._channel.sock.fileno(), self._from_node_0)


class _JobNotStarted(LaunchError):
    """Node 0 could not start the job; the shell gets its exit code here too."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def _ignore_signal(signum: int) -> None:
    """Nobody sends one: the agent is on this host."""
