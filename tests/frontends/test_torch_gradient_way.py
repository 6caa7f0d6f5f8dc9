"""The functions that a gradient passes in a warm step, from its hook to the end of `step()`, in all threads."""

from __future__ import annotations

import re
import sys
import threading
from collections import Counter
from types import FrameType

import torch

import hvdlite.torch as hvd
from tests.harness import process_ranks
from tests.harness.forkserver import TORCH
from tests.house.tree import ROOT

# What is reached. Fewer are better, and more take a reason. Of them 17 compare a slice of the parameters, 5 are the
# interface of a decider, and one reminds a root that may be late. The deciders of a rank are in three modules. Some 24
# are called only by a rank that waits, or only by one that does not: this is the number of all of them together.
MOST_FUNCTIONS = 132
MOST_MODULES = 41

STEPS = 30
Function = tuple[str, str]


class _Recorder:
    """The functions of hvdlite that are called in any thread that starts after it, while it listens."""

    def __init__(self) -> None:
        self._called: list[Function] | None = None
        self._folder = str(ROOT / "hvdlite") + "/"
        threading.setprofile(self._look)

    def _look(self, frame: FrameType, event: str, argument: object) -> None:
        called, code = self._called, frame.f_code
        if event == "call" and called is not None and code.co_filename.startswith(self._folder):
            called.append((code.co_filename.removeprefix(self._folder), code.co_qualname))

    def start(self) -> None:
        self._called = []
        sys.setprofile(self._look)

    def stop(self) -> set[Function]:
        sys.setprofile(None)
        called, self._called = self._called, None
        return set(called or ())


def _functions_of_steps() -> dict[Function, int]:
    """Counts in how many of the STEPS each function was called."""
    recorder = _Recorder()
    hvd.init()
    parameter = torch.nn.Parameter(torch.ones(256))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.1), [("weight", parameter)])
    hvd.broadcast_parameters([("weight", parameter)], root_rank=0)
    counts: Counter[Function] = Counter()
    for step in range(5 + STEPS):
        optimizer.zero_grad()
        loss = parameter.square().sum()
        hvd.barrier()
        recorder.start()
        loss.backward()
        optimizer.step()
        called = recorder.stop()
        if step >= 5:
            counts.update(called)
    hvd.shutdown()
    return dict(counts)


def test_the_way_of_a_gradient_is_short_and_the_page_follows_it() -> None:
    """On rank 1 of 2, but for what timers call, and threads that happened to meet in another order."""
    _, outcome = process_ranks(2, _functions_of_steps, server=TORCH)
    way = {function for function, steps in outcome.result().items() if steps >= STEPS / 2}
    modules = {module for module, _ in way}
    assert len(way) <= MOST_FUNCTIONS, sorted(way)
    assert len(modules) <= MOST_MODULES, sorted(modules)
    assert ("training/overlap.py", "Overlap.count_pass") in way
    assert ("engine/executor.py", "Executor._run_first") in way

    page = (ROOT / "docs" / "gradient.md").read_text()
    told = page.partition("## On this rank: submit")[2].partition("## On the root")[0]
    told += page.partition("## On this rank: move")[2]
    named = {(path, name) for path, name in re.findall(r"`hvdlite/([\w/]+\.py)::([\w.]+)`", told)}
    assert len(named) > 20
    assert sorted(named - way) == []
