"""What dynamo traces while a test compiles: the code of every frame that it compiles, and of every call it inlines."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import hvdlite

_OURS = f"{Path(hvdlite.__file__).parent}/"
_TO_BE_TRACED = "torch/compiled.py"


class Traced(NamedTuple):
    """``frames`` are those that were compiled, ``ours`` the code of hvdlite that was traced and is not meant for it."""

    frames: list[str]
    ours: set[str]

    def note(self, code: CodeType) -> None:
        if code.co_filename.startswith(_OURS):
            file = code.co_filename.removeprefix(_OURS)
            if file != _TO_BE_TRACED:
                self.ours.add(f"{file}:{code.co_name} in {threading.current_thread().name}")


@contextmanager
def probe() -> Iterator[Traced]:
    """Notes what dynamo traces in this process, on any thread."""
    from torch._dynamo import convert_frame, symbolic_convert

    traced = Traced([], set())
    compile_frame = convert_frame._compile
    inlining = symbolic_convert.InliningInstructionTranslator
    inline = inlining.inline_call_

    def noting_frame(code: CodeType, *args: Any, **options: Any) -> Any:
        traced.frames.append(code.co_name)
        traced.note(code)
        return compile_frame(code, *args, **options)

    def noting_call(*arguments: Any) -> Any:
        # a method since torch 2.6; before, a static method of a caller, a function and its arguments
        traced.note(arguments[0].f_code if len(arguments) == 1 else arguments[1].get_code())
        return inline(*arguments)

    convert_frame._compile, inlining.inline_call_ = noting_frame, noting_call
    try:
        yield traced
    finally:
        convert_frame._compile, inlining.inline_call_ = compile_frame, inline
