"""Stands between two neighbours of a ring, and does to their connections what networks do."""

from __future__ import annotations

import random
import selectors
import socket
import struct
import sys
import threading
from contextlib import suppress
from itertools import chain
from types import TracebackType
from typing import Final, Self

from hvdlite.net.listening import endpoint
from hvdlite.net.sockets import dial

_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER without time: closing sends a reset
_PIECE_BYTES: Final = 64 << 10


class Meddler:
    """Passes on what comes to ``name`` to whoever listens at ``target``, in both directions.

    ``flip_every``: one bit of about every so many bytes towards the target is wrong, 0 for none; the first
    ``spared_bytes`` of a connection are not touched, nor is any but the first ``damaged_connections`` that come. While
    ``is_lossy``, what comes towards the target is lost, and ``lost_bytes`` counts it. ``heard`` is all that came
    towards the target.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=socket.SOMAXCONN)
        self.name = endpoint(*self._listener.getsockname())
        self.flip_every = 0
        self.spared_bytes = 0
        self.damaged_connections = sys.maxsize
        self.is_lossy = False
        self.lost_bytes = 0
        self.heard = bytearray()
        self._links: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()  # guards _links
        self._threads: list[threading.Thread] = []
        self._server = threading.Thread(target=self._serve)
        self._server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.refuse()
        self.reset()
        for thread in self._threads:
            thread.join()

    def refuse(self) -> None:
        """Stops listening at ``name``."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._server.join()

    def reset(self, most: int = sys.maxsize) -> None:
        """Ends all connections, or so many that are there longest, with what is on its way in them; each once.

        A connection may have been made again before the thread of the one that was reset has noticed its end.
        """
        with self._lock:
            ended, self._links = self._links[:most], self._links[most:]
            for link in chain.from_iterable(ended):
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                with suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        with self._listener, suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                number = len(self._threads)
                self._threads.append(threading.Thread(target=self._pass_on_both_ways, args=(caller, number)))
                self._threads[-1].start()

    def _pass_on_both_ways(self, caller: socket.socket, number: int) -> None:
        with caller, dial(self._target) as callee, selectors.DefaultSelector() as ready:
            callee.setblocking(True)
            with self._lock:
                self._links.append((caller, callee))
            ready.register(caller, selectors.EVENT_READ, callee)
            ready.register(callee, selectors.EVENT_READ, caller)
            spared = self.spared_bytes
            while ready.get_map():
                for key, _ in ready.select():
                    assert isinstance(key.fileobj, socket.socket)
                    with suppress(OSError):
                        if data := key.fileobj.recv(_PIECE_BYTES):
                            if key.data is callee:
                                data, spared = self._meddle(number, data, spared), max(0, spared - len(data))
                            key.data.sendall(data)
                            continue
                        key.data.shutdown(socket.SHUT_WR)
                    ready.unregister(key.fileobj)
            with self._lock, suppress(ValueError):  # it has been reset
                self._links.remove((caller, callee))

    def _meddle(self, number: int, data: bytes, spared: int) -> bytes:
        self.heard += data
        if self.is_lossy:
            self.lost_bytes += len(data)
            return b""
        damaged = bytearray(data)
        is_damaged = self.flip_every > 0 and number < self.damaged_connections
        # One bit in each stretch of this many bytes, of which the last one is rarely whole.
        for begin in range(spared, len(data), self.flip_every) if is_damaged else ():
            place = begin + random.randrange(self.flip_every)
            if place < len(data):
                damaged[place] ^= 1 << random.randrange(8)
        return bytes(damaged)
