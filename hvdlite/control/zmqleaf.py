"""Any other rank's end of the control links across hosts: a DEALER to rank 0, and a new one when that ends."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import suppress

import zmq

from hvdlite.control.delivery import Delivery
from hvdlite.control.greeting import TOKEN_BYTES, Hello, Refused, digest, hello, read_refusal
from hvdlite.control.link import Lost, Received
from hvdlite.control.liveness_probe import LivenessListener, LivenessProbe
from hvdlite.control.zmqlink import MonitoredSocket, ZmqLink
from hvdlite.errors import HorovodInternalError
from hvdlite.members.membership import Membership
from hvdlite.negotiation.wire import Header, Message, ProtocolError, Type, body_of, header_of
from hvdlite.net import curve
from hvdlite.net.listening import LOOPBACK, split
from hvdlite.scope import Scope
from hvdlite.settings import Settings

_REDIAL_S = 0.1  # between two connections


class ZmqLeafLink(ZmqLink):
    """Opens its liveness listener at once; `join` connects. The root uses ``address``.

    Messages wait until the root welcomes a connection.
    """

    def __init__(self, membership: Membership, options: Settings) -> None:
        super().__init__(membership, options)
        self._root = ""
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._delivery = Delivery(membership.session)
        self._connection: MonitoredSocket | None = None
        self._dialled_at = 0.0
        self._dial_at: float | None = None
        self._is_welcome = False
        self._probe: LivenessProbe | None = None
        self._is_over = False
        try:
            self._liveness_listener = LivenessListener(options.address or LOOPBACK, options.ports)
        except BaseException:
            self._unread.close()
            self.inbox.close()
            self._context.term()
            raise
        self._answer(self._liveness_listener.fileno(), self._liveness_listener.drop_callers)
        self.address = f"{digest(self._token)} {self._liveness_listener.endpoint}"

    def join(self, root: str, scope: Scope) -> None:
        """Connects to the root at address ``root``. Raises HorovodInternalError if it does not answer in time."""
        self._root = root
        self._dial()
        rank = self._membership.number
        while not self._is_welcome:
            if scope.is_over:
                raise HorovodInternalError(
                    f"rank {rank} got no answer from rank 0 at {root} in time. Check for a firewall between them; "
                    "HVDLITE_ADDRESS (hvdrun: --network-interface) sets the address, HVDLITE_PORT_RANGE the ports"
                )
            self._sleep(scope)
            for item in self.receive():
                if isinstance(item, Lost):
                    raise HorovodInternalError(f"rank {rank} lost rank 0 during init(): {item.cause}")
                raise ProtocolError("rank 0 sent something before all ranks had come")

    @property
    def due(self) -> float | None:
        probe, dial_at = self._probe, self._dial_at  # a turn may change them meanwhile
        return None if probe is None else min(probe.due, dial_at or probe.due)

    def send(self, message: Message) -> None:
        if not self._is_over:
            self._transmit(self._delivery.send(*body_of(message)))

    def receive(self) -> Iterator[Received | Lost]:
        self._look()
        if self._is_over or self._connection is None:
            return
        has_ended = self._has_events and self._read_events(self._connection)
        while True:
            try:
                frame = self._connection.socket.recv(zmq.NOBLOCK)  # a poll before it costs pyzmq more than a failure
            except zmq.Again:
                break
            try:
                message = self._read(frame)
            except Refused:
                self._give_up()
                raise
            except ProtocolError as error:
                yield self._lose(f"it broke the protocol: {error}")
                return
            if message is not None:
                yield 0, message
        if has_ended:
            self._part()
        if self._probe is None:
            return
        if (cause := self._probe.look()) is not None:
            yield self._lose(cause)
        elif self._dial_at is not None and time.monotonic() >= self._dial_at:
            self._dial()

    def _read(self, frame: bytes) -> Message | None:
        header = header_of(frame, self._session)
        if header.kind == Type.REFUSAL:
            raise Refused(read_refusal(frame))
        if (header.kind == Type.WELCOME) is self._is_welcome:
            raise ProtocolError("a connection does not begin with one welcome")
        if not self._is_welcome:
            self._resume(header)
            return None
        message = self._delivery.receive(header, frame)
        if (receipt := self._delivery.receipt()) is not None:
            self._transmit(receipt)
        return message

    def _read_events(self, connection: MonitoredSocket) -> bool:
        """True if the connection has ended, which is the only monitored event."""
        self._has_events = False
        return bool(list(connection.events()))

    # ---- connections

    def _dial(self) -> None:
        self._hang_up(linger_ms=0)
        self._dial_at = None
        self._dialled_at = time.monotonic()
        socket = self._open(zmq.DEALER, split(self._root)[0])
        curve.dial(socket, self._membership.key_for("control"))
        self._connection = self._monitor(socket, zmq.EVENT_DISCONNECTED)
        socket.connect(self._root)
        own = Hello(self._membership.rank, self._membership.size, self._token)
        socket.send(hello(own, self._delivery.sent, self._delivery.received, self._session))
        self._recheck(socket)

    def _resume(self, header: Header) -> None:
        """Sends the messages that the root has not received, after its welcome."""
        self._is_welcome = True
        self._end_probe()
        for frame in self._delivery.resume(header.received):
            self._transmit(frame)

    def _part(self) -> None:
        """Schedules the next attempt after the connection has ended, and starts to probe the root."""
        self._is_welcome = False
        self._dial_at = self._dialled_at + _REDIAL_S
        if self._probe is None:
            self._probe = LivenessProbe(self._root, self._options)

    def _lose(self, cause: str) -> Lost:
        self._give_up()
        return Lost(0, cause)

    def _give_up(self) -> None:
        """Closes everything for good, so that a root that comes back notices it at once."""
        self._is_over = True
        self._is_welcome = False
        self._end_probe()
        self._close_liveness_listener()
        self._hang_up(linger_ms=0)

    def _hang_up(self, linger_ms: int | None) -> None:
        if self._connection is not None:
            self._discard(self._connection, linger_ms)
            self._connection = None

    def _close_liveness_listener(self) -> None:
        self._ignore(self._liveness_listener.fileno())
        self._liveness_listener.close()

    def _end_probe(self) -> None:
        if self._probe is not None:
            self._probe.close()
            self._probe = None

    def _transmit(self, frame: bytes) -> None:
        if self._is_welcome and self._connection is not None:
            with suppress(zmq.Again):  # libzmq has given up the connection, which its monitor reports
                self._connection.socket.send(frame, zmq.NOBLOCK)
            self._recheck(self._connection.socket)

    # ---- for ZmqLink

    def _awaits_receipts(self) -> bool:
        return self._delivery.has_unacknowledged and not self._is_over

    def _release(self) -> None:
        self._end_probe()
        self._close_liveness_listener()
        self._hang_up(linger_ms=None if self._is_welcome else 0)
