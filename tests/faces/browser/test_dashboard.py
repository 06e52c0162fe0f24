"""The dashboard in a real browser: every page and every action, against a worker and a server that live."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import signal
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote, urlencode

import asyncpg
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Route, expect

from headgate import Cron, Every
from headgate.errors import ScheduleNotFound
from headgate.http.http_error import TYPES
from headgate.http.static_files import STATIC
from headgate.storage.records import NodeControls
from tests.faces.browser.conftest import (
    APP,
    Shop,
    Visit,
    axe_violations,
    events,
    shop_on,
    visiting,
    with_silent_nodes,
)
from tests.faces.browser.shop import HOSTILE, LIMIT, LONG, PASSWORDS, QUEUE, SCHEDULE, SPARE
from tests.internals import store_of
from tests.until import patient, result_within, until

LOOKS = (("wide", "light"), ("wide", "dark"), ("narrow", "light"))

# Tables of which one has to scroll to see the last column, at whatever age of what they list: while it looks, all
# durations in their cells are as long as they get.
CUT_OFF = r"""() => {
    const lengthened = [];
    for (const cell of document.querySelectorAll("main .table-wrap td")) {
        const nodes = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
        while (nodes.nextNode()) {
            const node = nodes.currentNode, text = node.nodeValue;
            const long = text.replace(/(?<![\w.,])\d[\d.,]* (ms|s|min|h)( \d+ (s|min))?(?!\w)/g, "59 min 59 s");
            if (long !== text) {
                lengthened.push([node, text]);
                node.nodeValue = long;
            }
        }
    }
    const found = [...document.querySelectorAll("main .table-wrap")]
        .filter((each) => each.scrollWidth > each.clientWidth)
        .map((each) => each.querySelector("table").getAttribute("aria-label"));
    for (const [node, text] of lengthened) node.nodeValue = text;
    return found;
}"""

# The search is as slow as the test wants: it has no deadline.
NO_DEADLINE = "AbortSignal.timeout = () => new AbortController().signal;"

# What stands at the axes of a rate and of a duration of which this is the only value.
AXES = """async (value) => {
    const format = await import(new URL("js/format.js", document.querySelector("script[type=module]").src));
    return [format.rate, format.duration].map((unit) => {
        const series = [{ name: "One", tone: "blue", kind: "line", values: [[0, value]] }];
        const drawn = document.createElement("hg-chart");
        drawn.className = "chart";
        document.querySelector("main").append(drawn);
        drawn.chart = { label: "One", series, from: 0, to: 60000, unit, step: 1000 };
        const marks = [...drawn.querySelectorAll("svg text[text-anchor=end]")].map((mark) => mark.textContent);
        drawn.remove();
        return marks;
    });
}"""

# What does not depend on the store is looked at with one.
of_one_store = pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
of_postgres = pytest.mark.parametrize("shop", ["postgres"], indirect=True)

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


# The pages are the same on both databases, and the answers that they show are compared in tests/faces/http.
@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.nightly)]
)
async def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    if request.param == "sqlite":
        async with shop_on("sqlite", folder, f"sqlite:///{folder}/shop.db") as shop:
            yield shop
        return
    url = request.getfixturevalue("postgres_url")
    schema = f"headgate_{uuid.uuid4().hex[:16]}"
    async with shop_on("postgres", folder, url, schema=schema) as shop:
        yield shop
    connection = await asyncpg.connect(url)
    await connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    await connection.close()


def pages(shop: Shop) -> dict[str, str]:
    """Every page by a name for its picture."""
    seeds = shop.seeds
    return {
        "overview": "overview",
        "queues": "queues",
        "queue": f"queues/{QUEUE}",
        "queue-unknown": f"queues/{quote(HOSTILE, safe='')}",
        "tasks": "tasks",
        "task": "tasks/fail",
        "task-limited": "tasks/sync_tenant",
        "task-unknown": f"tasks/{quote(HOSTILE, safe='')}",
        "jobs": "jobs",
        "jobs-failed": "jobs?state=failed",
        "job-succeeded": f"jobs/{seeds.succeeded.id}",
        "job-failed": f"jobs/{seeds.failed.id}",
        "job-running": f"jobs/{seeds.running.id}",
        "job-throttled": f"jobs/{seeds.throttled.id}",
        "limits": "limits",
        "limit": limit_page(LIMIT),
        "key": limit_page(LIMIT, HOSTILE),
        "key-of-permits": limit_page("permits", "warehouse"),
        "key-unused": limit_page("permits", "nobody"),
        "schedules": "schedules",
        "schedule": f"schedules/{quote(SCHEDULE, safe='')}",
        "nodes": "nodes",
        "audit": "audit",
        "batches": "batches",
        "batch": f"batches/{seeds.batch}",
        "failures": "failures",
        "failure": f"failures/{seeds.failed.id}",
    }


def limit_page(limit: str, key: str | None = None) -> str:
    return f"limits/{quote(limit, safe='')}" + ("" if key is None else f"?{urlencode({'key': key})}")


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize(
    "looks", [LOOKS[:1], pytest.param(LOOKS[1:], marks=pytest.mark.nightly)], ids=["first look", "other looks"]
)
async def test_every_page_is_accessible_and_executes_none_of_the_data_it_shows(
    browser: Browser, shop: Shop, screenshots: Path | None, part: int, looks: Sequence[tuple[str, str]]
) -> None:
    # What axe looks at does not depend on the store, and neither does how it looks.
    axe = (files("axe_playwright_python") / "axe.min.js").read_text() if shop.store == "sqlite" else None
    found: list[str] = []
    shown = 0
    async with visiting(browser, shop) as visit:
        for name, where in list(pages(shop).items())[part::2]:
            await visit.go(where)
            await expect(visit.page.get_by_role("button", name="Live updates: Live")).to_be_visible()
            await expect(visit.page.get_by_role("alert")).to_have_count(0)
            shown += "owned(1)" in await visit.page.locator("main").inner_text()
            for size, scheme in looks:
                await visit.look(size, scheme)
                # Charts are drawn again for another width, a moment later.
                await until(functools.partial(fits, visit))
                if axe is not None and size == "wide":
                    found += [f"{name} in {scheme}: {received}" for received in await axe_violations(visit, axe)]
                cut_off = await visit.page.evaluate(CUT_OFF) if size == "wide" else []
                found += [f"{name}: columns of {label} are out of sight" for label in cut_off]
                if screenshots is not None:
                    picture = screenshots / f"{shop.store}-{name}-{size}-{scheme}.png"
                    await visit.page.screenshot(path=picture, full_page=size == "narrow")
    assert found == []
    assert shown >= 3


async def fits(visit: Visit) -> bool:
    # Asked from here: the policy of the page lets nothing in that waits by evaluating text.
    return bool(await visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


@pytest.mark.nightly
@of_one_store
async def test_a_page_takes_at_most_twelve_requests_when_nothing_is_cached(browser: Browser, shop: Shop) -> None:
    asked: list[str] = []
    found: dict[str, list[str]] = {}
    async with visiting(browser, shop) as visit:
        visit.page.on("request", lambda request: asked.append(request.url.removeprefix(shop.base)))
        # A page with a route caches nothing.
        await visit.page.route("**", lambda route: route.continue_())
        for name, where in pages(shop).items():
            asked.clear()
            await visit.go(where)
            await expect(visit.page.get_by_role("button", name="Live updates: Live")).to_be_visible()
            found[name] = list(asked)
    for urls in found.values():
        assert len(urls) <= 12, "\n".join(urls)
        assert sum(url.endswith((".js", ".css")) for url in urls) == 3


@pytest.mark.nightly
async def test_the_card_of_a_limit_counts_all_jobs_that_wait_for_it_whatever_the_filter(
    browser: Browser, shop: Shop
) -> None:
    await throttled(shop, f"counted {uuid.uuid4()}", 3)
    overview = await shop.app.admin.overview()
    (waiting,) = (each.waiting for each in overview.limits if each.limit == LIMIT)
    assert waiting >= 2
    async with visiting(browser, shop) as visit:
        for where in ("limits", "limits?prefix=nobody"):
            await visit.go(where)
            card = visit.page.locator("a.card").filter(has_text=re.compile("1 per h"))
            await expect(card).to_contain_text(f"{waiting} jobs waiting")
            await expect(card).to_contain_text(re.compile(r", \d+ keys?$"))
        await expect(visit.page.get_by_text("No matching keys")).to_be_visible()


@pytest.mark.nightly
@of_one_store
async def test_keys_are_said_to_be_ranked_only_if_they_are(browser: Browser, shop: Shop) -> None:
    async def cut(route: Route) -> None:
        answer = await route.fetch()
        await route.fulfill(json=await answer.json() | {"is_ranked": False})

    async with visiting(browser, shop) as visit:
        for where in ("limits", limit_page(LIMIT)):
            await visit.go(where)
            await expect(visit.page.get_by_text("most waiting jobs first")).to_be_visible()
        await visit.page.route("**/api/v1/limits?**", cut)
        for where in ("limits", limit_page(LIMIT)):
            await visit.go(where)
            await expect(visit.page.get_by_text("by limit and key")).to_be_visible()


@pytest.mark.nightly
async def test_a_paused_key_says_that_its_jobs_start_when_it_is_resumed(browser: Browser, shop: Shop) -> None:
    key = f"paused {uuid.uuid4()}"
    waiting = await throttled(shop, key, 2)
    await shop.app.admin.limits.pause(LIMIT, key=key)
    async with visiting(browser, shop) as visit:
        await visit.go(limit_page(LIMIT, key))
        await expect(visit.page.get_by_text("1 of 1 job", exact=True)).to_be_visible()
        table = visit.page.get_by_role("table", name="Next jobs")
        await expect(table.locator("tbody tr")).to_contain_text("when resumed")
        await visit.go(f"jobs?{urlencode({'limit': LIMIT, 'key': key})}")
        row = visit.page.locator("tr", has=visit.page.locator(f'a[href="jobs/{waiting[0]}"]'))
        await expect(row).to_contain_text("limit is paused")
        await shop.app.admin.limits.resume(LIMIT, key=key)
        await visit.go(limit_page(LIMIT, key))
        await expect(table.locator("tbody tr")).to_contain_text(re.compile(r"in \d+ min"))


@of_one_store
async def test_the_next_slot_of_a_penalized_key_is_not_before_its_budget_allows_a_start(
    browser: Browser, shop: Shop
) -> None:
    """The fault: it was at the end of the penalty, and the command line had the later one."""
    key = f"penalized {uuid.uuid4()}"
    await throttled(shop, key, 2)
    await shop.app.admin.limits.penalize(LIMIT, key, 600)
    async with visiting(browser, shop) as visit:
        slot = re.compile(r"in (1 h|5\d min)")
        await visit.go(limit_page(LIMIT, key))
        await expect(visit.page.locator("dl.facts div", has_text="Next slot")).to_contain_text(slot)
        await visit.go(f"limits?{urlencode({'prefix': key})}")
        await expect(visit.page.locator("main td.next-cell")).to_have_text(slot)


@pytest.mark.nightly
@of_one_store
async def test_texts_follow_the_time_zone_and_schedules_show_their_own(browser: Browser, shop: Shop) -> None:
    offset, utc = re.compile(r"\d\d:\d\d:\d\d [+\u2212]\d\d:\d\d"), re.compile(r"\d\d:\d\d:\d\d UTC")
    async with visiting(browser, shop) as visit:
        for where, place in (
            (f"jobs/{shop.seeds.scheduled.id}", ".why-reason"),
            ("audit?kind=limit&subject=permits", "tbody tr:last-child"),
        ):
            await visit.go(where)
            text = visit.page.locator(f"main {place}").first
            await expect(text).to_contain_text(offset)
            await visit.press("Time zone: local")
            await expect(text).to_contain_text(utc)
            await visit.press("Time zone: UTC")
        await visit.go("schedules")
        await expect(visit.page.get_by_role("row", name="nightly")).to_contain_text("03:00 Europe/Zurich")
        await visit.go("schedules/nightly")
        await expect(visit.page.locator(".next-runs li").first).to_contain_text(
            re.compile(r"\d{4}-\d\d-\d\d 03:00 Europe/Zurich")
        )


@of_one_store
async def test_instants_in_the_errors_of_headgate_follow_the_time_zone(browser: Browser, shop: Shop) -> None:
    async def rejected(route: Route) -> None:
        answer = await route.fetch()
        found = await answer.json()
        errors = ("headgate.errors.LimitRejected", "ValueError")
        for job, kind in zip(found["items"], errors, strict=False):
            job["error"] = {"type": kind, "message": "closed until 2026-11-24 09:30:00 UTC", "traceback": None}
        await route.fulfill(response=answer, json=found)

    async with visiting(browser, shop) as visit:
        session = await visit.page.context.new_cdp_session(visit.page)
        await session.send("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Tokyo"})
        await visit.page.route("**/api/v1/jobs?*", rejected)
        await visit.go("jobs")
        errors = visit.page.locator("main .payload-cell .bad-text")
        await expect(errors.nth(0)).to_contain_text("closed until 2026-11-24 18:30:00 +09:00")
        # The message of a program is evidence.
        await expect(errors.nth(1)).to_contain_text("closed until 2026-11-24 09:30:00 UTC")
        await visit.press("Time zone: local")
        await expect(errors.nth(0)).to_contain_text("closed until 2026-11-24 09:30:00 UTC")


@pytest.mark.nightly
async def test_a_retry_by_an_operator_begins_a_new_count_of_attempts(browser: Browser, shop: Shop) -> None:
    job = await shop.app.tasks["fail"].enqueue("again")
    await until(lambda: is_in(shop, job.id, "failed"))
    await shop.app.admin.retry(job.id)
    await until(lambda: has_attempts(shop, job.id, 2))
    await until(lambda: is_in(shop, job.id, "failed"))
    async with visiting(browser, shop) as visit:
        await visit.go(f"jobs/{job.id}")
        for of in (".timeline .chip", ".error .chip"):
            chips = await visit.page.locator(of).all_inner_texts()
            assert set(chips) == {"attempt 1", "attempt 1 after retry"}


@pytest.mark.nightly
@of_one_store
async def test_log_lines_are_filtered_by_level(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop) as visit:
        await visit.go(f"jobs/{shop.seeds.running.id}")
        lines = visit.page.get_by_role("region", name="Log lines")
        await expect(lines).to_contain_text("waits for")
        await visit.page.get_by_label("Level", exact=True).select_option("40")
        await expect(visit.page.get_by_text("There is no line of this level.")).to_be_visible()
        await visit.page.get_by_label("Level", exact=True).select_option("20")
        await expect(lines).to_contain_text("waits for")


async def throttled(shop: Shop, key: str, jobs: int) -> list[str]:
    """Enqueue jobs of a key; return those that wait for the limit when the first one has ended."""
    first, *others = await shop.app.tasks["sync_tenant"].enqueue_many([(key,)] * jobs)
    await result_within(first, 15)

    async def wait() -> bool:
        return await shop.app.admin.count(view="throttled", limit=LIMIT, key=key) == len(others)

    await until(wait)
    return [job.id for job in others]


async def test_jobs_are_retried_cancelled_and_run_before_their_time(browser: Browser, shop: Shop) -> None:
    app, tasks = shop.app, shop.app.tasks
    async with visiting(browser, shop) as visit:
        doomed = await tasks["fail"].enqueue("once")
        await until(lambda: is_in(shop, doomed.id, "failed"))
        await visit.go(f"jobs/{doomed.id}")
        await visit.press("Retry")
        await visit.agree("Retry")
        await expect(visit.page.get_by_role("status", name="Messages")).to_contain_text("The job is waiting again")
        await until(lambda: has_attempts(shop, doomed.id, 2))

        later = await tasks["send_mail"].using(delay=3600).enqueue("later")
        await visit.go(f"jobs/{later.id}")
        await visit.press("Run now")
        await visit.agree("Run now")
        await until(lambda: is_in(shop, later.id, "succeeded"))
        await expect(visit.page.get_by_role("heading", level=1)).to_contain_text("send_mail")
        await expect(visit.page.locator("main")).to_contain_text("succeeded")

        never = await tasks["send_mail"].using(delay=3600).enqueue("never")
        await visit.go(f"jobs/{never.id}")
        await visit.press("Cancel")
        await visit.agree("Cancel the job")
        await until(lambda: is_in(shop, never.id, "cancelled"))
        entries = await app.admin.audit_log(kind="job", subject=never.id)
        assert [(entry.actor, entry.action) for entry in entries] == [("ada", "cancel")]


async def test_jobs_are_enqueued_and_run_again_with_other_arguments(browser: Browser, shop: Shop) -> None:
    tasks = shop.app.tasks
    async with visiting(browser, shop, who="olga") as visit:
        dialog, arguments = visit.page.get_by_role("dialog"), visit.page.get_by_label("Arguments (JSON)")
        old = await tasks["send_mail"].using(priority=3).enqueue("first", {"id": 2**60 + 1})
        await until(lambda: is_in(shop, old.id, "succeeded"))
        await visit.go(f"jobs/{old.id}")
        await visit.press("Run again")
        await expect(arguments).to_have_value(re.compile(r'"to": "first"[^}]*"id": 1152921504606846977'))
        await arguments.fill('{"to": 7}')
        await dialog.get_by_role("button", name="Run again", exact=True).click()
        await expect(dialog.get_by_role("alert")).to_contain_text("argument 'to' of task 'send_mail' does not fit")
        await expect(arguments).to_have_attribute("aria-invalid", "true")
        await arguments.fill("{")
        await dialog.get_by_role("button", name="Run again", exact=True).click()
        await expect(dialog.get_by_role("alert")).to_contain_text("This is not JSON")
        await arguments.fill('{"to": "second", "words": {"id": 1152921504606846977}}')
        await visit.agree("Run again")
        await expect(visit.page).not_to_have_url(shop.base + f"jobs/{old.id}")
        new = visit.page.url.rpartition("/")[2]
        record = (await shop.app.admin.job(new)).record
        assert (json.loads(record.payload), record.priority) == (
            {"to": "second", "words": {"id": 2**60 + 1}}, 3
        )  # fmt: skip
        await expect(visit.page.locator("main")).to_contain_text(f"again, as job {old.id}")

        await visit.go("jobs?task=send_mail")
        await visit.press("Enqueue")
        await visit.press("Write the arguments as JSON")
        await expect(arguments).to_have_value("{}")
        await arguments.fill('{"to": 7}')
        await dialog.get_by_role("button", name="Enqueue", exact=True).click()
        await expect(dialog.get_by_role("alert")).to_contain_text("argument 'to' of task 'send_mail' does not fit")
        await arguments.fill('{"to": "third"}')
        await visit.page.get_by_label("Delay in seconds").fill("3600")
        await visit.agree("Enqueue")
        await expect(visit.page).to_have_url(re.compile(r"/jobs/[\w-]+$"))
        await expect(visit.page.locator("main")).to_contain_text("scheduled")
        entries = await shop.app.admin.audit_log(subject=visit.page.url.rpartition("/")[2])
        assert [(entry.actor, entry.action) for entry in entries] == [("olga", "enqueue")]
        visit.forget_refusals(422)


async def test_many_jobs_are_changed_after_they_were_counted(browser: Browser, shop: Shop) -> None:
    task = shop.app.tasks["send_mail"]
    jobs = [await task.using(delay=3600).enqueue("bulk me", {"number": number}) for number in range(5)]
    async with visiting(browser, shop) as visit:
        await visit.go("jobs?view=scheduled&text=bulk+me")
        await visit.press("Cancel all matching the filter")
        dialog = visit.page.get_by_role("dialog")
        await expect(dialog.get_by_role("heading")).to_have_text("Cancel 5 jobs?")
        await visit.page.keyboard.press("Escape")
        await expect(dialog).to_have_count(0)
        assert await shop.app.admin.count(view="scheduled", text="bulk me") == 5

        for job in jobs[:2]:
            await (
                visit.page.locator("tr", has=visit.page.locator(f'a[href="jobs/{job.id}"]'))
                .get_by_role("checkbox")
                .check()
            )
        await visit.press("Run now 2 selected")
        await visit.agree("Run 2 jobs now")
        await until(lambda: is_in(shop, jobs[0].id, "succeeded"))
        await until(lambda: is_in(shop, jobs[1].id, "succeeded"))

        await visit.press("Cancel all matching the filter")
        await visit.agree("Cancel 3 jobs")
        for job in jobs[2:]:
            await until(functools.partial(is_in, shop, job.id, "cancelled"))


@pytest.mark.nightly
async def test_a_list_does_not_change_while_jobs_are_selected(browser: Browser, shop: Shop) -> None:
    task = shop.app.tasks["fail"]
    picked = [await task.enqueue("pick me") for _ in range(2)]
    for job in picked:
        await until(functools.partial(is_in, shop, job.id, "failed"))
    async with visiting(browser, shop) as visit:
        page = visit.page
        await visit.go("jobs?state=failed&text=pick+me")
        every = page.get_by_role("checkbox", name="Select all on this page: Jobs")
        await every.check()
        await visit.press("Clear selection")
        await expect(every).not_to_be_checked()
        await every.check()
        # Only what failed jobs allow.
        await expect(page.locator(".bulk-bar").get_by_role("button")).to_have_text(
            ["Clear selection", "Retry", "Delete"]
        )

        late = await task.enqueue("pick me too")
        await until(functools.partial(is_in, shop, late.id, "failed"))
        await expect(page.get_by_text("Updates paused while the list is in use")).to_be_visible()
        await expect(page.locator(f'a[href="jobs/{late.id}"]')).to_have_count(0)
        await expect(every).to_be_checked()
        await visit.press("Retry 2 selected")
        await visit.agree("Retry 2 jobs")
        await until(functools.partial(has_attempts, shop, picked[0].id, 2))
        await page.mouse.move(0, 0)
        await expect(page.locator(f'a[href="jobs/{late.id}"]')).to_be_visible()

        await visit.press("Retry all matching the filter")
        await visit.agree("Retry 3 jobs")
        await until(functools.partial(has_attempts, shop, late.id, 2))


@of_one_store
async def test_nodes_are_quieted_get_other_slots_and_are_stopped(browser: Browser, shop: Shop) -> None:
    storage = store_of(shop.app)
    await storage.join("node-7", "steered", controls=NodeControls({QUEUE: 4}), labels=["gpu"])

    async def controls() -> NodeControls:
        return next(node.controls for node in await storage.nodes() if node.id == "node-7")

    try:
        async with visiting(browser, shop) as visit:
            await visit.go("nodes")
            await visit.press("Quiet node steered")
            await visit.agree("Quiet the node")
            await expect(visit.page.get_by_role("button", name="Resume node steered")).to_be_visible()
            assert (await controls()).is_quiet
            await visit.page.get_by_role("status", name="Messages").get_by_role("button", name="Undo").click()
            await expect(visit.page.get_by_role("button", name="Quiet node steered")).to_be_visible()
            assert not (await controls()).is_quiet
            await visit.press("Quiet node steered")
            await visit.agree("Quiet the node")
            await expect(visit.page.get_by_role("button", name="Resume node steered")).to_be_visible()
            await visit.press("Set the slots of node steered")
            await visit.page.get_by_label("Slots", exact=True).fill("9")
            await visit.agree("Set the slots")
            await expect(visit.page.get_by_role("button", name="Quiet node steered")).to_be_visible()
            assert await controls() == NodeControls({QUEUE: 9})
            # Where the table is wider than the screen, the buttons are in sight without scrolling.
            await visit.page.set_viewport_size({"width": 1000, "height": 700})
            box = await visit.page.get_by_role("button", name="Rename node steered").bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= 1000
            await visit.press("Rename node steered")
            await visit.page.get_by_label("Name", exact=True).fill("renamed")
            await visit.agree("Rename the node")
            await visit.press("Stop node renamed")
            await visit.agree("Stop the node")
            await expect(visit.page.get_by_text("stopping", exact=True)).to_be_visible()
            assert (await controls()).is_stopping
    finally:
        await storage.leave("node-7")


@of_one_store
async def test_a_node_that_was_declared_dead_is_told_from_live_ones(browser: Browser, shop: Shop) -> None:
    storage = store_of(shop.app)
    await storage.join("node-8", "killed", version="0.0.1")
    assert await storage.recover("node-8", 0) is not None
    async with visiting(browser, shop) as visit:
        await visit.go("nodes")
        table = visit.page.get_by_role("table", name="Nodes")
        dead = table.get_by_role("row").filter(has_text="killed")
        await expect(dead).to_have_class("dim")
        await expect(dead.locator(".badge")).to_have_text("gone")
        await expect(dead.get_by_role("button")).to_have_count(0)
        await expect(dead.get_by_title("Declared dead")).to_contain_text(" ago")
        await expect(dead).to_contain_text("0 jobs returned")
        await expect(table.get_by_role("row").last).to_contain_text("killed")
        await expect(visit.page.get_by_text("different versions")).to_have_count(0)


async def test_queues_and_schedules_are_changed(browser: Browser, shop: Shop) -> None:
    admin = shop.app.admin
    async with visiting(browser, shop) as visit:
        await visit.go("queues")
        await visit.press("Pause queue default")
        await visit.agree("Pause the queue")
        await expect(visit.page.get_by_role("button", name="Resume queue default")).to_be_visible()
        assert await admin.queues.is_paused("default")
        await visit.press("Resume queue default")
        await expect(visit.page.get_by_role("button", name="Pause queue default")).to_be_visible()
        assert not await admin.queues.is_paused("default")

        schedule = f"schedules/{quote(SCHEDULE, safe='')}"
        await visit.go(schedule)
        await visit.press(f"Pause schedule {SCHEDULE}")
        await visit.agree("Pause the schedule")
        await expect(visit.page.get_by_role("button", name=f"Resume schedule {SCHEDULE}", exact=True)).to_be_visible()
        assert (await admin.schedules.status(SCHEDULE)).state == "paused"
        await visit.press("Undo")
        await expect(visit.page.get_by_role("button", name=f"Pause schedule {SCHEDULE}", exact=True)).to_be_visible()
        await admin.schedules.pause(SCHEDULE)
        await visit.press(f"Resume schedule {SCHEDULE}")
        await visit.agree("Resume")
        await expect(visit.page.get_by_role("button", name=f"Pause schedule {SCHEDULE}", exact=True)).to_be_visible()
        assert (await admin.schedules.status(SCHEDULE)).state == "active"

        before = (await admin.schedules.next_runs(SCHEDULE))[0]
        await visit.press("Skip next")
        await visit.agree("Skip the run")
        await expect(visit.page.get_by_role("status", name="Messages")).to_contain_text("The next run will be skipped")
        assert (await admin.schedules.next_runs(SCHEDULE))[0] > before

        await visit.press(f"Run now: schedule {SCHEDULE}")
        await visit.agree("Run now")
        await expect(visit.page.get_by_role("table", name="Jobs of the schedule").locator("tbody a")).to_have_count(1)
        assert await admin.count(schedule=SCHEDULE) == 1

        # One that no other test looks at, and that no node declares again.
        gone = f"gone {uuid.uuid4()}"
        await shop.app.tasks["often"].schedule(gone, Every(hours=1)).enqueue()
        await visit.go(f"schedules/{quote(gone)}")
        await visit.press("Remove")
        await visit.agree("Remove the schedule")
        await expect(visit.page).to_have_url(shop.base + "schedules")
        with pytest.raises(ScheduleNotFound):
            await admin.schedules.status(gone)


@pytest.mark.nightly
async def test_schedules_are_created_and_edited(browser: Browser, shop: Shop) -> None:
    admin, name = shop.app.admin.schedules, f"made {uuid.uuid4()}"
    async with visiting(browser, shop, who="olga") as visit:
        page, dialog = visit.page, visit.page.get_by_role("dialog")
        await visit.go("schedules")
        await visit.press("Create")
        await page.get_by_label("Name of the schedule").fill(name)
        await page.get_by_label("Task of the schedule").select_option("send_mail")
        # The server reads the expression while it is typed.
        runs = dialog.get_by_role("status", name="Next runs")
        await page.get_by_label("Expression").fill("0 9 * * *")
        await expect(runs.locator("li")).to_have_count(5)
        # A screen reader says what changes there: not how long it is until then, each second.
        assert not re.search(r"\bin \d", await runs.aria_snapshot())
        await page.get_by_label("Expression").fill("0 99 * * *")
        await expect(runs).to_contain_text("hour 99 is not in 0-23")
        await expect(runs.locator("li")).to_have_count(0)
        await page.get_by_label("Time zone", exact=True).fill("Europe/Zurich")
        await page.get_by_label("Except on").fill("12-25, 12-31..01-02")
        await page.get_by_label("to, text").fill("ops")
        await dialog.get_by_role("button", name="Create", exact=True).click()
        await expect(dialog.get_by_role("alert")).to_contain_text("hour 99 is not in 0-23")
        await page.get_by_label("Expression").fill("0 9 * * *")
        await visit.agree("Create")
        await expect(page.get_by_role("heading", level=1)).to_contain_text(name)
        status = await admin.status(name)
        assert status.trigger == "cron 0 9 * * * (Europe/Zurich), except 12-25, 12-31..01-02 (Europe/Zurich)"

        await visit.press("Edit")
        await expect(page.get_by_label("Except on")).to_have_value("12-25, 12-31..01-02")
        await page.get_by_label("Trigger", exact=True).select_option("every")
        await page.get_by_label("Every", exact=True).fill("2h")
        await expect(runs.locator("li")).to_have_count(5)
        await page.get_by_label("Only between").fill("8:00 - 18:00")
        await page.get_by_label("Except on").fill("")
        await page.get_by_label("Jitter in seconds").fill("30")
        await visit.agree("Save")
        await expect(visit.page.locator("main")).to_contain_text(
            "every 2 hours, between 8:00 and 18:00 (Europe/Zurich)"
        )
        status, definition = await admin.status(name), await admin.definition(name)
        assert (status.jitter, json.loads(definition.payload)) == (30, {"to": "ops"})

        await visit.press("Edit")
        await page.get_by_label("Trigger", exact=True).select_option("calendar")
        await page.get_by_label("Days and times").fill("each monday")
        await dialog.get_by_role("button", name="Save", exact=True).click()
        await expect(dialog.get_by_role("alert")).to_contain_text("'each monday' is not a calendar")
        await page.get_by_label("Days and times").fill("every 2 weeks on mon, wed at 9:00 from 2027-01-04")
        await visit.agree("Save")
        await expect(visit.page.locator("main")).to_contain_text("every 2 weeks on mon, wed at 9:00 (Europe/Zurich)")
        await visit.press("Edit")
        await expect(page.get_by_label("Days and times")).to_have_value(
            "every 2 weeks on mon, wed at 9:00 from 2027-01-04"
        )
        await dialog.get_by_role("button", name="Cancel", exact=True).click()

        async def answered_late(route: Route) -> None:
            if route.request.method != "DELETE":
                await route.fallback()
                return
            response = await route.fetch()
            # Meanwhile the page would refresh, and find nothing.
            await asyncio.sleep(7)
            await route.fulfill(response=response)

        await page.route(f"**/api/v1/schedules/{quote(name)}", answered_late)
        await visit.press("Remove")
        await visit.agree("Remove the schedule")
        await expect(page).to_have_url(shop.base + "schedules", timeout=15_000)

        await visit.go("schedules/nightly")
        await expect(page.get_by_role("button", name="Edit", exact=True)).to_have_attribute("aria-disabled", "true")
        visit.forget_refusals(422)


async def test_a_schedule_whose_trigger_nobody_changes_in_the_form_keeps_its_times(
    browser: Browser, shop: Shop
) -> None:
    """The fault: the form sent each trigger as text, which has neither the start of a period nor a zone of its own."""
    admin, daily = shop.app.admin.schedules, Every(hours=24, start=datetime(2026, 1, 1, 6, tzinfo=UTC))
    async with visiting(browser, shop, who="olga") as visit:
        for trigger, label, tz in (
            (daily, "Every", None),
            (daily, "Every", "Asia/Tokyo"),
            (Cron("0 6 * * *"), "Expression", "America/New_York"),
        ):
            name = f"kept {uuid.uuid4()}"
            await shop.app.tasks["often"].schedule(name, trigger, on=tz and "day", tz=tz).enqueue()
            before, runs = (await admin.status(name)).trigger, await admin.next_runs(name)
            await visit.go(f"schedules/{quote(name)}")
            await visit.press("Edit")
            # What was changed and changed back is not changed.
            field = visit.page.get_by_label(label, exact=True)
            text = await field.input_value()
            await field.fill(f"{text} ")
            await field.fill(text)
            await visit.page.get_by_label("Jitter in seconds").fill("30")
            await visit.agree("Save")
            await expect(visit.page.get_by_role("status", name="Messages")).to_contain_text(f"{name} is changed")
            status = await admin.status(name)
            assert (status.trigger, status.jitter) == (before, 30)
            assert await admin.next_runs(name) == runs
            await visit.go("overview")
            await admin.remove(name)


async def test_another_rate_is_tried_out_on_the_page_of_a_key_and_applied(browser: Browser, shop: Shop) -> None:
    limits = shop.app.admin.limits
    key = f"what if {uuid.uuid4()}"
    await throttled(shop, key, 6)
    async with visiting(browser, shop) as visit:
        said = visit.page.get_by_role("status", name="Messages")
        await visit.go(limit_page(LIMIT, key))
        panel = visit.page.get_by_role("region", name="What if")
        await expect(panel).to_contain_text("Now: 1 per hour, clear at")
        apply = panel.get_by_role("button", name="Apply", exact=True)
        await expect(apply).to_have_attribute("title", "Choose another rate first")

        # By the keyboard, as a screen reader reads it.
        slider = panel.get_by_role("slider", name="Another rate")
        await slider.press("ArrowRight")
        await expect(slider).to_have_attribute("aria-valuetext", re.compile("^2 per hour: clear at "))
        await expect(panel).to_contain_text(re.compile("What if: 2 per hour, clear at .*, [23] h.* sooner"))
        await expect(
            panel.get_by_role("img", name=re.compile("Waiting jobs over time, 5 now. 1 per hour: "))
        ).to_be_visible()
        assert await limits.settings(LIMIT) == []

        # A number beyond the slider, and what is no rate.
        field = panel.get_by_label("Count per hour")
        await field.fill("0")
        await expect(panel).to_contain_text("The count must be at least 1")
        await expect(visit.page.get_by_role("button", name="Apply", exact=True)).to_have_attribute(
            "aria-disabled", "true"
        )
        await field.fill("50")
        await expect(panel).to_contain_text(re.compile("50 per hour, clear at"))
        await field.fill("2")
        await expect(panel).to_contain_text(re.compile("2 per hour, clear at"))
        await expect(panel.locator("code")).to_contain_text("limits set")
        await visit.press("Apply")
        await expect(said).to_contain_text("is now 2/h")
        assert (await limits.bucket(LIMIT, key)).count == 2
        await said.get_by_role("button", name="Undo").click()
        await expect(said).to_contain_text("uses its declared rule")
        assert await limits.settings(LIMIT) == []
    (undone, applied) = (await shop.app.admin.audit_log(kind="limit", subject=LIMIT, count=2))[:2]
    assert (undone.action, applied.action) == ("unset", "set to 2/h + 0.02s")
    assert applied.actor.startswith("ada")
    # What was set before is set again.
    await limits.set_rule(LIMIT, "3/h", key=key)
    async with visiting(browser, shop) as visit:
        said = visit.page.get_by_role("status", name="Messages")
        await visit.go(limit_page(LIMIT, key))
        await visit.page.get_by_label("Count per hour").fill("1")
        await expect(visit.page.get_by_role("region", name="What if")).to_contain_text("later")
        await visit.press("Apply")
        await expect(said).to_contain_text("is now 1/h")
        await said.get_by_role("button", name="Undo").click()
        await expect(said).to_contain_text("is now 3/h")
    assert (await limits.bucket(LIMIT, key)).count == 3
    await limits.unset(LIMIT, key=key)


async def test_limits_are_changed(browser: Browser, shop: Shop) -> None:
    limits = shop.app.admin.limits
    key = f"tenant {HOSTILE}"
    async with visiting(browser, shop) as visit:
        said = visit.page.get_by_role("status", name="Messages")
        await visit.go(limit_page(LIMIT, key))
        await expect(visit.page.locator("main")).to_contain_text("of 1 used")

        await visit.press("Set rule")
        rule = visit.page.get_by_label("Rule", exact=True)
        await rule.fill("7/moon")
        await expect(visit.page.get_by_role("button", name="Set the rule")).to_be_disabled()
        await rule.fill("7/m")
        await visit.agree("Set the rule")
        await expect(said).to_contain_text("is now 7/m")
        assert [setting.rule is not None for setting in await limits.settings(LIMIT)] == [True]
        assert (await limits.bucket(LIMIT, key)).count == 7
        await visit.press("Unset")
        await visit.agree("Use the declared rule")
        await expect(said).to_contain_text("uses its declared rule")
        assert await limits.settings(LIMIT) == []

        await visit.press("Pause")
        await visit.agree("Pause")
        await expect(visit.page.get_by_role("button", name="Resume", exact=True)).to_be_visible()
        assert (await limits.bucket(LIMIT, key)).is_paused
        await visit.press("Resume")
        await visit.agree("Resume")
        await expect(visit.page.get_by_role("button", name="Pause", exact=True)).to_be_visible()
        assert not (await limits.bucket(LIMIT, key)).is_paused

        # The fault: it was said to be resumed for the key, while the pause for all keys went on.
        await limits.pause(LIMIT)
        await visit.go(limit_page(LIMIT, key))
        await visit.press("Resume")
        await visit.agree("Resume")
        await expect(said).to_contain_text("Nothing was changed")
        await limits.resume(LIMIT)

        await visit.press("Penalize")
        await visit.agree("Penalize")
        await expect(visit.page.locator("main")).to_contain_text("Penalized until")
        assert (await limits.bucket(LIMIT, key)).penalized_until is not None
        await visit.press("Reset")
        await visit.agree("Reset")
        await expect(said).to_contain_text("is reset")
        assert (await limits.bucket(LIMIT, key)).penalized_until is None

        await visit.press("Set tier")
        await visit.page.get_by_label("Tier", exact=True).fill("gold")
        await visit.agree("Assign")
        await expect(said).to_contain_text("is in tier gold")
        assert [(each.scope, each.tier) for each in await limits.settings(LIMIT)] == [("member", "gold")]
        await limits.assign(LIMIT, key, None)

        # Its starts are counted again and compared with the rule.
        await visit.go(limit_page(LIMIT, LONG))
        await visit.press("Check past starts")
        await expect(visit.page.get_by_role("table", name=re.compile("held|window", re.IGNORECASE))).to_be_visible()
        assert [(each.key, each.is_within_limit) for each in await limits.audit(LIMIT, key=LONG)] == [(LONG, True)]

        await visit.go("audit?kind=limit")
        done = [entry.action for entry in await shop.app.admin.audit_log(kind="limit", subject=LIMIT, actor="ada")]
        assert len(done) >= 7
        for action in done:
            await expect(visit.page.get_by_role("cell", name=action, exact=True).first).to_be_visible()


async def test_the_history_of_a_limit_without_keys_has_the_bound_of_its_rule(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop) as visit:
        async with visit.page.expect_response(re.compile("/limits/spare/history")) as answering:
            await visit.go(limit_page(SPARE, ""))
        history = await (await answering.value).json()
        assert (history["key"], history["bound"]) == ("", {"count": 5, "per": 60})


@pytest.mark.nightly
async def test_a_limit_is_changed_for_all_its_keys_and_removed(browser: Browser, shop: Shop) -> None:
    limits = shop.app.admin.limits
    async with visiting(browser, shop) as visit:
        said = visit.page.get_by_role("status", name="Messages")
        await visit.go(limit_page(SPARE))
        await visit.press("Pause")
        await visit.agree("Pause")
        await expect(visit.page.get_by_role("button", name="Resume", exact=True)).to_be_visible()
        await visit.press("Set rule")
        await visit.page.get_by_role("textbox", name="Rule", exact=True).fill("9/m")
        await visit.page.get_by_label("For", exact=True).select_option("tier")
        await visit.page.get_by_role("textbox", name="Tier", exact=True).fill("gold")
        await visit.agree("Set the rule")
        await expect(visit.page.get_by_role("table", name="Set at run time").get_by_text("gold")).to_be_visible()
        assert [(each.scope, each.target) for each in await limits.settings(SPARE)] == [("all", ""), ("tier", "gold")]
        await visit.press("Remove")
        await visit.agree("Remove the limit")
        await expect(said).to_contain_text(f"Limit {SPARE} is removed")
        await expect(visit.page.get_by_role("button", name="Pause", exact=True)).to_be_visible()
        assert await limits.settings(SPARE) == []

        # Jobs wait for this one.
        await visit.go(limit_page(LIMIT))
        await visit.press("Remove")
        await visit.agree("Remove the limit")
        await expect(said).to_contain_text("job", ignore_case=True)
        assert [each.limit for each in await limits.list(LIMIT, count=1)] == [LIMIT]
        # A browser says itself that it was refused.
        visit.expected.add("409")


@pytest.mark.nightly
@of_one_store
async def test_keys_go_to_pages_find_jobs_pause_and_help(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop) as visit:
        page, keys = visit.page, visit.page.keyboard
        await visit.go("overview")
        await keys.press("?")
        await expect(page.get_by_role("dialog").get_by_role("heading", level=2)).to_have_text("Help")
        await keys.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        for name in ("queues", "jobs", "limits", "schedules", "nodes", "audit", "overview"):
            # The second key has to follow within 1.2 s, which a busy machine may not keep.
            while not page.url.endswith(f"/{name}"):
                await keys.press("g")
                await keys.press(name[0])
                with suppress(AssertionError):
                    await expect(page).to_have_url(shop.base + name, timeout=2_000)
            await visit.settled()
        await keys.press("p")
        await expect(page.get_by_role("button", name="Live updates: Paused")).to_be_visible()
        await keys.press("p")
        await expect(page.get_by_role("button", name="Live updates: Live")).to_be_visible()
        await keys.press("/")
        await keys.type(shop.seeds.succeeded.id)
        await keys.press("Enter")
        await expect(page).to_have_url(f"{shop.base}jobs/{shop.seeds.succeeded.id}")
        await keys.press("/")
        await keys.type("half a w")
        # Letters that are typed go nowhere.
        await expect(page).to_have_url(f"{shop.base}jobs/{shop.seeds.succeeded.id}")
        await keys.press("Enter")
        await expect(page).to_have_url(f"{shop.base}jobs?text=half+a+w")


@of_one_store
async def test_control_characters_are_escaped_on_the_page_and_on_the_clipboard(browser: Browser, shop: Shop) -> None:
    key = "a\u202eb\x1b]0;c\nd'e"
    async with visiting(browser, shop) as visit:
        page = visit.page
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await visit.go(limit_page("permits", key))
        await expect(page.locator("main")).to_contain_text("a\\u202eb\\u001b]0;c")
        assert not set("\u202e\x1b") & set(await page.locator("body").inner_text())
        await page.get_by_role("button", name="Copy as command").first.click()
        copied = await page.evaluate("navigator.clipboard.readText()")
        assert copied == rf"headgate limits list --limit permits --key $'a\u202eb\u001b]0;c\nd\'e' {APP}"
    # The shell makes of it the key that was meant.
    word = copied.partition("--key ")[2].removesuffix(APP)
    printf = await asyncio.create_subprocess_exec(
        "bash", "-c", f"printf %s {word}", stdout=asyncio.subprocess.PIPE, env={"LC_ALL": "C.UTF-8"}
    )
    printed, _ = await printf.communicate()
    assert printed.decode() == key


@of_one_store
async def test_lists_are_filtered_paged_and_copied_as_a_command(browser: Browser, shop: Shop) -> None:
    task = shop.app.tasks["send_mail"].using(delay=7200)
    await task.enqueue_many([("pages", {"number": number}) for number in range(60)])
    async with visiting(browser, shop) as visit:
        page = visit.page
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await visit.go("jobs?view=scheduled")
        await page.get_by_label("Payload text", exact=True).fill('"pages"')
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("60 jobs").first).to_be_visible()
        await visit.press("Copy as command")
        copied = await page.evaluate("navigator.clipboard.readText()")
        assert copied == f"headgate jobs list --view scheduled --text '\"pages\"' {APP}"
        rows = page.get_by_role("table", name="Jobs", exact=True).locator("tbody tr")
        await expect(rows).to_have_count(50)
        await visit.press("Next")
        await expect(rows).to_have_count(10)
        await visit.press("Previous")
        await expect(rows).to_have_count(50)
        await visit.press("More filters")
        await page.get_by_label("Unique key", exact=True).fill("nobody's")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("No matching jobs")).to_be_visible()
        await page.get_by_label("Unique key", exact=True).fill("")
        for label, text, url in (
            ("Tag", "pages", "tag=pages"),
            ("Header", "source=api", "header=source%3Dapi"),
            ("Annotation", "invoice=42", "annotation=invoice%3D42"),
        ):
            await page.get_by_label(label, exact=True).fill(text)
            await page.keyboard.press("Enter")
            await expect(page).to_have_url(re.compile(re.escape(url)))
        await expect(page.get_by_text("No matching jobs")).to_be_visible()
        await page.get_by_role("link", name="Clear filters").click()
        await expect(page).to_have_url(f"{shop.base}jobs?view=scheduled")
        await visit.press("Cancel all matching the filter")
        await expect(page.get_by_role("dialog")).to_be_visible()
        await visit.press("Keep the jobs")
        await expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.nightly
@of_one_store
async def test_a_slow_search_is_indicated_and_not_restarted_by_updates(browser: Browser, shop: Shop) -> None:
    sought = await shop.app.tasks["send_mail"].using(delay=7200).enqueue("needle")
    searches, answers = asyncio.Event(), asyncio.Event()
    asked: list[str] = []

    async def slowly(route: Route) -> None:
        asked.append(route.request.url)
        searches.set()
        await answers.wait()
        await route.continue_()

    async with visiting(browser, shop) as visit:
        page = visit.page
        overview = await (await page.request.get(f"{shop.base}api/v1/overview")).json()

        async def three_events(route: Route) -> None:
            await searches.wait()
            now = datetime.now(UTC) + timedelta(minutes=1)
            await route.fulfill(**events(*(with_silent_nodes(overview, number, now) for number in (1, 2, 3))))

        await page.add_init_script(NO_DEADLINE)
        await page.route("**/api/v1/stream", three_events)
        await page.clock.install()
        await visit.go("jobs")
        await page.route(re.compile(r"/api/v1/jobs\?.*text="), slowly)
        await page.get_by_label("Payload text", exact=True).fill("needle")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("Searching …").first).to_be_visible()
        await expect(page.locator(".nav-count").filter(has_text="3")).to_be_visible()
        # Any refresh that an update has scheduled is due now.
        await page.clock.fast_forward(60_000)
        await page.evaluate("fetch('api/v1/session').then((answer) => answer.text())")
        assert len(asked) == 1
        answers.set()
        await expect(page.locator(f'a[href="jobs/{sought.id}"]')).to_be_visible()
        await expect(page.get_by_text("Searching …")).to_have_count(0)


@pytest.mark.nightly
@of_one_store
async def test_the_marks_of_an_axis_have_distinct_labels_for_small_values(browser: Browser, shop: Shop) -> None:
    async def source(route: Route) -> None:
        # The modules are served as they are written, not joined, so that one of them can be imported.
        _, _, module = route.request.url.partition("/js/")
        body = (STATIC / "js" / module).read_text() if module else 'import "./js/main.js";'
        await route.fulfill(content_type="text/javascript", body=body)

    async with visiting(browser, shop) as visit:
        await visit.page.route(re.compile(r"/static/\w+/(?:js/.*|app\.js)$"), source)
        await visit.go("nodes")
        for nothing in (0, None):
            assert await visit.page.evaluate(AXES, nothing) == [["0", "0.5", "1"], ["0 s", "500 ms", "1 s"]]
        assert await visit.page.evaluate(AXES, 0.0003) == [["0", "0.01", "0.02"], ["0 s", "1 ms", "2 ms"]]
        assert await visit.page.evaluate(AXES, 40) == [["0", "20", "40"], ["0 s", "20 s", "40 s"]]


@pytest.mark.nightly
@of_one_store
async def test_colours_and_bars_are_shown_before_any_module_runs(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop) as visit:
        page = visit.page
        await visit.go("nodes")
        await visit.press("Theme: auto")
        await visit.press("Theme: light")
        await visit.press("Time zone: local")
        await expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
        await page.route("**/app.js", lambda route: route.fulfill(content_type="text/javascript", body=""))
        await page.reload()
        await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        await expect(page.locator(".topbar")).to_be_visible()
        await page.unroute_all()
        await page.reload()
        await expect(page.get_by_role("button", name="Time zone: UTC")).to_be_visible()
        await visit.look("narrow", "light")
        await visit.press("Menu")
        await page.get_by_role("link", name="Limits").click()
        await expect(page).to_have_url(shop.base + "limits")


async def test_updates_appear_without_a_reload_and_keep_the_focus(browser: Browser, shop: Shop) -> None:
    received = shop.seeds.signal.with_name(f"told {uuid.uuid4()}")
    job = await shop.app.tasks["until_told"].enqueue(str(received))
    await until(lambda: is_in(shop, job.id, "running"))
    async with visiting(browser, shop) as visit, visiting(browser, shop) as other:
        await visit.go(f"jobs/{job.id}")
        await visit.page.evaluate("window.wasHere = true")
        await expect(visit.page.locator("main")).to_contain_text("running")
        await other.go("jobs?state=succeeded&task=until_told")
        typed = other.page.get_by_label("Payload text", exact=True)
        await typed.click()
        await typed.press_sequentially("half a w")
        received.touch()
        await expect(visit.page.locator("main .badge").first).to_contain_text("succeeded")
        assert await visit.page.evaluate("window.wasHere")
        await expect(other.page.locator(f'a[href="jobs/{job.id}"]')).to_be_visible()
        await expect(typed).to_be_focused()
        await expect(typed).to_have_value("half a w")


@pytest.mark.nightly
@of_one_store
async def test_tags_and_annotations_of_a_job_are_shown_and_lead_to_the_jobs_with_the_tag(
    browser: Browser, shop: Shop
) -> None:
    received = shop.seeds.signal.with_name(f"told {uuid.uuid4()}")
    job = await shop.app.tasks["until_told"].using(tags=["vip", "2026"]).enqueue(str(received))
    await until(lambda: is_in(shop, job.id, "running"))
    async with visiting(browser, shop) as visit:
        await visit.go(f"jobs/{job.id}")
        main = visit.page.locator("main")
        await expect(main).to_contain_text("invoice")
        await expect(main).to_contain_text("42")
        await visit.page.get_by_role("link", name="vip", exact=True).click()
        await expect(visit.page).to_have_url(f"{shop.base}jobs?tag=vip")
        rows = visit.page.get_by_role("table", name="Jobs", exact=True).locator("tbody tr")
        await expect(rows).to_have_count(1)
        await expect(rows).to_contain_text("2026 vip")
    received.touch()


@of_one_store
async def test_a_page_shows_when_the_server_is_lost_and_back(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop) as visit:
        await visit.go("queues")
        await expect(visit.page.get_by_role("button", name="Live updates: Live")).to_be_visible()
        assert visit.unexpected() == []
        await shop.server.kill()
        await expect(visit.page.get_by_role("button", name="Live updates: Offline")).to_be_visible()
        await shop.server.start()
        await shop.answers()
        await expect(visit.page.get_by_role("button", name="Live updates: Live")).to_be_visible()
        await expect(visit.page.get_by_role("alert")).to_have_count(0)
        # The browser itself reports that there was no answer.
        visit.expected.add("ERR_")


@of_one_store
@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        ("text/html", "<h1>Sign in to the proxy</h1>", "The server responded with status 200"),
        ("application/json", '{"items": [{"id": "06r', "The server cannot be reached"),
    ],
    ids=["a page of the proxy", "cut off"],
)
async def test_an_answer_that_is_not_of_the_api_is_no_error_of_the_page(
    browser: Browser, shop: Shop, kind: str, body: str, said: str
) -> None:
    """The fault: "TypeError: Cannot read properties of null", and "SyntaxError: Unterminated string in JSON"."""

    async def answer(route: Route) -> None:
        await route.fulfill(status=200, content_type=kind, body=body)

    async with visiting(browser, shop) as visit:
        await visit.page.route("**/api/v1/nodes", answer)
        await visit.page.goto(f"{shop.base}nodes")
        await expect(visit.page.get_by_role("alert")).to_contain_text(said)


@of_one_store
async def test_a_page_is_loaded_again_soon_after_a_long_wait_for_the_store(browser: Browser, shop: Shop) -> None:
    """The fault: the notice that the store is away stayed for five times as long as a load had waited for it."""
    async with visiting(browser, shop) as visit:
        page, refused = visit.page, asyncio.Event()

        async def wait_in_vain(route: Route) -> None:
            if not refused.is_set():
                await page.clock.fast_forward(600_000)
            await route.fulfill(status=503, json={"type": f"{TYPES}storage_unavailable", "detail": "it is away"})
            refused.set()

        await page.clock.install()
        await visit.go("nodes")
        await page.evaluate(f"() => {{ {NO_DEADLINE} }}")
        await page.route("**/api/v1/nodes", wait_in_vain)
        await page.clock.fast_forward(7_000)
        await expect(page.get_by_role("alert")).to_contain_text("The store does not respond")
        await page.unroute("**/api/v1/nodes", wait_in_vain)
        for _ in range(3):
            await page.clock.fast_forward(7_000)
        await expect(page.get_by_role("alert")).to_have_count(0)
        visit.forget_refusals(503)


@of_one_store
@pytest.mark.parametrize("minutes", [-10, 10], ids=["behind", "ahead"])
async def test_the_time_without_the_server_does_not_depend_on_the_clock_of_the_browser(
    browser: Browser, shop: Shop, minutes: int
) -> None:
    async with visiting(browser, shop) as visit:
        page = visit.page
        await page.add_init_script(f"const real = Date.now; Date.now = () => real() + {minutes * 60_000};")
        await page.route("**/api/v1/stream", lambda route: route.fulfill(status=503))
        await page.route("**/api/v1/overview", lambda route: route.abort())
        await visit.go("nodes")
        lost = page.get_by_role("button", name="Live updates: Offline")
        # It is drawn again with each attempt, every 5 s.
        await expect(lost).to_have_text(re.compile(r"for [1-9]\d? s$"))
        visit.expected |= {"status of 503", "ERR_FAILED"}


@of_one_store
async def test_a_new_tab_does_not_set_the_clock_of_another_tab_back(browser: Browser, shop: Shop) -> None:
    seen = ".nav-count >> text=7"
    async with visiting(browser, shop) as visit:
        context = visit.page.context
        overview = await (await visit.page.request.get(f"{shop.base}api/v1/overview")).json()
        sent = events(with_silent_nodes(overview, 7, datetime.fromisoformat(overview["now"])))
        await context.route("**/api/v1/stream", lambda route: route.fulfill(**sent))
        # A tab that has heard nothing for 12 s asks, which on a busy machine is soon.
        await context.route("**/api/v1/overview", lambda route: route.abort())
        await context.clock.install()
        await visit.go("nodes")
        await expect(visit.page.locator(seen)).to_be_visible()
        # The first tab holds the stream, and tells a new one the overview.
        tab, new = await context.new_page(), await context.new_page()
        await tab.goto(f"{shop.base}nodes")
        await expect(tab.locator(seen)).to_be_visible()
        await context.clock.fast_forward(10_000)
        await new.goto(f"{shop.base}nodes")
        await expect(new.locator(seen)).to_be_visible()
        shown = await tab.evaluate(
            """() => {
                const at = new Date(Date.now() - 30_000).toISOString();
                const time = Object.assign(document.createElement("hg-time"), { mode: "elapsed", at });
                document.body.append(time);
                return time.textContent;
            }"""
        )
        assert shown in ("29 s", "30 s")


@of_one_store
@pytest.mark.nightly
async def test_live_updates_are_offline_while_the_server_hangs(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop) as visit:
        await visit.go("queues")
        await expect(visit.page.get_by_role("button", name="Live updates: Live")).to_be_visible()
        shop.server.signal(signal.SIGSTOP)
        try:
            # The stream stays open and silent: the page asks after 12 s, and waits 15 s for a response.
            await expect(visit.page.get_by_role("button", name="Live updates: Offline")).to_be_visible(
                timeout=patient(40) * 1000
            )
        finally:
            shop.server.signal(signal.SIGCONT)
        await expect(visit.page.get_by_role("button", name="Live updates: Live")).to_be_visible()


@pytest.mark.nightly
@of_postgres
async def test_live_updates_are_offline_while_the_store_does_not_answer(
    browser: Browser, shop: Shop, postgres_url: str
) -> None:
    async with visiting(browser, shop) as visit:
        await visit.go("queues")
        await expect(visit.page.get_by_role("button", name="Live updates: Live")).to_be_visible()
        # Only the stream reports that: what the page itself asks for when the stream is silent has an answer.
        overview = await (await visit.page.request.get(f"{shop.base}api/v1/overview")).json()
        await visit.page.route("**/api/v1/overview", lambda route: route.fulfill(json=overview))
        blocker = await asyncpg.connect(postgres_url)
        try:
            async with blocker.transaction():
                await blocker.execute(f"LOCK TABLE {shop.schema}.paused_queue IN ACCESS EXCLUSIVE MODE")
                lost = visit.page.get_by_role("button", name="Live updates: Offline")
                await expect(lost).to_be_visible()
        finally:
            await blocker.close()
        await expect(visit.page.get_by_role("button", name="Live updates: Live")).to_be_visible()
        visit.expected.add("status of 503")


@of_one_store
async def test_no_start_of_a_job_is_shown_while_the_store_of_its_limit_does_not_answer(
    browser: Browser, shop: Shop
) -> None:
    """The fault: "Earliest start in 0.9 s" below the reason that the store does not answer."""

    async def without_start(route: Route) -> None:
        answer = await route.fetch()
        explained = await answer.json()
        explained["status"]["predicted_start"] = None
        await route.fulfill(response=answer, json=explained)

    async def without_use(route: Route) -> None:
        answer = await route.fetch()
        await route.fulfill(response=answer, json=await answer.json() | {"used": None, "available": None})

    async with visiting(browser, shop) as visit:
        numbers = visit.page.locator(".why-numbers")
        await visit.go(f"jobs/{shop.seeds.throttled.id}")
        await expect(numbers).to_contain_text("Earliest start")
        await visit.page.route("**/explain", without_start)
        await visit.go(f"jobs/{shop.seeds.throttled.id}")
        await expect(numbers).to_contain_text("Position in its lane")
        await expect(numbers).not_to_contain_text("Earliest start")

        starts = visit.page.get_by_role("table", name="Next jobs")
        await visit.go(limit_page(LIMIT, HOSTILE))
        await expect(starts).to_contain_text(re.compile(r"in \d"))
        await visit.page.route(re.compile(r"/bucket\?"), without_use)
        await visit.go(limit_page(LIMIT, HOSTILE))
        await expect(starts).to_contain_text("when its limits allow")


@of_one_store
async def test_a_store_without_live_nodes_shows_a_warning(browser: Browser, shop: Shop) -> None:
    async def without_nodes(route: Route) -> None:
        answer = await route.fetch()
        overview = await answer.json()
        overview["nodes"] |= {"alive": 0, "silent": 0, "slots": 0}
        said = {"kind": "no_worker", "tone": "bad", "count": 1204, "name": "ready", "key": None, "at": None}
        overview["verdict"] = [said | {"seconds": None, "more": 0}]
        await route.fulfill(response=answer, json=overview)

    async with visiting(browser, shop) as visit:
        await visit.page.route("**/api/v1/overview", without_nodes)
        await visit.page.route("**/api/v1/stream", lambda route: route.abort())
        await visit.go("overview")
        badge = visit.page.locator(".node-counts .badge").first
        await expect(badge).to_have_text("0 alive")
        await expect(badge).to_have_class(re.compile("state-silent"))
        said = visit.page.get_by_role("list", name="Verdict")
        await expect(said.get_by_role("link", name="No worker is running. 1,204 jobs are ready.")).to_be_visible()
        await expect(said.locator("code")).to_contain_text("headgate worker")
        visit.expected.add("ERR_FAILED")


@pytest.mark.nightly
@of_one_store
async def test_alerts_are_shown_with_what_could_not_be_delivered(browser: Browser, shop: Shop) -> None:
    async def with_alerts(route: Route) -> None:
        answer = await route.fetch()
        overview = await answer.json()
        alert = {"id": "a1", "alert": "ops", "state": "firing", "text": f"node '{HOSTILE}' was lost", "error": None}
        alert["started_at"] = overview["now"]
        overview["alerts"] = [alert, {**alert, "id": "a2", "alert": "dev", "state": "resolved", "error": HOSTILE}]
        await route.fulfill(response=answer, json=overview)

    async with visiting(browser, shop) as visit:
        await visit.page.route("**/api/v1/overview", with_alerts)
        await visit.page.route("**/api/v1/stream", lambda route: route.abort())
        await visit.go("overview")
        notices = visit.page.locator(".notices")
        await expect(notices.get_by_text("Alert ops:")).to_be_visible()
        await expect(notices.get_by_text("Alert dev has ended:")).to_be_visible()
        await expect(notices).to_contain_text("Not delivered: <img src=x onerror=owned(1)>")
        visit.expected.add("ERR_FAILED")


@pytest.mark.nightly
@of_one_store
async def test_a_missing_batch_is_called_a_batch(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop) as visit:
        await visit.page.goto(f"{shop.base}batches/{uuid.uuid4()}")
        await expect(visit.page.get_by_role("alert")).to_contain_text("Batch not found")
        visit.expected.add("404")


@of_one_store
async def test_a_user_signs_in_on_a_page_and_signs_out_in_every_tab(
    browser: Browser, shop: Shop, screenshots: Path | None
) -> None:
    axe = (files("axe_playwright_python") / "axe.min.js").read_text()
    async with visiting(browser, shop) as visit:
        page, context = visit.page, visit.page.context
        await page.get_by_role("button", name="Sign out").click()
        await page.get_by_role("heading", name="Sign in").wait_for()
        # Whatever is asked for, the page comes first, and leads to it.
        await page.goto(shop.base + "jobs?state=failed")
        for size, scheme in LOOKS:
            await visit.look(size, scheme)
            assert await fits(visit)
            assert await axe_violations(visit, axe) == []
            if screenshots is not None:
                await page.screenshot(path=screenshots / f"{shop.store}-sign-in-{size}-{scheme}.png")
        await page.get_by_label("User name").fill("ada")
        await page.get_by_label("Password").fill("a wrong password")
        await page.keyboard.press("Enter")
        await page.get_by_role("alert").filter(has_text="wrong").wait_for()
        assert await axe_violations(visit, axe) == []
        if screenshots is not None:
            await page.screenshot(path=screenshots / f"{shop.store}-sign-in-refused.png")
        assert await page.get_by_label("User name").input_value() == "ada"
        await page.get_by_label("Password").fill(PASSWORDS["ada"])
        await page.keyboard.press("Enter")
        await visit.settled()
        assert page.url == shop.base + "jobs?state=failed"
        await visit.look("wide", "light")
        if screenshots is not None:
            await page.screenshot(path=screenshots / f"{shop.store}-signed-in.png")
        other = await context.new_page()
        await other.goto(shop.base + "overview")
        await other.locator("main[aria-busy=false] h1").wait_for()
        assert await other.evaluate("document.cookie") == ""
        await page.get_by_role("button", name="Sign out").click()
        await page.get_by_role("heading", name="Sign in").wait_for()
        # The other tab finds out as soon as its stream ends, or it asks for anything.
        await other.get_by_role("heading", name="Sign in").wait_for()
        visit.forget_refusals()


@of_one_store
async def test_signing_in_works_without_javascript(browser: Browser, shop: Shop) -> None:
    context = await browser.new_context(java_script_enabled=False)
    try:
        page = await context.new_page()
        await page.goto(shop.base + "limits")
        await page.get_by_label("User name").fill("ada")
        await page.get_by_label("Password").fill(PASSWORDS["ada"])
        await page.get_by_role("button", name="Sign in").click()
        await page.locator("noscript").wait_for(state="attached")
        assert page.url == shop.base + "limits"
        (cookie,) = await context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/ops/jobs")
    finally:
        await context.close()


@of_one_store
async def test_a_viewer_sees_why_actions_are_disabled(browser: Browser, shop: Shop) -> None:
    changes: list[str] = []
    async with visiting(browser, shop, who="vic") as visit:
        visit.page.on("request", lambda asked: changes.append(asked.url) if asked.method != "GET" else None)
        for where, names in (
            (f"jobs/{shop.seeds.failed.id}", ["Retry"]),
            (f"jobs/{shop.seeds.scheduled.id}", ["Run now", "Cancel", "Reschedule"]),
            ("queues", [f"Pause queue {QUEUE}"]),
            (limit_page("permits", "warehouse"), ["Pause", "Set rule", "Penalize", "Reset", "Set tier"]),
            ("schedules/nightly", ["Pause schedule nightly", "Run now: schedule nightly", "Skip next", "Remove"]),
        ):
            await visit.go(where)
            for name in names:
                await expect(visit.page.get_by_role("button", name=name, exact=True)).to_have_attribute(
                    "aria-disabled", "true"
                )
            await visit.page.get_by_role("button", name=names[0], exact=True).click(force=True)
            await expect(visit.page.get_by_role("dialog")).to_have_count(0)
            await expect(visit.page.get_by_role("status", name="Messages").locator("p").first).to_be_visible()
        await visit.go("jobs")
        await expect(visit.page.get_by_role("checkbox")).to_have_count(0)
    assert changes == []


@pytest.mark.nightly
@of_one_store
async def test_an_operator_acts_on_jobs_and_not_on_limits(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop, who="olga") as visit:
        await visit.go(f"jobs/{shop.seeds.scheduled.id}")
        await expect(visit.page.get_by_role("button", name="Run now", exact=True)).not_to_have_attribute(
            "aria-disabled", "true"
        )
        await visit.go(limit_page("permits", "warehouse"))
        await expect(visit.page.get_by_role("button", name="Pause", exact=True)).to_have_attribute(
            "aria-disabled", "true"
        )


@pytest.mark.nightly
@of_one_store
async def test_an_unknown_address_shows_a_not_found_page(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop) as visit:
        answer = await visit.page.goto(shop.base + f"nothing/{quote('<img src=x onerror=owned(9)>')}")
        assert answer is not None
        assert answer.status == 404
        await expect(visit.page.get_by_role("heading", level=1)).to_have_text("Not found")
        # A browser says itself that the document is none.
        visit.expected.add("status of 404")


async def is_in(shop: Shop, job_id: str, state: str) -> bool:
    return (await shop.app.admin.status(job_id)).state == state


async def has_attempts(shop: Shop, job_id: str, count: int) -> bool:
    return len((await shop.app.admin.job(job_id)).attempts) == count
