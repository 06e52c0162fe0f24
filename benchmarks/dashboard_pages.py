"""Look at each page of the dashboard on a store of a given size: requests, bytes, times, answers, pictures.

`python -m benchmarks.dashboard_pages --page` fills stores of a million jobs on both databases, measures, and writes
docs/dashboard-speed.md. `--pictures FOLDER` takes pictures instead, by default of an empty and of a small store.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

import click
import httpx
from playwright.async_api import Browser, BrowserContext, async_playwright

from benchmarks.grown_store import grow, grown_store
from benchmarks.runner import ROOT
from benchmarks.worker_app import LIMIT

JOBS = {"empty": 0, "small": 1_000, "full": 1_000_000}
"""How many jobs wait in a store of that size, and about as many are final."""

JOBS_PER_KEY = 5
PAGE = ROOT / "docs" / "dashboard-speed.md"
SCREENS = {"wide": (1440, 900), "narrow": (390, 844)}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")

LATENCY = 300
"""Milliseconds of each request of a cold load."""

THROUGHPUT = 200_000
"""Bytes per second of a cold load."""

COLD_LOADS = 3
WARM_LOADS = 5
ASKS = 20
"""How often each list is read; the first answer counts, too."""

FAST = 10
"""Lists whose slowest answer took at most so many milliseconds are only counted."""

LISTS = {
    "jobs": "jobs",
    "waiting jobs": "jobs?state=waiting",
    "failed jobs": "jobs?state=failed",
    "throttled jobs": "jobs?view=throttled",
    "scheduled jobs": "jobs?view=scheduled",
    "blocked jobs": "jobs?view=blocked",
    "jobs of a task": "jobs?task=gated",
    "failed jobs of a task": "jobs?task=ungated&state=failed",
    "jobs of a queue": "jobs?queue=rare",
    "jobs of a key": f"jobs?limit={LIMIT}&key=acme-1",
    "waiting jobs of a key": f"jobs?limit={LIMIT}&key=acme-1&state=waiting",
    "jobs of a unique key": "jobs?unique_key=key-1",
    "jobs of a schedule": "jobs?schedule=nightly",
    "jobs of a node": "jobs?node=node-0",
    "jobs with a header": "jobs?header=tenant%3Dacme",
    "jobs with an error type": "jobs?error=ValueError",
    "oldest waiting jobs": "jobs?state=waiting&order=oldest",
    "count of failed jobs": "jobs/count?state=failed",
    "keys of limits": "limits",
    "keys by prefix": "limits?prefix=acme-1",
    "next jobs of a key": f"limits/{LIMIT}/next-jobs?key=acme-1",
    "audit of a limit": f"limits/{LIMIT}/audit",
    "audit of a key": f"limits/{LIMIT}/audit?key=acme-1",
    "batches": "batches",
    "pending batches": "batches?pending_only=true",
    "queues": "queues",
    "nodes": "nodes",
    "audit log": "audit",
    "search by name": "find?q=acme-19",
    "overview": "overview",
}
"""What is asked of the API, by what it returns."""

SHOWN = """
window.shown = new Promise((resolve) => {
  const look = () =>
    document.querySelector("main[aria-busy=false] h1") ? resolve(performance.now()) : requestAnimationFrame(look);
  look();
});
"""
"""Finds how long a load took until the first frame with data (ms), in the page: Playwright looks twice a second."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the first load of a page took, and later ones."""

    name: str
    requests: int
    kilobytes: float
    cold: float
    warm: float


class Dashboard:
    """`headgate dashboard` in a process of its own."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.api = f"{base}api/v1/"
        credentials = base64.b64encode(b"ada:a password").decode()
        self.headers = {"Authorization": f"Basic {credentials}"}

    async def is_ready(self) -> None:
        """Wait until it answers, and until it has counted the final jobs."""
        async with httpx.AsyncClient(base_url=self.api, headers=self.headers, timeout=60) as api:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    seen = (await api.get("overview")).raise_for_status().json()
                    if seen["finals_at"] is not None:
                        return
                await asyncio.sleep(0.1)


@contextlib.contextmanager
def served(url: str, folder: Path) -> Iterator[Dashboard]:
    users = folder / "users"
    users.touch(mode=0o600)
    users.write_text("ada:admin:a password\n")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    program = [str(Path(sys.executable).with_name("headgate")), "dashboard", "benchmarks.worker_app:app"]
    environment = {**os.environ, "HEADGATE_URL": url}
    with (folder / "dashboard.log").open("ab") as log:
        process = subprocess.Popen(
            [*program, "--port", str(port), "--users-file", str(users)],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        yield Dashboard(f"http://127.0.0.1:{port}/")
    finally:
        process.terminate()
        process.wait()


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        raise click.ClickException("there is no Chromium: `make browser` installs one")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        await browser.close()


async def pages_of(dashboard: Dashboard) -> dict[str, str]:
    """Return every page by its name. Pages of one job, batch or failure are there if the store has one."""
    async with httpx.AsyncClient(base_url=dashboard.api, headers=dashboard.headers, timeout=60) as api:

        async def first(path: str) -> str | None:
            items = (await api.get(path)).json()["items"]
            return str(items[0]["id"]) if items else None

        of_one = {
            "job": ("jobs", await first("jobs?view=throttled&count=1")),
            "job-failed": ("jobs", await first("jobs?state=failed&count=1")),
            "batch": ("batches", await first("batches?count=1")),
            "failure": ("failures", await first("jobs?state=failed&count=1")),
        }
    lists = ("overview", "queues", "tasks", "jobs", "batches", "failures", "limits", "schedules", "nodes", "audit")
    return {
        **{name: name for name in lists},
        "queue": "queues/default",
        "task": "tasks/gated",
        "jobs-failed": "jobs?state=failed",
        "limit": f"limits/{LIMIT}",
        "key": f"limits/{LIMIT}?key=acme-1",
        **{name: f"{path}/{id}" for name, (path, id) in of_one.items() if id is not None},
    }


async def context_of(browser: Browser, dashboard: Dashboard, **options: Any) -> BrowserContext:
    context = await browser.new_context(extra_http_headers=dashboard.headers, locale="en-US", **options)
    context.set_default_timeout(60_000)
    return context


async def load(browser: Browser, dashboard: Dashboard, name: str, where: str) -> Load:
    """Load a page with empty caches over a slow connection, then again as a browser has it."""
    cold = [await _load(browser, dashboard, name, where, warm_loads=0) for _ in range(COLD_LOADS - 1)]
    last = await _load(browser, dashboard, name, where, warm_loads=WARM_LOADS)
    return replace(last, cold=median(each.cold for each in (*cold, last)))


async def _load(browser: Browser, dashboard: Dashboard, name: str, where: str, *, warm_loads: int) -> Load:
    context = await context_of(browser, dashboard)
    page = await context.new_page()
    network = await context.new_cdp_session(page)
    asked: list[str] = []
    received = 0

    def count(event: Any) -> None:
        nonlocal received
        received += int(event.get("encodedDataLength", 0))

    network.on("Network.requestWillBeSent", lambda event: asked.append(event["request"]["url"]))
    network.on("Network.loadingFinished", count)
    await network.send("Network.enable")
    slow = {"offline": False, "latency": LATENCY, "downloadThroughput": THROUGHPUT, "uploadThroughput": THROUGHPUT}
    await network.send("Network.emulateNetworkConditions", slow)
    await page.add_init_script(SHOWN)

    async def once() -> float:
        await page.goto(dashboard.base + where, wait_until="commit")
        return float(await page.evaluate("window.shown"))

    cold = await once()
    requests, kilobytes = len([url for url in asked if not url.startswith("data:")]), received / 1000
    fast = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    await network.send("Network.emulateNetworkConditions", fast)
    warm = [await once() for _ in range(warm_loads)]
    await context.close()
    return Load(name, requests, kilobytes, cold, median(warm) if warm else 0)


async def measure_pages(dashboard: Dashboard) -> list[Load]:
    await dashboard.is_ready()
    async with chromium() as browser:
        pages = await pages_of(dashboard)
        # The first load of a browser starts its processes.
        await _load(browser, dashboard, *next(iter(pages.items())), warm_loads=0)
        return [await load(browser, dashboard, *each) for each in pages.items()]


async def measure_lists(dashboard: Dashboard) -> dict[str, tuple[float, float]]:
    """Return the median and the longest time of each answer, in milliseconds."""
    await dashboard.is_ready()
    found = {}
    async with httpx.AsyncClient(base_url=dashboard.api, headers=dashboard.headers, timeout=60) as api:
        await api.get("session")
        for name, path in LISTS.items():
            times = []
            for _ in range(ASKS):
                began = time.perf_counter()
                answer = await api.get(path)
                times.append((time.perf_counter() - began) * 1000)
                if answer.status_code != 200:
                    raise RuntimeError(f"{path} is answered with {answer.status_code}: {answer.text[:300]}")
            found[name] = (median(times), max(times))
    return found


async def take_pictures(dashboard: Dashboard, folder: Path, size: str) -> int:
    """Take a picture of each page on each screen, in light and in dark colours. Returns how many there are."""
    await dashboard.is_ready()
    taken = 0
    async with chromium() as browser:
        wanted = await pages_of(dashboard)
        for screen, (width, height) in SCREENS.items():
            for scheme in SCHEMES:
                context = await context_of(
                    browser,
                    dashboard,
                    viewport={"width": width, "height": height},
                    color_scheme=scheme,
                    reduced_motion="reduce",
                )
                page = await context.new_page()
                for name, where in wanted.items():
                    await page.goto(dashboard.base + where)
                    await page.locator("main[aria-busy=false] h1").wait_for()
                    picture = folder / f"{size}-{name}-{screen}-{scheme}.png"
                    await page.screenshot(path=picture, full_page=screen == "narrow")
                    taken += 1
                await context.close()
    return taken


@contextlib.contextmanager
def dashboard_on(store: str, size: str, jobs: int) -> Iterator[Dashboard]:
    """Fill a store, and serve its dashboard."""
    with tempfile.TemporaryDirectory(prefix="dashboard-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        began = time.monotonic()
        grow(folder, store, size, jobs, max(1, jobs // JOBS_PER_KEY))
        click.echo(
            f"{store}, {size}: {jobs:,} waiting jobs and their finished ones in {time.monotonic() - began:.0f} s"
        )
        with grown_store(folder, store, size) as url, served(url, folder) as dashboard:
            yield dashboard


def pages_table(loads: Sequence[Load]) -> str:
    lines = [
        "| page | requests | KB | cold, ms | warm, ms |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(
            f"| {each.name} | {each.requests} | {each.kilobytes:.0f} | {each.cold:,.0f} | {each.warm:.0f} |"
            for each in loads
        ),
    ]
    return "\n".join(lines)


def lists_table(found: dict[str, dict[str, tuple[float, float]]]) -> str:
    lines = [
        f"| list | {' | '.join(f'{store}, median | longest' for store in found)} |",
        f"| --- |{' ---: | ---: |' * len(found)}",
    ]
    slow = [name for name in LISTS if any(times[name][1] > FAST for times in found.values())]
    for name in slow:
        answers = (f"{middle:.1f} | {longest:.1f}" for middle, longest in (times[name] for times in found.values()))
        lines.append(f"| {name} | {' | '.join(answers)} |")
    lines += ["", f"The other {len(LISTS) - len(slow)} took at most {FAST} ms."]
    return "\n".join(lines)


def report(jobs: int, loads: Sequence[Load], found: dict[str, dict[str, tuple[float, float]]]) -> str:
    """Return the page of the docs."""
    return f"""# How fast the dashboard is

How long pages and lists take on a store of {jobs:,} waiting jobs on {jobs // JOBS_PER_KEY:,} keys and about as many
finished jobs. Measure it on your machine with `make dashboard-speed`, which writes this page.

## Pages

Until you see a page's data, on SQLite. *Cold*: nothing is cached, each request takes {LATENCY} ms, and
{THROUGHPUT // 1000} KB arrive per second. *Warm*: files are cached, and the connection is local.

{pages_table(loads)}

## Lists and filters

Until the API has answered over HTTP, in milliseconds: the median and the longest of {ASKS} requests in a row.

{lists_table(found)}
"""


@click.command()
@click.option("--store", "stores", type=click.Choice(["sqlite", "postgres"]), multiple=True, help="Default: both.")
@click.option("--jobs", type=click.IntRange(1), default=JOBS["full"], show_default=True, help="Jobs that wait.")
@click.option("--page", "is_page", is_flag=True, help="Write docs/dashboard-speed.md.")
@click.option("--pictures", type=click.Path(file_okay=False, path_type=Path), help="Take pictures into this folder.")
@click.option("--size", "sizes", type=click.Choice(list(JOBS)), multiple=True, help="Of pictures: empty and small.")
def main(stores: Sequence[str], jobs: int, is_page: bool, pictures: Path | None, sizes: Sequence[str]) -> None:
    """Measure the pages and lists of the dashboard, or take pictures of all pages."""
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
        for size in sizes or ("empty", "small"):
            with dashboard_on("sqlite", size, jobs if size == "full" else JOBS[size]) as dashboard:
                taken = asyncio.run(take_pictures(dashboard, pictures, size))
            click.echo(f"{taken} pictures of the {size} store in {pictures}")
        return
    found: dict[str, dict[str, tuple[float, float]]] = {}
    loads: list[Load] = []
    for store in stores or ("sqlite", "postgres"):
        with dashboard_on(store, "full", jobs) as dashboard:
            found[{"sqlite": "SQLite", "postgres": "PostgreSQL"}[store]] = asyncio.run(measure_lists(dashboard))
            loads = loads or asyncio.run(measure_pages(dashboard))
    text = report(jobs, loads, found)
    click.echo(text)
    if is_page:
        PAGE.write_text(text)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.dashboard_pages")
