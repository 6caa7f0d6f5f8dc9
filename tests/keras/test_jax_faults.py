"""A rank that dies while others wait for it inside of a compiled function."""

from __future__ import annotations

from tests.harness import ProcessRanks, reached
from tests.harness.patience import NEVER_SILENT
from tests.keras.conftest import surroundings


def reduce_until_rank_1_dies() -> tuple[bool, int, str, int]:
    import jax
    import jax.numpy as jnp

    import hvdlite.jax as hvd

    hvd.init()
    step = jax.jit(lambda x: jax.lax.scan(lambda carry, _: (hvd.allreduce(carry), None), x, None, length=10)[0])
    for number in range(1_000_000):
        if number == 3:
            reached("middle of training")
        try:
            jax.block_until_ready(step(jnp.ones(1000)))
        except jax.errors.JaxRuntimeError as raised:
            error = hvd.last_error()
            is_lost = isinstance(error, hvd.PeerLost)
            return is_lost, getattr(error, "rank", -1), str(error), str(raised).count(str(error))
    raise RuntimeError("rank 1 did not die")


def test_the_others_learn_which_rank_was_lost() -> None:
    with ProcessRanks(3, reduce_until_rank_1_dies, environ={**NEVER_SILENT, **surroundings("")}) as ranks:
        ranks.wait_for("middle of training", 1)
        ranks.kill(1)
        outcomes = ranks.join()
    for rank in (0, 2):
        is_lost, lost, text, count = outcomes[rank].result()
        assert (is_lost, lost, count) == (True, 1, 1)
        assert text.startswith("rank 1 on ")
        assert "Traceback" not in outcomes[rank].output  # JAX would log the error besides raising it
