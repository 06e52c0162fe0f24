"""The examples of docs/frameworks.md, django.md and clients.md are the files that they name, and run unchanged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.until import patient

DOCS = Path(__file__).parents[3] / "docs"
CHAPTERS = re.split(
    r"^## ", (DOCS / "frameworks.md").read_text() + (DOCS / "clients.md").read_text(), flags=re.MULTILINE
)
MORE = {"Django": (DOCS / "django.md").read_text()}

# What a project has around the examples, and what one does with them.
DJANGO_SETTINGS = """
SECRET_KEY = "for tests"
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "jobs.db"}}
INSTALLED_APPS = ["shop", *("django.contrib." + name for name in "admin auth contenttypes messages sessions".split())]
ROOT_URLCONF = "myproject.urls"
ALLOWED_HOSTS = ["testserver"]
SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True, "OPTIONS": {
    "context_processors": [
        "django.template.context_processors.request",
        "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
    ]
}}]
MIGRATION_MODULES = {"admin": None, "auth": None, "contenttypes": None}
"""
USES = {
    "FastAPI": """
import asyncio, httpx, sqlite3
from exports import api, jobs
from orders import engine

async def main():
    client = httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://api")
    async with api.router.lifespan_context(api), client:
        assert (await client.get("/healthz")).json() == {"status": "ok"}
        job = (await client.post("/tenants/acme/sync")).json()["job"]
        with sqlite3.connect("jobs.db") as tables:
            tables.execute("CREATE TABLE tenant (name TEXT)")
        tables.close()
        joined = (await client.post("/tenants/globex")).json()["job"]
        await engine.dispose()
        export = (await client.post("/tenants/acme/exports")).json()["job"]
        assert (await client.post("/tenants/acme/exports")).json() == {"job": export, "is_new": False}
        async with jobs:
            assert await jobs.job(job).result() is await jobs.job(joined).result() is None
            assert (await client.get(f"/exports/{export}/result")).json() == {"file": "acme.csv"}
        status = (await client.get(f"/exports/{export}")).json()
        assert (status["state"], status["progress"]["fraction"]) == ("succeeded", 0.5)
        assert (await client.delete(f"/exports/{export}")).json() == {"cancelled": False}
        assert (await client.get("/exports/none")).status_code == 404

asyncio.run(main())
""",
    "Django": """
import asyncio, os
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
from headgate.contrib.django.worker import default as app

asyncio.run(app.migrate())
from shop.orders import place_order
from shop.tasks import sync_tenant

async def work(*ids):
    async with app:
        for id in ids:
            await app.job(id).result()

placed, synced = place_order(17), sync_tenant.enqueue("acme")
app.sync.close()
asyncio.run(work(placed.id, synced.id))
placed.refresh()
synced.refresh()
assert (placed.return_value, synced.return_value) == ("receipt of 17", "acme")

from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connections
from django.test import Client

call_command("migrate", run_syncdb=True, verbosity=0)
browser = Client()
assert browser.get("/headgate/")["Location"] == "/admin/login/?next=/headgate/"
browser.force_login(User.objects.create(username="ada", is_staff=True, is_superuser=True))
assert browser.get("/headgate/api/v1/session").json()["role"] == "admin"
assert {job["task"] for job in browser.get("/headgate/api/v1/jobs").json()["items"]} == {
    "shop.tasks.send_receipt", "shop.tasks.sync_tenant"
}
assert 'href="/headgate/"' in browser.get("/admin/").content.decode()
app.sync.close()
connections.close_all()
""",
    "Flask": """
import asyncio
from web import jobs, web

client = web.test_client()
job = client.post("/welcome/ada").json["job"]
assert client.get(f"/jobs/{job}").json == {"state": "waiting"}
assert client.get("/jobs/none").status_code == 404
jobs.sync.close()

async def work():
    async with jobs:
        assert await jobs.job(job).result() == "welcome of web to ada"

asyncio.run(work())
""",
    "httpx": """
import asyncio, httpx, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from client import fetch, fetch_without_await
from partner import app, pull

class Handler(BaseHTTPRequestHandler):
    refusals = 1

    def do_GET(self):
        refuses = self.path == "/busy" and Handler.refusals > 0
        Handler.refusals -= refuses
        self.send_response(429 if refuses else 200)
        self.send_header("Retry-After-Ms", "100")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_): pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True, kwargs={"poll_interval": 0.01}).start()
url = f"http://127.0.0.1:{server.server_port}"
assert asyncio.run(fetch(url)).status_code == fetch_without_await(url).status_code == 200

async def work():
    async with app:
        job = await pull.enqueue("acme", f"{url}/busy")
        assert await job.result() == 200
        assert (await job.status()).attempt == 1

asyncio.run(work())
server.shutdown()
server.server_close()
""",
    "requests and aiohttp": """
import asyncio, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from clients import fetch_by_aiohttp, fetch_by_requests, session

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_): pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True, kwargs={"poll_interval": 0.01}).start()
url = f"http://127.0.0.1:{server.server_port}"
assert asyncio.run(fetch_by_aiohttp(url)) == fetch_by_requests(url) == 200
session.close()
server.shutdown()
server.server_close()
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("framework", USES)
def test_the_examples_of_the_page_run_as_documented(framework: str, tmp_path: Path) -> None:
    (chapter,) = [each for each in CHAPTERS if each.startswith(framework)]
    for name, code in re.findall(r"```python\n# (\S+)\n(.*?)```", chapter + MORE.get(framework, ""), re.DOTALL):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text((DJANGO_SETTINGS if name == "settings.py" else "") + _for_this_django(code))
    (tmp_path / "use.py").write_text(USES[framework])
    ran = subprocess.run(
        [sys.executable, "-W", "error", "use.py"],
        env={name: value for name, value in os.environ.items() if name != "HEADGATE_URL"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=patient(15),
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def _for_this_django(code: str) -> str:
    from headgate.contrib.django import standard

    return code.replace("django.tasks", standard.NAME)
