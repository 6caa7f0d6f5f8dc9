"""The compiled kernels: their library through ctypes, and TensorFlow's tensors in them."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf

from hvdlite.log import logger
from hvdlite.ops import CPU, Buffer, Collectives, ElementType, element_type
from hvdlite.tensorflow.operation.calls import Tensors
from hvdlite.tensorflow.operation.errors import code_of
from hvdlite.tensorflow.operation.pending import finish, start, whose_runs_are_over

_MAX_DIMENSIONS: Final = 16
_AT_ONCE: Final = 16


class _View(ctypes.Structure):
    _fields_ = (
        ("tensor", c_void_p),
        ("data", c_void_p),
        ("nbytes", c_int64),
        ("dtype", c_int32),
        ("dimensions", c_int32),
        ("extents", c_int64 * _MAX_DIMENSIONS),
    )


_Start: Final = ctypes.CFUNCTYPE(
    c_int64, c_void_p, c_int64, c_int32, POINTER(_View), POINTER(c_char_p), POINTER(c_int64)
)
_Finish: Final = ctypes.CFUNCTYPE(None, c_int64, c_void_p)
_SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "hvdlite_tensorflow_connect": (c_int32, (_Start, _Finish)),
    "hvdlite_tensorflow_allocate": (c_void_p, (c_int32, c_int32, c_void_p, c_int64, POINTER(c_void_p))),
    "hvdlite_tensorflow_release": (None, (c_void_p,)),
    "hvdlite_tensorflow_output": (c_int32, (c_void_p, c_int32, c_void_p)),
    "hvdlite_tensorflow_ended": (c_int32, (POINTER(c_int64), c_int32)),
    "hvdlite_tensorflow_fail": (None, (c_void_p, c_int32, c_char_p)),
}


@dataclass(slots=True, eq=False)
class Memory:
    """A tensor of TensorFlow: a reference that keeps its memory as long as this object lives.

    Takes over the reference ``tensor``. ``number`` is TensorFlow's number of ``dtype``.
    """

    release: Callable[[int], None]
    tensor: int
    address: int
    nbytes: int
    number: int
    dtype: ElementType
    shape: tuple[int, ...]

    def data_ptr(self) -> int:
        return self.address

    def __len__(self) -> int:
        return self.nbytes

    def __del__(self) -> None:
        self.release(self.tensor)


class CompiledKernels:
    """The kernels of the library at ``path``. Make it once in a process.

    Raises OSError or an error of TensorFlow if it cannot be loaded.
    """

    def __init__(self, path: Path) -> None:
        self._operations = tf.load_op_library(str(path))
        library: Any = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self._release = library.hvdlite_tensorflow_release
        self._allocate = library.hvdlite_tensorflow_allocate
        self._output = library.hvdlite_tensorflow_output
        self._ended = library.hvdlite_tensorflow_ended
        self._fail = library.hvdlite_tensorflow_fail
        adapter = _MemoryAdapter(self._empty)
        self._kind = Tensors(Collectives[Memory](adapter), adapter.counts, _numbers)
        self._kept_alive = _Start(self._start), _Finish(self._finish)
        code = library.hvdlite_tensorflow_connect(*self._kept_alive)
        if code:
            raise OSError(f"TensorFlow does not register the operations of {path}: code {code}")
        whose_runs_are_over.append(self._over)

    # ---- nodes

    def start(self, text: str, tensors: Sequence[Any]) -> tuple[Any, Any]:
        ticket, queue = self._operations.hvdlite_start(inputs=tensors, call=text)
        return ticket, queue

    def finish(self, ticket: Any, news: Any, queues: Sequence[Any], dtypes: Sequence[Any]) -> Any:
        return self._operations.hvdlite_finish(ticket=ticket, news=news, queues=queues, Tout=dtypes)

    # ---- called by kernels, in threads of TensorFlow

    def _start(self, text: int, length: int, count: int, views: Any, queue: Any, queue_nbytes: Any) -> int:
        try:
            tensors = []
            for view in itertools.islice(views, count):
                dtype, shape = DTYPES[view.dtype], tuple(view.extents[: view.dimensions])
                release, address = self._release, view.data or 0
                tensors.append(Memory(release, view.tensor, address, view.nbytes, view.dtype, dtype, shape))
            ticket = start(ctypes.string_at(text, length), self._kind, tensors)
            queue[0], queue_nbytes[0] = ticket.queue.serialized, len(ticket.queue.serialized)
            return ticket.number
        except BaseException:  # from a signal handler, if TensorFlow runs this in the main thread
            logger.exception("a collective was interrupted while it started")
            return 0  # or ctypes would return anything

    def _over(self) -> Iterator[int]:
        """Yields the tickets whose tensors TensorFlow has dropped."""
        numbers = (c_int64 * _AT_ONCE)()
        while count := self._ended(numbers, _AT_ONCE):
            yield from numbers[:count]

    def _finish(self, ticket: int, context: int) -> None:
        try:
            for index, memory in enumerate(finish(ticket)):
                if self._output(context, index, memory.tensor):
                    raise RuntimeError(f"result {index} is not of the type that the graph expects")
        except BaseException as error:
            self._fail(context, code_of(error), str(error).encode(errors="replace"))

    def _empty(self, shape: Sequence[int], number: int, dtype: ElementType) -> Memory:
        nbytes, data = math.prod(shape) * dtype.itemsize, c_void_p()
        tensor = self._allocate(number, len(shape), (c_int64 * len(shape))(*shape), nbytes, data)
        if not tensor:
            raise MemoryError(f"TensorFlow has no memory for a result of {nbytes} bytes")
        return Memory(self._release, tensor, data.value or 0, nbytes, number, dtype, tuple(shape))


class _MemoryAdapter:
    finish = None

    def __init__(self, empty: Callable[[Sequence[int], int, ElementType], Memory]) -> None:
        self._empty = empty

    def buffer(self, tensor: Memory, is_written: bool = False) -> Buffer:
        return tensor.address, tensor.dtype, tensor.shape, tensor, CPU

    def of_number(self, value: Any) -> None:
        return None

    def empty(self, shape: Sequence[int], like: Memory) -> tuple[Memory, int]:
        memory = self._empty(shape, like.number, like.dtype)
        return memory, memory.address

    def counts(self, values: Sequence[int]) -> Memory:
        array = np.array(values, np.int32)
        memory = self._empty(array.shape, tf.int32.as_datatype_enum, element_type(array.dtype))
        ctypes.memmove(memory.address, array.ctypes.data, array.nbytes)
        return memory


def _numbers(memory: Memory) -> list[int]:
    kind = c_int32 if memory.dtype.itemsize == 4 else c_int64
    return list((kind * math.prod(memory.shape)).from_address(memory.address)) if memory.nbytes else []


def _of_fixed_size() -> dict[int, ElementType]:
    names = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 bfloat16 float16 float32 float64".split()
    names += "complex64 complex128 int2 int4 uint2 uint4 float4_e2m1fn float8_e4m3fn float8_e5m2".split()
    names += "float8_e4m3fnuz float8_e5m2fnuz float8_e4m3b11fnuz".split()
    found = {}
    for name in names:
        with suppress(TypeError):  # not every version of TensorFlow has the small types
            dtype = tf.as_dtype(name)
            found[dtype.as_datatype_enum] = element_type(np.dtype(dtype.as_numpy_dtype))
    return found


DTYPES: Final = _of_fixed_size()
"""The element types that collectives take, by TensorFlow's numbers."""
