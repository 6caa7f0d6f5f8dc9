"""Two ends of a TCP connection for tests of faults: ``talk.py serve PORT`` echoes what ``talk.py ask ...`` sends.

``talk.py ask ADDRESS PORT COUNT BYTES PATIENCE_S`` prints JSON: the ``seconds`` that each message took to come back,
how many were ``altered``, and the ``error`` that ended it, such as ``timed out``.
"""

from __future__ import annotations

import json
import socket
import sys
import time


def serve(port: str) -> None:
    with socket.create_server(("", int(port))) as listener:
        print("ready", flush=True)
        while True:
            link, _ = listener.accept()
            with link:
                while data := link.recv(1 << 16):
                    link.sendall(data)


def ask(address: str, port: str, count: str, length: str, patience_s: str) -> None:
    seconds, altered, error = [], 0, ""
    sent = bytes(index % 251 for index in range(int(length)))
    try:
        with socket.create_connection((address, int(port)), float(patience_s)) as link:
            for _ in range(int(count)):
                begun, received = time.monotonic(), b""
                link.sendall(sent)
                while len(received) < len(sent):
                    piece = link.recv(1 << 16)
                    if not piece:
                        raise ConnectionError("closed")
                    received += piece
                seconds.append(time.monotonic() - begun)
                altered += received != sent
    except OSError as failure:
        error = failure.strerror or str(failure)
    print(json.dumps({"seconds": seconds, "altered": altered, "error": error}))


if __name__ == "__main__":
    {"serve": serve, "ask": ask}[sys.argv[1]](*sys.argv[2:])
