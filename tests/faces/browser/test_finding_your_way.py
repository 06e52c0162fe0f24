"""The overview, the search box, ranges of charts and the pages of tasks, queues and batches, in a real browser."""

from __future__ import annotations

import asyncio
import functools
import re
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

import pytest
from playwright.async_api import Browser, Page, Request, Route, expect

from headgate import batch
from headgate.jobs.state import JobState
from tests.faces.browser.conftest import Shop, Visit, axe_violations, events, visiting, with_silent_nodes
from tests.faces.browser.shop import HOSTILE, LIMIT, QUEUE, SPARE
from tests.internals import store_of
from tests.until import result_within, until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SCREEN = 844
"""The height of the narrow screen."""

KEYS = 200
"""How many keys a busy store has in these tests."""


def path_of(page: Page, shop: Shop) -> str:
    """The address of a page below the dashboard, without its query."""
    return unquote(urlsplit(page.url).path.removeprefix(urlsplit(shop.base).path))


def query_of(page: Page) -> dict[str, str]:
    return {name: value for name, (value,) in parse_qs(urlsplit(page.url).query).items()}


async def of_many_keys(visit: Visit, keys: int) -> None:
    """Let the page see a store in which jobs wait for so many keys of a limit, of all levels of trouble."""

    async def many(route: Route) -> None:
        answer = await route.fetch()
        found = await answer.json()
        now = datetime.fromisoformat(found["now"])
        worst = [
            {
                "key": f"{number} {HOSTILE}",
                "waiting": max(1, 400 - 20 * number),
                "clears_at": None if number % 5 == 4 else (now + timedelta(minutes=4 ** min(number, 5))).isoformat(),
                "is_paused": number == 3,
                "penalized_until": None,
            }
            for number in range(min(keys, 20))
        ]
        waiting = sum(int(str(each["waiting"])) for each in worst) + max(0, keys - 20)
        limit = {"limit": LIMIT, "rule": "1/h", "waiting": waiting, "keys": keys, "is_paused": False, "worst": worst}
        # The page takes it for newer than what the stream sends.
        await route.fulfill(json=found | {"limits": [limit], "now": "2099-01-01T00:00:00Z"})

    await visit.page.route("**/api/v1/overview", many)


async def test_the_overview_says_first_what_waits_and_shows_the_keys_of_limits(browser: Browser, shop: Shop) -> None:
    limits = shop.app.admin.limits
    await limits.pause(LIMIT, key=HOSTILE)
    async with visiting(browser, shop) as visit:
        page = visit.page
        await visit.go("overview")
        said = page.get_by_role("list", name="Verdict").get_by_role("link")
        await expect(said.first).to_be_visible()
        assert 1 <= await said.count() <= 3
        await expect(page.get_by_role("heading", level=2).first).to_have_text("Limits")
        block = page.locator("hg-heat-map li a").filter(has_text="owned(1)").first
        await expect(block).to_have_accessible_name(re.compile(r"owned\(1\).* 1 job waiting.*paused", re.DOTALL))
        await expect(block).to_have_class(re.compile("heat-closed"))
        await block.focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("button", name="Resume", exact=True)).to_be_visible()
        await until(lambda: (path_of(page, shop), query_of(page)) == (f"limits/{LIMIT}", {"key": HOSTILE}))
        # The blocks, the tile and the store say the same.
        await visit.go("overview")
        seen = await (await page.request.get(f"{shop.base}api/v1/overview")).json()
        assert sum(each["waiting"] for each in seen["limits"]) == seen["totals"]["throttled"] > 0
        await expect(page.locator("a.number", has_text="Throttled").locator(".number-value")).to_have_text(
            f"{seen['totals']['throttled']:,}"
        )
    await limits.resume(LIMIT, key=HOSTILE)


@pytest.mark.nightly
@pytest.mark.parametrize("keys", [20, KEYS, 200_000])
async def test_a_limit_has_a_block_for_each_of_its_worst_keys_and_one_for_the_rest(
    browser: Browser, shop: Shop, keys: int
) -> None:
    axe = (files("axe_playwright_python") / "axe.min.js").read_text()
    async with visiting(browser, shop) as visit:
        page = visit.page
        await of_many_keys(visit, keys)
        await visit.go("overview")
        blocks = page.locator("hg-heat-map li a")
        rest = int(keys > 20)
        await expect(blocks).to_have_count(20 + rest)
        if rest:
            left = f"{keys - 20:,}" if keys < 10_000 else f"{round(keys / 1000)}K"
            await expect(blocks.last).to_have_accessible_name(re.compile(rf"\+{left} keys, [\d,]+ jobs waiting"))
        sizes = await page.evaluate(
            "[...document.querySelectorAll('hg-heat-map li')].map((each) => each.offsetWidth * each.offsetHeight)"
        )
        named = sizes[:20]
        assert named[0] == max(named) > 2 * named[12] > 0, "the area is that of the waiting jobs"
        # One stop for the Tab key, whatever the number of keys.
        await expect(page.locator("hg-heat-map li a[tabindex='0']")).to_have_count(1)
        await blocks.first.focus()
        last = 19 + rest
        for key, at in (("ArrowRight", 1), ("End", last), ("ArrowRight", last), ("Home", 0), ("ArrowDown", 1)):
            await page.keyboard.press(key)
            await expect(blocks.nth(at)).to_be_focused()
        for size in ("wide", "narrow"):
            for theme in ("light", "dark"):
                await visit.look(size, theme)
                assert await axe_violations(visit, axe) == []
                assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        # A phone shows fewer keys by name, and counts the others.
        await expect(blocks).to_have_count(7)


@pytest.mark.nightly
async def test_numbers_that_are_old_are_grey_and_say_their_age(browser: Browser, shop: Shop) -> None:
    axe = (files("axe_playwright_python") / "axe.min.js").read_text()
    age, is_silent = 4, False

    async def old(route: Route) -> None:
        found = await (await route.fetch()).json()
        now = datetime(2099, 1, 1, tzinfo=UTC)
        found |= {"now": now.isoformat(), "counted_at": (now - timedelta(seconds=age)).isoformat()}
        if is_silent:
            since = (now - timedelta(seconds=90)).isoformat()
            said = {"kind": "store_silent", "tone": "bad", "count": None, "name": None, "key": None, "at": since}
            found |= {"silent_since": since, "verdict": [said | {"seconds": None, "more": 0}]}
        await route.fulfill(json=found)

    async with visiting(browser, shop) as visit:
        page = visit.page
        await page.route("**/api/v1/overview", old)
        await visit.go("overview")
        ready = page.locator("a.number", has_text="Ready")
        await expect(ready).to_contain_text("waiting for a free slot")
        age = 30
        await visit.go("overview")
        await expect(ready).to_contain_text("counted 30 s ago")
        await expect(page.locator(".numbers.is-old .number-value").first).to_be_visible()
        # Charts cannot be read from a store that does not answer, and the page does not wait for them.
        is_silent, age = True, 100
        await page.route("**/api/v1/history?**", lambda route: route.abort())
        await visit.go("overview")
        await expect(page.get_by_role("list", name="Verdict")).to_contain_text("The store has not answered since")
        await expect(page.get_by_text("Last known state, 1 min 40 s ago:")).to_be_visible()
        await expect(page.get_by_role("table", name="Queues")).to_be_visible()
        await expect(page.get_by_role("heading", name="Throughput")).to_have_count(0)
        for size in ("wide", "narrow"):
            for theme in ("light", "dark"):
                await visit.look(size, theme)
                assert await axe_violations(visit, axe) == []
                assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        visit.expected.add("ERR_FAILED")


@pytest.mark.nightly
@pytest.mark.parametrize("keys", [5, 60, KEYS])
async def test_the_overview_takes_at_most_three_screens_of_a_phone(browser: Browser, shop: Shop, keys: int) -> None:
    async with visiting(browser, shop) as visit:
        await of_many_keys(visit, keys)
        await visit.look("narrow", "light")
        await visit.go("overview")
        await expect(visit.page.locator("hg-heat-map")).to_be_visible()
        assert await visit.page.evaluate("document.documentElement.scrollHeight") <= 3 * SCREEN
        assert await visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.nightly
async def test_a_range_of_a_chart_leads_to_its_jobs(browser: Browser, shop: Shop) -> None:
    async def with_history(route: Route) -> None:
        answer = await route.fetch()
        found = await answer.json()
        now = await visit.page.evaluate("Date.now()")
        nothing = dict.fromkeys(
            (f"{kind}_{of}" for kind in ("wait", "run") for of in ("p50", "p95", "p99", "max")), 0.5
        )
        counts = dict.fromkeys(("enqueued", "started", "failed", "cancelled", "skipped", "retried"), 0)
        found["points"] = [
            {"at": f"{await visit.page.evaluate(f'new Date({now // 10_000 * 10_000 - 10_000 * step}).toISOString()')}",
             "succeeded": 5, **counts, **nothing}
            for step in range(80, 2, -1)
        ]  # fmt: skip
        found["total"] = found["points"][0]
        await route.fulfill(response=answer, json=found)

    async with visiting(browser, shop) as visit:
        page = visit.page
        await page.route("**/api/v1/history?*", with_history)
        await visit.go("tasks/send_mail")
        plot = page.locator("hg-chart svg").first
        await plot.scroll_into_view_if_needed()
        box = await plot.bounding_box()
        assert box is not None
        middle = box["y"] + box["height"] / 2
        await page.mouse.move(box["x"] + box["width"] * 0.5, middle)
        await page.mouse.down()
        await page.mouse.move(box["x"] + box["width"] * 0.6, middle)
        await expect(page.locator("hg-chart rect.range")).to_have_count(1)
        await page.mouse.move(box["x"] + box["width"] * 0.8, middle)
        await page.mouse.up()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
        dragged = query_of(page)
        assert dragged["task"] == "send_mail"
        # Absolute instants, in whole steps, so that the link can be shared.
        instants = [dragged["finished_after"], dragged["finished_before"]]
        assert instants == sorted(instants)
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d0\.000Z", each) for each in instants)

        await page.go_back()
        await visit.settled()
        scrub = page.get_by_role("slider", name=re.compile("Throughput.*Enter begins")).first
        await scrub.focus()
        await page.keyboard.press("Enter")
        await expect(scrub).to_have_attribute("aria-valuetext", re.compile("range begun"))
        await page.keyboard.press("Escape")
        await expect(scrub).not_to_have_attribute("aria-valuetext", re.compile("range begun"))
        for key in ("Enter", "ArrowLeft", "ArrowLeft", "Enter"):
            await page.keyboard.press(key)
        await expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
        chosen = query_of(page)
        took = await page.evaluate(
            "([from, to]) => Date.parse(to) - Date.parse(from)", [chosen["finished_after"], chosen["finished_before"]]
        )
        assert took == 30_000


GROWING = """(count) => {
    const drawn = document.querySelector("hg-chart.growing") ?? document.createElement("hg-chart");
    drawn.className = "chart growing";
    if (!drawn.isConnected) document.querySelector("main").append(drawn);
    const values = Array.from({ length: count }, (_, at) => [1000 * at, at]);
    const series = [{ name: "One", tone: "blue", kind: "line", values }];
    drawn.chart = { label: "Growing", series, from: 0, to: 1000 * count, step: 1000, unit: String };
}"""


async def test_the_time_that_is_selected_by_keyboard_stays_while_a_chart_grows(browser: Browser, shop: Shop) -> None:
    """The fault: with each further value the slider was at the last one, and the next key went on from there."""
    async with visiting(browser, shop) as visit:
        await visit.go("nodes")
        await visit.page.evaluate(GROWING, 10)
        scrub = visit.page.get_by_role("slider", name="Growing")
        await scrub.focus()
        for _ in range(3):
            await visit.page.keyboard.press("ArrowLeft")
        await expect(scrub).to_have_attribute("aria-valuetext", re.compile("One 6$"))
        await visit.page.evaluate(GROWING, 11)
        await expect(scrub).to_have_value("6")
        await visit.page.keyboard.press("ArrowLeft")
        await expect(scrub).to_have_attribute("aria-valuetext", re.compile("One 5$"))


@pytest.mark.nightly
async def test_deploys_are_marked_in_the_charts(browser: Browser, shop: Shop) -> None:
    await store_of(shop.app).join("of-this-test", "of-this-test", release="v7.1")
    await store_of(shop.app).leave("of-this-test")
    async with visiting(browser, shop) as visit:
        for where in ("overview", f"queues/{QUEUE}"):
            await visit.go(where)
            chart = visit.page.locator("hg-chart svg").first
            await expect(chart.locator(".deploy text")).to_have_text("v7.1")
            await expect(chart).to_have_attribute("aria-label", re.compile(r"Deploys: v7\.1 \(\d{4}-"))
        for where in (
            "overview?span=24h",
            f"failures/{shop.seeds.failed.id}?span=1h",
            f"limits/{quote(LIMIT, safe='')}?{urlencode({'key': HOSTILE})}",
        ):
            await visit.go(where)
            await expect(visit.page.locator("hg-chart svg .deploy").first).to_be_visible()


@pytest.mark.nightly
async def test_a_task_and_a_queue_show_their_jobs_and_failures(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop) as visit:
        page = visit.page
        await visit.go("failures?span=all")
        await page.get_by_role("link", name="fail", exact=True).first.click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("fail")
        failures = page.get_by_role("table", name="Recent failures")
        await expect(failures.locator(f'a[href="jobs/{shop.seeds.failed.id}"]')).to_be_visible()
        await page.get_by_role("link", name="By root cause").click()
        await expect(page.get_by_text("Only task fail")).to_be_visible()
        await expect(page.get_by_role("table", name="Failures by root cause").locator("tbody tr")).not_to_have_count(0)
        await visit.go("tasks/sync_tenant")
        await expect(page.get_by_role("table", name="Limits")).to_contain_text("1 per h")
        await visit.go(f"queues/{QUEUE}")
        await expect(page.get_by_role("link", name="until_told", exact=True).first).to_be_visible()
        await visit.press(f"Pause queue {QUEUE}")
        await visit.agree("Pause the queue")
        await expect(page.get_by_role("button", name=f"Resume queue {QUEUE}")).to_be_visible()
        await visit.press(f"Resume queue {QUEUE}")
        await expect(page.get_by_role("button", name=f"Pause queue {QUEUE}")).to_be_visible()


async def test_a_batch_is_opened_from_the_menu_and_its_rest_is_cancelled(browser: Browser, shop: Shop) -> None:
    task = shop.app.tasks["send_mail"]
    call = task.using(delay=3600).call
    pending = await batch([call("a"), batch([call("b")]), task.call("c")]).then(call("d"), on="final").enqueue()

    async def has_begun() -> bool:
        return (await shop.app.admin.batch(pending.id)).pending == 2

    await until(has_begun)
    async with visiting(browser, shop) as visit:
        page = visit.page
        await visit.go("overview")
        await page.get_by_role("navigation", name="Pages").get_by_role("link", name="Batches").click()
        row = page.get_by_role("row", name=re.compile(pending.id[-10:]))
        await expect(row).to_contain_text("1 of 3")
        await row.get_by_role("link").first.click()
        await expect(page.get_by_role("table", name="Jobs").locator("tbody tr")).to_have_count(2)
        await visit.press("Cancel the pending jobs")
        await expect(page.get_by_role("dialog").get_by_role("heading")).to_have_text("Cancel 3 jobs?")
        await visit.agree("Cancel 3 jobs")
        await expect(page.get_by_text("3 of 3 jobs finished")).to_be_visible()
        await expect(page.get_by_role("button", name="Cancel the pending jobs")).to_have_count(0)
        await page.get_by_role("table", name="Jobs").get_by_role("link").first.click()
        await page.get_by_role("link", name=pending.id, exact=True).click()
        await expect(page).to_have_url(f"{shop.base}batches/{pending.id}")


async def test_one_box_finds_everything_by_keyboard_alone(browser: Browser, shop: Shop) -> None:
    seeds = shop.seeds
    async with visiting(browser, shop) as visit:
        page = visit.page
        box = page.get_by_role("combobox", name="Find anything")

        async def look_for(text: str, option: str) -> None:
            await page.keyboard.press("/")
            await expect(box).to_be_focused()
            await page.keyboard.type(text)
            wanted = page.get_by_role("option").filter(has_text=re.compile(option, re.DOTALL)).first
            await expect(wanted).to_be_visible()
            for _ in range(await page.get_by_role("option").count()):
                if await wanted.get_attribute("aria-selected") == "true":
                    break
                await page.keyboard.press("ArrowDown")
            await expect(wanted).to_have_attribute("aria-selected", "true")
            assert await box.get_attribute("aria-activedescendant") == await wanted.get_attribute("id")
            await page.keyboard.press("Enter")
            await expect(box).to_have_value("")
            await expect(page.get_by_role("listbox")).to_be_hidden()

        async def is_at(where: str) -> bool:
            return path_of(page, shop) == where

        await visit.go("nodes")
        for text, option, where in (
            (seeds.failed.id, "^job", f"jobs/{seeds.failed.id}"),
            (seeds.batch, "^batch", f"batches/{seeds.batch}"),
            ("until", "^task", "tasks/until_told"),
            (QUEUE, f"^queue{QUEUE}", f"queues/{QUEUE}"),
            ("lim/it", "^limit", f"limits/{LIMIT}"),
            ("<img src=x onerror=owned(1)>", "^key", f"limits/{LIMIT}"),
            ("night", "^schedule", "schedules/nightly"),
            ("audi", "^page", "audit"),
        ):
            await look_for(text, option)
            await until(functools.partial(is_at, where))
            await page.locator("main[aria-busy=false] h1").wait_for()
        await look_for("pause live", "^action")
        await expect(page.get_by_role("button", name="Live updates: Paused")).to_be_visible()
        await look_for("resume live", "^action")
        await look_for("some text", "Show jobs text some text")
        await until(lambda: query_of(page) == {"text": "some text"})


async def test_tab_leaves_the_box_for_the_next_control(browser: Browser, shop: Shop) -> None:
    """The fault: browsers stop at a list that scrolls. It closed as the box lost the focus, so nothing had it."""
    async with visiting(browser, shop) as visit:
        page = visit.page
        await page.set_viewport_size({"width": 1440, "height": 300})
        await page.keyboard.press("/")
        await expect(page.get_by_role("listbox")).to_be_visible()
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("button", name=re.compile("Live updates"))).to_be_focused()


async def test_a_typed_verb_shows_what_it_changes_does_it_and_is_undone(browser: Browser, shop: Shop) -> None:
    admin, tasks = shop.app.admin, shop.app.tasks
    later = await tasks["send_mail"].using(delay=3600).enqueue("later")
    never = await tasks["send_mail"].using(delay=7200).enqueue("never")
    async with visiting(browser, shop) as visit:
        page = visit.page
        box = page.get_by_role("combobox", name="Find anything")
        preview = page.locator("#finder-preview")
        said = page.get_by_role("status", name="Messages")

        async def type_verb(text: str, shown: str, command: str) -> None:
            await page.keyboard.press("Control+k")
            await page.keyboard.type(text)
            await expect(preview).to_contain_text(shown)
            await expect(preview.locator("code")).to_have_text(re.compile(re.escape(f"headgate {command}")))
            await expect(box).to_have_attribute("aria-describedby", "finder-preview")
            await page.keyboard.press("Enter")
            await expect(box).to_have_value("")

        async def queue_is_paused(paused: bool) -> bool:
            return [each.paused_at is not None for each in await admin.queues.list() if each.queue == QUEUE] == [paused]

        await visit.go("nodes")
        await type_verb(f"pause {QUEUE}", "No job of this queue starts", f"queues pause {QUEUE}")
        await until(functools.partial(queue_is_paused, True))
        await said.get_by_role("button", name="Undo").click()
        await expect(said).to_contain_text(f"Queue {QUEUE} is resumed")
        await until(functools.partial(queue_is_paused, False))

        key = "<img src=x onerror=owned(1)>"
        await type_verb(f"pause {key}", "No job starts under this limit", "limits pause")
        await expect(said).to_contain_text("is paused for key")
        assert (await admin.limits.bucket(LIMIT, HOSTILE)).is_paused
        await type_verb(f"resume {key}", "as the rule allows", "limits resume")
        await expect(said).to_contain_text("is resumed for key")
        await type_verb(f"penalize {key} 90", "job waits.", "limits penalize")
        await expect(said).to_contain_text("is penalized for 1 min 30 s")
        assert (await admin.limits.bucket(LIMIT, HOSTILE)).penalized_until is not None

        await type_verb(f"run now {later.id}", "1 job, now waiting.", f"jobs run {later.id}")
        await result_within(later, 60)
        await type_verb(f"cancel {never.id}", "1 job, now waiting.", f"jobs cancel {never.id}")
        await expect(said).to_contain_text("The cancellation is requested")
        assert (await never.status()).state == "cancelled"
        failed = await admin.count(state=JobState.FAILED, error="ValueError", task="fail")
        await type_verb("retry task:fail ValueE", f"Retry {failed} job", "jobs retry --all --state failed --task fail")
        await expect(said).to_contain_text(re.compile("jobs? retried"))

        # A verb without an object changes nothing, and what is completed is a verb.
        await page.keyboard.press("Control+k")
        await page.keyboard.type("pena")
        await page.keyboard.press("Enter")
        await expect(box).to_have_value("penalize ")
        await page.keyboard.type("nobody of that name")
        await expect(preview).to_contain_text(
            "Nothing that begins so can be changed with “penalize”: nobody of that name"
        )
        await page.keyboard.press("Enter")
        await expect(box).to_have_value("penalize nobody of that name")
        await page.keyboard.press("Escape")

    async with visiting(browser, shop, who="vic") as visit:
        await visit.go("nodes")
        await visit.page.keyboard.press("/")
        await visit.page.keyboard.type(f"pause {QUEUE}")
        await expect(visit.page.locator("#finder-preview")).to_contain_text("This needs the role operator")
        await visit.page.keyboard.press("Enter")
        assert await queue_is_paused(False)


async def test_what_was_opened_last_comes_first_in_the_box(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop) as visit:
        options = visit.page.get_by_role("listbox", name="Found").get_by_role("option")
        await visit.go(f"queues/{QUEUE}")
        await visit.go("tasks/nightly")
        await visit.go("nodes")
        await visit.page.keyboard.press("/")
        assert (await options.all_text_contents())[:3] == ["tasknightly", f"queue{QUEUE}", "pageOverview"]
        await visit.page.keyboard.press("Enter")
        await until(lambda: path_of(visit.page, shop) == "tasks/nightly")


@pytest.mark.nightly
async def test_the_box_offers_what_can_be_done_with_what_it_finds(browser: Browser, shop: Shop) -> None:
    limits, queues = shop.app.admin.limits, shop.app.admin.queues

    async def is_paused(*, queue: bool, key: bool) -> bool:
        paused = (
            any(each.queue == QUEUE and each.is_paused for each in await queues.list()),
            (LIMIT, HOSTILE) in await limits.paused([(LIMIT, HOSTILE)]),
        )
        return paused == (queue, key)

    async with visiting(browser, shop) as visit:
        page = visit.page
        options = page.get_by_role("listbox", name="Found").get_by_role("option")
        said = page.get_by_role("status", name="Messages")

        async def choose(text: str, name: str) -> None:
            # A dialog that is closed is still there for a moment.
            await expect(page.locator("dialog")).to_have_count(0)
            await page.keyboard.press("/")
            await page.keyboard.type(text)
            await options.filter(has_text=name).first.click()

        await visit.go("nodes")
        await choose("enq", "Enqueue a job")
        await expect(page.get_by_role("dialog").get_by_role("heading")).to_have_text("Enqueue a job")
        await page.keyboard.press("Escape")
        await choose("create", "Create a schedule")
        await expect(page.get_by_role("dialog").get_by_role("heading")).to_have_text("Create a schedule")
        await page.keyboard.press("Escape")

        await choose(QUEUE, f"Pause queue {QUEUE}")
        await visit.agree("Pause the queue")
        await until(functools.partial(is_paused, queue=True, key=False))
        await said.get_by_role("button", name="Undo").click()
        await expect(said).to_contain_text(f"Queue {QUEUE} is resumed")
        await until(functools.partial(is_paused, queue=False, key=False))
        await choose(QUEUE, f"Purge queue {QUEUE}")
        await expect(page.get_by_role("dialog").get_by_role("heading")).to_have_text(f"Purge queue {QUEUE}?")
        await page.keyboard.press("Escape")

        await choose("<img src=x onerror=owned(1)>", f"Pause {LIMIT} for key")
        await visit.agree("Pause")
        await until(functools.partial(is_paused, queue=False, key=True))
        await choose("<img src=x onerror=owned(1)>", f"Resume {LIMIT} for key")
        await visit.agree("Resume")
        await until(functools.partial(is_paused, queue=False, key=False))
        await expect(said).to_contain_text(f"Limit {LIMIT} is resumed for key")
        await said.get_by_role("button", name="Undo").last.click()
        await until(functools.partial(is_paused, queue=False, key=True))
        await limits.resume(LIMIT, key=HOSTILE)

    for who, offered in (("olga", [f"actionPause queue {QUEUE}", f"actionPurge queue {QUEUE}"]), ("vic", [])):
        async with visiting(browser, shop, who=who) as visit:
            options = visit.page.get_by_role("listbox", name="Found").get_by_role("option")
            await visit.go("nodes")
            await visit.page.keyboard.press("/")
            await visit.page.keyboard.type(QUEUE)
            await expect(options.filter(has_text=f"queue{QUEUE}").first).to_be_visible()
            assert [each for each in await options.all_text_contents() if each.startswith("action")] == offered


async def test_filters_are_typed_as_words_and_completed(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop) as visit:
        page = visit.page
        box = page.get_by_role("combobox", name="Find anything")
        await visit.go("nodes")
        await page.keyboard.press("Control+k")
        await expect(box).to_be_focused()
        await page.keyboard.type("task:unt")
        # Completions of an unfinished word come first.
        await expect(page.get_by_role("option").first).to_contain_text("task:until_told")
        await page.keyboard.press("Enter")
        await expect(box).to_have_value("task:until_told ")
        await page.keyboard.type("state:run")
        await page.keyboard.press("Enter")
        await expect(box).to_have_value("task:until_told state:running ")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
        await until(lambda: query_of(page) == {"task": "until_told", "state": "running"})
        await expect(page.locator(f'a[href="jobs/{shop.seeds.running.id}"]')).to_be_visible()

        await page.keyboard.press("/")
        # Each object of JavaScript has a `constructor`.
        for unknown in ("nonsense:1", "constructor:1"):
            await page.keyboard.type(f'key:"acme corp" {unknown}')
            await expect(page.get_by_role("option").filter(has_text="Show jobs")).to_have_count(0)
            await page.keyboard.press("Escape")
            await expect(box).to_have_value("")
        await page.keyboard.type('key:"acme corp" queue:mail')
        await page.keyboard.press("Enter")
        await until(lambda: query_of(page) == {"key": "acme corp", "queue": "mail"})


async def test_a_name_with_a_colon_is_found_and_changed(browser: Browser, shop: Shop) -> None:
    await shop.app.admin.limits.penalize(SPARE, "tenant:42", 60)
    async with visiting(browser, shop) as visit:
        page = visit.page
        options = page.get_by_role("listbox", name="Found").get_by_role("option")
        preview = page.locator("#finder-preview")

        async def type_text(text: str) -> None:
            await page.keyboard.press("Control+k")
            await page.keyboard.press("Escape")
            await page.keyboard.press("Control+k")
            await page.keyboard.type(text)

        await visit.go("nodes")
        await type_text("tenant:4")
        await expect(options.first).to_have_text(f"keytenant:42 {SPARE}")
        await expect(options.last).to_have_text("jobsShow jobs text tenant:4")
        await type_text("pause tenant:42")
        await expect(preview.locator("code")).to_have_text(re.compile(f"limits pause {SPARE} --key tenant:42"))
        await type_text("https://acme.example/")
        await expect(options).to_have_text(["jobsShow jobs text https://acme.example/"])
        # A filter beside it shows that a filter is meant. What is not asked for is not waited for.
        for text in ("retry task:fail nonsense:1", "pause state:failed", "pause task:fail "):
            await type_text(text)
            verb, named = text.strip().split(" ", 1)
            await expect(preview).to_have_text(f"Nothing that begins so can be changed with “{verb}”: {named}")


@pytest.mark.nightly
async def test_back_returns_to_where_the_list_was_left(browser: Browser, shop: Shop) -> None:
    task = shop.app.tasks["send_mail"].using(delay=3600)
    await task.enqueue_many([(f"scrolled {number}",) for number in range(50)])
    async with visiting(browser, shop) as visit:
        page = visit.page
        await visit.go("jobs?text=scrolled")
        link = page.locator('tbody a[href^="jobs/"]').nth(40)
        await link.scroll_into_view_if_needed()
        left_at = await page.evaluate("scrollY")
        assert left_at > 300
        await link.click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text("send_mail")
        await visit.settled()
        assert await page.evaluate("scrollY") == 0

        async def scrolled_to(place: int) -> bool:
            return bool(await page.evaluate("scrollY") == place)

        await page.go_back()
        await until(functools.partial(scrolled_to, left_at))
        await page.go_forward()
        await expect(page.get_by_role("heading", level=1)).to_contain_text("send_mail")
        await visit.settled()
        await until(functools.partial(scrolled_to, 0))


@pytest.mark.nightly
@pytest.mark.parametrize(("read", "loads"), [(-1.0, 1), (0.0, 2)], ids=["before the load", "after it began"])
async def test_the_first_live_event_loads_a_page_again_only_if_it_may_be_newer(
    browser: Browser, shop: Shop, read: float, loads: int
) -> None:
    asked: list[str] = []
    is_loaded = asyncio.Event()

    def count(request: Request) -> None:
        if "/api/v1/audit" in request.url:
            asked.append(request.url)

    def note(request: Request) -> None:
        if "/api/v1/audit" in request.url:
            is_loaded.set()

    async with visiting(browser, shop) as visit:
        page = visit.page
        page.on("request", count)
        page.on("requestfinished", note)
        overview = await (await page.request.get(f"{shop.base}api/v1/overview")).json()
        before = datetime.fromisoformat(overview["now"])

        async def one_event(route: Route) -> None:
            await is_loaded.wait()
            at = (before if read < 0 else datetime.now(UTC)) + timedelta(seconds=read)
            await route.fulfill(**events(with_silent_nodes(overview, 7, at)))

        await page.route("**/api/v1/stream", one_event)
        await page.clock.install()
        await visit.go("audit")
        # The event has arrived.
        await expect(page.locator(".nav-count").filter(has_text="7")).to_be_visible()
        # Any refresh that an update has scheduled is due now.
        await page.clock.fast_forward(60_000)
        await until(lambda: len(asked) >= loads)
        await page.evaluate("fetch('api/v1/session').then((answer) => answer.text())")
        assert len(asked) == loads, asked


@pytest.mark.nightly
async def test_a_viewer_finds_tasks_and_cannot_cancel_a_batch(browser: Browser, shop: Shop) -> None:
    task = shop.app.tasks["send_mail"].using(delay=3600)
    pending = await batch([task.call("a")]).enqueue()
    async with visiting(browser, shop, who="vic") as visit:
        await visit.go(f"batches/{pending.id}")
        cancel = visit.page.get_by_role("button", name="Cancel the pending jobs")
        await expect(cancel).to_have_attribute("aria-disabled", "true")
        await visit.page.keyboard.press("/")
        # A search in the text of payloads would reveal what is hidden from them.
        await visit.page.keyboard.type("anything")
        found = visit.page.get_by_role("listbox", name="Found").get_by_role("option")
        await expect(found.last).to_have_text("jobsShow jobs task anything")
