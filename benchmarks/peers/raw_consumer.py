"""Plain `sqlite3` that waits for a datagram and claims: `python -m benchmarks.peers.raw_consumer FILE EARS BELL`."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

from benchmarks.latency_probe import mouth
from benchmarks.peers.raw_sqlite import CLAIM, connect


def main() -> None:
    file, ears, bell = sys.argv[1:]
    connection = connect(Path(file))
    say = mouth(ears)
    woken = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    woken.bind(bell)
    print("ready", flush=True)
    while woken.recv(16):
        # The claim has reached the disk when its handler begins, as Headgate's has.
        for number, _ in connection.execute(CLAIM, (time.time_ns(), 1)).fetchall():
            say(number)


main()
