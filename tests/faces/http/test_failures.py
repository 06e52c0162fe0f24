"""Failures by root cause: what the API groups, hides and retries, on each store."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate import Headgate, JobFailed, JobState, RetryPolicy, StrictRate
from headgate.admin import JobQuery
from headgate.errors import DeclarationError
from headgate.http import BearerAuth, User, dashboard
from headgate.http.redaction import HIDDEN
from tests.faces.http.stage import PASSWORD, browser, client, make_app, problem
from tests.internals import store_of
from tests.until import result_within


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Headgate:
    if request.param == "memory":
        return with_failing_tasks(make_app())
    if request.param == "sqlite":
        return with_failing_tasks(make_app(f"sqlite:///{tmp_path}/jobs.db", synchronous="OFF"))
    schema = request.getfixturevalue("postgres_schema")
    return with_failing_tasks(make_app(request.getfixturevalue("postgres_url"), schema=schema))


def with_failing_tasks(app: Headgate) -> Headgate:
    @app.task(retry=RetryPolicy(retries=0))
    async def find(user: int) -> None:
        try:
            look_up(user)
        except LookupError as error:
            raise RuntimeError(f"order {user} cannot be paid") from error

    @app.task(retry=RetryPolicy(retries=0), limits=[StrictRate("100/m", key="{tenant}")])
    async def bill(tenant: str) -> None:
        raise ValueError("no address")

    @app.task(retry=RetryPolicy(retries=0))
    async def sign_in(password: str) -> None:
        raise ValueError(f"refused {password} of ada")

    return app


def look_up(user: int) -> None:
    raise LookupError(f"user {user} not found")


async def fail(app: Headgate, task: str, *arguments: Any) -> list[str]:
    """Run a job of the task with each argument, one after the other."""
    ids: list[str] = []
    async with app:
        for argument in arguments:
            job = await app.tasks[task].enqueue(argument)
            with suppress(JobFailed):
                await result_within(job)
            ids.append(job.id)
    return ids


async def ask(client: httpx.AsyncClient, path: str, *, expected: int = 200) -> Any:
    answer = await client.get(f"/api/v1{path}")
    assert answer.status_code == expected, answer.text
    return answer.json() if expected == 200 else problem(answer)


async def act(client: httpx.AsyncClient, body: Any, *, expected: int = 200) -> Any:
    answer = await client.post("/api/v1/jobs/bulk", json=body)
    assert answer.status_code == expected, answer.text
    return answer.json() if expected == 200 else problem(answer)


async def test_failures_are_listed_by_root_cause_and_retried_together(app: Headgate) -> None:
    ids = await fail(app, "find", 17, 18, 19)
    (other,) = await fail(app, "sign_in", "x")
    async with app.open(), browser(app) as client:
        page = await ask(client, "/failures?span=3600")
        assert (page["total"], page["read"], page["is_cut"], page["step"]) == (2, 4, False, 120)
        first, second = page["items"]
        assert (first["id"], first["task"], first["queues"]) == (ids[-1], "find", ["default"])
        place = {"file": __file__, "line": look_up.__code__.co_firstlineno + 1, "function": "look_up"}
        assert first["cause"] == {"type": "LookupError", "message": "user # not found", "place": place}
        assert first["error"] == {"type": "RuntimeError", "message": "order 19 cannot be paid"}
        assert (first["failed"], first["retrying"], sum(first["trend"]), len(first["trend"])) == (3, 0, 3, 30)
        assert second["id"] == other
        kept = await ask(client, "/failures")
        assert [group["id"] for group in kept["items"]] == [ids[-1], other]
        assert kept["since"] == first["first_at"]

        details = await ask(client, f"/failures/{ids[0]}?span=3600&jobs=2")
        assert details["group"]["id"] == ids[-1]
        assert "direct cause" in details["group"]["error"]["traceback"]
        assert [job["id"] for job in details["jobs"]] == [ids[2], ids[1]]
        assert (await ask(client, f"/jobs/{ids[0]}"))["cause"] == first["cause"] | {"message": "user 17 not found"}

        named = [job["id"] for job in (await ask(client, f"/failures/{ids[0]}?jobs=10000"))["jobs"]]
        assert sorted(named) == sorted(ids)
        request = {"action": "retry", "ids": [*named, "nobody", ids[0]]}
        counted = await act(client, request | {"dry_run": True})
        assert counted == {"matched": 3, "changed": 3, "refused": {}, "is_dry_run": True, "is_cut": False}
        assert await app.admin.count(state=JobState.FAILED) == 4
        part = await act(client, request | {"most": 2})
        assert (part["changed"], part["is_cut"]) == (2, True)
        again = await act(client, request)
        assert (again["changed"], again["refused"]) == (1, {"neither failed nor cancelled: waiting": 2})
        for id in ids:
            assert (await app.admin.status(id)).state is JobState.WAITING
            assert [(each.actor, each.action) for each in await app.admin.audit_log(subject=id)] == [("local", "retry")]
        assert [group["id"] for group in (await ask(client, "/failures?span=3600"))["items"]] == [other]
        assert await ask(client, f"/failures/{ids[0]}", expected=404) == "not_failed"


async def test_failures_name_the_deploys_of_their_time(app: Headgate) -> None:
    async with app.open():
        await store_of(app).join("n1", "n1", release="v1")
    (failed,) = await fail(app, "find", 17)
    async with app.open(), browser(app) as client:
        await store_of(app).join("n2", "n2", release="v2")
        found = await ask(client, f"/failures/{failed}?span=3600")
        assert [each["release"] for each in found["deploys"]] == ["v1", "v2"]
        assert [each["release"] for each in (await ask(client, f"/failures/{failed}"))["deploys"]] == ["v2"]


async def test_a_group_has_the_keys_that_it_hits_and_says_that_it_is_new(app: Headgate) -> None:
    await fail(app, "bill", "acme", "hooli", "acme")
    await fail(app, "find", 17)
    async with app.open(), browser(app) as client:
        of_bill, of_find = (await ask(client, "/failures?span=3600"))["items"]
        assert (of_bill["keys"], of_bill["recurrence"]) == (2, "new")
        assert of_bill["first_ever_at"] == of_bill["first_at"]
        assert (of_find["keys"], of_find["recurrence"]) == (0, "new")
        details = await ask(client, f"/failures/{of_bill['id']}?span=10")
        assert (details["group"]["keys"], details["group"]["recurrence"]) == (2, "new")


async def test_a_hidden_value_is_hidden_in_a_root_cause_too() -> None:
    app = with_failing_tasks(make_app())
    (failed,) = await fail(app, "sign_in", PASSWORD)
    async with app.open(), browser(app) as closed, browser(app, redact=None) as open_book:
        for path in ("/failures", f"/failures/{failed}", f"/jobs/{failed}"):
            assert PASSWORD not in (await closed.get(f"/api/v1{path}")).text
            assert PASSWORD in (await open_book.get(f"/api/v1{path}")).text
        (group,) = (await ask(closed, "/failures"))["items"]
        assert group["error"]["message"] == f"refused {HIDDEN} of ada"
        assert group["cause"]["message"] == f"refused {HIDDEN} of ada"
        assert group["cause"]["place"]["file"] == __file__


async def test_a_viewer_reads_failures_and_retries_none() -> None:
    app = with_failing_tasks(make_app())
    (failed,) = await fail(app, "find", 17)
    auth = BearerAuth({f"{role}-0123456789abcdef": User(role, role) for role in ("viewer", "operator")})
    async with app.open(), client(dashboard(app, auth=auth)) as caller:
        assert (await caller.get("/api/v1/failures")).status_code == 401
        for role, status in (("viewer", 403), ("operator", 200)):
            caller.headers["Authorization"] = f"Bearer {role}-0123456789abcdef"
            assert (await ask(caller, "/failures"))["total"] == 1
            answer = await caller.post("/api/v1/jobs/bulk", json={"action": "retry", "ids": [failed]})
            assert answer.status_code == status


async def test_what_cannot_be_grouped_or_changed_is_refused() -> None:
    app = with_failing_tasks(make_app())
    async with app.open(), browser(app) as client:
        waiting = await app.tasks["find"].enqueue(1)
        page = await ask(client, "/failures")
        assert (page["items"], page["total"], page["read"]) == ([], 0, 0)
        assert await ask(client, f"/failures/{waiting.id}", expected=404) == "not_failed"
        assert await ask(client, "/failures/nobody", expected=404) == "job_not_found"
        assert await ask(client, "/failures?span=0", expected=400) == "bad_request"
        assert await ask(client, f"/failures/{waiting.id}?jobs=10001", expected=400) == "bad_request"
        both = {"action": "cancel", "query": {}, "ids": [waiting.id]}
        for body in (
            {"action": "cancel"},
            both,
            {"action": "cancel", "ids": []},
            {"action": "cancel", "ids": ["x"] * 1001},
        ):
            assert await act(client, body, expected=400) == "bad_request"
        assert (await app.admin.status(waiting.id)).state is JobState.WAITING


async def test_many_jobs_are_changed_by_their_ids() -> None:
    app = with_failing_tasks(make_app())
    async with app.open():
        jobs = [await app.tasks["find"].using(delay=3600).enqueue(number) for number in range(3)]
        ids = [job.id for job in jobs]
        assert (await app.admin.run_many_now(ids[:2])).changed == 2
        assert (await app.admin.run_many_now(ids)).refused == {"it is not waiting for its time": 2}
        assert await app.admin.count(JobQuery(view="ready")) == 3
        assert (await app.admin.cancel_many(ids[:1])).changed == 1
        assert (await app.admin.cancel_many(ids)).refused == {"already cancelled": 1}
        assert (await app.admin.retry_many(ids)).changed == 3
        with pytest.raises(DeclarationError, match="a JobQuery or a list of ids"):
            await app.admin.retry_many(ids[0])
        with pytest.raises(DeclarationError, match="above 0 seconds"):
            await app.admin.failures(span=0)
