"""The dashboard below a path of a Django project: its users, its roles, its protection, and the link in the admin."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from asgiref.sync import sync_to_async
from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connections
from django.test import AsyncClient, Client, override_settings
from django.urls import clear_script_prefix, path, resolve, set_script_prefix

from headgate import StorageUnavailable
from headgate.contrib.django import standard
from headgate.contrib.django.standard import InvalidTaskBackend, tasks
from tests.faces.contrib.django_shop import set_up
from tests.faces.http.stage import problem
from tests.internals import client_of
from tests.until import until

BASE = "/ops/headgate/"
PAGE = {"Accept": "text/html,*/*"}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with set_up(tmp_path_factory.getbasetemp() / "shop") as shop:
        call_command("migrate", run_syncdb=True, verbosity=0)
        # Both backends have the same app, and a task belongs to the one that declares it first.
        tasks.task_backends["default"].declare_all()
        users = get_user_model().objects
        for name, flags in {
            "ada": {"is_staff": True, "is_superuser": True},
            "grace": {"is_staff": True},
            "mallory": {},
            "eve": {"is_superuser": True},
        }.items():
            users.get_or_create(username=name, defaults=flags)
        yield shop


@pytest.fixture(autouse=True)
def _closed(shop: Any) -> Iterator[None]:
    yield
    connections.close_all()


@pytest_asyncio.fixture
async def ada(shop: Any) -> AsyncIterator[AsyncClient]:
    """A superuser under ASGI."""
    client = AsyncClient()
    await client.aforce_login(await get_user_model().objects.aget(username="ada"))
    yield client
    await sync_to_async(connections.close_all)()


def dashboard_urls(**options: Any) -> Any:
    from headgate.contrib.django.dashboard import dashboard_urls  # needs Django to be set up

    return dashboard_urls(**options)


def signed_in(name: str, **options: Any) -> Client:
    """A browser of that user, under WSGI, whose POSTs Django checks as it does in production."""
    client = Client(enforce_csrf_checks=True, **options)
    client.force_login(get_user_model().objects.get(username=name))
    return client


def token(client: Client, base: str = BASE) -> dict[str, str]:
    return {"X-Headgate-Token": client.get(f"{base}api/v1/session").json()["token"]}


# ------------------------------------------------------------------------------------------------------- who may see it


def test_staff_see_it_superusers_change_it_and_nobody_else_gets_in(shop: Any) -> None:
    anonymous = Client()
    page = anonymous.get(f"{BASE}jobs?state=failed", headers=PAGE)
    assert (page.status_code, page["Location"]) == (302, f"/admin/login/?next={BASE}jobs%3Fstate%3Dfailed")
    for user in (anonymous, signed_in("mallory"), signed_in("eve")):
        for below in ("api/v1/session", "api/v1/jobs", "api/v1/stream", "api/v1/nothing", "static/app.css"):
            assert user.get(f"{BASE}{below}").status_code == 401, below
        assert user.post(f"{BASE}api/v1/queues/default/pause").status_code == 401
    assert signed_in("mallory").get(BASE, headers=PAGE).status_code == 403
    sessions = {name: signed_in(name).get(f"{BASE}api/v1/session").json() for name in ("grace", "ada")}
    assert {name: (each["user"], each["role"]) for name, each in sessions.items()} == {
        "grace": ("grace", "viewer"),
        "ada": ("ada", "admin"),
    }


def test_the_project_decides_on_roles_and_an_inactive_user_has_none(shop: Any) -> None:
    grace = signed_in("grace")
    assert grace.get("/ops/beside/api/v1/session").json()["role"] == "operator"
    assert signed_in("ada").get("/ops/beside/api/v1/session").status_code == 401
    get_user_model().objects.filter(username="grace").update(is_active=False)
    try:
        assert grace.get("/ops/beside/api/v1/session").status_code == 401
    finally:
        get_user_model().objects.filter(username="grace").update(is_active=True)


def test_a_change_needs_the_token_of_the_dashboard_and_comes_from_its_own_pages(shop: Any) -> None:
    ada, pause, resume = signed_in("ada"), f"{BASE}api/v1/queues/mail/pause", f"{BASE}api/v1/queues/mail/resume"
    assert problem(ada.post(pause)) == "bad_token"
    from_elsewhere = {**token(ada), "Sec-Fetch-Site": "cross-site"}
    assert problem(ada.post(pause, headers=from_elsewhere)) == "other_site"
    forged = {**token(ada), "Origin": "https://elsewhere.example"}
    assert problem(ada.post(pause, headers=forged)) == "other_site"
    grace = signed_in("grace")
    assert problem(grace.post(pause, headers=token(grace))) == "not_allowed"
    assert problem(grace.post(pause, headers=token(ada))) == "not_allowed"
    same = {**token(ada), "Origin": "http://testserver"}
    assert ada.post(pause, headers=same).json() == {"changed": True}
    assert ada.post(resume, headers=same).json() == {"changed": True}
    newest = ada.get(f"{BASE}api/v1/audit").json()["items"][0]
    assert (newest["actor"], newest["action"]) == ("ada", "resume")


def test_a_token_is_valid_in_all_processes(shop: Any) -> None:
    shown = token(signed_in("ada"))
    with override_settings(ROOT_URLCONF=_Urls(path(BASE[1:], dashboard_urls()))):
        assert token(signed_in("ada")) == shown


def test_hosts_that_django_refuses_are_refused(shop: Any) -> None:
    assert signed_in("ada").get(f"{BASE}api/v1/session", headers={"Host": "evil.example"}).status_code == 400


# -------------------------------------------------------------------------------------------------------- where it is


@pytest.mark.parametrize("prefix", ["", "/outer"])
def test_pages_and_files_are_found_below_the_path_and_the_script_name(shop: Any, prefix: str) -> None:
    grace = signed_in("grace", SCRIPT_NAME=prefix) if prefix else signed_in("grace")
    for place in ("", "jobs", "limits/a/b"):
        page = grace.get(f"{BASE}{place}", headers=PAGE)
        assert (page.status_code, page["X-Frame-Options"]) == (200, "DENY")
        assert f'<base href="{prefix}{BASE}">' in page.text
    (named,) = re.findall(r'src="(static/[^"]+/app.js)"', page.text)
    main = grace.get(f"{BASE}{named}")
    assert (main.status_code, main["Cache-Control"]) == (200, "private, max-age=31536000, immutable")
    assert grace.get(f"{BASE}api/v1/overview")["Cache-Control"] == "no-store, private"
    assert grace.get(BASE[:-1])["Location"].endswith(f"{prefix}{BASE}")


def test_a_name_with_a_slash_is_deleted_where_the_server_has_its_address_as_it_was_sent(shop: Any) -> None:
    ada = signed_in("ada")
    shown = token(ada)
    address = f"{BASE}api/v1/schedules/a%2Fpause"
    assert problem(ada.delete(address, headers=shown)) == "not_found"
    sent = ada.delete(address, headers=shown, RAW_URI=address)
    assert problem(sent) == "schedule_not_found"


def test_a_backend_of_another_kind_is_named_when_the_dashboard_is_visited_as_tests_may_have_one(shop: Any) -> None:
    kind = f"{standard.NAME}.backends.dummy.DummyBackend"
    mounted = _Urls(path(BASE[1:], dashboard_urls()))
    ada = signed_in("ada")
    with (
        override_settings(ROOT_URLCONF=mounted, TASKS={"default": {"BACKEND": kind}}),
        pytest.raises(InvalidTaskBackend, match=rf"TASKS\['default'\] is {kind}; write TASKS = "),
    ):
        ada.get(f"{BASE}api/v1/session")


def test_a_path_without_a_slash_and_an_unknown_backend_are_refused(shop: Any) -> None:
    with pytest.raises(InvalidTaskBackend, match="no backend 'nightly', only beside, default"):
        dashboard_urls(backend="nightly")
    with (
        override_settings(ROOT_URLCONF=_Urls(path("headgate", dashboard_urls()))),
        pytest.raises(ImproperlyConfigured, match="needs a slash at its end"),
    ):
        signed_in("ada").get("/headgate/api/v1/session")


def test_with_atomic_requests_it_works_all_the_same(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for alias in connections:
        monkeypatch.setitem(connections.settings[alias], "ATOMIC_REQUESTS", True)
    assert signed_in("ada").get(f"{BASE}api/v1/session").status_code == 200


def test_a_store_that_does_not_answer_is_reported_as_such(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise StorageUnavailable("the database does not answer")

    monkeypatch.setattr(client_of(tasks.task_backends["default"].app).portal, "open", refuse)
    ada = signed_in("ada")
    assert ada.get(BASE, headers=PAGE).status_code == 200
    answer = ada.get(f"{BASE}api/v1/overview")
    assert (answer.status_code, problem(answer)) == (503, "storage_unavailable")


# --------------------------------------------------------------------------------------------------------- the stream


def test_under_wsgi_a_browser_is_not_given_a_stream_which_would_hold_a_thread(shop: Any) -> None:
    answer = signed_in("grace").get(f"{BASE}api/v1/stream", headers={"Accept": "text/event-stream"})
    # For an EventSource this is final, so that the front end polls.
    assert (answer.status_code, answer.content) == (204, b"")


def test_under_wsgi_a_stream_of_ended_jobs_is_refused_and_its_pages_are_not(shop: Any) -> None:
    """The fault: it ended after its first events; where none of 500 ends matched its filter, it never went on."""
    grace, address = signed_in("grace"), f"{BASE}api/v1/events"
    refused = grace.get(address, headers={"Accept": "text/event-stream"})
    assert (refused.status_code, problem(refused)) == (406, "no_stream")
    assert grace.get(address).json().keys() == {"items", "next", "has_more"}
    assert Client().get(address, headers={"Accept": "text/event-stream"}).status_code == 401


async def test_under_asgi_changes_are_streamed_until_the_browser_leaves(ada: AsyncClient) -> None:
    streams = resolve(BASE).kwargs["mount"].app_for(None, "").stream
    stream = await ada.get(f"{BASE}api/v1/stream", headers={"Accept-Encoding": "gzip"})
    assert (stream["Content-Type"].partition(";")[0], stream["Content-Encoding"]) == ("text/event-stream", "identity")
    parts = aiter(stream.streaming_content)
    assert b"retry" in await anext(parts)
    assert b"event: overview" in await anext(parts)
    assert streams.clients == 1
    waiting = asyncio.ensure_future(anext(parts))
    await asyncio.sleep(0)
    # As Django does it when a client disconnects.
    waiting.cancel()
    await until(lambda: streams.clients == 0)


async def test_a_stream_is_made_as_its_client_reads_it_and_ends_for_a_client_that_does_not(
    shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: a stream of ended jobs read the whole store into memory for a client that read nothing of it."""
    from headgate.contrib.django import dashboard

    sent: list[int] = []
    has_ended = asyncio.Event()

    async def parts(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            for number in range(1000):
                await send({"type": "http.response.body", "body": b"%d" % number, "more_body": True})
                sent.append(number)
        finally:
            has_ended.set()

    read = aiter((await dashboard.call_asgi(parts, {"type": "http"}, b"")).streaming_content)
    await asyncio.sleep(0.05)
    assert sent == [0]
    assert [await anext(read) for _ in range(100)] == [b"%d" % number for number in range(100)]
    await asyncio.sleep(0.05)
    assert len(sent) <= 102
    await read.aclose()
    await until(has_ended.is_set)

    has_ended.clear()
    monkeypatch.setattr(dashboard, "STALLED", 0.05)
    _unread = await dashboard.call_asgi(parts, {"type": "http"}, b"")
    await until(has_ended.is_set)


@pytest.mark.parametrize("sent", [[], [{"type": "http.response.start", "status": 200, "headers": []}]])
async def test_an_error_of_the_app_ends_the_view(sent: list[dict[str, Any]]) -> None:
    from headgate.contrib.django.dashboard import call_asgi

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        for message in sent:
            await send(message)
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await call_asgi(broken, {"type": "http"}, b"")


# ----------------------------------------------------------------------------------------------------------- the admin


def test_the_admin_links_to_it_for_those_who_may_see_it_and_where_it_is_mounted(shop: Any) -> None:
    def links(name: str, prefix: str = "") -> list[str]:
        set_script_prefix(f"{prefix}/")
        page = signed_in(name).get("/admin/").text
        clear_script_prefix()
        return re.findall(r'<th scope="row" id="headgate-dashboard">\s*<a href="([^"]+)"', page)

    assert set(links("grace")) == {BASE, "/ops/beside/"}
    assert set(links("ada")) == {BASE}
    assert set(links("ada", "/outer")) == {f"/outer{BASE}"}
    from django.contrib import admin

    with override_settings(ROOT_URLCONF=_Urls(path("admin/", admin.site.urls))):
        assert links("ada") == []
    # What it has no model for, it has no page for, either.
    assert signed_in("ada").get("/admin/headgate/").status_code == 404
    assert signed_in("ada").get("/admin/auth/").status_code == 200
    # Signed out, there is a list of apps as well: an empty one.
    assert Client().get("/admin/login/").status_code == 200


class _Urls:
    """A URL configuration with these addresses only."""

    def __init__(self, *patterns: Any) -> None:
        self.urlpatterns = list(patterns)

    def __hash__(self) -> int:
        return id(self)
