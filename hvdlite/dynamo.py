"""Keeps `torch.compile` out of hvdlite: no function here, nor anything that it calls, becomes part of a graph.

Dynamo meets our code in two ways. It *inlines* functions called by a compiled one, unless they have the attribute that
``torch.compiler.disable`` sets; then it ends the graph, and the compiled function calls them uncompiled. And while a
compiled function runs, it inspects *every frame* that is entered, including ours in autograd hooks and those of
libraries that we call, unless the frame's code is marked to be skipped with everything below it.

Both marks cost a call nothing, unlike ``torch.compiler.disable``, which wraps the function and imports dynamo. Before
torch 2.7, which cannot mark everything below, only our own frames are skipped; they have all the tensors.

Nothing is imported here: a program that uses arrays only may lack torch.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, TypeVar, cast

_PACKAGE: Final = __name__.partition(".")[0]
_FOLDER: Final = os.path.dirname(__file__) + "/"  # as code objects have it, with links
_TRACED: Final = f"{_FOLDER}torch/collectives/compiled.py"  # which is written for dynamo
_REASON: Final = "hvdlite's own code runs outside of graphs; see its docs/pytorch.md"

Function = TypeVar("Function", bound=Callable[..., Any])


def outside_of_graphs(function: Function) -> Function:
    """Wraps ``function`` so that dynamo ends a graph there; ``function`` itself is unchanged."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    _mark(call)
    return cast(Function, call)


def leave_out_all() -> None:
    """Marks all loaded functions and methods of this package, if torch is loaded."""
    torch_c: Any = getattr(sys.modules.get("torch"), "_C", None)
    if not hasattr(torch_c, "_dynamo"):
        return
    skip, seen = _code_marker(torch_c._dynamo.eval_frame), set[type]()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == _PACKAGE:
            for function in _functions_of(module, seen):
                if function.__code__.co_filename != _TRACED:
                    _mark(function)
                for code in _codes_in(function.__code__):
                    skip(code)


def _mark(function: Callable[..., Any]) -> None:
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    function._torchdynamo_disable_msg = _REASON  # type: ignore[attr-defined]


def _code_marker(eval_frame: Any) -> Callable[[CodeType], None]:
    if hasattr(eval_frame, "set_code_exec_strategy"):
        skip = eval_frame._FrameAction.SKIP
        strategy = eval_frame._FrameExecStrategy(skip, skip)
        return lambda code: eval_frame.set_code_exec_strategy(code, strategy)
    mark: Callable[[CodeType], None] = eval_frame.skip_code
    return mark


def _functions_of(owner: ModuleType | type, seen: set[type]) -> Iterator[FunctionType]:
    """The functions in ``owner`` and in its classes, except ``seen`` ones, and the functions that they wrap."""
    for value in list(vars(owner).values()):
        if isinstance(value, type):
            if value not in seen and value.__module__.partition(".")[0] == _PACKAGE:
                seen.add(value)
                yield from _functions_of(value, seen)
        elif isinstance(value, property):
            yield from (each for each in (value.fget, value.fset) if isinstance(each, FunctionType))
        else:
            function = getattr(value, "__func__", value)  # a bound, static or class method
            while isinstance(function, FunctionType) and function.__module__.partition(".")[0] == _PACKAGE:
                yield function
                function = getattr(function, "__wrapped__", None)


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    """``code``, if it is ours, and the code of the functions in it."""
    if code.co_filename.startswith(_FOLDER) and code.co_filename != _TRACED:
        yield code
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _codes_in(constant)
