"""The collectives for numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdlite.ops import Collectives
from hvdlite.ops.numbers import array_of, as_it_was
from hvdlite.tensors.buffer import address_of, of_array

Array = npt.NDArray[Any]


class _NumpyAdapter:
    """Numpy arrays."""

    buffer = staticmethod(of_array)
    finish = None

    def of_number(self, value: Any) -> tuple[Array, Callable[[Array], Any]] | None:
        array = array_of(value)
        return None if array is None else (array, as_it_was(value))

    def empty(self, shape: Sequence[int], like: Array) -> tuple[Array, int]:
        output = np.empty(shape, like.dtype)
        return output, address_of(output)

    def counts(self, values: Sequence[int]) -> Array:
        return np.array(values, np.int32)


_collectives = Collectives[Array](_NumpyAdapter())

allreduce = _collectives.allreduce
allreduce_async = _collectives.allreduce_async
allreduce_ = _collectives.allreduce_
allreduce_async_ = _collectives.allreduce_async_
grouped_allreduce = _collectives.grouped_allreduce
grouped_allreduce_async = _collectives.grouped_allreduce_async
grouped_allreduce_ = _collectives.grouped_allreduce_
grouped_allreduce_async_ = _collectives.grouped_allreduce_async_
allgather = _collectives.allgather
allgather_async = _collectives.allgather_async
allgather_part = _collectives.allgather_part
grouped_allgather = _collectives.grouped_allgather
grouped_allgather_async = _collectives.grouped_allgather_async
broadcast = _collectives.broadcast
broadcast_async = _collectives.broadcast_async
broadcast_ = _collectives.broadcast_
broadcast_async_ = _collectives.broadcast_async_
broadcast_part = _collectives.broadcast_part
alltoall = _collectives.alltoall
alltoall_async = _collectives.alltoall_async
reducescatter = _collectives.reducescatter
reducescatter_async = _collectives.reducescatter_async
grouped_reducescatter = _collectives.grouped_reducescatter
grouped_reducescatter_async = _collectives.grouped_reducescatter_async
reduce = _collectives.reduce
reduce_async = _collectives.reduce_async
gather = _collectives.gather
gather_async = _collectives.gather_async
scatter = _collectives.scatter
scatter_async = _collectives.scatter_async
send = _collectives.send
send_async = _collectives.send_async
recv = _collectives.recv
recv_async = _collectives.recv_async
recv_ = _collectives.recv_
recv_async_ = _collectives.recv_async_
