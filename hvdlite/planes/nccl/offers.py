"""What ranks exchange to make a communicator: which GPU each uses, and what NCCL needs or lacks.

They exchange offers within their first collective over GPUs, because before it a rank need not have chosen a GPU or
loaded NCCL. Offers travel over the group's plane for CPU memory, and all ranks draw the same conclusion from them.
NCCL does not: it fails on some ranks, hangs on others, and names neither.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from hvdlite.errors import HorovodInternalError
from hvdlite.members.ranges import named
from hvdlite.net.untrusted import parse
from hvdlite.planes.base import DataPlane
from hvdlite.planes.nccl.library import dotted
from hvdlite.tensors.buffer import address_of

K = TypeVar("K", bound=Hashable)

ID_BYTES: Final = 128  # of a unique id
_BYTES: Final = 4096  # of an offer: the same on all ranks, so that no rank must send its length first
_LONGEST: Final = 400  # characters of a reason, each of which JSON may make six bytes of
_LONGEST_ID: Final = 64  # of a host's id
_HASHED_ID: Final = 1023  # bytes of it that NCCL looks at
_SHARES: Final = 23000  # the first NCCL that can run several ranks on one GPU
_NAMED: Final = 4  # groups of ranks in one error message


class Offer(NamedTuple):
    """One rank's offer. With a ``lack``, the reason why the rank cannot use NCCL, other fields may be missing.

    ``gpu`` is CUDA's UUID, and ``ordinal`` the GPU's number among the ``visible`` GPUs of the rank's process.
    ``host_id`` and ``may_share`` come from NCCL's own variables. The first rank has the ``unique`` id, in hexadecimal
    digits.
    """

    lack: str = ""
    version: int = 0
    gpu: str = ""
    ordinal: int = 0
    visible: int = 0
    host_id: str = ""
    may_share: bool = False
    unique: str = ""


def sharing(environ: Mapping[str, str] = os.environ, of_system: Path = Path("/etc/nccl.conf")) -> dict[str, Any]:
    """Returns the fields of an `Offer` that NCCL's variables set, in the environment or in NCCL's files."""
    of_user = Path(environ.get("NCCL_CONF_FILE") or Path.home() / ".nccl.conf")
    variables = {**_settings_in(of_system), **_settings_in(of_user), **environ}
    shares = variables.get("NCCL_MULTI_RANK_GPU_ENABLE", "").strip() not in ("", "0")
    host_id = variables.get("NCCL_HOSTID", "")
    if len(host_id) > _LONGEST_ID:
        host_id = hashlib.sha256(os.fsencode(host_id)[:_HASHED_ID]).hexdigest()
    return {"host_id": host_id, "may_share": shares}


def _settings_in(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return {}
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def exchange(own: Offer, over: DataPlane) -> list[Offer]:
    """Returns the offers of all ranks of the plane ``over``. Raises HorovodInternalError if one is not an offer."""
    text = json.dumps(own._replace(lack=own.lack[:_LONGEST]), ensure_ascii=False).encode(errors="surrogatepass")
    return [_parsed(each, rank) for rank, each in enumerate(_gathered(text.ljust(_BYTES, b"\0"), over))]


def do_all(is_so: bool, over: DataPlane) -> bool:
    """Returns whether it is so on all ranks of the plane ``over``."""
    return all(each == b"\1" for each in _gathered(bytes([is_so]), over))


def _gathered(own: bytes, over: DataPlane) -> list[bytes]:
    """Returns the bytes of each rank; all ranks send equally many."""
    length = len(own)
    whole = np.zeros((over.size, length), np.uint8)
    whole[over.rank] = np.frombuffer(own, np.uint8)
    begin = address_of(whole)
    places = range(begin, begin + whole.nbytes, length)
    rows = [(place if rank == over.rank else 0, place, length) for rank, place in enumerate(places)]
    over.allgather([np.array([row], np.uint64) for row in rows])
    return [each.tobytes() for each in whole]


def obstacle(offers: Sequence[Offer], ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """Returns why the ranks cannot make a communicator, and what to do; empty if they can.

    ``ranks`` are their numbers in the job, and ``hosts`` the names of their hosts.
    """
    numbers = range(len(offers))
    if lacking := _grouped(lambda rank: offers[rank].lack, (rank for rank in numbers if offers[rank].lack)):
        named_lacks = "; ".join(f"{_ranks(having, ranks)}: {lack}" for lack, having in lacking[:_NAMED])
        return (
            f"NCCL cannot be used ({named_lacks}); repair that, or set HVDLITE_GPU_PLANE=staged, which does without it"
        )
    versions = _grouped(lambda rank: offers[rank].version, numbers)
    if len(versions) > 1:
        found = "; ".join(f"{dotted(version)} on {_ranks(having, ranks)}" for version, having in versions[:_NAMED])
        return f"NCCL needs the same version on all ranks, but there is {found}; install the same everywhere."
    shared = [
        having
        for _, having in _grouped(lambda rank: (offers[rank].gpu, offers[rank].host_id), numbers)
        if len(having) > 1 and not all(offers[rank].may_share and offers[rank].version >= _SHARES for rank in having)
    ]
    return "; ".join(_of_one_gpu(having, offers, ranks, hosts) for having in shared[:_NAMED])


def _of_one_gpu(having: Sequence[int], offers: Sequence[Offer], ranks: Sequence[int], hosts: Sequence[str]) -> str:
    first = having[0]
    gpu, host = offers[first], hosts[first]
    on_host = hosts.count(host)
    shared = f"{_ranks(having, ranks)} use one GPU, number {gpu.ordinal} of {host} ({gpu.gpu})"
    if gpu.visible >= on_host:
        return f"{shared}; add torch.cuda.set_device(hvd.local_rank()) after hvd.init(), before anything is on a GPU"
    return (
        f"{shared}, and see {gpu.visible} GPU(s) for {on_host} ranks there; start one rank for each GPU, as hvdrun -np "
        "auto does, or set NCCL_MULTI_RANK_GPU_ENABLE=1 (NCCL 2.30)"
    )


def _grouped(key: Callable[[int], K], numbers: Iterable[int]) -> list[tuple[K, list[int]]]:
    found: dict[K, list[int]] = {}
    for number in numbers:
        found.setdefault(key(number), []).append(number)
    return list(found.items())


def _ranks(members: Sequence[int], ranks: Sequence[int]) -> str:
    return named(ranks[member] for member in members)


def _parsed(data: bytes, rank: int) -> Offer:
    try:
        found = parse(data.rstrip(b"\0"))
    except ValueError:
        found = None
    match found:
        case [str(), int(), str(), int(), int(), str(), bool(), str()]:
            offer = Offer(*found)
            if rank or offer.lack or _is_id(offer.unique):
                return offer
    raise HorovodInternalError(
        f"member {rank} of the group made no valid offer for NCCL; is its hvdlite the same as here?"
    )


def _is_id(text: str) -> bool:
    try:
        return len(bytes.fromhex(text)) == ID_BYTES
    except ValueError:
        return False
