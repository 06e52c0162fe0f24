"""One worker process of the cluster. It prints the events of its node for its parent."""

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
from tests.cluster.load import RunLog, Tasks
from tests.internals import node_of, swept_by


def print_line(word: str, *values: Any) -> None:
    os.write(1, f"{word} {json.dumps(values)}\n".encode())


async def main(options: dict[str, Any]) -> None:
    run_log = RunLog(Path(options.pop("run_log")))
    app = Headgate(options.pop("url"), **options.pop("settings"))
    Tasks(app, options.pop("seconds"), run_log)

    def print_event(event: Event) -> None:
        match event:
            case NodeStarted():
                node = node_of(app)
                assert node is not None
                run_log.node = lambda: node.id
                print_line("started", event.node)
            case NodeLost():
                run_log.lost(event.node)
                print_line("lost", event.node)
            case NodeDeclaredDead():
                run_log.disowned(event.node)
                print_line("disowned", event.node)
            case NodeStopping():
                print_line("stopping", {"swept": swept_by(node_of(app))})
            case StorageFailed():
                print_line("troubled", event.doing, event.error[:200])
            case _:
                pass

    app.subscribe(print_event)
    await app.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main(json.loads(sys.argv[1])))
