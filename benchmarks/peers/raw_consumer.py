"""Plain `sqlite3` that waits for a datagram and claims: `python -m benchmarks.peers.raw_consumer FILE SOCKET WAKE`."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

from benchmarks.latency_probe import start_sender
from benchmarks.peers.raw_sqlite import CLAIM, connect


def main() -> None:
    file, receiver, wake_path = sys.argv[1:]
    connection = connect(Path(file))
    send_start = start_sender(receiver)
    woken = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    woken.bind(wake_path)
    print("ready", flush=True)
    while woken.recv(16):
        # The claim has reached the disk when its handler begins, as Headgate's has.
        for number, _ in connection.execute(CLAIM, (time.time_ns(), 1)).fetchall():
            send_start(number)


main()
