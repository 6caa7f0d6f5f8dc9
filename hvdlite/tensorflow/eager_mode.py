"""``horovod.tensorflow.util``: small functions that users of Horovod import."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import tensorflow as tf


def _executing_eagerly() -> bool:
    """True outside of `tf.function`."""
    return bool(tf.executing_eagerly())


def _make_subgraph(function: Callable[..., Any]) -> Any:
    """`tf.function`."""
    return tf.function(function)


_cache = cache


def vars_to_refs(vars: Any) -> Any:
    """Converts variables, in tuples, to references that can be hashed."""
    return tuple(map(vars_to_refs, vars)) if isinstance(vars, (list, tuple)) else vars.ref()


def refs_to_vars(refs: Iterable[Any]) -> Any:
    """Undoes `vars_to_refs`."""
    return [refs_to_vars(each) if isinstance(each, (list, tuple)) else each.deref() for each in refs]
