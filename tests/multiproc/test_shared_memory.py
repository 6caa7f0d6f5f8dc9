"""Registered memory in real jobs: what arrays are worth through failures, forks, frees and sessions."""

from __future__ import annotations

import gc
import os
import resource
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import hvdlite as hvd
from hvdlite import session
from tests.harness import ProcessRanks, pause_at, process_ranks, reached

MIB = 1 << 20


def _reserved_bytes() -> int:
    """The memory of the arena, of all ranks."""
    for entry in os.scandir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread has just closed it
            status = os.stat(entry.path)
            if os.readlink(entry.path).startswith("/memfd:hvdlite") and status.st_size > 1 << 30:
                return status.st_blocks * 512
    raise AssertionError("there is no arena")


def _kilobytes(file: str, name: str) -> int:
    return next(int(line.split()[1]) for line in Path(file).read_text().splitlines() if line.startswith(name))


def _ones(count: int) -> npt.NDArray[Any]:
    array = hvd.shared_empty(count)
    array.fill(1)
    return array


def _copied_bytes(process_set: hvd.ProcessSet = hvd.global_process_set) -> int:
    return session.current().group_of(process_set).statistics().counters["copied_bytes"]


def _reduce_arrays_and_views() -> tuple[int, list[float]]:
    hvd.init()
    before = _copied_bytes()
    array = _ones(3 * MIB).reshape(3, MIB)
    hvd.allreduce_(array, op=hvd.Sum)
    hvd.allreduce_(array[1], op=hvd.Sum)
    values = [float(row.max()) for row in array]
    copied = _copied_bytes() - before
    hvd.shutdown()
    array += 1  # it outlives the session
    hvd.init()
    hvd.allreduce_(array, op=hvd.Sum)  # ordinary memory in the next one
    values.append(float(array[0, 0]))
    new = _ones(MIB)
    hvd.allreduce_(new, op=hvd.Sum)
    values.append(float(new[-1]))
    hvd.shutdown()
    return copied, values


def test_arrays_and_views_of_them_are_reduced_without_a_copy_and_outlive_the_session() -> None:
    for outcome in process_ranks(2, _reduce_arrays_and_views):
        assert outcome.result() == (0, [2.0, 4.0, 2.0, 6.0, 2.0])


def _reduce_in_a_set() -> tuple[int, float]:
    outer = hvd.ProcessSet([2, 0])
    hvd.init(process_sets=[outer])
    array = _ones(MIB) * (hvd.rank() + 1)
    shared = hvd.shared_empty(MIB)
    shared[:] = array
    copied = 0
    if outer.included():
        hvd.allreduce_(shared, op=hvd.Sum, process_set=outer)
        copied = _copied_bytes(outer)
    hvd.barrier()
    hvd.shutdown()
    return copied, float(shared.max())


def test_a_process_set_reduces_in_the_memory_of_its_ranks_only() -> None:
    outcomes = process_ranks(3, _reduce_in_a_set)
    assert [outcome.result() for outcome in outcomes] == [(0, 4.0), (0, 2.0), (0, 4.0)]


def _reduce(count: int) -> tuple[bool, float]:
    """Returns whether ranks of this host share memory, and the sum over all ranks."""
    hvd.init()
    array = _ones(count)
    hvd.allreduce_(array, op=hvd.Sum)
    has_arena = session.shared_arena() is not None
    hvd.shutdown()
    return has_arena, float(array.min())


def test_on_several_hosts_ranks_share_memory_with_those_of_their_own() -> None:
    environ_by_rank = {rank: {"HVDLITE_HOSTID": host} for rank, host in enumerate("aba")}
    outcomes = process_ranks(3, _reduce, MIB, environ_by_rank=environ_by_rank)
    assert [outcome.result() for outcome in outcomes] == [(True, 3.0), (False, 3.0), (True, 3.0)]


def _without_arena(count: int) -> tuple[bool, float]:
    if int(os.environ["HVDLITE_RANK"]) == 0:
        used = _kilobytes("/proc/self/status", "VmSize") * 1024
        resource.setrlimit(resource.RLIMIT_AS, (used + 2048 * MIB, resource.RLIM_INFINITY))
    return _reduce(count)


def test_a_rank_with_too_few_addresses_has_ordinary_arrays() -> None:
    outcomes = process_ranks(2, _without_arena, MIB)
    assert [outcome.result() for outcome in outcomes] == [(False, 2.0), (True, 2.0)]


def _ask_for_too_much() -> list[str]:
    hvd.init()
    messages = []
    total = _kilobytes("/proc/meminfo", "MemTotal") * 1024  # what is available changes with what others do
    for nbytes in (1 << 50, total):
        with pytest.raises(MemoryError) as caught:
            hvd.shared_empty(nbytes, np.uint8)
        messages.append(str(caught.value))
    hvd.barrier()  # the other has asked as well
    array = _ones(MIB)
    hvd.allreduce_(array, op=hvd.Sum)
    assert (array == 2).all()
    hvd.shutdown()
    return messages


def test_more_than_the_machine_has_is_a_memory_error_with_advice() -> None:
    for outcome in process_ranks(2, _ask_for_too_much):
        for message in outcome.result():
            assert "free memory on this host" in message


def _allocate_and_free() -> tuple[int, int, int]:
    hvd.init()
    empty = _reserved_bytes()
    hvd.barrier()  # the other has looked as well: the ranks share what is counted
    rng = np.random.default_rng(hvd.rank())
    kept: list[npt.NDArray[Any]] = []
    for turn in range(10_000):
        kept.append(hvd.shared_empty(int(rng.integers(1, 30_000)), np.uint8))
        kept[-1][:] = turn % 251
        kept[-1][-1:] = 255
        if len(kept) > 40:
            freed = kept.pop(int(rng.integers(0, len(kept))))
            assert (freed[:-1] == freed[0]).all()
            del freed
    full = _reserved_bytes()
    threads = [threading.Thread(target=lambda part: part.clear(), args=(kept[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept.clear()
    gc.collect()
    hvd.barrier()
    after = _reserved_bytes()
    hvd.shutdown()
    return empty, full, after


def test_ten_thousand_allocations_and_frees_return_all_memory() -> None:
    for outcome in process_ranks(2, _allocate_and_free):
        empty, full, after = outcome.result()
        assert empty == after == 0
        assert 0 < full < 8 * MIB


def _huge_bytes() -> int:
    """Returns the bytes of an array of 16 MiB that are mapped by huge pages."""
    hvd.init()
    array = _ones(4 * MIB)  # of four bytes
    hvd.barrier()
    mapped = _kilobytes("/proc/self/smaps_rollup", "ShmemPmdMapped:") << 10
    hvd.allreduce_(array, op=hvd.Sum)
    assert (array == 2).all()
    hvd.shutdown()
    return mapped


def _gives_huge_pages() -> bool:
    """True if this system has `MADV_COLLAPSE`, and the administrator allows it for shared memory."""
    version = tuple(int(number) for number in os.uname().release.split(".")[:2])
    setting = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    return version >= (6, 1) and setting.exists() and "[deny]" not in setting.read_text()


@pytest.mark.skipif(not _gives_huge_pages(), reason="needs a kernel that gives huge pages for shared memory")
def test_long_arrays_are_in_huge_pages() -> None:
    for outcome in process_ranks(2, _huge_bytes):
        assert outcome.result() >= 8 * MIB


def _fork() -> tuple[int, float]:
    hvd.init()
    array, other = _ones(MIB), _ones(100)
    hvd.barrier()
    child = os.fork()
    if child == 0:
        intact = bool((array == 1).all())
        array[:] = 5  # its own copy
        other = hvd.shared_empty(10)  # ordinary
        other[:] = 3
        os._exit(0 if intact and bool((array == 5).all()) else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    hvd.allreduce_(array, op=hvd.Sum)
    assert (other == 1).all()
    hvd.shutdown()
    return code, float(array.max())


def test_a_forked_child_reads_the_arrays_and_its_writes_are_its_own() -> None:
    for outcome in process_ranks(2, _fork):
        assert outcome.result() == (0, 2.0)


def _reduce_until_a_peer_is_lost() -> tuple[bool, bool]:
    hvd.init()
    array, bystander = _ones(8 * MIB), _ones(1000)
    reached("reducing")
    error: hvd.HorovodInternalError | None = None
    while error is None:
        try:
            hvd.allreduce_(array, op=hvd.Max)
        except hvd.HorovodInternalError as caught:
            error = caught
    array[:] = 3  # the user goes on, with a checkpoint for example
    pause_at("restored")
    was_kept = bool((array == 3).all() and (bystander == 1).all())
    hvd.shutdown()
    return isinstance(error, hvd.PeerLost), was_kept and bool((array == 3).all())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_memory_of_a_survivor_is_its_own_again(how: signal.Signals) -> None:
    """Wherever the signal meets the other rank; a stopped one is resumed after the survivor has gone on."""
    for _ in range(2):
        with ProcessRanks(2, _reduce_until_a_peer_is_lost) as ranks:
            ranks.wait_for("reducing")
            threading.Event().wait(0.3)  # in the middle of the reductions
            ranks.send_signal(1, how)
            ranks.wait_for("restored", 0)
            if how == signal.SIGSTOP:
                ranks.send_signal(1, signal.SIGCONT)
                ranks.wait_for("restored", 1)
                ranks.release(1)
            ranks.release(0)
            survivor = ranks.join()[0]
        assert survivor.result() == (True, True)


def _reduce_two_gibibytes() -> bool:
    hvd.init()
    array = hvd.shared_empty(2048 * MIB + 5, np.uint8)
    array.fill(3)
    hvd.allreduce_(array, op=hvd.Sum)
    is_right = all(bool((part == 6).all()) for part in np.array_split(array, 16))
    hvd.shutdown()
    return is_right


def test_arrays_of_more_than_two_gibibytes() -> None:
    for outcome in process_ranks(2, _reduce_two_gibibytes):
        assert outcome.result()
