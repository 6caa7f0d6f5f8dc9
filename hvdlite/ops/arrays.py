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


collectives = Collectives[Array](_NumpyAdapter())

allreduce = collectives.allreduce
allreduce_async = collectives.allreduce_async
allreduce_ = collectives.allreduce_
allreduce_async_ = collectives.allreduce_async_
grouped_allreduce = collectives.grouped_allreduce
grouped_allreduce_async = collectives.grouped_allreduce_async
grouped_allreduce_ = collectives.grouped_allreduce_
grouped_allreduce_async_ = collectives.grouped_allreduce_async_
allgather = collectives.allgather
allgather_async = collectives.allgather_async
grouped_allgather = collectives.grouped_allgather
grouped_allgather_async = collectives.grouped_allgather_async
broadcast = collectives.broadcast
broadcast_async = collectives.broadcast_async
broadcast_ = collectives.broadcast_
broadcast_async_ = collectives.broadcast_async_
alltoall = collectives.alltoall
alltoall_async = collectives.alltoall_async
reducescatter = collectives.reducescatter
reducescatter_async = collectives.reducescatter_async
grouped_reducescatter = collectives.grouped_reducescatter
grouped_reducescatter_async = collectives.grouped_reducescatter_async
reduce = collectives.reduce
reduce_async = collectives.reduce_async
gather = collectives.gather
gather_async = collectives.gather_async
scatter = collectives.scatter
scatter_async = collectives.scatter_async
send = collectives.send
send_async = collectives.send_async
recv = collectives.recv
recv_async = collectives.recv_async
recv_ = collectives.recv_
recv_async_ = collectives.recv_async_
