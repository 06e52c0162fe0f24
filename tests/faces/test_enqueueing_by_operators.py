"""Operators enqueue jobs and run them again, with other arguments: in code, on each database, and by the command."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from math import inf, nan
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from headgate import Every, Headgate, JobNotFound, JobState, PayloadError, RetryPolicy, StrictRate, chain, result_of
from headgate.admin import EnqueuedJob
from headgate.errors import IllegalTransition, UnknownQueue, UnknownTask
from tests.faces.one_module import OneModule, answer, call, go_into

HUGE = 2**63 + 1


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Headgate:
    options: dict[str, Any] = {"synchronous": "OFF"}
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/jobs.db"}.get(request.param)
    if url is None:
        url = request.getfixturevalue("postgres_url")
        options = {"schema": request.getfixturevalue("postgres_schema")}
    app = Headgate(url, **options)
    app.queue("mail")

    @app.task(limits=[StrictRate("15/m", key="{tenant}", name="rate")], aliases=["old_sync"])
    async def sync(tenant: str, since: int = 0) -> str:
        return tenant

    @app.task(unique_key="{order}")
    async def pay(order: str) -> None: ...

    @app.task(audit="none")
    async def quiet() -> None: ...

    return app


async def test_a_job_is_run_again_with_its_options_and_other_arguments(app: Headgate) -> None:
    async with app.open():
        first = app.tasks["sync"].using(
            queue="mail", priority=7, headers={"source": "import"}, timeout=9, retry=RetryPolicy(retries=2, delay=5),
            retention={"failed": "forever"}, keep_result=False, delay=3600, unique_key="mine",
            tags=["vip"],
        )  # fmt: skip
        old = await first.enqueue("acme", 1)
        admin = app.admin.by("ada@desk")
        new = await admin.run_again(old.id, {"tenant": "globex", "since": HUGE})
        before, after = (await admin.job(old.id)).record, (await admin.job(new.id)).record
        assert json.loads(after.payload) == {"tenant": "globex", "since": HUGE}
        assert [ref.key for ref in after.buckets] == ["globex"]
        for field in ("task", "queue", "priority", "headers", "options", "audit"):
            assert getattr(after, field) == getattr(before, field)
        assert after.options is not None
        assert after.options.tags == ("vip",)
        assert (after.state, after.delayed, after.unique_key, after.origin) == (JobState.WAITING, False, None, None)
        assert before.state is JobState.WAITING
        entries = [*await admin.audit_log(subject=new.id), *await admin.audit_log(subject=old.id)]
        assert [(each.actor, each.action, each.detail) for each in entries] == [
            ("ada@desk", "enqueue", f"again, as job {old.id}"),
            ("ada@desk", "run again", f"as job {new.id}"),
        ]


@pytest.mark.parametrize(
    "policy", [RetryPolicy(delays=[1, 2]), RetryPolicy(retries=1, delay=3), RetryPolicy(base=2, cap=9, jitter=False)]
)
async def test_another_run_is_retried_as_the_first(app: Headgate, policy: RetryPolicy) -> None:
    async with app.open():
        old = await app.tasks["sync"].using(retry=policy, audit="errors").enqueue("acme")
        new = await app.admin.run_again(old.id)
        before, after = (await app.admin.job(old.id)).record, (await app.admin.job(new.id)).record
        assert (after.options, after.audit) == (before.options, before.audit)


async def test_a_job_is_run_again_outside_of_its_chain_and_with_the_same_arguments(app: Headgate) -> None:
    async with app.open():
        chained = await chain(app.tasks["quiet"].call(), app.tasks["sync"].call("acme")).enqueue()
        new = await app.admin.run_again(chained.jobs[1].id)
        record = (await app.admin.job(new.id)).record
        assert (json.loads(record.payload), record.origin, record.is_blocked) == ({"tenant": "acme"}, None, False)
        assert await app.admin.audit_log(subject=(await app.admin.run_again(chained.jobs[0].id)).id) == []


async def test_a_job_that_gets_a_result_is_run_again_only_with_arguments(app: Headgate) -> None:
    """The fault: `since` had its default instead, so the new job did something else."""
    async with app.open():
        first = app.tasks["quiet"].call()
        chained = await chain(first, app.tasks["sync"].call("acme", since=result_of(first))).enqueue()
        with pytest.raises(PayloadError, match=r"has results of other jobs as arguments \(since\)"):
            await app.admin.run_again(chained.jobs[1].id)
        assert await app.admin.count() == 2
        new = await app.admin.run_again(chained.jobs[1].id, {"tenant": "acme", "since": 3})
        assert json.loads((await app.admin.job(new.id)).record.payload) == {"tenant": "acme", "since": 3}


async def test_a_unique_key_of_the_task_is_computed_from_the_new_arguments(app: Headgate) -> None:
    async with app.open():
        old = await app.tasks["pay"].enqueue("1")
        assert await app.admin.run_again(old.id) == EnqueuedJob(old.id, is_new=False)
        assert not (await app.tasks["pay"].enqueue("1")).is_new
        new = await app.admin.run_again(old.id, {"order": "2"})
        assert (await app.admin.job(new.id)).record.unique_key == "2"


async def test_an_enqueue_that_replaces_a_job_is_in_its_life(app: Headgate) -> None:
    """The fault: the arguments of a job were others, and no entry said who had changed them."""
    async with app.open():
        old = await app.tasks["pay"].enqueue("1")
        admin = app.admin.by("ada@desk")
        assert await admin.enqueue("pay", {"order": "1"}) == EnqueuedJob(old.id, is_new=False)
        assert await admin.audit_log(subject=old.id) == []
        assert not (await admin.enqueue("pay", {"order": "1"}, on_conflict="replace")).is_new
        assert not (await admin.enqueue("pay", {"order": "1"}, on_conflict="replace", audit="none")).is_new
        (entry,) = await admin.audit_log(subject=old.id)
        assert (entry.actor, entry.action) == ("ada@desk", "enqueue")
        assert entry.detail == "replaced what waited under its key"
        own = uuid4()
        await admin.enqueue("pay", {"order": "2"}, on_conflict="replace", id=own)
        assert not (await admin.enqueue("pay", {"order": "3"}, on_conflict="replace", id=own)).is_new
        assert len(await admin.audit_log(subject=str(own))) == 1, "it is kept as it is"


async def test_a_retry_of_many_names_the_unique_key_that_another_job_has(app: Headgate) -> None:
    """The fault: it said that the job had changed meanwhile."""
    async with app.open():
        old = await app.tasks["pay"].enqueue("1")
        await old.cancel()
        await app.tasks["pay"].enqueue("1")
        result = await app.admin.retry_many([old.id])
        assert (result.changed, result.refused) == (0, {"another job is waiting under its unique key": 1})


async def test_a_job_of_any_declared_task_is_enqueued_from_json(app: Headgate) -> None:
    async with app.open():
        id = (await app.admin.enqueue("old_sync", '{"tenant": "acme"}', queue="mail", delay=60, priority=3)).id
        status = await app.admin.status(id)
        assert (status.task, status.queue, status.priority, status.is_scheduled) == ("sync", "mail", 3, True)
        (entry,) = await app.admin.audit_log(subject=id)
        assert (entry.action, entry.detail) == ("enqueue", None)


async def test_invalid_arguments_are_refused_with_their_name_and_store_nothing(app: Headgate) -> None:
    async with app.open():
        old = await app.tasks["sync"].enqueue("acme")
        for payload, message in (
            ("{", "are not JSON"),
            ("[1]", "must be a JSON object"),
            ({"tenant": 7}, "argument 'tenant' .* does not fit its annotation"),
            ({"since": 7}, "lacks argument 'tenant'"),
            ({"tenant": "acme", "until": 7}, "has no argument 'until'; it has: tenant, since"),
            ({"tenant": {1, 2}}, "does not fit|not JSON"),
            ({"tenant": "acme", "since": nan}, "argument 'since' of task 'sync' does not survive JSON: nan comes back"),
        ):
            with pytest.raises(PayloadError, match=message):
                await app.admin.run_again(old.id, payload)
            with pytest.raises(PayloadError, match=message):
                await app.admin.enqueue("sync", payload)
        with pytest.raises(UnknownTask, match="declares no task 'synk'; did you mean 'sync'"):
            await app.admin.enqueue("synk")
        with pytest.raises(UnknownQueue):
            await app.admin.enqueue("quiet", queue="nowhere")
        with pytest.raises(JobNotFound):
            await app.admin.run_again("nobody")
        assert await app.admin.count() == 1
        assert [entry.action for entry in await app.admin.audit_log()] == []


@pytest.mark.parametrize("given", [nan, {"low": [1.0, inf]}])
async def test_a_number_that_json_lacks_is_refused_and_not_stored_as_null(app: Headgate, given: Any) -> None:
    """The fault: the handler got None."""

    @app.task
    async def measure(values: Any, *, at: datetime | None = None, where: tuple[int, int] = (0, 0)) -> None: ...

    async with app.open():
        with pytest.raises(PayloadError, match="argument 'values' of task 'measure' does not survive JSON"):
            await app.admin.enqueue("measure", {"values": given})
        with pytest.raises(PayloadError, match="argument 'values' of task 'measure' does not survive JSON"):
            await app.admin.schedules.create("hourly", "measure", Every(hours=1), {"values": given})
        at = datetime(2026, 5, 1, tzinfo=UTC)
        job = await app.admin.enqueue("measure", {"values": [1.5, None, (1, {2})], "at": at, "where": (1, 2)})
        payload = json.loads((await app.admin.job(job.id)).record.payload)
        assert payload == {"values": [1.5, None, [1, [2]]], "at": "2026-05-01T00:00:00Z", "where": [1, 2]}


async def test_a_job_that_cannot_be_read_is_not_run_again(tmp_path: Path) -> None:
    app = Headgate(f"sqlite:///{tmp_path}/jobs.db", synchronous="OFF")

    @app.task
    async def quiet() -> None: ...

    async with app.open():
        old = await quiet.using(headers={"a": "b"}).enqueue()
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as file, file:
            file.execute("UPDATE job SET headers = '[]'")
        with pytest.raises(IllegalTransition, match=r"cannot be run again: it cannot be read \(headers"):
            await app.admin.run_again(old.id)


APP = """
from headgate import Headgate

app = Headgate("sqlite:///jobs.db", synchronous="OFF")


@app.task
async def sync(tenant: str, since: int = 0) -> None: ...
"""


def test_the_command_runs_a_job_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_into(tmp_path, monkeypatch)
    project = OneModule(tmp_path, APP)
    monkeypatch.setenv("HEADGATE_APP", project.target)
    old = project.enqueue("sync", "acme")
    same = answer("jobs", "run-again", old)["job"]
    printed = call("jobs", "run-again", old, "--payload", '{"tenant": "globex", "since": 3}').output.strip()
    read = call("jobs", "run-again", old, "--payload", "-", input='{"tenant": "initech"}').output.strip()
    payloads = [shown["payload"] for shown in answer("jobs", "show", old, same, printed, read)]
    assert payloads == [
        {"tenant": "acme"}, {"tenant": "acme"}, {"tenant": "globex", "since": 3}, {"tenant": "initech"}
    ]  # fmt: skip
    refused = call("jobs", "run-again", old, "--payload", '{"tenant": 7}')
    assert refused.exit_code == 1
    assert "argument 'tenant' of task 'sync' does not fit its annotation" in refused.output
