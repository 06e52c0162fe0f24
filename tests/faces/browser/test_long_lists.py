"""Lists of jobs in a store with more jobs than one read covers, and what they say of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Route, expect

from headgate.http.http_error import TYPES
from tests.faces.browser.conftest import Shop, shop_on, visiting
from tests.faces.browser.shop import LIMIT, QUEUE

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

NEWER = 5_100
"""How many jobs of another queue are newer."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    async with shop_on("sqlite", folder, f"sqlite:///{folder}/shop.db") as shop:
        await shop.app.tasks["sync_tenant"].using(delay=7200).enqueue_many([("later",)] * NEWER)
        yield shop


@pytest.mark.nightly
async def test_jobs_behind_thousands_of_another_queue_are_listed(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop) as visit:
        page = visit.page
        for where, job in (
            (f"queues/{QUEUE}", shop.seeds.failed),
            ("tasks/fail", shop.seeds.failed),
            ("tasks/send_mail", shop.seeds.succeeded),
        ):
            await visit.go(where)
            listed = page.get_by_role("table", name="Recent jobs")
            await expect(listed.locator(f'a[href="jobs/{job.id}"]')).to_be_visible()
        await visit.go("tasks/nightly")
        await expect(page.get_by_text("No jobs of this task are kept.")).to_be_visible()
        await visit.go("jobs?task=fail")
        await expect(page.locator(".bulk-count")).to_have_text("1 job ")
        counts = await shop.app.admin.counts()
        total = sum(each.waiting + each.running + each.succeeded + each.failed + each.cancelled for each in counts)
        await visit.go("jobs")
        await expect(page.locator(".bulk-count")).to_have_text(f"{total:,} jobs ")


async def test_previous_leads_to_the_page_before_in_the_same_list(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop) as visit:
        page = visit.page
        await visit.go("jobs?task=sync_tenant")
        visited = [page.url]

        async def is_at(number: int) -> None:
            await expect(page).to_have_url(visited[number])
            await visit.settled()

        for _ in range(3):
            await visit.press("Next")
            await expect(page).not_to_have_url(visited[-1])
            await visit.settled()
            visited.append(page.url)
        for number in (2, 1):
            await page.go_back()
            await is_at(number)
        await page.go_forward()
        await is_at(2)
        for number in (1, 0):
            await visit.press("Previous")
            await is_at(number)
        await expect(page.get_by_role("button", name="Previous")).to_be_disabled()
        await visit.press("Next")
        await is_at(1)
        # Another tab of states is another list, and its first page has none before it.
        await page.get_by_role("navigation", name="States").get_by_role("link", name="Scheduled").click()
        await expect(page).to_have_url(re.compile("view=scheduled"))
        await expect(page.get_by_role("button", name="Previous")).to_be_disabled()
        await page.go_back()
        await is_at(1)
        await visit.press("Previous")
        await is_at(0)


@pytest.mark.nightly
async def test_a_list_that_read_only_a_part_of_the_jobs_says_so(browser: Browser, shop: Shop) -> None:
    async def nothing_so_far(route: Route) -> None:
        page = {"items": [], "next": shop.seeds.failed.id, "read": 10_000, "reached": "2026-05-01T12:03:00Z"}
        await route.fulfill(json=page)

    async with visiting(browser, shop) as visit:
        page = visit.page
        await page.route("**/api/v1/jobs?**", nothing_so_far)
        await visit.go(f"queues/{QUEUE}")
        await expect(page.get_by_text("No jobs of this queue among the newest that were read.")).to_be_visible()
        await expect(page.get_by_text("No failed jobs of this queue among the newest that were read.")).to_be_visible()
        await visit.go("tasks/fail")
        await expect(page.get_by_text("No jobs of this task among the newest that were read.")).to_be_visible()
        await visit.go("jobs?text=nowhere")
        covered = "Searched the newest 200,000 jobs, back to 2026-05-01"
        await expect(page.locator(".empty")).to_contain_text(covered)
        await expect(page.locator(".empty")).to_contain_text("Press Next to continue the search.")


async def test_a_search_whose_time_is_over_says_what_it_covered(browser: Browser, shop: Shop) -> None:
    async def over_at_the_third(route: Route) -> None:
        asked.append(route.request.url)
        page: dict[str, Any] = {"items": [], "next": "x", "read": 10_000, "reached": "2026-05-01T12:03:00Z"}
        if len(asked) < 3:
            await route.fulfill(json=page)
        else:
            await route.fulfill(status=503, json={"type": f"{TYPES}search_too_long", "detail": "too long"})

    async def too_long(route: Route) -> None:
        await route.fulfill(status=503, json={"type": f"{TYPES}search_too_long", "detail": "too long"})

    asked: list[str] = []
    async with visiting(browser, shop) as visit:
        page = visit.page
        await page.route("**/api/v1/jobs?**", over_at_the_third)
        await page.route("**/api/v1/jobs/count?**", too_long)
        await visit.go("jobs?text=nowhere")
        await expect(page.locator(".empty")).to_contain_text("Searched the newest 20,000 jobs, back to 2026-05-01")
        visit.forget_refusals(503)


@pytest.mark.nightly
async def test_an_audit_of_many_starts_says_which_were_checked(browser: Browser, shop: Shop) -> None:
    async def cut(route: Route) -> None:
        answer = await route.fetch()
        audit = await answer.json()
        await route.fulfill(json=audit | {"is_cut": True, "starts": 10_000, "since": "2026-05-01T12:03:00Z"})

    async with visiting(browser, shop) as visit:
        await visit.page.route("**/audit?**", cut)
        await visit.page.route("**/audit", cut)
        await visit.go("limits/spare")
        await visit.press("Check past starts")
        said = visit.page.get_by_text("Only the newest 10,000 starts were checked, those since 2026-05-01")
        await expect(said).to_be_visible()


async def test_an_audit_is_read_when_asked_for_and_ends_when_the_page_is_left(browser: Browser, shop: Shop) -> None:
    audits: list[str] = []
    is_left = asyncio.Event()

    async def held(route: Route) -> None:
        audits.append(route.request.url)
        if "key=" in route.request.url:
            await is_left.wait()
        await route.fallback()

    async with visiting(browser, shop) as visit:
        page = visit.page
        await page.route(re.compile("/limits/[^/]+/audit"), held)
        page.on("requestfailed", lambda request: is_left.set() if "/audit?" in request.url else None)
        await visit.go(f"limits/{quote(LIMIT, safe='')}")
        await expect(page.get_by_text("A check compares the starts that the store keeps")).to_be_visible()
        assert audits == []
        await visit.press("Check past starts")
        await expect(page.get_by_role("table", name="Highest number of starts in any window")).to_be_visible()
        await expect(page.get_by_role("button", name="Check again")).to_be_visible()
        assert len(audits) == 1

        await page.get_by_role("table", name="Highest number of starts in any window").get_by_role("link").first.click()
        await visit.settled()
        await visit.press("Check past starts")
        await expect(page.get_by_role("button", name="Checking…")).to_be_visible()
        await page.get_by_role("link", name="Limits", exact=True).first.click()
        await asyncio.wait_for(is_left.wait(), 10)
        assert len(audits) == 2


async def test_the_earlier_lines_of_a_log_are_loaded_once_or_the_page_says_why_not(
    browser: Browser, shop: Shop
) -> None:
    asked = asyncio.Event()

    async def logs(route: Route) -> None:
        is_newest = "newest=true" in route.request.url
        if "after=0" in route.request.url:
            # Both clicks come before the answer to the first.
            await asyncio.wait_for(asked.wait(), 10)
        numbers = range(101, 201) if is_newest else range(1, 201) if "after=0" in route.request.url else ()
        line = {"at": "2026-05-01T12:03:00Z", "attempt": 1, "level": 20, "logger": "jobs", "message": "said"}
        await route.fulfill(json={"items": [{"number": number} | line for number in numbers], "next": None})

    async with visiting(browser, shop) as visit:
        page = visit.page
        lines = page.get_by_role("region", name="Log lines").locator("li")
        await page.route(re.compile("/logs[?]"), logs)
        await visit.go(f"jobs/{shop.seeds.succeeded.id}")
        await expect(lines).to_have_count(100)
        await page.get_by_role("button", name="Load all earlier lines").dblclick()
        asked.set()
        await expect(page.get_by_role("button", name="Load all earlier lines")).to_have_count(0)
        await expect(lines).to_have_count(200)

        await page.reload()
        await expect(lines).to_have_count(100)
        await page.unroute_all(behavior="wait")
        await page.route(re.compile("/logs[?]"), lambda route: route.abort())
        visit.expected.add("net::ERR_FAILED")
        await visit.press("Load all earlier lines")
        await expect(page.get_by_role("status", name="Messages")).to_contain_text("The server cannot be reached.")


@pytest.mark.nightly
async def test_a_link_keeps_the_focus_when_its_row_moves(browser: Browser, shop: Shop) -> None:
    is_over = False

    async def in_order_of_trouble(route: Route) -> None:
        answer = await route.fetch()
        found = await answer.json()
        for queue in found["items"]:
            fails = 0.5 if queue["queue"] == QUEUE and not is_over else None
            queue |= {"throughput": 1.0, "failure_share": fails, "failed": 0, "lag": 0.0}
        await route.fulfill(response=answer, json=found)

    async with visiting(browser, shop) as visit:
        await visit.page.route("**/api/v1/queues", in_order_of_trouble)
        await visit.go("queues")
        names = visit.page.locator("main tbody td:first-child a")
        await expect(names.first).to_have_text(QUEUE)
        link = names.nth(1)
        name = await link.inner_text()
        link = visit.page.locator("main tbody").get_by_role("link", name=name, exact=True)
        await link.focus()
        is_over = True
        await shop.app.tasks["send_mail"].using(delay=3600).enqueue("later")
        await expect(names.last).to_have_text(QUEUE)
        await expect(link).to_be_focused()


async def test_a_queue_with_nothing_but_failures_is_not_idle(browser: Browser, shop: Shop) -> None:
    async def with_failures(route: Route) -> None:
        answer = await route.fetch()
        overview = await answer.json()
        nothing = {name: 0 for name, value in overview["queues"][0].items() if isinstance(value, int | float)}
        quiet = overview["queues"][0] | nothing | {"paused_at": None, "lag": 0}
        queues = [quiet | {"queue": "broken", "failed": 3}, quiet | {"queue": "quiet"}]
        # The page takes it for newer than what the stream sends.
        await route.fulfill(json=overview | {"queues": queues, "now": "2099-01-01T00:00:00Z"})

    async with visiting(browser, shop) as visit:
        page = visit.page
        await page.route("**/api/v1/overview", with_failures)
        await visit.go("overview")
        await expect(page.get_by_role("table", name="Queues").get_by_role("link", name="broken")).to_be_visible()
        await expect(page.locator(".idle-queues")).to_contain_text("quiet")
        await expect(page.locator(".idle-queues")).not_to_contain_text("broken")


async def test_an_overview_of_thousands_of_queues_draws_some_and_says_how_many_there_are(
    browser: Browser, shop: Shop
) -> None:
    """The fault: a browser drew all of 10,000 busy queues, and showed nothing for 23 s."""

    async def many(route: Route) -> None:
        answer = await route.fetch()
        overview = await answer.json()
        nothing = {name: 0 for name, value in overview["queues"][0].items() if isinstance(value, int | float)}
        quiet = overview["queues"][0] | nothing | {"paused_at": None, "lag": 0}
        busy = [quiet | {"queue": f"busy-{number}", "waiting": 1} for number in range(5000)]
        idle = [quiet | {"queue": f"idle-{number}"} for number in range(5000)]
        paused = [quiet | {"queue": f"paused-{number}", "paused_at": overview["now"]} for number in range(500)]
        # The page takes it for newer than what the stream sends.
        await route.fulfill(json=overview | {"queues": [*busy, *idle, *paused], "now": "2099-01-01T00:00:00Z"})

    async with visiting(browser, shop) as visit:
        page = visit.page
        await page.route("**/api/v1/overview", many)
        await visit.go("overview")
        table = page.get_by_role("table", name="Queues")
        await expect(table.locator("tbody tr")).to_have_count(100)
        await expect(table.locator("tbody tr").first).to_contain_text("paused-0")
        await expect(page.get_by_role("link", name="5,400 more queues")).to_have_attribute("href", "queues")
        await expect(page.locator(".notices")).to_contain_text("500 queues are paused: paused-0 · paused-1")
        await expect(page.locator(".notices")).to_contain_text("paused-11 · 488 more queues")
        await expect(page.locator(".idle-queues summary")).to_have_text("5,000 idle queues")
        await expect(page.locator(".idle-queues a")).to_have_count(101)


async def test_an_overview_of_thousands_of_unknown_tasks_and_limits_draws_some_and_says_how_many_there_are(
    browser: Browser, shop: Shop
) -> None:
    """The fault: with 1,500 tasks of another app, the overview had 1,500 warnings, and its numbers 95 screens below."""

    async def many(route: Route) -> None:
        answer = await route.fetch()
        overview = await answer.json()
        unknown = [{"task": f"task-{number}", "queue": "other", "jobs": 1} for number in range(1500)]
        overdue = [{"name": f"schedule-{number}", "problem": None} for number in range(100)]
        limit = {"rule": "1/h", "waiting": 1, "keys": 1, "is_paused": False, "worst": []}
        limits = [limit | {"limit": f"limit-{number}"} for number in range(2000)]
        shown = overview | {"unknown_tasks": unknown, "overdue_schedules": overdue, "limits": limits}
        # The page takes it for newer than what the stream sends.
        await route.fulfill(json=shown | {"now": "2099-01-01T00:00:00Z"})

    async with visiting(browser, shop) as visit:
        page = visit.page
        await page.route("**/api/v1/overview", many)
        await visit.go("overview")
        notices = page.locator(".notices .notice")
        await expect(notices.filter(has_text="Unknown task")).to_have_count(12)
        await expect(notices.filter(has_text="schedule-")).to_have_count(12)
        await expect(notices.filter(has_text=re.compile(r"^and [\d,]+ more$"))).to_have_text(
            ["and 1,488 more", "and 88 more"]
        )
        await expect(page.locator(".limit-map")).to_have_count(12)
        await expect(page.get_by_role("link", name="1,988 more limits")).to_have_attribute("href", "limits")
