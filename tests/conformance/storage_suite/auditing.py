"""What is promised of the audit trail, of running a job now, and of retention by state."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.errors import IllegalTransition
from headgate.jobs.audit import (
    LONGEST_ACTOR,
    LONGEST_DETAIL,
    SIGN_OUTS_KEPT,
    AuditEntry,
    AuditFilter,
    AuditLevel,
    AuditRecord,
    SubjectKind,
)
from headgate.jobs.batch import NewBatch
from headgate.jobs.job import BucketRef, JobError, JobOptions, JobState, Origin, Progress, RetentionTerms
from headgate.jobs.report import AttemptReport, LogLine
from headgate.storage.live_rules import LimitSetting
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import BOOM, Conformance, StoreUser, recover, strict
from tests.limit_settings import change


def audit_record(action: str, subject: str, kind: SubjectKind = "job", detail: str | None = None) -> AuditRecord:
    return AuditRecord("ada@here", action, kind, subject, detail)


async def entries(store_user: StoreUser, **filter: object) -> list[AuditEntry]:
    return list(await store_user.storage.audit_log(AuditFilter(**filter)))  # type: ignore[arg-type]


async def add(store_user: StoreUser, audit: AuditLevel = AuditLevel.FULL) -> str:
    new = replace(store_user.new(), audit=audit)
    await store_user.storage.add([new])
    return new.id


class AuditingConformance(Conformance):
    # --------------------------------------------------------------------------------------- attempts

    @pytest.mark.parametrize(
        ("audit", "kept"),
        [
            (AuditLevel.NONE, []),
            (AuditLevel.ERRORS, ["failed", "lost", "failed"]),
            (AuditLevel.MINIMAL, ["failed", "snoozed", "lost", "failed"]),
            (AuditLevel.FULL, ["failed", "snoozed", "lost", "failed"]),
        ],
    )
    async def test_a_level_decides_which_attempts_are_kept(
        self, store_user: StoreUser, clock: ManualClock, audit: AuditLevel, kept: list[str]
    ) -> None:
        id = await add(store_user, audit)
        assert (await store_user.record(id)).audit is audit
        await store_user.retry_later(await store_user.take_one())
        clock.advance(10)
        await store_user.give_back(await store_user.take_one(), "snoozed", run_at=clock.now())
        await store_user.take_one()
        await recover(store_user)
        await store_user.storage.join(store_user.node, "a")
        await store_user.fail(await store_user.take_one())
        assert [attempt.outcome for attempt in await store_user.storage.attempts(id)] == kept
        # Whatever is kept of its life, the job itself says how it ended.
        record = await store_user.record(id)
        assert (record.state, record.error) == (JobState.FAILED, BOOM)

    # ------------------------------------------------------------------------------------------ deeds

    async def test_actions_of_people_on_a_job_are_recorded_in_order(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        id = await add(store_user)
        asked_at = clock.now()
        await store_user.storage.cancel(id, audit_record=audit_record("cancel", id, detail="because"))
        clock.advance(1)
        await store_user.storage.retry(id, audit_record=audit_record("retry", id))
        retried, cancelled = await entries(store_user, subject=id)
        assert (cancelled.at, cancelled.actor, cancelled.action) == (asked_at, "ada@here", "cancel")
        assert (cancelled.kind, cancelled.subject, cancelled.detail) == ("job", id, "because")
        assert (retried.at, retried.action, retried.detail) == (clock.now(), "retry", None)
        assert retried.number > cancelled.number

    @pytest.mark.parametrize("audit", [AuditLevel.NONE, AuditLevel.ERRORS, AuditLevel.MINIMAL])
    async def test_actions_are_recorded_only_at_the_level_full(self, store_user: StoreUser, audit: AuditLevel) -> None:
        id = await add(store_user, audit)
        await store_user.storage.cancel(id, audit_record=audit_record("cancel", id))
        await store_user.storage.retry(id, audit_record=audit_record("retry", id))
        assert await entries(store_user) == []

    async def test_actions_that_change_nothing_are_not_recorded(self, store_user: StoreUser) -> None:
        """In other engines a request can cancel a job that has succeeded, and no record says why."""
        done, waiting = await store_user.add(2)
        (job,) = await store_user.take(1)
        await store_user.succeed(job)
        before = await store_user.record(done)
        assert await store_user.storage.cancel(done, audit_record=audit_record("cancel", done)) is JobState.SUCCEEDED
        assert await store_user.record(done) == before
        with pytest.raises(IllegalTransition):
            await store_user.storage.retry(done, audit_record=audit_record("retry", done))
        with pytest.raises(IllegalTransition):
            await store_user.storage.retry(waiting, audit_record=audit_record("retry", waiting))
        assert await store_user.storage.cancel("nobody", audit_record=audit_record("cancel", "nobody")) is None
        assert await store_user.storage.retry("nobody", audit_record=audit_record("retry", "nobody")) is None
        assert not await store_user.storage.resume_queue(
            "default", audit_record=audit_record("resume", "default", "queue")
        )
        assert await entries(store_user) == []

    async def test_jobs_retried_together_are_recorded_if_they_are_audited_in_full(self, store_user: StoreUser) -> None:
        full, minimal, waiting = [
            await add(store_user, audit) for audit in (AuditLevel.FULL, AuditLevel.MINIMAL, AuditLevel.FULL)
        ]
        for id in (full, minimal):
            await store_user.storage.cancel(id)
        ids = [full, minimal, waiting]
        records = [audit_record("retry", id, detail="all") for id in ids]
        assert await store_user.storage.retry_lone(ids, audit_records=records) == [full, minimal]
        (recorded,) = await entries(store_user)
        assert (recorded.actor, recorded.action, recorded.detail) == ("ada@here", "retry", "all")
        assert (recorded.kind, recorded.subject) == ("job", full)

    async def test_blocked_jobs_cancelled_together_are_recorded_if_they_are_audited_in_full(
        self, store_user: StoreUser
    ) -> None:
        leader = await add(store_user, AuditLevel.FULL)
        blocked = [
            replace(store_user.new(), origin=Origin(follows=leader), audit=audit)
            for audit in (AuditLevel.FULL, AuditLevel.MINIMAL)
        ]
        await store_user.storage.add(blocked)
        ids = [leader, *(job.id for job in blocked)]
        records = [audit_record("cancel", id, detail="all") for id in ids]
        cancelled = await store_user.storage.cancel_blocked(ids, audit_records=records)
        assert sorted(cancelled) == sorted(job.id for job in blocked)
        (recorded,) = await entries(store_user)
        assert (recorded.kind, recorded.subject, recorded.detail) == ("job", blocked[0].id, "all")

    async def test_a_retry_that_is_refused_for_a_unique_key_is_not_recorded(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        ended, rival = (replace(store_user.new(), unique_key="acme") for _ in range(2))
        await store_user.storage.add([ended])
        job = await store_user.take_one()
        await store_user.storage.report(
            store_user.node, [AttemptReport(job.id, job.fence, Progress(0.5, None, clock.now()))], 10
        )
        await store_user.fail(job)
        await store_user.storage.add([rival])
        before = await store_user.record(ended.id)
        clock.advance(5)
        with pytest.raises(IllegalTransition, match="waits with the same unique key"):
            await store_user.storage.retry(ended.id, audit_record=audit_record("retry", ended.id))
        assert await store_user.record(ended.id) == before
        assert await entries(store_user) == []

    async def test_actions_on_limits_and_queues_are_recorded(self, store_user: StoreUser) -> None:
        storage = store_user.storage
        store_user.rules = {"api": strict(1)}
        await store_user.succeed(*await store_user.take())
        ref = BucketRef("api", "acme")
        await storage.pause_queue("default", audit_record=audit_record("pause", "default", "queue"))
        await storage.pause_queue("default", audit_record=audit_record("pause", "default", "queue"))
        await storage.resume_queue("default", audit_record=audit_record("resume", "default", "queue"))
        setting = LimitSetting("api", "all", "", is_paused=True)
        await change(storage, setting, audit_record=audit_record("pause", "api", "limit", "all keys"))
        await change(storage, setting, remove=True, audit_record=audit_record("resume", "api", "limit", "all keys"))
        await storage.penalize(
            ref, storage.limit_now() + SECOND, audit_record=audit_record("penalize", "api", "limit", "key 'acme'")
        )
        await storage.reset(ref, audit_record=audit_record("reset", "api", "limit", "key 'acme'"))
        await storage.forget("api", audit_record=audit_record("remove", "api", "limit"))
        await storage.forget("nothing", audit_record=audit_record("remove", "nothing", "limit"))
        await storage.add_audit_record(audit_record("pause", "nightly", "schedule"))
        kept = [(entry.kind, entry.subject, entry.action, entry.detail) for entry in await entries(store_user)]
        assert kept[::-1] == [
            ("queue", "default", "pause", None),
            ("queue", "default", "resume", None),
            ("limit", "api", "pause", "all keys"),
            ("limit", "api", "resume", "all keys"),
            ("limit", "api", "penalize", "key 'acme'"),
            ("limit", "api", "reset", "key 'acme'"),
            ("limit", "api", "remove", None),
            ("schedule", "nightly", "pause", None),
        ]

    async def test_the_log_is_read_by_page_subject_kind_and_actor(self, store_user: StoreUser) -> None:
        for number in range(5):
            await store_user.storage.add_audit_record(AuditRecord("ada", f"did {number}", "queue", "default"))
        await store_user.storage.add_audit_record(AuditRecord("bob", "did", "limit", "default"))
        newest, *others = await entries(store_user)
        assert [entry.action for entry in others] == [f"did {number}" for number in (4, 3, 2, 1, 0)]
        assert await entries(store_user, actor="bob") == await entries(store_user, kind="limit") == [newest]
        assert await entries(store_user, subject="default") == [newest, *others]
        assert await entries(store_user, subject="default", kind="queue", actor="ada") == others
        assert await entries(store_user, count=2, before=others[0].number) == others[1:3]
        assert await entries(store_user, count=2, before=others[0].number, subject="default") == others[1:3]
        assert await entries(store_user, subject="other") == []

    async def test_an_audit_record_is_cut_to_the_size_of_a_row(self, store_user: StoreUser) -> None:
        await store_user.storage.add_audit_record(AuditRecord("a" * 500, "did", "queue", "default", "d" * 5000))
        (entry,) = await entries(store_user)
        assert (len(entry.actor), len(entry.detail or "")) == (LONGEST_ACTOR, LONGEST_DETAIL)

    # ---------------------------------------------------------------------------------------- run now

    async def test_a_job_that_waits_for_its_time_can_be_run_now(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        later, latest = await store_user.add(2, delay=3600)
        assert await store_user.take() == []
        clock.advance(5)
        assert (
            await store_user.storage.run_now(latest, audit_record=audit_record("run now", latest)) is JobState.WAITING
        )
        record = await store_user.record(latest)
        assert (record.run_at, record.delayed) == (clock.now(), False)
        assert await store_user.take_ids() == [latest]
        assert (await store_user.record(later)).state is JobState.WAITING
        assert (await store_user.counts()).waiting == 1
        assert [entry.action for entry in await entries(store_user)] == ["run now"]
        clock.advance(3600)
        assert await store_user.take_ids() == [later]

    async def test_a_retry_can_be_run_now(self, store_user: StoreUser) -> None:
        await store_user.add()
        job = await store_user.take_one()
        await store_user.retry_later(job, 3600)
        await store_user.storage.run_now(job.id)
        assert (await store_user.take_one()).attempt == 2

    async def test_run_now_does_not_bypass_a_limit(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(1)}
        (first, second), (delayed,) = (
            await store_user.add(2, buckets=[("api", "acme")]),
            await store_user.add(1, buckets=[("api", "acme")], delay=3600),
        )
        assert await store_user.take_ids() == [first]
        await store_user.storage.run_now(delayed)
        assert await store_user.take_ids() == []
        with pytest.raises(IllegalTransition, match="does not wait for its time"):
            await store_user.storage.run_now(second)
        with pytest.raises(IllegalTransition, match="does not wait for its time"):
            await store_user.storage.run_now(delayed)
        clock.advance(60)
        assert len(await store_user.take_ids()) == 1
        clock.advance(60)
        assert len(await store_user.take_ids()) == 1

    async def test_run_now_wakes_a_sleeping_lane(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(5)}
        id = await store_user.add_one(buckets=[("api", "acme")], delay=3600)
        assert await store_user.take() == []
        await store_user.storage.run_now(id)
        assert await store_user.take_ids() == [id]

    async def test_only_a_job_that_waits_can_be_run_now(self, store_user: StoreUser) -> None:
        await store_user.add(2)
        running, done = await store_user.take()
        await store_user.succeed(done)
        for id in (running.id, done.id):
            with pytest.raises(IllegalTransition):
                await store_user.storage.run_now(id, audit_record=audit_record("run now", id))
        assert await store_user.storage.run_now("nobody") is None
        assert await entries(store_user) == []

    async def test_max_wait_begins_when_a_job_is_run_now(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(1, buckets=[("api", "acme")])
        await store_user.take()
        id = await store_user.add_one(buckets=[("api", "acme")], delay=3600, patience=30)
        await store_user.storage.run_now(id)
        clock.advance(29)
        assert list(await store_user.storage.expire()) == []
        clock.advance(2)
        assert [dropped.id for dropped in await store_user.storage.expire()] == [id]

    # -------------------------------------------------------------------------------------- retention

    async def test_jobs_are_pruned_by_how_they_ended(self, store_user: StoreUser, clock: ManualClock) -> None:
        succeeded, failed, cancelled, running, waiting = await store_user.add(5)
        jobs = await store_user.take(4)
        await store_user.succeed(jobs[0])
        await store_user.fail(jobs[1])
        await store_user.storage.cancel(jobs[2].id)
        await store_user.give_back(jobs[2])
        clock.advance(10)
        assert await store_user.storage.prune(clock.now(), states=frozenset({JobState.SUCCEEDED})) == 1
        assert await store_user.storage.job(succeeded) is None
        assert await store_user.storage.prune(clock.now(), states=frozenset({JobState.SUCCEEDED})) == 0
        assert await store_user.storage.prune(clock.now(), states=frozenset({JobState.CANCELLED})) == 1
        assert await store_user.storage.job(cancelled) is None
        assert await store_user.states([failed, running, waiting]) == [
            JobState.FAILED,
            JobState.RUNNING,
            JobState.WAITING,
        ]
        assert await store_user.storage.prune(clock.now()) == 1

    async def test_a_job_with_its_own_retention_is_pruned_by_that(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        own = JobOptions(retention=RetentionTerms(succeeded=0, failed=60, cancelled=None, skipped=None))
        succeeded, failed, cancelled, running = await store_user.add(4, options=own)
        (usual,) = await store_user.add()
        jobs = {job.id: job for job in await store_user.take(5)}
        await store_user.storage.cancel(cancelled)
        await store_user.give_back(jobs[cancelled])
        await store_user.succeed(jobs[usual])
        await store_user.fail(jobs[failed])
        assert await store_user.storage.prune_by_own_retention() == 0
        await store_user.succeed(jobs[succeeded])
        clock.advance(59)
        assert await store_user.storage.prune(clock.now()) == 1, "only the usual one"
        assert await store_user.storage.prune_by_own_retention() == 1
        assert await store_user.storage.job(succeeded) is None
        await store_user.storage.retry(failed)
        clock.advance(10)
        assert await store_user.storage.prune_by_own_retention() == 0, "it waits again"
        await store_user.fail(await store_user.take_one())
        clock.advance(59)
        assert await store_user.storage.prune_by_own_retention() == 0
        clock.advance(1)
        assert await store_user.storage.prune_by_own_retention() == 1
        clock.advance(10**9)
        assert await store_user.storage.prune_by_own_retention() == 0
        assert await store_user.states([cancelled, running]) == [JobState.CANCELLED, JobState.RUNNING]
        assert (await store_user.storage.delete([cancelled], finished_before=clock.now())).deleted, (
            "people may delete it"
        )

    async def test_a_job_is_not_pruned_by_its_own_retention_before_those_that_may_read_its_result(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        own = JobOptions(retention=RetentionTerms(0, 0, 0, 0))
        first = store_user.new(options=own)
        part = replace(store_user.new(options=own), origin=Origin(batch="some-batch"))
        followers = [
            replace(store_user.new(), origin=Origin(follows=first.id)),
            replace(store_user.new(), origin=Origin(follows="some-batch")),
        ]
        await store_user.storage.add([first, part, *followers], [NewBatch("some-batch", 1, clock.now())])
        await store_user.succeed(*await store_user.take(2))
        clock.advance(1)
        assert await store_user.storage.prune_by_own_retention() == 0
        assert await store_user.storage.release_followers() is not None
        following = await store_user.take(2)
        assert {job.id for job in following} == {job.id for job in followers}
        assert await store_user.storage.prune_by_own_retention() == 0
        await store_user.succeed(*following)
        assert await store_user.storage.prune_by_own_retention() == 2
        assert await store_user.storage.batch("some-batch") is None

    async def test_a_job_is_deleted_with_all_its_rows(self, store_user: StoreUser, clock: ManualClock) -> None:
        gone, kept = await add(store_user), await add(store_user)
        jobs = await store_user.take()
        line = LogLine(1 << 20, clock.now(), 1, 20, "app", "hello")
        reports = [AttemptReport(job.id, job.fence, None, (line,)) for job in jobs]
        assert list(await store_user.storage.report(store_user.node, reports, 10)) == [True, True]
        await store_user.fail(*jobs)
        for id in (gone, kept):
            await store_user.storage.retry(id, audit_record=audit_record("retry", id))
        again = {job.id: job for job in await store_user.take()}
        await store_user.fail(again[gone])
        clock.advance(10)
        assert await store_user.storage.prune(clock.now()) == 1
        for id, count in ((gone, 0), (kept, 1)):
            assert len(await store_user.storage.attempts(id)) == count
            assert len(await store_user.storage.logs(id)) == count
            assert len(await entries(store_user, subject=id)) == count

    async def test_jobs_that_have_logged_much_are_pruned_a_few_at_a_time(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        """A commit that deletes half a million lines would delay all others."""
        await store_user.add(8)
        jobs = await store_user.take()
        lines = tuple(LogLine(number, clock.now(), 1, 20, "app", "x") for number in range(1, 2001))
        await store_user.storage.report(
            store_user.node, [AttemptReport(job.id, job.fence, None, lines) for job in jobs], 5000
        )
        await store_user.succeed(*jobs)
        clock.advance(1)
        pruned = [await store_user.storage.prune(clock.now(), count=500) for _ in range(9)]
        assert (sum(pruned), pruned[-1]) == (8, 0)

    async def test_audit_records_of_limits_and_queues_are_pruned_by_age(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        id = await add(store_user)
        await store_user.storage.cancel(id, audit_record=audit_record("cancel", id))
        for number in range(3):
            await store_user.storage.add_audit_record(audit_record(f"did {number}", "default", "queue"))
            clock.advance(1)
        assert await store_user.storage.prune_audit(clock.now() - SECOND, count=1) == 1
        assert await store_user.storage.prune_audit(clock.now() - SECOND) == 1
        assert await store_user.storage.prune_audit(clock.now() - SECOND) == 0
        assert [entry.action for entry in await entries(store_user)] == ["did 2", "cancel"]

    async def test_sign_outs_are_found_by_age_and_kept_as_long_as_sessions_last_whatever_the_retention(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage = store_user.storage
        await storage.add_audit_record(audit_record("paused", "default", "queue"))
        began_at = clock.now()
        await storage.add_audit_record(audit_record("sign in", "ada", "user"))
        clock.advance(1)
        await storage.add_audit_record(audit_record("sign out", "ada", "user", "a session"))
        clock.advance(1)
        await storage.add_audit_record(audit_record("sign out everywhere", "ada", "user"))
        found = [(each.action, each.subject, each.detail) for each in await storage.sign_outs(began_at)]
        assert found == [("sign out", "ada", "a session"), ("sign out everywhere", "ada", None)]
        assert [each.action for each in await storage.sign_outs(clock.now() - SECOND // 2)] == ["sign out everywhere"]
        assert await storage.prune_audit(clock.now() + SECOND) == 1
        assert len(await storage.sign_outs(began_at)) == 2
        clock.advance(SIGN_OUTS_KEPT + 1)
        assert await storage.prune_audit(clock.now() + SECOND) == 3
        assert await storage.sign_outs(began_at) == []

    async def test_a_level_below_full_keeps_no_starts_of_attempts_that_are_not_kept(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        """What a limit is proved by are the starts that are kept: those of jobs, and of the attempts that are kept."""
        store_user.rules = {"api": strict(10)}
        for audit in (AuditLevel.NONE, AuditLevel.FULL):
            await store_user.storage.add([replace(store_user.new(buckets=[("api", audit.word)]), audit=audit)])
        for job in await store_user.take():
            await store_user.retry_later(job, 1)
        clock.advance(1)
        await store_user.succeed(*await store_user.take())
        starts = await store_user.storage.starts("api", None, 0)
        assert sorted(start.key for start in starts) == ["full", "full", "none"]

    async def test_an_error_with_an_outcome_of_its_own_is_an_error(self, store_user: StoreUser) -> None:
        id = await add(store_user, AuditLevel.ERRORS)
        job = await store_user.take_one()
        error = JobError(type="PayloadError", message="no")
        await store_user.give_back(job, "unreadable", spent=True, error=error)
        (attempt,) = await store_user.storage.attempts(id)
        assert (attempt.outcome, attempt.error) == ("unreadable", error)
