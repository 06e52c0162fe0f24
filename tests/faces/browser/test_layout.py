"""What fits where: rows of one line, cards of a phone, the header, names of deploys; and what lists lead to."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Browser, Route, expect

from headgate.clock import SECOND
from headgate.http.static_files import STATIC
from headgate.jobs.history import JobsStep, step_at
from tests.faces.browser.conftest import Shop, visiting
from tests.faces.browser.shop import FAIR, LIMIT, QUEUE
from tests.faces.browser.test_dashboard import limit_page
from tests.internals import store_of

HIGHEST_LINE = 38
"""Pixels of a row with one line."""

HIGHEST_CARD = 90
"""Pixels of the card of a job or a key on a phone."""

HEIGHTS = """() => [...document.querySelectorAll("main table.dense tbody tr")].map((row) =>
    [row.querySelector(".bad-text") !== null, row.getBoundingClientRect().height])"""

# The heights of rows, where they lead, those in which a tap misses the link, and buttons and fields that are too small.
ROWS = """() => {
    const rows = [...document.querySelectorAll("main tbody tr")].filter((row) => row.checkVisibility());
    const links = rows.map((row) => row.querySelector(".main-cell a"));
    const missed = rows.filter((row, at) => {
        if (!links[at]) return false;
        row.scrollIntoView({ block: "center" });
        const { left, right, top, bottom } = row.getBoundingClientRect();
        const points = [[left + 60, top + 4], [right - 9, bottom - 4]];
        return points.some(([x, y]) => document.elementFromPoint(x, y) !== links[at]);
    });
    const small = [...document.querySelectorAll("main :is(button, select, input:not([type=checkbox], [type=range]))")]
        .filter((each) => each.checkVisibility() && each.offsetHeight < 44);
    return {
        heights: rows.map((row) => row.getBoundingClientRect().height),
        targets: links.map((link) => link?.pathname),
        missed: missed.map((row) => row.outerHTML.slice(0, 300)),
        small: small.map((each) => each.outerHTML.slice(0, 100)),
    };
}"""

OUT_OF_THE_BAR = """() => {
    const bar = document.querySelector(".topbar").getBoundingClientRect();
    return [...document.querySelectorAll(".topbar :is(a, img, button, input, hg-finder)")]
        .map((each) => [each, each.getBoundingClientRect()])
        .filter(([, { width }]) => width > 0)
        .filter(([, { left, right, top, bottom }]) => left < 0 || right > innerWidth || top < 0 || bottom > bar.bottom)
        .map(([each]) => each.outerHTML.slice(0, 80));
}"""

# Where the names of marks at these seconds of a minute begin and end.
MARKS = """async (marks) => {
    await import(new URL("js/charts.js", document.querySelector("script[type=module]").src));
    const series = [{ name: "One", tone: "blue", kind: "line", values: [[0, 1]] }];
    const drawn = document.createElement("hg-chart");
    drawn.className = "chart";
    document.querySelector("main").append(drawn);
    drawn.chart = {
        label: "One", series, from: 0, to: 60000, unit: String, step: 1000,
        marks: marks.map(([at, name]) => ({ at: at * 1000, name })),
    };
    const texts = [...drawn.querySelectorAll(".deploy text")];
    const found = texts.map((text) => {
        const { left, right } = text.getBoundingClientRect();
        return [text.textContent, left, right];
    });
    const lines = drawn.querySelectorAll(".deploy line").length;
    const { right } = drawn.getBoundingClientRect();
    drawn.remove();
    return { lines, right, found };
}"""

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


async def test_jobs_and_keys_are_rows_of_one_line_and_low_cards_on_a_phone(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop) as visit:
        for where in ("jobs", "limits", limit_page(LIMIT)):
            await visit.go(where)
            rows = await visit.page.evaluate(HEIGHTS)
            assert len(rows) >= 2
            # An error has a line of its own.
            assert max(height for has_error, height in rows if not has_error) <= HIGHEST_LINE, where
            assert max(height for _, height in rows) <= 2 * HIGHEST_LINE, where
            await visit.look("narrow", "light")
            rows = await visit.page.evaluate(HEIGHTS)
            assert max(height for _, height in rows) <= HIGHEST_CARD, where
            await visit.look("wide", "light")


async def test_the_rows_of_lists_have_two_lines_and_are_one_target_on_a_phone(browser: Browser, shop: Shop) -> None:
    seen = set()
    async with visiting(browser, shop) as visit:
        await visit.look("narrow", "light")
        for where in ("tasks", "queues", "schedules", "batches", "failures?span=all", "audit", "jobs", "limits"):
            await visit.go(where)
            found = await visit.page.evaluate(ROWS)
            assert found["heights"], where
            # At least eight of them and the header fit the screen.
            assert max(found["heights"]) <= 72, where
            assert found["missed"] == [], where
            assert found["small"] == [], where
            assert not await visit.page.locator(".copy, .command-line").filter(visible=True).count(), where
            seen |= set(found["targets"])
        assert {
            f"/ops/jobs/queues/{QUEUE}",
            "/ops/jobs/tasks/sync_tenant",
            f"/ops/jobs/jobs/{shop.seeds.failed.id}",
        } <= seen
        # A dialog is a sheet at the bottom.
        await visit.go("tasks/fail")
        await visit.press("Enqueue")
        box = await visit.page.get_by_role("dialog").bounding_box()
        assert box is not None
        assert (box["x"], box["width"], box["y"] + box["height"]) == (0, 390, 844)


async def test_the_density_of_rows_is_chosen_and_kept(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop) as visit:
        page = visit.page
        await visit.go("queues")
        row = page.get_by_role("row", name=QUEUE)

        async def height() -> float:
            box = await row.bounding_box()
            assert box is not None
            return box["height"]

        comfortable = await height()
        await page.get_by_label("Density").select_option("compact")
        compact = await height()
        assert compact < comfortable
        await page.reload()
        await visit.settled()
        await expect(page.get_by_label("Density")).to_have_value("compact")
        assert await height() == compact
        await page.get_by_role("combobox", name="Find anything").fill("comfortable")
        await page.get_by_role("option", name="Use comfortable rows").click()
        assert await height() == comfortable


async def test_the_legend_of_a_chart_is_in_the_line_of_its_title(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop) as visit:
        await visit.go("overview")
        for name in ("Throughput", "Wait"):
            chart = visit.page.get_by_role("region", name=name)
            boxes = [await chart.locator(each).first.bounding_box() for each in ("h2", ".legend-item", "svg")]
            title, legend, plot = [box for box in boxes if box is not None]
            assert abs(title["y"] + title["height"] / 2 - legend["y"] - legend["height"] / 2) < 4
            panel = await chart.bounding_box()
            assert panel is not None
            # Nothing but the padding is below the plot.
            assert 0 <= panel["y"] + panel["height"] - plot["y"] - plot["height"] <= 20


async def test_tasks_whose_jobs_fail_come_first_and_idle_ones_are_folded(browser: Browser, shop: Shop) -> None:
    store = store_of(shop.app)
    minute = step_at(store.now(), 60) - 60 * SECOND
    done = [("fail", 1, 3), ("send_mail", 30, 0), ("import_rows", 9, 1)]
    steps = [
        JobsStep(60, "default", task, minute, succeeded=succeeded, failed=failed, runs=(0, 3), run_max=1200)
        for task, succeeded, failed in done
    ]
    await store.add_history(steps, ())
    async with visiting(browser, shop) as visit:
        page = visit.page
        await visit.go("tasks")
        rows = page.get_by_role("table", name="Tasks", exact=True).locator("tbody tr")
        await expect(rows.nth(0)).to_contain_text("fail")
        await expect(rows.nth(1)).to_contain_text("import_rows")
        await expect(rows.nth(0).get_by_role("img", name="Finished, over 15 min")).to_be_visible()
        share = rows.nth(0).get_by_role("link", name=re.compile(r"^\d+ %$"))
        await expect(share).to_have_attribute("href", "failures?task=fail")
        idle = page.get_by_role("row", name="often")
        await expect(idle).to_be_hidden()
        await page.get_by_text(re.compile(r"^\d+ idle tasks?$")).click()
        await expect(idle).to_be_visible()
        await visit.go("queues")
        queues = page.get_by_role("table", name="Queues", exact=True)
        await expect(
            queues.get_by_role("row", name="default").get_by_role("img", name=re.compile("Finished"))
        ).to_be_visible()
        # One that is idle can be paused in the fold.
        await page.get_by_text(re.compile(r"^\d+ idle queues?$")).click()
        await expect(page.get_by_role("button", name=f"Pause queue {FAIR}")).to_be_visible()


async def test_the_next_day_of_all_schedules_is_drawn_and_said(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop) as visit:
        await visit.go("schedules")
        day = visit.page.get_by_role("region", name="Next 24 hours")
        nightly = day.get_by_role("listitem").filter(has_text="nightly")
        await expect(nightly.get_by_role("img", name=re.compile(r"^1 run: .*\d\d:00:00$"))).to_be_visible()
        await expect(nightly.locator(".day-run")).to_have_count(1)
        await expect(day.get_by_role("listitem").filter(has_text="ule").locator(".day-run")).to_have_count(4)
        await nightly.get_by_role("link").click()
        await expect(visit.page).to_have_url(f"{shop.base}schedules/nightly")


async def test_the_page_of_a_failed_job_fits_a_phone_however_long_its_texts_are(browser: Browser, shop: Shop) -> None:
    """The fault: with a line of 100 characters in its traceback, or in a queue with a name of 60 characters, the page
    was wider than the phone.
    """

    async def with_long_line(route: Route) -> None:
        answer = await (await route.fetch()).json()
        error = answer["error"]
        long = error["traceback"].replace("    raise ValueError(", f"    raise ValueError({'one + two, ' * 9}")
        assert long != error["traceback"]
        status = answer["status"] | {"queue": "q" * 60}
        await route.fulfill(json=answer | {"status": status, "error": error | {"traceback": long}})

    async with visiting(browser, shop) as visit:
        await visit.page.route(f"**/api/v1/jobs/{shop.seeds.failed.id}", with_long_line)
        await visit.look("narrow", "light")
        await visit.go(f"jobs/{shop.seeds.failed.id}")
        await expect(visit.page.locator(".cause-source")).to_contain_text("one + two")
        assert await visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.nightly
@pytest.mark.parametrize("language", ["en", "de", "it"])
async def test_the_header_fits_a_phone(browser: Browser, shop: Shop, language: str) -> None:
    async with visiting(browser, shop) as visit:
        cookie = {"name": "headgate_language", "value": language, "url": shop.base}
        await visit.page.context.add_cookies([cookie])  # type: ignore[list-item]
        await visit.look("narrow", "light")
        await visit.go("jobs")
        await expect(visit.page.locator(".live-connected")).to_be_visible()
        assert await visit.page.evaluate(OUT_OF_THE_BAR) == []


@pytest.mark.nightly
async def test_names_of_deploys_do_not_overlap(browser: Browser, shop: Shop) -> None:
    async def source(route: Route) -> None:
        _, _, module = route.request.url.partition("/js/")
        body = (STATIC / "js" / module).read_text() if module else 'import "./js/main.js";'
        await route.fulfill(content_type="text/javascript", body=body)

    marks = [(1, "first"), (2, "too near"), (30, "release-2026-11"), (31, "too near"), (57, "right"), (58, "near")]
    async with visiting(browser, shop) as visit:
        await visit.page.route(re.compile(r"/static/\w+/(?:js/.*|app\.js)$"), source)
        await visit.go("nodes")
        for size in ("wide", "narrow"):
            await visit.look(size, "light")
            used = await visit.page.evaluate(MARKS, marks)
            assert used["lines"] == len(marks)
            names = [name for name, _, _ in used["found"]]
            assert names[0] == "first"
            assert "too near" not in names
            ends = [right for _, _, right in used["found"]]
            assert all(end <= left for end, (_, left, _) in zip(ends, used["found"][1:], strict=False))
            assert ends[-1] <= used["right"]


async def test_tasks_show_how_many_jobs_wait_and_enqueue_one(browser: Browser, shop: Shop) -> None:
    await shop.app.tasks["nightly"].using(delay=3600).enqueue()
    async with visiting(browser, shop) as visit:
        page = visit.page
        await visit.go("tasks")
        waiting = page.get_by_role("row", name="nightly").get_by_role("link", name="1", exact=True)
        await waiting.click()
        await expect(page).to_have_url(f"{shop.base}jobs?task=nightly&state=waiting")
        await visit.go("tasks/nightly")
        await visit.press("Enqueue")
        await expect(page.get_by_label("Task of the job")).to_have_value("nightly")
        await visit.agree("Enqueue")
        await expect(page.get_by_role("heading", level=1)).to_have_text("nightly")
        await page.get_by_role("navigation", name="Breadcrumb").get_by_role("link", name=f"queue {QUEUE}").click()
        await expect(page).to_have_url(f"{shop.base}queues/{QUEUE}")
    async with visiting(browser, shop, who="vic") as visit:
        await visit.go("tasks/nightly")
        await expect(visit.page.get_by_role("button", name="Enqueue")).to_have_attribute("aria-disabled", "true")


@pytest.mark.nightly
async def test_batches_show_their_tasks(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop) as visit:
        for where in ("batches", f"batches/{shop.seeds.batch}"):
            await visit.go(where)
            await visit.page.locator("main").get_by_role("link", name="send_mail", exact=True).first.click()
            await expect(visit.page).to_have_url(f"{shop.base}tasks/send_mail")


@pytest.mark.nightly
async def test_a_new_schedule_is_in_the_time_zone_of_the_browser(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop) as visit:
        session = await visit.page.context.new_cdp_session(visit.page)
        await session.send("Emulation.setTimezoneOverride", {"timezoneId": "America/Lima"})
        await visit.go("schedules")
        await visit.press("Create")
        zone = visit.page.get_by_role("dialog").get_by_label("Time zone", exact=True)
        await expect(zone).to_have_value("America/Lima")
