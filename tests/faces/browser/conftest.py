"""A worker process, a dashboard process, and a Chromium that looks at it; one of each for the tests of a store."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright, expect

from headgate import Headgate
from tests.faces.browser.shop import PASSWORDS, Seeds, make_app, seed
from tests.until import patient, until

ROOT = Path(__file__).parents[3]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)
APP = "-A tests.faces.browser.served:app"
"""How commands name the app of the shop."""

SIZES = {"wide": (1440, 900), "narrow": (390, 844)}

SOON = patient(15) * 1000
"""Milliseconds for which a page is waited for. What is live may be seconds old: the server reuses a count of jobs for
50 times as long as it took, an overview for 10 times, and a page loads again after 5 times."""

expect.set_options(timeout=SOON)

# What the hostile names and payloads call if a page takes them for anything but text, and what a policy has refused.
GUARD = """
window.owned = (which) => console.error("hostile text was executed", which);
addEventListener("securitypolicyviolation", (event) => console.error("refused by the policy", event.blockedURI));
"""


class Served:
    """A program in a process of its own."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.command = command
        self._environment = environment
        self.log = log
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.command,
                cwd=ROOT,
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def says(self, pattern: str) -> str:
        """Wait until the log of the running program has the pattern; return its first group."""

        def has_said() -> bool:
            return not self.is_running or re.search(pattern, self.log.read_text()) is not None

        await until(has_said, 20, self.log.read_text)
        if (said := re.search(pattern, self.log.read_text())) is None:
            raise RuntimeError(f"the program has ended: {self.log.read_text()}")
        return said[1]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal: SIGSTOP makes it hang, SIGCONT lets it continue."""
        if self._process is None:
            raise RuntimeError("the program does not run")
        self._process.send_signal(number)

    async def kill(self) -> None:
        """As a machine ends that loses its power."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            self._process = None


@dataclass(slots=True)
class Shop:
    """What runs, and where; `app` looks at the store from here, and programs in `environment` use the same one."""

    app: Headgate
    seeds: Seeds
    base: str
    server: Served
    store: str
    environment: dict[str, str]
    schema: str | None = None

    async def answers(self) -> None:
        """Wait until the dashboard does."""
        async with httpx.AsyncClient(auth=("ada", PASSWORDS["ada"])) as client, asyncio.timeout(patient(20)):
            while self.server.is_running:
                with suppress(httpx.TransportError):
                    if (await client.get(f"{self.base}api/v1/session")).status_code == 200:
                        return
                await asyncio.sleep(0.05)
        raise RuntimeError(f"the server has ended: {self.server.log.read_text()}")


@dataclass(slots=True)
class Visit:
    """A page of a user, and the messages of its console."""

    page: Page
    shop: Shop
    complaints: list[str] = field(default_factory=list)
    expected: set[str] = field(default_factory=set)
    """Parts of messages that are no complaints, whenever they arrive."""

    def note_error(self, said: ConsoleMessage) -> None:
        if said.type == "error":
            self.complaints.append(f"{said.text} {said.location['url']}")

    async def go(self, where: str) -> None:
        """Go there, and wait until it shows what it is about."""
        await self.page.goto(self.shop.base + where)
        await self.settled()

    async def sign_in(self, who: str, where: str = "login") -> None:
        """Open the page, sign in, and drop the console messages of the refused request before it."""
        await self.page.goto(self.shop.base + where)
        await self.page.get_by_label("User name").fill(who)
        await self.page.get_by_label("Password").fill(PASSWORDS[who])
        await self.page.get_by_role("button", name="Sign in").click()
        await self.settled()
        self.forget_refusals()

    def forget_refusals(self, status: int = 401) -> None:
        """A browser complains of each answer with such a status, perhaps later; the sign-in page is one with 401."""
        self.expected.add(f"status of {status}")

    def unexpected(self) -> list[str]:
        return [each for each in self.complaints if not any(part in each for part in self.expected)]

    async def look(self, size: str, scheme: Any) -> None:
        """Look at the same page on another screen, in light or in dark colours."""
        width, height = SIZES[size]
        await self.page.set_viewport_size({"width": width, "height": height})
        await self.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")

    async def settled(self) -> None:
        await self.page.locator("main[aria-busy=false] h1").wait_for()

    async def press(self, name: str, *, exact: bool = True) -> None:
        await self.page.get_by_role("button", name=name, exact=exact).click()

    async def agree(self, name: str) -> None:
        """Say yes to the question that is open."""
        dialog = self.page.get_by_role("dialog")
        await dialog.get_by_role("button", name=name, exact=True).click()
        await dialog.wait_for(state="detached")


@pytest.fixture(scope="session")
def screenshots() -> Path | None:
    """Return the folder for pictures of all pages, $HEADGATE_TEST_SCREENSHOTS; without it none are taken."""
    asked = os.environ.get("HEADGATE_TEST_SCREENSHOTS")
    if asked is None:
        return None
    folder = Path(asked)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    if CHROMIUM is None:
        missing = "no Chromium: `make browser` installs one"
        if os.environ.get("CI") or os.environ.get("HEADGATE_TEST_STRICT"):
            pytest.fail(missing)
        pytest.skip(missing)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        await browser.close()


@asynccontextmanager
async def shop_on(store: str, folder: Path, url: str, **settings: str) -> AsyncIterator[Shop]:
    """A worker and a dashboard on that store, which has something of each kind in it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
    environment |= {
        "SHOP_URL": url,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    if "schema" in settings:
        environment["SHOP_SCHEMA"] = settings["schema"]
    programs = Path(sys.executable).parent
    worker = Served(
        [str(programs / "headgate"), "worker", "tests.faces.browser.served:app", "--grace", "0"],
        environment,
        folder / "worker.log",
    )
    server = Served(
        [str(programs / "uvicorn"), "tests.faces.browser.served:host", "--no-access-log", "--port", "0"],
        environment,
        folder / "server.log",
    )
    app = make_app(url, **settings)
    async with AsyncExitStack() as running:
        await running.enter_async_context(app.open())
        running.push_async_callback(worker.kill)
        await worker.start()
        running.push_async_callback(server.kill)
        await server.start()
        # It chooses a free port, and has the same one after it was killed.
        port = await server.says(r"running on http://127\.0\.0\.1:(\d+)")
        server.command += ["--port", port]
        base = f"http://127.0.0.1:{port}/ops/jobs/"
        try:
            seeds = await seed(app, folder)
        except TimeoutError as error:
            error.add_note(f"The worker said:\n{worker.log.read_text()}")
            raise
        shop = Shop(app, seeds, base, server, store, environment, settings.get("schema"))
        await shop.answers()
        yield shop


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    async with shop_on("sqlite", folder, f"sqlite:///{folder}/shop.db") as shop:
        yield shop


@asynccontextmanager
async def visiting(browser: Browser, shop: Shop, *, who: str = "ada") -> AsyncIterator[Visit]:
    """Open the dashboard. Raises for errors in its console."""
    width, height = SIZES["wide"]
    context = await browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="light",
        reduced_motion="reduce",
    )
    context.set_default_timeout(SOON)
    visit = Visit(await context.new_page(), shop)
    try:
        await context.add_init_script(GUARD)
        visit.page.on("console", lambda said: visit.note_error(said))
        visit.page.on("pageerror", lambda error: visit.complaints.append(str(error)))
        visit.page.on("dialog", lambda dialog: visit.complaints.append(f"a dialog: {dialog.message}"))
        await visit.sign_in(who)
        yield visit
    finally:
        # A test's handler that still reads an answer would fail when its page is gone.
        await visit.page.unroute_all(behavior="ignoreErrors")
        await context.close()
    assert visit.unexpected() == []


def with_silent_nodes(overview: Any, silent: int, now: datetime) -> Any:
    """Return an overview as of `now`; the number of its silent nodes, in the navigation, shows that it has arrived."""
    return overview | {"nodes": overview["nodes"] | {"silent": silent}, "now": now.isoformat()}


def events(*overviews: Any) -> dict[str, Any]:
    """Return the answer of a live stream that sends these overviews at once; the browser does not ask again."""
    sent = (f"event: overview\nid: {id}\ndata: {json.dumps(each)}\n\n" for id, each in enumerate(overviews))
    return {"content_type": "text/event-stream", "body": f"retry: 600000\n{''.join(sent)}"}


async def axe_violations(visit: Visit, axe: str) -> list[str]:
    """Return what axe, whose source is passed, finds on the page."""
    # Evaluated by the debugger, which the policy of the page does not concern.
    await visit.page.evaluate(axe)
    received = await visit.page.evaluate(
        "axe.run(document, {resultTypes: ['violations'], rules: {'target-size': {enabled: true}}})"
        ".then(({violations}) => JSON.stringify(violations.map("
        "(each) => `${each.id}: ${each.nodes.slice(0, 3).map((node) => node.html.slice(0, 150)).join(' | ')}`)))"
    )
    return list(json.loads(received))
