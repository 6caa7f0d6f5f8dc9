"""Somebody who reads along on a network: ``sniffer.py INTERFACE FILE`` writes all packets that pass to a file."""

from __future__ import annotations

import socket
import sys

_ALL_PROTOCOLS = 0x0003


def main(interface: str, file: str) -> None:
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS)) as link,
        open(file, "wb") as out,
    ):
        link.bind((interface, 0))
        print("ready", flush=True)
        while True:
            out.write(link.recv(1 << 17))


if __name__ == "__main__":
    main(*sys.argv[1:])
