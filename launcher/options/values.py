"""Types of values that refuse what click's own types accept, and no command of hvdrun can use."""

from __future__ import annotations

import math
import os
from typing import Any

import click


class Seconds(click.FloatRange):
    """A finite number of seconds: every comparison with NaN is false, so that it is in each of click's ranges."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the number. Raises BadParameter for NaN, infinity and what is out of range."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return number


class PathName(click.Path):
    """A path that is not empty: an empty one would mean the working directory, as from a variable that is unset."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the path. Raises BadParameter if it is empty."""
        if not os.fspath(value):
            self.fail("the name is empty.", param, ctx)
        return super().convert(value, param, ctx)
