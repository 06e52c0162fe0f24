"""One worker process of the cluster. It says to its parent what becomes of its node."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from headgate import Headgate
from headgate.jobs.event import Event, NodeDeclaredDead, NodeLost, NodeStarted, NodeStopping, StorageFailed
from tests.cluster.load import Ledger, Tasks


def print_line(word: str, *values: Any) -> None:
    os.write(1, f"{word} {json.dumps(values)}\n".encode())


async def main(options: dict[str, Any]) -> None:
    ledger = Ledger(Path(options.pop("ledger")))
    app = Headgate(options.pop("url"), **options.pop("settings"))
    Tasks(app, options.pop("seconds"), ledger)

    def print_event(event: Event) -> None:
        match event:
            case NodeStarted():
                node = app._node
                assert node is not None
                ledger.node = lambda: node.id
                print_line("started", event.node)
            case NodeLost():
                ledger.lost(event.node)
                print_line("lost", event.node)
            case NodeDeclaredDead():
                ledger.disowned(event.node)
                print_line("disowned", event.node)
            case NodeStopping():
                assert app._node is not None
                print_line("stopping", app._node.statistics())
            case StorageFailed():
                print_line("troubled", event.doing, event.error[:200])
            case _:
                pass

    app.subscribe(print_event)
    await app.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main(json.loads(sys.argv[1])))
