"""Local sums of gradients, which are reduced every few passes, for optimizers of TensorFlow 1.

Keras's optimizers have ``gradient_accumulation_steps``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import tensorflow as tf

from hvdlite.ops import ProcessSet, global_process_set
from hvdlite.tensorflow.operation.autograph import converted
from hvdlite.tensorflow.operation.graphs import session_graph
from hvdlite.tensorflow.optimizer.reduction import divided
from hvdlite.training.reduction import group_with_peers


class LocalGradientAggregationHelper:
    """Adds up the gradients of ``backward_passes_per_step`` passes and passes the sums to ``allreduce_func``.

    That function takes gradients and variables. With ``average_aggregated_gradients`` its results are divided by the
    number of passes. Works eagerly, inside `tf.function` and in graphs for sessions. ``rank``, ``optimizer_type`` and
    ``name`` are accepted for Horovod scripts. Raises ValueError for sparse gradients unless ``sparse_as_dense`` is set.
    """

    _OPTIMIZER_TYPE_KERAS: Final = "optimizer_type_keras"
    _OPTIMIZER_TYPE_LEGACY: Final = "optimizer_type_legacy"

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        rank: int | None = None,
        optimizer_type: str | None = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        """Raises ValueError unless ``backward_passes_per_step`` is positive."""
        if backward_passes_per_step <= 0:
            raise ValueError(f"backward_passes_per_step must be positive, got {backward_passes_per_step}")
        self.backward_passes_per_step = backward_passes_per_step
        self.average_aggregated_gradients = average_aggregated_gradients
        self.sparse_as_dense = sparse_as_dense
        self.process_set = process_set
        self.scale_local_gradients = scale_local_gradients
        self.locally_aggregated_grads: dict[int, Any] = {}
        self.counter = _local_variable((), tf.int32)
        self._allreduce = allreduce_func
        self._local: list[Any] = []

    def register_local_var(self, var: Any) -> None:
        """Keeps the gradient of ``var`` on its rank."""
        self._local.append(var)

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Adds ``grads`` of ``vars`` to the sums and returns the sums, in the last pass reduced, and then cleared."""
        dense = [self._dense(gradient) for gradient in grads]
        present = [index for index, gradient in enumerate(dense) if gradient is not None]
        for index in present:
            if index not in self.locally_aggregated_grads:
                self.locally_aggregated_grads[index] = _local_variable(vars[index].shape, dense[index].dtype)
        sums = [self.locally_aggregated_grads[index] for index in present]
        with tf.control_dependencies(self._initialized()):
            added = [total.assign_add(dense[index]) for total, index in zip(sums, present, strict=True)]
        with tf.control_dependencies(added):
            is_last = tf.equal(self.counter.assign_add(1).read_value(), self.backward_passes_per_step)

        def reduce() -> list[Any]:
            found = self._reduced([total.read_value() for total in sums], [vars[index] for index in present])
            with tf.control_dependencies(found):
                cleared = [total.assign(tf.zeros_like(total)) for total in self.locally_aggregated_grads.values()]
                cleared.append(self.counter.assign(0))
            with tf.control_dependencies(cleared):
                return [tf.identity(each) for each in found]

        results = tf.cond(is_last, reduce, lambda: [total.read_value() for total in sums]) if sums else []
        by_index = dict(zip(present, results if isinstance(results, (list, tuple)) else [results], strict=True))
        return [by_index.get(index) for index in range(len(dense))]

    def apply_gradients(self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls ``apply_grads_closure`` in the pass that reduced gradients; counts an iteration in the others.

        ``args`` begin with the pairs of gradients and variables. The variable ``global_step`` counts all passes.
        """
        pairs = args[0] if args else ()
        with tf.control_dependencies([gradient for gradient, _ in pairs if gradient is not None]):
            is_last = tf.equal(self.counter.read_value(), 0)

        def apply() -> Any:
            return _after(converted(apply_grads_closure)(), True)

        def count() -> Any:
            counters = getattr(optimizer, "iterations", None), kwargs.get("global_step")
            return _after([counter.assign_add(1) for counter in counters if counter is not None], False)

        return tf.cond(is_last, apply, count)

    def _initialized(self) -> list[Any]:
        """Initializes the variables in a graph for sessions, because programs may initialize global variables only."""
        if session_graph() is None:
            return []
        variables = [self.counter, *self.locally_aggregated_grads.values()]

        def initialize() -> Any:
            return tf.group(*[variable.assign(tf.zeros(variable.shape, variable.dtype)) for variable in variables])

        return [tf.cond(self.counter.is_initialized(), tf.no_op, initialize)]

    def _dense(self, gradient: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        if not self.sparse_as_dense:
            raise ValueError("tf.IndexedSlices cannot be added up here; pass sparse_as_dense=True")
        return tf.convert_to_tensor(gradient)

    def _reduced(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        local = {id(variable) for variable in self._local}
        shared = [index for index, variable in enumerate(variables) if id(variable) not in local]
        reduced = converted(self._allreduce)(
            [gradients[index] for index in shared], [variables[index] for index in shared]
        )
        group = group_with_peers(self.process_set)
        if group is not None and self.scale_local_gradients:
            gradients = [divided(gradient, group.size) for gradient in gradients]
        for index, gradient in zip(shared, reduced, strict=True):
            gradients[index] = gradient
        passes = self.backward_passes_per_step if self.average_aggregated_gradients else 1
        return [divided(gradient, passes) for gradient in gradients]


def _local_variable(shape: Any, dtype: Any) -> Any:
    """Returns a variable of zeros that is in no checkpoint and changes no name of the user's variables."""
    collections = [tf.compat.v1.GraphKeys.LOCAL_VARIABLES]
    with tf.init_scope():
        zeros = tf.zeros(shape, dtype)
        return tf.compat.v1.Variable(
            zeros, trainable=False, use_resource=True, collections=collections, name="hvdlite_sum"
        )


def _after(operations: Any, value: bool) -> Any:
    """Returns ``value`` once ``operations`` are done, also in graphs that do not keep them in order."""
    with tf.control_dependencies([each for each in tf.nest.flatten(operations) if each is not None]):
        return tf.constant(value)
