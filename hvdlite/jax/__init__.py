"""``import hvdlite.jax as hvd``: collectives for JAX arrays and pytrees of them, also inside `jax.jit`."""

try:
    import jax as _jax  # noqa: F401 - the reason is told here, before the first module that uses it
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("hvdlite.jax needs JAX; pip install 'hvdlite[jax]'", name=error.name) from error

# ruff: noqa: F403, I001 - one statement for each module

from contextlib import suppress as _suppress

from hvdlite.public_names import *
from hvdlite.public_names import __version__ as __version__
from hvdlite.jax.broadcasting import broadcast_parameters as broadcast_parameters
from hvdlite.jax.compression import Compression as Compression, Compressor as Compressor
from hvdlite.jax.crossing import last_error as last_error
from hvdlite.jax.eager import collectives as _collectives
from hvdlite.jax.trees import allgather as allgather, allreduce as allreduce, broadcast as broadcast
from hvdlite.publish import publish as _publish

with _suppress(ImportError, AttributeError, ValueError):  # private in JAX; jax.distributed then needs more arguments
    import hvdlite.jax.cluster as _cluster  # noqa: F401

alltoall = _collectives.alltoall
alltoall_async = _collectives.alltoall_async
allgather_async = _collectives.allgather_async
allreduce_async = _collectives.allreduce_async
broadcast_async = _collectives.broadcast_async
gather = _collectives.gather
gather_async = _collectives.gather_async
grouped_allgather = _collectives.grouped_allgather
grouped_allgather_async = _collectives.grouped_allgather_async
grouped_allreduce = _collectives.grouped_allreduce
grouped_allreduce_async = _collectives.grouped_allreduce_async
grouped_reducescatter = _collectives.grouped_reducescatter
grouped_reducescatter_async = _collectives.grouped_reducescatter_async
recv = _collectives.recv
recv_async = _collectives.recv_async
reduce = _collectives.reduce
reduce_async = _collectives.reduce_async
reducescatter = _collectives.reducescatter
reducescatter_async = _collectives.reducescatter_async
scatter = _collectives.scatter
scatter_async = _collectives.scatter_async
send = _collectives.send
send_async = _collectives.send_async

_publish(__name__)
