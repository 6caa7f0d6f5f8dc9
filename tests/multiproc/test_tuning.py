"""The root changes the fusion threshold while tensors are in flight, and all ranks have it from the same batch on."""

from __future__ import annotations

import threading
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.negotiation.messages import Run, Tuning
from hvdlite.negotiation.replica import Replica
from hvdlite.ops import group_of
from hvdlite.settings import Settings
from tests.harness import process_ranks

TENSORS = 8
NBYTES = 1024
STEPS = 10  # with each of these
TUNINGS = (Tuning(2 * NBYTES), Tuning(TENSORS * NBYTES), Tuning(0))


def tuned_steps() -> tuple[list[int], list[tuple[int, int]], int, Tuning]:
    """Sums many tensors in each step, while the root tunes.

    Returns the number of tensors in each batch; the number of each batch with which a threshold came, and that
    threshold; the threshold in the settings of this rank; and its last tuning.
    """
    hvd.init()
    group = group_of(hvd.global_process_set)
    sizes: list[int] = []
    thresholds: list[tuple[int, int]] = []
    apply = Replica.apply

    def logged(self: Replica, run: Run) -> Any:
        before = self.tuning
        works, mismatches = apply(self, run)
        sizes.extend(len(work.entries) for work in works)
        assert self.tuning is not None
        if self.tuning is not before:
            thresholds.append((self.batches - len(works) + 1, self.tuning.fusion_threshold))
        return works, mismatches

    def step() -> None:
        tensors = [np.full(NBYTES // 4, hvd.rank(), np.float32) for _ in range(TENSORS)]
        with group.burst():
            handles = [hvd.allreduce_async(each, name=f"t{i}", op=hvd.Sum) for i, each in enumerate(tensors)]
        total = sum(range(hvd.size()))
        assert all((hvd.synchronize(handle) == total).all() for handle in handles)

    with patch.object(Replica, "apply", logged):
        for tuning in (None, *TUNINGS):
            tuner = threading.Thread(target=group.tune, args=(tuning,))
            if tuning is not None and hvd.rank() == 0:
                tuner.start()  # it tunes at some moment of this step
                step()
                tuner.join()
            else:
                step()
            for _ in range(STEPS):
                step()
    own = Settings.read().fusion_threshold
    hvd.shutdown()
    return sizes, thresholds, own, group.tuning


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_new_fusion_threshold_holds_from_the_same_batch_on_for_all_ranks(count: int) -> None:
    """Also if ranks were started with thresholds of their own: that of the root counts."""
    environ = {count - 1: {"HVDLITE_FUSION_THRESHOLD": "1"}}
    outcomes = [outcome.result() for outcome in process_ranks(count, tuned_steps, environ_by_rank=environ)]
    sizes, thresholds, default, _ = outcomes[0]
    assert [each[:2] for each in outcomes] == [(sizes, thresholds)] * count
    assert [each[2] for each in outcomes] == [default] * (count - 1) + [1]
    assert [each[3] for each in outcomes] == [TUNINGS[-1]] * count
    assert [threshold for _, threshold in thresholds] == [default, *(tuning.fusion_threshold for tuning in TUNINGS)]
    assert thresholds[0][0] == 1
    ends = [number for number, _ in thresholds[1:]] + [len(sizes) + 1]
    for (first, threshold), end in zip(thresholds, ends, strict=True):
        fitting = max(1, threshold // NBYTES)
        batches = sizes[first - 1 : end - 1]
        assert max(batches) == min(fitting, TENSORS), (first, threshold, batches)
