"""What each verb about one job answers in each state of the job: the same words on every store, and nothing changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.errors import DuplicateJob, IllegalTransition, LeaderNotFound, LeaderNotRetried, LimitInUse
from headgate.jobs.audit import AuditFilter, AuditRecord
from headgate.jobs.job import JobState, Origin
from headgate.jobs.lifecycle import Unchanged
from headgate.limits.kinds import dump_rule
from headgate.storage.live_rules import LimitSetting
from headgate.storage.store import Store
from tests.conformance.storage_suite.store_user import Conformance, StoreUser, at_once, strict
from tests.limit_settings import change

Verb = Callable[[Store, str], Awaitable[JobState | None]]

STATES = ("waiting", "scheduled", "blocked", "running", "succeeded", "failed", "cancelled")

VERBS: dict[str, Verb] = {
    "cancel": lambda storage, id: storage.cancel(id, audit_record=_audit_record("cancel", id)),
    "retry": lambda storage, id: storage.retry(id, audit_record=_audit_record("retry", id)),
    "run now": lambda storage, id: storage.run_now(id, audit_record=_audit_record("run now", id)),
    "reschedule": lambda storage, id: storage.reschedule(id, priority=7, audit_record=_audit_record("reschedule", id)),
}

_RETRY = "job {id} is {state}; only a failed or cancelled one can be retried"
_RUN_NOW = "job {id} is {state}; only a job that waits for its time can be run now"
_RESCHEDULE = "job {id} is {state}; only the time or priority of a waiting job can be changed"

REFUSALS: dict[tuple[str, str], str] = {
    **{("retry", state): _RETRY for state in ("waiting", "scheduled", "blocked", "running", "succeeded")},
    **{("run now", state): _RUN_NOW for state in ("running", "succeeded", "failed", "cancelled")},
    **{("reschedule", state): _RESCHEDULE for state in ("running", "succeeded", "failed", "cancelled")},
    ("run now", "waiting"): (
        "job {id} does not wait for its time, which has come, but for a limit or a free slot; "
        "run `headgate jobs explain {id}` to see which"
    ),
    ("run now", "blocked"): "job {id} is blocked: it waits until {leader} is final",
}
"""What is refused, by verb and state; everything else is done."""

UNCHANGED = {("cancel", "succeeded"), ("cancel", "failed"), ("cancel", "cancelled")}
"""What is no error and changes nothing: the state that is answered says so."""

BECOMES = {
    ("cancel", "waiting"): "cancelled",
    ("cancel", "scheduled"): "cancelled",
    ("cancel", "blocked"): "cancelled",
    ("cancel", "running"): "running",
}


def _audit_record(action: str, id: str) -> AuditRecord:
    return AuditRecord("ada", action, "job", id)


async def _leader_and_job(store_user: StoreUser, state: str) -> tuple[str, str]:
    """A job in that state; what it follows is its leader."""
    leader = await store_user.add_one()
    if state == "blocked":
        job = replace(store_user.new(), origin=Origin(follows=leader))
        await store_user.storage.add([job])
        return leader, job.id
    await store_user.storage.cancel(leader)
    id = await store_user.add_one(delay=3600 if state == "scheduled" else None)
    if state in ("running", "succeeded", "failed"):
        running = await store_user.take_one()
        if state == "succeeded":
            await store_user.succeed(running)
        elif state == "failed":
            await store_user.fail(running)
    elif state == "cancelled":
        await store_user.storage.cancel(id)
    return leader, id


class RefusalsConformance(Conformance):
    @pytest.mark.parametrize("verb", VERBS)
    @pytest.mark.parametrize("state", STATES)
    async def test_each_operation_returns_the_same_for_each_state_on_every_store(
        self, store_user: StoreUser, verb: str, state: str
    ) -> None:
        storage = store_user.storage
        leader, id = await _leader_and_job(store_user, state)
        before = await store_user.record(id)
        refusal = REFUSALS.get((verb, state))
        if refusal is not None:
            with pytest.raises(IllegalTransition) as caught:
                await VERBS[verb](storage, id)
            assert type(caught.value) is IllegalTransition
            assert str(caught.value) == refusal.format(id=id, state=before.state, leader=leader)
        else:
            assert await VERBS[verb](storage, id) is before.state
        entries = [entry.action for entry in await storage.audit_log(AuditFilter(subject=id))]
        after = await store_user.record(id)
        if refusal is not None or (verb, state) in UNCHANGED:
            assert after == before
            assert entries == []
            return
        assert entries == [verb]
        assert after != before
        assert after.state == BECOMES.get((verb, state), "waiting")
        assert after.cancel_requested == (verb == "cancel" and state == "running")
        assert after.is_blocked == (state == "blocked" and verb != "cancel")
        if verb == "reschedule":
            assert after.priority == 7
        assert await storage.check() == []

    @pytest.mark.parametrize(("verb", "state"), [("cancel", "running"), *(("reschedule", each) for each in STATES[:3])])
    async def test_an_operation_that_was_done_before_changes_and_records_nothing(
        self, store_user: StoreUser, verb: str, state: str
    ) -> None:
        _, id = await _leader_and_job(store_user, state)
        await VERBS[verb](store_user.storage, id)
        before = await store_user.record(id)
        with pytest.raises(Unchanged):
            await VERBS[verb](store_user.storage, id)
        assert await store_user.record(id) == before
        assert len(await store_user.storage.audit_log(AuditFilter(subject=id))) == 1

    @pytest.mark.parametrize("verb", VERBS)
    async def test_every_operation_on_an_unknown_job_returns_none(self, store_user: StoreUser, verb: str) -> None:
        assert await VERBS[verb](store_user.storage, "nobody") is None
        assert await store_user.storage.audit_log(AuditFilter(subject="nobody")) == []

    async def test_a_refused_retry_names_the_job_that_blocks_it(self, store_user: StoreUser) -> None:
        storage = store_user.storage
        leader = await store_user.add_one()
        follower = replace(store_user.new(), origin=Origin(follows=leader))
        await storage.add([follower])
        await storage.cancel(leader)
        with pytest.raises(LeaderNotRetried) as not_first:
            await storage.retry(follower.id)
        assert str(not_first.value) == (
            f"job {follower.id} follows {leader}, and runs only after that has succeeded: {leader} was cancelled; "
            f"retry {leader} first, which also brings back the jobs that were cancelled because of it"
        )
        first, second = (replace(store_user.new(), unique_key="acme") for _ in range(2))
        await storage.add([first])
        await storage.cancel(first.id)
        await storage.add([second])
        with pytest.raises(IllegalTransition) as taken:
            await storage.retry(first.id)
        assert str(taken.value) == (
            f"job {first.id} cannot wait again: job {second.id} waits with the same unique key; cancel that job "
            "first, or let it run"
        )

    async def test_refusals_have_the_same_message_on_every_store(self, store_user: StoreUser) -> None:
        storage = store_user.storage
        lost = replace(store_user.new(), origin=Origin(follows="nobody"))
        with pytest.raises(LeaderNotFound) as unknown:
            await storage.add([lost])
        assert str(unknown.value) == str(LeaderNotFound(lost.id, "nobody"))
        first, second = (replace(store_user.new(), unique_key="acme", on_conflict="raise") for _ in range(2))
        await storage.add([first])
        with pytest.raises(DuplicateJob) as duplicate:
            await storage.add([second])
        assert first.id in str(duplicate.value)
        assert await storage.job(lost.id) is None
        assert await storage.job(second.id) is None

    async def test_a_limit_in_use_is_not_removed_and_the_error_has_the_number_of_jobs(
        self, store_user: StoreUser
    ) -> None:
        store_user.rules = {"api": at_once(1)}
        await store_user.add(3, buckets=[("api", "acme")])
        await store_user.take_one()
        with pytest.raises(LimitInUse) as caught:
            await store_user.storage.forget("api")
        assert str(caught.value) == (
            "limit 'api' cannot be removed while it is in use (waiting jobs: 2, held permits: 1); cancel the jobs or "
            "let them finish first"
        )

    async def test_a_change_to_the_same_state_is_not_an_error(self, store_user: StoreUser) -> None:
        storage = store_user.storage
        assert await storage.pause_queue("default")
        assert not await storage.pause_queue("default")
        assert await storage.resume_queue("default")
        assert not await storage.resume_queue("default")
        assert not await storage.remove_schedule("nothing")
        setting = LimitSetting("nothing", "all", rule=dump_rule(strict(1)))
        await change(storage, setting, remove=True)
        await storage.forget("nothing")
        assert list(await storage.settings()) == []
        assert await storage.recover("nobody", 0) is None
        assert await storage.cancels("nobody", ["any"]) == frozenset()
        assert await storage.batch("nobody") is None
        assert list(await storage.attempts("nobody")) == []
        assert not (await storage.delete(["nobody"], finished_before=0)).deleted

    async def test_a_time_in_the_past_is_not_refused(self, store_user: StoreUser) -> None:
        id = await store_user.add_one(delay=60)
        past = store_user.clock.now() - 60 * SECOND
        assert await store_user.storage.reschedule(id, run_at=past) is JobState.WAITING
        assert await store_user.take_ids() == [id]
