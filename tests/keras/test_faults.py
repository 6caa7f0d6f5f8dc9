"""Ranks that die in the middle of `fit`, and ranks that train with different back ends."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness import ProcessRanks, process_ranks, reached
from tests.harness.patience import NEVER_SILENT
from tests.keras.conftest import surroundings
from tests.keras.training import (
    BACKENDS,
    assert_same,
    data,
    network,
    prepare,
    raised_by,
    trained_alone,
    trained_together,
)


def fit_until_rank_1_dies() -> tuple[int, str, int]:
    prepare()
    import keras

    import hvdlite.keras as hvd

    def begin(epoch: int, logs: Any) -> None:
        if epoch == 2:
            reached("the middle of fit")

    hvd.init()
    model = network()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
    callbacks = [keras.callbacks.LambdaCallback(on_epoch_begin=begin)]
    fit = lambda: model.fit(*data(), batch_size=8, epochs=1_000_000, verbose=0, callbacks=callbacks)  # noqa: E731
    error, text = raised_by(fit, hvd.PeerLost)
    return error.rank, str(error), text.count(str(error))  # type: ignore[attr-defined]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_that_dies_in_the_middle_of_fit_is_named_on_the_others(backend: str) -> None:
    with ProcessRanks(2, fit_until_rank_1_dies, environ={**NEVER_SILENT, **surroundings(backend)}) as ranks:
        ranks.wait_for("the middle of fit")
        ranks.kill(1)
        survivor, _ = ranks.join()
    rank, text, count = survivor.result()
    assert (rank, count) == (1, 1)
    assert text.startswith("rank 1 on ")


def train_with_the_others() -> str:
    prepare()
    import keras

    import hvdlite.keras as hvd

    hvd.init()
    first = [hvd.broadcast(each, 0) for each in network().get_weights()]  # back ends draw different numbers
    model = network()
    model.set_weights(first)
    alone = trained_alone(model, keras.optimizers.Adam(0.01), hvd.size())
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    together = trained_together(network(), optimizer, hvd.rank(), hvd.size(), callbacks=callbacks)
    assert_same(together, alone, tolerance=1e-4)
    hvd.shutdown()
    return str(keras.backend.backend())


def test_ranks_with_different_back_ends_train_together() -> None:
    by_rank = dict(enumerate(map(surroundings, BACKENDS)))
    outcomes = process_ranks(len(by_rank), train_with_the_others, environ_by_rank=by_rank)
    assert [outcome.result() for outcome in outcomes] == list(BACKENDS)
