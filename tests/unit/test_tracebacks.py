"""Which frames an error that ends a program is shown with."""

from __future__ import annotations

import subprocess
import sys
import traceback

import pytest

import hvdlite as hvd
from hvdlite.errors import HorovodInternalError, Mismatch
from hvdlite.ops.calls import whole_number
from hvdlite.tracebacks import shorten


def shown(error: BaseException) -> str:
    shorten(error)
    return "".join(traceback.format_exception(error))


def uninitialised() -> None:
    hvd.rank()


def caught(call: object) -> BaseException:
    assert callable(call)
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_the_last_frame_is_the_users_call() -> None:
    text = shown(caught(uninitialised))
    assert "    hvd.rank()\n" in text
    assert "hvdlite/" not in text
    assert text.endswith("call hvd.init() first\n")


def test_the_setting_brings_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDLITE_TRACEBACK", "full")
    assert "hvdlite/session.py" in shown(caught(uninitialised))
    monkeypatch.setenv("HVDLITE_TRACEBACK", "none")  # which `init` refuses
    assert "hvdlite/" not in shown(caught(uninitialised))


def test_errors_that_it_was_raised_from_have_none_either() -> None:
    def chained() -> None:
        try:
            try:
                hvd.rank()
            except ValueError as error:
                raise KeyError("mine") from error
        except KeyError:
            hvd.size()

    def grouped() -> None:
        raise ExceptionGroup("several", [caught(uninitialised), KeyError(1)])  # type: ignore[list-item]

    for call in (chained, grouped):
        text = shown(caught(call))
        assert "hvd.rank()" in text
        assert "hvdlite/" not in text


def test_frames_of_others_below_ours_stay() -> None:
    class Loud:
        def __index__(self) -> int:
            raise ValueError("the user's own")

    def calls_back() -> None:
        whole_number(Loud())

    text = shown(caught(calls_back))
    assert "hvdlite/ops/calls.py" in text
    assert "in __index__" in text


def test_what_is_hvdlites_to_mend_is_shown_whole() -> None:
    error = caught(uninitialised)
    internal = HorovodInternalError("a thread failed").with_traceback(error.__traceback__)
    assert "hvdlite/session.py" in shown(internal)
    assert "hvdlite/session.py" not in shown(Mismatch("ranks disagree").with_traceback(error.__traceback__))


def test_it_is_done_by_the_hook_and_not_before() -> None:
    error = caught(uninitialised)
    assert "hvdlite/" in "".join(traceback.format_exception(error))
    program = (
        "import sys, hvdlite; print(sys.excepthook.__module__)"  # in this process others may have put theirs before
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown == "hvdlite.tracebacks\n"
