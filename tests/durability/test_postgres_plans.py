"""With a large backlog no statement of the engine reads in proportion to it, and people get their pages.

HEADGATE_TEST_PLAN_ROWS is how many jobs there are, of which two of three are final.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from headgate.clock import SECOND, SystemClock, to_datetime
from headgate.jobs.audit import AuditFilter, AuditRecord
from headgate.jobs.history import ALL, JobsStep, LimitStep
from headgate.jobs.identity import IdSource, job_number, job_text, lowest_made_at
from headgate.jobs.job import BucketRef, JobError, JobState, NewJob, Progress
from headgate.jobs.lifecycle import Ending, Finished, Returned
from headgate.jobs.query import JobFilter
from headgate.jobs.report import PLACES, AttemptReport, LogLine
from headgate.limits.fair import PREFIX, FairOrder
from headgate.limits.key import BETWEEN_LEVELS
from headgate.limits.limit import AnyRule
from headgate.limits.rate_limit import RateLimit
from headgate.storage.postgres.dialect import CompiledStatement, statements_of
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.procedures.listing import AT_ONCE, DEPENDENCIES_SHOWN
from headgate.storage.records import Amendment, BucketPlace, Claim, FreeSlots
from tests.durability.plans import EXPLAINING, HOUR, PAYLOAD, Backlog, Plans, StatementRun, access_paths
from tests.durability.postgres import ask, session_at
from tests.postgres_server import server_in

pytestmark = pytest.mark.slow

ROWS = int(os.environ.get("HEADGATE_TEST_PLAN_ROWS", "200000"))

BACKLOG = Backlog(ROWS)

ENGINE_PAGES = 1500
"""What any statement of the engine may look at: it handles at most 50 jobs at once here, pruning 200."""

LARGE = frozenset({"job", "job_tag", "lane", "bucket", "attempt"})
"""Tables that are as large as the backlog, or as the number of keys."""

SWEEPS = frozenset({"evict_buckets", "evict_lanes", "other_limits_are_waited_for"})
"""Once a minute these read all buckets or all lanes, never all jobs: an index for them would cost each claim."""

TASKS = frozenset({"send"})
RULES = {
    "api": RateLimit(2, per=3600).rule,
    "free": RateLimit(1_000_000, per=1, burst=1_000_000).rule,
}


class StoreUser:
    """Does what nodes and people do, and says which statements that took."""

    def __init__(self, url: str, storage: PostgresStorage, plans: Plans) -> None:
        self.url = url
        self.storage = storage
        self._plans = plans
        self._ids = IdSource()

    def new(self, **values: Any) -> NewJob:
        now = self.storage.now()
        # As long as the jobs of the backlog, so that no new one fits into what is left of their pages.
        job = {"task": "send", "queue": "mail", "payload": PAYLOAD, "priority": 0, "delayed": False}
        return NewJob(**{"id": self._ids.next(now), "run_at": now, "enqueued_at": now, **job, **values})

    async def claim(self, rules: Mapping[str, AnyRule] = RULES) -> list[Any]:
        claimed = await self.storage.claim(Claim("n", {"mail": FreeSlots(50)}, rules, TASKS))
        return list(claimed.jobs)

    def ran(self) -> list[StatementRun]:
        return self._plans.read()


@pytest_asyncio.fixture
async def store_user(tmp_path: Path) -> AsyncIterator[StoreUser]:
    with server_in(tmp_path, *EXPLAINING) as server:
        storage = PostgresStorage(server.url, SystemClock())
        await storage.open()
        await storage.join("n", "node")
        await BACKLOG.fill(server.url, storage.now() - HOUR, storage.limit_now())
        store_user = StoreUser(server.url, storage, Plans(tmp_path / "postgres.log"))
        store_user.ran()
        yield store_user
        await storage.close()


async def test_no_statement_reads_in_proportion_to_the_backlog(store_user: StoreUser) -> None:
    await the_engine_reads_what_it_handles(store_user)
    await arrivals_do_not_pile_up(store_user)
    await people_get_their_pages(store_user)
    await charts_read_their_own_curves(store_user)
    await a_job_reads_no_followers_but_its_own(store_user)


async def the_engine_reads_what_it_handles(store_user: StoreUser) -> None:
    storage = store_user.storage
    for _ in range(3):
        await storage.add([store_user.new(buckets=(BucketRef("free", str(number)),)) for number in range(20)])
        await storage.add(
            [store_user.new(buckets=(BucketRef("api", str(number)), BucketRef("free", "0"))) for number in range(10)]
        )
        await storage.add(
            [store_user.new(delayed=True, run_at=storage.now() + HOUR, expires_at=storage.now() + 2 * HOUR)]
        )
        await ask(store_user.url, "UPDATE headgate.bucket SET opens_at = 0 WHERE limit_name = 'api' AND key LIKE '7_'")
        # The lanes behind opened buckets have waited longest, so the claim starts jobs of both kinds.
        opened = "SELECT id FROM headgate.bucket WHERE opens_at <= $1"
        await ask(store_user.url, f"UPDATE headgate.lane SET since = 0 WHERE behind IN ({opened})", storage.limit_now())
        jobs = await store_user.claim()
        assert len(jobs) == 50
        assert {ref.limit for job in jobs for ref in job.buckets} == {"api", "free"}
        assert any(not job.buckets for job in jobs)
        await storage.beat("n")
        await storage.nodes()
        await storage.node_update()
        await storage.cancels("n", [job.id for job in jobs])
        line = LogLine(PLACES, storage.now(), 1, 20, "app", "hello")
        said = [AttemptReport(job.id, job.fence, Progress(0.5, None, storage.now()), (line,)) for job in jobs]
        assert all(await storage.report("n", said, 1000))
        assert len(await storage.logs(jobs[0].id)) == 1
        error = JobError("ValueError", "no", "")
        endings: list[Ending] = [
            *(Finished(job.id, job.fence, JobState.SUCCEEDED) for job in jobs[:20]),
            *(Finished(job.id, job.fence, JobState.FAILED, error=error) for job in jobs[20:30]),
            *(Returned(job.id, job.fence, "failed", True, storage.now() + HOUR, error) for job in jobs[30:40]),
        ]
        assert all(await storage.finish("n", endings))
        await storage.final([job.id for job in jobs])
        await storage.job(jobs[0].id)
        await storage.attempts(jobs[20].id)
        await storage.expire()
        await storage.evict()
        assert await storage.prune(storage.now() - 2 * HOUR, 200) == 0
        assert await storage.prune_by_own_retention(200) == 0
        assert await storage.prune(storage.now() - HOUR // 2, 200) == 200
        assert await storage.cancel(BACKLOG.newest) is JobState.WAITING
        audit_record = AuditRecord("ada", "retry", "job", BACKLOG.newest)
        assert await storage.retry(BACKLOG.newest, audit_record=audit_record) is JobState.CANCELLED
        assert await storage.audit_log(AuditFilter(subject=BACKLOG.newest, count=1))
        assert await storage.prune(storage.now() - HOUR // 2, 200, frozenset({JobState.SUCCEEDED})) == 200
        old = "SELECT id FROM headgate.job WHERE state = 'succeeded' AND finished_at < $1 LIMIT 50"
        ended = await ask(store_user.url, f"SELECT array_agg(id) FROM ({old}) AS old", storage.now() - HOUR // 2)
        assert (
            len((await storage.delete(list(map(job_text, ended)), finished_before=storage.now() - HOUR // 2)).deleted)
            == 50
        )
        (delayed,) = await storage.jobs(JobFilter(view="scheduled", count=1))
        assert await storage.run_now(delayed.id) is JobState.WAITING
        assert await storage.prune_audit(storage.now()) == 0
        await storage.prediction_input("mail", [BucketRef("api", "7")])
        await storage.penalize(BucketRef("api", "5"), storage.limit_now())
        at = storage.limit_now()
        await storage.amend([Amendment(BucketRef("api", "6"), at, 2, at, 1)], RULES)
        await storage.reset(BucketRef("api", "1999"))
        await storage.gated_jobs(TASKS, unknown_to=frozenset({"api", "free"}))
        (node,) = await storage.nodes()
        recovered = await storage.recover("n", node.beat)
        assert recovered is not None
        assert len(recovered.returned) == 10
        await storage.join("n", "node")
    ran = store_user.ran()
    used = {"merge", "claim_snapshot", "behind", "lock_lanes", "heads", "write_claim", "set_timers", "finish"}
    assert used <= statements(ran)
    for each in ran:
        allowed = {"lane", "bucket"} if each.statement in SWEEPS else set()
        assert each.scanned & LARGE <= allowed, f"{each.statement} reads {each.scanned}\n{each.text}"
        assert each.pages <= ENGINE_PAGES, f"{each.statement} looks at {each.pages} pages\n{each.text}"
        assert each.discarded <= 500 or each.statement in SWEEPS, f"{each.statement} reads in vain\n{each.text}"


async def test_a_claim_reads_no_keys_but_its_own(tmp_path: Path) -> None:
    """The fault: it compared each of its keys with all that were charged in the last second.

    The server knows nothing about the tables: they were empty a moment ago.
    """
    with server_in(tmp_path, *EXPLAINING, "autovacuum=off") as server:
        storage = PostgresStorage(server.url, SystemClock())
        await storage.open()
        await storage.join("n", "node")
        store_user = StoreUser(server.url, storage, Plans(tmp_path / "postgres.log"))
        await storage.add([store_user.new(buckets=(BucketRef("free", str(number)),)) for number in range(2_000)])
        started = 0
        while started < 2_000:
            started += len(await store_user.claim())
        ran = [each for each in store_user.ran() if each.statement != "merge"]
        await storage.close()
    assert {"lock_for_claim", "lock_lanes", "heads", "write_claim"} <= statements(ran)
    for each in ran:
        assert each.discarded <= 100, f"{each.statement} reads {each.discarded} rows in vain\n{each.text}"


async def test_a_claim_reads_no_tenants_but_those_that_its_limit_releases(tmp_path: Path) -> None:
    """The fault: for two tenants behind a shared limit, each claim looked at all tenants of the queue."""
    fair = PREFIX + "mail"
    rules = {fair: FairOrder("{tenant}", {}).rule, "shared": RateLimit(200, per=1, burst=1).rule}

    def keyed(tenant: object) -> BucketRef:
        return BucketRef(fair, f"{tenant}{BETWEEN_LEVELS}user")

    with server_in(tmp_path, *EXPLAINING, "autovacuum=off") as server:
        storage = PostgresStorage(server.url, SystemClock())
        await storage.open()
        await storage.join("n", "node")
        store_user = StoreUser(server.url, storage, Plans(tmp_path / "postgres.log"))
        await storage.add([store_user.new(buckets=(keyed(number),)) for number in range(1_000)])
        while await store_user.claim(rules):
            pass
        late = [
            store_user.new(buckets=(BucketRef("shared", ""), keyed(name))) for name in ("x", "y") for _ in range(100)
        ]
        await storage.add(late)
        ran: list[StatementRun] = []
        for analyzed in (False, True):
            if analyzed:
                await ask(server.url, "VACUUM ANALYZE")
            store_user.ran()
            for _ in range(20):
                await store_user.claim(rules)
            found = [each for each in store_user.ran() if each.statement == "behind"]
            assert len(found) > 5
            ran += found
        await storage.close()
    for each in ran:
        assert each.pages < 150, f"{each.statement} looks at {each.pages} pages\n{each.text}"


EVERY_JOB = frozenset({
    "behind", "claim_snapshot", "clear_timers", "count_batches", "count_awaited_leaders", "empty_lanes", "expired",
    "finish", "finish_plain", "followers", "heads", "jobs_under_keys", "left_in_lanes", "lock_for_claim", "lock_lanes",
    "merge", "needed", "note_of_bucket", "own_ids", "remove_tags", "rivals", "set_timers", "stored_jobs",
    "unique_rivals", "write_claim", "write_virtual_times",
})  # fmt: skip
"""Statements by which jobs are added, started, ended, released and forgotten."""

ALSO_GOOD = {
    ("expired", "job_blocked_expires"),
    ("merge", "turn_group_line"),
    ("rivals", "bucket_limit"),
    ("write_virtual_times", "lane_due_in_group"),
}
"""Other indexes than with a backlog by which a statement may read.

That of all blocked jobs is no better for `expired`: it is chosen where no blocked job expires.
"""


async def test_what_is_known_of_the_tables_does_not_change_how_a_job_is_found(tmp_path: Path) -> None:
    """The fault: a store that was idle when it was vacuumed had plans that read all lanes, arrivals and unique keys.

    A plan is kept until the tables are analyzed again. In that minute, claims of 100,000 keys took twice as long.
    """
    with server_in(tmp_path, "autovacuum=off") as server:
        storage = PostgresStorage(server.url, SystemClock())
        await storage.open()
        ways = {"new": await access_paths(server.url, EVERY_JOB)}
        await ask(server.url, "VACUUM ANALYZE")
        ways["empty"] = await access_paths(server.url, EVERY_JOB)
        await Backlog(20_000).fill(server.url, storage.now() - HOUR, storage.limit_now())
        with_backlog = await access_paths(server.url, EVERY_JOB)
        await ask(server.url, ARRIVALS_OF_THREE_LANES)
        await ask(server.url, "VACUUM ANALYZE")
        ways["arrivals of few lanes"] = await access_paths(server.url, EVERY_JOB)
        for table in ("job_tag", "attempt", "arrival", "lane", "known_lane", "bucket", "job"):
            await ask(server.url, f"DELETE FROM headgate.{table}")
        await ask(server.url, "VACUUM")
        ways["idle again"] = await access_paths(server.url, EVERY_JOB)
        async with session_at(server.url) as reader:
            await reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM headgate.node")
            for _ in range(100):
                await ask(server.url, ARRIVALS_OF_THREE_LANES)
                await ask(server.url, "DELETE FROM headgate.arrival")
            await ask(server.url, "ANALYZE headgate.arrival")
            ways["beside an open snapshot"] = await access_paths(server.url, EVERY_JOB)
        await storage.close()
    assert with_backlog.keys() == EVERY_JOB
    for state, found in ways.items():
        for statement, paths in found.items():
            others = {path for path in paths - with_backlog[statement] if (statement, path.by) not in ALSO_GOOD}
            assert not others, f"{statement}, {state}: {others} instead of {with_backlog[statement] - paths}"


ARRIVALS_OF_THREE_LANES = """
INSERT INTO headgate.arrival (lane, queue, buckets, wait_mode, jobs, is_ready, since)
SELECT (n % 3)::text, 'mail', '[]', '', 1, true, 0 FROM generate_series(1, 300) AS n
"""


async def arrivals_do_not_pile_up(store_user: StoreUser) -> None:
    """Arrivals of a queue without workers are merged by all claims."""
    for _ in range(10):
        await store_user.storage.add([store_user.new(queue="elsewhere")])
    await store_user.storage.add([store_user.new(buckets=(BucketRef("free", "0"),))])
    await store_user.claim()
    assert await ask(store_user.url, "SELECT count(*) FROM headgate.arrival WHERE queue = 'elsewhere'") == 0
    await store_user.storage.pause_queue("mail")
    await store_user.storage.add([store_user.new(buckets=(BucketRef("free", "0"),))])
    await store_user.claim()
    assert await ask(store_user.url, "SELECT count(*) FROM headgate.arrival") == 0
    await store_user.storage.resume_queue("mail")


async def a_job_reads_no_followers_but_its_own(store_user: StoreUser) -> None:
    """The fault: where all followers were of one batch, the page of any job read all jobs of the store."""
    await ask(store_user.url, FOLLOW_ONE)
    await ask(store_user.url, MANY_IN_A_BATCH)
    await ask(store_user.url, "ANALYZE headgate.job")
    store_user.ran()
    assert not (await store_user.storage.dependencies(BACKLOG.newest)).followers
    assert len((await store_user.storage.dependencies(job_text(1))).followers) == DEPENDENCIES_SHOWN
    ran = store_user.ran()
    # Beside upkeep, which runs when it is due.
    assert statements(ran) >= {"leaders_of_job", "followers_of_job"}
    for each in ran:
        assert each.pages < 1000, f"{each.statement} looks at {each.pages} pages\n{each.text}"
    # A page of a batch reads nothing beyond it.
    ids = await store_user.storage.jobs_of_batch(job_text(1), count=100)
    assert len(await store_user.storage.jobs_of_batch(job_text(1), after=ids[-1], count=100)) == 100
    for each in store_user.ran():
        assert each.pages < 500, f"{each.statement} looks at {each.pages} pages\n{each.text}"


KEPT = 20_000

FINAL_JOBS = """
INSERT INTO headgate.job (
    id, lane, delayed, priority, run_at, rank, enqueued_at, started_at, finished_at, state, task, queue, buckets,
    payload, waiting, own_id
)
SELECT
    id, 'lane', false, 5, $1::bigint + number, $1::bigint + number, $1::bigint + number,
    $1::bigint + number, $1::bigint + number, 'succeeded', 'send', 'mail', '[]', '[[],{}]', false,
    CASE WHEN id < 0 THEN $3 || number END
FROM unnest($2::bigint[]) WITH ORDINALITY AS made (id, number)
"""


async def add_final_jobs(url: str, at: int, *, own_ids: str = "") -> None:
    """Store jobs that were enqueued and ended from then on, with own ids that begin so, or with ids of that time."""
    numbers = range(1, KEPT + 1)
    ids = [job_number(f"{own_ids}{each}") if own_ids else lowest_made_at(at) + (each << 12) for each in numbers]
    await ask(url, FINAL_JOBS, at, ids, own_ids)
    await ask(url, "VACUUM ANALYZE headgate.job")


@pytest.mark.parametrize("own_ids", ["", "order "])
async def test_pruning_reads_few_of_the_jobs_that_are_kept(tmp_path: Path, own_ids: str) -> None:
    """The fault: once the pages of deleted jobs had been used again, each look for old jobs read the whole table.

    The summary of a range of pages keeps the oldest time that ever was in it.
    """
    with server_in(tmp_path, *EXPLAINING, "autovacuum=off") as server:
        storage = PostgresStorage(server.url, SystemClock())
        await storage.open()
        plans = Plans(tmp_path / "postgres.log")
        at = storage.now() - 240 * HOUR
        for cycle in range(2):
            # All but the last one, whose page keeps those before it in the file.
            await ask(server.url, "DELETE FROM headgate.job WHERE run_at < (SELECT max(run_at) FROM headgate.job)")
            await ask(server.url, "VACUUM headgate.job")
            at += 24 * HOUR
            await add_final_jobs(server.url, at, own_ids=own_ids and f"{own_ids}{cycle}.")
        plans.read()
        assert await storage.prune(at - HOUR, 200, since=at - 20 * HOUR) == 0
        assert await storage.prune(at + KEPT // 2, 200, since=at - 20 * HOUR) == 200
        ran = [each for each in plans.read() if each.statement == "prunable"]
        await storage.close()
    assert len(ran) == 2
    # The rows that it returns are read once more, to lock them.
    for each, locked in zip(ran, (0, 200), strict=True):
        assert each.pages < 500 + locked, f"{each.statement} looks at {each.pages} pages\n{each.text}"


async def test_pruning_reads_no_jobs_that_are_kept_for_ever_in_each_round(tmp_path: Path) -> None:
    """The fault: each step read all jobs with a retention of their own, as their ids are below those to delete."""
    with server_in(tmp_path, *EXPLAINING, "autovacuum=off") as server:
        storage = PostgresStorage(server.url, SystemClock())
        await storage.open()
        plans = Plans(tmp_path / "postgres.log")
        kept, recent = storage.now() - 240 * HOUR, storage.now() - 20 * HOUR
        await add_final_jobs(server.url, kept)
        await ask(server.url, """UPDATE headgate.job SET options = '{"retention":{"succeeded":null}}'""")
        await add_final_jobs(server.url, recent)
        plans.read()
        assert await storage.prune(recent - HOUR, 200, since=recent - 24 * HOUR) == 0
        # Nor are they read at once in a round of all.
        for since, until in ((0, kept - HOUR), (kept + HOUR, recent - HOUR)):
            assert await storage.prune(recent - HOUR, 200, since=since, until=until) == 0
        found = [each for each in plans.read() if each.statement == "prunable"]
        await storage.close()
    assert len(found) == 3
    for ran in found:
        assert ran.pages < 100, f"{ran.statement} looks at {ran.pages} pages\n{ran.text}"


FOLLOW_ONE = """
UPDATE headgate.job SET follows = 1, origin = '{"on": "any"}'
WHERE id IN (SELECT id FROM headgate.job WHERE finished_at IS NOT NULL LIMIT 2000)
"""


MANY_IN_A_BATCH = """
WITH made AS (INSERT INTO headgate.batch (id, total, pending, enqueued_at) VALUES (1, 1, 1, 0))
UPDATE headgate.job SET batch = 1, origin = coalesce(origin, '{"batch": "0000000000001"}')
WHERE id IN (SELECT id FROM headgate.job WHERE finished_at IS NOT NULL ORDER BY id LIMIT 20000)
"""


UNMERGED = 20_000


async def test_arrivals_that_no_worker_merges_are_read_only_for_the_lanes_of_a_page(store_user: StoreUser) -> None:
    """The fault: with all workers dead, each page and each job added up the arrivals of all lanes."""
    storage = store_user.storage
    jobs = [store_user.new(buckets=(BucketRef("free", f"new-{number}"),)) for number in range(UNMERGED)]
    await storage.add(jobs)
    store_user.ran()
    newest = await storage.jobs(JobFilter(count=50))
    assert [job.id for job in newest] == [job.id for job in reversed(jobs[-50:])]
    assert await storage.job(jobs[0].id) is not None
    assert await storage.queue_position(jobs[0].id) is not None
    assert (await storage.prediction_input("mail", [BucketRef("free", "new-7")])).position == 2
    for each in store_user.ran():
        assert "arrival" not in each.scanned, f"{each.statement}\n{each.text}"
        # A bound of a search reads as many jobs, ten on a page that is half free.
        assert each.pages < UNMERGED / 8, f"{each.statement} looks at {each.pages} pages\n{each.text}"


async def people_get_their_pages(store_user: StoreUser) -> None:
    storage = store_user.storage
    store_user.ran()

    async def page(count: int, **filter: Any) -> StatementRun:
        found = await storage.jobs(JobFilter(**filter))
        assert len(found) == count
        ids = [job.id for job in found]
        assert ids == sorted(ids, reverse=not filter.get("oldest_first"))
        listed = [each for each in store_user.ran() if "jobs" in each.statement and "count" not in each.statement]
        # Portions are read until the page is full.
        return listed[-1]._replace(
            pages=sum(each.pages for each in listed), scanned=frozenset().union(*(each.scanned for each in listed))
        )

    # By an index: what is asked for is met at once, wherever the page begins.
    for filter in (
        {},
        {"tag": "common"},
        {"tag": "common", "cursor": BACKLOG.id(ROWS // 3)},
        {"tag": "common", "oldest_first": True},
        {"tag": "common", "task": "send"},
        {"cursor": BACKLOG.id(ROWS // 3)},
        {"state": JobState.WAITING},
        {"state": JobState.FAILED},
        {"state": JobState.FAILED, "cursor": BACKLOG.id(ROWS // 3)},
        {"queue": "mail"},
        {"task": "send"},
        {"limit": "api"},
        {"view": "ready"},
        {"view": "throttled"},
        {"node": "gone"},
        {"text": "somebody@"},
        {"oldest_first": True, "cursor": BACKLOG.id(ROWS // 3)},
        {"enqueued_after": to_datetime(0)},
    ):
        ran = await page(50, **filter)
        assert ran.pages < 1000, f"{filter} looks at {ran.pages} pages\n{ran.text}"
        assert "job" not in ran.scanned, f"{filter}\n{ran.text}"
    # A rare tag is found at once, and so is the end of its jobs.
    ran = await page(10, tag="rare")
    assert ran.pages < 500, ran.text
    assert "job" not in ran.scanned, ran.text
    assert await storage.count_jobs(JobFilter(tag="rare"), 1000) == 10
    for each in store_user.ran():
        assert not each.scanned & LARGE, each.text
        assert each.pages < 500, each.text
    # What is rare has no index, as each would cost every job: such a page reads the table once, and not more.
    size = await ask(store_user.url, "SELECT pg_relation_size('headgate.job') / 8192")
    for filter in ({"queue": "rare"}, {"task": "absent"}, {"state": JobState.WAITING, "task": "absent"}):
        ran = await page(0, **filter)
        assert ran.pages < 1.3 * size, f"{filter} looks at {ran.pages} pages of {size}\n{ran.text}"

    # A bounded page, or count, reads some thousand jobs, however many there are and whatever passes.
    bounded: tuple[dict[str, Any], ...] = (
        {},
        {"tag": "common"},
        {"tag": "common", "task": "absent"},
        {"header": "source=api"},
        {"annotation": "invoice=42"},
        {"state": JobState.FAILED},
        {"state": JobState.WAITING, "task": "absent"},
        {"view": "ready"},
        {"view": "throttled", "task": "absent"},
        {"view": "scheduled"},
        {"text": "nobody"},
    )
    for filter in bounded:
        await storage.page(JobFilter(**filter))
        await storage.bounded_count(JobFilter(**filter), 10_000)
        for each in store_user.ran():
            assert not each.scanned & LARGE, f"{filter}\n{each.text}"
            assert each.pages < 8 * AT_ONCE, f"{filter}: {each.statement} looks at {each.pages} pages\n{each.text}"

    # The last failures are found in an index that has their instants, however many jobs there are.
    store_user.ran()
    for since in (0, storage.now() - HOUR // 2):
        failed = await storage.newest_failed(since, 200)
        assert len(await storage.job_errors(failed)) == len(failed) > 0
        assert await storage.newest_attempts(200)
        for each in store_user.ran():
            assert not each.scanned & LARGE, each.text
            assert each.pages < ROWS // 20, f"{each.statement} looks at {each.pages} pages\n{each.text}"

    # One of a hundred is, so that fifty are found where five thousand were enqueued.
    ran = await page(50, view="scheduled")
    assert ran.pages < size / 2, ran.text

    # A node that drains asks this ten times a second, also where nothing runs: lanes for their first jobs.
    cancelled = "state = 'cancelled', finished_at = 1, failed_as = 'cancelled', failed_at = 1"
    await ask(store_user.url, f"UPDATE headgate.job SET {cancelled} WHERE state = 'running'")
    for tasks, ready_only in ((TASKS, True), (TASKS, False), (frozenset({"absent"}), True)):
        assert await storage.is_work_left({"mail"}, tasks, ready_only=ready_only) is (tasks is TASKS)
        (ran,) = [each for each in store_user.ran() if each.statement == "is_work_left"]
        assert "job" not in ran.scanned, ran.text
        assert tasks is not TASKS or ran.pages < 800, ran.text

    # Starts are looked for where they lie: the last ones are a few pages away.
    assert len(await storage.starts("api", None, storage.limit_now() - 60 * SECOND)) > 20
    (ran,) = [each for each in store_user.ran() if each.statement == "starts"]
    assert "job" not in ran.scanned, ran.text
    assert ran.pages < size / 3, ran.text

    await storage.queue_position(BACKLOG.newest)
    await storage.queues()
    await storage.buckets()
    counts = {each.queue: each for each in await storage.counts()}
    assert counts["mail"].waiting > ROWS // 4
    most = {each.statement: each.pages for each in store_user.ran()}
    # A lane costs about twenty pages however many jobs wait in it, a bucket three; counts reads final jobs.
    assert most["queue_position"] < size
    assert most["queues"] < 30 * Backlog.LANES
    assert most["buckets_by_waiting"] < 10 * Backlog.LANES
    assert most["counts"] < 1.2 * size
    await storage.counts(finals=False)
    await storage.count_unfinished()
    assert len(await storage.buckets_by_trouble(501)) == 501
    assert (await storage.waiting_by_key("mail", 20)).keys == 0
    await storage.add([store_user.new(id=f"order-{number}") for number in range(5000)])
    assert len(await storage.jobs_beginning(BACKLOG.newest[:4], 6)) == 6
    assert len(await storage.jobs_beginning("order", 6)) == 6
    assert await storage.batch_ids("0000", 6) == []
    assert len(await storage.keys(["absent", "api"], "1", 6)) == 6
    await storage.buckets(prefix="k", after=BucketPlace(True, 10**9, "", ""))
    most = {each.statement: each.pages for each in store_user.ran()}
    assert most["counts"] < 30 * Backlog.LANES
    assert most["buckets_by_waiting"] < 10 * Backlog.LANES
    assert most["buckets_by_trouble"] < 10 * Backlog.LANES
    assert most["count_unfinished"] < 10 * Backlog.LANES
    assert most["lanes_in_turn"] < 10 * Backlog.LANES
    assert most["job_ids"] + most["batch_ids"] + most["buckets_by_name"] < 200


async def charts_read_their_own_curves(store_user: StoreUser) -> None:
    """The history of a thousand other tasks and keys slows down no read and no deletion."""
    storage = store_user.storage
    await ask(store_user.url, JOBS_HISTORY)
    await ask(store_user.url, LIMIT_HISTORY)
    store_user.ran()
    assert len(await storage.jobs_history(60, "mail", "task 7", 0)) == 60
    assert len(await storage.jobs_history(60, ALL, "task 7", 0)) == 60
    assert len(await storage.recent_history(60, 55, 500)) == 500
    assert len(await storage.limit_history(10, "api", "key 7", 0)) == 60
    places = [JobsStep(60, "mail", f"task {number}", number, enqueued=1) for number in range(50)]
    uses = [LimitStep(10, "api", f"key {number}", number, 1) for number in range(50)]
    await storage.add_history(places, uses)
    await storage.add_history(places, uses)
    await ask(
        store_user.url,
        "INSERT INTO headgate.history_note (queue, task, at, enqueued, failed, cancelled, skipped) "
        "SELECT 'mail', 'task 1', 1e15, 0, 0, 1, 0 FROM generate_series(0, 999) AS n",
    )
    assert await storage.gather_history(500) == 500
    assert await storage.prune_history(60, 2, 500) == 500
    assert await storage.prune_history(10, 2, 500) == 500
    ran = store_user.ran()
    about = {each.statement for each in ran if "history" in each.statement}
    assert len(about) == 10
    for each in ran:
        assert not each.scanned & {"jobs_history", "limit_history"}, f"{each.statement}\n{each.text}"
        assert each.pages <= 3000, f"{each.statement} looks at {each.pages} pages\n{each.text}"


JOBS_HISTORY = """
INSERT INTO headgate.jobs_history
SELECT 60, 'mail', 'task ' || n % 1000, n / 1000, 1, 1, 1, 0, 0, 0, 0, 5, 5, '[1]', '[1]'
FROM generate_series(0, 59999) AS n
"""

LIMIT_HISTORY = """
INSERT INTO headgate.limit_history
SELECT 10, 'api', false, 'key ' || n % 1000, n / 1000, 1 FROM generate_series(0, 59999) AS n
"""


def statements(ran: list[StatementRun]) -> set[str]:
    return {each.statement for each in ran}


async def test_a_claim_and_its_end_are_not_planned_anew_each_time(tmp_path: Path) -> None:
    """The fault: asyncpg keeps no statement of more than 15 KiB, so a snapshot took 4.7 instead of 0.8 ms."""
    fair = PREFIX + "turns"
    rules = {**RULES, fair: FairOrder("{tenant}", {}).rule}
    slots = {"mail": FreeSlots(50), "turns": FreeSlots(50)}
    ids = IdSource()
    with server_in(tmp_path) as server:
        storage = PostgresStorage(server.url, SystemClock())
        await storage.open()
        await storage.join("n", "node")
        now = storage.now()
        uses = [
            *(("mail", ()) for _ in range(1000)),
            *(("mail", (BucketRef("free", str(number)),)) for number in range(1000)),
            *(("turns", (BucketRef(fair, f"{number % 50}{BETWEEN_LEVELS}{number}"),)) for number in range(1000)),
        ]
        await storage.add([
            NewJob(
                id=ids.next(now), task="send", queue=queue, payload=PAYLOAD, priority=0, delayed=False, run_at=now,
                enqueued_at=now, buckets=buckets,
            )
            for queue, buckets in uses
        ])  # fmt: skip
        claimed: Counter[str] = Counter()
        for _ in range(20):
            jobs = (await storage.claim(Claim("n", slots, rules, TASKS))).jobs
            claimed.update(job.queue for job in jobs)
            assert all(await storage.finish("n", [Finished(job.id, job.fence, JobState.SUCCEEDED) for job in jobs]))
        kept = await storage._database.run(
            lambda session: session._connection.fetch(
                "SELECT statement, custom_plans, generic_plans FROM pg_prepared_statements"
            )
        )
        snapshot = statements_of("headgate")["claim_snapshot"]
        assert isinstance(snapshot, CompiledStatement)
        await storage.close()
    assert min(claimed["mail"], claimed["turns"]) >= 500
    assert {row["statement"]: row["generic_plans"] > 0 for row in kept}[snapshot.sql]
    assert [row["statement"] for row in kept if row["custom_plans"] > 5 and not row["generic_plans"]] == []


async def test_a_lane_of_many_jobs_is_asked_for_one_of_them_however_many_have_ended(tmp_path: Path) -> None:
    """The fault: where nearly all jobs wait in one lane, a worker that drains read all that had ended before them."""
    with server_in(tmp_path, *EXPLAINING) as server:
        storage = PostgresStorage(server.url, SystemClock())
        await storage.open()
        store_user = StoreUser(server.url, storage, Plans(tmp_path / "postgres.log"))
        await storage.add([store_user.new()])
        changed = ("id", "state", "waiting", "finished_at")
        where = "table_schema = 'headgate' AND table_name = 'job' AND is_generated = 'NEVER'"
        columns = f"SELECT string_agg(column_name, ', ') FROM information_schema.columns WHERE {where}"
        others = await ask(server.url, f"{columns} AND column_name <> ALL($1)", changed)
        for values, copies in (("'succeeded', false, 1", "1, 100000"), ("state, true, NULL", "100001, 200000")):
            copied = f"SELECT id + number, {values}, {others} FROM headgate.job, generate_series({copies}) AS number"
            into = f"INSERT INTO headgate.job ({', '.join(changed)}, {others})"
            await ask(server.url, f"{into} {copied} WHERE waiting")
        await ask(server.url, "DELETE FROM headgate.job WHERE id = (SELECT min(id) FROM headgate.job)")
        await ask(server.url, "VACUUM ANALYZE headgate.job")
        store_user.ran()
        assert await storage.is_work_left({"mail"}, TASKS, ready_only=False)
        (ran,) = [each for each in store_user.ran() if each.statement == "is_work_left"]
        assert "job" not in ran.scanned, ran.text
        await storage.close()
