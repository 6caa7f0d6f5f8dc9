"""Batch normalization with the mean and variance of the batches of all ranks."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from hvdlite.ops import ProcessSet, Sum, global_process_set
from hvdlite.tensorflow.collectives.names import are_counted
from hvdlite.tensorflow.collectives.reductions import allreduce
from hvdlite.training.reduction import group_with_peers


@keras.saving.register_keras_serializable(package="hvdlite")
class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """`keras.layers.BatchNormalization` over the batches of all ranks, which may be of different sizes.

    Ranks call it together. One all-reduce in double precision sums the numbers of values, the values, and their
    squares; it has a gradient. Outside of ``process_set``, or alone, a rank normalizes its own batch.
    Raises ValueError for ``fused=True``.
    """

    def __init__(self, fused: bool = False, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
        if fused:
            raise ValueError("SyncBatchNormalization cannot be fused; leave out fused=True")
        super().__init__(**kwargs)
        self._process_set = process_set

    def _moments(self, inputs: Any, mask: Any) -> Any:
        mean, variance = super()._moments(inputs, mask)
        if group_with_peers(self._process_set) is None:
            return mean, variance
        own_mean, own_variance = tf.cast(mean, tf.float64), tf.cast(variance, tf.float64)
        values = tf.cast(tf.size(inputs) / tf.size(mean), tf.float64)
        if mask is not None:
            values *= tf.reduce_mean(tf.cast(mask, tf.float64))
        has_any = values > 0  # the moments of nothing are not numbers
        own_mean = tf.where(has_any, own_mean, tf.zeros_like(own_mean))
        own_variance = tf.where(has_any, own_variance, tf.zeros_like(own_variance))
        sums = tf.stack([own_mean * values, (own_variance + own_mean**2) * values])
        everything = tf.concat([tf.reshape(sums, [-1]), [values]], 0)
        name = None if are_counted() else f"moments.{self.name}"
        total = allreduce(everything, op=Sum, name=name, process_set=self._process_set)
        whole = tf.reshape(total[:-1], tf.shape(sums)) / total[-1]
        return tf.cast(whole[0], mean.dtype), tf.cast(whole[1] - whole[0] ** 2, variance.dtype)
