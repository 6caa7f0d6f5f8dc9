"""Writes the forms of all collectives from their table: ``python -m tests.house.forms_files``.

A form has the parameters, defaults and types of its draft, with a process set in place of the group, and the draft's
docstring. A form that `Reductions` or `Transfers` has already, because it has several types, is not written.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hvdlite.ops.reductions import Reductions
from hvdlite.ops.table import COLLECTIVES, Collective, Form
from hvdlite.ops.transfers import Transfers
from tests.house.tree import ROOT

CLASS = ROOT / "hvdlite/ops/collectives.py"
_HEAD = '''"""All forms of the collectives, for the tensors of one front end. `make forms` writes this file.

`hvdlite.ops.table` has their names. Each calls a draft of `Reductions` or `Transfers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from hvdlite.members.process_set import ProcessSet, global_process_set
from hvdlite.negotiation.handle import Handle
from hvdlite.ops.adapter import Compressor
from hvdlite.ops.handles import GroupHandle, synchronize
from hvdlite.ops.reductions import Reductions
from hvdlite.ops.transfers import Transfers
from hvdlite.session import group_of
from hvdlite.tensors.dtypes import Average

T = TypeVar("T")


class Collectives(Reductions[T], Transfers[T]):
    """All collectives for the tensors of one front end.

    Every form takes a ``name`` that identifies the tensor on all ranks. Without names, all ranks must call collectives
    of the same kind in the same order. ``process_set`` has the ranks that take part, by default all ranks. Asynchronous
    forms return a handle for `poll` and `synchronize`, and forms that end in ``_`` write into their input.

    All forms raise ValueError for invalid arguments, and DuplicateName while a tensor of this name is in flight. If the
    collective fails, the blocking forms and `synchronize` raise a HorovodInternalError: `Mismatch` if ranks disagree,
    `PeerLost`, `Stalled`, `ShutDown`.
    """
'''

NAMES = {
    ROOT / "hvdlite/ops/array_forms.py": ("numpy arrays", "hvdlite.ops.arrays"),
    ROOT / "hvdlite/torch/collectives/forms.py": ("torch tensors", "hvdlite.torch.collectives.tensors"),
    ROOT / "hvdlite/jax/forms.py": ("JAX arrays", "hvdlite.jax.eager"),
}
_NAMES_HEAD = '''"""The collectives over {tensors} by their public names. `make forms` writes this file."""

from {module} import collectives as _collectives

'''
OF_TREES = {"allgather", "allreduce", "broadcast"}
"""The forms that `hvdlite.jax` has for trees of arrays."""

_BODIES = {  # by whether the form is blocking, and whether it is grouped
    (False, False): "return group.submit({drafted})",
    (False, True): "handle = {drafted}\ngroup.submit_all(handle.handles)\nreturn handle",
    (True, False): "handle = {drafted}\ngroup.run(handle)\nreturn synchronize(handle)",
    (True, True): "handle = {drafted}\ngroup.run_all(handle.handles)\nreturn synchronize(handle)",
}
# As in Horovod; of all others the process set is the last parameter.
_BEFORE_FACTORS = {"reducescatter", "grouped_reducescatter"}


class _Drafts(Reductions[Any], Transfers[Any]):
    """Those of hvdlite."""


def class_file(collectives: Iterable[Collective] = COLLECTIVES, drafts: type = _Drafts) -> str:
    """Returns the text of the file that defines all forms of ``collectives``, whose drafts are in ``drafts``."""
    forms = [form for collective in collectives for form in collective.forms() if not hasattr(drafts, form.name)]
    methods = (_method(form, getattr(drafts, form.collective.draft)) for form in forms)
    return _HEAD + "".join("\n" + textwrap.indent(method, " " * 4) for method in methods)


def names_file(path: Path) -> str:
    """Returns the text of the file that binds the public names of one front end."""
    tensors, module = NAMES[path]
    names = [form.name for collective in COLLECTIVES if collective.is_public for form in collective.forms()]
    if "jax" in path.parts:  # whose arrays do not change
        names = [name for name in names if not name.endswith("_") and name not in OF_TREES]
    bound = (f"{name} = _collectives.{name}\n" for name in names)
    return _NAMES_HEAD.format(tensors=tensors, module=module) + "".join(bound)


def _method(form: Form, draft: Callable[..., Any]) -> str:
    """Returns the source of one form."""
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(draft))).body
    assert isinstance(function, ast.FunctionDef)
    passed, parameters = _parameters(form, function)
    handle = ast.unparse(function.returns) if function.returns else ""
    returned = _result_of(handle) if form.is_blocking else handle.replace("Entry[", "Handle[")
    name, is_grouped = form.collective.name, form.collective.is_grouped
    lines = [
        f'"""{_text(form, ast.get_docstring(function) or "")}"""',
        "group = group_of(process_set)",
        _BODIES[form.is_blocking, is_grouped].format(drafted=f"self._{name}(group, {', '.join(passed)})"),
    ]
    return f"def {form.name}(self, {', '.join(parameters)}) -> {returned}:\n" + textwrap.indent(
        "\n".join(lines) + "\n", " " * 4
    )


def _parameters(form: Form, draft: ast.FunctionDef) -> tuple[list[str], list[str]]:
    """Returns what the form passes on after the group, and its own parameters with their types and defaults."""
    own = draft.args.args
    defaults: list[ast.expr | None] = [None] * (len(own) - len(draft.args.defaults))
    passed, parameters = [], []
    for parameter, default in zip(own, [*defaults, *draft.args.defaults], strict=True):
        if parameter.arg == "is_in_place":
            passed.append(str(form.is_in_place))
        elif parameter.arg == "compression" and not (form.is_blocking and not form.is_in_place):
            passed.append("None")
        elif parameter.arg not in ("self", "group"):
            passed.append(parameter.arg)
            parameters.append(ast.unparse(parameter) + (f" = {ast.unparse(default)}" if default else ""))
    place = len(parameters) - 2 * (form.collective.name in _BEFORE_FACTORS)
    parameters.insert(place, "process_set: ProcessSet = global_process_set")
    return passed, parameters


def _result_of(handle: str) -> str:
    """Returns the type of the result, given that of the handle: of Entry[T] the T, of GroupHandle[T] a list of it."""
    kind, _, result = handle.removesuffix("]").partition("[")
    return f"list[{result}]" if kind == "GroupHandle" else result


def _text(form: Form, docstring: str) -> str:
    """Returns the docstring of the form, given its draft's."""
    name, is_grouped = form.collective.name, form.collective.is_grouped
    blocking = name + "_" * form.is_in_place
    if not form.is_blocking:
        handle = "one handle" if is_grouped else "its handle"
        subject = "Inputs" if is_grouped else "The input"
        return f"Starts `{blocking}` and returns {handle}. {subject} must not change until it is done."
    if form.is_in_place:
        return f"Like `{name}`, in place. Returns {'the tensors themselves' if is_grouped else '``tensor`` itself'}."
    return docstring + "\n" * ("\n" in docstring)  # the quotes that end a long one are on a line of their own


def main() -> None:
    """Writes all files, formatted."""
    CLASS.write_text(class_file())
    for path in NAMES:
        path.write_text(names_file(path))
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", CLASS, *NAMES], check=True, cwd=ROOT)


if __name__ == "__main__":
    main()
