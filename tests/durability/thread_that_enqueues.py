"""Threads of a process that enqueue as fast as they can; each acknowledged job is a line in a file of the process."""

from __future__ import annotations

import json
import os
import sys
import threading

from headgate import Headgate


def main(url: str, acknowledged: str, threads: int, name: str) -> None:
    app = Headgate(url)

    @app.task
    async def note(number: int, of: str) -> None: ...

    log = os.open(acknowledged, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def enqueue(thread: int) -> None:
        of = f"{name}-{thread}"
        number = 0
        while True:
            note.sync.enqueue(number, of)
            os.write(log, f"{of} {number}\n".encode())
            number += 1

    with app.open():
        started = [threading.Thread(target=enqueue, args=(thread,), daemon=True) for thread in range(threads)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
