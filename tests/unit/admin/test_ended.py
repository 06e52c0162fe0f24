"""The feed of ended jobs is attacked: late commits, many ends in a microsecond, restarts, pruning, many followers."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Sequence
from datetime import datetime
from random import Random
from typing import cast

import pytest

from headgate.admin import ended
from headgate.admin.ended import LOOK_BACK, EndFollower, EndQuery, Place, follow, place_of, place_of_end
from headgate.clock import SECOND, from_datetime
from headgate.errors import DeclarationError, StorageUnavailable
from headgate.http.stream import EndReader
from headgate.jobs.identity import job_text
from headgate.jobs.job import BucketRef, JobOptions, JobState
from headgate.storage.records import EndsRead, StoredEnd
from headgate.storage.searching import too_many
from headgate.storage.store import Store
from headgate.testing.manual_clock import ManualClock

PAGE = 5


def end(at: int, number: int, **fields: object) -> StoredEnd:
    values = {
        "id": job_text(number),
        "task": "work",
        "queue": "default",
        "state": JobState.SUCCEEDED,
        "attempt": 1,
        "finished_at": at,
        "batch": None,
        "buckets": (),
        "options": None,
        "error": None,
        **fields,
    }
    return StoredEnd(**values)  # type: ignore[arg-type]


class LateStore:
    """Ends that become visible some time after their instants, in any order, and are pruned."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.reads = 0
        self._numbers = 0
        self._uncommitted: list[tuple[int, StoredEnd]] = []
        self.committed: list[tuple[Place, StoredEnd]] = []

    def add(self, at: int, visible_at: int) -> None:
        self._numbers += 1
        # Ids are in no order of ends.
        number = (self._numbers * 7919) % (1 << 40)
        self._uncommitted.append((visible_at, end(at, number)))

    def commit(self) -> None:
        now = self.clock.now()
        for visible_at, each in self._uncommitted:
            if visible_at <= now:
                insort(self.committed, (place_of_end(each), each), key=lambda pair: pair[0])
        self._uncommitted = [each for each in self._uncommitted if each[0] > now]

    def prune(self, before: int) -> None:
        self.committed = [each for each in self.committed if each[0].at >= before]

    async def read(self, after: Place) -> EndsRead:
        self.reads += 1
        self.commit()
        await asyncio.sleep(0)
        found = [each for place, each in self.committed if place > after][:PAGE]
        return EndsRead(found, self.clock.now(), len(found) == PAGE)

    async def ended(self, at: int, number: int, count: int) -> EndsRead:
        return await self.read(Place(at, number))

    def now(self) -> int:
        return self.clock.now()

    @property
    def places(self) -> set[Place]:
        return {place for place, _ in self.committed}


class Client:
    """Follows the feed, and comes back with the cursor of the last event that it has read, or loses some before."""

    def __init__(self, random: Random, began: Place) -> None:
        self._random = random
        self.cursor = began
        self.got: set[Place] = set()
        self.repeats = 0
        self._follower: EndFollower | None = None

    async def step(self, reader: EndReader) -> None:
        if self._follower is None or self._random.random() < 0.1:
            self._follower = EndFollower(reader, self.cursor)
        while True:
            found, has_more = await self._follower.advance()
            for each, cursor in found:
                if self._random.random() < 0.02:
                    # The connection is lost before this event.
                    self._follower = None
                    return
                assert cursor <= place_of_end(each)
                self.repeats += place_of_end(each) in self.got
                self.got.add(place_of_end(each))
                self.cursor = cursor
            if not has_more:
                return


def add_some(random: Random, store: LateStore) -> None:
    now = store.clock.now()
    for _ in range(random.choice((0, 1, 3, 20))):
        at = now - random.choice((0, 0, 1, random.randrange(SECOND)))
        store.add(at, min(at + random.choice((0, 0, SECOND, random.randrange(LOOK_BACK))), at + LOOK_BACK - 1))


@pytest.mark.parametrize("seed", range(20))
async def test_each_end_that_is_kept_is_returned_whatever_happens(seed: int) -> None:
    random, clock = Random(seed), ManualClock()
    store = LateStore(clock)
    reader = EndReader(store.read, clock)
    clients = [Client(Random(seed * 100 + n), Place(clock.now() - SECOND)) for n in range(8)]
    lost: set[Place] = set()
    for _ in range(80):
        add_some(random, store)
        if random.random() < 0.05:
            # The server is restarted.
            reader = EndReader(store.read, clock)
        await asyncio.gather(*(each.step(reader) for each in clients if random.random() < 0.8))
        if random.random() < 0.1:
            before = store.places
            store.prune(clock.now() - LOOK_BACK - random.randrange(30 * SECOND))
            lost |= before - store.places
        clock.advance(random.choice((0.2, 1, 1, 4)))
    clock.advance(20)
    reader = EndReader(store.read, clock)
    for each in clients:
        rest = EndFollower(reader, each.cursor)
        more = True
        while more:
            found, more = await rest.advance()
            each.got |= {place_of_end(one) for one, _ in found}
        assert store.places - each.got == set()
    assert any(each.repeats for each in clients)


@pytest.mark.parametrize("seed", range(20))
async def test_each_end_that_is_kept_is_in_a_page(seed: int) -> None:
    random, clock = Random(seed), ManualClock()
    store = LateStore(clock)
    got: set[str] = set()
    cursor = str(Place(clock.now() - SECOND))

    async def poll() -> None:
        nonlocal cursor
        more = True
        while more:
            page = await ended.end_page(store, cursor, EndQuery(), PAGE)  # type: ignore[arg-type]
            got.update(each.id for each in page.items)
            # A program may also continue after any event.
            cursor = random.choice([page.next, page.next, page.next, *[each.cursor for each in page.items]])
            more = page.has_more and random.random() < 0.95

    for _ in range(80):
        add_some(random, store)
        await poll()
        clock.advance(random.choice((0.2, 1, 4)))
    clock.advance(20)
    for _ in range(100):
        await poll()
    assert {str(place) for place in store.places} <= got


async def pass_of(follower: EndFollower) -> int:
    """Return how many ends a pass of a follower returns."""
    count, more = 0, True
    while more:
        found, more = await follower.advance()
        count += len(found)
    return count


async def test_all_streams_learn_together_that_the_store_is_away() -> None:
    """The fault: each asked once the one before had given up, so that the last of 20 waited for 100 s."""
    clock, asked = ManualClock(), list[Place]()

    async def away(after: Place) -> EndsRead:
        asked.append(after)
        await asyncio.sleep(0)
        raise StorageUnavailable("the store is away")

    reader = EndReader(away, clock)
    for times in (1, 2):
        places = [Place(clock.now() - number * SECOND) for number in range(20)]
        errors = await asyncio.gather(*map(reader, places), return_exceptions=True)
        assert {str(error) for error in errors} == {"the store is away"}
        assert len({id(error) for error in errors}) == 20
        assert len(asked) == times


@pytest.mark.parametrize(("busy", "page"), [(1, 500), (4, 5)])
async def test_a_hundred_streams_that_have_caught_up_cost_one_pass_a_second(
    busy: int, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "PAGE", page)
    clock = ManualClock()
    store = LateStore(clock)
    reader = EndReader(store.read, clock)
    followers = [EndFollower(reader, Place(clock.now() - LOOK_BACK)) for _ in range(100)]
    for each in followers:
        await each.advance()
        clock.advance(0.005)
    clock.advance(1)
    store.reads = 0
    for _ in range(10):
        for _ in range(busy):
            store.add(clock.now(), clock.now())
        found = await asyncio.gather(*(pass_of(each) for each in followers))
        assert found == [busy] * 100
        clock.advance(1)
    # One more read than pages: the last one may be full.
    pages = 11 * busy // PAGE + 2
    assert store.reads <= 10 * pages


async def test_without_followers_nothing_is_read() -> None:
    clock = ManualClock()
    store = LateStore(clock)
    EndReader(store.read, clock)
    clock.advance(60)
    await asyncio.sleep(0)
    assert store.reads == 0


async def test_an_end_that_is_committed_late_is_returned_once() -> None:
    clock = ManualClock()
    store = LateStore(clock)
    follower = EndFollower(store.read, Place(clock.now() - 1))
    began = clock.now()
    store.add(began, began + 8 * SECOND)
    returned: list[Place] = []
    for _ in range(30):
        more = True
        while more:
            found, more = await follower.advance()
            returned += [place_of_end(each) for each, _ in found]
        store.add(clock.now() + 1, clock.now() + 1)
        clock.advance(1)
    assert len(returned) == len(set(returned)) == 30
    assert returned[7].at == began


async def test_a_follower_that_catches_up_slowly_goes_on_after_its_last_event() -> None:
    """The fault: the cursors of a long pass were those of its begin, so all of it came again after a restart."""
    clock = ManualClock()
    store = LateStore(clock)
    for number in range(4 * PAGE):
        store.add(clock.now() + number * SECOND, clock.now() + number * SECOND)
    follower = EndFollower(store.read, Place(clock.now() - 1))
    clock.advance(20)
    for _ in range(4):
        found, _ = await follower.advance()
        assert [cursor for _, cursor in found] == [place_of_end(each) for each, _ in found]
        assert follower.cursor == place_of_end(found[-1][0])
        clock.advance(60)


class CrowdedStore(LateStore):
    """Searches of others take all turns for the first three reads."""

    async def read(self, after: Place) -> EndsRead:
        if self.reads < 3:
            self.reads += 1
            raise too_many()
        return await super().read(after)


async def test_a_follower_goes_on_after_searches_took_all_turns() -> None:
    clock = ManualClock()
    store = CrowdedStore(clock)
    store.add(clock.now(), clock.now())
    ends = follow(cast(Store, store), clock, None, EndQuery())
    found = asyncio.ensure_future(anext(ends))
    while not found.done():
        await asyncio.sleep(0)
        clock.advance(1)
    assert store.reads == 4
    assert found.result().task == "work"


def test_ends_are_matched_by_all_fields() -> None:
    one = end(1, 2, buckets=(BucketRef("calls", "acme"),), options=JobOptions(tags=("vip",)))
    matching: Sequence[dict[str, str]] = (
        {},
        {"task": "work", "queue": "default", "state": "succeeded"},
        {"limit": "calls"},
        {"limit": "calls", "key": "acme"},
        {"key": "acme"},
        {"tag": "vip"},
    )
    for fields in matching:
        assert EndQuery(**fields).matches(one)  # type: ignore[arg-type]
    for name, value in {"task": "x", "queue": "x", "state": "failed", "limit": "x", "key": "x", "tag": "x"}.items():
        assert not EndQuery(**{name: value}).matches(one)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="state='running' must be one of succeeded, failed"):
        EndQuery(state="running")  # type: ignore[arg-type]


def test_a_cursor_that_no_event_has_is_refused() -> None:
    for after in ("", "yesterday", "1", "1.", "1.2.3", "1." + "9" * 19, 3):
        with pytest.raises(DeclarationError, match=r"is no cursor|is a number"):
            place_of(after, 0)  # type: ignore[arg-type]
    noon = datetime.fromisoformat("2026-03-01T12:00:00Z")
    assert place_of(noon, 0) == Place(from_datetime(noon))
    # The rest of a pass: what is committed meanwhile before it has to be read.
    assert place_of("30.4~20", 0) == Place(20)
