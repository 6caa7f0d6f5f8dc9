"""Makes parameters and state equal on all ranks.

State travels as a pickle without the contents of its tensors, followed by the tensors, each by itself.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from hvdlite.ops import Collectives, Group
from hvdlite.ops.objects import broadcast_bytes

V = TypeVar("V")
"""What holds a value in a front end: a variable, or a tensor itself."""

W = TypeVar("W", contravariant=True)
"""The same, where it is only an argument."""

T = TypeVar("T")


class Store(Protocol[W, T]):
    """Reads and writes a front end's values."""

    def read(self, variable: W) -> T:
        """Returns the value as a tensor that can be written in place: ``variable`` itself or a copy."""

    def write(self, variable: W, received: T) -> None:
        """Assigns the received value to ``variable``, for which `read` returned a copy."""


class StateStore(Store[V, T], Protocol):
    """Also finds values of ``kind`` inside other objects, and makes new ones."""

    kind: type[V]

    def description(self, variable: V) -> Any:
        """Returns the argument of `make` for a variable like this one. It can be pickled."""

    def make(self, description: Any) -> V:
        """Makes a variable with any value."""

    def here(self) -> AbstractContextManager[Any]:
        """Returns a context in which another thread makes and moves values as the caller's thread would."""


def named(params: Any, kind: type[V]) -> list[tuple[str, V]]:
    """Returns the names and variables of a mapping, of pairs, or of variables alone, without those that are None.

    Raises ValueError for a variable that is not of ``kind``.
    """
    if isinstance(params, Mapping):
        pairs = [(key, params[key]) for key in sorted(params)]
    else:
        pairs = [
            entry if isinstance(entry, tuple) and len(entry) == 2 else (f"noname.{index}", entry)
            for index, entry in enumerate(params)
        ]
    for key, value in pairs:
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"broadcast_parameters takes tensors, but {key!r} is a {type(value).__name__}")
    return [(f"parameter.{key}", value) for key, value in pairs if value is not None]


def broadcast_all(
    variables: Sequence[tuple[str, V]],
    root_rank: int,
    group: Group,
    collectives: Collectives[T],
    store: Store[V, T],
) -> None:
    """Overwrites ``variables`` with those of ``root_rank``, each under its name."""
    read = [(name, store.read(variable)) for name, variable in variables]
    received_all = collectives.broadcast_all_(group, read, root_rank)
    for (_, variable), received in zip(variables, received_all, strict=True):
        if received is not variable:
            store.write(variable, received)


def broadcast_state(
    state: Any,
    name: str,
    root_rank: int,
    group: Group,
    collectives: Collectives[T],
    store: StateStore[V, T],
) -> Any:
    """Returns the ``state`` of ``root_rank``, and ignores it on other ranks. All but its variables must pickle."""
    is_root = group.ranks[group.rank] == root_rank
    variables: list[V] = []

    def broadcast_variables(data: memoryview) -> None:
        nonlocal state
        with store.here():
            if not is_root:
                state = _load(data, variables, store)
            pairs = [(f"{name}.{index}", variable) for index, variable in enumerate(variables)]
            broadcast_all(pairs, root_rank, group, collectives, store)

    broadcast_bytes(group, lambda: _dump(state, variables, store), root_rank, name, broadcast_variables)
    return state


def _dump(state: Any, variables: list[V], store: StateStore[V, Any]) -> bytes:
    """Pickles ``state`` without the contents of its variables, which are appended to ``variables``."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            if not isinstance(obj, store.kind):
                return None
            variables.append(obj)
            return store.description(obj)

    stream = io.BytesIO()
    Pickler(stream).dump(state)
    return stream.getvalue()


def _load(data: memoryview, variables: list[V], store: StateStore[V, Any]) -> Any:
    """Restores a dumped state with new variables, which are appended to ``variables`` in the same order."""

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> V:
            variables.append(store.make(pid))
            return variables[-1]

    return Unpickler(io.BytesIO(data)).load()
