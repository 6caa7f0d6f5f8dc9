"""The package that ``import horovod`` finds in a job of hvdrun that does not ask for it; see `hvdlite.compat`.

It is loaded by whatever Python a rank runs, so it keeps to a syntax that all of them take. It hides its folder, imports
``horovod`` once more, and takes that if there is one. If not, it is hvdlite, or where that is missing too, leaves it to
Python to say so.
"""

import contextlib
import importlib
import sys

_folder = __path__[0].rpartition("/")[0]
_index = sys.path.index(_folder) if _folder in sys.path else 0
sys.path[:] = [_entry for _entry in sys.path if _entry != _folder]
_this = sys.modules.pop(__name__)
try:
    importlib.import_module(__name__)
except ImportError as _error:
    if getattr(_error, "name", __name__) != __name__:
        raise  # a broken Horovod
_other = sys.modules.get(__name__)

if getattr(_other, "__file__", None) is None:  # there is none, or nothing but a folder of that name
    if sys.version_info >= (3, 11):  # noqa: UP036 - an older one may come here, and cannot read hvdlite
        with contextlib.suppress(ImportError):
            importlib.import_module("hvdlite.compat")
    _stands_in = getattr(sys.modules.get("hvdlite.compat"), "stand_in", None)
    if _stands_in is not None:
        sys.path.insert(_index, _folder)
        if not _stands_in():
            raise ModuleNotFoundError("No module named 'horovod'", name=__name__)
        sys.modules[__name__] = _this
        __path__.extend(getattr(_other, "__path__", ()))

        from hvdlite.compat.names import VERSION as __version__
        from hvdlite.horovod.runner import run
    elif _other is None:
        importlib.import_module(__name__)

__all__ = ["__version__", "run"]
