"""What a distributed Keras optimizer does to its gradients, which may be in the middle of a graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from keras import ops

from hvdlite.keras import backend
from hvdlite.members.process_set import ProcessSet
from hvdlite.session import current
from hvdlite.tensors.dtypes import Average, Max, Min
from hvdlite.training.naming import known_as
from hvdlite.training.peers import group_with_peers


@dataclass
class GradientReduction:
    """The choices that hold for all gradients of one optimizer.

    ``name`` is the optimizer's for messages, ``factor`` multiplies the results, and ``local_layers`` are those whose
    gradients stay on their rank, multiplied by 1 / size if ``scales_local``. ``variables`` are those of the step.
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

    def __call__(self, gradients: Iterable[Any]) -> list[Any]:
        """Returns the gradients of all ranks, from this rank's, in one call."""
        gradients = list(gradients)
        local = self._local_places(self.variables)
        shared = [place for place in range(len(gradients)) if place not in local]
        reduced = self._reduced([gradients[place] for place in shared])
        for place, gradient in zip(shared, reduced, strict=True):
            gradients[place] = gradient
        if local and self.scales_local and (group := group_with_peers(self.process_set)) is not None:
            for place in local:
                gradients[place] = gradients[place] / group.size
        return gradients

    def greatest(self, gradients: list[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns ``gradients`` with the greatest of all ranks where a variable is overwritten with its gradient.

        So Keras combines those of several batches when it accumulates: they are ranges of values, for float8.
        """
        local = self._local_places(variables)
        overwriting = [
            place
            for place, variable in enumerate(variables)
            if place not in local and getattr(variable, "overwrite_with_gradient", False)
        ]
        if overwriting and group_with_peers(self.process_set) is not None:
            own = [gradients[place] for place in overwriting]
            for place, found in zip(
                overwriting, self._reduce(own, f"{self._unique_name()}.greatest", op=Max), strict=True
            ):
                gradients[place] = found
        return gradients

    def agreed(self, is_finite: Any) -> Any:
        """True in the graph if it is true on all ranks."""
        if group_with_peers(self.process_set) is None:
            return is_finite
        flags = [ops.cast(is_finite, "int32")]
        (least,) = self._reduce(flags, f"{self._unique_name()}.finite", op=Min)
        return ops.cast(least, "bool")

    def _reduced(self, gradients: list[Any]) -> list[Any]:
        if group_with_peers(self.process_set) is None:
            return gradients if self.factor == 1.0 else [gradient * self.factor for gradient in gradients]
        scales = {"prescale_factor": 1.0, "postscale_factor": self.factor}
        if self.op == Average and self.predivide_factor != 1.0:
            scales["prescale_factor"] /= self.predivide_factor
            scales["postscale_factor"] *= self.predivide_factor
        how = {"op": self.op, "compression": self.compression, "sparse_as_dense": self.sparse_as_dense, **scales}
        return self._reduce(gradients, self._unique_name(), **how)

    def _reduce(self, tensors: list[Any], name: str, **how: Any) -> list[Any]:
        return backend.reduce(tensors, name=name, process_set=self.process_set, **how)

    def _unique_name(self) -> str:
        """Returns the name that ranks know it by, which is counted where optimizers have the same."""
        session = current()
        if self._name_in is None or self._name_in[0] is not session:
            ((name, _),) = known_as(self.process_set, "gradients", [(self.name, _Place(()))])
            self._name_in = session, name
        return self._name_in[1]

    def _local_places(self, variables: Sequence[Any]) -> set[int]:
        """The places in ``variables`` of those whose gradients stay here."""
        local = {id(variable) for layer in self.local_layers for variable in layer.trainable_variables}
        local.update(id(variable) for variable in self.local_variables)
        return {place for place, variable in enumerate(variables) if id(variable) in local} if local else set()


@dataclass(frozen=True)
class _Place:
    shape: tuple[int, ...]
