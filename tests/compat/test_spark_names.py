"""``horovod.spark``: what is there without PySpark."""

from __future__ import annotations

import inspect

import pytest

import hvdlite.spark
from hvdlite.horovod import estimators, spark


@pytest.mark.parametrize("name", estimators.__all__)
def test_estimators_and_stores_say_what_to_use(name: str) -> None:
    for make in (getattr(estimators, name), getattr(estimators, name).create):
        with pytest.raises(
            NotImplementedError, match=r"no estimators for Spark and no stores; .* hvdlite\.spark\.run\(\)"
        ):
            make(model=None, num_proc=2)


def test_there_are_no_elastic_jobs() -> None:
    with pytest.raises(NotImplementedError, match=r"no run_elastic\(\); .* call horovod\.spark\.run\(\) again"):
        spark.run_elastic(print, num_proc=2, min_num_proc=1)


def test_the_signature_is_that_of_horovod() -> None:
    assert spark.run is hvdlite.spark.run
    assert " ".join(inspect.signature(spark.run).parameters) == (
        "fn args kwargs num_proc start_timeout use_mpi use_gloo extra_mpi_args env stdout stderr verbose nics "
        "prefix_output_with_timestamp executable"
    )
