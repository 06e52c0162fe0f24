"""Take the pictures of `docs/dashboard.md` from a shop that works: `python docs/dashboard_picture.py` writes them.

A quarter of an hour of its life passes in virtual time; what is seen, in Chromium, is the shop as it goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Literal

import uvicorn
from playwright.async_api import ViewportSize, async_playwright

from headgate import Concurrency, Cron, Headgate, Mutex, RateLimit, RetryPolicy
from headgate.clock import SECOND, Clock, SystemClock, sleep
from headgate.http import CallbackAuth, User, dashboard
from headgate.testing.virtual_time import VirtualClock, run_virtual

FOLDER = Path(__file__).parent
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
SIZE: ViewportSize = {"width": 1280, "height": 860}
SCHEMES: dict[str, Literal["light", "dark"]] = {"dashboard.png": "light", "dashboard-dark.png": "dark"}

PAST = 15 * 60
"""Virtual seconds that the shop has worked before anybody looks."""

PATIENCE = 75
"""Real seconds in which they pass; the shop goes on when they are over, so that nothing is missing between."""

TENANTS = ("acme", "globex", "initech", "umbrella", "hooli", "stark", "wayne", "wonka", "cyberdyne", "tyrell")
BACKLOG = {"acme": 1840, "hooli": 512, "wonka": 307}


def make_app(url: str, clock: Clock) -> Headgate:
    app = Headgate(url, clock=clock, synchronous="OFF")
    app.queue("default", concurrency=20)
    app.queue("mail", concurrency=12)
    app.queue("reports", concurrency=4)

    async def works_for(seconds: float) -> None:
        await sleep(clock, random.uniform(0.4, 1.6) * seconds)

    @app.task(limits=[RateLimit("15/m", burst=5, key="{tenant}", name="shop-api")])
    async def sync_orders(tenant: str, page: int) -> int:
        await works_for(1.2)
        return page

    @app.task(limits=[RateLimit("600/m", burst=20, name="payments")], retry=RetryPolicy(retries=2, delay=20))
    async def capture_payment(order: int) -> str:
        await works_for(0.4)
        if random.random() < 0.03:
            raise TimeoutError("the bank did not answer within 10 s")
        return "captured"

    @app.task(queue="mail", retry=RetryPolicy(retries=0))
    async def send_mail(to: str, template: str) -> None:
        await works_for(0.1 + 0.25 * (random.random() < 0.1))
        if random.random() < 0.004:
            raise ValueError(f"mailbox unavailable: {to}")

    @app.task(queue="reports", limits=[Concurrency(2, key="{warehouse}", name="warehouse")])
    async def count_stock(warehouse: str) -> None:
        await works_for(12)

    @app.task(queue="reports", limits=[Mutex("ledger")])
    async def close_books(day: str) -> None:
        await works_for(25)

    @app.schedule(Cron("0 * * * *"), name="hourly-stock")
    @app.task(queue="reports")
    async def hourly_stock() -> None:
        await works_for(5)

    return app


async def trade(app: Headgate, clock: Clock, seconds: float) -> None:
    """What customers do, busier and calmer in turn."""
    tasks = app.tasks
    for second in range(int(seconds)):
        busy = 1 + 0.35 * random.random() + (0.8 if 300 < second < 480 else 0)
        for _ in range(int(20 * busy)):
            to = f"customer{random.randint(1, 9999)}@example.org"
            await tasks["send_mail"].enqueue(to, random.choice(["receipt", "shipping", "newsletter"]))
        for _ in range(int(4 * busy)):
            await tasks["capture_payment"].enqueue(random.randint(10_000, 99_999))
        await tasks["sync_orders"].enqueue(random.choice(TENANTS), random.randint(1, 9))
        if second % 20 == 0:
            await tasks["count_stock"].enqueue(random.choice(["zurich", "lugano"]))
        if second % 45 == 0:
            await tasks["close_books"].enqueue("2026-11-21")
        await sleep(clock, 1)


def live_a_while(url: str) -> None:
    async def main(clock: VirtualClock) -> None:
        app = make_app(url, clock)
        async with app:
            for tenant, jobs in BACKLOG.items():
                await app.tasks["sync_orders"].enqueue_many([(tenant, page) for page in range(jobs)])
            for hours in range(1, 49):
                await (
                    app.tasks["send_mail"].using(delay=timedelta(hours=hours)).enqueue("all@example.org", "newsletter")
                )
            await trade(app, clock, PAST)

    run_virtual(main, seed=7, start=SystemClock().now() + (PATIENCE - PAST) * SECOND)


async def show(url: str, begins_at: int) -> None:
    clock = SystemClock()
    await sleep(clock, max(0, begins_at - clock.now()) / SECOND)
    app = make_app(url, clock)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    everybody = CallbackAuth(lambda request: User("local", "admin"))
    server = uvicorn.Server(
        uvicorn.Config(dashboard(app, auth=everybody, title="Northwind"), port=port, log_level="warning")
    )
    async with app:
        serving = asyncio.create_task(server.serve())
        trading = asyncio.create_task(trade(app, clock, 600))
        await sleep(clock, 25)
        await take_pictures(f"http://127.0.0.1:{port}/")
        trading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await trading
        server.should_exit = True
        await serving


async def take_pictures(base: str) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = await browser.new_page(viewport=SIZE, reduced_motion="reduce")
        await page.goto(base)
        await page.locator("hg-chart svg").first.wait_for()
        for name, scheme in SCHEMES.items():
            await page.emulate_media(color_scheme=scheme)
            await page.wait_for_timeout(1500)
            await page.screenshot(path=FOLDER / name)
        await browser.close()


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    random.seed(7)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        file = "sqlite:///shop.db"
        begins_at = SystemClock().now() + PATIENCE * SECOND
        live_a_while(file)
        asyncio.run(show(file, begins_at))
