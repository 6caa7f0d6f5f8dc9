"""Operations on the handles of asynchronous collectives: poll, synchronize, abandon."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any, Generic, overload

from hvdlite.errors import HvdError
from hvdlite.negotiation.entry import NOBODY, Entry
from hvdlite.negotiation.handle import Handle, R
from hvdlite.tensors.streams import Synced


class GroupHandle(Generic[R]):
    """The handle of several tensors that are submitted together. Its result is the list of their results.

    ``handles`` has one handle for each tensor. An empty group (``is_empty``) still has one handle, of a placeholder, so
    that ranks can check that they agree.
    """

    __slots__ = ("handles", "is_empty")

    def __init__(self, handles: Sequence[Entry[R]], is_empty: bool = False) -> None:
        self.handles = tuple(handles)
        self.is_empty = is_empty

    @property
    def group(self) -> Any:
        """The group in which the tensors are, or will be, in flight."""
        return self.handles[0].group

    @property
    def is_done(self) -> bool:
        return all(handle.is_done for handle in self.handles)

    @property
    def has_result(self) -> bool:
        return all(handle.has_result for handle in self.handles)

    @property
    def is_taken(self) -> bool:
        return self.handles[0].is_taken

    def __repr__(self) -> str:
        count = 0 if self.is_empty else len(self.handles)
        return f"<GroupHandle of {count} tensors, {'done' if self.is_done else 'in flight'}>"


def poll(handle: Handle[Any] | GroupHandle[Any]) -> bool:
    """True if `synchronize` would not wait. Raises ValueError for a handle that was synchronized already."""
    if not isinstance(handle, (Handle, GroupHandle)) or handle.is_taken:
        raise ValueError(f"{handle!r} is not a handle in flight; each handle is synchronized once")
    return handle.has_result


@overload
def synchronize(handle: Handle[R]) -> R: ...


@overload
def synchronize(handle: GroupHandle[R]) -> list[R]: ...


def synchronize(handle: Handle[Any] | GroupHandle[Any]) -> Any:
    """Waits for ``handle`` and returns its result, or raises its error. Returns None if it was synchronized already.

    For a tensor on a GPU, waits only until the collective is issued to the GPU, and makes the current stream wait for
    its end.

    If a signal handler raises meanwhile, the handle does not change and can be synchronized again.
    """
    if type(handle) is not Entry and not isinstance(handle, Handle):  # the first test is cheap, and usually enough
        if not isinstance(handle, GroupHandle):
            raise ValueError(f"{handle!r} is not a handle; pass what an asynchronous collective returned")
        return None if handle.is_taken else _synchronize_group(handle.handles, handle.is_empty)
    if handle.is_taken:
        return None
    if not handle.is_done:
        assert handle.group is not None  # only entries that no user has seen have no group
        handle.group.wait(handle)
    result = handle.output
    try:
        handle.is_taken = True
        handle.output = None
        if handle.error is not None:
            # A copy, because handles may share an error, and raising adds a traceback to it.
            raise copy.copy(handle.error) from handle.error.__cause__
        return result
    except HvdError:
        raise
    except BaseException:
        handle.output = result
        handle.is_taken = False
        raise


@overload
def run(handle: Handle[R]) -> R: ...


@overload
def run(handle: GroupHandle[R]) -> list[R]: ...


def run(handle: Handle[Any] | GroupHandle[Any]) -> Any:
    """Submits ``handle``, which is not in flight yet, waits for it, and returns its result or raises its error."""
    if isinstance(handle, GroupHandle):
        handle.group.run_all(handle.handles)
    else:
        assert handle.group is not None
        handle.group.run(handle)
    return synchronize(handle)


def abandon(handle: Handle[Any] | GroupHandle[Any]) -> None:
    """Releases a handle that nobody will synchronize.

    The collective stays in flight, because the other ranks make the same call. The next call with its name, in any
    thread, does not fail with DuplicateName: it is submitted when this collective is done.
    """
    for each in handle.handles if isinstance(handle, GroupHandle) else (handle,):
        assert isinstance(each, Entry)
        each.caller = NOBODY


def _synchronize_group(handles: Sequence[Handle[Any]], is_empty: bool) -> list[Any]:
    for each in handles:  # before any result is taken, so that an interrupted call can be repeated
        if not each.is_done:
            assert each.group is not None
            each.group.wait(each)
    synced: Synced = set()
    outputs = [each.output if type(each) is Entry else each.result(synced) for each in handles]  # usually no call
    results = [] if is_empty else outputs
    error = None
    try:
        for each in handles:
            each.is_taken = True
            each.output = None
            if each.error is not None and error is None:
                error = each.error
        if error is not None:
            raise copy.copy(error) from error.__cause__
        return results
    except HvdError:
        raise
    except BaseException:
        for each, output in zip(handles, outputs, strict=True):
            each.output, each.is_taken = output, False
        raise


def synchronize_all(handles: Iterable[Handle[R]]) -> list[R]:
    """Returns the results of all handles, in order. If some fail, waits for all and then raises the first error."""
    results: list[R] = []
    errors: list[HvdError] = []
    for handle in handles:
        try:
            results.append(synchronize(handle))
        except HvdError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return results
