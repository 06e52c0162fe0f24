"""What the pages show is what is in the store: totals, bounds, pauses, zones and attempts."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import quote

import pytest

from headgate import Calendar, Cron, Every, Headgate, JobFailed
from headgate.admin import readings
from headgate.storage.procedures import listing
from tests.faces.http.stage import LIMIT, browser, make_app
from tests.until import result_within, until


@pytest.fixture(params=["sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Headgate:
    if request.param == "sqlite":
        return make_app(f"sqlite:///{tmp_path}/jobs.db", synchronous="OFF")
    schema = request.getfixturevalue("postgres_schema")
    return make_app(request.getfixturevalue("postgres_url"), schema=schema)


async def throttle(app: Headgate, keys: int, each: int = 3) -> None:
    """Let one job of each key run, and the others wait for the limit."""
    jobs = await app.tasks["sync"].enqueue_many([(f"key{number}",) for _ in range(each) for number in range(keys)])
    async with app:
        for job in jobs[:keys]:
            await result_within(job)


async def test_the_jobs_that_wait_for_a_limit_are_counted_over_all_keys(app: Headgate) -> None:
    async with app.open():
        await throttle(app, keys=4)
        async with browser(app) as client:
            page = (await client.get(f"/api/v1/limits?limit={quote(LIMIT)}&count=2")).json()
            assert sum(bucket["waiting"] for bucket in page["items"]) == 4
            assert page["is_ranked"]
            with mock.patch.object(listing, "KEYS_AT_ONCE", 3):
                assert not (await client.get("/api/v1/limits")).json()["is_ranked"]

                async def is_counted() -> bool:
                    seen.update((await client.get("/api/v1/overview")).json())
                    return any(each["waiting"] for each in seen["limits"])

                # A page shows what is counted within half a second, which may be nothing on a busy machine.
                seen: dict[str, Any] = {}
                await until(is_counted)
            (waited_for,) = (each for each in seen["limits"] if each["waiting"])
            assert (waited_for["limit"], waited_for["waiting"], waited_for["keys"]) == (LIMIT, 8, 4)
            assert [(each["key"], each["waiting"]) for each in waited_for["worst"]] == [
                (f"key{number}", 2) for number in range(4)
            ]
            assert sum(each["waiting"] for each in seen["limits"]) == seen["totals"]["throttled"]
            assert [each["key"] for each in seen["throttled"]] == [f"key{number}" for number in range(4)]


async def test_a_page_that_ends_before_it_is_full_says_how_many_jobs_were_read_and_how_far_back(app: Headgate) -> None:
    async with app.open():
        old = await app.tasks["hold"].enqueue("acme")
        newer = await app.tasks["answer"].enqueue_many([(str(number),) for number in range(8)])
        third = await app.admin.status(newer[-3].id)
        async with browser(app) as client:
            whole = (await client.get("/api/v1/jobs?task=hold")).json()
            assert ([job["id"] for job in whole["items"]], whole["next"], whole["read"]) == ([old.id], None, None)
            with mock.patch.object(listing, "AT_ONCE", 3), mock.patch.object(listing, "FEW", 0):
                cut = (await client.get("/api/v1/jobs?task=hold")).json()
                assert (cut["items"], cut["next"], cut["read"]) == ([], third.id, 3)
                assert datetime.fromisoformat(cut["reached"]) == third.enqueued_at
                full = (await client.get("/api/v1/jobs?task=answer&count=2")).json()
                assert (len(full["items"]), full["read"], full["reached"]) == (2, None, None)


async def test_more_failures_than_are_counted_are_said_to_be_more(app: Headgate) -> None:
    async with app.open():
        jobs = await app.tasks["login"].enqueue_many([(str(number), "a password") for number in range(3)])
        async with app:
            for job in jobs:
                with pytest.raises(JobFailed):
                    await result_within(job)
        for most, shown in ((2, (2, True)), (3, (3, False))):
            with mock.patch.object(readings, "MOST_FAILED", most):
                found = await app.admin.overview()
            assert (found.failed_last_hour, found.is_failed_cut) == shown


async def test_a_job_that_waits_for_a_paused_limit_says_so_in_the_list_and_by_itself(app: Headgate) -> None:
    async with app.open():
        await throttle(app, keys=1, each=2)
        # A node looks at the pause, and finds that the limit never opens.
        async with app, browser(app) as client:
            next_jobs = f"/api/v1/limits/{quote(LIMIT, safe='')}/next-jobs?key=key0"
            for is_paused in (False, True):
                if is_paused:
                    await app.admin.limits.pause(LIMIT, key="key0")
                waits_for = {"limit": LIMIT, "key": "key0", "is_paused": is_paused}

                async def is_listed(waits_for: object = waits_for) -> bool:
                    listed = (await client.get("/api/v1/jobs?view=throttled")).json()["items"]
                    return [job["waits_for"] for job in listed] == [waits_for]

                await until(is_listed)
                (listed,) = (await client.get("/api/v1/jobs?view=throttled")).json()["items"]
                path = f"/api/v1/jobs/{listed['id']}"
                assert (await client.get(path)).json()["status"]["waits_for"] == waits_for
                explained = (await client.get(f"{path}/explain")).json()
                assert explained["status"]["waits_for"] == waits_for
                assert ("is paused" in explained["reason"]) is is_paused
                (first,) = (await client.get(next_jobs)).json()["items"]
                assert first["waits_for"] == waits_for


async def test_the_next_jobs_of_a_key_come_in_their_order(app: Headgate) -> None:
    async with app.open():
        await throttle(app, keys=2, each=4)
        urgent = await app.tasks["sync"].using(priority=7).enqueue("key0")
        async with browser(app) as client:
            answer = (await client.get(f"/api/v1/limits/{quote(LIMIT, safe='')}/next-jobs?key=key0&count=3")).json()
            counted = await client.get(f"/api/v1/jobs/count?state=waiting&limit={quote(LIMIT, safe='')}&key=key0")
            assert counted.json() == {"count": 4, "is_exact": True}
            assert [job["position"] for job in answer["items"]] == [1, 2, 3]
            assert answer["items"][0]["id"] == urgent.id
            starts = [job["predicted_start"] for job in answer["items"]]
            assert starts == sorted(starts)
            rules = (await client.get(f"/api/v1/limits/{quote(LIMIT, safe='')}/rules")).json()
            assert (rules["declared"]["limit"], rules["settings"]) == (LIMIT, [])
            assert (await client.get("/api/v1/limits/nobody/rules")).json() == {"declared": None, "settings": []}


async def test_attempts_after_a_retry_by_an_operator_are_told_from_those_before(app: Headgate) -> None:
    async with app.open():
        job = await app.tasks["login"].enqueue("ada", "a password")
        for _ in range(2):
            async with app:
                with pytest.raises(JobFailed):
                    await result_within(job)
            await app.admin.retry(job.id)
        async with browser(app) as client:
            details = (await client.get(f"/api/v1/jobs/{job.id}")).json()
            numbers = [(1, 0), (2, 0), (1, 1), (2, 1)]
            assert [(each["number"], each["restart"]) for each in details["attempts"]] == numbers
            started = [moment for moment in details["timeline"] if moment["what"] == "started"]
            assert [(moment["attempt"], moment["restart"]) for moment in started] == numbers


async def test_log_lines_are_filtered_by_level(app: Headgate) -> None:
    async with app.open():
        job = await app.tasks["login"].enqueue("ada", "a password")
        async with app:
            with pytest.raises(JobFailed):
                await result_within(job)
        async with browser(app) as client:
            path = f"/api/v1/jobs/{job.id}/logs"
            everything = (await client.get(path)).json()["items"]
            assert {line["level"] for line in everything} == {30}
            assert (await client.get(f"{path}?level=30&newest=true")).json()["items"] == everything
            assert (await client.get(f"{path}?level=31")).json() == {"items": [], "next": None}
            assert (await client.get(f"{path}?level=-1")).status_code == 400
            assert (await client.get("/api/v1/jobs/nobody/logs?level=31")).status_code == 404


async def test_a_schedule_has_the_zone_of_its_wall_clock(app: Headgate) -> None:
    async with app.open():
        often = app.tasks["hourly"]
        await often.schedule("cron", Cron("0 3 * * *", tz="Europe/Rome")).enqueue()
        await often.schedule("calendar", Calendar(at="03:00", tz="Asia/Tokyo")).enqueue()
        await often.schedule("every", Every(hours=1)).enqueue()
        async with browser(app) as client:
            found = {each["name"]: each["tz"] for each in (await client.get("/api/v1/schedules")).json()["items"]}
            assert found == {"calendar": "Asia/Tokyo", "cron": "Europe/Rome", "every": None}
