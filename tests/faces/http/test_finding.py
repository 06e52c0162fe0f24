"""Everything is found by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate import Headgate
from headgate.admin import Found
from tests.faces.http.stage import HOSTILE, LIMIT, browser, make_app, seed
from tests.internals import store_of


@pytest.fixture(params=["sqlite", "postgres"])
def stored_app(request: pytest.FixtureRequest, tmp_path: Path) -> Headgate:
    if request.param == "sqlite":
        return make_app(f"sqlite:///{tmp_path}/jobs.db", synchronous="OFF")
    schema = request.getfixturevalue("postgres_schema")
    return make_app(request.getfixturevalue("postgres_url"), schema=schema)


async def find(client: httpx.AsyncClient, q: str, **query: str) -> list[tuple[str, str]]:
    answer = await client.get("/api/v1/find", params={"q": q, **query})
    assert answer.status_code == 200, answer.text
    return [(each["kind"], each["name"]) for each in answer.json()["items"]]


async def test_each_kind_is_found_by_its_name() -> None:
    app = make_app()
    async with app.open():
        seeds = await seed(app)
        await store_of(app).join("node-7", "worker-a")
        async with browser(app) as client:
            assert await find(client, seeds.failed) == [("job", seeds.failed)]
            assert await find(client, seeds.batch) == [("batch", seeds.batch)]
            assert {kind for kind, _ in await find(client, seeds.failed[:8], kind="job")} == {"job"}
            assert ("task", "answer") in await find(client, "NSWE")
            assert await find(client, "default") == [("queue", "default")]
            assert await find(client, "bucket/<b>") == [("limit", LIMIT)]
            assert ("key", HOSTILE) in await find(client, "a/b?c=")
            assert set(await find(client, "our")) == {("schedule", "hourly"), ("task", "hourly")}
            assert await find(client, "worker") == [("node", "worker-a")]
            assert await find(client, "nothing is called so") == []
            # Without a text, some of each kind but jobs, batches and keys.
            assert {kind for kind, _ in await find(client, "")} == {"task", "queue", "limit", "schedule", "node"}


async def test_a_found_queue_or_key_says_whether_it_is_paused(stored_app: Headgate) -> None:
    app = stored_app

    async def paused(client: httpx.AsyncClient, q: str) -> dict[str, bool | None]:
        answer = (await client.get("/api/v1/find", params={"q": q})).json()
        return {each["kind"]: each["is_paused"] for each in answer["items"]}

    async with app.open():
        await seed(app)
        for is_paused in (False, True):
            if is_paused:
                await app.admin.queues.pause("default")
                await app.admin.limits.pause(LIMIT, key=HOSTILE)
            # Its own client, as an overview may be a second old.
            async with browser(app) as client:
                assert await paused(client, "default") == {"queue": is_paused}
                assert (await paused(client, "a/b?c="))["key"] is is_paused
                assert await paused(client, "answer") == {"task": None}


async def test_one_kind_is_found_and_the_best_matches_come_first() -> None:
    app = Headgate("memory://")

    async def work() -> None: ...

    for name in ("resend_mail", "mail", "send.mail", "mailing", "email", *(f"a_mail_{n}" for n in range(9))):
        app.task(name=name)(work)
    async with app.open():
        found: list[Found] = list(await app.admin.find("mail", kind="task", count=20))
        assert [each.name for each in found[:3]] == ["mail", "mailing", "a_mail_0"]
        assert [each.name for each in found[-1:]] == ["email"]
        assert len(await app.admin.find("mail", count=6)) == 6
        assert await app.admin.find("mail", kind="queue", queues=["a", "mails"]) == [
            Found("queue", "mails", None, None)
        ]
        async with browser(app) as client:
            assert len(await find(client, "mail")) == 6


@pytest.mark.parametrize("query", [{"q": "x" * 201}, {"q": "a", "kind": "payload"}])
async def test_a_search_that_cannot_work_is_refused(query: dict[str, Any]) -> None:
    app = make_app()
    async with app.open(), browser(app) as client:
        assert (await client.get("/api/v1/find", params=query)).status_code == 400
