"""Records dynamo's work while a test compiles: the code of every frame it compiles, and of every call it inlines."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import hvdlite

_OURS = f"{Path(hvdlite.__file__).parent}/"
_TO_BE_TRACED = "torch/collectives/compiled.py"


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
    begin = inlining.__init__  # after the checks of what may be traced

    def noting_frame(code: CodeType, *args: Any, **options: Any) -> Any:
        traced.frames.append(code.co_name)
        traced.note(code)
        return compile_frame(code, *args, **options)

    def noting_call(self: Any, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        traced.note(self.f_code)

    convert_frame._compile, inlining.__init__ = noting_frame, noting_call
    try:
        yield traced
    finally:
        convert_frame._compile, inlining.__init__ = compile_frame, begin
