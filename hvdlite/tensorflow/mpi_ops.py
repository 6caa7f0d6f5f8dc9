"""``horovod.tensorflow.mpi_ops``: all of `hvdlite.tensorflow`, and what Horovod's test suite takes from it."""

from hvdlite.horovod.basics import HorovodBasics as _HorovodBasics
from hvdlite.public_names import __version__ as __version__
from hvdlite.publish import publish as _publish
from hvdlite.tensorflow import *  # noqa: F403 - whatever is public there
from hvdlite.tensorflow.collectives.reductions import allreduce as _allreduce  # noqa: F401
from hvdlite.tensorflow.collectives.reductions import grouped_allreduce as _grouped_allreduce  # noqa: F401

_basics = _HorovodBasics()
_publish(__name__)
