"""Functions, arguments and results as bytes that a process of the same program can read.

`pickle` sends a function by its name, so the worker must find its module. The worker gets the caller's ``sys.path``. If
the call uses something of the caller's ``__main__``, the worker runs that script once more as ``__mp_main__``, like
`multiprocessing`: code under ``if __name__ == "__main__"`` does not run again.

Lambdas, nested functions, and functions of a notebook or of ``python -c`` have no name that a worker could import. They
are sent by value, which needs the package ``cloudpickle``.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.spawn
import os
import pickle
import sys
from typing import Any, Final

from hvdlite.ops.by_value import UNPICKLABLE, dump_by_value, loads

MAX_BYTES: Final = 8 << 30  # of one function with its arguments, and of one result; more belongs in files


def dump(value: Any) -> bytes:
    """Pickles ``value``. Raises ValueError that names what cannot be sent and says what to do."""
    try:
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        reason = "it is defined in no file that a worker could import"
    except UNPICKLABLE as error:
        data, reason = None, str(error)
    if data is None or (_mentions_main(data) and not _main_module()):
        data = dump_by_value(value, reason)
    if len(data) > MAX_BYTES:
        raise ValueError(f"{len(data)} bytes are more than the limit of {MAX_BYTES}; pass large data in files")
    return data


def load(data: bytes | memoryview) -> Any:
    """Returns the value given to `dump`, after `prepare`. Only for data of the job itself: unpickling runs code."""
    return loads(data)


def preparation(call: bytes) -> dict[str, Any]:
    """Everything that a worker needs before it can load ``call``, for JSON."""
    here = os.getcwd()
    main = _main_module() if _mentions_main(call) else {}
    return {"sys_path": [entry or here for entry in sys.path], "sys_argv": list(sys.argv), **main}


def prepare(prepared: dict[str, Any]) -> None:
    """Prepares this process to load a call; ``prepared`` is the result of `preparation`."""
    process = multiprocessing.current_process()
    process._inheriting = True  # type: ignore[attr-defined]  # as `multiprocessing` marks the time in which main is run
    try:
        multiprocessing.spawn.prepare(prepared)
    finally:
        del process._inheriting  # type: ignore[attr-defined]


def refuse_while_preparing() -> None:
    """Raises RuntimeError while this process runs the caller's script only to define its functions."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(
            "hvdlite.run() was called by a worker that only imports the script to find its function; put the call "
            'under if __name__ == "__main__":'
        )


def _mentions_main(data: bytes) -> bool:
    return b"__main__" in data or b"__mp_main__" in data


def _main_module() -> dict[str, str]:
    """Directions to import the caller's ``__main__``, for `multiprocessing.spawn`; empty if that is impossible."""
    main = sys.modules["__main__"]
    if (spec := getattr(main, "__spec__", None)) is not None:
        return {"init_main_from_name": spec.name}
    file = getattr(main, "__file__", None)
    if file and os.path.exists(file):  # a script on stdin is <stdin>
        return {"init_main_from_path": os.path.abspath(file)}
    return {}
