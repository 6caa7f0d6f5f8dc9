"""The agents of all hosts, which are connected and questioned before any rank is started.

    with Agents(options, say) as agents:
        agents.connect(hosts)                       # all at once; raises CannotStart for the first that fails
        agents.hellos["a"].cores
        agents.ask({host: questions.IsFolder(cwd) for host in agents.links})

When the ``with`` block ends, so do the agents and everything they started.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from hvdlite.blackbox.format import printable
from hvdlite.errors import CannotStart
from hvdlite.scope import Scope

from ..spawners import SshOptions
from ..stream.hello import Hello
from ..stream.loop import Loop
from ..stream.messages import FromAgent, Signalled
from ..where.hosts import Host
from .link import AgentLink, Listener, Question
from .ways import ProcessWay, Way

if TYPE_CHECKING:
    from ..stream import questions

MAX_HANDSHAKES: Final = 64  # at once
HELLO_S: Final = 30.0  # from the start of ssh to the agent's hello
ANSWER_S: Final = 20.0
_REASON_S: Final = 0.5  # for ssh to end after it has said why
_END_S: Final = 2.0  # for an agent that has closed its output to end


class Agents:
    """The links to all agents, in the order of the hosts, and the loop that serves them.

    ``say`` shows one line to the user. ``failures`` maps hosts without an agent to the reason. ``ways`` lead to hosts
    where an agent runs already; on all others it is started.
    """

    def __init__(self, options: SshOptions, say: Callable[[str], None], ways: Mapping[str, Way] | None = None) -> None:
        self.loop = Loop()
        self._say = say
        self._early: dict[AgentLink, list[str]] = {}  # lines from before the hello of the agent, not shown yet
        self._early_timer = self.loop.at(None, self._show_early)
        self.links: dict[str, AgentLink] = {}
        self.failures: dict[str, str] = {}
        self._options = options
        self._ways = ways or {}

    def attend(self, listener: Listener) -> None:
        """Passes everything to ``listener`` from now on."""
        for link in self.links.values():
            link.listener = listener

    @property
    def hellos(self) -> dict[str, Hello]:
        """The agents' descriptions of their hosts."""
        return {host: link.hello for host, link in self.links.items() if link.hello is not None}

    def connect(self, hosts: Sequence[Host]) -> None:
        """Starts the agent of every host. Raises CannotStart if one fails, once all have been tried."""
        self.try_to_connect(hosts)
        for host, reason in self.failures.items():
            others = ", ".join(other for other in self.failures if other != host)
            raise CannotStart(host, f"{reason}{f'. Nor on {others}' if others else ''}.")

    def try_to_connect(self, hosts: Sequence[Host]) -> None:
        """Starts the agent of every host and records `failures`."""
        waiting = deque({host.name: host for host in hosts}.values())
        order = [host.name for host in waiting]
        shaking: set[AgentLink] = set()
        own = Hello.describe()
        listener = Listener(_end_by_signal, self._take_line, _ignore_end)
        while waiting or shaking:
            while waiting and len(shaking) < MAX_HANDSHAKES:
                host = waiting.popleft()
                try:
                    way = self._ways.get(host.name) or ProcessWay(host, self._options)
                    link = AgentLink(host, way, self.loop, listener)
                except CannotStart as error:
                    self.failures[host.name] = error.reason
                    continue
                self.links[host.name] = link
                shaking.add(link)
            if shaking:
                self.loop.turn(min(link.started for link in shaking) + HELLO_S)
            for link in tuple(shaking):
                if (reason := _outcome(link, own)) is not None:
                    shaking.discard(link)
                    if reason:
                        self._give_up(link, reason)
                    self._show_lines(link, reason)
        self.links = {name: self.links[name] for name in order if name in self.links}

    def ask(self, what: Mapping[str, questions.Question], timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """Asks each host its question, all at once, and returns the answers by host.

        Raises CannotStart for the first host that answers with an error, not in time, or not at all.
        """
        scope = Scope.of(timeout_s)
        asked = {host: self.links[host].ask(question) for host, question in what.items()}
        self._wait_for(list(asked.values()), scope)
        for host, question in asked.items():
            if not question.is_done:
                raise CannotStart(host, f"it did not answer {type(what[host]).__name__!r} within {timeout_s:g} s.")
            if question.error:
                gone = self.links[host].is_over
                raise CannotStart(host, f"{self.links[host].explain() if gone else question.error}.")
        return {host: question.answer for host, question in asked.items()}

    def close(self) -> None:
        """Ends all agents and their remaining workers."""
        for link in self.links.values():
            link.hang_up()
        scope = Scope.of(_END_S)
        for link in self.links.values():
            link.close(scope.left_s)
        self.links.clear()
        self.loop.close()

    def __enter__(self) -> Agents:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_for(self, questions: Sequence[Question], scope: Scope) -> None:
        while not all(question.is_done for question in questions) and not scope.is_over:
            self.loop.turn(scope.deadline)

    def _take_line(self, link: AgentLink, line: str) -> None:
        """Shows a line of ssh or a login script; early lines are held back, since they may explain a failure."""
        self._early.setdefault(link, []).append(line)
        if link.hello is not None:
            self._show_lines(link)
        elif not self._early_timer.is_set:
            self._early_timer.move(time.monotonic() + _REASON_S)

    def _show_early(self) -> None:
        for link in tuple(self._early):
            self._show_lines(link)

    def _show_lines(self, link: AgentLink, reason: str = "") -> None:
        for line in self._early.pop(link, ()):
            if line.strip().rstrip(".") not in reason:
                self._say(f"{link.host}: {line}")

    def _give_up(self, link: AgentLink, reason: str) -> None:
        del self.links[link.host]
        link.destroy()
        link.close(_END_S)
        self.failures[link.host] = reason


def _outcome(link: AgentLink, own: Hello) -> str | None:
    """The reason why the agent is unusable; empty if it is usable, None until that is known."""
    if link.hello is not None:
        return printable(link.hello.misfit(own))
    if link.is_over:
        return link.explain()
    if time.monotonic() >= link.started + HELLO_S:
        return f"it did not answer within {HELLO_S:.0f} s"
    return None


def _end_by_signal(link: AgentLink, message: FromAgent) -> None:
    """Raises CannotStart with the exit code of a signal, and ignores the rest: no rank has been started."""
    if isinstance(message, Signalled):
        raise CannotStart(link.host, f"it got {signal.Signals(message.signum).name}.", 128 + message.signum)


def _ignore_end(link: AgentLink) -> None:
    """Ignores the end of an agent, which `Agents` detects itself."""
