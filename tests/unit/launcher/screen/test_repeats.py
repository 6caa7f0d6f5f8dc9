"""Equal tracebacks of several ranks, line by line and with invented times."""

from __future__ import annotations

import random

from hvdlite.launcher.screen.repeats import AHEAD_S, QUIET_S, RECENT_S, REPORT_S, Line, Repeats, Same
from hvdlite.members.ranges import shortened

HEAD = b"Traceback (most recent call last):"
FRAMES = (HEAD, b'  File "t.py", line 3, in <module>', b"    train()", b'  File "t.py", line 1, in train', b"    1 / 0")
ERROR = (*FRAMES, b"ZeroDivisionError: division by zero")
OTHER = (*FRAMES, b"KeyError: 'x'")
LINK = (b"", b"During handling of the above exception, another exception occurred:", b"")
CHAIN = (*ERROR, *LINK, *OTHER)


def said(rank: int, lines: tuple[bytes, ...]) -> list[str]:
    return [f"{rank}|{line.decode()}" for line in lines]


class Synced(Repeats):
    """Collects what is shown, as text."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.shown: list[str] = []

    def _take(self, items: object) -> None:
        assert hasattr(items, "__iter__")
        for item in items:
            self.shown.append(f"{item.rank}|{item.text.decode()}" if isinstance(item, Line) else str(item))

    def writes(self, rank: int, *lines: bytes) -> None:
        self._take(self.feed(rank, lines, self.now))

    def ends(self, rank: int) -> None:
        self._take(self.end(rank, self.now))

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self._take(self.tick(self.now))

    def finish(self) -> list[str]:
        self._take(self.flush(self.now))
        return self.shown


def test_five_ranks_with_one_mistake() -> None:
    told = Synced()
    for rank in range(5):
        told.writes(rank, *ERROR)
        told.ends(rank)
    assert told.finish() == [*said(0, ERROR), "[1-4]: the same"]


def test_in_whatever_order_their_lines_come() -> None:
    for seed in range(500):
        source = random.Random(seed)
        error = source.choice([ERROR, CHAIN, OTHER])
        left = {rank: list(error) for rank in range(4)}
        told = Synced()
        while left:
            rank = source.choice(list(left))
            for _ in range(min(source.randint(1, 4), len(left[rank]))):
                told.writes(rank, left[rank].pop(0))
            if not left[rank]:
                del left[rank]
                told.ends(rank)
        leader = int(told.shown[0][0])
        others = shortened([rank for rank in range(4) if rank != leader])
        assert told.finish() == [*said(leader, error), f"[{others}]: the same"], f"with seed {seed}"


def test_the_first_one_passes_as_it_comes() -> None:
    told = Synced()
    for number, line in enumerate(CHAIN, 1):
        told.writes(0, line)
        assert told.shown == said(0, CHAIN[:number])


def test_a_line_that_differs_brings_all_that_was_held() -> None:
    told = Synced()
    told.writes(0, *ERROR)
    told.writes(1, *FRAMES)
    assert told.shown == said(0, ERROR)
    told.writes(1, OTHER[-1])
    assert told.shown == [*said(0, ERROR), *said(1, OTHER)]
    told.writes(2, *OTHER)
    assert told.finish() == [*said(0, ERROR), *said(1, OTHER), "[2]: the same"]


def test_each_finds_its_own_among_several() -> None:
    told = Synced()
    told.writes(2, *OTHER)
    for rank in (0, 1, 3):
        told.writes(rank, *ERROR)
    told.writes(4, *OTHER)
    assert told.finish() == [*said(2, OTHER), *said(0, ERROR), "[4]: the same as [2]", "[1, 3]: the same"]


def test_ranks_process_ids_and_addresses_do_not_count_but_other_numbers_do() -> None:
    told = Synced()
    told.name(0, 4711)
    told.name(1, 4712)
    for rank, pid, address in ((0, 4711, "0x7f12"), (1, 4712, "0x7F99ab"), (2, 0, "0x0")):
        text = f"ValueError: rank {rank} of <T at {address}> in process {pid} ({pid}), pid={pid}, ranks 0, {rank}"
        told.writes(rank, *FRAMES, text.encode())
    third = (*FRAMES, b"ValueError: rank 2 of <T at 0x0> in process 0 (0), pid=0, ranks 0, 2")
    assert told.finish()[len(ERROR) :] == [*said(2, third), "[1]: the same as [0]"]
    shapes = Synced()
    shapes.writes(0, *FRAMES, b"ValueError: [10, 4]")
    shapes.writes(1, *FRAMES, b"ValueError: [10, 5]")
    assert len(shapes.finish()) == 2 * (len(FRAMES) + 1)


def test_numbers_of_child_processes_do_not_count() -> None:
    for text in (
        b"RuntimeError: DataLoader worker (pid(s) %d, %d) exited unexpectedly",
        b"RuntimeError: DataLoader worker (pid %d) is killed by signal: Killed, before SpawnProcess-%d",
        b"OSError: SpawnPoolWorker-%d could not start ForkProcess-%d:1",
        b"OSError: <SpawnProcess name='SpawnProcess-%d' pid=%d parent=7 stopped>",
    ):
        told = Synced()
        for rank in range(4):
            told.writes(rank, *FRAMES, text % (10 + rank, 20 + rank))
        assert told.finish()[len(ERROR) :] == ["[1-3]: the same"], text


def test_numbers_of_hosts_do_count() -> None:
    told = Synced()
    errors = [(*FRAMES, b"OSError: no route to job-worker-%d" % rank) for rank in range(2)]
    for rank, error in enumerate(errors):
        told.writes(rank, *error)
    assert told.finish() == [*said(0, errors[0]), *said(1, errors[1])]


def test_torch_writes_the_rank_before_every_line() -> None:
    told = Synced()
    for rank in range(3):
        told.writes(rank, *(b"[rank%d]: %s" % (rank, line) for line in CHAIN))
    assert told.finish()[len(CHAIN) :] == ["[1, 2]: the same"]


def test_a_syntax_error_and_an_exception_group_are_tracebacks() -> None:
    syntax = (b'  File "t.py", line 1', b"    def", b"       ^", b"SyntaxError: invalid syntax")
    group = (
        b"  + Exception Group Traceback (most recent call last):", b'  |   File "t.py", line 1, in <module>',
        b"  | ExceptionGroup: two (1 sub-exception)", b"  +-+---------------- 1 ----------------",
        b"    | ValueError: x", b"    +------------------------------------",
    )  # fmt: skip
    for lines in (syntax, group):
        told = Synced()
        for rank in range(3):
            told.writes(rank, *lines)
            told.ends(rank)
        assert told.finish() == [*said(0, lines), "[1, 2]: the same"]


def test_a_part_of_a_chain_is_not_the_same() -> None:
    told = Synced()
    told.writes(0, *CHAIN)
    told.writes(1, *ERROR)
    told.ends(1)
    assert told.finish() == [*said(0, CHAIN), *said(1, ERROR)]


def test_what_comes_behind_an_equal_traceback_is_shown_behind_the_news_of_it() -> None:
    told = Synced()
    told.writes(0, *ERROR, b"leaked 1")
    told.writes(1, *ERROR, b"leaked 2")
    told.writes(2, *ERROR, b"leaked 1")
    assert told.finish() == [*said(0, (*ERROR, b"leaked 1")), "[1]: the same", "1|leaked 2", "[2]: the same"]


def test_one_that_is_ahead_waits_for_the_first_only_for_a_moment() -> None:
    told = Synced()
    told.writes(0, *FRAMES[:2])
    told.writes(1, *ERROR)
    assert told.shown == said(0, FRAMES[:2])
    told.passes(AHEAD_S - 0.1)
    assert told.shown == said(0, FRAMES[:2])
    assert told.deadline is not None
    told.passes(told.deadline - told.now)
    assert told.shown == [*said(0, FRAMES[:2]), *said(1, ERROR)]


def test_one_that_is_ahead_with_another_line_is_shown_when_that_is_known() -> None:
    told = Synced()
    told.writes(0, *FRAMES)
    told.writes(1, *OTHER)
    told.writes(0, ERROR[-1])
    assert told.shown == [*said(0, ERROR), *said(1, OTHER)]


def test_one_that_ahead_of_another_that_ended_is_shown_at_once() -> None:
    told = Synced()
    told.writes(0, *FRAMES[:2])
    told.writes(1, *ERROR)
    told.ends(0)
    assert told.shown == [*said(0, FRAMES[:2]), *said(1, ERROR)]


def test_a_traceback_that_goes_on_no_more_is_shown() -> None:
    told = Synced()
    told.writes(0, *ERROR)
    told.writes(1, *FRAMES[:3])
    told.passes(QUIET_S - 0.1)
    assert told.shown == said(0, ERROR)
    told.passes(0.1)
    assert told.shown == [*said(0, ERROR), *said(1, FRAMES[:3])]
    assert told.deadline is None


def test_the_news_comes_after_a_moment_for_several_ranks() -> None:
    told = Synced()
    told.writes(0, *ERROR)
    told.ends(0)
    for rank in (1, 2):
        told.writes(rank, *ERROR)
        told.ends(rank)
    assert told.shown == said(0, ERROR)
    told.passes(REPORT_S)
    assert told.shown == [*said(0, ERROR), "[1, 2]: the same"]
    assert told.deadline is None


def test_a_rank_does_not_repeat_itself_and_old_ones_are_forgotten() -> None:
    told = Synced()
    told.writes(0, *ERROR, *ERROR)
    told.passes(RECENT_S)
    told.writes(1, *ERROR)
    assert told.finish() == [*said(0, ERROR), *said(0, ERROR), *said(1, ERROR)]


def test_other_lines_pass_and_cost_nothing() -> None:
    told = Synced()
    assert not told.concerns(0, [b"step 1", b"File not found"])
    assert told.concerns(0, [b"x", HEAD])
    told.writes(0, *ERROR)
    told.ends(0)
    assert not told.concerns(0, [b"step 2"])
    told.writes(1, b"step 1", *ERROR, b"step 2")
    assert told.finish() == [*said(0, ERROR), "1|step 1", "[1]: the same", "1|step 2"]


def test_what_a_note_says() -> None:
    assert str(Same((0, 2, 3, 4), 1, is_last=True)) == "[0, 2-4]: the same"
