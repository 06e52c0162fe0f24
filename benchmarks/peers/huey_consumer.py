"""huey's consumer in a process of its own: `python -m benchmarks.peers.huey_consumer FILE SOCKET POLL`."""

from __future__ import annotations

import sys
from pathlib import Path

from huey.consumer import Consumer

from benchmarks.peers.huey_sqlite import probed


def main() -> None:
    file, receiver, poll = sys.argv[1:]
    huey, _ = probed(Path(file), receiver)
    delays = {} if poll == "None" else {"initial_delay": float(poll), "max_delay": float(poll)}
    consumer = Consumer(huey, workers=1, **delays)
    print("ready", flush=True)
    consumer.run()


main()
