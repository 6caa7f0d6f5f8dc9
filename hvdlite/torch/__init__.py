"""``import hvdlite.torch as hvd``: collectives for torch tensors, and optimizers that train with them."""

try:
    import torch as _torch  # noqa: F401 - fails here with a reason, before the first module that uses it
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("hvdlite.torch needs PyTorch; pip install 'hvdlite[torch]'", name=error.name) from error

# ruff: noqa: F403, I001 - one statement for each module

from hvdlite.public.names import *
from hvdlite.public.names import __version__ as __version__
from hvdlite.public.publish import publish as _publish
from hvdlite.torch.broadcasting import (
    broadcast_optimizer_state as broadcast_optimizer_state,
    broadcast_parameters as broadcast_parameters,
)
from hvdlite.torch.collectives.compiled import barrier as barrier
from hvdlite.torch.collectives.forms import *
from hvdlite.torch.collectives.operators import HAS_OPERATORS as _HAS_OPERATORS, register as _register
from hvdlite.torch.collectives.sparse import sparse_allreduce_async as sparse_allreduce_async
from hvdlite.torch.collectives.tensors import collectives as _collectives, shared_empty as shared_empty
from hvdlite.torch.compression import Compression as Compression, Compressor as Compressor
from hvdlite.torch.loading import measure as _measure_loading
from hvdlite.torch.optimizer import DistributedOptimizer as DistributedOptimizer
from hvdlite.torch.sync_batch_norm import (
    SyncBatchNorm as SyncBatchNorm,
    convert_sync_batchnorm as convert_sync_batchnorm,
)
from hvdlite.dynamo import leave_out_all as _leave_out_all

if _HAS_OPERATORS:
    _register(_collectives)
_measure_loading()
_leave_out_all()
_publish(__name__)
