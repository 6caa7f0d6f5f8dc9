"""The files of the project, as the house rules see them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PARTS = ("hvdlite", "launcher", "native", "benchmarks", "tests", "examples", "docs", "deploy", ".ci")
_BUILT = {"__pycache__", "_native", "build"}


def files(*suffixes: str) -> Iterator[Path]:
    """Every file that belongs to the project, of the given suffixes if any, relative to the root."""
    top = [path for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".git")]
    deep = [path for part in _PARTS for path in (ROOT / part).rglob("*") if path.is_file()]
    for path in sorted(top + deep):
        relative = path.relative_to(ROOT)
        if not _BUILT & set(relative.parts) and (not suffixes or path.suffix in suffixes):
            yield relative


def module_name(path: Path) -> str:
    """The name under which a Python file of the package is imported; launcher/ is ``hvdlite.launcher``."""
    parts = list(path.with_suffix("").parts)
    if parts[0] == "launcher":
        parts.insert(0, "hvdlite")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
