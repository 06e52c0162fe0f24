"""What the API returns, on each store."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock
from unittest.mock import ANY
from urllib.parse import quote

import httpx
import pytest

from headgate import Cron, Every, Headgate, HeadgateError, batch, chain, result_of
from headgate.admin import history
from headgate.clock import SECOND, to_datetime
from headgate.jobs.history import ALL, JobsStep, step_at
from tests.faces.http.stage import HOSTILE, LIMIT, browser, make_app, problem, seed
from tests.internals import store_of
from tests.until import result_within, until


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Headgate:
    if request.param == "memory":
        return make_app()
    if request.param == "sqlite":
        return make_app(f"sqlite:///{tmp_path}/jobs.db", synchronous="OFF")
    schema = request.getfixturevalue("postgres_schema")
    return make_app(request.getfixturevalue("postgres_url"), schema=schema)


async def ask(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
    answer = await client.get(f"/api/v1{path}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_each_endpoint_returns_what_is_in_the_store(app: Headgate) -> None:
    async with app.open():
        seeds = await seed(app)
        async with browser(app) as client:
            session = await ask(client, "/session")
            assert (session["user"], session["role"], session["can"]) == ("local", "admin", ["operate", "admin"])

            overview = await ask(client, "/overview")
            totals = overview["totals"]
            assert totals["waiting"] == totals["ready"] + totals["throttled"] + totals["scheduled"] + totals["blocked"]
            assert (totals["failed"], totals["cancelled"], overview["failed_last_hour"]) == (1, 1, 1)
            assert overview["queues"][0]["succeeded"] == totals["succeeded"] == 2
            (queue,) = (await ask(client, "/queues"))["items"]
            assert queue == overview["queues"][0] | {name: queue[name] for name in DOING_OF_QUEUES}

            every = await ask(client, "/jobs?count=500")
            assert {seeds.failed, seeds.succeeded, seeds.blocked} <= {job["id"] for job in every["items"]}
            assert every["next"] is None
            (failed,) = (await ask(client, "/jobs?state=failed"))["items"]
            assert failed["error"]["type"] == "ValueError"
            (blocked,) = (await ask(client, "/jobs?view=blocked"))["items"]
            assert (blocked["id"], blocked["view"]) == (seeds.blocked, "blocked")
            (keyed,) = (await ask(client, f"/jobs?unique_key={quote(HOSTILE)}"))["items"]
            assert keyed["id"] == seeds.throttled
            assert await ask(client, "/jobs/count") == {"count": len(every["items"]), "is_exact": True}

            details = await ask(client, f"/jobs/{seeds.failed}")
            assert [each["outcome"] for each in details["attempts"]] == ["failed", "failed"]
            assert details["timeline"][0]["what"] == "enqueued"
            tried = [each["outcome"] for each in details["stretches"] if each["kind"] == "attempt"]
            assert tried == ["failed", "failed"]
            (now,) = (await ask(client, f"/jobs/{seeds.throttled}"))["stretches"]
            assert (now["kind"], now["ends_at"]) == ("waiting", None)
            (now,) = (await ask(client, f"/jobs/{seeds.blocked}"))["stretches"]
            assert (now["kind"], now["is_limited"], now["ends_at"]) == ("blocked", False, None)
            assert details["last_lines"][0]["logger"] == "jobs.of.the.stage"
            lines = await ask(client, f"/jobs/{seeds.failed}/logs?count=1")
            more = await ask(client, f"/jobs/{seeds.failed}/logs?after={lines['next']}")
            assert len(lines["items"] + more["items"]) == 4
            explained = await ask(client, f"/jobs/{seeds.throttled}/explain")
            assert explained["limits"][0]["key"] == HOSTILE
            (one_batch,) = (await ask(client, "/batches"))["items"]
            assert one_batch == await ask(client, f"/batches/{seeds.batch}")
            assert (one_batch["id"], one_batch["total"], one_batch["tasks"]) == (seeds.batch, 2, ["answer"])
            assert (await ask(client, f"/batches?before={seeds.batch}"))["items"] == []
            await until(lambda: are_tasks_counted(client))
            task_page = await ask(client, "/tasks")
            assert (task_page["is_exact"], task_page["counted_at"] <= task_page["now"]) == (True, True)
            declared_tasks = {each["task"]: each for each in task_page["items"]}
            assert declared_tasks["answer"] == {
                "task": "answer", "queue": "default", "arguments": ["question"], "required": ["question"], "limits": [],
                "requires": [], "tags": [], "unique_key": None,
                # One that is scheduled, two of a chain, two of a batch.
                "waiting": 5, **dict.fromkeys(DOING, ANY),
            }  # fmt: skip
            assert (declared_tasks["sync"]["waiting"], declared_tasks["login"]["waiting"]) == (1, 0)
            assert declared_tasks["sync"]["limits"] == [LIMIT]

            limited = await ask(client, f"/limits?limit={quote(LIMIT)}")
            (bucket,) = limited["items"]
            assert limited["limits"] == [{"limit": LIMIT, "keys": 1, "is_exact": True, "unlimited": 0}]
            listed = {each["limit"]: each["keys"] for each in (await ask(client, "/limits"))["limits"]}
            # Without the limit "mutex" that every app has: nothing uses it here.
            assert listed == {LIMIT: 1, "permits": 0}
            assert (bucket["limit"], bucket["key"], bucket["count"], bucket["used"]) == (LIMIT, HOSTILE, 1, 1)
            one = await ask(client, f"/limits/{quote(LIMIT, safe='')}/bucket?key={quote(HOSTILE)}")
            assert (one["key"], one["used"]) == (HOSTILE, 1)
            audited = await ask(client, f"/limits/{quote(LIMIT)}/audit")
            assert [(each["highest"], each["is_within_limit"]) for each in audited["items"]] == [(1, True)]
            assert (audited["keys"], audited["starts"], audited["is_cut"]) == (1, 1, False)
            declared = (await ask(client, "/limits/declared"))["items"]
            assert {each["limit"]: each["counts_starts"] for each in declared}[LIMIT] is True
            (setting,) = (await ask(client, "/limits/settings"))["items"]
            assert (setting["scope"], setting["target"]) == ("key", "x")

            names = [each["name"] for each in (await ask(client, "/schedules"))["items"]]
            assert names == [HOSTILE, "hourly"]
            schedule = await ask(client, f"/schedules/{quote(HOSTILE, safe='')}")
            assert len(schedule["next_runs"]) == 5
            history = await ask(client, "/history?step=10&span=60&queue=default")
            assert (history["step"], set(history)) == (10, {"step", "points", "total", "deploys"})
            used = await ask(client, f"/limits/{quote(LIMIT)}/history?key={quote(HOSTILE)}")
            assert (used["step"], used["bound"]) == (10, {"count": 1, "per": 3600.0})
            assert (await ask(client, "/nodes"))["items"] == []
            actions = [each["action"] for each in (await ask(client, "/audit"))["items"]]
            assert "cancel" in actions


class Thousands:
    """A custom trigger, which only the code that declares it has: every 1,000 seconds."""

    def next_after(self, instant: int) -> int | None:
        return instant - instant % (1000 * SECOND) + 1000 * SECOND

    def latest_at_or_before(self, instant: int) -> int | None:
        return instant - instant % (1000 * SECOND)

    def describe(self) -> str:
        return "every 1,000 seconds"


async def test_a_schedule_whose_trigger_only_another_app_has_is_shown_with_its_next_run(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    declaring = make_app(url, synchronous="OFF")

    @declaring.schedule(Thousands(), name="own")
    async def often() -> None: ...

    async def is_declared() -> bool:
        return "own" in [each.name for each in await declaring.admin.schedules.list()]

    async with declaring:
        await until(is_declared)
    async with make_app(url, synchronous="OFF").open() as other, browser(other) as client:
        shown = await ask(client, "/schedules/own")
        assert shown["status"]["trigger"] == "every 1,000 seconds"
        assert shown["next_runs"] == [shown["status"]["next_run"]]
        assert shown["definition"]["cron"] is None


async def test_a_trigger_that_raises_for_a_later_run_hides_no_schedule(tmp_path: Path) -> None:
    """The fault: with holidays that are known to the end of the year, both pages failed four weeks before that."""
    app = make_app(f"sqlite:///{tmp_path}/jobs.db", synchronous="OFF")
    last = datetime.now(UTC).date() + timedelta(days=2)

    def is_holiday(day: date) -> bool:
        if day > last:
            raise KeyError(day.year)
        return False

    @app.schedule(Cron("0 0 * * *"), name="each workday", exclude=is_holiday)
    @app.schedule(Every(hours=1), name="each hour")
    async def often() -> None: ...

    async def are_declared() -> bool:
        return {"each workday", "each hour"} <= {each.name for each in await app.admin.schedules.list()}

    async with app, browser(app) as client:
        await until(are_declared)
        day = await ask(client, "/schedule-day")
        assert {"each workday", "each hour"} <= {each["name"] for each in day["items"]}
        shown = await ask(client, "/schedules/each%20workday")
        assert shown["next_runs"] == [shown["status"]["next_run"]]
        with pytest.raises(
            HeadgateError, match="'each workday': its trigger or a function in its exclude= raised KeyError"
        ):
            await app.admin.schedules.next_runs("each workday")


DOING_OF_QUEUES = ("throughput", "failure_share", "wait_p95", "trend")
DOING = ("oldest", "throughput", "failure_share", "run_p95", "trend")


async def test_tasks_and_queues_say_what_they_have_done_lately(app: Headgate) -> None:
    async with app.open():
        store = store_of(app)
        minute = step_at(store.now(), 60)
        # Five minutes ago is lately, an hour ago is not.
        done: Any = {
            "succeeded": 9,
            "failed": 1,
            "waits": (0, 10),
            "wait_max": 1200,
            "runs": (0, 9, 1),
            "run_max": 1500,
        }
        steps = [
            JobsStep(60, queue, "answer", at, **done)
            for queue in ("default", "mail")
            for at in (minute - 300 * SECOND, minute - 3600 * SECOND)
        ]
        await store.add_history([*steps, JobsStep(60, "mail", ALL, minute, succeeded=99)], ())
        await app.tasks["answer"].enqueue("how?")
        async with browser(app) as client:

            async def is_read() -> bool:
                page = await ask(client, "/tasks")
                return page["active_since"] is not None and page["items"][0]["waiting"] == 1

            await until(is_read)
            page = await ask(client, "/tasks")
            tasks = {each["task"]: each for each in page["items"]}
            answer, idle = tasks["answer"], tasks["hold"]
            since, now = (datetime.fromisoformat(page[name]) for name in ("active_since", "now"))
            assert 840 < (now - since).total_seconds() < 960
            assert (answer["failure_share"], sum(answer["trend"]), max(answer["trend"])) == (0.1, 20, 20)
            assert 20 / 960 < answer["throughput"] <= 20 / 840
            assert 0.001 < answer["run_p95"] <= 0.0015
            assert 0 <= answer["oldest"] < 60
            assert [idle[name] for name in DOING] == [None, 0, None, None, []]
            queues = {each["queue"]: each for each in (await ask(client, "/queues"))["items"]}
            assert (queues["default"]["failure_share"], sum(queues["default"]["trend"])) == (0.1, 10)
            assert 0.001 < queues["default"]["wait_p95"] <= 0.0012


async def test_the_activity_of_very_many_tasks_is_of_a_shorter_time(app: Headgate) -> None:
    async with app.open():
        store = store_of(app)
        minute = step_at(store.now(), 60)
        steps = [
            JobsStep(60, "default", f"task {number}", minute - age * 60 * SECOND, succeeded=1)
            for number in range(3)
            for age in (1, 2, 3)
        ]
        await store.add_history(steps, ())
        with mock.patch.object(history, "MOST_STEPS", 7):
            report = await app.admin.history.activity()
        # Of the third minute only one step was read.
        assert report.since == to_datetime(minute - 2 * 60 * SECOND)
        assert [sum(each.trend) for each in report.tasks.values()] == [2, 2, 2]


async def are_tasks_counted(client: httpx.AsyncClient) -> bool:
    return (await ask(client, "/tasks"))["counted_at"] is not None


async def test_jobs_and_batches_of_a_graph_name_what_they_are_tied_to(app: Headgate) -> None:
    async with app.open():
        task = app.tasks["answer"]
        first = task.call("first")
        inner = batch([task.call("inner")])
        last = task.call(result_of(first)).after(inner, on="final")
        stored = await batch([first, inner, last]).enqueue()
        await chain(task.call("a"), task.call("b")).schedule("nightly", Every(hours=24)).enqueue()
        await app.admin.schedules.trigger("nightly")
        ids = [job.id for job in stored.jobs]
        async with browser(app) as client:
            shown = await ask(client, f"/jobs/{ids[2]}")
            assert (shown["batch"], shown["results"]) == (stored.id, {"question": ids[0]})
            inner_id = (await ask(client, f"/jobs/{ids[1]}"))["batch"]
            assert {each["id"] for each in shown["leaders"]} == {ids[0], inner_id}
            assert shown["followers"] == []
            (follower,) = (await ask(client, f"/jobs/{ids[0]}"))["followers"]
            assert follower == {"id": ids[2], "task": "answer", "state": "blocked", "needs": "final"}
            found = await ask(client, f"/batches/{inner_id}")
            assert (found["batch"], found["schedule"]) == (stored.id, None)
            (nightly,) = (await ask(client, "/schedules"))["items"]
            assert (nightly["jobs"], nightly["tasks"], nightly["last_job"]) == (2, ["answer"], None)
            assert (await ask(client, f"/batches/{nightly['last_batch']}"))["schedule"] == "nightly"
            assert (await ask(client, "/schedules/nightly"))["definition"]["payload"] is None


async def test_lists_come_in_pages_that_leave_nothing_out_and_repeat_nothing(app: Headgate) -> None:
    async with app.open():
        await app.tasks["answer"].enqueue_many([(str(n),) for n in range(7)])
        for number in range(5):
            await app.admin.limits.penalize(LIMIT, f"key{number}", 60)
            await app.admin.queues.pause("default")
            await app.admin.queues.resume("default")
            await batch([app.tasks["answer"].call("of a batch")]).enqueue()
            await app.tasks["answer"].schedule(f"schedule{number}", Every(hours=1)).enqueue("often")
        async with browser(app) as client:
            for path, cursor, name in (
                ("/jobs?", "before", "id"),
                ("/jobs?order=oldest&", "before", "id"),
                ("/jobs?queue=default&", "before", "id"),
                ("/audit?", "before", "number"),
                ("/limits?", "before", "key"),
                ("/batches?", "before", "id"),
                ("/schedules?", "after", "name"),
            ):
                everything = [each[name] for each in (await ask(client, f"{path}count=500"))["items"]]
                assert len(set(everything)) == len(everything) >= 5
                assert (await ask(client, f"{path}count={len(everything)}"))["next"] is None
                for count in (1, 2):
                    page = await ask(client, f"{path}count={count}")
                    found = [each[name] for each in page["items"]]
                    while page["next"] is not None:
                        assert len(page["items"]) == count
                        page = await ask(client, f"{path}count={count}&{cursor}={quote(page['next'])}")
                        # No empty page follows the last one.
                        assert page["items"]
                        found += [each[name] for each in page["items"]]
                    assert found == everything


async def test_an_answer_is_sent_again_only_if_it_has_changed(app: Headgate) -> None:
    async with app.open():
        job = await app.tasks["answer"].using(delay=3600).enqueue("why?")
        async with browser(app) as client:
            for path in (f"/jobs/{job.id}", "/jobs", "/limits/settings", "/limits/permits/rules"):
                first = await client.get(f"/api/v1{path}")
                tag = first.headers["ETag"]
                for known in (tag, tag.removeprefix("W/"), f'"another", {tag}', "*"):
                    again = await client.get(f"/api/v1{path}", headers={"If-None-Match": known})
                    assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", tag)
                    assert again.headers["Cache-Control"] == "no-store"
                other = await client.get(f"/api/v1{path}", headers={"If-None-Match": '"another"'})
                assert (other.status_code, other.content) == (200, first.content)
            shown = await client.get(f"/api/v1/jobs/{job.id}")
            await job.cancel()
            changed = await client.get(f"/api/v1/jobs/{job.id}", headers={"If-None-Match": shown.headers["ETag"]})
            assert (changed.status_code, changed.json()["status"]["state"]) == (200, "cancelled")


async def test_a_task_and_a_queue_name_the_limits_of_their_jobs(app: Headgate) -> None:
    async with app.open():
        await app.tasks["answer"].enqueue("why?")
        async with browser(app) as client:
            task = await ask(client, "/tasks/sync")
            assert (task["task"], task["queue"]) == ("sync", "default")
            assert [each["limit"] for each in task["limits"]] == [LIMIT]
            # Another app may declare it, and its jobs are listed all the same.
            assert await ask(client, f"/tasks/{quote(HOSTILE, safe='')}") == {
                "task": HOSTILE,
                "queue": None,
                "limits": [],
                "requires": [],
                "tags": [],
                "unique_key": None,
                "arguments": [],
            }
            queue = await ask(client, "/queues/default")
            assert (queue["queue"]["queue"], queue["queue"]["ready"]) == ("default", 1)
            assert {"answer", "hold", "sync"} <= set(queue["tasks"])
            assert {each["limit"] for each in queue["limits"]} == {LIMIT, "permits"}
            unknown = await ask(client, f"/queues/{quote(HOSTILE, safe='')}")
            assert (unknown["queue"], unknown["tasks"], unknown["limits"]) == (None, [], [])


async def test_a_task_shows_the_labels_it_requires_its_tags_and_its_unique_key(app: Headgate) -> None:
    def key_of_order(order: str) -> str:
        return order

    @app.task(requires={"gpu", "eu"}, tags=["shop"], unique_key="{order}")
    async def pay(order: str) -> None: ...

    @app.task(unique_key=key_of_order)
    async def refund(order: str) -> None: ...

    async with app.open(), browser(app) as client:
        shown = await ask(client, "/tasks/pay")
        assert (shown["requires"], shown["tags"], shown["unique_key"]) == (["eu", "gpu"], ["shop"], "{order}")
        listed = {each["task"]: each for each in (await ask(client, "/tasks"))["items"]}
        assert (listed["pay"]["requires"], listed["pay"]["tags"], listed["sync"]["unique_key"]) == (
            ["eu", "gpu"], ["shop"], None
        )  # fmt: skip
        assert listed["refund"]["unique_key"].endswith("key_of_order")


async def test_a_queue_shows_how_it_is_declared_and_the_keys_of_a_fair_one(app: Headgate) -> None:
    app.queue("fair", fair_by="{tenant}", weights={"big": 3}, concurrency=4, weight=2, aging="1m", max_backlog=100)

    @app.task(queue="fair")
    async def work(tenant: str) -> None: ...

    async with app.open():
        await work.enqueue_many([("small",), (HOSTILE,), ("big",), ("big",)])
        async with browser(app) as client:
            queue = await ask(client, "/queues/fair")
            assert queue["declared"] == {
                "queue": "fair",
                "concurrency": 4,
                "global_concurrency": None,
                "max_backlog": 100,
                "when_full": "wait",
                "fair_by": ["{tenant}"],
                "weights": {"big": 3},
                "weight": 2,
                "aging": 60.0,
                "on_limit": None,
                "max_wait": None,
            }
            assert queue["keys"] == {
                "keys": [
                    {"key": "big", "waiting": 2, "weight": 3},
                    {"key": HOSTILE, "waiting": 1, "weight": 1},
                    {"key": "small", "waiting": 1, "weight": 1},
                ],
                "count": 3,
                "is_exact": True,
            }
            # What the number of a key leads to.
            query = f"state=waiting&limit=fair:fair&key={quote(HOSTILE, safe='')}"
            assert len((await ask(client, f"/jobs?{query}"))["items"]) == 1
            plain = await ask(client, "/queues/default")
            assert (plain["declared"]["fair_by"], plain["keys"]) == ([], None)
            unknown = await ask(client, "/queues/nothing")
            assert (unknown["declared"], unknown["keys"]) == (None, None)


async def test_failures_are_those_of_one_task_or_queue(app: Headgate) -> None:
    async with app.open():
        await seed(app)
        async with browser(app) as client:
            for query, groups in (("task=login", 1), ("task=answer", 0), ("queue=default", 1), ("queue=mail", 0)):
                found = await ask(client, f"/failures?{query}")
                assert (len(found["items"]), found["total"]) == (groups, groups)


async def test_the_overview_has_the_limits_with_the_keys_that_most_jobs_wait_for(app: Headgate) -> None:
    async with app:
        for key, jobs in (("one", 2), ("three", 4), ("two", 3)):
            first, *_ = await app.tasks["sync"].enqueue_many([(key,)] * jobs)
            await result_within(first)
        async with browser(app) as client:

            async def limits() -> list[dict[str, Any]]:
                return (await ask(client, "/overview"))["limits"]  # type: ignore[no-any-return]

            async def are_behind_limits() -> bool:
                return [each["waiting"] for each in await limits()][:1] == [6]

            await until(are_behind_limits)
            first_limit, *others = await limits()
            assert (first_limit["limit"], first_limit["rule"], first_limit["keys"]) == (LIMIT, "1/h + 0.02s", 3)
            assert [(each["key"], each["waiting"]) for each in first_limit["worst"]] == [
                ("three", 3),
                ("two", 2),
                ("one", 1),
            ]
            # One start an hour: the last of three jobs starts three hours after the first start.
            hours = [
                (datetime.fromisoformat(each["clears_at"]) - app.admin.now()).total_seconds() / 3600
                for each in first_limit["worst"]
            ]
            assert [round(each, 1) for each in hours] == [3.0, 2.0, 1.0]
            assert {(each["limit"], each["waiting"], len(each["worst"])) for each in others} == {("permits", 0, 0)}
            (said,) = [each for each in (await ask(client, "/overview"))["verdict"] if each["kind"] == "limit"]
            assert (said["count"], said["name"], said["key"]) == (3, LIMIT, "three")
            await app.admin.limits.pause(LIMIT, key="two")
            await app.admin.limits.penalize(LIMIT, "one", 2 * 86400)
        async with browser(app) as client:
            # A change opens the buckets, until the next claim has found them closed again.
            await until(are_behind_limits)
            three, two, one = (await limits())[0]["worst"]
            assert (two["is_paused"], two["clears_at"], three["is_paused"]) == (True, None, False)
            assert (three["penalized_until"], one["penalized_until"] is None) == (None, False)
            assert one["clears_at"] >= one["penalized_until"][:19]


async def test_the_backlog_of_a_key_is_predicted_under_another_rule(app: Headgate) -> None:
    path = f"/limits/{quote(LIMIT, safe='')}/what-if?key=acme"
    async with app:
        first, *_ = await app.tasks["sync"].enqueue_many([("acme",)] * 61)
        await result_within(first)
        async with browser(app) as client:

            async def waits() -> bool:
                return bool((await ask(client, path))["waiting"] == 60)

            async def hours(predicted: dict[str, Any]) -> list[tuple[int, int]]:
                instants = [(datetime.fromisoformat(each["at"]), each["waiting"]) for each in predicted["points"]]
                assert predicted["clears_at"] == predicted["points"][-1]["at"]
                return [(round((at - app.admin.now()).total_seconds() / 3600), waiting) for at, waiting in instants]

            await until(waits)
            found = await ask(client, path)
            assert (found["now"]["rule"], found["then"]) == ("1/h + 0.02s", None)
            # One start an hour: each point is a start, the last one 60 hours after the first start.
            points = await hours(found["now"])
            assert (points[0], points[-1], len(points)) == ((1, 59), (60, 0), 25)
            assert all(at == 60 - waiting for at, waiting in points)

            found = await ask(client, path + "&rule=20/h")
            assert found["then"]["rule"] == "20/h + 0.02s"
            # Of 20 places in the first hour one is used, so 19 start at once and the last of 60 in the third round.
            points = await hours(found["then"])
            assert (points[0], points[-1]) == ((0, 59), (3, 0))
            assert {at for at, waiting in points if waiting >= 60 - 19} == {0}
            assert not await app.admin.limits.settings(LIMIT)

            refused = await client.get("/api/v1" + path + "&rule=20/moon")
            assert (refused.status_code, problem(refused)) == (422, "declaration_error")
            unknown = await client.get("/api/v1/limits/nothing/what-if")
            assert unknown.status_code == 404
            await app.admin.limits.pause(LIMIT, key="acme")
            paused = await ask(client, path + "&rule=20/h")
            assert [paused[which]["clears_at"] for which in ("now", "then")] == [None, None]
            # Before a claim has found the bucket closed, and where permits decide, which time alone does not return.
            assert paused["waiting"] == 60
            (permits,) = [
                each for each in (await ask(client, "/limits/declared"))["items"] if each["limit"] == "permits"
            ]
            assert (await ask(client, "/limits/permits/what-if"))["now"] == {
                "rule": permits["rule"], "clears_at": None, "points": [],
            }  # fmt: skip


async def test_keys_are_found_by_how_they_begin(app: Headgate) -> None:
    async with app.open():
        for key in ("stripe:a", "stripe:b", "str_pe:c", "paypal:a", "stripe"):
            await app.admin.limits.penalize(LIMIT, key, 60)
        async with browser(app) as client:
            found = (await ask(client, "/limits?prefix=stripe:"))["items"]
            assert [each["key"] for each in found] == ["stripe:a", "stripe:b"]
            assert (await ask(client, "/limits?prefix=str_p"))["items"][0]["key"] == "str_pe:c"
            assert len((await ask(client, "/limits?prefix="))["items"]) == 5
            assert (await ask(client, "/limits?key=stripe:*"))["items"] == []


async def test_a_graph_is_returned_for_jobs_and_batches(app: Headgate) -> None:
    async with app.open():
        first = app.tasks["answer"].using(delay=60).call("first")
        stored = await batch([first, app.tasks["answer"].call("then").after(first)], name="May").enqueue()
        async with browser(app) as client:
            graph = await ask(client, f"/graphs/{stored.id}")
            assert [node["name"] for node in graph["nodes"] if node["id"] == stored.id] == ["May"]
            assert (await ask(client, f"/batches/{stored.id}"))["name"] == "May"
            assert {edge["needs"] for edge in graph["edges"]} == {"success", "member"}
            assert sorted(node["task"] or "" for node in graph["nodes"]) == ["", "answer", "answer"]
            assert graph["critical"] == [*(job.id for job in stored.jobs), stored.id]
            assert await ask(client, f"/graphs/{stored.jobs[1].id}") == graph
            assert (await client.get("/api/v1/graphs/nobody")).status_code == 404


async def test_a_graph_of_more_than_200_jobs_is_folded(app: Headgate) -> None:
    async with app.open():
        first = app.tasks["answer"].using(delay=60).call("first")
        then = [app.tasks["answer"].call(f"{number}").after(first) for number in range(201)]
        stored = await batch([first, *then]).enqueue()
        async with browser(app) as client:
            graph = await ask(client, f"/graphs/{stored.jobs[7].id}")
            assert (graph["is_folded"], graph["critical"]) == (True, [])
            (group,) = [node for node in graph["nodes"] if node["counts"]]
            assert (group["task"], group["depth"], group["counts"]) == ("answer", 1, {"blocked": 201})
            assert (group["total"], group["done"], group["is_at_least"]) == (201, 0, False)


async def test_nodes_that_were_declared_dead_follow_the_live_ones(app: Headgate) -> None:
    async with app.open(), browser(app) as client:
        storage = store_of(app)
        for number in range(2):
            await storage.join(f"node-{number}", f"a-{number}")
        assert await storage.recover("node-0", 0) is not None
        *_, live, dead = (await ask(client, "/nodes"))["items"]
        assert (live["id"], live["state"], live["lost_at"], live["returned"]) == ("node-1", "alive", None, None)
        assert (dead["id"], dead["state"], dead["lost_at"], dead["returned"]) == ("node-0", "gone", ANY, 0)
        assert dead["lost_at"] is not None


async def test_the_history_names_the_deploys_of_its_time(app: Headgate) -> None:
    async with app.open():
        for node, release in (("n1", "v1"), ("n2", "v2")):
            await store_of(app).join(node, node, release=release)
        async with browser(app) as client:
            for history in (await ask(client, "/history?span=900&step=10"), await ask(client, "/limits/api/history")):
                assert [each["release"] for each in history["deploys"]] == ["v1", "v2"]
