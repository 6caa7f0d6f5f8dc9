"""What a distributed Keras optimizer does to its gradients, which may be in the middle of a graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
from keras import ops

from hvdlite.keras import backend
from hvdlite.ops import Max, Min, ProcessSet, group_of
from hvdlite.session import current
from hvdlite.training.explanations import ABSENT
from hvdlite.training.naming import unique
from hvdlite.training.reduction import group_with_peers

Key = Callable[[Any], Any]


@dataclass
class GradientReduction:
    """The choices for all gradients of one optimizer.

    ``name`` is for messages, and ``factor`` multiplies the results. Gradients of ``local_layers`` stay on their rank,
    divided by size if ``scales_local``. ``variables`` are those that have gradients in this step. Gradients that only
    some ranks have raise `Mismatch` on all of them.
    """

    name: str
    op: int
    compression: Any
    predivide_factor: float
    sparse_as_dense: bool
    process_set: ProcessSet
    factor: float = 1.0
    local_layers: Sequence[Any] = ()
    scales_local: bool = True
    local_variables: list[Any] = field(default_factory=list)
    variables: Sequence[Any] = ()
    _name_in: tuple[Any, str] | None = None

    def __call__(self, gradients: Iterable[Any], trained: Sequence[Any], key: Key) -> list[Any]:
        """Reduces this rank's gradients over all ranks, in one call.

        ``trained`` are all variables of the optimizer, for which variables of one ``key`` are the same. Without
        ``trained``, or if the variables of the gradients are unknown, ranks have their gradients in the same order.
        """
        gradients = list(gradients)
        if not trained or len(gradients) != len(self.variables):
            return self._reduced(gradients, ())
        by_key = {key(variable): variable for variable in (*trained, *self.variables)}
        places: dict[Any, list[int]] = {each: [] for each in by_key}
        for place, variable in enumerate(self.variables):  # one may be there twice, with a gradient for each
            places[key(variable)].append(place)
        local = self._local(key)
        sent: list[tuple[int | None, Any]] = [
            (place, by_key[each]) for each in by_key if each not in local for place in places[each] or (None,)
        ]
        own = [None if place is None else gradients[place] for place, _ in sent]
        reduced = self._reduced(own, [variable for _, variable in sent])
        for (target, _), gradient in zip(sent, reduced, strict=True):
            if target is not None:
                gradients[target] = gradient
        if local and self.scales_local and (group := group_with_peers(self.process_set)) is not None:
            for place in itertools.chain.from_iterable(places.get(each, ()) for each in local):
                gradients[place] = gradients[place] / group.size
        return gradients

    def greatest(self, gradients: list[Any], variables: Sequence[Any], key: Key) -> list[Any]:
        """Returns ``gradients``, with the greatest of all ranks where a variable is overwritten with its gradient.

        Keras combines such gradients in the same way when it accumulates.
        """
        local = self._local(key)
        overwriting = [
            place for place, variable in enumerate(variables) if key(variable) not in local and overwrites(variable)
        ]
        if overwriting and group_with_peers(self.process_set) is not None:
            own = [gradients[place] for place in overwriting]
            reduced = self._reduce(own, f"{self._unique_name()}.greatest", op=Max)
            for place, gradient in zip(overwriting, reduced, strict=True):
                gradients[place] = gradient
        return gradients

    def agreed(self, is_finite: Any) -> Any:
        """True in the graph if it is true on all ranks."""
        if group_with_peers(self.process_set) is None:
            return is_finite
        flags = [ops.cast(is_finite, "int32")]
        (least,) = self._reduce(flags, f"{self._unique_name()}.finite", op=Min)
        return ops.cast(least, "bool")

    def _reduced(self, gradients: list[Any], variables: Sequence[Any]) -> list[Any]:
        """Reduces the gradients. One that is None travels as a tensor of shape `ABSENT`, so that ranks can compare."""
        if group_with_peers(self.process_set) is None:
            if self.factor == 1.0:
                return gradients
            return [each if each is None else each * self.factor for each in gradients]
        scale = self.predivide_factor
        factors = {"prescale_factor": 1.0 / scale, "postscale_factor": self.factor * scale}
        how = {"op": self.op, "compression": self.compression, **factors}
        sent = [
            ops.zeros(ABSENT, _dtype_of_gradient(variables[place])) if gradient is None else gradient
            for place, gradient in enumerate(gradients)
        ]
        return self._reduce(sent, self._unique_name(), variables, **how)

    def _reduce(self, tensors: list[Any], name: str, variables: Sequence[Any] = (), **how: Any) -> list[Any]:
        return backend.reduce(tensors, name, variables, self.sparse_as_dense, process_set=self.process_set, **how)

    def _unique_name(self) -> str:
        """Returns the name by which ranks match the gradients, with a number if several optimizers have it."""
        session = current()
        if self._name_in is None or self._name_in[0] is not session:
            self._name_in = session, unique(group_of(self.process_set), f"gradients.{self.name}")
        return self._name_in[1]

    def _local(self, key: Key) -> set[Any]:
        """The keys of the variables whose gradients stay here."""
        local = {key(variable) for layer in self.local_layers for variable in layer.trainable_variables}
        return local.union(map(key, self.local_variables))


def _dtype_of_gradient(variable: Any) -> str:
    dtype: str = keras.backend.standardize_dtype(variable.dtype)
    return dtype if dtype in ("float16", "bfloat16", "float64") else "float32"


def overwrites(variable: Any) -> bool:
    """True if Keras overwrites ``variable`` with its gradient, as for ranges of values for float8."""
    return bool(getattr(variable, "overwrite_with_gradient", False))
