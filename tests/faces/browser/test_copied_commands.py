"""The commands that the pages show, run in a shell as they are."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest
from playwright.async_api import Browser, Route, expect

from tests.faces.browser.conftest import APP, ROOT, Shop, visiting
from tests.faces.browser.shop import QUEUE
from tests.faces.browser.test_dashboard import pages

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


async def run(shop: Shop, command: str) -> tuple[int, str]:
    """Run a command in a shell. Returns its exit code and what it prints."""
    programs = Path(sys.executable).parent
    shell = await asyncio.create_subprocess_exec(
        *("bash", "-c", command),
        cwd=ROOT,
        env=shop.environment | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "LC_ALL": "C.UTF-8"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await shell.communicate()
    assert shell.returncode is not None
    return shell.returncode, printed.decode()


@pytest.mark.nightly
async def test_each_command_that_a_page_copies_works_as_it_is(browser: Browser, shop: Shop) -> None:
    found: set[str] = set()
    # Of a queue that there is not, the command says that as an error.
    known = [where for name, where in pages(shop).items() if name != "queue-unknown"]
    async with visiting(browser, shop) as visit:
        for where in [
            *known,
            "jobs?state=failed&queue=mail&enqueued_after=1h&text=a",
            "batches?state=pending",
        ]:
            await visit.go(where)
            found |= {
                await button.get_attribute("title") or "" for button in await visit.page.locator("button.copy").all()
            }
    # The log of a running job is followed until that ends.
    commands = sorted(each for each in found if "--follow" not in each)
    assert len(commands) >= 25
    turns = asyncio.Semaphore(2)

    async def failure(command: str) -> str | None:
        async with turns:
            code, printed = await run(shop, command)
            return None if code == 0 else f"{command}: {code}, {printed}"

    failures = [each for each in await asyncio.gather(*map(failure, commands)) if each is not None]
    assert not failures, "\n".join(failures)


@pytest.mark.nightly
async def test_a_copied_command_and_those_of_dialogs_do_what_they_say(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop) as visit:
        page = visit.page
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await visit.go(f"jobs/{shop.seeds.failed.id}")
        await visit.press("Copy as command")
        copied = await page.evaluate("navigator.clipboard.readText()")
        assert copied == f"headgate jobs explain {shop.seeds.failed.id} -A tests.faces.browser.served:app"
        code, printed = await run(shop, copied)
        assert (code, "ValueError" in printed) == (0, True)

        await visit.go(f"queues/{QUEUE}")
        await visit.press(f"Pause queue {QUEUE}")
        code, printed = await run(shop, await page.locator("dialog .command-line code").inner_text())
        assert (code, printed.endswith(f"{QUEUE} is paused\n")) == (0, True), printed
        await page.keyboard.press("Escape")
        await shop.app.admin.queues.resume(QUEUE)

        await visit.go("jobs?task=send_mail")
        await visit.press("Enqueue")
        await page.get_by_label("to, text").fill("it's 12345678901234567890")
        await page.get_by_label("words, JSON").fill('{\n  "n": 1\n}')
        command = await page.locator("dialog .command-line code").inner_text()
        assert "\n" not in command
        code, printed = await run(shop, command)
        assert code == 0, printed
        await page.keyboard.press("Escape")
        (job,) = await shop.app.admin.jobs(task="send_mail", text="12345678901234567890")
        payload = (await shop.app.admin.job(job.id)).record.payload
        assert payload == '{"to":"it\'s 12345678901234567890","words":{"n":1}}'


async def test_a_command_is_copied_on_plain_http(browser: Browser, shop: Shop) -> None:
    """The fault: browsers have no clipboard there, so that no button for copying did anything but show the text."""
    async with visiting(browser, shop) as visit:
        page = visit.page
        await page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
        await visit.go("nodes")
        await visit.press("Copy as command")
        await expect(page.get_by_role("status", name="Messages")).to_contain_text("The command was copied")
        await expect(page.get_by_role("button", name="Copy as command")).to_be_focused()
        field = page.get_by_role("searchbox").or_(page.get_by_role("combobox")).first
        await field.focus()
        await page.keyboard.press("Control+V")
        await expect(field).to_have_value(f"headgate nodes list {APP}")


@pytest.mark.nightly
async def test_a_reason_names_a_command_with_the_app(browser: Browser, shop: Shop) -> None:
    limits = shop.app.admin.limits
    await limits.pause("permits", key="warehouse")
    job = await shop.app.tasks["until_told"].enqueue(str(shop.seeds.signal))
    async with visiting(browser, shop) as visit:
        await visit.go(f"jobs/{job.id}")
        reason = await visit.page.locator(".why-reason").inner_text()
        command = re.search("`(.+)`", reason)
        assert command is not None, reason
        code, printed = await run(shop, command[1])
        assert code == 0, printed
    assert not any(each.is_paused for each in await limits.settings("permits"))
    await shop.app.admin.cancel_many([job.id])


async def test_each_command_in_a_reason_has_the_app(browser: Browser, shop: Shop) -> None:
    reset = """headgate limits reset 'it'"'"'s `a`' --key b"""
    reason = f"start one with `headgate worker`. Then it waits for limit 'it\\'s `a`' of key 'b' (`{reset}` ends that)"

    async def with_two_commands(route: Route) -> None:
        await route.fulfill(json=await (await route.fetch()).json() | {"reason": reason})

    async with visiting(browser, shop) as visit:
        await visit.page.route("**/explain", with_two_commands)
        await visit.go(f"jobs/{shop.seeds.scheduled.id}")
        shown = visit.page.locator(".why-reason")
        await expect(shown).to_contain_text(f"`headgate worker {APP}`")
        await expect(shown).to_contain_text(f"`{reset} {APP}`")


@pytest.mark.nightly
async def test_an_app_without_a_known_name_is_a_placeholder(browser: Browser, shop: Shop) -> None:
    async def unnamed(route: Route) -> None:
        session = await (await route.fetch()).json()
        await route.fulfill(json=session | {"app": None})

    async with visiting(browser, shop) as visit:
        page = visit.page
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await page.route("**/api/v1/session", unnamed)
        await visit.go("nodes")
        await visit.press("Copy as command")
        assert await page.evaluate("navigator.clipboard.readText()") == "headgate nodes list -A module:app"
        said = page.get_by_role("status", name="Messages")
        await expect(said).to_contain_text("Write the name of your app in place of module:app.")
