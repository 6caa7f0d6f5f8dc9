"""The public names are a promise: this list changes only on purpose, together with the changelog."""

from __future__ import annotations

import importlib
import inspect
import typing

import pytest

COMMON = """
    init shutdown is_initialized rank size local_rank local_size cross_rank cross_size is_homogeneous
    Average Sum Adasum Min Max Product
    allreduce allreduce_ allreduce_async allreduce_async_
    grouped_allreduce grouped_allreduce_ grouped_allreduce_async grouped_allreduce_async_
    allgather allgather_async grouped_allgather grouped_allgather_async
    broadcast broadcast_ broadcast_async broadcast_async_ alltoall alltoall_async
    reducescatter reducescatter_async grouped_reducescatter grouped_reducescatter_async
    reduce reduce_async gather gather_async scatter scatter_async
    send send_async recv recv_ recv_async recv_async_ join barrier poll synchronize shared_empty
    broadcast_object allgather_object start_timeline stop_timeline
    ProcessSet global_process_set add_process_set remove_process_set
    mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built cuda_built
    rocm_built
    HvdError HorovodInternalError Mismatch PeerLost Stalled ShutDown DuplicateName NativeUnavailable
""".split()

NUMPY_API = "install_as_horovod run LaunchError WorkerFailed FunctionFailed".split()

TORCH_API = """
    DistributedOptimizer broadcast_parameters broadcast_optimizer_state
    Compression Compressor sparse_allreduce_async SyncBatchNorm convert_sync_batchnorm
""".split()


def _promised(module: str) -> list[str]:
    return COMMON + (TORCH_API if module == "hvdlite.torch" else NUMPY_API)


@pytest.mark.parametrize("module", ["hvdlite", "hvdlite.torch"])
def test_the_public_list_is_what_was_promised(module: str) -> None:
    loaded = importlib.import_module(module)
    assert sorted(loaded.__all__) == sorted([*_promised(module), "__version__"])
    assert [name for name in loaded.__all__ if not hasattr(loaded, name)] == []


@pytest.mark.parametrize("module", ["hvdlite", "hvdlite.torch"])
def test_every_public_function_and_class_is_documented(module: str) -> None:
    loaded = importlib.import_module(module)
    bare = [name for name in loaded.__all__ if callable(getattr(loaded, name)) and not getattr(loaded, name).__doc__]
    assert bare == []


@pytest.mark.parametrize("module", ["hvdlite", "hvdlite.torch"])
def test_dir_has_the_public_names_only(module: str) -> None:
    loaded = importlib.import_module(module)
    assert dir(loaded) == sorted(loaded.__all__)


@pytest.mark.parametrize("module", ["hvdlite", "hvdlite.torch"])
def test_elastic_training_is_a_sentence(module: str) -> None:
    elastic = importlib.import_module(module).elastic
    for name in elastic.__all__:
        with pytest.raises(NotImplementedError, match="no elastic training; save checkpoints, and start the job again"):
            getattr(elastic, name)(print)


def test_another_name_is_an_error_of_the_usual_kind() -> None:
    with pytest.raises(AttributeError, match=r"^module 'hvdlite' has no attribute 'all_reduce'$"):
        importlib.import_module("hvdlite").all_reduce  # noqa: B018


@pytest.mark.parametrize("module", ["hvdlite", "hvdlite.torch"])
def test_tools_find_the_source_and_the_types_of_every_function(module: str) -> None:
    loaded = importlib.import_module(module)
    functions = [each for name in loaded.__all__ if inspect.isroutine(each := getattr(loaded, name))]
    assert len(functions) > 60
    for function in functions:
        assert f"def {function.__name__}(" in inspect.getsource(function)
        assert typing.get_type_hints(function)
