"""The package that ``import horovod`` finds when hvdlite stands in for it; see `hvdlite.compat`."""

from hvdlite.compat import install_as_horovod
from hvdlite.compat.names import VERSION as __version__

install_as_horovod()  # found on PYTHONPATH, it has yet to be done

from hvdlite.horovod.runner import run  # noqa: E402 - nothing but the name of this package may be needed before

__all__ = ["__version__", "run"]
