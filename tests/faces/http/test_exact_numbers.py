"""Numbers in the browser: what the page shows of a payload is what was enqueued, digit by digit."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.async_api import async_playwright

from headgate import Headgate
from headgate.http import dashboard
from tests.faces.http.stage import EVERYBODY

CHROMIUM = Path("/usr/bin/chromium")


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM.exists(), reason="needs a Chromium")
async def test_an_id_of_64_bits_is_shown_as_it_was_enqueued() -> None:
    app = Headgate("memory://")

    @app.task
    async def follow(account: int, at: dict[str, Any]) -> None: ...

    site = dashboard(app, auth=EVERYBODY)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(site, log_level="warning"))
        async with app.open():
            job = await follow.enqueue(9007199254740993, {"post": 1747239000000000001})
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            try:
                async with async_playwright() as playwright:
                    browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                    page = await browser.new_page()
                    await page.goto(f"http://127.0.0.1:{listening.getsockname()[1]}/jobs/{job.id}")
                    shown = page.locator(".json-body").first
                    await shown.wait_for()
                    assert "9007199254740993" in await shown.inner_text()
                    assert "1747239000000000001" in await shown.inner_text()
                    await browser.close()
            finally:
                site.stream.end()
                server.should_exit = True
                await serving
