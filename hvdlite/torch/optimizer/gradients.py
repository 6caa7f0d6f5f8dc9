"""Hooks on torch parameters, and the memory in which their gradients are reduced."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from hvdlite.compat import stands_for_horovod
from hvdlite.ops import Buffer, group_of
from hvdlite.torch.collectives.adapter import TensorAdapter, expanded
from hvdlite.torch.optimizer.conflicts import refuse_ddp
from hvdlite.torch.optimizer.names import Named
from hvdlite.torch.optimizer.places import IN_PLACE, Place, keep_what_is_freed
from hvdlite.torch.optimizer.reduction import TensorReduction, nothing_like
from hvdlite.training.naming import known_as
from hvdlite.training.overlap import Gradient, Overlap
from hvdlite.training.parameter_check import ParameterCheck
from hvdlite.training.slices import Rows


class TensorGradient(Gradient[torch.Tensor]):
    """The gradient of one parameter.

    ``version`` is the tensor's version when it was complete, and ``stream`` the GPU's stream that computed it.
    ``own_place`` is its place in shared memory, if any; ``place`` is `IN_PLACE` while the settled gradient is there in
    the form that travels. ``sparse_dim`` is from the parameter's latest sparse gradient.
    """

    __slots__ = ("hook", "own_place", "parameter", "reduction", "sparse_dim", "stream", "version")

    def __init__(self, name: str, parameter: torch.Tensor, reduction: TensorReduction, place: Place | None) -> None:
        super().__init__(name)
        self.parameter = parameter
        self.reduction = reduction
        self.place = self.own_place = place
        self.version = 0
        self.stream: torch.cuda.Stream | None = None
        self.sparse_dim: int | None = None
        self.hook: Any = None

    @property
    def is_wanted(self) -> bool:
        return self.parameter.requires_grad

    @property
    def is_computed_by_caller(self) -> bool:
        return self.parameter.is_cpu  # autograd has a thread for each GPU

    def settle(self) -> None:
        """Moves the gradient to its place, and stores its version."""
        value = self.parameter.grad
        if value is None:  # another hook has taken it
            return
        place = self.place = self.own_place
        if place is not None and value.layout is torch.strided and value.is_contiguous():
            dtype = value.dtype
            if self.reduction.wire_dtype(dtype) is dtype:  # ranks can reduce it there as it is
                taken = place.take(value, dtype)
                if taken is not None:
                    self.place = IN_PLACE
                    if taken is not value:
                        self.parameter.grad = value = taken
        if value.is_cuda:
            self.stream = torch.cuda.current_stream(value.device)
        self.settled = value
        self.version = value._version

    def value(self) -> torch.Tensor:
        if self.settled is None:
            if self.parameter.grad is None:
                self.is_blank = not stands_for_horovod()  # with Horovod the zeros stay
                parameter, sparse_dim = self.parameter, self.sparse_dim
                parameter.grad = nothing_like(parameter) if sparse_dim is None else _no_elements(parameter, sparse_dim)
            self.settle()
        value = self.settled
        assert value is not None
        if value.requires_grad:
            raise ValueError("it is part of a graph; backward(create_graph=True) is not supported")
        if value.layout is torch.sparse_coo:
            self.sparse_dim = value.sparse_dim()
        if value.is_cuda and self.stream is not None:
            current = torch.cuda.current_stream(value.device)  # it computed the last gradient of the bucket
            if current != self.stream:
                current.wait_stream(self.stream)
        return value

    def has_changed(self) -> bool:
        value = self.parameter.grad
        return value is None or value is not self.settled or value._version != self.version

    def put(self, value: torch.Tensor, reduced: torch.Tensor) -> None:
        if value.layout is not torch.strided:
            self.parameter.grad = reduced
        elif expanded(value):  # it cannot be written
            self.parameter.grad = reduced.to(value.dtype)
        else:
            value.copy_(reduced)

    def drop(self) -> None:
        self.parameter.grad = None


class GradientReducer(Overlap[torch.Tensor]):
    """Reduces the gradients of the parameters that `watch` adds, until `close`.

    With ``has_places`` gradients are moved to memory in which ranks of a host reduce them without copies (`places`).
    """

    def __init__(self, reduction: TensorReduction, passes: int, has_places: bool = True) -> None:
        super().__init__(reduction, passes, ParameterCheck(memory_of, reduction.how))
        self._of_tensors = reduction
        self._has_places = has_places
        self._all: list[TensorGradient] = []
        self._frozen: list[TensorGradient] = []  # those that have no hook yet
        self._nbytes = 0  # of all gradients that have places

    def watch(self, members: Sequence[Named]) -> None:
        """Adds parameters that travel together, the same on all ranks. Does nothing outside the process set."""
        if not self._process_set.included():
            return
        named = known_as(group_of(self._process_set), "gradient", members)
        self._check.watch(members, named)
        gradients = []
        for name, parameter in named:
            place = Place() if self._has_places and parameter.is_cpu else None
            gradients.append(TensorGradient(name, parameter, self._of_tensors, place))
        self.add(gradients, sum(parameter.nbytes for _, parameter in members))
        self._all += gradients
        self._frozen += gradients
        self._hook()
        if self._has_places:
            self._nbytes += sum(parameter.nbytes for _, parameter in members if parameter.is_cpu)
            keep_what_is_freed(self._nbytes)

    def prepare(self) -> None:
        refuse_ddp((gradient.name.removeprefix("gradient."), gradient.parameter) for gradient in self._all)

    @torch.no_grad()
    def synchronize(self) -> None:
        if self._frozen:
            self._hook()
        super().synchronize()

    @torch.no_grad()
    def start_alone(self, name: str, parameter: torch.Tensor) -> tuple[Any, Any]:
        """Calls `TensorReduction.start_alone` for the gradient of ``parameter``, which is zeros if it has none."""
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        return self._of_tensors.start_alone(name, parameter.grad)

    def close(self) -> None:
        """Removes the hooks and releases the places. Gradients in places keep their memory."""
        for gradient in self._all:
            gradient.place = gradient.own_place = None
            if gradient.hook is not None:
                gradient.hook.remove()

    def _hook(self) -> None:
        """Adds hooks to the parameters that get gradients and have no hook yet."""
        for gradient in self._frozen:
            if gradient.is_wanted:
                register: Any = gradient.parameter.register_post_accumulate_grad_hook
                gradient.hook = register(functools.partial(self.count_pass, gradient))
        self._frozen = [gradient for gradient in self._frozen if gradient.hook is None]


def memory_of(parameter: torch.Tensor, rows: Rows) -> Buffer | None:
    """Returns the memory that `ParameterCheck` compares; of a parameter on a GPU, only all, in a copy."""
    if rows is not ... and not parameter.is_cpu:
        raise ValueError("a copy in every step would make the host wait for the GPU")
    if not parameter.requires_grad:
        return None
    return _ADAPTER.buffer(parameter.detach()[rows].cpu())


_ADAPTER = TensorAdapter()


def _no_elements(parameter: torch.Tensor, sparse_dim: int) -> torch.Tensor:
    indices = torch.empty(sparse_dim, 0, dtype=torch.int64, device=parameter.device)
    values = parameter.new_empty(0, *parameter.shape[sparse_dim:])
    return torch.sparse_coo_tensor(indices, values, parameter.shape, is_coalesced=True, check_invariants=False)
