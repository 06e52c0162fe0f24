"""A worker whose process tasks are in the program itself, which child processes cannot import by its name."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from headgate import Headgate, RetryPolicy

options: dict[str, Any] = json.loads(sys.argv[1])
app = Headgate(options["url"], retry=RetryPolicy(retries=0))
app.queue("computing", concurrency=2)


@app.task(queue="computing", process=True)
def spin(word: str) -> str:
    """Says who it is, and computes for longer than any test waits."""
    os.write(1, f"spinning {json.dumps([word, os.getpid()])}\n".encode())
    until = time.monotonic() + options.get("spin", 600)
    while time.monotonic() < until:
        pass
    return word


@app.task(queue="computing", process=True)
def who() -> int:
    return os.getpid()


def main() -> None:
    asyncio.run(app.run(grace=options.get("grace", 0.1)))


if __name__ == "__main__" or options.get("unguarded"):
    main()
