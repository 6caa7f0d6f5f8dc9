"""``horovod.torch.mpi_ops``: all of `hvdlite.torch`, and the object from which test suites get the process sets."""

from hvdlite.horovod.basics import HorovodBasics as _HorovodBasics
from hvdlite.public.names import __version__ as __version__
from hvdlite.public.publish import publish as _publish
from hvdlite.torch import *  # noqa: F403 - whatever is public there

_basics = _HorovodBasics()
_publish(__name__)
