"""``import hvdlite.tensorflow as hvd``: collectives for tensors of TensorFlow 2, eager and inside `tf.function`."""

try:
    import tensorflow as _tensorflow  # noqa: F401 - the reason is told here, before the first module that uses it
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "hvdlite.tensorflow needs TensorFlow; pip install 'hvdlite[tensorflow]'", name=error.name
    ) from error

# ruff: noqa: F403, I001 - one statement for each module

from hvdlite.public_names import *
from hvdlite.public_names import __version__ as __version__
from hvdlite.publish import publish as _publish
from hvdlite.tensorflow.collectives.exchanges import (
    allgather as allgather,
    alltoall as alltoall,
    broadcast as broadcast,
    grouped_allgather as grouped_allgather,
)
from hvdlite.tensorflow.collectives.reductions import (
    allreduce as allreduce,
    grouped_allreduce as grouped_allreduce,
    grouped_reducescatter as grouped_reducescatter,
    reducescatter as reducescatter,
)
from hvdlite.tensorflow.compression import Compression as Compression, Compressor as Compressor
from hvdlite.tensorflow.errors import last_error as last_error

_publish(__name__)
