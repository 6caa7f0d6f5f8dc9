"""Blocking calls of JAX arrays are one native call each, and their results are those of ranks without a page."""

from __future__ import annotations

import pytest

from tests.harness.blocking import FORMS, NAMED, UNNAMED, Made, make, same_without_the_page
from tests.keras.conftest import surroundings


def _all_forms() -> Made:
    import jax
    import jax.numpy as jnp

    import hvdlite.jax as hvd

    hvd.init()
    made: Made = {}
    for label in (NAMED, UNNAMED):
        made |= make(hvd, jnp.asarray, FORMS, label)
    made |= make(hvd, jnp.asarray, ("allreduce", "allgather", "broadcast"), "jit", jax.jit)
    hvd.shutdown()
    return made


@pytest.mark.parametrize("count", [2, 3])
def test_all_forms_take_the_short_way_and_have_the_same_bits_as_without_the_page(count: int) -> None:
    """In compiled functions, too, whose callbacks block. The leaves of a tree are a list, which needs a name."""
    for form, label, counts in same_without_the_page(count, _all_forms, surroundings("")):
        is_short = label != UNNAMED or form in ("reducescatter", "barrier")
        assert (counts["done"] > 0) == is_short, (form, label, counts)
