"""A front end of a framework that there is not: tensors cannot be written in place, and a tape computes gradients.

It has what a third front end has to bring along: an adapter for its tensors, how its variables are read and assigned,
how its floats are cast, and what its users call. All else is hvdlite's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdlite.ops import Average, Buffer, Collectives, Compressor, NotAnArray, address_of, group_of, of_array
from hvdlite.ops.arrays import collectives as arrays
from hvdlite.ops.numbers import array_of, as_it_was
from hvdlite.public.names import *  # noqa: F403 - a front end has these names
from hvdlite.public.names import ProcessSet, Sum, global_process_set
from hvdlite.training.broadcasting import broadcast_all, broadcast_state, named
from hvdlite.training.buckets import Groups, in_buckets
from hvdlite.training.compression import CastingCompressor, NoneCompressor
from hvdlite.training.naming import known_as, names_of
from hvdlite.training.overlap import Gradient, Overlap
from hvdlite.training.parameter_check import ParameterCheck
from hvdlite.training.reduction import Reduction

Array = npt.NDArray[Any]

# ---- the framework


class Frozen:
    """A tensor. Nobody can change it."""

    def __init__(self, values: npt.ArrayLike) -> None:
        self._array = np.array(values)
        self._array.flags.writeable = False

    def numpy(self) -> Array:
        return self._array

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape


class Variable:
    """Holds a tensor, and may be assigned another."""

    def __init__(self, value: npt.ArrayLike) -> None:
        self.value = Frozen(value)

    def assign(self, value: npt.ArrayLike) -> None:
        self.value = Frozen(value)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape


# ---- its adapter


class _Adapter:
    finish = staticmethod(Frozen)

    def buffer(self, tensor: Frozen, is_written: bool = False) -> Buffer:
        if not isinstance(tensor, Frozen):
            raise NotAnArray(f"expected a frozen tensor, got {type(tensor).__name__}")
        if is_written:
            raise ValueError("a frozen tensor cannot be written in place; use the form without _")
        return of_array(tensor.numpy())

    def of_number(self, value: Any) -> tuple[Frozen, Callable[[Frozen], Any]] | None:
        array, convert = array_of(value), as_it_was(value)
        return None if array is None else (Frozen(array), lambda tensor: convert(tensor.numpy()))

    def empty(self, shape: Sequence[int], like: Frozen) -> tuple[Array, int]:
        output = np.empty(shape, like.dtype)
        return output, address_of(output)

    def counts(self, values: Sequence[int]) -> Frozen:
        return Frozen(np.array(values, np.int32))


collectives = Collectives[Frozen](_Adapter())


class Half(CastingCompressor):
    """Sends float32 and float64 as float16."""

    dtype = np.dtype(np.float16)

    @staticmethod
    def cast(tensor: Frozen, dtype: Any) -> Frozen:
        return Frozen(tensor.numpy().astype(dtype))

    @staticmethod
    def float_bytes(dtype: Any) -> int:
        return int(dtype.itemsize) if dtype.kind == "f" else 0


# ---- what its users call


class _Variables:
    """Variables travel as arrays."""

    kind = Variable

    def read(self, variable: Variable) -> Array:
        return variable.value.numpy().copy()

    def write(self, variable: Variable, received: Array) -> None:
        variable.assign(received)

    def description(self, variable: Variable) -> Any:
        return variable.shape, variable.value.dtype.str

    def make(self, description: Any) -> Variable:
        return Variable(np.zeros(*description))

    def here(self) -> AbstractContextManager[None]:
        return nullcontext()


def broadcast_variables(variables: Any, root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Gives ``variables`` the values of ``root_rank``."""
    broadcast_all(named(variables, Variable), root_rank, group_of(process_set), arrays, _Variables())


def broadcast_anything(state: Any, root_rank: int) -> Any:
    """The state of ``root_rank``, with variables in it."""
    return broadcast_state(state, "anything", root_rank, group_of(global_process_set), arrays, _Variables())


class DistributedTape:
    """Reduces the gradients that a tape has computed, all at once."""

    def __init__(
        self,
        named_variables: Sequence[tuple[str, Variable]],
        compression: type[Compressor] = NoneCompressor,
        groups: Groups[Variable] = None,
        op: int = Average,
    ) -> None:
        by_place = {variable: f"noname.0.{place}" for place, (_, variable) in enumerate(named_variables)}
        names = names_of(by_place, named_variables)
        buckets = in_buckets(names, groups, Variable)
        self._buckets = [known_as(group_of(global_process_set), "tape", bucket) for bucket in buckets]
        self._reduction = Reduction(collectives, compression, op, 1.0, 1.0, global_process_set)

    def reduce(self, gradients: dict[Variable, Frozen]) -> dict[Variable, Frozen]:
        """The gradient of each variable over all ranks."""
        group = group_of(global_process_set)
        with group.burst():
            flights = [
                self._reduction.start(group, bucket[0][0], [gradients[variable] for _, variable in bucket])
                for bucket in self._buckets
            ]
        return {
            variable: reduced
            for bucket, flight in zip(self._buckets, flights, strict=True)
            for (_, variable), reduced in zip(bucket, flight.finish(set()), strict=True)
        }


class _OneGradient(Gradient[Frozen]):
    """The gradient of one variable, which somebody computes and another one applies."""

    __slots__ = ("current", "variable")

    is_wanted = True

    def __init__(self, name: str, variable: Variable) -> None:
        super().__init__(name)
        self.variable = variable
        self.current: Frozen | None = None

    def settle(self) -> None:
        self.settled = self.current

    def value(self) -> Frozen:
        if self.settled is None:
            self.is_blank = True
            self.current = self.settled = Frozen(np.zeros(self.variable.shape, self.variable.value.dtype))
        return self.settled

    def has_changed(self) -> bool:
        return self.current is not self.settled

    def put(self, value: Frozen, reduced: Frozen) -> None:
        self.current = reduced

    def drop(self) -> None:
        self.current = None


class DistributedOptimizer:
    """Gradient descent that reduces gradients one by one, as they come."""

    def __init__(self, named_variables: Sequence[tuple[str, Variable]], passes: int = 1, op: int = Sum) -> None:
        check = ParameterCheck[Variable](lambda variable, rows: of_array(variable.value.numpy()[rows]))
        reduction = Reduction(collectives, NoneCompressor, op, 1.0, 1.0, global_process_set)
        self.overlap = Overlap(reduction, passes, check)
        self.gradients: dict[Variable, _OneGradient] = {}
        for name, variable in known_as(group_of(global_process_set), "gradient", named_variables):
            self.gradients[variable] = _OneGradient(name, variable)
            self.overlap.add([self.gradients[variable]], variable.value.numpy().nbytes)
        check.watch(named_variables, [(each.name, each.variable) for each in self.gradients.values()])

    def computed(self, variable: Variable, values: npt.ArrayLike) -> None:
        """Records a gradient. Called as soon as it is there."""
        gradient = self.gradients[variable]
        before = 0 if gradient.current is None else gradient.current.numpy()
        gradient.current = Frozen(before + np.asarray(values))
        self.overlap.count_pass(gradient)

    def step(self) -> None:
        """Takes the reduced gradients off their variables."""
        self.overlap.synchronize()
        for variable, gradient in self.gradients.items():
            if gradient.current is None:  # on no rank
                continue
            variable.assign(variable.value.numpy() - gradient.current.numpy())
            gradient.current = None
