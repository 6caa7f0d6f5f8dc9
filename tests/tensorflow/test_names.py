"""The public names of the TensorFlow front end, and its names under ``horovod``."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from operator import attrgetter

import keras
import pytest
import tensorflow as tf

import hvdlite.tensorflow as hvd
from hvdlite.compat import FALLBACK, FOLDER
from hvdlite.compat.names import MODULES
from tests.harness.patience import PATIENCE_S

PROMISED = """
    init shutdown is_initialized rank size local_rank local_size cross_rank cross_size is_homogeneous
    Average Sum Adasum Min Max Product
    allreduce grouped_allreduce reducescatter grouped_reducescatter allgather grouped_allgather
    broadcast broadcast_ alltoall join barrier poll synchronize
    size_op rank_op local_rank_op local_size_op process_set_included_op
    broadcast_variables broadcast_object broadcast_object_fn allgather_object
    broadcast_global_variables BroadcastGlobalVariablesHook
    DistributedGradientTape PartialDistributedGradientTape DistributedOptimizer SyncBatchNormalization
    Compression Compressor last_error
    ProcessSet global_process_set add_process_set remove_process_set start_timeline stop_timeline
    mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built cuda_built
    rocm_built
    HvdError HorovodInternalError Mismatch PeerLost Stalled ShutDown DuplicateName NativeUnavailable
""".split()

# What Horovod 0.28 takes, in this order, but for arguments that hvdlite adds at the end.
SIGNATURES = {
    "allreduce": "tensor average device_dense device_sparse compression op prescale_factor postscale_factor name "
    "process_set ignore_name_scope",
    "grouped_allreduce": "tensors average device_dense device_sparse compression op prescale_factor postscale_factor "
    "process_set ignore_name_scope name",
    "reducescatter": "tensor device_dense compression op name process_set ignore_name_scope prescale_factor "
    "postscale_factor",
    "grouped_reducescatter": "tensors device_dense compression op process_set prescale_factor postscale_factor",
    "grouped_allgather": "tensors name ignore_name_scope process_set",
    "join": "",
    "size_op": "process_set_id name",
    "process_set_included_op": "process_set_id name",
    "rank_op": "name",
    "local_rank_op": "name",
    "local_size_op": "name",
    "broadcast_global_variables": "root_rank",
    "BroadcastGlobalVariablesHook": "root_rank device",
    "SyncBatchNormalization": "fused",
    "mpi_ops._allreduce": "tensor name op prescale_factor postscale_factor ignore_name_scope process_set",
    "mpi_ops._grouped_allreduce": "tensors name op prescale_factor postscale_factor ignore_name_scope process_set",
    "mpi_ops._reducescatter": "tensor name op ignore_name_scope process_set prescale_factor postscale_factor",
    "mpi_ops._grouped_reducescatter": "tensors name op ignore_name_scope process_set prescale_factor postscale_factor",
    "mpi_ops.handle_average_backwards_compatibility": "op average",
    "gradient_aggregation.LocalGradientAggregationHelper": "backward_passes_per_step allreduce_func sparse_as_dense "
    "average_aggregated_gradients rank optimizer_type process_set scale_local_gradients name",
    "gradient_aggregation.LocalGradientAggregationHelperEager": "backward_passes_per_step allreduce_func "
    "sparse_as_dense average_aggregated_gradients process_set scale_local_gradients",
    "_make_allreduce_grads_fn": "name device_dense device_sparse compression sparse_as_dense op "
    "gradient_predivide_factor groups process_set",
    "allgather": "tensor name ignore_name_scope process_set",
    "broadcast": "tensor root_rank name ignore_name_scope process_set",
    "broadcast_": "variables root_rank name process_set",
    "alltoall": "tensor splits name ignore_name_scope process_set",
    "broadcast_variables": "variables root_rank process_set inplace",
    "broadcast_object": "obj root_rank session name process_set",
    "broadcast_object_fn": "root_rank session name process_set",
    "allgather_object": "obj session name process_set",
    "DistributedOptimizer": "optimizer name use_locking device_dense device_sparse compression sparse_as_dense "
    "backward_passes_per_step op gradient_predivide_factor average_aggregated_gradients num_groups groups process_set "
    "scale_local_gradients",
    "DistributedGradientTape": "gradtape device_dense device_sparse compression sparse_as_dense op "
    "gradient_predivide_factor num_groups groups process_set scale_local_gradients",
    "PartialDistributedGradientTape": "gradtape device_dense device_sparse compression sparse_as_dense op "
    "gradient_predivide_factor num_groups groups process_set local_layers scale_local_gradients",
}


def test_the_public_list_is_what_was_promised() -> None:
    assert sorted(hvd.__all__) == sorted([*PROMISED, "__version__"])
    assert [name for name in hvd.__all__ if not getattr(hvd, name, None) and getattr(hvd, name, None) != 0] == []
    assert dir(hvd) == sorted(hvd.__all__)


def test_every_public_function_and_class_is_documented() -> None:
    assert [name for name in PROMISED if callable(getattr(hvd, name)) and not getattr(hvd, name).__doc__] == []


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_come_in_the_order_of_horovod(name: str) -> None:
    wanted = SIGNATURES[name].split()
    assert list(inspect.signature(attrgetter(name)(hvd)).parameters)[: len(wanted)] == wanted


def test_there_is_no_elastic_training() -> None:
    for name in set(hvd.elastic.__all__):
        with pytest.raises(NotImplementedError, match="save checkpoints, and start the job again"):
            getattr(hvd.elastic, name)(None)
    assert {"run", "TensorFlowState", "TensorFlowKerasState", "KerasState"} < set(hvd.elastic.__all__)


def test_what_is_there_for_scripts_of_horovod_is_not_public() -> None:
    names = [*hvd._HOROVODS["hvdlite.horovod.tensorflow_mpi_ops"].split(), *hvd._ELSEWHERE, *hvd._MODULES]
    assert [name for name in names if not hasattr(hvd, name)] == []
    assert [name for name in hvd.__all__ if name in names] == ["SyncBatchNormalization"]
    hvd.check_extension("horovod.tensorflow", "HOROVOD_WITH_TENSORFLOW", __file__, "mpi_lib")
    assert hvd.mpi_ops._basics.Sum == hvd.Sum
    assert hvd.mpi_ops._normalize_name("a/b:0") == "a_b_0"
    with pytest.raises(AttributeError, match="module 'hvdlite.tensorflow' has no attribute 'tensors'"):
        attrgetter("tensors")(hvd)


def test_an_optimizer_is_that_of_keras_or_of_tensorflow_1() -> None:
    hvd.init()
    for plain in (keras.optimizers.SGD(0.1), tf.compat.v1.train.GradientDescentOptimizer(0.1)):
        assert isinstance(hvd.DistributedOptimizer(plain), type(plain))
    hvd.shutdown()


def test_the_names_of_horovod() -> None:
    """In a process of its own, where horovod is hvdlite."""
    names = {name: lent for name, lent in MODULES.items() if name.startswith(("horovod.tensorflow", "horovod.keras"))}
    assert len(names) > 12
    program = f"""
import importlib, sys
for name, lent in {names!r}.items():
    assert importlib.import_module(name) is importlib.import_module(lent), name
import horovod.tensorflow as hvd
import horovod.tensorflow.keras as of_keras
from horovod import keras as bare
from horovod.keras.callbacks import MetricAverageCallback
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager
from horovod.tensorflow.keras.elastic import CommitStateCallback
from horovod.tensorflow.mpi_ops import _allreduce, rank, size_op
from horovod.tensorflow.functions import broadcast_variables
from horovod.tensorflow.util import _executing_eagerly, refs_to_vars, vars_to_refs
from horovod.tensorflow.compression import Compression
import hvdlite.keras, hvdlite.tensorflow, hvdlite.tensorflow.keras, tensorflow as tf
assert hvd is hvdlite.tensorflow
assert of_keras is hvdlite.keras is hvdlite.tensorflow.keras is bare
assert hvd.LocalGradientAggregationHelper is LocalGradientAggregationHelper
assert hvd.elastic.CommitStateCallback is CommitStateCallback
assert _executing_eagerly()
variable = tf.Variable(1.0)
assert refs_to_vars(vars_to_refs([variable]))[0] is variable
hvd.init()
try:
    hvd.shutdown()
    hvd.allreduce(1.0)
except tf.errors.FailedPreconditionError as error:
    assert str(error).startswith("Horovod has not been initialized")
"""
    _run(program, FOLDER)


def test_the_names_of_horovod_where_nobody_asked_for_them() -> None:
    """As in a job of hvdrun without --horovod-compat."""
    _run(
        """
import horovod.tensorflow as hvd, horovod.tensorflow.keras as of_keras, hvdlite.keras, hvdlite.tensorflow, sys
from horovod import keras as bare
from horovod.tensorflow import mpi_ops
import tensorflow as tf
for ours, theirs in {of_keras: hvdlite.keras, bare: hvdlite.keras, hvd: hvdlite.tensorflow, mpi_ops: hvd}.items():
    assert ours.init is hvd.init is not hvdlite.init and ours.allreduce is theirs.allreduce, ours
assert hvd.keras is of_keras and hvd.mpi_ops is mpi_ops and hvd.elastic is hvdlite.tensorflow.elastic
assert hvd.SyncBatchNormalization is hvdlite.tensorflow.SyncBatchNormalization
hvdlite.init()
assert not hvd.is_initialized() and not mpi_ops._basics.is_initialized()
hvd.init()
assert tf.function(lambda: hvd.allreduce(1.0) * hvd.size())() == 1
hvd.shutdown()
try:
    hvd.allreduce(1.0)
except tf.errors.FailedPreconditionError as error:
    assert str(error).startswith("Horovod has not been initialized")
""",
        FALLBACK,
    )


def _run(program: str, path: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.returncode == 0, ended.stderr
