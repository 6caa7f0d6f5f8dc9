"""Types of the collectives, as mypy sees them: tensors of each front end come back, and handles know their results."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.house.tree import ROOT


class FrontEnd(NamedTuple):
    """The lines before the rows, and what mypy calls the tensor."""

    head: list[str]
    tensor: str


# What is asked, and the answer, in which T is the front end's tensor.
ROWS = [
    ("hvd.allreduce(x)", "T"),
    ("hvd.allreduce(tensor=x, name='x', op=hvd.Sum, prescale_factor=0.5)", "T"),
    ("hvd.allreduce(3.0)", "float"),
    ("hvd.allreduce(3, name='x', op=hvd.Sum)", "int"),
    ("hvd.allreduce_(x, name='x')", "T"),
    ("hvd.allreduce_async(x)", "Handle[T]"),
    ("hvd.allreduce_async_(tensor=x, name='x')", "Handle[T]"),
    ("hvd.synchronize(hvd.allreduce_async(x))", "T"),
    ("hvd.grouped_allreduce(xs)", "list[T]"),
    ("hvd.grouped_allreduce_(xs)", "list[T]"),
    ("hvd.grouped_allreduce_async(tensors=xs)", "GroupHandle[T]"),
    ("hvd.synchronize(hvd.grouped_allreduce_async_(xs))", "list[T]"),
    ("hvd.allgather(x)", "T"),
    ("hvd.allgather_async(x)", "Handle[T]"),
    ("hvd.grouped_allgather(xs)", "list[T]"),
    ("hvd.synchronize(hvd.grouped_allgather_async(xs))", "list[T]"),
    ("hvd.broadcast(x, root_rank=0)", "T"),
    ("hvd.broadcast_(x, 0, process_set=hvd.global_process_set)", "T"),
    ("hvd.broadcast_async_(x, 0)", "Handle[T]"),
    ("hvd.alltoall(x)", "T"),
    ("hvd.alltoall(x, splits=[1])", "tuple[T, T]"),
    ("hvd.synchronize(hvd.alltoall_async(x))", "tuple[T, T]"),
    ("hvd.reducescatter(x)", "T"),
    ("hvd.grouped_reducescatter(xs)", "list[T]"),
    ("hvd.synchronize(hvd.reducescatter_async(x))", "T"),
    ("hvd.reduce(x, 0)", "T"),
    ("hvd.gather(x, root_rank=0)", "T"),
    ("hvd.scatter(x, 0, splits=None)", "T"),
    ("hvd.recv(x, 1)", "T"),
    ("hvd.recv_(x, 1)", "T"),
    ("hvd.synchronize(hvd.recv_async(x, rank=1))", "T"),
    ("hvd.send_async(x, 1)", "Handle[None]"),
    ("hvd.poll(hvd.allreduce_async(x))", "bool"),
]
WRONG = [
    "hvd.allreduce('x')",
    "hvd.allreduce(x, nome='x')",
    "hvd.allreduce_async(x, compression=None)",
    "hvd.broadcast(x)",
    "hvd.grouped_allreduce(3)",
]
FRONT_ENDS = {
    "numpy": FrontEnd(
        [
            "from typing import Any",
            "import hvdlite as hvd",
            "from numpy.typing import NDArray",
            "def rows(x: NDArray[Any], xs: list[NDArray[Any]]) -> None:",
        ],
        "ndarray[tuple[Any, ...], dtype[Any]]",
    ),
    "torch": FrontEnd(
        ["import hvdlite.torch as hvd", "from torch import Tensor", "def rows(x: Tensor, xs: list[Tensor]) -> None:"],
        "Tensor",
    ),
}


# Of torch only what makes its Tensor: to check the bodies of its other thousand modules takes four times as long.
MYPY = "[mypy]\nstrict = true\n[mypy-torch.*]\nfollow_imports = skip\n" + "".join(
    f"[mypy-{module}]\nfollow_imports = normal\n" for module in ("torch", "torch._C", "torch._tensor")
)


def test_tensors_come_back_with_their_types(tmp_path: Path) -> None:
    """In one run of mypy, which takes its time."""
    scripts = {name: tmp_path / f"{name}_rows.py" for name in FRONT_ENDS}
    for name, script in scripts.items():
        body = [f"    reveal_type({call})" for call, _ in ROWS] + [f"    {call}" for call in WRONG]
        script.write_text("\n".join([*FRONT_ENDS[name].head, *body, ""]))
    (tmp_path / "mypy.ini").write_text(MYPY)
    # A cache that an earlier run left may be of other code, or half written.
    command = [sys.executable, "-m", "mypy", "--config-file", str(tmp_path / "mypy.ini"), "--cache-dir", os.devnull]
    ended = subprocess.run(
        [*command, "--no-error-summary", *map(str, scripts.values())], cwd=ROOT, capture_output=True, text=True
    )
    assert ended.stderr == ""
    told = ended.stdout
    for name, script in scripts.items():
        answers = _by_row(script, len(FRONT_ENDS[name].head), told)
        tensor = FRONT_ENDS[name].tensor
        wanted = {call: re.sub(r"\bT\b", tensor, result) for call, result in ROWS}
        assert {call: answers[row] for row, call in enumerate(wanted)} == {
            call: f'Revealed type is "{result}"' for call, result in wanted.items()
        }
        assert [call for row, call in enumerate(WRONG, len(ROWS)) if not answers.get(row)] == []


def _by_row(script: Path, lines_before: int, told: str) -> dict[int, str]:
    """The first thing that is said of each row, without the modules of its types."""
    answers: dict[int, str] = {}
    for line in told.splitlines():
        if found := re.match(rf"{re.escape(str(script))}:(\d+): (?:note|error): (.*)", line):
            answers.setdefault(int(found[1]) - lines_before - 1, re.sub(r"\b(?:\w+\.)+(?=\w)", "", found[2]))
    assert answers.keys() <= set(range(len(ROWS) + len(WRONG))), told
    return answers
