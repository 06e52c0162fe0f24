"""The pictures of connected jobs, and of the life of one, in a real browser."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
from playwright.async_api import Browser, expect

from headgate import batch
from tests.faces.browser.conftest import Shop, axe_violations, visiting
from tests.until import patient, until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
LOOKS = (("wide", "light"), ("wide", "dark"), ("narrow", "light"))


async def test_the_graph_of_a_job_is_drawn_live_with_links_both_ways(browser: Browser, shop: Shop) -> None:
    mail = shop.app.tasks["send_mail"]
    first = mail.using(delay=7200).call("first")
    left, right = mail.call("left").after(first), mail.call("right").after(first)
    both = mail.call("both").after(left, right, on="final")
    stored = await batch([first, left, right, both], name="import of May").enqueue()
    ids = [job.id for job in stored.jobs]
    async with visiting(browser, shop) as visit:
        graph = visit.page.get_by_role("group", name="Graph of connected jobs")
        await visit.go(f"jobs/{ids[0]}")
        boxes = {id: graph.locator(f'a[href="jobs/{id}"]') for id in ids}
        for id in ids[1:]:
            await expect(boxes[id]).to_contain_text("blocked")
        await expect(boxes[ids[0]]).to_have_attribute("aria-current", "page")
        # The same state as that of the job on its page.
        await expect(boxes[ids[0]]).to_contain_text("scheduled")
        await expect(visit.page.locator(".page-title .badge")).to_have_text("scheduled")
        said = re.compile("send_mail, .*, after the success of send_mail")
        await expect(boxes[ids[1]]).to_have_attribute("aria-label", said)
        whole = graph.locator(f'a[href="batches/{stored.id}"]')
        await expect(whole).to_contain_text("import of May")
        at = [await boxes[id].bounding_box() for id in ids]
        lefts = [box["x"] for box in at if box is not None]
        assert lefts[0] < lefts[1] == lefts[2] < lefts[3], "each is to the right of what it follows"
        assert await graph.locator("path.graph-edge").count() == 8
        assert await graph.locator("path.needs-final").count() == 2
        for size, scheme in LOOKS:
            await visit.look(size, scheme)
            assert await axe_violations(visit, AXE) == []
            assert await visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await visit.look("wide", "light")

        await shop.app.admin.run_now(ids[0])
        for id in ids:
            await expect(boxes[id]).to_contain_text("succeeded")
        await expect(whole).to_contain_text("succeeded, 4 of 4")

        await boxes[ids[3]].click()
        await visit.settled()
        await expect(visit.page).to_have_url(shop.base + f"jobs/{ids[3]}")
        await graph.locator(f'a[href="batches/{stored.id}"]').click()
        await visit.settled()
        await expect(graph.locator("a")).to_have_count(5)
        await expect(visit.page.get_by_role("heading", level=1)).to_have_text("import of May")
        assert await axe_violations(visit, AXE) == []


async def test_a_graph_of_many_jobs_is_folded_into_groups(browser: Browser, shop: Shop) -> None:
    mail, rows = shop.app.tasks["send_mail"], shop.app.tasks["import_rows"]
    first = mail.using(delay=7200).call("first")
    parts = [rows.call(f"{number}").after(first) for number in range(300)]
    stored = await batch([first, *parts, mail.call("last").after(*parts)]).enqueue()
    plain = await batch([mail.using(delay=7200).call("one"), mail.using(delay=7200).call("two")]).enqueue()
    async with visiting(browser, shop) as visit:
        await visit.go(f"batches/{stored.id}")
        graph = visit.page.get_by_role("group", name="Graph of connected jobs")
        group = graph.locator("a.is-group", has_text="import_rows × 300")
        await expect(group).to_contain_text("300 blocked")
        await expect(graph.locator(".graph-node")).to_have_count(4)
        await expect(visit.page.get_by_role("region", name="Graph")).to_contain_text("302 jobs, grouped by task")
        for size, scheme in LOOKS:
            await visit.look(size, scheme)
            assert await axe_violations(visit, AXE) == []
            assert await visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await visit.look("wide", "light")

        # The same element changes: the page is not drawn anew.
        element = await group.element_handle()
        await shop.app.admin.run_now(stored.jobs[0].id)
        await expect(group).to_contain_text("300 succeeded")
        assert await visit.page.evaluate("(element) => element.isConnected", element)
        await group.click()
        await visit.settled()
        await expect(visit.page).to_have_url(re.compile(f"jobs\\?batch={stored.id}&task=import_rows"))
        await visit.go(f"batches/{plain.id}")
        await expect(visit.page.get_by_role("heading", name="Progress")).to_be_visible()
        await expect(visit.page.get_by_role("heading", name="Graph")).to_have_count(0)


async def test_plain_jobs_of_several_tasks_are_a_group_for_each(browser: Browser, shop: Shop) -> None:
    mail, rows = shop.app.tasks["send_mail"].using(delay=7200), shop.app.tasks["import_rows"].using(delay=7200)
    stored = await batch(
        [*(mail.call(f"{number}") for number in range(2)), *(rows.call("a") for _ in range(3))]
    ).enqueue()
    async with visiting(browser, shop) as visit:
        await visit.go(f"batches/{stored.id}")
        graph = visit.page.get_by_role("group", name="Graph of connected jobs")
        await expect(graph.locator("a.is-group", has_text="send_mail × 2")).to_contain_text("2 scheduled")
        await expect(graph.locator("a.is-group", has_text="import_rows × 3")).to_contain_text("3 scheduled")


async def test_back_returns_to_the_same_place_in_a_graph(browser: Browser, shop: Shop) -> None:
    mail = shop.app.tasks["send_mail"]
    steps = [mail.using(delay=7200).call("0")]
    for number in range(1, 15):
        steps.append(mail.call(f"{number}").after(steps[-1]))
    side = mail.call("side").after(steps[0])
    stored = await batch([*steps, side]).enqueue()
    async with visiting(browser, shop) as visit:
        await visit.go(f"jobs/{stored.jobs[0].id}")
        graph = visit.page.get_by_role("group", name="Graph of connected jobs")
        last = graph.locator(f'a[href="jobs/{stored.jobs[14].id}"]')
        await expect(last).to_have_class(re.compile("is-critical"))
        await expect(last).to_have_attribute("aria-label", re.compile("on the critical path"))
        await expect(graph.locator(f'a[href="jobs/{stored.jobs[15].id}"]')).not_to_have_class(re.compile("is-critical"))
        await last.click()
        await visit.settled()
        await expect(last).to_have_attribute("aria-current", "page")

        async def is_scrolled() -> bool:
            return bool(await graph.evaluate("(area) => area.scrollLeft > 1000"))

        # The box of a job is in view on its own page.
        await until(is_scrolled)
        await visit.page.go_back()
        await visit.settled()
        await expect(graph.locator(f'a[href="jobs/{stored.jobs[0].id}"]')).to_have_attribute("aria-current", "page")
        await until(is_scrolled)


@pytest.mark.nightly
async def test_the_largest_graph_that_is_drawn_is_laid_out_at_once(browser: Browser, shop: Shop) -> None:
    mail = shop.app.tasks["send_mail"]
    layers = [[mail.using(delay=7200).call("0") for _ in range(10)]]
    for number in range(1, 19):
        layers.append([mail.call(f"{number}").after(*layers[-1][:3]) for _ in range(10)])
    stored = await batch([call for layer in layers for call in layer]).enqueue()
    async with visiting(browser, shop) as visit:
        await visit.go(f"batches/{stored.id}")

        # Seven jobs of the first layer, which nothing follows, are one box.
        async def is_drawn() -> bool:
            return await visit.page.locator(".graph a").count() == 185

        await until(is_drawn)
        assert await axe_violations(visit, AXE) == []


async def test_a_branch_that_was_not_needed_is_shown_as_skipped(browser: Browser, shop: Shop) -> None:
    mail = shop.app.tasks["send_mail"]
    first = mail.call("first")
    sorry, told = mail.call("sorry").after(first, on="failure"), mail.call("done").after(first, on="final")
    stored = await batch([first, sorry, told]).enqueue()
    status = await stored.wait(timeout=patient(15))
    assert (status.succeeded, status.skipped) == (2, 1)
    id = stored.jobs[1].id
    async with visiting(browser, shop) as visit:
        await visit.go(f"batches/{stored.id}")
        await expect(visit.page.locator(".page-title .badge")).to_have_text("succeeded")
        await expect(visit.page.locator(".node-counts")).to_contain_text("1 skipped")
        box = visit.page.get_by_role("group", name="Graph of connected jobs").locator(f'a[href="jobs/{id}"]')
        await expect(box).to_contain_text("skipped, not needed: send_mail succeeded")
        await box.click()
        await visit.settled()
        await expect(visit.page.locator(".page-title .badge")).to_have_text("skipped")
        why = visit.page.get_by_role("region", name="Why")
        await expect(why).to_contain_text(
            f"It was skipped: it runs only if {stored.jobs[0].id}, which it follows, fails"
        )
        await expect(visit.page.get_by_role("button", name="Retry")).to_have_count(0)
        for size, scheme in LOOKS:
            await visit.look(size, scheme)
            assert await axe_violations(visit, AXE) == []
        await visit.look("wide", "light")
        await visit.go("jobs?state=skipped")
        await expect(visit.page.locator("tbody")).to_contain_text("sorry")


async def test_a_job_shows_where_its_time_went(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop) as visit:
        await visit.go(f"jobs/{shop.seeds.failed.id}")
        rows = visit.page.get_by_role("list", name="Where the time went").get_by_role("listitem")
        await expect(rows.last).to_contain_text(re.compile(r"attempt 1 on node-\w+ failed"))
        # The line that it has logged, and the line of source that raised.
        await expect(rows.last.locator(".stretch-mark.is-error")).to_have_attribute(
            "title", re.compile("about to fail")
        )
        source = visit.page.get_by_role("region", name="Source of the error")
        await expect(source).to_have_text('raise ValueError(f"{why} {LONG}")')
        for size, scheme in LOOKS:
            await visit.look(size, scheme)
            assert await axe_violations(visit, AXE) == []
            assert await visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await visit.look("wide", "light")

        await visit.go(f"jobs/{shop.seeds.running.id}")
        await expect(rows.last).to_contain_text("running")
        filled = rows.last.locator(".stretch-progress")
        await expect(filled).to_have_attribute("style", re.compile("width: 40%"))
        await visit.go(f"jobs/{shop.seeds.throttled.id}")
        await expect(rows).to_have_count(1)
        await expect(rows).to_contain_text("waiting, now for")
        await visit.go(f"jobs/{shop.seeds.scheduled.id}")
        await expect(rows).to_have_text(re.compile("scheduled for later.*in 1 h"))
