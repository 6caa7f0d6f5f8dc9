"""Blocking calls of torch tensors are one native call each, and their results are those of ranks without a page."""

from __future__ import annotations

import pytest
import torch

import hvdlite.torch as hvd
from tests.harness.blocking import FORMS, IN_PLACE, NAMED, ONLY_NAMED, UNNAMED, Made, make, same_without_the_page
from tests.harness.forkserver import TORCH


def _all_forms() -> Made:
    hvd.init()
    made: Made = {}
    for label in (NAMED, UNNAMED):
        made |= make(hvd, torch.from_numpy, (*FORMS, *IN_PLACE), label)
    hvd.shutdown()
    return made


@pytest.mark.parametrize("count", [2, 3])
def test_all_forms_take_the_short_way_and_have_the_same_bits_as_without_the_page(count: int) -> None:
    for form, label, counts in same_without_the_page(count, _all_forms, server=TORCH):
        is_short = label == NAMED or not form.startswith(ONLY_NAMED)
        assert (counts["done"] > 0) == is_short, (form, label, counts)
