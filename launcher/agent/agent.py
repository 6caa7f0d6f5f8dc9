"""The agent: starts the workers of one host, relays what they write, and outlives none of them.

hvdrun runs one agent per host and talks to it in frames over the agent's stdin and stdout. The workers' environment,
which contains the job's key, arrives in a frame and so never shows in a command line.

When a worker ends, the rest of its output is sent before its end is reported. When hvdrun asks for it, or is dead, the
agent sends SIGTERM to every remaining process, SIGKILL after a grace period, and exits once it has no descendants.
After Ctrl-C it waits before the SIGTERM, unless all remaining processes ignore Ctrl-C. hvdrun is dead when its stream
ends, and on another host also when the last lease has expired: a network that drops all packets ends no stream.

Under a scheduler that signals all processes of a job, the agent reports a signal that ends the job to hvdrun and goes
on, so that hvdrun decides how long the ranks have. It does not repeat the signal: a second one can interrupt what a
rank does because of the first. A scheduler that finds processes by control groups may signal only the one that it
started, the guard. Then the agent passes SIGTERM and announcements on to the ranks, without waiting for hvdrun: hvdrun
may be dead by then, with the shell of the script that had started it, and only the lease may show that.

When hvdrun does not read, the agent stops reading too, and the workers block in their writes as with any slow pipe.
This module and its imports need only the standard library, so that an agent starts within a few milliseconds; psutil is
imported when somebody asks for what it reads.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from hvdlite.host.cgroups import oom_kills
from hvdlite.launched_by.inherited import without_job
from hvdlite.launched_by.slurm import without_step

from ..stream import messages
from ..stream.frames import GREETING, FrameError
from ..stream.hello import Hello
from ..stream.loop import Loop
from ..stream.outbox import Outbox
from ..stream.signals import ANNOUNCING, ENDING
from .answers import Answerer, take_files
from .ending.guard import SCHEDULED, fork_guarded
from .ending.scheduler import Scheduler
from .ending.termination import Termination
from .inspection.watch import Watch
from .outputs import Outputs
from .ranks.feed import Feed, open_pipe
from .ranks.workers import Worker, Workers, explain
from .tunnel import Tunnel

_READ_BYTES: Final = 64 << 10
_ABANDONED_GRACE_S: Final = 2.0  # between SIGTERM and SIGKILL once hvdrun is dead; all must be over within 5 s
_FAREWELL_S: Final = 2.0  # for hvdrun to read the last output


class Agent:
    """One host's workers, from the first frame on stdin to the end of the last descendant.

    It is scheduled if a scheduler sends signals to it and to its workers, or to its guard, which then writes their
    numbers to the descriptor ``guard``.
    """

    def __init__(self, stdin: int, stdout: int, *, guard: int | None = None) -> None:
        self._stdin = stdin
        self._decoder = messages.Decoder()
        self._loop = Loop()
        self._outbox = Outbox(self._loop, stdout, "hvdrun", self._hold)
        self._workers = Workers()
        self._outputs = Outputs(self._loop, self._outbox, self._workers)
        self._watch = Watch(self._workers, self._outbox.write)
        self._termination = Termination(self._workers, self._loop)
        self._answerer = Answerer(self._watch.answers)
        self._tunnel = Tunnel(self._loop, self._send)
        self._oom_kills = oom_kills()
        self._guard = os.getppid()
        self._gave_up = ""  # why this agent ends by itself
        self._is_scheduled = guard is not None
        self._scheduler = Scheduler()
        self._grace_s = 0.0
        self._lease_s: float | None = None
        self._lease_end = self._loop.at(None, self._end_without_lease)
        self._next_look = self._loop.at(None, self._look)
        self._next_stop = self._loop.at(None, self._report_stopped)
        self._next_signal = self._loop.at(None, self._pass_on)
        os.set_blocking(stdin, False)
        self._loop.watch(stdin, self._read_messages)
        if guard is not None:
            self._loop.watch(guard, partial(self._read_guard, guard))
        self._loop.watch(self._answerer.fileno(), self._send_answers)
        self._outbox.write(GREETING + messages.encode(Hello.describe()))

    def run(self) -> None:
        """Runs until hvdrun ends the job or is dead, and no descendant is left."""
        signals, written = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        for signum in (signal.SIGCHLD, *ENDING, *(ANNOUNCING if self._is_scheduled else ())):
            signal.signal(signum, lambda *_: None)
        self._loop.watch(signals, partial(self._take_signals, signals))
        while not (self._termination.has_begun and self._workers.are_all_gone()):
            self._loop.turn()
            with suppress(ChildProcessError):
                self._reap()
            self._termination.go_on()  # the death of a child makes its own children the agent's
        self._send_the_rest()

    # ---- messages

    def _send(self, message: messages.Message) -> None:
        self._outbox.write(messages.encode(message))

    def _read_messages(self) -> None:
        try:
            data = os.read(self._stdin, _READ_BYTES)
        except ConnectionError:  # under sshd it is a socket
            data = b""
        try:
            for message in self._decoder.feed(data):
                self._obey(message)
        except FrameError as error:
            self._complain(f"hvdrun sent an invalid message ({error}); ending")
            data = b""
        if not data:
            self._loop.unwatch(self._stdin)
            self._lease_s = None
            self._abandon()
        self._lease_end.move(None if self._lease_s is None else time.monotonic() + self._lease_s)

    def _obey(self, message: messages.Message) -> None:
        match message:
            case messages.Data(channel, data):
                self._tunnel.deliver(channel, data)
            case messages.Close(channel):
                self._tunnel.close(channel)
            case messages.Files(data):
                take_files(data)
            case messages.Input(rank, data):
                self._feed(rank, data)
            case messages.Ask(question=question, what="Stacks"):
                self._answerer.begin(message, self._looking(question))
            case messages.Ask():
                self._answerer.begin(message)
            case messages.Start():
                self._start(message)
            case messages.Lease(sent, for_s):
                self._lease_s = for_s
                self._send(messages.Alive(sent, time.monotonic()))
            case messages.Signal(signum, everyone):
                self._signal(signum, everyone)
            case messages.End(patience_s, grace_s):
                self._end(grace_s, patience_s)
            case _:
                raise FrameError(f"the message {type(message).__name__} is for hvdrun")

    def _looking(self, question: Any) -> Callable[[], Any]:
        from .inspection.look import looking

        try:
            return looking(self._workers, question)
        except OSError as error:  # no more descriptors
            return partial(_fail, error)

    def _send_answers(self) -> None:
        for answer in self._answerer.finished():
            self._send(answer)

    def _start(self, message: messages.Start) -> None:
        inherited = without_job(without_step(os.environ)) if message.inherits else {}
        for name, path in message.appended.items():
            inherited[name] = os.pathsep.join(filter(None, (inherited.get(name), path)))
        self._grace_s = message.grace_s
        self._watch.keeps_boxes = message.keeps_boxes
        for name, service in message.listen.items():
            self._tunnel.listen(name, service)
        command, started = list(message.command), []
        for rank, own, reads in message.workers:
            environment = {**inherited, **message.environment, **own}
            try:
                start = self._start_reader if reads else self._workers.start
                worker = start(rank, command, environment, message.cwd)
            except (OSError, ValueError) as error:
                self._send(messages.Failed(rank, explain(error)))
                continue
            self._send(messages.Started(rank, worker.process.pid))
            started.append(worker)
            self._outputs.attend(worker)
            # epoll reports descriptors in the order in which they became ready: the order of the deaths.
            if worker.pidfd is not None:
                self._loop.watch(worker.pidfd, partial(self._finish, worker))
        for worker in started:  # last, so that what is only watched takes no descriptors from what must run
            self._watch.begin(worker, time.monotonic())
        self._next_look.move(self._watch.due)

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
        self._send(messages.Taken(rank, count))

    def _end_without_lease(self) -> None:
        self._complain(f"hvdrun gave no sign of life for {self._lease_s:g} s; ending")
        self._give_up(f"which received nothing from hvdrun for {self._lease_s:g} s")
        self._lease_s = None

    # ---- signals

    def _take_signals(self, signals: int) -> None:
        caught = set(os.read(signals, 512))
        now = time.monotonic()
        for signum in caught.intersection(ANNOUNCING):
            self._scheduler.sent(signum, now)
        if ending := caught.intersection(ENDING):
            self._take_signal(min(ending))
        if signal.SIGCHLD in caught:
            self._report_stopped()

    def _take_signal(self, signum: int) -> None:
        """Gives up after a signal, which comes from the kernel if the guard has died; reports a scheduler's."""
        is_guarded = os.getppid() == self._guard
        if is_guarded and self._is_scheduled:
            self._scheduler.sent(signum, time.monotonic())
            self._send(messages.Signalled(signum))
            return
        self._give_up(f"which got {signal.Signals(signum).name}" if is_guarded else "whose guard was killed")

    def _read_guard(self, guard: int) -> None:
        numbers = os.read(guard, 512)
        if not numbers:  # it was killed
            self._loop.unwatch(guard)
        for signum in numbers:
            self._scheduler.sent_to_guard(signum, time.monotonic())
        self._pass_on()

    def _signal(self, signum: int, everyone: bool) -> None:
        if not everyone:
            self._workers.signal_ranks(signum)
        elif self._is_scheduled and signum == signal.SIGTERM:
            self._scheduler.terminate(time.monotonic())
            self._pass_on()
        else:
            self._workers.signal_everyone(signum)
            if signum == signal.SIGKILL:
                self._end(0.0)

    def _pass_on(self) -> None:
        """Acts on signals that the guard got and nobody else here, and sends a SIGTERM that the scheduler does not."""
        now = time.monotonic()
        must_terminate = False
        for signum in self._scheduler.missed(now):
            if signum in ANNOUNCING:
                self._workers.signal_ranks(signum)
            elif signum in ENDING:
                self._send(messages.Signalled(signum))
                must_terminate |= signum == signal.SIGTERM and not self._scheduler.has_sent(signum)
        if must_terminate or self._scheduler.must_terminate(now):
            self._workers.signal_everyone(signal.SIGTERM)
            self._scheduler.sent(signal.SIGTERM, now)
        self._next_signal.move(self._scheduler.due)

    # ---- workers

    def _look(self) -> None:
        self._watch.tick(time.monotonic())
        self._next_look.move(self._watch.due)

    def _report_stopped(self) -> None:
        for worker in self._workers.stopped(time.monotonic()):  # a rank that waits for one in init() cannot see it
            self._send(messages.Stopped(worker.rank, worker.process.pid))
        self._next_stop.move(self._workers.stop_due)

    def _hold(self, is_held: bool) -> None:
        """Reads what becomes messages only while the outbox has room."""
        self._tunnel.hold(is_held)
        self._outputs.hold(is_held)

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
        ended_by = worker.read_report()
        spent, is_alone = self._watch.end(worker, ended)
        last = tuple(worker.read_blackbox(ended))
        self._send(
            messages.Exited(
                worker.rank, pid, code, ended, is_oom, ended_by, self._gave_up, last, spent, is_alone=is_alone
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

    # ---- the end

    def _give_up(self, why: str) -> None:
        """Ends what runs here, and reports ``why`` to hvdrun with the end of each worker."""
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
        self._pass_on()

    def _end(self, grace_s: float, patience_s: float = 0.0) -> None:
        if not self._termination.has_begun:
            self._tunnel.shut()
        self._termination.begin(grace_s, patience_s)

    def _complain(self, text: str) -> None:
        with suppress(OSError):  # nobody may be left to read it
            print(f"hvdlite agent: {text}", file=sys.stderr, flush=True)

    def _send_the_rest(self) -> None:
        for signum in (*ENDING, *ANNOUNCING) if self._is_scheduled else ():
            signal.signal(signum, signal.SIG_IGN)  # it is ending; an interpreter that ends handles none
        for worker in self._workers:
            self._outputs.finish(worker)
        self._outbox.drain(_FAREWELL_S)


def _fail(error: Exception) -> None:
    raise error


def main() -> None:
    """Runs an agent on stdin and stdout."""
    guard = fork_guarded(is_scheduled=SCHEDULED in sys.argv[1:])
    Agent(sys.stdin.fileno(), sys.stdout.fileno(), guard=guard).run()


if __name__ == "__main__":
    main()
