"""The modules below ``horovod`` that exist here, each with the module of hvdlite that it is."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.28.1"
"""The release of Horovod whose API this is; scripts compare it."""

MODULES: Final = {
    "horovod.common": "",  # a package with nothing of its own
    "horovod.common.basics": "hvdlite.horovod.basics",
    "horovod.common.elastic": "hvdlite.public.elastic",
    "horovod.common.exceptions": "hvdlite.horovod.exceptions",
    "horovod.common.process_sets": "hvdlite.public.process_sets",
    "horovod.common.util": "hvdlite.horovod.checks",
    "horovod.keras": "hvdlite.keras",
    "horovod.keras.callbacks": "hvdlite.keras.callbacks",
    "horovod.keras.elastic": "hvdlite.public.elastic",
    "horovod.ray": "hvdlite.horovod.ray",
    "horovod.ray.elastic": "hvdlite.horovod.ray",
    "horovod.ray.runner": "hvdlite.horovod.ray",
    "horovod.ray.worker": "hvdlite.horovod.ray",
    "horovod.runner": "hvdlite.horovod.runner",
    "horovod.runner.common": "hvdlite.horovod.environment",
    "horovod.runner.common.util": "hvdlite.horovod.environment",
    "horovod.runner.common.util.env": "hvdlite.horovod.environment",
    "horovod.runner.launch": "hvdlite.horovod.launch",
    "horovod.spark": "hvdlite.horovod.spark",
    "horovod.spark.common": "hvdlite.horovod.estimators",
    "horovod.spark.common.backend": "hvdlite.horovod.estimators",
    "horovod.spark.common.store": "hvdlite.horovod.estimators",
    "horovod.spark.keras": "hvdlite.horovod.estimators",
    "horovod.spark.lightning": "hvdlite.horovod.estimators",
    "horovod.spark.runner": "hvdlite.horovod.spark",
    "horovod.spark.task": "hvdlite.horovod.spark",
    "horovod.spark.torch": "hvdlite.horovod.estimators",
    "horovod.tensorflow": "hvdlite.tensorflow",
    "horovod.tensorflow.compression": "hvdlite.tensorflow.compression",
    "horovod.tensorflow.elastic": "hvdlite.public.elastic",
    "horovod.tensorflow.functions": "hvdlite.tensorflow.functions",
    "horovod.tensorflow.gradient_aggregation": "hvdlite.tensorflow.gradient_aggregation",
    "horovod.tensorflow.gradient_aggregation_eager": "hvdlite.tensorflow.gradient_aggregation",
    "horovod.tensorflow.keras": "hvdlite.keras",
    "horovod.tensorflow.keras.callbacks": "hvdlite.keras.callbacks",
    "horovod.tensorflow.keras.elastic": "hvdlite.public.elastic",
    "horovod.tensorflow.mpi_ops": "hvdlite.horovod.tensorflow_mpi_ops",
    "horovod.tensorflow.sync_batch_norm": "hvdlite.tensorflow.sync_batch_norm",
    "horovod.tensorflow.util": "hvdlite.tensorflow.eager_mode",
    "horovod.torch": "hvdlite.torch",
    "horovod.torch.compression": "hvdlite.torch.compression",
    "horovod.torch.elastic": "hvdlite.public.elastic",
    "horovod.torch.elastic.sampler": "hvdlite.public.elastic",
    "horovod.torch.elastic.state": "hvdlite.public.elastic",
    "horovod.torch.functions": "hvdlite.torch",
    "horovod.torch.mpi_ops": "hvdlite.horovod.torch_mpi_ops",
    "horovod.torch.optimizer": "hvdlite.torch.optimizer",
    "horovod.torch.sync_batch_norm": "hvdlite.torch.sync_batch_norm",
}
