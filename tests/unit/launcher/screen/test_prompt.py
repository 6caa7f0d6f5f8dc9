"""Prompts, with invented times: what of an unfinished line is shown, where, and when."""

from __future__ import annotations

from hvdlite.launcher.screen.prompt import PATIENCE_S, Prompt

LATER = PATIENCE_S


def shown(text: bytes, *, is_terminal: bool = True) -> Prompt:
    prompt = Prompt()
    prompt.learn(0, text, 1.0)
    assert prompt.show(1.0 + LATER, is_terminal) == text
    assert prompt.is_open
    return prompt


def test_it_is_shown_when_its_line_has_not_ended_for_a_while() -> None:
    prompt = Prompt()
    prompt.learn(0, b"Na", 1.0)
    prompt.learn(0, b"Name? ", 1.01)
    assert prompt.due == 1.01 + PATIENCE_S
    assert prompt.show(1.0 + LATER, is_terminal=True) == b""
    assert prompt.show(1.01 + LATER, is_terminal=True) == b"Name? "
    assert prompt.due is None
    assert prompt.show(9.0, is_terminal=True) == b""


def test_a_line_that_ends_in_time_is_none() -> None:
    prompt = Prompt()
    prompt.learn(0, b"Name", 1.0)
    assert prompt.finish(b"Name? x") == (b"Name? x", False)
    prompt.learn(0, b"", 1.01)
    assert prompt.due is None


def test_the_rest_of_the_line_goes_on_behind_it() -> None:
    prompt = shown(b"Loading ... ")
    prompt.learn(0, b"Loading ... half ", 2.0)
    assert prompt.show(2.0 + LATER, is_terminal=True) == b"half "
    assert prompt.finish(b"Loading ... half done") == (b"done", True)
    assert not prompt.is_open


def test_what_comes_after_the_answer_is_a_line_of_its_own() -> None:
    prompt = shown(b"(Pdb) ")
    prompt.answer()
    assert prompt.show(9.0, is_terminal=True) == b""  # it was answered, and is not asked again
    assert prompt.finish(b"(Pdb) 5") == (b"5", False)
    prompt.learn(0, b"(Pdb) ", 9.0)
    assert prompt.show(9.0 + LATER, is_terminal=True) == b"(Pdb) "


def test_the_next_question_of_the_same_line_is_shown_alone() -> None:
    prompt = shown(b"Sure? ")
    prompt.answer()
    prompt.learn(0, b"Sure? Really? ", 2.0)
    assert prompt.show(2.0 + LATER, is_terminal=True) == b"Really? "


def test_one_that_was_cut_off_is_asked_again_on_a_terminal_and_not_in_a_log() -> None:
    prompt = shown(b"(Pdb) ")
    prompt.cut_off()
    assert prompt.show(1.1, is_terminal=True) == b"(Pdb) "
    log = shown(b"(Pdb) ", is_terminal=False)
    log.cut_off()
    assert log.show(1.1, is_terminal=False) == b""
    assert log.finish(b"(Pdb) 5") == (b"5", False)


def test_a_line_that_became_a_progress_bar_is_shown_whole() -> None:
    prompt = shown(b"  0%")
    assert prompt.finish(b"100%") == (b"100%", False)
    assert prompt.is_open  # so that whoever writes next begins a line
