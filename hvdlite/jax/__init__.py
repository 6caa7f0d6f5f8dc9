"""``import hvdlite.jax as hvd``: collectives for JAX arrays and pytrees of them, also inside `jax.jit`."""

try:
    import jax as _jax  # noqa: F401 - fails here with a reason, before the first module that uses it
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("hvdlite.jax needs JAX; pip install 'hvdlite[jax]'", name=error.name) from error

# ruff: noqa: F403, I001 - one statement for each module

from contextlib import suppress as _suppress

from hvdlite.public.names import *
from hvdlite.public.names import __version__ as __version__
from hvdlite.jax.compression import Compression as Compression, Compressor as Compressor
from hvdlite.jax.primitive import last_error as last_error
from hvdlite.jax.forms import *
from hvdlite.jax.trees import (
    allgather as allgather,
    allreduce as allreduce,
    broadcast as broadcast,
    broadcast_parameters as broadcast_parameters,
)
from hvdlite.public.publish import publish as _publish

with _suppress(ImportError, AttributeError, ValueError):  # private in JAX; jax.distributed then needs more arguments
    import hvdlite.jax.cluster as _cluster  # noqa: F401

_publish(__name__)
