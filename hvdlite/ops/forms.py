"""The forms of a collective: blocking or asynchronous, and some of them in place.

All of them come from one method, their *draft*, which checks the arguments and makes the handle of what is not
submitted yet. A form is declared by its name and its docstring, and has the parameters and types of the draft:

    def _broadcast(self, is_in_place: bool, tensor: T, root_rank: int) -> Handle[T]: ...

    @asynchronous(_broadcast, is_in_place=True)
    def broadcast_async_(self) -> None:
        '''Starts `broadcast_` and returns its handle.'''

``is_in_place`` is for drafts that have such a parameter, their first. It is each form's own and no parameter of it.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar, overload

from hvdlite.negotiation.handle import Handle
from hvdlite.ops.handles import GroupHandle, synchronize

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R", covariant=True)
H = TypeVar("H", bound="Handle[Any] | GroupHandle[Any]")
Form = TypeVar("Form", bound=Callable[..., Any])


class Declares(Protocol[P, R]):
    """Makes a form out of its declaration."""

    def __call__(self, declaration: Callable[..., None], /) -> Callable[P, R]: ...


@overload
def asynchronous(draft: Callable[Concatenate[S, P], H]) -> Declares[Concatenate[S, P], H]: ...


@overload
def asynchronous(
    draft: Callable[Concatenate[S, bool, P], H], *, is_in_place: bool
) -> Declares[Concatenate[S, P], H]: ...


def asynchronous(draft: Any, *, is_in_place: bool | None = None) -> Any:
    """Declares a form that submits what ``draft`` makes, and returns its handle."""
    return lambda declaration: _compiled(declaration, draft, is_in_place, _ASYNCHRONOUS)


@overload
def blocking(draft: Callable[Concatenate[S, P], Handle[R]]) -> Declares[Concatenate[S, P], R]: ...


@overload
def blocking(draft: Callable[Concatenate[S, P], GroupHandle[R]]) -> Declares[Concatenate[S, P], list[R]]: ...


@overload
def blocking(
    draft: Callable[Concatenate[S, bool, P], Handle[R]], *, is_in_place: bool
) -> Declares[Concatenate[S, P], R]: ...


@overload
def blocking(
    draft: Callable[Concatenate[S, bool, P], GroupHandle[R]], *, is_in_place: bool
) -> Declares[Concatenate[S, P], list[R]]: ...


def blocking(draft: Any, *, is_in_place: bool | None = None) -> Any:
    """Declares a form that submits what ``draft`` makes, waits, and returns the result."""

    def declare(declaration: Callable[..., None]) -> Callable[..., Any]:
        return drafted_by(draft, is_in_place)(_compiled(declaration, draft, is_in_place, _BLOCKING))

    return declare


def drafted_by(draft: Callable[..., Any], is_in_place: bool | None = None) -> Callable[[Form], Form]:
    """Names the draft of a form that is written by hand because it has more parameters."""
    flags = () if is_in_place is None else (is_in_place,)

    def mark(form: Form) -> Form:
        form.draft = lambda self, *args, **kwargs: draft(self, *flags, *args, **kwargs)  # type: ignore[attr-defined]
        return form

    return mark


def draft_of(form: Callable[..., Any]) -> Callable[..., Handle[Any] | GroupHandle[Any]]:
    """The draft of a blocking form."""
    found: Callable[..., Handle[Any] | GroupHandle[Any]] = form.draft  # type: ignore[attr-defined]
    return found


# The functions that a form applies to the handle of one tensor, and of several.
_ASYNCHRONOUS: Final = (
    "return handle.group.submit(handle)",
    "handle.group.submit_all(handle.handles); return handle",
)
_BLOCKING: Final = (
    "handle.group.run(handle); return synchronize(handle)",
    "handle.group.run_all(handle.handles); return synchronize(handle)",
)


def _compiled(
    declaration: Callable[..., None], draft: Callable[..., Any], is_in_place: bool | None, ends: tuple[str, str]
) -> Callable[..., Any]:
    """A function with the parameters of ``draft``, compiled as the standard library does for dataclasses.

    Passing on ``*args`` and ``**kwargs`` would cost a noticeable part of a submit.
    """
    names = list(draft.__code__.co_varnames[1 : draft.__code__.co_argcount])
    annotations = dict(draft.__annotations__)
    flag = ""
    if is_in_place is not None:
        annotations.pop(names.pop(0))
        flag = f"{is_in_place}, "
    name, parameters = declaration.__name__, ", ".join(names)
    end = ends["tensors" in names]
    source = f"def {name}(self, {parameters}):\n    handle = draft(self, {flag}{parameters})\n    {end}\n"
    file = os.path.join(os.path.dirname(__file__), f"<{declaration.__qualname__}>")  # one of ours, for tracebacks
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope: dict[str, Any] = {**draft.__globals__, "draft": draft, "synchronize": synchronize}
    exec(compile(source, file, "exec"), scope)
    form: Any = scope[name]
    form.__doc__, form.__qualname__ = declaration.__doc__, declaration.__qualname__
    form.__defaults__, form.__annotations__ = draft.__defaults__, annotations
    if ends is _BLOCKING:  # of Handle[T] the T, and of GroupHandle[T] a list of them
        kind, _, result = annotations["return"].removesuffix("]").partition("[")
        annotations["return"] = f"list[{result}]" if kind == "GroupHandle" else result
    return form  # type: ignore[no-any-return]
