"""A man in the middle: a TCP proxy in threads that cuts, corrupts, records or holds back what goes through it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

from hvdlite.net.listening import endpoint, split

_LARGE_BYTES = 1000
_RESET = struct.pack("ii", 1, 0)  # struct linger: a close sends a reset


class Middleman:
    """Relays between clients of `address` and ``target``, both in ZeroMQ's notation. A context manager."""

    def __init__(self, target: str) -> None:
        self._target = split(target)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = endpoint("127.0.0.1", self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._may_pass = threading.Event()
        self._may_pass.set()
        self._flips = 0
        self._flips_large = False
        self.recorded: list[bytes] = []  # of each connection, what its dialler sent
        self._start(self._accept)

    def __enter__(self) -> Middleman:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._may_pass.set()
        self.cut()
        for thread in list(self._threads):
            thread.join()
        self.cut()

    def cut(self) -> None:
        """Resets all connections that are open."""
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    each.shutdown(socket.SHUT_RD)
                each.close()
            self._open.clear()

    def flip(self) -> None:
        """Changes one bit in what passes next."""
        self._flips += 1

    def flip_large(self) -> None:
        """Changes one bit in all that passes from now on in pieces larger than those that begin a connection."""
        self._flips_large = True

    def hold(self) -> None:
        """Lets nothing pass any more, and ends nothing."""
        self._may_pass.clear()

    def let(self) -> None:
        """Takes back `hold`."""
        self._may_pass.set()

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            with self._lock:
                self._open += (near, far)
                self.recorded.append(b"")
                number = len(self.recorded) - 1
            self._start(self._forward, near, far, number)
            self._start(self._forward, far, near, -1)

    def _forward(self, source: socket.socket, sink: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._may_pass.wait()
                if number >= 0:
                    self.recorded[number] += data
                if (self._flips and len(data) > 20) or (self._flips_large and len(data) > _LARGE_BYTES):
                    self._flips = max(0, self._flips - 1)
                    data = data[:-3] + bytes([data[-3] ^ 16]) + data[-2:]
                sink.sendall(data)
            self._may_pass.wait()  # an end does not pass either
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
