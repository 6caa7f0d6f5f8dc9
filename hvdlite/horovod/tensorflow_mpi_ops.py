"""``horovod.tensorflow.mpi_ops``: all of `hvdlite.tensorflow`, and what Horovod's test suite takes from it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hvdlite.horovod.basics import HorovodBasics as _HorovodBasics
from hvdlite.horovod.checks import get_average_backwards_compatibility_fun as _get_average_function
from hvdlite.horovod.checks import num_rank_is_power_2 as check_num_rank_power_of_2  # noqa: F401
from hvdlite.ops import ProcessSet, Sum, global_process_set
from hvdlite.public.names import __version__ as __version__
from hvdlite.public.publish import publish as _publish
from hvdlite.tensorflow import *  # noqa: F403 - whatever is public there
from hvdlite.tensorflow import allreduce, grouped_allreduce, grouped_reducescatter, reducescatter

_basics = _HorovodBasics()
handle_average_backwards_compatibility = _get_average_function(_basics)


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """`hvdlite.tensorflow.allreduce` of a tensor, by default to the sum."""
    factors: dict[str, Any] = dict(prescale_factor=prescale_factor, postscale_factor=postscale_factor)
    return allreduce(tensor, op=op, name=name, process_set=process_set, **factors)


def _grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """`_allreduce` of several tensors."""
    factors: dict[str, Any] = dict(prescale_factor=prescale_factor, postscale_factor=postscale_factor)
    return grouped_allreduce(tensors, op=op, name=name, process_set=process_set, **factors)


def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """`hvdlite.tensorflow.reducescatter` of a tensor, by default to the sum."""
    factors: dict[str, Any] = dict(prescale_factor=prescale_factor, postscale_factor=postscale_factor)
    return reducescatter(tensor, op=op, name=name, process_set=process_set, **factors)


def _grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """`_reducescatter` of several tensors."""
    factors: dict[str, Any] = dict(prescale_factor=prescale_factor, postscale_factor=postscale_factor)
    return grouped_reducescatter(tensors, op=op, name=name, process_set=process_set, **factors)


def _normalize_name(name: str) -> str:
    """Replaces what must not be in a name of TensorFlow."""
    return re.sub("[^a-zA-Z0-9_]", "_", name)


_publish(__name__)
