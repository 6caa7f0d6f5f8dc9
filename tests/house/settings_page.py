"""Writes docs/settings.md from the table of settings: ``python -m tests.house.settings_page``."""

from __future__ import annotations

from hvdlite.settings import Spec, table
from tests.house.tree import ROOT

PAGE = ROOT / "docs/settings.md"
_HEAD = """# Settings

Every setting is an environment variable, read once per `init()`. If Horovod has the same setting, its name works too,
and the `HVDLITE_` name wins. `hvdrun --settings` prints this table. `make docs` generates this page.
"""
_TABLE = """
## {subject}

| variable | default | unit | meaning | Horovod's name |
|---|---|---|---|---|
"""


def render() -> str:
    """The whole page as Markdown."""
    return _HEAD + "".join(map(_row, table()))


def _row(spec: Spec) -> str:
    head = _TABLE.format(subject=spec.begins) if spec.begins else ""
    ours, *horovods = spec.variables
    default = "*empty*" if spec.default == "" else f"`{int(spec.default) if spec.kind is bool else spec.default}`"
    choices = f" ({', '.join(f'`{choice}`' for choice in spec.choices)})" if spec.choices else ""
    names = ", ".join(f"`{name}`" for name in horovods)
    return f"{head}| `{ours}` | {default} | {spec.unit} | {spec.meaning}{choices} | {names} |\n"


if __name__ == "__main__":
    PAGE.write_text(render())
