"""The reduction of all gradients of a step, in one collective."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from hvdlite.ops import OP_NAMES, Average, Compressor, Group, ProcessSet
from hvdlite.tensorflow.collectives.reductions import allreduce, grouped_allreduce
from hvdlite.tensorflow.operation.graphs import session_graph
from hvdlite.training.buckets import Groups, in_buckets
from hvdlite.training.explanations import ABSENT, explain
from hvdlite.training.reduction import group_with_peers


class GradientReduction:
    """How gradients are reduced. Call it with the gradients of a step and their variables.

    Gradients that are None stay None; if ranks differ in this, all raise `Mismatch`. Gradients of ``local`` variables
    stay on their rank, divided by the number of ranks unless ``scales_local`` is False.
    """

    def __init__(
        self,
        compression: Compressor,
        sparse_as_dense: bool,
        op: int,
        predivide_factor: float,
        groups: Groups[Any],
        process_set: ProcessSet,
        scales_local: bool,
    ) -> None:
        """Raises ValueError for a ``predivide_factor`` that does not go with ``op``."""
        if predivide_factor != 1.0 and op != Average:
            raise ValueError(
                f"gradient_predivide_factor goes with op=hvd.Average only, not with op {OP_NAMES.get(op, op)}"
            )
        self._how: dict[str, Any] = dict(compression=compression, op=op, process_set=process_set)
        self._how |= dict(prescale_factor=1.0 / predivide_factor, postscale_factor=predivide_factor)
        self._sparse_as_dense = sparse_as_dense
        self._groups = groups
        self._process_set = process_set
        self._scales_local = scales_local
        self.local: list[Any] = []

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        found = list(gradients)
        if self._sparse_as_dense:
            found = [tf.convert_to_tensor(each) if isinstance(each, tf.IndexedSlices) else each for each in found]
        group = group_with_peers(self._process_set)
        if group is None:
            return found
        local = {id(variable) for variable in self.local}
        for index, variable in enumerate(variables):
            if id(variable) in local and found[index] is not None and self._scales_local:
                found[index] = divided(found[index], group.size)
        global_ones = [index for index in range(len(found)) if id(variables[index]) not in local]
        name = f"tape.{_ordinal(group, variables[0])}" if variables else "tape"
        for number, bucket in enumerate(self._buckets(variables, global_ones)):
            self._reduce(found, variables, bucket, name if number == 0 else f"{name}.{number}")
        return found

    def _reduce(self, found: list[Any], variables: Sequence[Any], bucket: Sequence[int], name: str) -> None:
        """Replaces the gradients of ``bucket`` by their reductions."""
        sparse = [index for index in bucket if isinstance(found[index], tf.IndexedSlices)]
        dense = [index for index in bucket if index not in sparse]
        explain(name, [variables[index] for index in dense])
        sent = [_absent(variables[index]) if found[index] is None else found[index] for index in dense]
        reduced = grouped_allreduce(sent, name=name, **self._how)
        for index, tensor in zip(dense, reduced, strict=True):
            found[index] = None if found[index] is None else tensor
        how = {key: value for key, value in self._how.items() if not key.endswith("_factor")}
        for index in sparse:
            found[index] = allreduce(found[index], name=f"{name}.rows[{bucket.index(index)}]", **how)

    def _buckets(self, variables: Sequence[Any], indices: Sequence[int]) -> list[list[int]]:
        """Returns the positions of variables that are reduced together: all of them unless the user has groups."""
        if self._groups is None:
            return [list(indices)]
        members = {id(variables[index]): _Member(variables[index], index) for index in indices}
        groups: Any = self._groups
        if isinstance(groups, (list, tuple)) and all(isinstance(group, (list, tuple)) for group in groups):
            groups = [[members.get(id(each), _Member(each, -1)) for each in group] for group in groups]
        names = {member: str(getattr(member.variable, "name", member.index)) for member in members.values()}
        return [[member.index for _, member in bucket] for bucket in in_buckets(names, groups, _Member)]


def _absent(variable: Any) -> Any:
    dtype = tf.as_dtype(variable.dtype).base_dtype
    return tf.zeros(ABSENT, dtype if dtype.is_floating or dtype.is_complex else tf.float32)


class _Member:
    """A variable by its identity, because it need not be hashable."""

    def __init__(self, variable: Any, index: int) -> None:
        self.variable = variable
        self.index = index

    @property
    def shape(self) -> Any:
        return self.variable.shape


def divided(gradient: Any, count: int) -> Any:
    """Returns a gradient, dense or sparse, divided by ``count``."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(divided(gradient.values, count), gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(count, gradient.dtype)


def _ordinal(group: Group, first: Any) -> int:
    """Returns the number of a list of variables, known by its first one, in the order of their first reductions.

    So names are the same on ranks that first reduce the gradients of their models in one order, whatever the
    framework calls the variables, in graphs and in eager execution. A graph for sessions may have several reductions of
    one list, in no order, so each counts as a list of its own.
    """
    numbers, known = _ordinals.setdefault(group, (itertools.count(), {}))
    for key in [key for key, (place, _) in known.items() if place() is None]:
        del known[key]  # another variable may have its place in memory
    if id(first) not in known or session_graph() is not None:
        known[id(first)] = weakref.ref(first), next(numbers)
    return known[id(first)][1]


_ordinals: weakref.WeakKeyDictionary[Group, tuple[Iterator[int], dict[int, tuple[Any, int]]]]
_ordinals = weakref.WeakKeyDictionary()
