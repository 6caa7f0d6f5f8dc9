"""Puts what one environment has below another: ``python -m tests.programs.below FOLDER`` names the upper one."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path


def put_below(folder: Path, *entries: str) -> None:
    """The Python in ``folder`` finds what this one finds, after what it has itself, and before ``entries``."""
    upper = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    here = sysconfig.get_path("purelib")
    (upper / "below.pth").write_text("\n".join([f"import site; site.addsitedir({here!r})", *entries]) + "\n")


if __name__ == "__main__":
    put_below(Path(sys.argv[1]))
