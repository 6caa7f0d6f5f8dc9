"""Texts about the stacks of ranks, of whatever comes from other machines."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hvdlite.launcher.reports.stacks import Looked, as_lines, looked

_THREAD = {"name": "MainThread", "is_main": True, "state": "S", "syscall": "futex", "wchan": "futex_wait"}
_CALLS = [["/usr/lib/python3.11/threading.py", 3, "wait"], ["/data/job/train.py", 7, "step"]]


def _looked(rank: int, **fields: Any) -> Looked:
    return looked(rank, "node7", {"pid": 4711, "threads": [{**_THREAD, "calls": _CALLS}], **fields})


def test_equal_stacks_are_one_although_their_states_differ() -> None:
    running = {"threads": [{**_THREAD, "calls": _CALLS, "state": "R"}]}
    assert list(as_lines([_looked(0), _looked(1, **running), _looked(2), _looked(4)])) == [
        "ranks 0-2, 4: the main thread sleeps in futex (futex_wait) (ranks 0, 2, 4), runs (rank 1)",
        '  File "/usr/lib/python3.11/threading.py", line 3, in wait',
        '  File "/data/job/train.py", line 7, in step',
    ]


def test_a_state_of_another_moment_than_the_stack_is_no_state_of_it() -> None:
    for fields, does in {
        ("moved", "awake"): "goes on, and was here for a moment",
        ("awake",): "sleeps again and again in futex (futex_wait)",
        (): "sleeps in futex (futex_wait)",
    }.items():
        thread = {**_THREAD, "calls": _CALLS, **dict.fromkeys(fields, True)}
        assert next(as_lines([_looked(0, threads=[thread])])) == f"rank 0: the main thread {does}"


def test_what_is_special_about_a_process_comes_first() -> None:
    lines = list(as_lines([_looked(3, tracer="gdb (process 9)", reads_stdin=True, way="signal")]))
    assert lines[:3] == [
        "rank 3 on node7, process 4711, is traced by gdb (process 9)",
        "rank 3 on node7, process 4711, waits for input: it reads stdin",
        "rank 3 on node7, process 4711, holds the GIL in native code: no Python of it runs",
    ]
    starved = next(as_lines([_looked(3, way="signal", is_starved=True)]))
    assert starved.endswith(", gets no processor, or waits for its memory to be read from a disk: no Python of it runs")


def test_the_place_in_the_users_code_is_not_in_a_library() -> None:
    place = _looked(0).place
    assert place is not None
    assert (place.file, place.line, place.function) == ("/data/job/train.py", 7, "step")
    ours = _looked(0, ours="/data/job/train").place
    assert ours is not None  # nothing is left, so the outermost call stands for it
    assert ours.line == 7


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                "pid tracer why way children threads name is_main state syscall wchan calls ours command waits names "
                "count missing present circle seconds".split()
            ),
            inner,
            max_size=8,
        )
    ),
    max_leaves=30,
)


@given(ANY_JSON)
def test_any_answer_becomes_a_few_printable_lines(answer: object) -> None:
    each = looked(0, "node7", answer)
    lines = list(as_lines([each]))
    assert all(line.isprintable() and len(line) < 300 for line in lines)
    assert each.place is None or str(each.place).isprintable()


def test_a_large_answer_is_cut() -> None:
    thread = {**_THREAD, "is_main": False, "calls": [["/x" * 4000, 1, "f" * 4000]] * 1000}
    answer = {"threads": [{**thread, "name": str(number)} for number in range(1000)]}
    lines = list(as_lines([looked(0, "node7", answer)]))
    assert len(lines) < 64 * 31 + 2
    assert max(map(len, lines)) <= 300
