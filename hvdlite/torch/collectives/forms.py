"""The collectives over torch tensors by their public names. `make forms` writes this file."""

from hvdlite.torch.collectives.tensors import collectives as _collectives

allreduce = _collectives.allreduce
allreduce_async = _collectives.allreduce_async
allreduce_ = _collectives.allreduce_
allreduce_async_ = _collectives.allreduce_async_
grouped_allreduce = _collectives.grouped_allreduce
grouped_allreduce_async = _collectives.grouped_allreduce_async
grouped_allreduce_ = _collectives.grouped_allreduce_
grouped_allreduce_async_ = _collectives.grouped_allreduce_async_
reducescatter = _collectives.reducescatter
reducescatter_async = _collectives.reducescatter_async
grouped_reducescatter = _collectives.grouped_reducescatter
grouped_reducescatter_async = _collectives.grouped_reducescatter_async
reduce = _collectives.reduce
reduce_async = _collectives.reduce_async
allgather = _collectives.allgather
allgather_async = _collectives.allgather_async
grouped_allgather = _collectives.grouped_allgather
grouped_allgather_async = _collectives.grouped_allgather_async
broadcast = _collectives.broadcast
broadcast_async = _collectives.broadcast_async
broadcast_ = _collectives.broadcast_
broadcast_async_ = _collectives.broadcast_async_
alltoall = _collectives.alltoall
alltoall_async = _collectives.alltoall_async
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
