"""A process that holds the lease of one key: in turns, writing its tokens to a file, or until it is told to let go."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from headgate import LeaseLost, Limiter, Mutex


async def main(options: dict[str, Any]) -> None:
    limiter = Limiter(Mutex("orders"), options["url"], lease=options["lease"])
    if "file" in options:
        await take_turns(limiter, options)
    else:
        await keep(limiter)
    await limiter.close()
    print_line("ended")


async def take_turns(limiter: Limiter, options: dict[str, Any]) -> None:
    file = Path(options["file"])

    async def hold() -> None:
        for _ in range(options["times"]):
            async with limiter.hold("42") as held:
                write(file, f"{held.fencing_token} begins")
                await asyncio.sleep(0.002)
                write(file, f"{held.fencing_token} ends")

    print_line("ready")
    await asyncio.to_thread(sys.stdin.readline)
    await asyncio.gather(*(hold() for _ in range(options["tasks"])))


def write(file: Path, line: str) -> None:
    with file.open("a") as log:
        log.write(f"{line}\n")


async def keep(limiter: Limiter) -> None:
    token = 0
    try:
        async with limiter.hold("42") as held:
            token = held.fencing_token
            print_line("held", token)
            await asyncio.to_thread(sys.stdin.readline)
    except LeaseLost as lost:
        print_line("lost", lost.token, token)


def print_line(word: str, *values: Any) -> None:
    sys.stdout.write(f"{word} {json.dumps(values)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
