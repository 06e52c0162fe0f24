"""Producers that replace and keep under few keys, and workers in processes of their own that run what they find."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from random import Random

import asyncpg

from headgate import Headgate, RateLimit, RetryPolicy, current_job
from headgate.jobs.job import OnConflict
from tests.internals import store_of
from tests.until import until

POLICIES: list[OnConflict] = ["replace", "replace", "keep"]
KEYS = [f"key-{number}" for number in range(5)]


def made(url: str, schema: str, run_log: Path | None = None) -> Headgate:
    """The app of the producers, and of the workers, which write down what they ran."""
    app = Headgate(url, schema=schema, connections=6)

    def run(key: str, number: int) -> None:
        if run_log is not None:
            with run_log.open("a") as file:
                file.write(json.dumps([key, number]) + "\n")

    @app.task(retry=RetryPolicy(delays=[0.05] * 5))
    async def plain(key: str, number: int) -> None:
        await asyncio.sleep(0.002)
        if number % 7 == 0 and current_job().attempt < 3:
            raise ValueError(number)
        run(key, number)

    @app.task(limits=[RateLimit("300/s", key="{key}", burst=300)])
    async def gated(key: str, number: int) -> None:
        await asyncio.sleep(0.002)
        run(key, number)

    return app


class UniqueKeyLoad:
    """One run of it, and what is known afterwards."""

    def __init__(self, url: str, schema: str, folder: Path, *, rounds: int) -> None:
        self.url, self.schema, self.rounds = url, schema, rounds
        self.most_waiting = 0
        self._run_log = folder / "ran"
        self._run_log.touch()
        self._last: dict[tuple[str, str], set[int]] = {}
        self._replacing: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
        self._clock = 0
        self._ends: dict[tuple[str, str], list[tuple[int, int, int]]] = defaultdict(list)

    async def run(self) -> None:
        """Let each producer add so many jobs, and wait until nothing is left to run."""
        app = made(self.url, self.schema)
        async with app.open():
            workers: list[asyncio.subprocess.Process] = []
            try:
                for _ in range(2):
                    command = (sys.executable, "-m", __name__, self.url, self.schema, str(self._run_log))
                    worker = await asyncio.create_subprocess_exec(*command)
                    workers.append(worker)
                async with asyncio.TaskGroup() as group:
                    watching = group.create_task(self._watch())
                    producers = [group.create_task(self._produce(app, seed)) for seed in range(8)]
                    await asyncio.wait(producers)
                    watching.cancel()
                await self._drained(app)
            finally:
                for worker in workers:
                    worker.kill()
                    await worker.wait()
            assert await store_of(app).check() == []

    async def _produce(self, app: Headgate, seed: int) -> None:
        random = Random(seed)
        for _ in range(self.rounds):
            key, task = random.choice(KEYS), random.choice(["plain", "gated"])
            number = self._tick()
            policy = random.choice(POLICIES)
            delay = random.choice([None, None, 0.03])
            await (
                app.tasks[task].using(unique_key=key, on_conflict=policy, delay=delay).enqueue(f"{task}-{key}", number)
            )
            if policy == "replace":
                self._ends[task, key].append((number, self._tick(), number))
            await asyncio.sleep(random.uniform(0, 0.01))

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    async def _watch(self) -> None:
        connection = await asyncpg.connect(self.url)
        try:
            while True:
                most = await connection.fetchval(
                    f'SELECT max(found) FROM (SELECT count(*) AS found FROM "{self.schema}".job '
                    "WHERE state IN ('waiting', 'blocked') GROUP BY task, unique_key) AS each"
                )
                self.most_waiting = max(self.most_waiting, most or 0)
                await asyncio.sleep(0.02)
        finally:
            await connection.close()

    async def _drained(self, app: Headgate) -> None:
        async def is_drained() -> bool:
            return not any(each.waiting + each.running for each in await app.admin.counts())

        await until(is_drained, 60)

    def _ran(self) -> Counter[tuple[str, int]]:
        return Counter((key, number) for key, number in map(json.loads, self._run_log.read_text().splitlines()))

    def lost(self) -> list[str]:
        """Keys of which nothing ran that was accepted last: of those that came at the same moment, one must have."""
        ran = self._ran()
        lost: list[str] = []
        for (task, key), accepted in self._ends.items():
            # What began before the last one had ended may have come after it.
            last_begun = max(begun for begun, _, _ in accepted)
            candidates = [number for _, ended, number in accepted if ended > last_begun]
            if not any(ran[f"{task}-{key}", number] for number in candidates):
                lost.append(f"{task} {key}: none of {candidates}")
        return lost

    def ran_twice(self) -> list[tuple[str, int]]:
        """Arguments that ran more often than they were accepted."""
        return [what for what, count in self._ran().items() if count > 1]


if __name__ == "__main__":
    url, schema, run_log = sys.argv[1:]
    asyncio.run(made(url, schema, Path(run_log)).run())
