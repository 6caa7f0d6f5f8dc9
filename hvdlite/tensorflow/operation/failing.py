"""An operation of TensorFlow that fails with any class of `tf.errors`, made through the C API, without a compiler.

TensorFlow turns what `tf.numpy_function` raises into InvalidArgument or Unknown with a traceback, and none of its own
operations fails with a class and a text from tensors. Its C API is in a library that it has loaded itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_bool, c_char_p, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.framework import op_def_library

from hvdlite.tensorflow.operation.errors import code_of
from hvdlite.tensorflow.operation.pending import settle

_LIBRARY: Final = "libtensorflow_framework.so.2"
_NAME: Final = b"HvdliteSettle"
_Compute: Final = ctypes.CFUNCTYPE(None, c_void_p, c_void_p)
_SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "TF_NewOpDefinitionBuilder": (c_void_p, (c_char_p,)),
    "TF_OpDefinitionBuilderAddAttr": (None, (c_void_p, c_char_p)),
    "TF_OpDefinitionBuilderAddInput": (None, (c_void_p, c_char_p)),
    "TF_OpDefinitionBuilderSetIsStateful": (None, (c_void_p, c_bool)),
    "TF_OpDefinitionBuilderSetShapeInferenceFunction": (None, (c_void_p, c_void_p)),
    "TF_ShapeInferenceContextSetUnknownShape": (None, (c_void_p, c_void_p)),
    "TF_RegisterOpDefinition": (None, (c_void_p, c_void_p)),
    "TF_NewKernelBuilder": (c_void_p, (c_char_p, c_char_p, c_void_p, _Compute, c_void_p)),
    "TF_RegisterKernelBuilder": (None, (c_char_p, c_void_p, c_void_p)),
    "TF_GetInput": (None, (c_void_p, c_int, POINTER(c_void_p), c_void_p)),
    "TF_TensorData": (c_void_p, (c_void_p,)),
    "TF_DeleteTensor": (None, (c_void_p,)),
    "TF_OpKernelContext_Failure": (None, (c_void_p, c_void_p)),
    "TF_NewStatus": (c_void_p, ()),
    "TF_DeleteStatus": (None, (c_void_p,)),
    "TF_SetStatus": (None, (c_void_p, c_int, c_char_p)),
    "TF_GetCode": (c_int, (c_void_p,)),
}


@cache
def failing() -> Failing | None:
    """Returns the operation; None where TensorFlow's libraries do not export their C API."""
    try:
        return Failing(Path(tf.sysconfig.get_lib(), _LIBRARY))
    except (OSError, AttributeError):
        return None


class Failing:
    """The operation. Make it once in a process."""

    def __init__(self, library: Path) -> None:
        """Raises OSError or AttributeError if ``library`` does not exist or lacks the functions."""
        self._c: Any = ctypes.CDLL(str(library))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._c, name)
            function.restype, function.argtypes = result, arguments
        self._compute = _Compute(self._settle)  # must outlive every kernel
        self._register()

    def node(self, ticket: Any, news: Any, queues: Sequence[Any]) -> Any:
        """Adds the node that settles the ticket after ``news``, and fails with the class of its error."""
        return op_def_library.apply_op(_NAME.decode(), ticket=ticket, news=news, queues=list(queues))

    def _register(self) -> None:
        c, status = self._c, self._c.TF_NewStatus()
        try:
            operation = c.TF_NewOpDefinitionBuilder(_NAME)
            c.TF_OpDefinitionBuilderAddAttr(operation, b"N: int >= 0")
            for argument in (b"ticket: int64", b"news: bool", b"queues: N * resource"):
                c.TF_OpDefinitionBuilderAddInput(operation, argument)
            c.TF_OpDefinitionBuilderSetIsStateful(operation, True)
            c.TF_OpDefinitionBuilderSetShapeInferenceFunction(operation, c.TF_ShapeInferenceContextSetUnknownShape)
            c.TF_RegisterOpDefinition(operation, status)
            if not c.TF_GetCode(status):
                kernel = c.TF_NewKernelBuilder(_NAME, b"CPU", None, self._compute, None)
                c.TF_RegisterKernelBuilder(_NAME, kernel, status)
            if code := c.TF_GetCode(status):
                raise OSError(f"TensorFlow does not register an operation: code {code}")
        finally:
            c.TF_DeleteStatus(status)

    def _settle(self, _: int, context: int) -> None:
        c, status, ticket = self._c, self._c.TF_NewStatus(), c_void_p()
        try:
            c.TF_GetInput(context, 0, ticket, status)
            if not c.TF_GetCode(status):
                settle(c_int64.from_address(c.TF_TensorData(ticket)).value)
        except BaseException as error:
            c.TF_SetStatus(status, code_of(error), str(error).encode(errors="replace"))
        finally:
            if ticket:
                c.TF_DeleteTensor(ticket)
            if c.TF_GetCode(status):
                c.TF_OpKernelContext_Failure(context, status)
            c.TF_DeleteStatus(status)
