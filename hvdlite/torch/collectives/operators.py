"""Blocking collectives as operators of torch, which `torch.compile` puts into its graphs as they are.

There are three: for results whose shapes this rank knows, for their gradients, and for a result whose rows depend on
other ranks, through which gradients go only outside of graphs. They run the collectives of `tensors` when the graph
runs. So names, checks and errors are those of a call outside of a graph, and ranks match calls whether they are
compiled or not.

Ranks must run blocking collectives in one order, and a compiler drops, merges and reorders pure functions: effect types
do not keep inductor of torch 2.13 from reordering operators for less memory. So each operator *writes* one tensor that
all of them share, which every pass respects, forward and backward.

A gradient travels under the name of the forward collective. An automatic name is known only when that has run. So each
operator writes the name into a tensor, its receipt, which autograd keeps for backward.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import torch

from hvdlite.ops import Collectives, GroupHandle, Handle, barrier, global_process_set
from hvdlite.torch.collectives.autograd import Call, Receipt, gradients_of, run_draft
from hvdlite.torch.collectives.derivatives import RULES

# torch 2.4, the first with custom_op, cannot functionalize operators that write lists of tensors. Versions in between
# were not tried. Calls that end a graph work with all of them.
HAS_OPERATORS: Final = torch.torch_version.TorchVersion(torch.__version__) >= "2.13"

AUTOMATIC_NAME_BYTES: Final = 96  # room for an automatic name, and for suffixes

order = torch.zeros((), device="cpu")


_REDUCTION: Final = ("op", "prescale_factor", "postscale_factor")


def register(collectives: Collectives[torch.Tensor]) -> None:
    """Registers operators for ``collectives`` as ``torch.ops.hvdlite``."""
    arguments = "str form, str? name, SymInt op, float prescale, float postscale, SymInt rank"
    define = torch.library.custom_op

    @define(
        "hvdlite::collective",
        mutates_args=("order", "outputs", "receipt"),
        schema=f"(Tensor(a!) order, Tensor(b!)[] outputs, Tensor(c!) receipt, Tensor[] inputs, {arguments}) -> ()",
    )
    def collective(
        order: Any, outputs: Any, receipt: torch.Tensor, inputs: Any, form: str, name: str | None, *numbers: Any
    ) -> None:
        if form == "barrier":
            barrier()
            return
        *reduction, rank = numbers
        handle, results = run(form, inputs, name, reduction, rank)
        text = torch.frombuffer(bytearray(handle.name.encode()), dtype=torch.uint8)
        receipt.zero_()[: len(text)] = text
        for output, result in zip(outputs, results, strict=True):
            output.copy_(result)

    @define(
        "hvdlite::exchange",
        mutates_args=("order",),
        schema="(Tensor(a!) order, Tensor input, str form, str? name, SymInt rank, SymInt[]? splits)"
        " -> (Tensor, Tensor)",
    )
    def exchange(
        order: Any, input: torch.Tensor, form: str, name: str | None, rank: int, splits: Sequence[int] | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        handle, results = run(form, [input], name, (), rank, splits)
        return results[0], torch.tensor(handle.rows, dtype=torch.int32, device="cpu")

    @define(
        "hvdlite::backward",
        mutates_args=("order", "outputs"),
        schema="(Tensor(a!) order, Tensor(b!)[] outputs, Tensor[] gradients, Tensor receipt, "
        "str form, SymInt op, float prescale, float postscale, SymInt rank) -> ()",
    )
    def backward(order: Any, outputs: Any, gradients: Any, receipt: torch.Tensor, form: str, *numbers: Any) -> None:
        *reduction, rank = numbers
        name = bytes(receipt.tolist()).rstrip(b"\0").decode()
        given = {**_arguments(form, reduction, rank), "average": None}
        call = Call(collectives, given, [output.shape for output in outputs], [Receipt(name)] * len(outputs))
        found = gradients_of(call, RULES[form], tuple(gradients))
        for output, gradient in zip(outputs, found, strict=True):
            if gradient is None:
                output.zero_()
            else:
                output.copy_(gradient)

    def run(
        form: str,
        inputs: Sequence[torch.Tensor],
        name: str | None,
        reduction: Sequence[Any],
        rank: int,
        splits: Sequence[int] | None = None,
    ) -> tuple[Handle, list[torch.Tensor]]:
        """Runs the form. Returns the handle of the first tensor, and the results."""
        tensors = list(inputs) if form.startswith("grouped_") else inputs[0]
        arguments = _arguments(form, reduction, rank, splits)
        handle, result = run_draft(collectives, form, tensors, name=name, **arguments)
        if isinstance(handle, GroupHandle):
            return handle.handles[0], result
        if result is None:  # a send
            return handle, []
        return handle, [result[0] if form == "alltoall" else result]

    @collective.register_fake
    def _(*arguments: Any) -> None:
        pass

    @backward.register_fake
    def _(*arguments: Any) -> None:
        pass

    @exchange.register_fake
    def _(order: Any, input: torch.Tensor, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        context = torch.library.get_ctx()
        rows, ranks = context.new_dynamic_size(), context.new_dynamic_size()
        return input.new_empty((rows, *input.shape[1:])), torch.empty(ranks, dtype=torch.int32, device="cpu")


def _arguments(form: str, reduction: Sequence[Any], rank: int, splits: Sequence[int] | None = None) -> dict[str, Any]:
    """Returns the arguments that the form takes, with the process set."""
    values = {"root_rank": rank, "rank": rank, "splits": splits, **dict(zip(_REDUCTION, reduction, strict=False))}
    return {"process_set": global_process_set, **{key: values[key] for key in _parameters(form) & values.keys()}}


@cache
def _parameters(form: str) -> frozenset[str]:
    return frozenset(inspect.signature(getattr(Collectives, form)).parameters)
