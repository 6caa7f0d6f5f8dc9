"""Gradients of collectives: the blocking forms that return a new tensor are nodes of torch's graph.

The gradient of a collective is another collective, which runs when backward reaches the node. Its name is derived from
the name of the first one, so ranks match it whatever else they do. Blocking collectives end in the same order on all
ranks, and backward visits them in reverse. Users have two rules to keep: the tensors of one call require a gradient on
all ranks or on none; and where they do, every rank uses the result, even an empty one, in its loss.

Where Horovod has a gradient, this is the same: the derivative of the average of all ranks' losses (`allgather`,
`broadcast`), or a scaled one (`reducescatter`). The others are derivatives of the sum of all ranks' losses.

`differentiable` gives a blocking form a *rule* (see `derivatives`). A rule takes the forward call and the gradients of
its results, and returns the gradients of its inputs. If no gradient is needed, the form runs as it is.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch.autograd.function import once_differentiable

from hvdlite.ops import Collectives, GroupHandle, Handle, group_of
from hvdlite.ops.handles import run
from hvdlite.session import rank
from hvdlite.training.compression import NoneCompressor

Tensors = tuple[torch.Tensor, ...]
Form = TypeVar("Form", bound=Callable[..., Any])


class Receipt(NamedTuple):
    """How a tensor went forward: the name by which ranks matched it, and the rows from each rank."""

    name: str
    rows: tuple[int, ...] = ()


class Call(NamedTuple):
    """A collective that ran forward, as the rules see it."""

    collectives: Collectives[torch.Tensor]
    arguments: dict[str, Any]
    shapes: list[torch.Size]
    receipts: Sequence[Receipt]

    def of(self, members: Sequence[int]) -> Call:
        """Returns the same call of some tensors of a group."""
        shapes = [self.shapes[index] for index in members]
        return self._replace(shapes=shapes, receipts=[self.receipts[index] for index in members])

    @property
    def meeting(self) -> dict[str, Any]:
        """The arguments that every collective takes, for the gradient's collective."""
        return {"name": f"{self.receipts[0].name}.backward", "process_set": self.arguments["process_set"]}

    @property
    def rows(self) -> list[tuple[int, ...]]:
        """The rows of each result that came from each rank."""
        return [receipt.rows for receipt in self.receipts]

    @property
    def root(self) -> dict[str, Any]:
        """The arguments of `meeting`, and the root."""
        return {"root_rank": self.arguments["root_rank"], **self.meeting}

    @property
    def is_root(self) -> bool:
        """True on the root."""
        return bool(self.arguments["root_rank"] == rank())


Rule = Callable[[Call, Tensors], Sequence[torch.Tensor | None]]


def run_draft(
    collectives: Collectives[torch.Tensor], form: str, tensors: Any, **arguments: Any
) -> tuple[Handle | GroupHandle, Any]:
    """Runs a blocking form without gradient and compression. Returns its handle, and the handle's result."""
    group = group_of(arguments.pop("process_set"))
    handle = collectives.draft(form, group, tensors, **arguments)
    return handle, run(handle)


def differentiable(blocking: Form, rule: Rule) -> Form:
    """Gives ``blocking``, a method of `Collectives`, a gradient by ``rule``.

    Autograd differentiates ``compress`` and ``decompress``, which run outside of the node.
    """
    signature = inspect.signature(blocking)
    subject = list(signature.parameters)[1]
    is_grouped = subject == "tensors"

    @functools.wraps(blocking)
    def collective(self: Collectives[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        given = args[0] if args else kwargs.get(subject)
        if is_grouped and not isinstance(given, (list, tuple)):  # an iterator, which can be read only once
            given = list(given or ())
            args, kwargs = (given, *args[1:]), {key: value for key, value in kwargs.items() if key != subject}
        if not torch.is_grad_enabled() or not _requires_grad(given):
            return blocking(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        arguments = {key: value for key, value in bound.arguments.items() if key not in ("self", subject)}
        tensors = bound.arguments[subject]
        is_list = not isinstance(tensors, torch.Tensor)
        compression = arguments.pop("compression", None) or NoneCompressor
        listed = tensors if is_list else (tensors,)
        sent, contexts = zip(*(compression.compress(tensor) for tensor in listed), strict=True)
        results = _Crossing.apply(blocking.__name__, is_list, rule, self, arguments, *sent)  # type: ignore[no-untyped-call]
        if "compression" in bound.arguments:
            results = [compression.decompress(*pair) for pair in zip(results, contexts, strict=True)]
        if is_list:
            return list(results)
        has_received_splits = len(results) > 1 and arguments["splits"] is not None
        return tuple(results) if has_received_splits else results[0]

    return cast(Form, collective)


def _requires_grad(tensors: Any) -> bool:
    if isinstance(tensors, (list, tuple)):
        return any(map(_requires_grad, tensors))
    return isinstance(tensors, torch.Tensor) and tensors.requires_grad


class _Crossing(torch.autograd.Function):
    """The node of one call: all of its tensors cross to other ranks, forward and backward."""

    @staticmethod
    def forward(
        context: Any,
        form: str,
        is_list: bool,
        rule: Rule,
        collectives: Collectives[torch.Tensor],
        arguments: dict[str, Any],
        *tensors: torch.Tensor,
    ) -> Tensors:
        handle, results = run_draft(collectives, form, list(tensors) if is_list else tensors[0], **arguments)
        handles = handle.handles if isinstance(handle, GroupHandle) else (handle,)
        receipts = [Receipt(each.name, each.rows) for each in handles]
        context.call = Call(collectives, arguments, [tensor.shape for tensor in tensors], receipts)
        context.rule = rule
        if results is None:  # a send
            return (tensors[0].new_zeros(()),)
        return tuple(results) if isinstance(results, (list, tuple)) else (results,)

    @staticmethod
    @once_differentiable
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        return (*[None] * 5, *gradients_of(context.call, context.rule, gradients))


def gradients_of(call: Call, rule: Rule, gradients: Tensors) -> list[torch.Tensor | None]:
    """Returns the gradients of a call's inputs by ``rule``, from the gradients of its results."""
    contiguous = tuple(gradient.contiguous() for gradient in gradients)
    floating = [index for index, each in enumerate(contiguous) if each.is_floating_point() or each.is_complex()]
    if len(floating) == len(call.shapes):
        return list(rule(call, contiguous))
    found: list[torch.Tensor | None] = [None] * len(call.shapes)
    if floating:  # a group with integers, which have no gradient
        results = rule(call.of(floating), tuple(contiguous[index] for index in floating))
        for index, gradient in zip(floating, results, strict=True):
            found[index] = gradient
    return found
