"""One side of a handshake over one connection."""

from __future__ import annotations

import socket
from typing import Final, Generic, Protocol, TypeVar

_HUNG_UP: Final = "it hung up during the handshake, as it does on callers that do not have the secret of this job"


class Party(Protocol):
    """A state machine of `handshake`: it ``awaits`` so many bytes, and 0 when it is done."""

    awaits: int

    def take(self, message: bytes) -> bytes: ...


P = TypeVar("P", bound=Party)


class HandshakeIO(Generic[P]):
    """``party`` uses ``sock``, which is not blocking, until ``deadline`` (monotonic); the caller closes it.

    It reads no byte beyond the last message: those belong to the connection's next user.
    """

    def __init__(self, sock: socket.socket, party: P, deadline: float) -> None:
        self.sock = sock
        self.party = party
        self.deadline = deadline
        self._came = b""

    def go_on(self) -> bool:
        """Reads and answers messages. True once the handshake is over.

        Raises Refused, or OSError when the connection ended.
        """
        while self.party.awaits:
            try:
                piece = self.sock.recv(self.party.awaits - len(self._came))
            except BlockingIOError:
                return False
            if not piece:
                raise ConnectionResetError(_HUNG_UP)
            self._came += piece
            if len(self._came) == self.party.awaits:
                answer, self._came = self.party.take(self._came), b""
                self.send(answer)
        return True

    def send(self, message: bytes) -> None:
        """Sends a message. Raises OSError if the connection ended or, young as it is, has no room for it."""
        if self.sock.send(message, socket.MSG_NOSIGNAL) < len(message):
            raise ConnectionError("the connection took a part of a message")
