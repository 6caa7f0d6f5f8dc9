"""Shows prefixed lines of all ranks, and at most one progress bar below them.

On a terminal the progress bar of the lowest rank that has one is a transient last line, redrawn after every ordinary
line. Elsewhere a bar leaves its last state, and a sign of life every few seconds. hvdrun's own messages go through here
as well, so that they do not split a line. A prompt of the rank that reads stdin has the last line to itself.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from hvdlite.blackbox.format import printable

from ..stream.loop import Loop
from ..stream.sink import Sink
from .last_words import Crash
from .output import LineAssembler, Stream, prefix
from .prompt import Prompt
from .repeats import Line, Repeats, Same

TAIL_LINES: Final = 20
_TAIL_BYTES: Final = 1000  # of one line
_IN_SIGHT: Final = 30  # lines that a terminal surely shows
_SIGN_OF_LIFE_S: Final = 5.0
_CLEAR: Final = b"\r\x1b[K"
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_CURSOR_MOVES: Final = re.compile(r"\x1b\[[0-9;?]*[A-LN-Za-ln-z]")  # every control sequence but colour (m)


class Screen:
    """Shows the output of the workers on ``stdout`` and ``stderr``; ``loop`` writes what their readers do not take."""

    def __init__(
        self,
        stdout: int,
        stderr: int,
        environment: Mapping[str, str],
        *,
        has_timestamps: bool,
        loop: Loop | None = None,
    ) -> None:
        self._has_timestamps = has_timestamps
        is_smart = environment.get("TERM") != "dumb"
        self._terminal = {Stream.STDOUT: is_smart and os.isatty(stdout), Stream.STDERR: is_smart and os.isatty(stderr)}
        self._is_coloured = not environment.get("NO_COLOR")
        # Two sinks of one terminal or pipe would overtake each other in the middle of a line.
        is_one = os.path.sameopenfile(stdout, stderr)
        err = Sink(stderr, "the output" if is_one else "stderr", loop=loop)
        out = err if is_one else Sink(stdout, "stdout", loop=loop)
        self._sinks = {Stream.STDOUT: out, Stream.STDERR: err}
        self._assemblers: dict[tuple[int, Stream], LineAssembler] = {}
        self._shown_at: dict[tuple[int, Stream], float] = {}
        self._tails: dict[tuple[int, Stream], deque[bytes]] = {}
        self._lines: dict[Sink, int] = dict.fromkeys(self._sinks.values(), 0)  # that were written there
        self._crashes: dict[int, Crash] = {}  # what ranks wrote to stderr
        self._places: dict[tuple[int, Stream], deque[int]] = {}  # how many there were before each line of a tail
        self._drawn: dict[Sink, bytes] = {}
        self._warned: set[Sink] = set()
        self._prompts = {stream: Prompt() for stream in Stream}
        self._repeats = {stream: Repeats() for stream in Stream}
        self.asks: int | None = None  # the rank whose unfinished lines may be prompts

    @property
    def deadline(self) -> float | None:
        """The time at which `redraw` is due without new output, or None."""
        times = [prompt.due for prompt in self._prompts.values()] + [each.deadline for each in self._repeats.values()]
        return min((when for when in times if when is not None), default=None)

    def tail(self, rank: int) -> list[str]:
        """The last lines that ``rank`` wrote to `stream_of_tail`."""
        return [line.decode(errors="replace") for line in self._tails.get((rank, self.stream_of_tail(rank)), ())]

    def crash(self, rank: int) -> list[str]:
        """The lines of `Crash`, if Python reported one of ``rank``."""
        return [line.decode(errors="replace") for line in self._crashes[rank].lines] if rank in self._crashes else []

    def stream_of_tail(self, rank: int) -> Stream:
        """stderr, or stdout if ``rank`` wrote nothing to stderr."""
        return Stream.STDERR if (rank, Stream.STDERR) in self._tails else Stream.STDOUT

    def is_in_sight(self, rank: int) -> bool:
        """True if the reader of stderr still sees the `tail` of ``rank`` above."""
        stream = self.stream_of_tail(rank)
        sink, places = self._sinks[stream], self._places.get((rank, stream))
        if not places or sink is not self._sinks[Stream.STDERR]:
            return False
        return self._lines[sink] - places[0] <= _IN_SIGHT

    def name(self, rank: int, pid: int) -> None:
        """Process ``pid`` is ``rank``."""
        for repeats in self._repeats.values():
            repeats.name(rank, pid)

    def show(self, rank: int, stream: Stream, data: bytes) -> None:
        """Shows output of ``rank``. Call `redraw` once all new output was shown."""
        assembler = self._assemblers.setdefault((rank, stream), LineAssembler())
        self._print(rank, stream, assembler.feed(data))
        if rank == self.asks:
            self._prompts[stream].learn(rank, assembler.unfinished, time.monotonic())
        if assembler.progress and not self._terminal[stream]:
            now = time.monotonic()
            if now - self._shown_at.setdefault((rank, stream), now) >= _SIGN_OF_LIFE_S:
                self._shown_at[rank, stream] = now
                self._write(stream, prefix(rank, stream, stamp=self._stamp()) + assembler.progress + b"\n")

    def end(self, rank: int) -> None:
        """Shows the unfinished lines of a rank that writes no more."""
        for stream in Stream:
            if assembler := self._assemblers.pop((rank, stream), None):
                self._print(rank, stream, assembler.end())
            self._print_some(stream, self._repeats[stream].end(rank, time.monotonic()))

    def flush(self) -> None:
        """Shows lines that were held back."""
        for stream, repeats in self._repeats.items():
            self._print_some(stream, repeats.flush(time.monotonic()))

    def answered(self) -> None:
        """Notes that the user entered a line, so that the terminal's cursor is at the start of one."""
        for prompt in self._prompts.values():
            prompt.answer()

    def message(self, *lines: str) -> None:
        """Shows messages of hvdrun itself on stderr. They may quote what ranks and other hosts have sent."""
        shown = (printable(_COLOUR.sub("", line.expandtabs())) for text in lines for line in text.split("\n"))
        self._write(Stream.STDERR, "".join(f"{line}\n" for line in shown).encode())

    def redraw(self) -> None:
        """Draws the prompt or progress bar below the lines, and warns once about a sink that loses output."""
        for sink in self._all_sinks():
            if sink.problem and sink not in self._warned:
                self._warned.add(sink)
                self.message(f"hvdrun: {sink.name} cannot be written: {sink.problem}; the ranks go on without it")
        for stream, repeats in self._repeats.items():
            self._print_some(stream, repeats.tick(time.monotonic()))
        for stream, prompt in self._prompts.items():
            if text := prompt.show(time.monotonic(), self._terminal[stream]):
                self._write(stream, text, prompt)
        bars = {self._sinks[stream]: b"" for stream in Stream if self._terminal[stream]}
        for (rank, stream), assembler in sorted(self._assemblers.items(), key=lambda item: item[0][0], reverse=True):
            if self._terminal[stream] and assembler.progress.strip():
                bars[self._sinks[stream]] = self._bar(rank, stream, assembler.progress)
        for sink, bar in bars.items():
            if bar != self._drawn.get(sink, b"") and not sink.waiting_bytes and not any(self._open_on(sink)):
                sink.write((_CLEAR if sink in self._drawn else b"") + bar)
                self._set_drawn(sink, bar)

    def leave_loop(self) -> None:
        """Keeps what cannot be written until `close`: the loop is about to end."""
        for sink in self._all_sinks():
            sink.leave()

    def close(self, patience_s: float) -> None:
        """Writes what is left, reports what was lost, and closes the sinks."""
        self.redraw()
        for sink in self._all_sinks():
            sink.drain(patience_s)
        for sink in self._all_sinks():
            if sink.lost_bytes:
                self.message(f"hvdrun: {sink.lost_bytes} bytes for {sink.name} were dropped: {sink.problem}")
        for sink in self._all_sinks():
            sink.drain(min(patience_s, 1.0))
            sink.close()

    def _print(self, rank: int, stream: Stream, lines: Iterable[bytes]) -> None:
        lines = list(lines)
        if not lines:
            return
        tail = self._tails.setdefault((rank, stream), deque(maxlen=TAIL_LINES))
        tail.extend(line[:_TAIL_BYTES] for line in lines[-TAIL_LINES:])
        if stream is Stream.STDERR and (rank in self._crashes or Crash.begins(lines)):
            self._crashes.setdefault(rank, Crash()).feed(lines)
        before = self._lines[self._sinks[stream]]
        places = self._places.setdefault((rank, stream), deque(maxlen=TAIL_LINES))
        places.extend(range(before, before + len(lines)))
        prompt = self._prompts[stream]
        if rank == prompt.rank:
            rest, goes_on = prompt.finish(lines[0])
            if goes_on:
                self._write(stream, rest + b"\n", prompt)
            lines[:1] = [rest] if not goes_on and (rest or not lines[0]) else []
        if self._repeats[stream].concerns(rank, lines):
            self._print_some(stream, self._repeats[stream].feed(rank, lines, time.monotonic()))
        elif lines:
            self._print_lines(rank, stream, lines)

    def _print_some(self, stream: Stream, shown: Iterable[Line | Same]) -> None:
        for each in shown:
            if isinstance(each, Line):
                self._print_lines(each.rank, stream, [each.text])
            else:
                self._write(stream, f"{each}\n".encode())

    def _print_lines(self, rank: int, stream: Stream, lines: Iterable[bytes]) -> None:
        start = prefix(rank, stream, stamp=self._stamp(), is_coloured=self._is_coloured and self._terminal[stream])
        self._write(stream, b"".join(start + line + b"\n" for line in lines))

    def _open_on(self, sink: Sink) -> Iterator[Prompt]:
        return (each for stream, each in self._prompts.items() if each.is_open and self._sinks[stream] is sink)

    def _write(self, stream: Stream, data: bytes, own: Prompt | None = None) -> None:
        """Writes whole lines, or a part of the prompt ``own``."""
        sink = self._sinks[stream]
        for prompt in tuple(self._open_on(sink)):
            if prompt is not own:
                prompt.cut_off()
                data = b"\n" + data
        if sink in self._drawn:
            data = _CLEAR + data
            self._set_drawn(sink, b"")
        self._lines[sink] += data.count(b"\n")
        sink.write(data)

    def _set_drawn(self, sink: Sink, bar: bytes) -> None:
        if bar:
            self._drawn[sink] = bar
        else:
            self._drawn.pop(sink, None)

    def _bar(self, rank: int, stream: Stream, progress: bytes) -> bytes:
        plain = prefix(rank, stream)
        width = max(1, _width(self._sinks[stream]) - len(plain) - 1)
        text = _CURSOR_MOVES.sub("", progress.decode(errors="replace"))
        return prefix(rank, stream, is_coloured=self._is_coloured) + text[:width].encode()

    def _stamp(self) -> str:
        return time.asctime() if self._has_timestamps else ""

    def _all_sinks(self) -> list[Sink]:
        return list(dict.fromkeys(self._sinks.values()))


def _width(sink: Sink) -> int:
    try:
        return os.get_terminal_size(sink.fileno()).columns or 80
    except OSError:
        return 80
