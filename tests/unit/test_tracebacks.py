"""The frames that are shown of an error that ends a program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable

import pytest

import hvdlite as hvd
from hvdlite.engine.apart import do_apart
from hvdlite.errors import HorovodInternalError
from hvdlite.ops.submit import whole_number
from hvdlite.tracebacks import shorten

OURS = os.path.dirname(hvd.__file__) + "/"  # a checkout may have that name as well


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
    assert OURS not in text
    assert text.endswith("call hvd.init() first\n")


@pytest.mark.parametrize("call", ["allreduce(3.0)", "broadcast_async(3.0, 0)", "barrier()", "allgather_object(3)"])
def test_of_a_collective_before_init_too(call: str) -> None:
    text = shown(caught(lambda: eval(f"hvd.{call}")))
    assert OURS not in text
    assert "NotInitialized: hvdlite has not been initialized" in text.splitlines()[-1]


def test_the_setting_brings_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDLITE_TRACEBACK", "full")
    assert "hvdlite/session.py" in shown(caught(uninitialised))
    monkeypatch.setenv("HVDLITE_TRACEBACK", "none")  # which `init` refuses
    assert OURS not in shown(caught(uninitialised))


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
        assert OURS not in text


def test_frames_of_others_below_ours_stay() -> None:
    class Loud:
        def __index__(self) -> int:
            raise ValueError("the user's own")

    def calls_back() -> None:
        whole_number(Loud())

    text = shown(caught(calls_back))
    assert "hvdlite/ops/submit.py" in text
    assert "in __index__" in text


def test_what_is_hvdlites_to_mend_is_shown_whole() -> None:
    error = caught(uninitialised)
    assert "hvdlite/session.py" in shown(AssertionError().with_traceback(error.__traceback__))
    internal = HorovodInternalError("a thread failed")
    internal.__cause__ = error  # as of a batch that could not run
    assert "hvdlite/session.py" in shown(internal)
    assert "hvdlite/session.py" not in shown(HorovodInternalError("rank 1 is late").with_traceback(error.__traceback__))


def test_ctrl_c_in_a_wait_ends_at_the_users_call_and_elsewhere_where_it_came() -> None:
    done = threading.Event()

    def interrupts(_: object) -> None:
        signal.pthread_kill(main, signal.SIGINT)
        done.wait()

    def waits() -> None:
        do_apart(interrupts, "waiting")

    def calls_back() -> None:
        do_apart(lambda _: whole_number(Interrupted()), "calling")

    class Interrupted:
        def __index__(self) -> int:
            raise KeyboardInterrupt

    main = threading.main_thread().ident
    assert main is not None
    text = shown(caught(waits))
    done.set()
    assert text.count("  File ") == 2, text
    assert "in waits" in text
    assert "in __index__" in shown(caught(calls_back))


def test_it_is_done_where_an_error_is_shown_and_not_before() -> None:
    error = caught(uninitialised)
    assert OURS in "".join(traceback.format_exception(error))
    # In this process others may have put their hooks before.
    for program in ("hvd.rank()", "import threading; threading.Thread(target=hvd.rank).start()"):
        command = [sys.executable, "-c", f"import hvdlite as hvd; {program}"]
        told = subprocess.run(command, capture_output=True, text=True, check=False).stderr
        assert OURS not in told
        assert "call hvd.init() first" in told


NOTEBOOK = """
import sys, traceback, types

class Shell:
    custom_exceptions = {custom}
    def set_custom_exc(self, kinds, handler): self.custom_exceptions, self.handler = kinds, handler
    def showtraceback(self, told, tb_offset): traceback.print_exception(*told)
    def run_cell(self, call):
        try: call()
        except self.custom_exceptions as error: self.handler(self, type(error), error, error.__traceback__, tb_offset=1)
        except Exception: traceback.print_exc()

shell = Shell()
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell)
import hvdlite as hvd
shell.run_cell(hvd.rank)
"""


@pytest.mark.parametrize("custom", ["()", "(KeyError,)"])
def test_a_notebook_shows_the_same_unless_its_user_shows_errors_otherwise(custom: str) -> None:
    command = [sys.executable, "-c", NOTEBOOK.format(custom=custom)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "call hvd.init() first" in told
    assert (OURS in told) == (custom != "()")


def test_frames_of_a_framework_between_ours_are_left_out() -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    passes_on = torch.no_grad()(hvd.rank)  # called by us, and calls us
    ours = compile("def step(call): call()", os.path.join(os.path.dirname(hvd.__file__), "torch", "step.py"), "exec")
    scope: dict[str, Callable[[object], None]] = {}
    exec(ours, scope)
    text = shown(caught(lambda: scope["step"](passes_on)))
    assert "_contextlib.py" not in text
    assert "step.py" not in text
    assert text.endswith("call hvd.init() first\n")
