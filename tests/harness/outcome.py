"""The end of one rank of a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """A returned value, an exception, or neither when the process died before it could say.

    ``error`` is the class name of the exception, ``message`` its text, ``details`` its plain attributes. ``ended_at``
    is when the function returned or raised, on the monotonic clock that all processes share (None: it did neither).
    ``exit_code`` is negative for a signal. ``output`` is the process's stdout and stderr.
    """

    rank: int
    exit_code: int
    output: str
    value: Any = None
    error: str = ""
    message: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    ended_at: float | None = None

    def result(self) -> Any:
        """The returned value. Raises AssertionError with the rank's output when there is none."""
        if self.error or self.exit_code or self.ended_at is None:
            reason = f"{self.error}: {self.message}" if self.error else f"exit code {self.exit_code}"
            raise AssertionError(f"rank {self.rank} failed with {reason}\n{self.output}")
        return self.value
