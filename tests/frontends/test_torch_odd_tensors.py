"""Every collective on every kind of tensor: the result is right, or the call says why not, and nothing else happens.

`ODD` has the tensors, `FORMS` the collectives; a cell of their table is either *right* or the error that is expected.
All cells run in one job, and an error is raised by all of its ranks before anything is submitted.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import hvdlite.torch as hvd
from tests.frontends.odd import ODD, Odd, bytes_of, has_sums, values_of
from tests.frontends.scenarios import Report, Scenarios

scenario = Scenarios(ranks=[1, 2])


class Form(NamedTuple):
    """A collective: what it makes of a tensor, and what that has to be, given the values of all ranks."""

    run: Callable[[torch.Tensor], Any]
    expected: Callable[[list[torch.Tensor]], torch.Tensor]
    is_in_place: bool = False
    has_rows: bool = False
    adds: bool = False
    is_even: bool = False


def _sum(each: list[torch.Tensor]) -> torch.Tensor:
    total = each[0]
    for other in each[1:]:
        total = total | other if total.dtype is torch.bool else total + other
    return total


def _own(each: list[torch.Tensor]) -> torch.Tensor:
    return each[hvd.rank()]


def _part(of: torch.Tensor) -> torch.Tensor:
    return of.tensor_split(hvd.size())[hvd.rank()] if of.dim() else of


def _at_root(of: torch.Tensor) -> torch.Tensor:
    return of if hvd.rank() == 0 else of[:0] if of.dim() else of.new_empty(0)


def _finish(handle: Any) -> Any:
    return hvd.synchronize(handle)


def _exchange(tensor: torch.Tensor, receive: Callable[..., Any]) -> torch.Tensor:
    """Each rank sends its tensor to the other, or there is only one."""
    is_in_place = receive in (hvd.recv_, hvd.recv_async_)
    if hvd.size() == 1:
        return (hvd.broadcast_ if is_in_place else hvd.broadcast)(tensor, 0)
    sent = tensor
    if is_in_place:  # what is received into is not what is sent: there and back again, it is another one
        sent = _exchange(_exchange(tensor, hvd.recv), hvd.recv)
    handle = hvd.send_async(sent, 1 - hvd.rank())
    try:
        received = receive(tensor, 1 - hvd.rank())
    except Exception:
        hvd.recv(sent, 1 - hvd.rank())  # so that the other rank's message has come, too
        hvd.synchronize(handle)
        raise
    received = received if isinstance(received, torch.Tensor) else hvd.synchronize(received)
    hvd.synchronize(handle)
    return received


def _others(each: list[torch.Tensor]) -> torch.Tensor:
    return each[-1 - hvd.rank()]


def _joined(each: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(each)


def _turned(each: list[torch.Tensor]) -> torch.Tensor:
    """Returns the result of an all-to-all with even splits."""
    return _joined([_part(tensor) for tensor in each])


_count = itertools.count()


def _parameters(tensor: torch.Tensor) -> torch.Tensor:
    hvd.broadcast_parameters({f"odd {next(_count)}": tensor}, 0)
    return tensor


def _gradient(tensor: torch.Tensor) -> torch.Tensor:
    """The average of gradients, times the number of ranks; as they are if torch takes no such gradient."""
    if not isinstance(tensor, torch.Tensor):
        return hvd.allreduce(tensor)
    hvd.allreduce(tensor, op=hvd.Sum)  # raises what is wrong with it
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return hvd.allreduce(tensor, op=hvd.Sum)
    parameter = torch.nn.Parameter(torch.zeros(tensor.shape, dtype=tensor.dtype), requires_grad=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), op=hvd.Sum)
    parameter.grad = tensor.detach()
    optimizer.synchronize()
    assert parameter.grad is not None
    return parameter.grad


FORMS: dict[str, Form] = {
    "allreduce": Form(lambda t: hvd.allreduce(t, op=hvd.Sum), _sum, adds=True),
    "allreduce_async": Form(lambda t: _finish(hvd.allreduce_async(t, op=hvd.Sum)), _sum, adds=True),
    "allreduce_": Form(lambda t: hvd.allreduce_(t, op=hvd.Sum), _sum, is_in_place=True, adds=True),
    "allreduce_async_": Form(lambda t: _finish(hvd.allreduce_async_(t, op=hvd.Sum)), _sum, is_in_place=True, adds=True),
    "grouped_allreduce": Form(lambda t: hvd.grouped_allreduce([torch.ones(3), t], op=hvd.Sum)[1], _sum, adds=True),
    "grouped_allreduce_async": Form(
        lambda t: _finish(hvd.grouped_allreduce_async([t, torch.ones(3)], op=hvd.Sum))[0], _sum, adds=True
    ),
    "grouped_allreduce_": Form(
        lambda t: hvd.grouped_allreduce_([torch.ones(3), t], op=hvd.Sum)[1], _sum, is_in_place=True, adds=True
    ),
    "grouped_allreduce_async_": Form(
        lambda t: _finish(hvd.grouped_allreduce_async_([t], op=hvd.Sum))[0], _sum, is_in_place=True, adds=True
    ),
    "reducescatter": Form(
        lambda t: hvd.reducescatter(t, op=hvd.Sum), lambda each: _part(_sum(each)), has_rows=True, adds=True
    ),
    "reducescatter_async": Form(
        lambda t: _finish(hvd.reducescatter_async(t, op=hvd.Sum)),
        lambda each: _part(_sum(each)),
        has_rows=True,
        adds=True,
    ),
    "grouped_reducescatter": Form(
        lambda t: hvd.grouped_reducescatter([t, torch.ones(3)], op=hvd.Sum)[0],
        lambda each: _part(_sum(each)),
        has_rows=True,
        adds=True,
    ),
    "grouped_reducescatter_async": Form(
        lambda t: _finish(hvd.grouped_reducescatter_async([t], op=hvd.Sum))[0],
        lambda each: _part(_sum(each)),
        has_rows=True,
        adds=True,
    ),
    "reduce": Form(lambda t: hvd.reduce(t, 0, op=hvd.Sum), lambda each: _at_root(_sum(each)), adds=True),
    "reduce_async": Form(
        lambda t: _finish(hvd.reduce_async(t, 0, op=hvd.Sum)), lambda each: _at_root(_sum(each)), adds=True
    ),
    "allgather": Form(lambda t: hvd.allgather(t), _joined, has_rows=True),
    "allgather_async": Form(lambda t: _finish(hvd.allgather_async(t)), _joined, has_rows=True),
    "grouped_allgather": Form(lambda t: hvd.grouped_allgather([torch.ones(3), t])[1], _joined, has_rows=True),
    "grouped_allgather_async": Form(lambda t: _finish(hvd.grouped_allgather_async([t]))[0], _joined, has_rows=True),
    "broadcast": Form(lambda t: hvd.broadcast(t, 0), lambda each: each[0]),
    "broadcast_async": Form(lambda t: _finish(hvd.broadcast_async(t, 0)), lambda each: each[0]),
    "broadcast_": Form(lambda t: hvd.broadcast_(t, 0), lambda each: each[0], is_in_place=True),
    "broadcast_async_": Form(lambda t: _finish(hvd.broadcast_async_(t, 0)), lambda each: each[0], is_in_place=True),
    "alltoall": Form(lambda t: hvd.alltoall(t), _turned, has_rows=True, is_even=True),
    "alltoall_async": Form(lambda t: _finish(hvd.alltoall_async(t))[0], _turned, has_rows=True, is_even=True),
    "gather": Form(lambda t: hvd.gather(t, 0), lambda each: _at_root(_joined(each)), has_rows=True),
    "gather_async": Form(
        lambda t: _finish(hvd.gather_async(t, 0)), lambda each: _at_root(_joined(each)), has_rows=True
    ),
    "scatter": Form(lambda t: hvd.scatter(t, 0), lambda each: _part(each[0]), has_rows=True),
    "scatter_async": Form(lambda t: _finish(hvd.scatter_async(t, 0)), lambda each: _part(each[0]), has_rows=True),
    "recv": Form(lambda t: _exchange(t, hvd.recv), _others),
    "recv_async": Form(lambda t: _exchange(t, hvd.recv_async), _others),
    "recv_": Form(lambda t: _exchange(t, hvd.recv_), _others, is_in_place=True),
    "recv_async_": Form(lambda t: _exchange(t, hvd.recv_async_), _others, is_in_place=True),
    "broadcast_parameters": Form(_parameters, lambda each: each[0]),
    "DistributedOptimizer": Form(_gradient, _sum, adds=True),
}


def _cell(kind: Odd, form: Form) -> str:
    """Describes the fault of one cell of the table; empty if there is none."""
    tensor = kind.make(hvd.rank())
    expected = _refused(kind, form, tensor)
    try:
        result = form.run(tensor)
    except ValueError as error:
        text = str(error)
        if not expected:
            return f"raised {text}"
        is_told = expected in text or (expected.startswith("(?i)") and re.search(expected, text))
        return "" if is_told else f"said {text!r} instead of {expected!r}"
    if expected:
        return f"did not say {expected!r}"
    wanted = form.expected([values_of(kind.make(rank)) for rank in range(hvd.size())])
    is_right = bytes_of(result) == bytes_of(wanted) or torch.equal(values_of(result), wanted)
    return "" if is_right else f"is {result}, and not {wanted}"


@scenario
def every_cell_is_right_or_an_error() -> None:
    open_cells = []
    for kind, odd in ODD.items():
        for name, form in FORMS.items():
            try:
                complaint = _cell(odd, form)
            except Exception as error:
                complaint = f"{type(error).__name__}: {error}"
            if complaint:
                open_cells.append(f"{kind} × {name}: {complaint}")
    assert len(ODD) >= 100
    assert not open_cells, "\n".join(open_cells)


def _refused(odd: Odd, form: Form, tensor: torch.Tensor) -> str:
    """The error that is expected of ``form``; empty if its result is to be right."""
    if odd.refusal:
        return odd.refusal
    if form.is_in_place and odd.in_place:
        return odd.in_place
    if form.has_rows and not tensor.shape:
        return "at least one dimension"
    if form.is_even and tensor.shape[0] % hvd.size():
        return "not a multiple of"
    return "is not supported by" if form.adds and not has_sums(tensor.dtype) else ""


def test_torch_odd_tensors(report: Report, name: str) -> None:
    assert report[name] == ""
