"""Blocking calls of TensorFlow: one native call each in eager execution, and agreed on in the page in graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import hvdlite.tensorflow as hvd
from tests.harness.blocking import FORMS, NAMED, ONLY_NAMED, UNNAMED, Made, Way, make, same_without_the_page
from tests.harness.forkserver import TENSORFLOW
from tests.tensorflow.ways import through

ROUTES = ("compiled", "numpy")


def _in_graph(route: str) -> Way:
    def way(function: Callable[..., Any]) -> Callable[..., Any]:
        graph = tf.function(function)

        def run(*lists: Any) -> Any:
            with through(route):  # while it is traced, once
                return graph(*lists)

        return run

    return way


def _all_forms() -> Made:
    hvd.init()
    made: Made = {}
    for label in (NAMED, UNNAMED):
        made |= make(hvd, tf.constant, FORMS, label)
    for route in ROUTES:
        made |= make(hvd, tf.constant, FORMS, route, _in_graph(route))
    hvd.shutdown()
    return made


@pytest.mark.parametrize("count", [2, 3])
def test_all_forms_have_the_same_bits_as_without_the_page(count: int) -> None:
    """A graph starts a collective in one node and takes its results in another, and blocks no thread in between."""
    for form, label, counts in same_without_the_page(count, _all_forms, server=TENSORFLOW):
        is_short = label == NAMED or (label == UNNAMED and not form.startswith(ONLY_NAMED))
        assert (counts["done"] > 0) == is_short, (form, label, counts)
        assert counts["decided"] > 0 or label not in ROUTES, (form, label, counts)
