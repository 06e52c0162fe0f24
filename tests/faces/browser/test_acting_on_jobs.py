"""Rescheduling and deleting jobs, and purging a queue, in a real browser."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from importlib.resources import files

import pytest
from playwright.async_api import Browser, Route, expect

from headgate import JobState
from headgate.clock import SECOND
from headgate.errors import JobNotFound
from tests.faces.browser.conftest import APP, Shop, Visit, axe_violations, visiting
from tests.faces.browser.shop import FAIR, HOSTILE, QUEUE
from tests.until import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

AXE = (files("axe_playwright_python") / "axe.min.js").read_text()


async def test_a_job_is_rescheduled_and_that_is_undone(browser: Browser, shop: Shop) -> None:
    job = await shop.app.tasks["send_mail"].using(delay=7200, priority=3).enqueue("later")
    before = await shop.app.admin.status(job.id)
    async with visiting(browser, shop, who="olga") as visit:
        dialog = visit.page.get_by_role("dialog")
        await visit.go(f"jobs/{job.id}")
        await visit.press("Reschedule")
        submit = dialog.get_by_role("button", name="Reschedule", exact=True)
        await expect(submit).to_be_disabled()
        await dialog.get_by_label("New priority, 0 to 9").fill("8")
        await dialog.get_by_label("Start", exact=True).select_option("delay")
        await expect(submit).to_be_disabled()
        await dialog.get_by_label("Delay").fill("1d")
        await expect(dialog.locator("code")).to_contain_text(f"reschedule {job.id} --delay 1d --priority 8")
        assert await axe_violations(visit, AXE) == []
        await visit.agree("Reschedule")

        async def is_later() -> bool:
            status = await shop.app.admin.status(job.id)
            return status.priority == 8 and status.run_at - datetime.now(UTC) > timedelta(hours=23)

        await until(is_later)
        await visit.press("Undo")

        async def is_as_before() -> bool:
            status = await shop.app.admin.status(job.id)
            return (status.priority, status.run_at) == (before.priority, before.run_at)

        await until(is_as_before)
        entries = await shop.app.admin.audit_log(subject=job.id)
        assert [(entry.actor, entry.action) for entry in entries] == [("olga", "reschedule")] * 2

        await visit.press("Reschedule")
        await dialog.get_by_label("Start", exact=True).select_option("time")
        await dialog.get_by_label(re.compile("^Time")).fill("2099-05-01T08:00")
        await visit.agree("Reschedule")

        async def is_at_that_time() -> bool:
            return (await shop.app.admin.status(job.id)).run_at.year == 2099

        await until(is_at_that_time)


@pytest.mark.nightly
async def test_the_arguments_of_a_job_have_fields_by_their_types(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop, who="olga") as visit:
        page, dialog = visit.page, visit.page.get_by_role("dialog")
        enqueue = dialog.get_by_role("button", name="Enqueue", exact=True)
        await visit.go("tasks/order")
        await visit.press("Enqueue")
        for label, value in (
            ("sku, text", ""),
            ("count, integer, optional", "1"),
            ("size, choice, optional", "0"),
            ("at, date and time, optional", ""),
            ("notes, JSON, optional", ""),
            ("constructor, text, optional", ""),
        ):
            await expect(dialog.get_by_label(label)).to_have_value(value)
        await expect(dialog.get_by_label("is_gift, yes or no, optional")).not_to_be_checked()
        assert await axe_violations(visit, AXE) == []
        await expect(dialog.get_by_label("constructor, text")).not_to_have_attribute("aria-invalid", "true")
        await enqueue.click()
        sku, count = dialog.get_by_label("sku, text"), dialog.get_by_label("count, integer")
        await expect(sku).to_be_focused()
        await expect(sku).to_have_accessible_description("Write a value")
        await sku.fill("A 1")
        await count.fill("many")
        await enqueue.click()
        await expect(count).to_have_accessible_description("Write an integer, such as 3")
        # What only the server knows is shown at the field, too.
        await count.fill("-1")
        await enqueue.click()
        await expect(count).to_have_accessible_description(re.compile("argument 'count'.*>= 0"))
        await count.fill("1")
        await dialog.get_by_label("size, choice").select_option(label="large")
        await dialog.get_by_label("is_gift").check()
        await dialog.get_by_label("at, date and time").fill("2027-05-06T07:08")
        await dialog.get_by_label("notes, JSON").fill('{"id": 1152921504606846977}')
        instant = await page.evaluate("new Date('2027-05-06T07:08').toISOString()")
        # An argument that has its default is left out.
        payload = {"sku": "A 1", "size": "large", "is_gift": True, "at": instant, "notes": {"id": 2**60 + 1}}
        said = json.dumps(payload, separators=(",", ":"))
        await expect(dialog.locator(".command-line code")).to_contain_text(said)
        await visit.press("Write the arguments as JSON")
        await expect(dialog.get_by_label("Arguments (JSON)")).to_have_value(re.compile('"size": "large"'))
        await visit.press("Write the arguments in fields")
        await expect(dialog.get_by_label("is_gift")).to_be_checked()
        await expect(dialog.get_by_label("constructor, text")).to_have_value("")
        await expect(dialog.get_by_label("at, date and time")).to_have_value(re.compile("^2027-05-06T07:08"))
        await visit.agree("Enqueue")
        await expect(page).to_have_url(re.compile(r"/jobs/[0-9a-v]{13}$"))
        record = (await shop.app.admin.job(page.url.rpartition("/")[2])).record
        stored = json.loads(record.payload)
        assert datetime.fromisoformat(stored.pop("at")) == datetime.fromisoformat(payload.pop("at"))
        assert stored == payload
        visit.forget_refusals(422)


async def test_the_scroll_bar_of_a_dialog_does_not_close_it(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop, who="olga") as visit:
        dialog = visit.page.get_by_role("dialog")
        await visit.go("schedules")
        await visit.press("Create")
        name = visit.page.get_by_label("Name of the schedule")
        await name.fill("half written")
        # What a browser reports that shows scroll bars; this one hides them.
        await dialog.evaluate("""(dialog) => {
            const { right, top } = dialog.getBoundingClientRect();
            const at = { bubbles: true, clientX: right - 8, clientY: top + 80 };
            dialog.dispatchEvent(new PointerEvent("pointerdown", at));
        }""")
        await expect(name).to_have_value("half written")
        await visit.page.mouse.click(5, 5)
        await expect(dialog).to_have_count(0)


async def test_a_word_at_the_end_of_a_field_is_written_again(browser: Browser, shop: Shop) -> None:
    """The fault: when the word was deleted, the space before it was, too."""
    async with visiting(browser, shop, who="olga") as visit:
        await visit.go("schedules")
        await visit.press("Create")
        expression = visit.page.get_by_label("Expression")
        await expression.press_sequentially("0 6 * * mon")
        for _ in "mon":
            await visit.page.keyboard.press("Backspace")
        await expression.press_sequentially("sun")
        await expect(expression).to_have_value("0 6 * * sun")


async def test_a_year_with_a_digit_too_many_is_refused_at_its_field(browser: Browser, shop: Shop) -> None:
    """The fault: an exception, after which the form did not change any more."""
    async with visiting(browser, shop, who="olga") as visit:
        dialog = visit.page.get_by_role("dialog")
        await visit.go("tasks/order")
        await visit.press("Enqueue")
        at = dialog.get_by_label("at, date and time")
        await at.fill("20260-05-06T07:08")
        await dialog.get_by_label("sku, text").fill("A 1")
        await expect(dialog.locator(".command-line code")).to_contain_text('"sku":"A 1"')
        await dialog.get_by_role("button", name="Enqueue", exact=True).click()
        await expect(at).to_have_attribute("aria-invalid", "true")
        visit.forget_refusals(422)


async def test_the_form_of_a_job_fits_a_window_of_320_pixels(browser: Browser, shop: Shop) -> None:
    """The fault: one had to scroll to the side, as on a small phone, or with a zoom of 400 %."""
    async with visiting(browser, shop, who="olga") as visit:
        await visit.page.set_viewport_size({"width": 320, "height": 480})
        dialog = visit.page.get_by_role("dialog")
        await visit.go("tasks/order")
        await visit.press("Enqueue")
        await expect(dialog.get_by_label("sku, text")).to_be_visible()
        assert await dialog.evaluate("(dialog) => dialog.scrollWidth <= dialog.clientWidth")


async def test_after_an_error_no_more_of_the_selected_jobs_are_changed(browser: Browser, shop: Shop) -> None:
    task = shop.app.tasks["send_mail"].using(delay=3600)
    await task.enqueue_many([(f"after an error {number}",) for number in range(12)])
    asked: list[str] = []
    are_sent, is_refused = asyncio.Event(), asyncio.Event()

    async def refuse_the_first(route: Route) -> None:
        asked.append(route.request.url)
        if len(asked) == 4:
            are_sent.set()
        if len(asked) == 1:
            await are_sent.wait()
            await route.fulfill(status=503, json={"detail": "the disk is full"})
        else:
            await is_refused.wait()
            await route.fallback()

    async with visiting(browser, shop) as visit:
        page = visit.page
        await page.route("**/api/v1/jobs/*/cancel", refuse_the_first)
        page.on("response", lambda answer: is_refused.set() if answer.status == 503 else None)
        await visit.go("jobs?view=scheduled&text=after+an+error")
        await page.get_by_role("checkbox", name="Select all on this page: Jobs").check()
        await visit.press("Cancel 12 selected")
        await visit.agree("Cancel 12 jobs")
        said = page.get_by_role("status", name="Messages")
        await expect(said).to_contain_text("3 jobs cancelled, then an error: the disk is full")
        assert await shop.app.admin.count(state=JobState.CANCELLED, text="after an error") == 3
        assert len(asked) == 4
        visit.forget_refusals(503)


async def test_a_form_stays_open_while_it_is_sent(browser: Browser, shop: Shop) -> None:
    is_sent, is_answered = asyncio.Event(), asyncio.Event()

    async def slowly(route: Route) -> None:
        is_sent.set()
        await is_answered.wait()
        await route.fallback()

    async with visiting(browser, shop) as visit:
        page, dialog = visit.page, visit.page.get_by_role("dialog")
        await page.route("**/api/v1/tasks/send_mail/enqueue", slowly)
        await visit.go("jobs?task=send_mail")
        await visit.press("Enqueue")
        await page.get_by_label("to, text").fill("slowly")
        await dialog.get_by_role("button", name="Enqueue", exact=True).click()
        await asyncio.wait_for(is_sent.wait(), 10)
        for _ in range(3):
            await page.keyboard.press("Escape")
        await page.mouse.click(5, 5)
        for name in ("Close", "Cancel"):
            await dialog.get_by_role("button", name=name, exact=True).click()
        await expect(dialog).to_be_visible()
        is_answered.set()
        await expect(page).to_have_url(re.compile(r"/jobs/[0-9a-v]{13}$"))
        # Nothing is sent now.
        await visit.go("jobs?task=send_mail")
        await visit.press("Enqueue")
        await expect(dialog).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(dialog).to_have_count(0)


async def test_a_question_is_dismissed_with_the_page_that_it_is_about(browser: Browser, shop: Shop) -> None:
    """The fault: after going back, "Cancel this job?" stayed open above the page of another thing."""
    job = await shop.app.tasks["send_mail"].using(delay=7200).enqueue("leave me")
    async with visiting(browser, shop, who="olga") as visit:
        page, dialog = visit.page, visit.page.get_by_role("dialog")
        await visit.go("jobs?view=scheduled")
        await page.locator(f'a[href="jobs/{job.id}"]').click()
        await visit.press("Cancel")
        await expect(dialog.get_by_role("heading")).to_have_text("Cancel this job?")
        await page.go_back()
        await expect(dialog).to_have_count(0)
        await page.go_forward()
        await visit.press("Cancel")
        await visit.agree("Cancel the job")
        await expect(page.locator("main")).to_contain_text("cancelled")
    assert (await shop.app.admin.status(job.id)).state == JobState.CANCELLED


async def test_a_form_stays_open_when_the_session_ends(browser: Browser, shop: Shop) -> None:
    """The fault: the page was replaced by the sign-in page, and what was written in the form was lost."""
    async with visiting(browser, shop, who="olga") as visit:
        page, dialog = visit.page, visit.page.get_by_role("dialog")
        await visit.go("tasks/send_mail")
        await visit.press("Enqueue")
        await visit.press("Write the arguments as JSON")
        await dialog.get_by_label("Arguments (JSON)").fill('{"to": "written for long"}')
        await page.context.clear_cookies()
        await page.locator(".notice", has_text="You are signed out").wait_for()
        enqueue = dialog.get_by_role("button", name="Enqueue", exact=True)
        await enqueue.click()
        await expect(dialog.get_by_role("alert")).to_contain_text("Sign in again in another tab")
        other = Visit(await page.context.new_page(), shop)
        await other.sign_in("olga")
        await other.page.close()
        await enqueue.click()
        await expect(page).to_have_url(re.compile(r"/jobs/\w+$"))
        assert "written for long" in (await shop.app.admin.job(page.url.rpartition("/")[2])).record.payload
        # Without a form, the sign-in page comes at once.
        await page.context.clear_cookies()
        await page.get_by_role("heading", name="Sign in").wait_for()
        visit.forget_refusals()


async def test_a_job_is_enqueued_with_more_options(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop, who="olga") as visit:
        dialog = visit.page.get_by_role("dialog")
        await visit.go("jobs?task=send_mail")
        await visit.press("Enqueue")
        await visit.page.get_by_label("to, text").fill("more")
        await visit.page.get_by_label("Delay in seconds").fill("3600")
        await expect(dialog.get_by_label("Unique key of the job")).not_to_be_visible()
        await dialog.get_by_text("More options").click()
        await dialog.get_by_label("Tags of the job").fill("vip, api")
        await dialog.get_by_label("Unique key of the job").fill("mail of more")
        await dialog.get_by_label("Expires in").fill("soon")
        await dialog.get_by_label("Retention").fill("forever")
        await expect(dialog.locator(".command-line code")).to_contain_text(
            "--tag vip --tag api --unique-key 'mail of more' --expires-in soon --retention forever"
        )
        assert await axe_violations(visit, AXE) == []
        await dialog.get_by_role("button", name="Enqueue", exact=True).click()
        await expect(dialog.get_by_role("alert")).to_contain_text("expires_in='soon' is not a duration")
        await dialog.get_by_label("Expires in").fill("10m")
        await visit.agree("Enqueue")
        await expect(visit.page).to_have_url(re.compile(r"/jobs/[0-9a-v]{13}$"))
        record = (await shop.app.admin.job(visit.page.url.rpartition("/")[2])).record
        assert record.options is not None
        assert record.options.retention is not None
        assert (record.unique_key, record.options.tags, record.options.retention.failed) == (
            "mail of more", ("api", "vip"), None
        )  # fmt: skip
        assert record.expires_at is not None
        assert record.expires_at - record.run_at == 600 * SECOND
        visit.forget_refusals(422)


@pytest.mark.nightly
async def test_many_jobs_are_rescheduled_after_they_were_counted(browser: Browser, shop: Shop) -> None:
    task = shop.app.tasks["send_mail"]
    jobs = [await task.using(delay=3600).enqueue("move me", {"number": number}) for number in range(4)]
    async with visiting(browser, shop, who="ada") as visit:
        dialog = visit.page.get_by_role("dialog")
        await visit.go("jobs?view=scheduled&text=move+me")
        await visit.press("Reschedule all matching the filter")
        await dialog.get_by_label("Start", exact=True).select_option("delay")
        await dialog.get_by_label("Delay").fill("2d")
        await dialog.get_by_role("button", name="Count the jobs").click()
        await expect(dialog.get_by_role("heading", name="Reschedule 4 jobs?")).to_be_visible()
        await visit.agree("Reschedule 4 jobs")

        async def are_later() -> bool:
            found = [await job.status() for job in jobs]
            return all(status.run_at - datetime.now(UTC) > timedelta(hours=47) for status in found)

        await until(are_later)
        await visit.go("jobs?view=scheduled&text=move+me")
        for job in jobs[:2]:
            row = visit.page.locator("tr", has=visit.page.locator(f'a[href="jobs/{job.id}"]'))
            await row.get_by_role("checkbox").check()
        await visit.press("Reschedule 2 selected")
        await dialog.get_by_label("New priority, 0 to 9").fill("9")
        await dialog.get_by_role("button", name="Count the jobs").click()
        await visit.agree("Reschedule 2 jobs")

        async def have_priority() -> bool:
            return {(await job.status()).priority for job in jobs[:2]} == {9}

        await until(have_priority)


async def test_final_jobs_are_deleted_by_an_admin(browser: Browser, shop: Shop) -> None:
    task = shop.app.tasks["send_mail"]
    jobs = [await task.using(delay=3600).enqueue("delete me", {"number": number}) for number in range(5)]
    for job in jobs:
        await job.cancel()
    async with visiting(browser, shop, who="ada") as visit:
        dialog = visit.page.get_by_role("dialog")
        await visit.go(f"jobs/{jobs[0].id}")
        await visit.press("Delete")
        assert await axe_violations(visit, AXE) == []
        await visit.agree("Delete the job")
        await expect(visit.page).to_have_url(re.compile(r"jobs\?task=send_mail$"))

        async def is_gone() -> bool:
            try:
                await shop.app.admin.status(jobs[0].id)
            except JobNotFound:
                return True
            return False

        await until(is_gone)
        await visit.go("jobs?state=cancelled&text=delete+me")
        row = visit.page.locator("tr", has=visit.page.locator(f'a[href="jobs/{jobs[1].id}"]'))
        await row.get_by_role("checkbox").check()
        await visit.press("Delete 1 selected")
        await visit.agree("Delete 1 job")
        await expect(visit.page.locator(f'a[href="jobs/{jobs[1].id}"]')).to_have_count(0)
        await visit.press("Delete all matching the filter")
        await expect(dialog.get_by_role("heading")).to_have_text("Delete 3 jobs?")
        await visit.page.keyboard.press("Escape")
        assert await shop.app.admin.count(text="delete me") == 3
        await visit.press("Delete all matching the filter")
        await visit.agree("Delete 3 jobs")

        async def are_gone() -> bool:
            return await shop.app.admin.count(text="delete me") == 0

        await until(are_gone)

    entries = await shop.app.admin.audit_log(kind="queue", actor="ada")
    assert [entry.action for entry in entries] == ["purge", "purge", "delete"]
    async with visiting(browser, shop, who="olga") as visit:
        await visit.go(f"jobs/{shop.seeds.failed.id}")
        await expect(visit.page.get_by_role("button", name="Delete", exact=True)).to_have_attribute(
            "aria-disabled", "true"
        )
        await visit.go("jobs?state=failed")
        button = visit.page.get_by_role("button", name="Delete all matching the filter")
        await expect(button).to_have_attribute("aria-disabled", "true")


@pytest.mark.nightly
async def test_a_queue_is_purged_and_its_jobs_are_brought_back(browser: Browser, shop: Shop) -> None:
    await shop.app.tasks["send_mail"].using(delay=3600).enqueue_many([(f"purge me {number}",) for number in range(3)])
    waiting = await shop.app.admin.count(queue=QUEUE, state=JobState.WAITING)
    assert waiting >= 3
    async with visiting(browser, shop, who="olga") as visit:
        await visit.go(f"queues/{QUEUE}")
        await visit.press(f"Purge queue {QUEUE}")
        dialog = visit.page.get_by_role("dialog")
        await expect(dialog.get_by_role("heading")).to_have_text(f"Purge queue {QUEUE}?")
        await expect(dialog).to_contain_text(f"{waiting} jobs are cancelled. These jobs will not run.")
        await expect(dialog.locator("code")).to_have_text(f"headgate queues purge {QUEUE} {APP}")
        await visit.agree(f"Cancel {waiting} jobs")

        async def are_cancelled() -> bool:
            return await shop.app.admin.count(queue=QUEUE, state=JobState.WAITING) == 0

        await until(are_cancelled)
        await expect(visit.page.get_by_role("button", name="Retry them …")).to_be_visible()
        assert (await shop.app.admin.status(shop.seeds.running.id)).state == "running"
        [entry] = await shop.app.admin.audit_log(kind="queue", subject=QUEUE, actor="olga", count=1)
        assert (entry.action, entry.detail) == ("purge", f"{waiting} waiting jobs cancelled")
        await visit.press("Retry them …")
        await visit.agree(f"Retry {waiting} jobs")

        async def are_back() -> bool:
            return await shop.app.admin.count(queue=QUEUE, state=JobState.CANCELLED, text="purge me") == 0

        await until(are_back)


@pytest.mark.nightly
async def test_a_fair_queue_shows_its_keys_and_how_it_is_declared(browser: Browser, shop: Shop) -> None:
    await shop.app.tasks["import_rows"].using(delay=3600).enqueue("later")
    await shop.app.admin.queues.pause(FAIR)
    tenants = [HOSTILE, "big", "big", "big"]
    await shop.app.tasks["import_rows"].enqueue_many([(tenant,) for tenant in tenants])
    async with visiting(browser, shop) as visit:
        await visit.go(f"queues/{FAIR}")
        declared = visit.page.get_by_role("region", name="As declared")
        for part in ("keys take turns: {tenant}", "big3", "1 min", "Slots per node2"):
            await expect(declared).to_contain_text(part)
        keys = visit.page.get_by_role("region", name="Keys with most waiting jobs")
        rows = keys.get_by_role("row")
        await expect(rows).to_have_count(3)
        await expect(rows.nth(1)).to_contain_text("big33")
        assert await axe_violations(visit, AXE) == []
        await keys.get_by_role("link", name="1", exact=True).click()
        await visit.settled()
        await expect(visit.page.get_by_role("table").get_by_role("row")).to_have_count(2)
        await visit.go("tasks/import_rows")
        await expect(visit.page.locator("main")).to_contain_text("Tags import")
