"""Where it is mounted: by itself, below a path of another app, and behind a proxy that has a path of its own."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import quote

import fastapi
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from headgate import Headgate, NotOpen
from headgate.http import dashboard
from headgate.http.overview_poller import OverviewPoller
from headgate.http.reports import ReportMaker
from headgate.http.static_files import PAGES
from tests.faces.http.stage import EVERYBODY, HOSTILE, LIMIT, browser, client, make_app
from tests.until import patient


def starlette_host(site: Starlette) -> Starlette:
    return Starlette(routes=[Mount("/admin/jobs", site)])


def fastapi_host(site: Starlette) -> Starlette:
    host = fastapi.FastAPI()
    host.mount("/admin/jobs", site)
    return host


@pytest.mark.parametrize(
    ("mount", "base"),
    [
        (lambda site: site, "/"),
        (starlette_host, "/admin/jobs/"),
        (fastapi_host, "/outer/admin/jobs/"),
    ],
    ids=["alone", "starlette", "fastapi"],
)
async def test_pages_files_and_api_are_found_wherever_it_is_mounted(mount: object, base: str) -> None:
    assert callable(mount)
    app = make_app()
    below = base.rstrip("/")
    root_path = "/outer" if base.startswith("/outer") else ""
    async with app.open(), client(mount(dashboard(app, auth=EVERYBODY)), root_path=root_path) as caller:
        await app.tasks["sync"].enqueue(HOSTILE)
        for page in PAGES:
            path = page.replace("{id}", "some-id").replace("{limit:path}", quote(LIMIT)).replace("{name:path}", "a/b")
            answer = await caller.get(f"{below}{path}")
            assert answer.status_code == 200, path
            assert f'<base href="{base}">' in answer.text
            assert answer.headers["content-type"].startswith("text/html")
        sheets = await caller.get(f"{below}/static/app.css")
        assert sheets.headers["content-type"].startswith("text/css")
        again = await caller.get(f"{below}/static/app.css", headers={"If-None-Match": sheets.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        # The page names files by addresses that change with them, so that they are asked for once.
        (named,) = re.findall(r'src="(static/[^"]+/app.js)"', answer.text)
        main = await caller.get(f"{below}/{named}")
        assert (main.status_code, main.headers["cache-control"]) == (200, "private, max-age=31536000, immutable")
        older = await caller.get(f"{below}/static/0123456789abcdef/app.js")
        assert (older.content, older.headers["cache-control"]) == (main.content, "no-cache")
        assert (await caller.get(f"{below}/static/../site.py")).status_code == 404
        assert (await caller.get(f"{below}/static/%2e%2e/site.py")).status_code == 404
        assert (await caller.get(f"{below}/api/v1/jobs")).json()["items"][0]["task"] == "sync"
        token = (await caller.get(f"{below}/api/v1/session")).json()["token"]
        changed = await caller.post(f"{below}/api/v1/queues/default/pause", headers={"X-Headgate-Token": token})
        assert changed.json() == {"changed": True}


async def test_a_path_of_a_mount_is_data_in_the_page_as_any_other() -> None:
    app = make_app()
    host = Starlette(routes=[Mount('/"><script>', dashboard(app, auth=EVERYBODY))])
    async with app.open(), client(host) as caller:
        answer = await caller.get('/"><script>/')
        assert "<script>/" not in answer.text
        assert '<base href="/%22%3E%3Cscript%3E/">' in answer.text


async def test_the_dashboard_opens_the_app_with_the_first_request_and_closes_it(tmp_path: Path) -> None:
    app = make_app(f"sqlite:///{tmp_path}/jobs.db", synchronous="OFF")
    await app.migrate()
    site = dashboard(app, auth=EVERYBODY)
    with pytest.raises(NotOpen):
        _ = app.admin
    async with client(site) as caller:
        assert (await caller.get("/api/v1/overview")).status_code == 200
        assert app.admin.address.endswith("jobs.db")
        await site.close()
        await site.close()
    with pytest.raises(NotOpen):
        _ = app.admin


def test_the_dashboard_starts_again_on_another_loop(tmp_path: Path) -> None:
    """As under a test client, or a server that reloads what it serves: its lifespan begins and ends more than once."""
    app = make_app(f"sqlite:///{tmp_path}/jobs.db", synchronous="OFF")
    asyncio.run(app.migrate())
    site = dashboard(app, auth=EVERYBODY)

    async def serve() -> None:
        async with site.router.lifespan_context(site), client(site) as caller:
            # All at once, so that they wait for each other while it opens.
            answers = await asyncio.gather(*(caller.get("/api/v1/overview") for _ in range(5)))
            assert {answer.status_code for answer in answers} == {200}
            stream = await site.stream.response(Request({"type": "http", "headers": []}), lambda overview: overview)
            events = aiter(stream.body_iterator)
            assert b"retry" in await anext(events)
            assert b"overview" in await anext(events)
            site.stream.end()
            assert [event async for event in events] == []

    for _ in range(3):
        asyncio.run(serve())
        with pytest.raises(NotOpen):
            _ = app.admin


async def test_an_app_that_other_code_opened_stays_open() -> None:
    app = make_app()
    site = dashboard(app, auth=EVERYBODY)
    async with app.open():
        async with client(site) as caller:
            assert (await caller.get("/api/v1/overview")).status_code == 200
        await site.close()
        assert list(await app.admin.counts()) == []


async def test_an_app_opened_by_threads_is_used_on_their_loop(postgres_url: str, postgres_schema: str) -> None:
    """A view of the host that enqueues with `.sync` opens the app on a loop of its own, with its connections."""
    app = make_app(postgres_url, schema=postgres_schema)
    site = dashboard(app, auth=EVERYBODY)
    try:
        await asyncio.to_thread(app.tasks["answer"].sync.enqueue, "why?")
        async with client(site) as caller:
            for path in ("/api/v1/jobs", "/api/v1/overview", "/api/v1/queues", "/api/v1/session"):
                answers = await asyncio.gather(*(caller.get(path) for _ in range(20)))
                assert {answer.status_code for answer in answers} == {200}, answers[0].text
            stream = await site.stream.response(Request({"type": "http", "headers": []}), lambda overview: overview)
            events = aiter(stream.body_iterator)
            assert [b"retry" in await anext(events), b"overview" in await anext(events)] == [True, True]
            site.stream.end()
            assert [event async for event in events] == []
    finally:
        await site.close()
        await asyncio.to_thread(app.sync.close)


async def test_a_change_is_noted_in_the_thread_that_reads_overviews_and_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    for kind in (OverviewPoller, ReportMaker):
        monkeypatch.setattr(kind, "changed", lambda _: threads.append(threading.current_thread().name))
    app = make_app(f"sqlite:///{tmp_path}/jobs.db", synchronous="OFF")
    try:
        job = await asyncio.to_thread(app.tasks["answer"].sync.enqueue, "why?")
        async with browser(app) as caller:
            assert (await caller.post(f"/api/v1/jobs/{job.id}/cancel")).json() == {"changed": True}
            assert threads == ["headgate-sync"] * 2
    finally:
        await asyncio.to_thread(app.sync.close)


def test_an_app_that_was_opened_by_a_mounted_dashboard_is_closed_with_the_loop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(f"sqlite:///{tmp_path}/jobs.db", synchronous="OFF")
    asyncio.run(app.migrate())

    async def serve() -> Headgate:
        async with client(starlette_host(dashboard(app, auth=EVERYBODY))) as caller:
            assert (await caller.get("/admin/jobs/api/v1/overview")).status_code == 200
        _ = app.admin
        return app

    asyncio.run(serve())
    with pytest.raises(NotOpen):
        _ = app.admin
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


@pytest.mark.slow
def test_without_its_packages_the_dashboard_names_what_is_missing() -> None:
    program = """
import sys
import headgate
assert not any(name.split(".")[0] in ("starlette", "uvicorn") for name in sys.modules)
sys.modules["starlette"] = None
try:
    import headgate.http
except headgate.DeclarationError as error:
    print(error)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=patient(15), check=True
    )
    assert "pip install 'headgate[dashboard]'" in ran.stdout


async def test_a_head_is_answered_for_pages_and_never_streams() -> None:
    app = make_app()
    async with app.open(), client(dashboard(app, auth=EVERYBODY)) as caller:
        assert (await caller.head("/jobs")).status_code == 200
        assert (await caller.head("/api/v1/overview")).content == b""
        assert (await caller.head("/api/v1/stream")).status_code == 405
