"""Makes AutoGraph rewrite the user's functions, and none of hvdlite's.

hvdlite's have no control flow over tensors, and rewriting them would take most of the time for building a graph with
many collectives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

import tensorflow as tf

_PACKAGE: Final = __name__.partition(".")[0]


def leave_out_all() -> None:
    """Adds this package to those that AutoGraph does not rewrite, such as TensorFlow itself and Keras."""
    with contextlib.suppress(ImportError, AttributeError):  # without the rule, hvdlite is only slower
        from tensorflow.python.autograph.core import config

        config.CONVERSION_RULES = (config.DoNotConvert(_PACKAGE), *config.CONVERSION_RULES)


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a user's ``function`` as AutoGraph rewrites it where a graph is built.

    AutoGraph does not rewrite functions that hvdlite calls by itself.
    """
    is_ours = str(getattr(function, "__module__", "")).partition(".")[0] == _PACKAGE
    if is_ours or tf.executing_eagerly():
        return function
    autograph = tf.__internal__.autograph
    made: Callable[..., Any] = autograph.tf_convert(function, autograph.control_status_ctx())
    return made
