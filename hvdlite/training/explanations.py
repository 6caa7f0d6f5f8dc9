"""The variables that the tensors of a group belong to, for the text of a `Mismatch`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from hvdlite.errors import Mismatch

ABSENT: Final = [0]
"""The shape of what travels for a gradient that is None, so that ranks can check that they agree."""

_MAX_GROUPS: Final = 1000
_meanings: dict[str, Sequence[str]] = {}


def explain(group: str, variables: Sequence[Any], what: str = "the gradient of ") -> None:
    """Records that the tensors of ``group`` are ``what`` of these ``variables``, in this order."""
    paths = [str(getattr(each, "path", None) or getattr(each, "name", "a variable")) for each in variables]
    _meanings.pop(group, None)
    _meanings[group] = [what + path for path in paths]
    if len(_meanings) > _MAX_GROUPS:  # in a program that makes models for ever
        del _meanings[next(iter(_meanings))]


def explained(text: str) -> str:
    """Returns the text of a `Mismatch` with the variables of its tensors."""
    for group, number in re.findall(r"tensor '(.+)\[(\d+)\]'", text):
        if group in _meanings and int(number) < len(_meanings[group]):
            is_absent = re.search(rf"(has|have) {re.escape(str(ABSENT))}", text)
            where = f"; where it has the shape {ABSENT}, it is None" if is_absent else ""
            text += f" That is {_meanings[group][int(number)]}{where}."
    return text


@contextmanager
def explaining(group: str = "", variables: Sequence[Any] = ()) -> Iterator[None]:
    """Adds the variables of its tensors to a `Mismatch`: ``variables`` of ``group``, or what `explain` recorded."""
    try:
        yield
    except Mismatch as error:
        if variables:
            explain(group, variables)
        error.args = (explained(str(error)),)
        raise
