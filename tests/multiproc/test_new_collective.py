"""A collective is one row of the table and one draft: here one that hvdlite does not have."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.negotiation.messages import Kind
from hvdlite.ops import Entry, Group
from hvdlite.ops.arrays import collectives
from hvdlite.ops.reductions import Reductions
from hvdlite.ops.table import Collective, Result
from hvdlite.ops.transfers import Transfers
from tests.harness import process_ranks
from tests.house.forms_files import class_file

ROW = Collective("rotate", Result.AGREED)


class Drafts(Reductions[Any], Transfers[Any]):
    """With that of the new collective."""

    def _rotate(self, group: Group, tensor: Any, by: int = 1, name: str | None = None) -> Entry[Any]:
        """Returns the tensor of the rank that is ``by`` ranks before this one."""
        source, (rows, *_) = self._rows_buffer(tensor, Kind.ALLTOALL)
        target = (group.rank + by) % group.size
        splits = tuple(rows * (rank == target) for rank in range(group.size))
        return self._entry_of(group, name, Kind.ALLTOALL, source, allocate=self._allocator(tensor), splits=splits)


def _with_forms(path: Path) -> Any:
    """Makes the collectives over arrays with the forms in the file."""
    spec = importlib.util.spec_from_file_location("new_forms", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return type("_Collectives", (module.Collectives, Drafts), {})(collectives._adapter)


@pytest.fixture
def forms(tmp_path: Path) -> Path:
    path = tmp_path / "new forms.py"
    path.write_text(class_file([ROW], Drafts))
    return path


def _rotated(path: Path) -> list[list[float]]:
    hvd.init()
    over = _with_forms(path)
    own = np.full(2 + hvd.rank(), hvd.rank(), np.float32)
    found = [over.rotate(own), hvd.synchronize(over.rotate_async(own, by=2, name="by two"))]
    hvd.shutdown()
    return [array.tolist() for array in found]


def test_it_has_all_forms_on_all_ranks(forms: Path) -> None:
    of_rank = [[float(rank)] * (2 + rank) for rank in range(3)]
    found = [outcome.result() for outcome in process_ranks(3, _rotated, forms)]
    assert found == [[of_rank[rank - 1], of_rank[rank - 2]] for rank in range(3)]


def test_its_forms_are_those_that_a_person_would_write(forms: Path) -> None:
    over = _with_forms(forms)
    parameters = "(tensor: 'Any', by: 'int' = 1, name: 'str | None' = None, process_set: 'ProcessSet' = "
    for form, result in ((over.rotate, "Any"), (over.rotate_async, "Handle[Any]")):
        assert str(inspect.signature(form)).startswith(parameters)
        assert inspect.signature(form).return_annotation == result
    assert inspect.getdoc(over.rotate) == inspect.getdoc(Drafts._rotate)
    assert inspect.getdoc(over.rotate_async) == (
        "Starts `rotate` and returns its handle. The input must not change until it is done."
    )
