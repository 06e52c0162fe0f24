"""The feed of ended jobs is read while jobs are added, ended, retried, deleted and pruned by several clients.

What a cursor has passed has been returned, also if it is gone since; what is stored at the end was returned as well; a
follower that is not restarted returns each end once; and nothing is returned that was no end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headgate.admin.ended import EndFollower, EndQuery, Place, ReadEnds, end_page, place_of, place_of_end
from headgate.clock import SECOND, Clock
from headgate.errors import TooManySearches
from headgate.http.stream import EndReader
from headgate.jobs.identity import IdSource, job_number
from headgate.jobs.job import JobRecord, JobState, NewJob
from headgate.jobs.lifecycle import Ending, Finished, Returned
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.records import Claim, EndsRead, FreeSlots
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.storage.store import Store
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import BOOM
from tests.seeds import seeds

pytestmark = pytest.mark.nightly

JOBS = 2_000
QUEUES = ("default", "mail", "reports")
AT_ONCE = 200
WORKERS = 3

PROMISED = 8 * SECOND
"""Within this time an end is committed here; the feed promises nothing for those that take ten seconds."""


@dataclass
class Reader:
    """What one reader of the feed has got, and the cursor that it would continue from."""

    name: str
    cursor: Place
    got: set[Place] = field(default_factory=set)
    twice: list[Place] = field(default_factory=list)

    def take(self, places: Collection[Place], cursor: Place) -> None:
        self.twice += [place for place in places if place in self.got]
        self.got |= set(places)
        self.cursor = cursor


class Traffic:
    """Jobs of several clients of one database, and readers of their ends. `stores` are those of the clients."""

    def __init__(self, stores: Sequence[Store], clock: Clock, count: int, seed: int) -> None:
        self.stores = stores
        self.clock = clock
        self.count = count
        self.random = Random(seed)
        self.unfinished: set[str] = set()
        self.ended: list[str] = []
        # Places of ends that are gone: their jobs were retried, deleted or pruned.
        self.destroyed: set[Place] = set()
        self.missed: list[tuple[str, Place]] = []
        self.readers: list[Reader] = []
        self.is_over = False
        self._ids = IdSource()
        self._writes: dict[object, int] = {}
        # Jobs whose ends may have been committed later than promised, on a machine that was busy.
        self.late: set[str] = set()
        self._added = 0

    @contextlib.contextmanager
    def writing(self, *ids: str) -> Iterator[None]:
        """Note since when an end is being written: manual time waits for it."""
        write, began = object(), self.stores[0].now()
        self._writes[write] = began
        try:
            yield
        finally:
            del self._writes[write]
            if self.stores[0].now() - began >= PROMISED:
                self.late |= set(ids)

    async def run(self, clients: Sequence[Callable[[], Any]]) -> None:
        async with asyncio.TaskGroup() as group:
            reading = [group.create_task(self.read(kind)) for kind in (self.follow, self.share, self.share, self.poll)]
            time = group.create_task(self.pass_time())
            await asyncio.gather(*(client() for client in clients))
            self.is_over = True
            time.cancel()
            await asyncio.gather(*reading)

    # ------------------------------------------------------------------------------------------------ what happens

    @property
    def is_busy(self) -> bool:
        return self._added < self.count or bool(self.unfinished)

    async def add(self) -> None:
        store = self.stores[0]
        while self._added < self.count:
            if len(self.unfinished) > 10 * AT_ONCE:
                await asyncio.sleep(0.001)
                continue
            now = store.now()
            jobs = [
                NewJob(
                    id=self._ids.next(now),
                    task="work",
                    queue=self.random.choice(QUEUES),
                    payload="{}",
                    priority=0,
                    delayed=False,
                    run_at=now,
                    enqueued_at=now,
                )
                for _ in range(min(AT_ONCE, self.count - self._added))
            ]
            self.unfinished |= {job.id for job in jobs}
            await store.add(jobs)
            self._added += len(jobs)

    async def work(self, number: int) -> None:
        store, random, node = self.stores[number % len(self.stores)], Random(number), f"node-{number}"
        await store.join(node, node)
        while self.is_busy:
            free = {queue: FreeSlots(random.randrange(1, AT_ONCE)) for queue in QUEUES}
            jobs = (await store.claim(Claim(node, free, {}, frozenset(["work"])))).jobs
            endings: list[Ending] = []
            for job in jobs:
                match random.choices(("succeed", "fail", "give back"), (80, 17, 3))[0]:
                    case "succeed":
                        endings.append(Finished(job.id, job.fence, JobState.SUCCEEDED, result="null"))
                    case "fail":
                        endings.append(Finished(job.id, job.fence, JobState.FAILED, error=BOOM))
                    case _:
                        endings.append(Returned(job.id, job.fence, "interrupted", spent=False))
            random.shuffle(endings)
            while endings:
                some = endings[: random.randrange(1, AT_ONCE)]
                with self.writing(*(each.id for each in some)):
                    written = await store.finish(node, some)
                for each, is_written in zip(some, written, strict=True):
                    if is_written and isinstance(each, Finished):
                        self.end(each.id)
                # One whose cancellation was requested is cancelled instead of waiting again.
                for record in await store.final([each.id for each in some if isinstance(each, Returned)]):
                    self.end(record.id)
                endings = endings[len(some) :] + [
                    each for each, is_written in zip(some, written, strict=True) if is_written is None
                ]
            await asyncio.sleep(0)

    async def hold(self) -> None:
        """End jobs in transactions of users, which commit seconds after they wrote them."""
        store, node = self.stores[-1], "node-held"
        await store.join(node, node)
        while self.is_busy:
            claim = Claim(node, {"mail": FreeSlots(3)}, {}, frozenset(["work"]))
            jobs = (await store.claim(claim)).jobs
            if not jobs:
                await asyncio.sleep(0.01)
                continue
            began, held_for = store.now(), self.random.randrange(5 * SECOND)
            with self.writing(*(job.id for job in jobs)):
                async with store.transaction() as connection:
                    for job in jobs:
                        assert await store.complete_in(connection, job.id, job.fence)
                    # Time passes here for the others as long as something else is going on.
                    for _ in range(100 if isinstance(self.clock, ManualClock) else 10**6):
                        if store.now() - began >= held_for:
                            break
                        await asyncio.sleep(0.002)
            for job in jobs:
                self.end(job.id)
            await asyncio.sleep(0.01)

    async def cancel(self) -> None:
        """Cancel jobs that wait."""
        while self._added < self.count:
            for id in self.random.sample(sorted(self.unfinished), min(3, len(self.unfinished))):
                with self.writing(id):
                    state = await self.stores[0].cancel(id)
                if state is JobState.WAITING:
                    self.end(id)
            await asyncio.sleep(0.01)

    def end(self, id: str) -> None:
        if id in self.unfinished:
            self.unfinished.discard(id)
            self.ended.append(id)

    async def destroy(self) -> None:
        """Retry and delete jobs at any time, and prune those that all readers have passed."""
        store = self.stores[0]
        # Few jobs may have ended when the last ones are added.
        while self._added < self.count or not self.destroyed:
            some = [self.ended.pop(self.random.randrange(len(self.ended))) for _ in range(min(40, len(self.ended)))]
            gone = await store.final(some)
            self.forget(gone)
            deleted = []
            for each in gone:
                if each.state is JobState.FAILED or each.state is JobState.CANCELLED:
                    self.unfinished.add(each.id)
                    await store.retry(each.id)
                else:
                    deleted.append(each.id)
            left = set(deleted)
            while left:
                left -= (await store.delete(sorted(left), finished_before=store.now() + SECOND)).deleted
            if self.random.random() < 0.02:
                await self.prune(min(reader.cursor.at for reader in self.readers))
            await asyncio.sleep(0.01)

    async def prune(self, before: int) -> None:
        store, place, pruned = self.stores[0], Place(0), set[str]()
        while (ends := (await self.ends(store, place)).ends) and place.at < before:
            place = place_of_end(ends[-1])
            passed = [each for each in ends if each.finished_at < before]
            self.check_passed([place_of_end(each) for each in passed])
            pruned |= {each.id for each in passed}
        while await store.prune(before):
            pass
        self.ended = [id for id in self.ended if id not in pruned]

    async def ends(self, store: Store, after: Place, count: int = 500) -> EndsRead:
        """Read again as long as other searches take up the store, as all programs have to."""
        while True:
            with contextlib.suppress(TooManySearches):
                return await store.ended(*after, count)

    def check_passed(self, places: Collection[Place]) -> None:
        """Note the readers whose cursors have passed these ends without returning them, and that the ends are known."""
        self.destroyed |= set(places)
        for reader in self.readers:
            self.missed += [
                (reader.name, place) for place in places if place < reader.cursor and place not in reader.got
            ]

    def forget(self, gone: Sequence[JobRecord]) -> None:
        places = [Place(each.finished_at or 0, job_number(each.id)) for each in gone if each.id not in self.late]
        self.check_passed(places)

    async def pass_time(self) -> None:
        """Let manual time pass, but not faster than ends are committed."""
        while isinstance(self.clock, ManualClock):
            step = self.random.choice((0.0, 0.001, 0.1, 0.1, 0.5))
            if all(self.clock.now() + step * SECOND - began < PROMISED for began in self._writes.values()):
                self.clock.advance(step)
            await asyncio.sleep(0.002)
        await asyncio.Event().wait()

    # ------------------------------------------------------------------------------------------------- who reads it

    async def read(self, kind: Callable[[Reader, ReadEnds], AsyncIterator[bool]]) -> None:
        """Read as long as anything happens, and what is left then, from the cursor alone."""
        store = self.stores[len(self.readers) % len(self.stores)]
        reader = Reader(f"{kind.__name__} {len(self.readers)}", Place(store.now()))
        self.readers.append(reader)

        async def read(after: Place) -> Any:
            return await self.ends(store, after, self.random.choice((7, 100, 500)))

        passes = kind(reader, read)
        async for _ in passes:
            if self.is_over:
                break
            await asyncio.sleep(0.01)
        last = EndFollower(read, reader.cursor)
        has_more = True
        while has_more:
            found, has_more = await last.advance()
            reader.got |= {place_of_end(end) for end, _ in found}

    async def follow(self, reader: Reader, read: ReadEnds) -> AsyncIterator[bool]:
        """Follow without a restart."""
        follower = EndFollower(read, reader.cursor)
        while True:
            found, has_more = await follower.advance()
            reader.take([place_of_end(end) for end, _ in found], follower.cursor)
            assert reader.twice == []
            if not has_more:
                yield True

    async def share(self, reader: Reader, read: ReadEnds) -> AsyncIterator[bool]:
        """Follow with the reads of a server, and lose the connection at any event."""
        random, shared = Random(reader.name), EndReader(read, self.clock)
        follower = EndFollower(shared, reader.cursor)
        while True:
            found, has_more = await follower.advance()
            count = random.randrange(len(found)) if found and random.random() < 0.1 else len(found)
            for end, cursor in found[:count]:
                assert cursor <= place_of_end(end)
                reader.take([place_of_end(end)], cursor)
            if count == len(found):
                reader.cursor = follower.cursor
            else:
                follower = EndFollower(shared, reader.cursor)
            if not has_more:
                yield True

    async def poll(self, reader: Reader, _: ReadEnds) -> AsyncIterator[bool]:
        """Request pages, and go on from one of its events instead of its end at times."""
        random, store = Random(reader.name), self.stores[0]
        after = str(reader.cursor)
        while True:
            try:
                page = await end_page(store, after, EndQuery(), random.choice((7, 100, 500)))
            except TooManySearches:
                continue
            places = [place_of(each.id, 0) for each in page.items]
            if page.items and random.random() < 0.05:
                # It stopped behind this one.
                number = random.randrange(len(places))
                after = page.items[number].cursor
                reader.take(places[: number + 1], place_of(after, 0))
                continue
            after = page.next
            reader.take(places, place_of(after, 0))
            if not page.has_more:
                yield True

    async def check(self) -> None:
        """Raise AssertionError if an end was missed, or was none."""
        stored: set[Place] = set()
        place = Place(0)
        while (read := await self.ends(self.stores[0], place)).ends:
            stored |= {place_of_end(end) for end in read.ends if end.id not in self.late}
            place = place_of_end(read.ends[-1])
        assert self.missed == []
        late = {job_number(id) for id in self.late}
        for reader in self.readers:
            assert stored - reader.got == set(), reader.name
            assert {each for each in reader.got - stored - self.destroyed if each.number not in late} == set()
        assert await self.stores[0].check() == []


async def attack(stores: Sequence[Store], clock: Clock, count: int, seed: int, *, holds: bool) -> None:
    for store in stores:
        await store.open()
    try:
        traffic = Traffic(stores, clock, count, seed)
        clients = [traffic.add, traffic.cancel, traffic.destroy, *([traffic.hold] if holds else [])]

        def worker(number: int) -> Callable[[], Any]:
            return lambda: traffic.work(number)

        await traffic.run([*clients, *map(worker, range(WORKERS))])
        await traffic.check()
        assert traffic.destroyed
        assert any(reader.twice for reader in traffic.readers)
    finally:
        for store in stores:
            await store.close()


@pytest.mark.parametrize("seed", seeds(1, 1))
async def test_no_end_is_missed_in_a_file(seed: int, tmp_path: Path) -> None:
    clock = ManualClock()
    stores = [SqliteStorage(tmp_path / "jobs.db", clock, synchronous="OFF") for _ in range(2)]
    await attack(stores, clock, JOBS, seed, holds=False)


@pytest.mark.parametrize("seed", seeds(1, 1))
async def test_no_end_is_missed_on_a_server(seed: int, postgres_url: str, postgres_schema: str) -> None:
    clock = ManualClock()
    stores = [PostgresStorage(postgres_url, clock, schema=postgres_schema, own_time=True) for _ in range(3)]
    await attack(stores, clock, JOBS, seed, holds=True)
