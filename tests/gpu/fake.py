"""CUDA's driver and NCCL without a GPU: built from `fakes/`, loaded in place of the real ones, and their memory.

Two GPUs are threads of the process that has loaded the fakes; `fakes/` says what they do as the real ones do.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import hashlib
import shutil
import subprocess
import tempfile
import traceback
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdlite.cuda import driver
from hvdlite.planes.nccl import library as nccl
from tests.gpu import ptx, recorded
from tests.harness.patience import PATIENCE_S, until

Array = npt.NDArray[Any]

ILLEGAL_ADDRESS = 700
SOURCES = Path(__file__).parent / "fakes"
_FLAGS = ["-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread"]

_ADDRESS, _SIZE, _TEXT = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_char_p
_INTERPRETER = ctypes.CFUNCTYPE(
    ctypes.c_int, _TEXT, _TEXT, ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p, ctypes.c_size_t
)
_OF_CUDA = {
    "fake_fail": (None, (_TEXT, ctypes.c_int)),
    "fake_hold": (None, (ctypes.c_void_p,)),
    "fake_release": (None, (ctypes.c_void_p,)),
    "fake_begin_capture": (None, (ctypes.c_void_p,)),
    "fake_end_capture": (ctypes.c_bool, (ctypes.c_void_p,)),
    "fake_read": (ctypes.c_bool, (_ADDRESS, ctypes.c_void_p, _SIZE)),
    "fake_write": (ctypes.c_bool, (_ADDRESS, ctypes.c_void_p, _SIZE)),
    "fake_allocate": (_ADDRESS, (ctypes.c_int, _SIZE)),
    "fake_free": (None, (_ADDRESS,)),
    "fake_is_settled": (ctypes.c_bool, ()),
    "fake_streams": (ctypes.c_int, ()),
    "fake_events": (ctypes.c_int, ()),
    "fake_contexts": (ctypes.c_int, ()),
    "fake_contexts_on": (ctypes.c_int, (ctypes.c_int,)),
    "fake_allocations": (ctypes.c_int, ()),
    "fake_priority": (ctypes.c_int, (ctypes.c_void_p,)),
    "fake_current_device": (ctypes.c_int, ()),
    "fake_is_initialized": (ctypes.c_bool, ()),
    "fake_modules": (ctypes.c_int, ()),
    "fake_interpret": (None, (_INTERPRETER,)),
    "fake_heal": (None, ()),
    "fake_memory": (_SIZE, (ctypes.c_int, ctypes.POINTER(_ADDRESS), ctypes.POINTER(ctypes.c_void_p))),
    "fake_extents": (_SIZE, (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, _SIZE)),
}
_OF_NCCL = {
    "fake_communicators": (ctypes.c_int, ()),
    "fake_hang": (None, (ctypes.c_int,)),
    "fake_fail_later": (None, (ctypes.c_int,)),
}


def missing() -> str:
    """What the fakes lack; empty if nothing."""
    return "" if shutil.which("g++") else "the fakes of CUDA and NCCL need g++"


def built(cache: Path) -> Path:
    """The folder in ``cache`` that has the fakes as their sources are now; compiles them if it is not there."""
    sources = b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))
    digest = hashlib.sha256(sources + recorded.header().encode() + repr(_FLAGS).encode()).hexdigest()
    return made_once(cache / digest[:16], _build)


def made_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """Returns ``folder``, which ``build`` fills unless it is there. Other processes wait meanwhile."""
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            fresh = Path(tempfile.mkdtemp(dir=folder.parent))
            build(fresh)
            fresh.rename(folder)
    return folder


def _build(folder: Path) -> None:
    """Compiles both at once."""
    (folder / "recorded.h").write_text(recorded.header())
    compiling = [_compiling(folder, driver.SONAME, "cuda_*.cc"), _compiling(folder, nccl.SONAME, "nccl*.cc")]
    assert [process.wait(PATIENCE_S) for process in compiling] == [0, 0]


def _compiling(folder: Path, soname: str, sources: str) -> subprocess.Popen[bytes]:
    """Begins to compile. NCCL's fake finds that of CUDA in the process that loads both."""
    files = sorted(map(str, SOURCES.glob(sources)))
    return subprocess.Popen(["g++", *_FLAGS, f"-I{folder}", f"-Wl,-soname,{soname}", *files, "-o", folder / soname])


class Fakes:
    """The fakes in this process, with what they offer to tests: ``cuda`` and ``nccl`` have `fake.h`'s functions."""

    def __init__(self, folder: Path | str) -> None:
        """Loads what `built` has made. From then on hvdlite finds it in this process."""
        self.folder = folder = Path(folder)
        self.cuda = ctypes.CDLL(str(folder / driver.SONAME), mode=ctypes.RTLD_GLOBAL)
        self.nccl = ctypes.CDLL(str(folder / nccl.SONAME), mode=ctypes.RTLD_GLOBAL)
        for library, functions in ((self.cuda, _OF_CUDA), (self.nccl, _OF_NCCL)):
            for name, (result, arguments) in functions.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
        self._interpreter = _INTERPRETER(self._interpret)
        self.cuda.fake_interpret(self._interpreter)
        self.forget()

    def _interpret(self, text: bytes, name: bytes, blocks: int, threads: int, parameter: int, nbytes: int) -> int:
        """Runs a kernel, in the thread of its stream. Returns 0, or the error of an illegal address."""
        try:
            given = ctypes.string_at(parameter, nbytes)
            ptx.run(text.decode(), name.decode(), blocks, threads, given, DeviceView(self.cuda))
        except Exception:
            traceback.print_exc()
            return ILLEGAL_ADDRESS
        return 0

    def forget(self) -> None:
        """Makes hvdlite look for the libraries again."""
        for cached in (driver.loaded, driver.library, nccl.library):
            cached.cache_clear()

    def fail(self, name: str, status: int) -> None:
        """Makes the next call of ``name`` in this process return ``status``."""
        self.cuda.fake_fail(name.encode(), status)

    def settle(self) -> None:
        """Waits until nothing is freed any more that nobody can reach."""
        gc.collect()
        until(self.cuda.fake_is_settled)

    def held(self) -> dict[str, int]:
        """What was made and not given back in this process."""
        return {
            "contexts": self.cuda.fake_contexts(),
            "streams": self.cuda.fake_streams(),
            "events": self.cuda.fake_events(),
            "modules": self.cuda.fake_modules(),
            "allocations": self.cuda.fake_allocations(),
            "communicators": self.nccl.fake_communicators(),
        }

    def empty(self, shape: Sequence[int] | int, dtype: npt.DTypeLike, device: int = 0) -> GpuArray:
        """Makes an array on a GPU."""
        return GpuArray(self, shape, dtype, device)

    def array(self, values: Array, device: int = 0) -> GpuArray:
        """Copies ``values`` to a GPU, at once."""
        made = self.empty(values.shape, values.dtype, device)
        made.write(values)
        return made


class DeviceView:
    """The memory of the GPUs as their kernels see it, with the allocations of now."""

    _ROOM = 100_000

    def __init__(self, cuda: ctypes.CDLL) -> None:
        self._memories, begins, lengths = [], [], []
        for device in range(2):
            seen, own = ctypes.c_uint64(), ctypes.c_void_p()
            nbytes = cuda.fake_memory(device, ctypes.byref(seen), ctypes.byref(own))
            self._memories.append(
                (seen.value, np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(own.value)))
            )
            extents = np.empty((2, self._ROOM), np.uint64)
            count = cuda.fake_extents(device, extents[0].ctypes.data, extents[1].ctypes.data, self._ROOM)
            begins.append(extents[0, :count])
            lengths.append(extents[1, :count])
        self._begins = np.concatenate(begins)
        order = np.argsort(self._begins)
        self._begins = self._begins[order]
        self._ends = self._begins + np.concatenate(lengths)[order]

    def load(self, addresses: Array, nbytes: int) -> Array:
        memory, indices = self._at(addresses, nbytes)
        return memory[indices]

    def store(self, addresses: Array, words: Array) -> None:
        memory, indices = self._at(addresses, words.shape[1])
        memory[indices] = words

    def _at(self, addresses: Array, nbytes: int) -> tuple[Array, Array]:
        """The memory that all ``addresses`` are in, and the places of each one's bytes there."""
        assert (addresses % np.uint64(nbytes) == 0).all(), "misaligned"
        owner = np.searchsorted(self._begins, addresses, "right").astype(np.int64) - 1
        assert (owner >= 0).all(), "not allocated"
        assert (addresses + np.uint64(nbytes) <= self._ends[owner]).all(), "beyond an allocation"
        seen, memory = max(each for each in self._memories if each[0] <= addresses.min())
        offsets = (addresses - np.uint64(seen)).astype(np.int64)
        return memory, offsets[:, None] + np.arange(nbytes)


class GpuArray:
    """An array in the memory of a GPU, which its ``address`` does not let the host touch, and the owner of it."""

    def __init__(self, fakes: Fakes, shape: Sequence[int] | int, dtype: npt.DTypeLike, device: int) -> None:
        self._fakes = fakes
        like = np.empty(shape, dtype)
        self.shape, self.dtype, self.nbytes = like.shape, like.dtype, like.nbytes
        self.address = int(fakes.cuda.fake_allocate(device, max(self.nbytes, 1)))
        assert self.address, "the fake GPU has no memory left"
        self.finalizer = weakref.finalize(self, fakes.cuda.fake_free, self.address)

    def on_device(self) -> Array:
        """A copy of the values now, whatever the GPU's streams still do."""
        found = np.empty(self.shape, self.dtype)
        assert self._fakes.cuda.fake_read(self.address, found.ctypes.data, self.nbytes)
        return found

    def write(self, values: Array) -> None:
        held = np.ascontiguousarray(values)
        assert held.nbytes == self.nbytes
        assert self._fakes.cuda.fake_write(self.address, held.ctypes.data, self.nbytes)

    def data_ptr(self) -> int:
        return self.address

    def __len__(self) -> int:
        return self.nbytes
