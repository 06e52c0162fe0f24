"""A page of jobs is the same whether the jobs of an index are read and sorted, or all ids are walked."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.jobs.batch import NewBatch
from headgate.jobs.job import JobState, Origin
from headgate.jobs.lifecycle import Finished
from headgate.jobs.query import JobFilter
from headgate.limits.limit import AnyRule
from headgate.limits.strict_rate import StrictRate
from headgate.storage.procedures import listing
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.manual_clock import ManualClock
from tests.durability.stores import NODE, claim_for, new_job

RULES: dict[str, AnyRule] = {"hourly": StrictRate(1, per=3600, margin=0).rule}

FILTERS = {
    "all": JobFilter(),
    **{str(state): JobFilter(state=state) for state in JobState},
    "ready": JobFilter(view="ready"),
    "throttled": JobFilter(view="throttled"),
    "scheduled": JobFilter(view="scheduled"),
    "blocked": JobFilter(view="blocked"),
    "batch": JobFilter(batch="together"),
    "limit": JobFilter(state=JobState.WAITING, limit="hourly"),
    "key": JobFilter(view="throttled", key="1"),
    "bucket": JobFilter(view="throttled", limit="hourly", key="1"),
    "task": JobFilter(task="work"),
}


async def filled() -> MemoryStorage:
    """A store with some jobs of each kind, whose ids are not in the order in which they came."""
    clock = ManualClock()
    storage = MemoryStorage(clock)
    await storage.join(NODE, "node")
    now = clock.now()
    late = now + 3600 * SECOND
    jobs = [
        *(new_job(now=now) for _ in range(6)),
        *(new_job(("hourly", str(number % 2)), now=now) for number in range(8)),
    ]
    await storage.add(jobs[::-1])
    claimed = await storage.claim(claim_for(RULES, slots=5))
    states = [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED]
    ended = [Finished(job.id, job.fence, state) for job, state in zip(claimed.jobs, states, strict=False)]
    assert all(await storage.finish(NODE, ended))
    await storage.claim(claim_for(RULES, slots=2))
    waiting = await storage.jobs(JobFilter(state=JobState.WAITING))
    more = [
        *(new_job(now=now, delayed=True, run_at=late) for _ in range(3)),
        *(new_job(now=now, origin=Origin(follows=waiting[0].id)) for _ in range(3)),
        *(new_job(now=now, origin=Origin(batch="together")) for _ in range(3)),
        *(new_job(now=now, origin=Origin(follows=ended[0].id, on="failure")) for _ in range(3)),
    ]
    await storage.add(more[::-1], [NewBatch("together", 3, now)])
    return storage


async def pages(storage: MemoryStorage, filter: JobFilter, *, oldest_first: bool) -> list[str]:
    """The ids of all that a filter lets through, two a page."""
    found: list[str] = []
    asked = replace(filter, oldest_first=oldest_first, count=2)
    while True:
        page = [job.id for job in await storage.jobs(asked)]
        assert await storage.count_jobs(asked, 1) == min(1, len(page))
        if not page:
            return found
        found += page
        asked = replace(asked, cursor=found[-1])


async def bounded_pages(storage: MemoryStorage, filter: JobFilter, *, oldest_first: bool) -> list[str]:
    """The same, of pages that read a bounded number of jobs; one that is cut has less than two."""
    found: list[str] = []
    asked = replace(filter, oldest_first=oldest_first, count=2)
    while True:
        page = await storage.page(asked)
        found += [job.id for job in page.items]
        assert len(page.items) <= 2
        if page.next is None:
            return found
        asked = replace(asked, cursor=page.next)


@pytest.mark.parametrize("few", [0, 500])
@pytest.mark.parametrize("at_once", [1, 3, 1000])
@pytest.mark.parametrize("name", FILTERS)
async def test_pages_have_the_same_jobs_however_many_are_read_for_one(
    name: str, at_once: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = await filled()
    newest = await pages(storage, FILTERS[name], oldest_first=False)
    assert newest == sorted(newest, reverse=True)
    assert newest
    monkeypatch.setattr(listing, "AT_ONCE", at_once)
    monkeypatch.setattr(listing, "MORE_AT_ONCE", at_once)
    monkeypatch.setattr(listing, "FEW", few)
    for found in (pages, bounded_pages):
        assert await found(storage, FILTERS[name], oldest_first=False) == newest
        assert await found(storage, FILTERS[name], oldest_first=True) == newest[::-1]
    assert await storage.count_jobs(FILTERS[name], 100) == len(newest)
    counted = await storage.bounded_count(FILTERS[name], 100)
    assert counted.count == len(newest) if counted.is_exact else counted.count <= len(newest)
    assert counted.is_exact or at_once < 1000
