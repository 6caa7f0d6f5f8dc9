"""What AutoGraph rewrites: functions of the user, and none of hvdlite's.

Those have no control flow over tensors, and rewriting them would take most of the time in which a graph of many
collectives is built.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

import tensorflow as tf

_PACKAGE: Final = __name__.partition(".")[0]


def leave_out_all() -> None:
    """Adds this package to those that AutoGraph calls as they are, such as TensorFlow itself and Keras."""
    with contextlib.suppress(ImportError, AttributeError):  # without the rule, hvdlite works and is slower
        from tensorflow.python.autograph.core import config

        config.CONVERSION_RULES = (config.DoNotConvert(_PACKAGE), *config.CONVERSION_RULES)


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``function``, if it is the user's, as AutoGraph rewrites it where a graph is built.

    Nothing that is called by a function that is left out would be rewritten.
    """
    is_ours = str(getattr(function, "__module__", "")).partition(".")[0] == _PACKAGE
    if is_ours or tf.executing_eagerly():
        return function
    autograph = tf.__internal__.autograph
    made: Callable[..., Any] = autograph.tf_convert(function, autograph.control_status_ctx())
    return made
