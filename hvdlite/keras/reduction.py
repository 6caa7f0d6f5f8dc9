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
from hvdlite.training.explanations import ABSENT
from hvdlite.training.naming import known_as
from hvdlite.training.peers import group_with_peers


@dataclass
class GradientReduction:
    """The choices that hold for all gradients of one optimizer.

    ``name`` is the optimizer's for messages, ``factor`` multiplies the results, and ``local_layers`` are those whose
    gradients stay on their rank, multiplied by 1 / size if ``scales_local``. ``variables`` are those of the step that
    have gradients. Gradients that only some ranks have are a `Mismatch` on all of them.
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

    def __call__(self, gradients: Iterable[Any], trained: Sequence[Any]) -> list[Any]:
        """Returns the gradients of all ranks, from this rank's, in one call.

        ``trained`` are all variables that the optimizer has, if it is one of Keras 3.
        """
        gradients = list(gradients)
        if not trained:
            return self._reduced(gradients, trained)
        places = {id(variable): place for place, variable in enumerate(self.variables)}
        local = self._local(trained)
        shared = [variable for variable in trained if id(variable) not in local]
        own = [gradients[places[id(variable)]] if id(variable) in places else None for variable in shared]
        for variable, gradient in zip(shared, self._reduced(own, shared), strict=True):
            if id(variable) in places:
                gradients[places[id(variable)]] = gradient
        if local and self.scales_local and (group := group_with_peers(self.process_set)) is not None:
            for place in (places[key] for key in local if key in places):
                gradients[place] = gradients[place] / group.size
        return gradients

    def greatest(self, gradients: list[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns ``gradients`` with the greatest of all ranks where a variable is overwritten with its gradient.

        So Keras combines those of several batches when it accumulates.
        """
        local = self._local(variables)
        overwriting = [
            place for place, variable in enumerate(variables) if id(variable) not in local and overwrites(variable)
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
        """Reduces those that are not None. What is None travels as a tensor without elements, by which ranks agree."""
        if group_with_peers(self.process_set) is None:
            if self.factor == 1.0:
                return gradients
            return [each if each is None else each * self.factor for each in gradients]
        scales = {"prescale_factor": 1.0, "postscale_factor": self.factor}
        if self.op == Average and self.predivide_factor != 1.0:
            scales["prescale_factor"] /= self.predivide_factor
            scales["postscale_factor"] *= self.predivide_factor
        how = {"op": self.op, "compression": self.compression, "sparse_as_dense": self.sparse_as_dense, **scales}
        sent = [
            ops.zeros(ABSENT, variables[place].dtype) if gradient is None else gradient
            for place, gradient in enumerate(gradients)
        ]
        return self._reduce(sent, self._unique_name(), variables=variables, **how)

    def _reduce(self, tensors: list[Any], name: str, **how: Any) -> list[Any]:
        return backend.reduce(tensors, name=name, process_set=self.process_set, **how)

    def _unique_name(self) -> str:
        """Returns the name that ranks know it by, which is counted where optimizers have the same."""
        session = current()
        if self._name_in is None or self._name_in[0] is not session:
            ((name, _),) = known_as(self.process_set, "gradients", [(self.name, _Place(()))])
            self._name_in = session, name
        return self._name_in[1]

    def _local(self, variables: Sequence[Any]) -> set[int]:
        """The identities of those ``variables`` whose gradients stay here."""
        local = {id(variable) for layer in self.local_layers for variable in layer.trainable_variables}
        local.update(id(variable) for variable in self.local_variables)
        return local.intersection(map(id, variables)) if local else local


def overwrites(variable: Any) -> bool:
    """True if Keras overwrites ``variable`` with its gradient: these are ranges of values, for float8."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


@dataclass(frozen=True)
class _Place:
    shape: tuple[int, ...]
