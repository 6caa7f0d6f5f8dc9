"""``import hvdlite.keras as hvd``: `fit` and custom loops of Keras 3 on its TensorFlow, JAX and PyTorch back ends."""

try:
    import keras as _keras  # noqa: F401 - fails here with a reason, before the first module that uses it
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("hvdlite.keras needs Keras 3; pip install 'hvdlite[keras]'", name=error.name) from error

# ruff: noqa: F403, I001 - one statement for each module

from hvdlite.public.names import *
from hvdlite.public.names import __version__ as __version__
from hvdlite.keras import callbacks as callbacks
from hvdlite.keras.backend import Compression as Compression, Compressor as Compressor, last_error as last_error
from hvdlite.keras.optimizer import (
    DistributedOptimizer as DistributedOptimizer,
    PartialDistributedOptimizer as PartialDistributedOptimizer,
)
from hvdlite.keras.saving import load_model as load_model
from hvdlite.keras.values import (
    allgather as allgather,
    allreduce as allreduce,
    broadcast as broadcast,
    broadcast_global_variables as broadcast_global_variables,
    broadcast_variables as broadcast_variables,
    reducescatter as reducescatter,
)
from hvdlite.public.publish import publish as _publish
from hvdlite.dynamo import leave_out_all as _leave_out_all

_leave_out_all()  # torch is loaded on its back end, and init() may have been before

_publish(__name__)
