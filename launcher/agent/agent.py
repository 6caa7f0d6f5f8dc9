"""The agent: starts the workers of one host, relays what they write, and outlives none of them.

hvdrun runs one agent per host and talks to it in frames over the agent's stdin and stdout. The workers' environment,
which contains the job's key, arrives in a frame and so never shows in a command line.

When a worker ends, the rest of its output is sent before its end is reported. When hvdrun asks for it, or is dead, the
agent sends SIGTERM to every remaining process, SIGKILL after a grace period, and exits once it has no descendants.
After Ctrl-C it waits before the SIGTERM, unless all remaining processes ignore Ctrl-C. hvdrun is dead when its stream
ends, and on another host also when the last lease has expired: a network that drops all packets ends no stream.

Under a scheduler that signals all processes of a job, the agent tells hvdrun of a signal that ends the job and goes on,
so that hvdrun decides how long the ranks have. It does not repeat the signal: a second one can interrupt what a rank
does because of the first. A scheduler that finds processes by control groups may signal only the one that it started,
the guard. Then the agent passes SIGTERM and announcements on to the ranks, without waiting for hvdrun: that may be dead
by then, with the shell of the script that had started it, and nothing may say so but the lease.

When hvdrun does not read, the agent stops reading too, and the workers block in their writes as with any slow pipe.
This module and its imports need only the standard library, so that an agent starts within a few milliseconds.
"""

from __future__ import annotations

import operator
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from hvdlite.launched_by.inherited import without_job
from hvdlite.launched_by.slurm import without_step
from hvdlite.observe.cgroups import oom_kills

from ..stream.frames import (
    GREETING,
    FrameReader,
    Kind,
    pack_message,
    unpack_message,
    unpack_output,
)
from ..stream.hello import Hello
from ..stream.loop import Loop
from ..stream.outbox import Outbox
from .answers import Answerer, take_files
from .ending.guard import SCHEDULED, fork_guarded
from .ending.scheduler import Scheduler
from .ending.termination import Termination
from .feed import Feed, open_pipe
from .outputs import Outputs
from .tunnel import Tunnel
from .watch import Watch
from .workers import Worker, Workers, explain

_READ_BYTES: Final = 64 << 10
_ABANDONED_GRACE_S: Final = 2.0  # between SIGTERM and SIGKILL once hvdrun is dead; all must be over within 5 s
_MALFORMED: Final = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    OverflowError,
    RecursionError,
)  # what fields cause
_FAREWELL_S: Final = 2.0  # for hvdrun to read the last output
_ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_ANNOUNCING: Final = (signal.SIGUSR1, signal.SIGUSR2)  # that time is running out, for ranks and not for agents


class Agent:
    """One host's workers, from the first frame on stdin to the end of the last descendant.

    It is scheduled if a scheduler sends signals to it and to its workers, or to its guard, which then tells of them
    through the descriptor ``guard``.
    """

    def __init__(self, stdin: int, stdout: int, *, guard: int | None = None) -> None:
        self._stdin = stdin
        self._frames = FrameReader()
        self._loop = Loop()
        self._outbox = Outbox(self._loop, stdout, "hvdrun", self._hold)
        self._workers = Workers()
        self._outputs = Outputs(self._loop, self._outbox, self._workers)
        self._watch = Watch(self._workers, self._outbox.send)
        self._termination = Termination(self._workers)
        self._answerer = Answerer(self._watch.answers)
        self._tunnel = Tunnel(self._loop, self._outbox.send)
        self._oom_kills = oom_kills()
        self._guard = os.getppid()
        self._gave_up = ""  # why this agent ends by itself
        self._is_scheduled = guard is not None
        self._scheduler = Scheduler()
        self._grace_s = 0.0
        self._lease_s: float | None = None
        self._heard = time.monotonic()
        os.set_blocking(stdin, False)
        self._loop.watch(stdin, self._read_commands)
        if guard is not None:
            self._loop.watch(guard, partial(self._hear_guard, guard))
        self._loop.watch(self._answerer.fileno(), self._send_answers)
        self._outbox.send(GREETING + pack_message(Kind.HELLO, **Hello.describe().fields()))

    def run(self) -> None:
        """Runs until hvdrun ends the job or is dead, and no descendant is left."""
        signals, written = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        for signum in (signal.SIGCHLD, *_ENDING, *(_ANNOUNCING if self._is_scheduled else ())):
            signal.signal(signum, lambda *_: None)
        self._loop.watch(signals, lambda: None)
        while not (self._termination.has_begun and self._workers.are_all_gone()):
            self._loop.turn(self._seconds_to_act())
            with suppress(BlockingIOError):
                caught = set(os.read(signals, 512))
                for signum in caught.intersection(_ANNOUNCING):
                    self._scheduler.sent(signum, time.monotonic())
                if ending := caught.intersection(_ENDING):
                    self._take_signal(min(ending))
            with suppress(ChildProcessError):
                self._reap()
            for worker in self._workers.stopped(time.monotonic()):  # whoever waits for one in init() cannot see it
                self._outbox.send(pack_message(Kind.STOPPED, rank=worker.rank, pid=worker.process.pid))
            self._watch.tick(time.monotonic())
            self._termination.go_on()
            self._pass_on()
            self._check_lease()
        self._say_farewell()

    # ---- what hvdrun says

    def _read_commands(self) -> None:
        try:
            data = os.read(self._stdin, _READ_BYTES)
        except ConnectionError:  # under sshd it is a socket
            data = b""
        self._heard = time.monotonic()
        try:
            for kind, payload in self._frames.feed(data):
                self._obey(kind, payload)
        except _MALFORMED as error:
            self._complain(f"hvdrun sent an invalid message ({error!r:.200}); ending")
            data = b""
        if not data:
            self._loop.unwatch(self._stdin)
            self._lease_s = None
            self._abandon()

    def _obey(self, kind: Kind, payload: bytes) -> None:
        if kind is Kind.DATA:
            self._tunnel.deliver(*unpack_output(payload))
            return
        if kind is Kind.FILES:
            take_files(payload)
            return
        if kind is Kind.STDIN:
            self._feed(*unpack_output(payload))
            return
        message = unpack_message(payload)
        if kind is Kind.ASK:
            self._answerer.begin(message, self._look(message) if message["what"] == "stacks" else None)
        elif kind is Kind.START:
            self._start(message)
        elif kind is Kind.LEASE:
            self._lease_s = float(message["for_s"])
            self._outbox.send(pack_message(Kind.LEASE, sent=message["sent"], time=time.monotonic()))
        elif kind is Kind.SIGNAL:
            self._signal(operator.index(message["signum"]), message["everyone"])
        elif kind is Kind.CLOSE:
            self._tunnel.close(message["channel"])
        elif kind is Kind.END:
            self._end(float(message["grace_s"]), float(message.get("patience_s", 0.0)))

    def _look(self, question: Mapping[str, Any]) -> Callable[[], Any]:
        from .looking.look import looking

        try:
            return looking(self._workers, question)
        except OSError as error:  # no more descriptors, say
            return partial(_fail, error)

    def _send_answers(self) -> None:
        for answer in self._answerer.finished():
            self._outbox.send(pack_message(Kind.ANSWER, **answer))

    def _start(self, message: Mapping[str, Any]) -> None:
        inherited = without_job(without_step(os.environ)) if message["inherits"] else {}
        for name, path in message.get("appended", {}).items():
            inherited[name] = os.pathsep.join(filter(None, (inherited.get(name), path)))
        self._grace_s = float(message.get("grace_s", 0.0))
        self._watch.keeps_boxes = message.get("keeps_boxes", False)
        for name, service in message["listen"].items():
            self._tunnel.listen(name, service)
        started = []
        for entry in message["workers"]:
            environment = inherited | message["environment"] | entry["environment"]
            rank = entry["rank"]
            try:
                start = self._start_reader if entry.get("stdin") else self._workers.start
                worker = start(rank, message["command"], environment, message["cwd"])
            except (OSError, ValueError) as error:
                self._outbox.send(pack_message(Kind.FAILED, rank=rank, reason=explain(error)))
                continue
            self._outbox.send(pack_message(Kind.STARTED, rank=rank, pid=worker.process.pid))
            started.append(worker)
            self._outputs.attend(worker)
            # epoll reports descriptors in the order in which they became ready: the order of the deaths.
            if worker.pidfd is not None:
                self._loop.watch(worker.pidfd, partial(self._finish, worker))
        for worker in started:  # last, so that what is only watched takes no descriptors from what must run
            self._watch.begin(worker, time.monotonic())

    def _start_reader(self, rank: int, command: list[str], environment: dict[str, str], cwd: str) -> Worker:
        """Starts a worker that reads what `_feed` gives it."""
        stdin, written = open_pipe()
        try:
            worker = self._workers.start(rank, command, environment, cwd, stdin)
        except (OSError, ValueError):
            os.close(written)
            raise
        finally:
            os.close(stdin)
        worker.feed = Feed(self._loop, written, partial(self._report_taken, rank))
        return worker

    def _feed(self, rank: int, data: bytes) -> None:
        for worker in self._workers:
            if worker.rank == rank and worker.feed:
                worker.feed.give(data)

    def _report_taken(self, rank: int, count: int | None) -> None:
        self._outbox.send(pack_message(Kind.TAKEN, rank=rank, count=count))

    def _signal(self, signum: int, everyone: bool) -> None:
        if not everyone:
            self._workers.signal_ranks(signum)
            return
        if self._is_scheduled and signum == signal.SIGTERM:
            self._scheduler.terminate(time.monotonic())
            return
        self._workers.signal_everyone(signum)
        if signum == signal.SIGKILL:
            self._end(0.0)

    def _hear_guard(self, guard: int) -> None:
        numbers = os.read(guard, 512)
        if not numbers:  # it was killed
            self._loop.unwatch(guard)
        for signum in numbers:
            self._scheduler.sent_to_guard(signum, time.monotonic())

    def _pass_on(self) -> None:
        """Acts on signals that the guard got and nobody else here, and sends a SIGTERM that the scheduler does not."""
        now = time.monotonic()
        must_terminate = False
        for signum in self._scheduler.missed(now):
            if signum in _ANNOUNCING:
                self._workers.signal_ranks(signum)
            elif signum in _ENDING:
                self._outbox.send(pack_message(Kind.SIGNAL, signum=signum))
                must_terminate |= signum == signal.SIGTERM and not self._scheduler.has_sent(signum)
        if must_terminate or self._scheduler.must_terminate(now):
            self._workers.signal_everyone(signal.SIGTERM)
            self._scheduler.sent(signal.SIGTERM, now)

    def _check_lease(self) -> None:
        if self._lease_s is not None and time.monotonic() - self._heard > self._lease_s:
            self._complain(f"hvdrun gave no sign of life for {self._lease_s:g} s; ending")
            self._give_up(f"which heard nothing from hvdrun for {self._lease_s:g} s")
            self._lease_s = None

    def _hold(self, is_held: bool) -> None:
        """Reads what becomes frames only while the outbox has room."""
        self._tunnel.hold(is_held)
        self._outputs.hold(is_held)

    # ---- how processes end

    def _finish(self, worker: Worker) -> None:
        """Reaps ``worker`` and reports its last output, then its end."""
        pid, code, ended = worker.process.pid, worker.process.wait(), time.monotonic()
        if worker.pidfd is not None:
            self._loop.unwatch(worker.pidfd)
            os.close(worker.pidfd)
            worker.pidfd = None
        if worker.feed:
            worker.feed.close()
        self._outputs.finish(worker)
        self._workers.forget_empty_groups()
        kills, self._oom_kills = self._oom_kills, oom_kills()
        is_oom = code == -signal.SIGKILL and self._oom_kills > kills
        told = worker.read_report()
        times, is_alone = self._watch.end(worker, ended)
        self._outbox.send(
            pack_message(
                Kind.EXITED,
                rank=worker.rank,
                pid=pid,
                code=code,
                time=ended,
                is_oom=is_oom,
                ended_by=told,
                agent=self._gave_up,
                last=worker.read_blackbox(ended),
                spent=times,
                is_alone=is_alone,
            )
        )

    def _reap(self) -> None:
        """Reaps children that have ended: adopted orphans, and workers without a pidfd."""
        while ended := self._workers.peek():
            worker = self._workers.find(ended.si_pid)
            if worker is None or worker.process.returncode is not None:
                os.waitpid(ended.si_pid, 0)
                self._workers.forget_empty_groups()
            elif worker.pidfd is None:
                self._finish(worker)
            else:
                return  # the next turn finishes it, in its order

    def _take_signal(self, signum: int) -> None:
        """Gives up after a signal, which comes from the kernel if the guard has died; tells hvdrun of a scheduler's."""
        is_guarded = os.getppid() == self._guard
        if is_guarded and self._is_scheduled:
            self._scheduler.sent(signum, time.monotonic())
            self._outbox.send(pack_message(Kind.SIGNAL, signum=signum))
            return
        self._give_up(f"which got {signal.Signals(signum).name}" if is_guarded else "whose guard was killed")

    def _give_up(self, why: str) -> None:
        """Ends what runs here, and tells hvdrun ``why`` with the end of each worker."""
        if not self._termination.has_begun:
            self._gave_up = why
        self._abandon()

    def _abandon(self) -> None:
        """Ends what runs here without hvdrun. A scheduler may have ended that first: its SIGTERM may come by itself.

        Under one, ranks have the grace time that the user wants, from the only SIGTERM that they get.
        """
        if not self._is_scheduled:
            self._end(_ABANDONED_GRACE_S)
            return
        now = time.monotonic()
        self._end(0.0, max(self._scheduler.terminates_at(now) + self._grace_s - now, _ABANDONED_GRACE_S))

    def _end(self, grace_s: float, patience_s: float = 0.0) -> None:
        if not self._termination.has_begun:
            self._tunnel.shut()
        self._termination.begin(grace_s, patience_s)

    def _seconds_to_act(self) -> float | None:
        """The time until the next deadline, or None."""
        lease_ends = None if self._lease_s is None else self._heard + self._lease_s
        times = (
            self._termination.due,
            lease_ends,
            self._workers.stop_due,
            self._scheduler.due,
            self._watch.due,
        )
        dates = [when for when in times if when is not None]
        return max(0.0, min(dates) - time.monotonic()) if dates else None

    # ---- frames to hvdrun

    def _complain(self, text: str) -> None:
        with suppress(OSError):  # nobody may be left to read it
            print(f"hvdlite agent: {text}", file=sys.stderr, flush=True)

    def _say_farewell(self) -> None:
        for signum in (*_ENDING, *_ANNOUNCING) if self._is_scheduled else ():
            signal.signal(signum, signal.SIG_IGN)  # it is ending; an interpreter that ends handles none
        for worker in self._workers:
            self._outputs.finish(worker)
        self._outbox.drain(_FAREWELL_S)


def _fail(error: OSError) -> None:
    raise error


def main() -> None:
    """Runs an agent on stdin and stdout."""
    guard = fork_guarded(is_scheduled=SCHEDULED in sys.argv[1:])
    Agent(sys.stdin.fileno(), sys.stdout.fileno(), guard=guard).run()


if __name__ == "__main__":
    main()
