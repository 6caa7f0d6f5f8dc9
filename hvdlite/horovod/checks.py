"""``horovod.common.util``: the functions that scripts and test suites call."""

from __future__ import annotations

import functools
import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeVar

from hvdlite import builds
from hvdlite.tensors.dtypes import Average, Sum

T = TypeVar("T")

_FRONT_ENDS = ("torch", "tensorflow")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """True if hvdlite has the front end ``horovod.<ext_base_name>`` and the framework is installed."""
    return ext_base_name in _FRONT_ENDS and importlib.util.find_spec(ext_base_name) is not None


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: Any) -> None:
    """Raises ImportError unless ``ext_name``, such as ``horovod.torch``, works here; ignores the other arguments."""
    if not extension_available(ext_name.removeprefix("horovod.")):
        raise ImportError(f"{ext_name} is not available: hvdlite has {', '.join(_FRONT_ENDS)}, if it is installed")


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """True if this process seems to have a GPU, and ``horovod.<ext_base_name>`` takes tensors on it."""
    return ext_base_name == "torch" and extension_available(ext_base_name) and builds.cuda_built()


def _taking_verbose(built: Callable[[], T]) -> Callable[..., T]:
    def call(verbose: bool = False) -> T:
        return built()

    call.__name__, call.__doc__ = built.__name__, built.__doc__
    return call


mpi_built = _taking_verbose(builds.mpi_built)
gloo_built = _taking_verbose(builds.gloo_built)
nccl_built = _taking_verbose(builds.nccl_built)
ddl_built = _taking_verbose(builds.ddl_built)
ccl_built = _taking_verbose(builds.ccl_built)
cuda_built = _taking_verbose(builds.cuda_built)
rocm_built = _taking_verbose(builds.rocm_built)


def _cache(f: Callable[..., T]) -> Callable[..., T]:
    """Remembers the results of ``f`` by its arguments."""
    return functools.cache(f)


@contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Sets environment variables inside the ``with`` block, except those that are None."""
    values = {name: value for name, value in kwargs.items() if value is not None}
    before = {name: os.environ.get(name) for name in values}
    try:
        _set_variables(values)
        yield
    finally:
        _set_variables(before)


def _set_variables(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def is_iterable(x: Any) -> bool:
    """True if ``iter(x)`` works."""
    try:
        iter(x)
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """True if a version is at least ``target``, which has three parts. Raises ValueError for other arguments."""
    from packaging import version

    if not isinstance(ver, str) or not isinstance(target, str) or target.count(".") != 2:
        raise ValueError(f"expected a version, and one such as '1.2.3' to compare it with, not {ver!r} and {target!r}")
    return version.parse(ver) >= version.parse(target)


def split_list(l: Sequence[T], n: int) -> list[Sequence[T]]:  # noqa: E741 - Horovod's name
    """Splits ``l`` into ``n`` parts whose lengths differ by at most one, longer ones first."""
    length, longer = divmod(len(l), n)
    starts = [part * length + min(part, longer) for part in range(n + 1)]
    return [l[begin:end] for begin, end in pairwise(starts)]


def num_rank_is_power_2(num_rank: int) -> bool:
    """True if ``num_rank`` is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Any:
    """The function ``(op, average) -> op`` behind the deprecated argument ``average``."""

    def choose(op: int | None, average: bool | None) -> int:
        if op is not None and average is not None:
            raise ValueError("op and average exclude each other; pass op alone, average is deprecated")
        if op is not None:
            return op
        if average is not None:
            warnings.warn("average is deprecated; pass op instead", DeprecationWarning, stacklevel=2)
        return Sum if average is False else Average

    return choose
