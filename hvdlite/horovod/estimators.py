"""Names of Horovod's estimators for Spark, and of their stores: each raises an error when it is used.

The module stands in for ``horovod.spark.torch``, ``keras``, ``lightning``, ``common``, ``common.backend`` and
``common.store``.
"""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = [
    "ADLSStore",
    "AbstractFilesystemStore",
    "DBFSLocalStore",
    "FilesystemStore",
    "GCSStore",
    "HDFSStore",
    "KerasEstimator",
    "KerasModel",
    "LocalStore",
    "S3Store",
    "SparkBackend",
    "Store",
    "TorchEstimator",
    "TorchModel",
]

__path__: list[str] = []  # a package, because of horovod.spark.common.store


class Store:
    """Raises NotImplementedError with advice. It has the name of each estimator, model and store."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.create()

    @classmethod
    def create(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """As the constructor."""
        raise NotImplementedError(
            "hvdlite has no estimators for Spark and no stores; write the DataFrame to files, and train in a function "
            "that hvdlite.spark.run() calls, where each rank reads its part of them by hvd.rank()"
        )


AbstractFilesystemStore = FilesystemStore = LocalStore = HDFSStore = DBFSLocalStore = Store
ADLSStore = GCSStore = S3Store = Store
KerasEstimator = KerasModel = TorchEstimator = TorchModel = SparkBackend = Store
