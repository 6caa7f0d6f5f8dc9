"""Ranks that end, leave, or do not come while others are inside a graph: an error on all others, never a hang."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import hvdlite.tensorflow as hvd
from hvdlite.tensorflow.operation import pending as tickets
from tests.harness import process_ranks, reached
from tests.harness.forkserver import TENSORFLOW
from tests.harness.patience import NEVER_SILENT, PATIENCE_S
from tests.harness.processes import ProcessRanks
from tests.launcher.hvdrun import pids_in, read_until, started, still_alive
from tests.tensorflow.ways import through

STEPS = 3


def train(choice: str, faulty: int, fault: str) -> list[str]:
    """Takes steps in a graph; rank ``faulty`` does something else after some. Returns what the others know of it."""
    hvd.init()
    with through(choice):
        step = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name="step"))
        for number in range(STEPS):
            assert float(step(float(number))) == number * hvd.size()
        if hvd.rank() == faulty:
            globals()[fault]()
        with pytest.raises(tf.errors.OpError) as caught:
            step(1.0)
    error: Any = hvd.last_error()
    with pytest.raises(tf.errors.OpError) as again:  # the session is over, in a graph and outside
        hvd.allreduce(1.0)
    hvd.shutdown()
    return [type(caught.value).__name__, str(caught.value), type(error).__name__, str(error), str(again.value)]


def end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    hvd.shutdown()
    raise SystemExit


@pytest.mark.parametrize("choice", ["compiled", "numpy"])
@pytest.mark.parametrize(("fault", "kind"), [("end", "PeerLost"), ("leave", "ShutDown")])
def test_a_rank_that_ends_or_leaves_ends_the_graphs_of_all_others(choice: str, fault: str, kind: str) -> None:
    outcomes = process_ranks(3, train, choice, 1, fault, server=TENSORFLOW, environ=NEVER_SILENT)
    for outcome in (outcomes[0], outcomes[2]):
        in_graph, text, name, sentence, later = outcome.result()
        assert in_graph == "AbortedError"
        assert name == kind
        assert "rank 1" in sentence
        assert text.count(sentence) == 1
        assert sentence in later


def stall(faulty: int) -> list[str]:
    hvd.init()
    step = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name="step"))
    assert float(step(1.0)) == hvd.size()
    name = "another" if hvd.rank() == faulty else "step"
    other = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name=name))
    with pytest.raises(tf.errors.AbortedError) as caught:
        other(1.0)
    return [type(hvd.last_error()).__name__, str(caught.value)]


def test_ranks_that_wait_for_different_tensors_are_told_which() -> None:
    settings = {"HVDLITE_STALL_CHECK_TIME_SECONDS": "0.5", "HVDLITE_STALL_SHUTDOWN_TIME_SECONDS": "1"}
    for outcome in process_ranks(2, stall, 1, server=TENSORFLOW, environ=settings):
        kind, text = outcome.result()
        assert kind == "Stalled"
        assert "rank 1 is missing step" in text or "rank 0 is missing another" in text


def wait_in_a_graph() -> None:
    hvd.init()
    step = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))
    step(1.0)
    if hvd.rank() == 1:
        reached("outside")
        signal.pause()

    def watch() -> None:
        while not tickets._tickets:
            time.sleep(0.01)
        reached("inside")

    threading.Thread(target=watch).start()
    step(1.0)


def test_ctrl_c_ends_ranks_of_which_some_are_inside_a_graph() -> None:
    """The one outside ends first, and so the graph of the other, whose program then sees the interrupt."""
    with ProcessRanks(2, wait_in_a_graph, server=TENSORFLOW, environ=NEVER_SILENT) as ranks:
        ranks.wait_for("inside", 0)
        ranks.wait_for("outside", 1)
        for rank in (0, 1):
            ranks.send_signal(rank, signal.SIGINT)
        inside, outside = ranks.join()
    assert outside.error == "KeyboardInterrupt"
    assert inside.error  # of whatever class TensorFlow makes of the interrupt
    assert "KeyboardInterrupt" in inside.output


FOR_EVER = """
import os, threading, time
import tensorflow as tf
import hvdlite.tensorflow as hvd
from hvdlite.tensorflow.operation import pending as tickets

hvd.init()
open(f"{folder}/pid.{{hvd.rank()}}", "w").write(str(os.getpid()))
step = lambda index, x: (index + 1, hvd.allreduce(x, name="step"))
loop = tf.function(lambda: tf.while_loop(lambda *_: True, step, (0, 1.0)), autograph=False)

def watch():
    while not tickets._tickets:
        time.sleep(0.01)
    print("ready", flush=True)

threading.Thread(target=watch, daemon=True).start()
loop()
"""


def test_ctrl_c_ends_a_job_of_which_all_ranks_are_inside_a_graph(tmp_path: Path) -> None:
    """SIGTERM follows for those that do not see the interrupt, because Python runs its handler in the main thread."""
    with started("-np", "2", sys.executable, "-c", FOR_EVER.format(folder=tmp_path)) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        read_until(process.stdout.fileno(), lambda found: found.count(b"ready") == 2)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read().decode()
        assert process.wait(PATIENCE_S) == 130
    assert still_alive(pids_in(tmp_path), within_s=0.0) == []
    lines = [line for line in said.splitlines() if line.startswith("hvdrun")]
    assert lines == ["hvdrun: SIGINT: ending 2 rank(s); once more kills them at once"], said
