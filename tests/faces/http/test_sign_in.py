"""Signing in and out: the page, the one-time link, the session that they lead to, and its end."""

from __future__ import annotations

import asyncio
import base64
import re
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from headgate import DeclarationError
from headgate.clock import SECOND, sleep
from headgate.errors import StorageUnavailable
from headgate.http import BasicAuth, BearerAuth, CallbackAuth, OneTimeToken, User, dashboard
from headgate.http.auth import LONGEST_CREDENTIAL
from headgate.http.sessions import PATIENCE
from headgate.password_hash import PasswordHash
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.faces.http.stage import client, make_app, problem
from tests.until import patient, until

PASSWORD = "a right password"
VISIT = {"Accept": "text/html,application/xhtml+xml"}
FORM = {"name": "ada", "secret": PASSWORD, "place": ""}


def users() -> BasicAuth:
    return BasicAuth(ada=("admin", PASSWORD), vera=("viewer", PASSWORD))


async def sign_in(caller: httpx.AsyncClient, name: str = "ada", below: str = "") -> httpx.Response:
    answer = await caller.post(f"{below}/login", data=FORM | {"name": name}, headers=VISIT)
    assert answer.status_code == 303, answer.text
    return answer


@pytest.mark.parametrize(
    "auth",
    [users(), BearerAuth({"t" * 20: User("deploy")}), OneTimeToken(), CallbackAuth(lambda request: None)],
    ids=["passwords", "tokens", "link", "callback"],
)
async def test_a_signed_out_browser_is_shown_the_sign_in_page_and_a_program_json(auth: Any) -> None:
    app = make_app()
    async with app.open(), client(dashboard(app, auth=auth, title="<Shop>")) as caller:
        for path in ("/", "/jobs?state=failed", "/limits/a%2Fb", "/nowhere", "/login"):
            page = await caller.get(path, headers=VISIT)
            assert page.status_code == 401
            assert page.headers["content-type"].startswith("text/html")
            assert page.headers["cache-control"] == "no-store"
            assert "<h1>Sign in</h1>" in page.text
            assert "&lt;Shop&gt;" in page.text
            assert "<script" not in page.text
            assert "basic" not in page.headers.get("www-authenticate", "").lower()
            for accept in ("application/json", "*/*"):
                answer = await caller.get(path, headers={"Accept": accept})
                assert (answer.status_code, problem(answer)) == (401, "unauthorized")
        for path in ("/api/v1/overview", "/api/v1/stream", "/api/v1/nothing", "/static/app.js"):
            assert problem(await caller.get(path, headers=VISIT)) == "unauthorized"


async def test_the_page_runs_nothing_and_loads_nothing_and_has_labels_for_people_and_password_managers() -> None:
    app = make_app()
    async with client(dashboard(app, auth=users())) as caller:
        page = await caller.get("/", headers=VISIT)
    policy = page.headers["content-security-policy"]
    assert re.fullmatch(
        r"default-src 'none'; style-src 'sha256-[\w+/=]+'; img-src data:; base-uri 'none'; form-action 'self'; "
        r"frame-ancestors 'none'",
        policy,
    )
    assert not re.findall(r'(?:src|href)="(?!data:)', page.text)
    for name, completion in (("name", "username"), ("secret", "current-password")):
        assert f'<label for="{name}">' in page.text
        field = re.search(rf'<input id="{name}"[^>]*>', page.text)
        assert field is not None
        assert f'autocomplete="{completion}"' in field[0]


async def test_a_password_signs_in_a_browser_whose_cookie_no_script_and_no_other_site_can_use() -> None:
    app = make_app()
    async with app.open(), client(dashboard(app, auth=users())) as caller:
        answer = await caller.post("/login", data=FORM | {"place": "jobs?state=failed&text=a b"}, headers=VISIT)
        assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?state=failed&text=a%20b")
        name, _, rest = answer.headers["set-cookie"].partition("=")
        assert name == "headgate_session_8000"
        attributes = {each.strip().lower() for each in rest.split(";")[1:]}
        assert attributes == {"httponly", "samesite=strict", "path=/", "max-age=43200"}
        session = (await caller.get("/api/v1/session")).json()
        assert (session["user"], session["role"], session["can_sign_out"]) == ("ada", "admin", True)
        assert (await caller.get("/login", headers=VISIT)).headers["location"] == "/"


async def test_a_wrong_password_is_answered_by_the_page_that_keeps_the_name_and_the_place() -> None:
    app = make_app()
    async with client(dashboard(app, auth=users())) as caller:
        hostile = FORM | {"name": '"><b>', "secret": "wrong", "place": 'jobs?text="><i>'}
        page = await caller.post("/login", data=hostile, headers=VISIT)
        assert page.status_code == 401
        assert 'value="&quot;&gt;&lt;b&gt;"' in page.text
        assert 'value="jobs?text=&quot;&gt;&lt;i&gt;"' in page.text
        assert "<b>" not in page.text
        assert 'role="alert">This user name, password or token is wrong.' in page.text
        assert "set-cookie" not in page.headers
        assert problem(await caller.post("/login", data=hostile)) == "unauthorized"


async def test_a_form_that_is_refused_is_answered_by_the_page_which_says_why() -> None:
    """The fault: a proxy that changed the Host header, or a long password, led a browser to a page of JSON."""
    app = make_app()
    async with client(dashboard(app, auth=users())) as caller:
        for form, headers, status, why in (
            (
                FORM,
                {"Origin": "http://evil.example"},
                403,
                "let the proxy in front of the dashboard pass the Host header",
            ),
            (FORM | {"secret": "x" * (LONGEST_CREDENTIAL + 1)}, {}, 400, "The name or the password is too long."),
        ):
            page = await caller.post("/login", data=form, headers=VISIT | headers)
            assert (page.status_code, page.headers["content-type"]) == (status, "text/html; charset=utf-8")
            assert 'role="alert">' in page.text
            assert why in page.text
            assert "set-cookie" not in page.headers
            assert 'value="ada"' not in page.text
            assert (await caller.post("/login", data=form, headers=headers)).json()["status"] == status


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_the_cookie_is_for_where_the_dashboard_is_mounted_and_secure_where_it_came_by_https(scheme: str) -> None:
    app = make_app()
    host = Starlette(routes=[Mount("/ops/jobs", dashboard(app, auth=users()))])
    async with app.open(), client(host, base_url=f"{scheme}://jobs.example") as caller:
        answer = await sign_in(caller, below="/ops/jobs")
        assert answer.headers["location"] == "/ops/jobs/"
        cookie = answer.headers["set-cookie"].lower()
        assert cookie.startswith("headgate_session=")
        assert "path=/ops/jobs;" in cookie
        assert ("; secure" in cookie) is (scheme == "https")
        assert (await caller.get("/ops/jobs/api/v1/session")).status_code == 200


@pytest.mark.parametrize(
    ("mounted", "written"),
    [
        ("/@ada/proxy:8080", "/@ada/proxy:8080"),
        ("/a+b (1)", "/a+b%20(1)"),
        ("/a[1]|b", "/a[1]|b"),
        ("/b\u00fcro;1", "/b%C3%BCro%3B1"),
    ],
)
async def test_a_cookie_is_sent_to_where_the_sign_in_and_the_page_lead(mounted: str, written: str) -> None:
    """The fault: the address had %40 and the cookie @, or an umlaut as one byte, so a browser kept it to itself."""
    app = make_app()
    host = Starlette(routes=[Mount(mounted, dashboard(app, auth=users()))])
    async with app.open(), client(host) as caller:
        answer = await sign_in(caller, below=mounted)
        assert answer.headers["location"] == f"{written}/"
        assert f"path={written};" in answer.headers["set-cookie"].replace("Path", "path")
        caller.cookies.clear()
        cookie = answer.headers["set-cookie"].partition(";")[0]
        page = await caller.get(f"{mounted}/", headers=VISIT | {"Cookie": cookie})
        assert f'<base href="{written}/">' in page.text


async def test_a_browser_that_came_by_https_through_a_proxy_gets_a_secure_cookie() -> None:
    app = make_app()
    site = dashboard(app, auth=users(), trusted_proxies=["10.0.0.1"])
    by_origin = {"Origin": "https://localhost:8000"}
    for peer, headers, is_secure in (
        ("10.0.0.9", by_origin, True),
        ("10.0.0.1", {"X-Forwarded-Proto": "https"}, True),
        ("10.0.0.1", {"X-Forwarded-Proto": "https, http"}, True),
        ("10.0.0.9", {"X-Forwarded-Proto": "https"}, False),
    ):
        async with client(site, peer=peer) as caller:
            answer = await caller.post("/login", data=FORM, headers=headers)
            assert ("secure" in answer.headers["set-cookie"].lower()) is is_secure


async def test_sessions_of_a_dashboard_and_one_below_its_path_are_separate() -> None:
    app = make_app()
    host = Starlette(
        routes=[Mount("/ops/jobs", dashboard(app, auth=users())), Mount("/", dashboard(app, auth=users()))]
    )
    async with app.open(), client(host) as caller:
        await sign_in(caller, below="/ops/jobs")
        await sign_in(caller, name="vera")
        assert (await caller.get("/ops/jobs/api/v1/session")).json()["user"] == "ada"
        assert (await caller.get("/api/v1/session")).json()["user"] == "vera"


@pytest.mark.parametrize(
    ("place", "leads_to"),
    [
        ("//evil.example", "/evil.example"),
        ("/\\evil.example", "/evil.example"),
        ("https://evil.example", "/https%3A//evil.example"),
        ("javascript:alert(1)", "/javascript%3Aalert%281%29"),
        ("jobs\r\nSet-Cookie: a=b", "/jobs%0D%0ASet-Cookie%3A%20a%3Db"),
        ("jobs?a=\r\nb", "/jobs?a=%0D%0Ab"),
    ],
)
async def test_a_sign_in_leads_nowhere_but_to_this_dashboard(place: str, leads_to: str) -> None:
    app = make_app()
    async with client(dashboard(app, auth=users())) as caller:
        answer = await caller.post("/login", data=FORM | {"place": place}, headers=VISIT)
        assert (answer.status_code, answer.headers["location"]) == (303, leads_to)


async def test_a_page_of_another_site_cannot_sign_a_user_in_or_out() -> None:
    app = make_app()
    async with app.open(), client(dashboard(app, auth=users())) as caller:
        for elsewhere in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}, {"Origin": "null"}):
            answer = await caller.post("/login", data=FORM, headers=elsewhere)
            assert (answer.status_code, problem(answer)) == (403, "other_site")
        await sign_in(caller)
        token = {"X-Headgate-Token": (await caller.get("/api/v1/session")).json()["token"]}
        for headers in ({}, token | {"Sec-Fetch-Site": "cross-site"}):
            assert (await caller.post("/logout", headers=headers)).status_code == 403
        assert (await caller.get("/api/v1/session")).status_code == 200


async def test_a_session_changes_nothing_without_its_token_not_with_a_bearer_header_either() -> None:
    app = make_app()
    async with app.open(), client(dashboard(app, auth=users())) as caller:
        await sign_in(caller)
        for headers in ({}, {"Authorization": "Bearer whatever"}):
            answer = await caller.post("/api/v1/queues/default/pause", headers=headers)
            assert (answer.status_code, problem(answer)) == (403, "bad_token")
        token = (await caller.get("/api/v1/session")).json()["token"]
        assert (
            await caller.post("/api/v1/queues/default/pause", headers={"X-Headgate-Token": token})
        ).status_code == 200
        assert [entry.actor for entry in await app.admin.audit_log(kind="queue")] == ["ada"]


async def test_a_sign_out_ends_the_session_wherever_its_cookie_is_and_the_stream_at_once() -> None:
    app = make_app()
    site = dashboard(app, auth=users(), read_only=True)
    async with app.open(), client(site) as caller, client(site) as other:
        await sign_in(caller)
        await sign_in(other)
        cookies = dict(caller.cookies)
        token = {"X-Headgate-Token": (await caller.get("/api/v1/session")).json()["token"]}
        begun, ended = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(listen(site, cookies, begun, ended))
            await begun.wait()
            assert site.stream.clients == 1
            answer = await caller.post("/logout", headers=token)
            assert answer.status_code == 204
            assert "max-age=0" in answer.headers["set-cookie"].lower()
            await until(ended.is_set)
        assert caller.cookies.get("headgate_session_8000") is None
        caller.cookies.update(cookies)
        for path in ("/api/v1/session", "/api/v1/stream", "/static/app.js", "/jobs"):
            assert (await caller.get(path)).status_code == 401
        assert (await other.get("/api/v1/session")).status_code == 200


async def listen(site: Any, cookies: dict[str, str], begun: asyncio.Event, ended: asyncio.Event) -> None:
    """Read a stream until the server ends it; httpx would give nothing before its end."""

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body" and b"overview" in message["body"]:
            begun.set()
        if message["type"] == "http.response.body" and not message.get("more_body"):
            ended.set()

    cookie = "; ".join(f"{name}={value}" for name, value in cookies.items())
    headers = [(b"host", b"localhost:8000"), (b"cookie", cookie.encode())]
    scope = {"type": "http", "method": "GET", "path": "/api/v1/stream", "query_string": b"", "headers": headers}
    await site(scope | {"client": ("127.0.0.1", 1), "http_version": "1.1", "root_path": ""}, receive, send)


async def test_signing_out_without_a_session_does_nothing() -> None:
    app = make_app()
    async with client(dashboard(app, auth=BearerAuth({"t" * 20: User("deploy")}))) as caller:
        answer = await caller.post("/logout", headers={"Authorization": "Bearer " + "t" * 20})
        assert (answer.status_code, problem(answer)) == (409, "no_session")


def test_a_session_ends_after_twelve_hours() -> None:
    async def main(clock: VirtualClock) -> None:
        app = make_app(clock=clock)
        async with app.open(), client(dashboard(app, auth=users(), clock=clock)) as caller:
            await sign_in(caller)
            cookies = dict(caller.cookies)
            await sleep(clock, 12 * 3600 - 1)
            caller.cookies.update(cookies)
            assert (await caller.get("/api/v1/session")).status_code == 200
            await sleep(clock, 1)
            page = await caller.get("/jobs", headers=VISIT)
            assert page.status_code == 401

    run_virtual(main)


async def test_a_cookie_that_was_changed_or_made_elsewhere_opens_nothing() -> None:
    app = make_app()
    site = dashboard(app, auth=users())
    async with app.open(), client(site) as caller, client(dashboard(app, auth=users())) as elsewhere:
        await sign_in(caller, name="vera")
        content, _, signature = caller.cookies["headgate_session_8000"].partition(".")
        await sign_in(elsewhere)
        forged = [elsewhere.cookies["headgate_session_8000"], "", ".", "a.b", content, f"{content}.", "é.ü"]
        forged += [f"{content[:-4]}AAAA.{signature}", f"{content}.{signature[:-1]}", "=" * 5000]
        forged += [base64.b64encode(b'["a","ada","admin",1,' + b"[" * 3000).decode()]
        for value in forged:
            header = b"headgate_session_8000=" + value.encode("latin-1")
            caller.cookies.clear()
            answer = await caller.get("/api/v1/session", headers={b"Cookie": header})
            assert answer.status_code == 401, value


async def test_processes_with_one_secret_share_their_sessions_and_a_changed_password_ends_them() -> None:
    app = make_app()

    def site(password: str = PASSWORD, secret: str = "shared by all processes", role: Any = "admin") -> Any:
        return dashboard(app, auth=BasicAuth(ada=(role, password)), secret=secret)

    async with app.open():
        async with client(site()) as caller:
            await sign_in(caller)
            cookies = dict(caller.cookies)
        for again, status in (
            (site(), 200),
            (site(password="another password"), 401),
            (site(secret="of somebody else"), 401),
            (site(role="viewer"), 401),
        ):
            async with client(again) as caller:
                caller.cookies.update(cookies)
                assert (await caller.get("/api/v1/session")).status_code == status


async def test_sign_ins_and_sign_outs_are_in_the_audit_log() -> None:
    app = make_app()
    async with app.open(), client(dashboard(app, auth=users(), read_only=True), peer="203.0.113.7") as caller:
        await caller.post("/login", data=FORM | {"secret": "wrong"})
        await sign_in(caller)
        token = {"X-Headgate-Token": (await caller.get("/api/v1/session")).json()["token"]}
        (entry,) = (await caller.get("/api/v1/audit?kind=user")).json()["items"]
        assert (entry["actor"], entry["action"], entry["kind"]) == ("ada", "sign in", "user")
        assert (entry["subject"], entry["detail"]) == ("ada", "from 203.0.113.7")
        await caller.post("/logout", headers=token)
        await sign_in(caller, name="vera")
        token = {"X-Headgate-Token": (await caller.get("/api/v1/session")).json()["token"]}
        assert (await caller.post("/logout/everywhere", headers=token)).status_code == 204
        entries = await app.admin.audit_log(kind="user")
        assert [(each.actor, each.action) for each in reversed(entries)] == [
            ("ada", "sign in"),
            ("ada", "sign out"),
            ("vera", "sign in"),
            ("vera", "sign out everywhere"),
        ]


async def test_a_user_who_signs_out_everywhere_ends_their_sessions_and_streams_in_all_browsers() -> None:
    app = make_app()
    site = dashboard(app, auth=users())
    async with app.open(), client(site) as caller, client(site) as phone, client(site) as vera:
        await sign_in(caller)
        await sign_in(phone)
        await sign_in(vera, name="vera")
        begun, ended = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(listen(site, dict(phone.cookies), begun, ended))
            await begun.wait()
            # Not without the token, as a page of another site would ask for it.
            assert (await caller.post("/logout/everywhere")).status_code == 403
            token = {"X-Headgate-Token": (await caller.get("/api/v1/session")).json()["token"]}
            assert (await caller.post("/logout/everywhere", headers=token)).status_code == 204
            await until(ended.is_set)
        for browser in (caller, phone):
            assert (await browser.get("/api/v1/session")).status_code == 401
        assert (await vera.get("/api/v1/session")).status_code == 200
        await sign_in(phone)
        assert (await phone.get("/api/v1/session")).status_code == 200


@pytest.mark.parametrize("path", ["/logout", "/logout/everywhere"])
def test_a_sign_out_ends_the_session_in_all_processes_with_the_secret(path: str) -> None:
    async def main(clock: VirtualClock) -> None:
        app = make_app(clock=clock)

        def site() -> Any:
            return dashboard(app, auth=users(), secret="shared by all processes", clock=clock)

        one, other = site(), site()
        async with app.open(), client(one) as caller, client(other) as elsewhere:
            await sign_in(caller)
            elsewhere.cookies.update(caller.cookies)
            token = {"X-Headgate-Token": (await elsewhere.get("/api/v1/session")).json()["token"]}
            copied = dict(caller.cookies)
            assert (await caller.post(path, headers=token)).status_code == 204
            # The other process reads the sign-outs every two seconds.
            await sleep(clock, 2)
            assert (await elsewhere.get("/api/v1/session")).status_code == 401
            # And so does a process that starts later, until the session would have ended.
            await sleep(clock, 11 * 3600)
            async with client(site()) as late:
                late.cookies.update(copied)
                assert (await late.get("/api/v1/session")).status_code == 401
                await sign_in(late)
                assert (await late.get("/api/v1/session")).status_code == 200

    run_virtual(main)


def test_a_store_that_does_not_answer_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unavailable(*_: Any, **__: Any) -> Any:
        raise StorageUnavailable("gone")

    async def hangs(*_: Any) -> Any:
        await asyncio.Event().wait()

    async def main(clock: VirtualClock) -> None:
        app = make_app(clock=clock)
        site = dashboard(app, auth=users(), secret="shared by all processes", clock=clock)
        async with app.open(), client(site) as caller:
            monkeypatch.setattr(MemoryStorage, "add_audit_record", unavailable)
            monkeypatch.setattr(MemoryStorage, "sign_outs", unavailable)
            await sign_in(caller)
            assert (await caller.get("/api/v1/session")).status_code == 200
            monkeypatch.setattr(MemoryStorage, "add_audit_record", hangs)
            began_at = clock.monotonic()
            await sign_in(caller)
            assert (clock.monotonic() - began_at) / SECOND <= PATIENCE
            monkeypatch.setattr(MemoryStorage, "add_audit_record", unavailable)
            monkeypatch.setattr(MemoryStorage, "sign_outs", hangs)
            await sleep(clock, 2)
            began_at = clock.monotonic()
            token = {"X-Headgate-Token": (await caller.get("/api/v1/session")).json()["token"]}
            assert (clock.monotonic() - began_at) / SECOND <= PATIENCE
            # The user has to know that the other processes have not learnt of it.
            answer = await caller.post("/logout/everywhere", headers=token)
            assert (answer.status_code, problem(answer)) == (503, "storage_unavailable")
            await site.close()

    run_virtual(main)


async def test_a_one_time_link_signs_in_once_and_its_token_leaves_the_address() -> None:
    app = make_app()
    used: list[str] = []
    auth = OneTimeToken(on_used=used.append)
    first = auth.token
    assert len(first) >= 43
    site = dashboard(app, auth=auth)
    async with app.open(), client(site) as caller, client(site) as late:
        # What only looks at a link does not use it up.
        assert (await caller.head(f"/login?token={first}")).status_code == 401
        answer = await caller.get(f"/login?token={first}", headers=VISIT)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert answer.headers["referrer-policy"] == "no-referrer"
        session = (await caller.get("/api/v1/session")).json()
        assert (session["user"], session["role"]) == ("local", "admin")
        assert used == [auth.token]
        assert auth.token != first
        page = await late.get(f"/login?token={first}", headers=VISIT)
        assert page.status_code == 401
        assert first not in page.text
        assert (await late.get("/api/v1/session")).status_code == 401
        # Opening it again while signed in does not use the token.
        assert (await caller.get(f"/login?token={auth.token}", headers=VISIT)).status_code == 303
        assert used == [auth.token]
        # The page takes the token as well, and the whole link.
        pasted = {"secret": f" http://localhost:8000/login?token={auth.token} ", "place": "jobs"}
        assert (await late.post("/login", data=pasted, headers=VISIT)).headers["location"] == "/jobs"


async def test_no_page_of_another_site_signs_a_browser_in_by_a_link_with_a_lasting_token() -> None:
    app = make_app()
    token = "a token of sixteen characters"
    async with app.open(), client(dashboard(app, auth=BearerAuth({token: User("mallory")}))) as caller:
        page = await caller.get(f"/login?token={token}", headers=VISIT | {"Sec-Fetch-Site": "cross-site"})
        assert (page.status_code, "set-cookie" in page.headers, token in page.text) == (401, False, False)


@pytest.mark.parametrize("auth", [OneTimeToken(), BearerAuth({"a token of sixteen characters": User("deploy")})])
async def test_links_in_a_page_of_another_site_are_no_guesses_that_keep_an_address_out(auth: Any) -> None:
    app = make_app()
    async with app.open(), client(dashboard(app, auth=auth)) as caller:
        picture = {"Accept": "image/*", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "image"}
        guesses = (caller.get(f"/login?token=guess{number}", headers=picture) for number in range(50))
        answers = await asyncio.wait_for(asyncio.gather(*guesses), patient(5))
        assert {problem(answer) for answer in answers} == {"unauthorized"}
        secret = auth.token if isinstance(auth, OneTimeToken) else "a token of sixteen characters"
        assert (await caller.post("/login", data={"secret": secret}, headers=VISIT)).status_code == 303


async def test_a_one_time_token_is_no_password_and_no_bearer_token() -> None:
    app = make_app()
    auth = OneTimeToken()
    async with client(dashboard(app, auth=auth)) as caller:
        for headers in ({"Authorization": f"Bearer {auth.token}"}, {"Cookie": f"headgate_session_8000={auth.token}"}):
            assert (await caller.get("/api/v1/session", headers=headers)).status_code == 401
        assert (await caller.get("/api/v1/session", auth=("local", auth.token))).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "localhost"},
        {"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1"},
        {"X-Real-IP": "127.0.0.1"},
        {"Via": "1.0 nginx", "Connection": "close"},
    ],
)
async def test_a_local_address_or_proxy_grants_no_role(headers: dict[str, str]) -> None:
    app = make_app()
    async with client(dashboard(app, auth=OneTimeToken())) as caller:
        assert (await caller.get("/api/v1/overview", headers=headers)).status_code == 401
        assert (await caller.get("/", headers=VISIT | headers)).status_code == 401


async def test_a_link_on_another_site_opens_the_page_for_a_signed_in_user() -> None:
    """A browser leaves a strict cookie out of such a visit; one that begins at the page itself has it."""
    app = make_app()
    async with app.open(), client(dashboard(app, auth=users())) as caller:
        page = await caller.get("/jobs?state=failed", headers=VISIT | {"Sec-Fetch-Site": "cross-site"})
        assert '<meta http-equiv="refresh" content="0;url=/jobs?state=failed">' in page.text
        page = await caller.get("/jobs?state=failed", headers=VISIT | {"Sec-Fetch-Site": "same-origin"})
        assert "http-equiv" not in page.text


async def test_a_name_with_a_question_mark_is_found_again_after_the_sign_in() -> None:
    """The fault: what followed the mark was taken for the query, and the page was that of another name."""
    app = make_app()
    async with app.open(), client(dashboard(app, auth=users())) as caller:
        where = "schedules/50%25%20off%3F?span=1h"
        page = await caller.get(f"/{where}", headers=VISIT | {"Sec-Fetch-Site": "cross-site"})
        assert f'content="0;url=/{where}"' in page.text
        assert f'name="place" value="{where}"' in page.text
        answer = await caller.post("/login", data=FORM | {"place": where}, headers=VISIT)
        assert answer.headers["location"] == f"/{where}"


async def test_an_auth_callback_can_set_the_sign_in_url() -> None:
    app = make_app()
    auth = CallbackAuth(lambda request: None, sign_in_url="/accounts/login?next=/jobs&x=\"'")
    async with client(dashboard(app, auth=auth)) as caller:
        page = (await caller.get("/", headers=VISIT)).text
        assert 'href="/accounts/login?next=/jobs&amp;x=&quot;&#x27;"' in page
        assert "<form" not in page
        assert (await caller.post("/login", data=FORM)).status_code == 401
    with pytest.raises(DeclarationError, match="sign_in_url"):
        CallbackAuth(lambda request: None, sign_in_url="javascript:alert(1)")


async def test_a_password_can_be_configured_as_a_hash() -> None:
    app = make_app()
    stored = str(PasswordHash.of(PASSWORD))
    assert stored.startswith("scrypt$")
    assert stored != str(PasswordHash.of(PASSWORD))
    assert PASSWORD not in stored
    auth = BasicAuth(ada=("admin", stored), vera=("viewer", PASSWORD))
    async with app.open(), client(dashboard(app, auth=auth)) as caller:
        for _ in range(3):
            assert (await caller.get("/api/v1/session", auth=("ada", PASSWORD))).json()["user"] == "ada"
            assert (await caller.get("/api/v1/session", auth=("vera", PASSWORD))).json()["user"] == "vera"
        for name, password in (("ada", stored), ("ada", "a wrong one"), ("nobody", PASSWORD)):
            assert (await caller.get("/api/v1/session", auth=(name, password))).status_code == 401
        await sign_in(caller)


@pytest.mark.parametrize(
    "stored",
    [
        "scrypt$$$$$",
        "scrypt$1$1$1$aaaa$bbbb",
        "scrypt$32768$8$1$????$",
        "scrypt$1073741824$8$1$" + "a" * 16 + "$" + "A" * 43 + "=",
    ],
)
def test_a_hash_that_cannot_be_checked_is_refused_at_declaration(stored: str) -> None:
    with pytest.raises(DeclarationError, match="password hash"):
        BasicAuth(ada=("admin", stored))


async def test_an_invalid_form_is_refused_and_read_up_to_a_bound() -> None:
    app = make_app()
    async with client(dashboard(app, auth=users())) as caller:
        assert (await caller.post("/login", json={"name": "ada"})).status_code == 415
        assert (await caller.post("/login", data={"name": "a" * 40_000})).status_code == 413
        assert (await caller.post("/login", data={"name": "a" * 5_000})).status_code == 400
        assert (await caller.post("/login")).status_code == 401


async def test_a_request_of_a_callback_says_nothing_of_sessions() -> None:
    def who(request: Request) -> User | None:
        return User("grace")

    app = make_app()
    async with app.open(), client(dashboard(app, auth=CallbackAuth(who))) as caller:
        assert (await caller.get("/api/v1/session")).json()["can_sign_out"] is False
