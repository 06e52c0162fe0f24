"""The failures in a real browser: a root cause is opened, and its jobs are retried together."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import pytest
from playwright.async_api import Browser, Route, expect

from headgate import Job, JobState
from tests.faces.browser.conftest import APP, Shop, visiting
from tests.faces.browser.shop import LONG
from tests.until import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


async def has_failed(shop: Shop, id: str, times: int) -> bool:
    details = await shop.app.admin.job(id)
    return details.status.state is JobState.FAILED and len(details.attempts) == times


async def have_succeeded(shop: Shop, jobs: Sequence[Job[Any]]) -> bool:
    return [(await shop.app.admin.status(job.id)).state for job in jobs] == [JobState.SUCCEEDED] * len(jobs)


async def test_a_root_cause_is_opened_and_its_jobs_are_retried(browser: Browser, shop: Shop) -> None:
    task = shop.app.tasks["fail"]
    jobs = [await task.enqueue(f"user {number} not found:") for number in range(3)]
    for job in jobs:
        await until(functools.partial(has_failed, shop, job.id, 1))
    async with visiting(browser, shop) as visit:
        page = visit.page
        await visit.go("overview")
        await page.get_by_role("navigation", name="Pages").get_by_role("link", name="Failures").click()
        await visit.settled()
        row = page.get_by_role("row", name="user # not found")
        await expect(row).to_contain_text("queue mail")
        await expect(row.get_by_text("new", exact=True)).to_have_attribute("title", re.compile("in the last 24 hours"))
        await expect(row.get_by_role("img", name=re.compile("Failures over time: 3"))).to_be_visible()
        await expect(row).to_contain_text(re.compile(r"shop\.py:\d+ in fail"))
        await row.get_by_role("link", name="user # not found").click()

        await expect(page.get_by_role("heading", level=1)).to_have_text("ValueError")
        await expect(page.locator(".cause-place")).to_contain_text(re.compile(r"shop\.py:\d+ in fail"))
        await expect(page.locator(".cause-message")).to_contain_text(f"user 2 not found: {LONG}")
        trace = page.get_by_role("region", name="Traceback of the newest error")
        await expect(trace).to_be_hidden()
        await page.get_by_text("Whole traceback").click()
        await expect(trace).to_contain_text("Traceback (most recent call last)")
        listed = page.get_by_role("table", name="Jobs that failed for this reason")
        for job in jobs:
            await expect(listed.locator(f'a[href="jobs/{job.id}"]')).to_be_visible()

        await visit.press("Retry 3 jobs")
        await expect(page.get_by_role("dialog").get_by_role("heading")).to_have_text("Retry 3 jobs?")
        await visit.agree("Retry 3 jobs")
        await expect(page.get_by_role("status", name="Messages")).to_contain_text("3 jobs retried")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Failures")
        for job in jobs:
            await until(functools.partial(has_failed, shop, job.id, 2))
        for job in jobs:
            entries = await shop.app.admin.audit_log(kind="job", subject=job.id)
            assert [(entry.actor, entry.action) for entry in entries] == [("ada", "retry")]


async def test_one_job_is_retried_and_shows_its_outcome_before_the_others_are(browser: Browser, shop: Shop) -> None:
    path = shop.seeds.signal.with_name("read")
    jobs = [await shop.app.tasks["read_file"].enqueue(str(path), number) for number in range(3)]
    for job in jobs:
        await until(functools.partial(has_failed, shop, job.id, 1))
    async with visiting(browser, shop) as visit:
        page = visit.page
        outcome = page.locator(".notices[role=status]")
        await visit.go(f"failures/{jobs[2].id}")
        await visit.press("Retry one")
        # The job in the address stays failed, so that the page keeps its group.
        await expect(outcome).to_contain_text(re.compile("failed again: FileNotFoundError"))
        assert [await has_failed(shop, job.id, 2) for job in jobs] == [False, True, False]
        await expect(outcome.get_by_role("button")).to_have_count(0)

        path.write_text("read")
        await visit.press("Retry one")
        await expect(outcome).to_contain_text("succeeded.")
        await outcome.get_by_role("button", name="Retry 2 jobs more").click()
        # The page may ask for its group once more, which has no job then.
        visit.expected.add("status of 404")
        await visit.agree("Retry 2 jobs")
        await until(functools.partial(have_succeeded, shop, jobs))

    # A single job has nothing to be tried out for.
    async with visiting(browser, shop) as visit:
        await visit.go(f"failures/{shop.seeds.failed.id}")
        await expect(visit.page.get_by_role("button", name=re.compile("Retry 1 job"))).to_be_visible()
        await expect(visit.page.get_by_role("button", name="Retry one")).to_have_count(0)


@pytest.mark.nightly
async def test_the_page_of_a_job_leads_to_the_jobs_that_failed_for_the_same_reason(
    browser: Browser, shop: Shop
) -> None:
    async with visiting(browser, shop, who="vic") as visit:
        await visit.go(f"jobs/{shop.seeds.failed.id}")
        await expect(visit.page.locator(".job-cause .cause-place")).to_contain_text(re.compile(r"shop\.py:\d+ in fail"))
        # The error and its place come first; the traceback ends with it once more.
        main = visit.page.locator("main")
        assert (await main.inner_text()).count(LONG) == 2
        await expect(main.locator(".why .job-error")).to_contain_text("ValueError: <img src=x onerror=owned(1)>")
        places = [await main.locator(each).bounding_box() for each in (".why .cause-place", ".timeline")]
        heights = [place["y"] for place in places if place is not None]
        assert heights == sorted(heights)
        await visit.page.get_by_role("link", name="Jobs that failed for the same reason").click()
        retry = visit.page.get_by_role("button", name="Retry 1 job", exact=True)
        await expect(retry).to_have_attribute("aria-disabled", "true")
        await expect(retry).to_have_attribute("title", "This needs the role operator; your role is viewer")


@pytest.mark.nightly
async def test_a_time_without_failures_leads_to_all_that_are_kept(browser: Browser, shop: Shop) -> None:
    async def none(route: Route) -> None:
        answer = {"items": [], "total": 0, "read": 0, "is_cut": False, "step": 120, "next": None}
        await route.fulfill(json=answer | {"since": "2026-05-01T08:00:00Z", "now": "2026-05-01T09:00:00Z"})

    async with visiting(browser, shop) as visit:
        await visit.page.route("**/api/v1/failures?span=3600", none)
        await visit.go("failures")
        await expect(visit.page.get_by_text("No failures in the last hour")).to_be_visible()
        await visit.page.get_by_role("link", name="Show all failures that are kept").click()
        await expect(visit.page.get_by_role("row", name=re.compile("ValueError")).first).to_be_visible()


async def test_the_command_of_a_page_of_one_task_and_queue_lists_their_failures(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop) as visit:
        await visit.go("failures?span=24h&task=fail&queue=mail")
        button = visit.page.get_by_role("button", name="Copy as command")
        await expect(button).to_have_attribute("title", f"headgate failures --since 24h --task fail --queue mail {APP}")
        await visit.go(f"failures/{shop.seeds.failed.id}")
        await expect(button).to_have_attribute("title", f"headgate failures --since 1h --task fail {APP}")
