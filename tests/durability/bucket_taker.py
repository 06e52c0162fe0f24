"""A process that takes from one bucket as fast as it can, and says when it was granted what, and when it was refused.

It takes for so many seconds, and on a busy machine until it was granted and refused something. Refusals come in lines,
of which there may be many.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from headgate.clock import SystemClock
from headgate.limits.bucket_store import Bucket
from headgate.limits.standalone.limiter import open_store
from headgate.limits.strict_rate import StrictRate

IN_A_LINE = 500


async def main(options: dict[str, Any]) -> None:
    store = open_store(options["url"], None)
    await store.open()
    bucket = Bucket(options["limit"], "", StrictRate(options["count"], per=options["per"], margin=0).rule)
    print_line("ready")
    await asyncio.to_thread(sys.stdin.readline)
    clock = SystemClock()
    ends = clock.monotonic() + round(options["seconds"] * 1_000_000)
    granted: list[int] = []
    refused: list[int] = []

    async def take() -> None:
        while clock.monotonic() < ends or not granted or not refused:
            taken = await store.take(bucket)
            if taken.granted:
                granted.append(taken.now)
            else:
                refused.append(taken.now)

    await asyncio.gather(*(take() for _ in range(options["tasks"])))
    await store.close()
    print_line("granted", *granted)
    for first in range(0, len(refused), IN_A_LINE):
        print_line("refused", *refused[first : first + IN_A_LINE])


def print_line(word: str, *values: Any) -> None:
    sys.stdout.write(f"{word} {json.dumps(values)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
