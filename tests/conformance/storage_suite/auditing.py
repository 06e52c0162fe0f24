"""What is promised of the audit trail, of running a job now, and of retention by state."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.errors import IllegalTransition
from headgate.jobs.audit import (
    LONGEST_ACTOR,
    LONGEST_DETAIL,
    AuditEntry,
    AuditFilter,
    AuditLevel,
    AuditRecord,
    SubjectKind,
)
from headgate.jobs.job import Draw, JobError, JobState, Progress
from headgate.jobs.report import AttemptReport, LogLine
from headgate.storage.live_rules import LimitSetting
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.hands import BOOM, Conformance, Hands, recover, strict
from tests.limit_settings import change


def audit_record(action: str, subject: str, kind: SubjectKind = "job", detail: str | None = None) -> AuditRecord:
    return AuditRecord("ada@here", action, kind, subject, detail)


async def entries(hands: Hands, **filter: object) -> list[AuditEntry]:
    return list(await hands.storage.audit_log(AuditFilter(**filter)))  # type: ignore[arg-type]


async def add(hands: Hands, audit: AuditLevel = AuditLevel.FULL) -> str:
    new = replace(hands.new(), audit=audit)
    await hands.storage.add([new])
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
        self, hands: Hands, clock: ManualClock, audit: AuditLevel, kept: list[str]
    ) -> None:
        id = await add(hands, audit)
        assert (await hands.record(id)).audit is audit
        await hands.retry_later(await hands.take_one())
        clock.advance(10)
        await hands.give_back(await hands.take_one(), "snoozed", run_at=clock.now())
        await hands.take_one()
        await recover(hands)
        await hands.storage.join(hands.node, "a")
        await hands.fail(await hands.take_one())
        assert [attempt.outcome for attempt in await hands.storage.attempts(id)] == kept
        # Whatever is kept of its life, the job itself says how it ended.
        record = await hands.record(id)
        assert (record.state, record.error) == (JobState.FAILED, BOOM)

    # ------------------------------------------------------------------------------------------ deeds

    async def test_what_people_do_to_a_job_is_kept_in_order(self, hands: Hands, clock: ManualClock) -> None:
        id = await add(hands)
        asked_at = clock.now()
        await hands.storage.cancel(id, audit_record=audit_record("cancel", id, detail="because"))
        clock.advance(1)
        await hands.storage.retry(id, audit_record=audit_record("retry", id))
        retried, cancelled = await entries(hands, subject=id)
        assert (cancelled.at, cancelled.actor, cancelled.action) == (asked_at, "ada@here", "cancel")
        assert (cancelled.kind, cancelled.subject, cancelled.detail) == ("job", id, "because")
        assert (retried.at, retried.action, retried.detail) == (clock.now(), "retry", None)
        assert retried.number > cancelled.number

    @pytest.mark.parametrize("audit", [AuditLevel.NONE, AuditLevel.ERRORS, AuditLevel.MINIMAL])
    async def test_only_of_a_job_that_is_audited_in_full(self, hands: Hands, audit: AuditLevel) -> None:
        id = await add(hands, audit)
        await hands.storage.cancel(id, audit_record=audit_record("cancel", id))
        await hands.storage.retry(id, audit_record=audit_record("retry", id))
        assert await entries(hands) == []

    async def test_what_changes_nothing_is_not_kept(self, hands: Hands) -> None:
        """Elsewhere a job that has succeeded becomes cancelled when somebody asks for it, and nobody can tell why."""
        done, waiting = await hands.add(2)
        (job,) = await hands.take(1)
        await hands.succeed(job)
        before = await hands.record(done)
        assert await hands.storage.cancel(done, audit_record=audit_record("cancel", done)) is JobState.SUCCEEDED
        assert await hands.record(done) == before
        with pytest.raises(IllegalTransition):
            await hands.storage.retry(done, audit_record=audit_record("retry", done))
        with pytest.raises(IllegalTransition):
            await hands.storage.retry(waiting, audit_record=audit_record("retry", waiting))
        assert await hands.storage.cancel("nobody", audit_record=audit_record("cancel", "nobody")) is None
        assert await hands.storage.retry("nobody", audit_record=audit_record("retry", "nobody")) is None
        assert not await hands.storage.resume_queue("default", audit_record=audit_record("resume", "default", "queue"))
        assert await entries(hands) == []

    async def test_a_retry_that_is_refused_for_a_unique_key_changes_nothing_and_is_not_kept(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        ended, rival = (replace(hands.new(), unique_key="acme") for _ in range(2))
        await hands.storage.add([ended])
        job = await hands.take_one()
        await hands.storage.report(hands.node, [AttemptReport(job.id, job.fence, Progress(0.5, None, clock.now()))], 10)
        await hands.fail(job)
        await hands.storage.add([rival])
        before = await hands.record(ended.id)
        clock.advance(5)
        with pytest.raises(IllegalTransition, match="waits with the same unique key"):
            await hands.storage.retry(ended.id, audit_record=audit_record("retry", ended.id))
        assert await hands.record(ended.id) == before
        assert await entries(hands) == []

    async def test_what_people_do_to_limits_and_queues_is_kept(self, hands: Hands) -> None:
        storage = hands.storage
        hands.rules = {"api": strict(1)}
        await hands.succeed(*await hands.take())
        draw = Draw("api", "acme")
        await storage.pause_queue("default", audit_record=audit_record("pause", "default", "queue"))
        await storage.pause_queue("default", audit_record=audit_record("pause", "default", "queue"))
        await storage.resume_queue("default", audit_record=audit_record("resume", "default", "queue"))
        setting = LimitSetting("api", "all", "", is_paused=True)
        await change(storage, setting, audit_record=audit_record("pause", "api", "limit", "all keys"))
        await change(storage, setting, remove=True, audit_record=audit_record("resume", "api", "limit", "all keys"))
        await storage.penalize(
            draw, storage.limit_now() + SECOND, audit_record=audit_record("penalize", "api", "limit", "key 'acme'")
        )
        await storage.reset(draw, audit_record=audit_record("reset", "api", "limit", "key 'acme'"))
        await storage.forget("api", audit_record=audit_record("remove", "api", "limit"))
        await storage.forget("nothing", audit_record=audit_record("remove", "nothing", "limit"))
        await storage.add_audit_record(audit_record("pause", "nightly", "schedule"))
        kept = [(entry.kind, entry.subject, entry.action, entry.detail) for entry in await entries(hands)]
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

    async def test_the_log_is_read_by_page_subject_kind_and_actor(self, hands: Hands) -> None:
        for number in range(5):
            await hands.storage.add_audit_record(AuditRecord("ada", f"did {number}", "queue", "default"))
        await hands.storage.add_audit_record(AuditRecord("bob", "did", "limit", "default"))
        newest, *others = await entries(hands)
        assert [entry.action for entry in others] == [f"did {number}" for number in (4, 3, 2, 1, 0)]
        assert await entries(hands, actor="bob") == await entries(hands, kind="limit") == [newest]
        assert await entries(hands, subject="default") == [newest, *others]
        assert await entries(hands, subject="default", kind="queue", actor="ada") == others
        assert await entries(hands, count=2, before=others[0].number) == others[1:3]
        assert await entries(hands, count=2, before=others[0].number, subject="default") == others[1:3]
        assert await entries(hands, subject="other") == []

    async def test_a_deed_is_cut_to_what_a_row_should_hold(self, hands: Hands) -> None:
        await hands.storage.add_audit_record(AuditRecord("a" * 500, "did", "queue", "default", "d" * 5000))
        (entry,) = await entries(hands)
        assert (len(entry.actor), len(entry.detail or "")) == (LONGEST_ACTOR, LONGEST_DETAIL)

    # ---------------------------------------------------------------------------------------- run now

    async def test_a_job_that_waits_for_its_time_can_be_run_now(self, hands: Hands, clock: ManualClock) -> None:
        later, latest = await hands.add(2, delay=3600)
        assert await hands.take() == []
        clock.advance(5)
        assert await hands.storage.run_now(latest, audit_record=audit_record("run now", latest)) is JobState.WAITING
        record = await hands.record(latest)
        assert (record.run_at, record.delayed) == (clock.now(), False)
        assert await hands.take_ids() == [latest]
        assert (await hands.record(later)).state is JobState.WAITING
        assert (await hands.counts()).waiting == 1
        assert [entry.action for entry in await entries(hands)] == ["run now"]
        clock.advance(3600)
        assert await hands.take_ids() == [later]

    async def test_a_retry_can_be_run_now(self, hands: Hands) -> None:
        await hands.add()
        job = await hands.take_one()
        await hands.retry_later(job, 3600)
        await hands.storage.run_now(job.id)
        assert (await hands.take_one()).attempt == 2

    async def test_running_now_passes_no_limit(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1)}
        (first, second), (delayed,) = (
            await hands.add(2, draws=[("api", "acme")]),
            await hands.add(1, draws=[("api", "acme")], delay=3600),
        )
        assert await hands.take_ids() == [first]
        await hands.storage.run_now(delayed)
        assert await hands.take_ids() == []
        with pytest.raises(IllegalTransition, match="does not wait for its time"):
            await hands.storage.run_now(second)
        with pytest.raises(IllegalTransition, match="does not wait for its time"):
            await hands.storage.run_now(delayed)
        clock.advance(60)
        assert len(await hands.take_ids()) == 1
        clock.advance(60)
        assert len(await hands.take_ids()) == 1

    async def test_running_now_wakes_a_lane_that_slept(self, hands: Hands) -> None:
        hands.rules = {"api": strict(5)}
        id = await hands.add_one(draws=[("api", "acme")], delay=3600)
        assert await hands.take() == []
        await hands.storage.run_now(id)
        assert await hands.take_ids() == [id]

    async def test_only_a_job_that_waits_can_be_run_now(self, hands: Hands) -> None:
        await hands.add(2)
        running, done = await hands.take()
        await hands.succeed(done)
        for id in (running.id, done.id):
            with pytest.raises(IllegalTransition):
                await hands.storage.run_now(id, audit_record=audit_record("run now", id))
        assert await hands.storage.run_now("nobody") is None
        assert await entries(hands) == []

    async def test_patience_begins_when_a_job_is_run_now(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1)}
        await hands.add(1, draws=[("api", "acme")])
        await hands.take()
        id = await hands.add_one(draws=[("api", "acme")], delay=3600, patience=30)
        await hands.storage.run_now(id)
        clock.advance(29)
        assert list(await hands.storage.expire()) == []
        clock.advance(2)
        assert [dropped.id for dropped in await hands.storage.expire()] == [id]

    # -------------------------------------------------------------------------------------- retention

    async def test_jobs_are_pruned_by_how_they_ended(self, hands: Hands, clock: ManualClock) -> None:
        succeeded, failed, cancelled, running, waiting = await hands.add(5)
        jobs = await hands.take(4)
        await hands.succeed(jobs[0])
        await hands.fail(jobs[1])
        await hands.storage.cancel(jobs[2].id)
        await hands.give_back(jobs[2])
        clock.advance(10)
        assert await hands.storage.prune(clock.now(), states=frozenset({JobState.SUCCEEDED})) == 1
        assert await hands.storage.job(succeeded) is None
        assert await hands.storage.prune(clock.now(), states=frozenset({JobState.SUCCEEDED})) == 0
        assert await hands.storage.prune(clock.now(), states=frozenset({JobState.CANCELLED})) == 1
        assert await hands.storage.job(cancelled) is None
        assert await hands.states([failed, running, waiting]) == [
            JobState.FAILED,
            JobState.RUNNING,
            JobState.WAITING,
        ]
        assert await hands.storage.prune(clock.now()) == 1

    async def test_with_a_job_goes_all_that_is_known_of_it(self, hands: Hands, clock: ManualClock) -> None:
        gone, kept = await add(hands), await add(hands)
        jobs = await hands.take()
        line = LogLine(1 << 20, clock.now(), 1, 20, "app", "hello")
        reports = [AttemptReport(job.id, job.fence, None, (line,)) for job in jobs]
        assert list(await hands.storage.report(hands.node, reports, 10)) == [True, True]
        await hands.fail(*jobs)
        for id in (gone, kept):
            await hands.storage.retry(id, audit_record=audit_record("retry", id))
        again = {job.id: job for job in await hands.take()}
        await hands.fail(again[gone])
        clock.advance(10)
        assert await hands.storage.prune(clock.now()) == 1
        for id, count in ((gone, 0), (kept, 1)):
            assert len(await hands.storage.attempts(id)) == count
            assert len(await hands.storage.logs(id)) == count
            assert len(await entries(hands, subject=id)) == count

    async def test_jobs_that_have_logged_much_are_pruned_a_few_at_a_time(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        """A commit that deletes half a million lines would keep everybody else waiting."""
        await hands.add(8)
        jobs = await hands.take()
        lines = tuple(LogLine(number, clock.now(), 1, 20, "app", "x") for number in range(1, 2001))
        await hands.storage.report(hands.node, [AttemptReport(job.id, job.fence, None, lines) for job in jobs], 5000)
        await hands.succeed(*jobs)
        clock.advance(1)
        pruned = [await hands.storage.prune(clock.now(), count=500) for _ in range(9)]
        assert (sum(pruned), pruned[-1]) == (8, 0)

    async def test_what_was_done_to_limits_and_queues_is_pruned_by_its_age(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        id = await add(hands)
        await hands.storage.cancel(id, audit_record=audit_record("cancel", id))
        for number in range(3):
            await hands.storage.add_audit_record(audit_record(f"did {number}", "default", "queue"))
            clock.advance(1)
        assert await hands.storage.prune_audit(clock.now() - SECOND, count=1) == 1
        assert await hands.storage.prune_audit(clock.now() - SECOND) == 1
        assert await hands.storage.prune_audit(clock.now() - SECOND) == 0
        assert [entry.action for entry in await entries(hands)] == ["did 2", "cancel"]

    async def test_a_level_below_full_keeps_no_starts_of_attempts_that_it_does_not_keep(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        """What a limit is proved by are the starts that are kept: those of jobs, and of the attempts that are kept."""
        hands.rules = {"api": strict(10)}
        for audit in (AuditLevel.NONE, AuditLevel.FULL):
            await hands.storage.add([replace(hands.new(draws=[("api", audit.word)]), audit=audit)])
        for job in await hands.take():
            await hands.retry_later(job, 1)
        clock.advance(1)
        await hands.succeed(*await hands.take())
        starts = await hands.storage.starts("api", None, 0)
        assert sorted(start.key for start in starts) == ["full", "full", "none"]

    async def test_an_error_with_an_outcome_of_its_own_is_an_error(self, hands: Hands) -> None:
        id = await add(hands, AuditLevel.ERRORS)
        job = await hands.take_one()
        error = JobError(type="PayloadError", message="no")
        await hands.give_back(job, "unreadable", spent=True, error=error)
        (attempt,) = await hands.storage.attempts(id)
        assert (attempt.outcome, attempt.error) == ("unreadable", error)
