"""Makes parameters and optimizers' state equal on all ranks."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from hvdlite.jax.eager import finished
from hvdlite.ops import ProcessSet, global_process_set, group_of
from hvdlite.ops.arrays import collectives as arrays


def broadcast_parameters(tree: Any, root_rank: int, process_set: ProcessSet = global_process_set) -> Any:
    """Returns the ``tree`` of ``root_rank``, a rank's number in the job: parameters, or the state of an optimizer.

    Each leaf travels under the name of its path. Numbers are returned as numbers. Raises ValueError for a leaf that is
    neither an array nor a number, and HorovodInternalError if the trees of ranks differ in form, shapes or dtypes.
    """
    leaves, form = jax.tree_util.tree_flatten_with_path(tree)
    named = [(f"parameter{jax.tree_util.keystr(path)}", np.array(leaf)) for path, leaf in leaves]
    received = arrays.broadcast_all_(group_of(process_set), named, root_rank)
    results = [
        finished(array) if hasattr(leaf, "shape") else array.item()
        for (_, leaf), array in zip(leaves, received, strict=True)
    ]
    return jax.tree_util.tree_unflatten(form, results)
