"""SavedModels with collectives, in the process that saves them and in others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import hvdlite.tensorflow as hvd
from tests.harness import process_ranks
from tests.harness.forkserver import TENSORFLOW
from tests.tensorflow.ways import assert_close, through

CHOICES = ("compiled", "numpy")
SPEC = [tf.TensorSpec([2], tf.float32)]


class Model(tf.Module):  # type: ignore[misc]
    """Has a collective of each kind: with a name and without, in a process set, and in a gradient."""

    def __init__(self, own_set: Any) -> None:
        super().__init__()
        self.weight = tf.Variable(3.0)
        self._set = own_set

    @tf.function(input_signature=SPEC)
    def total(self, x: Any) -> Any:
        least = hvd.allreduce(x, op=hvd.Min, name="least", process_set=self._set)
        return hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5) + least

    @tf.function(input_signature=SPEC)
    def gradient(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(hvd.broadcast(self.weight * x, root_rank=0))
        return tape.gradient(loss, self.weight)


def check(model: Any) -> None:
    x = tf.fill([2], hvd.rank() + 1.0)
    ranks = range(1, hvd.size() + 1)
    assert_close(model.total(x), tf.fill([2], 0.5 * sum(ranks) + (1.0 if hvd.size() == 1 else hvd.rank() + 1.0)))
    assert_close(model.gradient(x), 2.0 if hvd.rank() == 0 else 0.0)


def own_set() -> Any:
    """The process set of this rank alone."""
    sets = [hvd.add_process_set([rank]) for rank in range(hvd.size())] if hvd.size() > 1 else [hvd.global_process_set]
    return sets[hvd.rank()]


def save_and_call(folder: str) -> None:
    """What is saved goes on to work, and so does what is loaded, once and again."""
    hvd.init()
    model = Model(own_set())
    for choice in CHOICES:
        with through(choice):
            fresh = Model(model._set)
            check(fresh)
            place = f"{folder}/{choice}.{hvd.rank()}"
            tf.saved_model.save(fresh, place)
            check(fresh)
            copies = [tf.saved_model.load(place) for _ in range(2)]
            for each in (*copies, fresh):
                check(each)
    hvd.shutdown()


def load_elsewhere(folder: str, of_one_rank: str) -> None:
    hvd.init()
    own_set()
    for choice in CHOICES:
        model = tf.saved_model.load(f"{folder}/{choice}.{hvd.rank()}")
        check(model)
    tf.function(lambda x: hvd.allreduce(x, op=hvd.Max))(tf.ones(2))  # the first call here is another one than there
    check(model)
    x = tf.ones(2)
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = model.total(x)
    with pytest.raises(tf.errors.InvalidArgumentError, match="there is no gradient through op Min"):
        tape.gradient(total, x)
    of_other = tf.saved_model.load(f"{folder}/compiled.{1 - hvd.rank()}")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"built by rank \d, and this is rank"):
        of_other.gradient(tf.ones(2))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"built by 1 rank\(s\), and there are 2"):
        tf.saved_model.load(f"{of_one_rank}/compiled.0").total(tf.ones(2))
    hvd.barrier()  # or the other rank may hear first that this one has left
    hvd.shutdown()


def test_it_works_where_it_was_saved_and_in_other_processes(tmp_path: Path) -> None:
    folders = [str(tmp_path / name) for name in ("two", "one")]
    save_and_call(folders[1])
    for program, arguments in ((save_and_call, folders[:1]), (load_elsewhere, folders)):
        for outcome in process_ranks(2, program, *arguments, server=TENSORFLOW):
            outcome.result()
