"""Somebody who reads along on a network: ``sniffer.py INTERFACE FILE`` writes all packets that pass to a file.

After SIGTERM it ends once it has written what has passed by then.
"""

from __future__ import annotations

import signal
import socket
import sys

_ALL_PROTOCOLS = 0x0003
_SO_RCVBUFFORCE = 33
_ROOM_BYTES = 64 << 20  # for what passes while this process has no processor


def main(interface: str, file: str) -> None:
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS)) as link,
        open(file, "wb") as out,
    ):
        link.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _ROOM_BYTES)
        link.bind((interface, 0))
        link.settimeout(0.1)
        print("ready", flush=True)
        while True:
            try:
                out.write(link.recv(1 << 17))
            except TimeoutError:
                if told:
                    return


if __name__ == "__main__":
    main(*sys.argv[1:])
