"""Who is let in, and what they may do: each role at each endpoint, and each door a browser could be led through."""

from __future__ import annotations

import base64
import json
import re
from typing import Any, cast

import pytest
from starlette.requests import Request

from headgate import DeclarationError
from headgate.http import BasicAuth, BearerAuth, CallbackAuth, OneTimeToken, User, dashboard
from headgate.http.access_control import is_same_site, peer_of
from headgate.http.auth import Role
from headgate.http.endpoint import Endpoint
from headgate.http.openapi import openapi
from headgate.http.routes import ENDPOINTS
from tests.faces.http.stage import EVERYBODY, client, make_app, problem

PASSWORDS: dict[str, tuple[Role, str]] = {
    "vera": ("viewer", "viewer's password"),
    "otto": ("operator", "operator's password"),
    "ada": ("admin", "admin's password"),
}
ROLES: list[Role] = ["viewer", "operator", "admin"]
CHANGES = [each for each in ENDPOINTS if each.changes]
PUBLIC = ("/", "/jobs", "/static/app.css", "/api/v1/openapi.json", "/api/v1/stream")


def path_of(endpoint: Endpoint) -> str:
    path = f"/api/v1{endpoint.path}"
    for name in endpoint.path_names:
        path = path.replace(f"{{{name}}}", "nobody")
    return path


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def of(role: Role) -> dict[str, str]:
    name, (_, password) = next((name, each) for name, each in PASSWORDS.items() if each[0] == role)
    return basic(name, password)


def test_the_roles_of_the_endpoints_are_these() -> None:
    needs = {role: sorted(e.name for e in ENDPOINTS if e.needs == role) for role in ROLES}
    assert needs["operator"] == [
        "cancel_batch",
        "cancel_job",
        "change_jobs",
        "create_schedule",
        "edit_schedule",
        "enqueue_job",
        "pause_queue",
        "pause_schedule",
        "purge_queue",
        "quiet_node",
        "remove_schedule",
        "rename_node",
        "reschedule_job",
        "resume_node",
        "resume_queue",
        "resume_schedule",
        "retry_job",
        "run_job_again",
        "run_job_now",
        "set_node_slots",
        "skip_schedule",
        "stop_node",
        "trigger_schedule",
    ]
    assert needs["admin"] == [
        "assign_limit",
        "delete_job",
        "pause_limit",
        "penalize_limit",
        "purge_jobs",
        "remove_limit",
        "reset_limit",
        "resume_limit",
        "set_limit",
        "unset_limit",
    ]
    assert all(each.method == "GET" for each in ENDPOINTS if each.needs == "viewer")


async def test_an_unauthenticated_request_is_refused_without_a_browser_prompt() -> None:
    app = make_app()
    async with app.open(), client(dashboard(app, auth=BasicAuth(PASSWORDS))) as caller:
        for wrong in ({}, basic("ada", "wrong password"), basic("nobody", "x"), {"Authorization": "Basic ???"}):
            answer = await caller.get("/api/v1/session", headers=wrong)
            assert answer.status_code == 401
            # With Basic a browser opens a window of its own over the sign-in page.
            assert answer.headers["www-authenticate"] == 'Session realm="Headgate"'


@pytest.mark.parametrize("auth", [None, "", "nobody", "local", lambda request: User("ada", "admin")])
def test_a_dashboard_without_auth_is_refused_at_declaration(auth: Any) -> None:
    with pytest.raises(DeclarationError, match="decides who may use it") as refused:
        dashboard(make_app(), auth=auth)
    assert "BasicAuth(ada=" in str(refused.value)
    with pytest.raises(DeclarationError, match="decides who may use it"):
        dashboard(make_app())


METHODS = ("GET", "HEAD", "OPTIONS", "POST", "DELETE", "PROPFIND")


async def test_no_route_or_method_bypasses_authentication() -> None:
    """The routes as they are served, not as they are declared: one that was put in without its guard is among them."""
    app = make_app()
    guarded = dashboard(app, auth=BasicAuth(PASSWORDS))
    local = dashboard(app, auth=OneTimeToken())
    paths = {re.sub(r"{\w+(:path)?}", "x", getattr(route, "path", "")) for route in guarded.routes}
    assert {"/", "/api/v1/stream", "/api/v1/openapi.json", "/static/x", "/api/v1/limits/x/audit"} <= paths
    async with app.open(), client(guarded) as caller, client(local) as other_caller:
        for path in [*sorted(paths), "/nowhere", "/api/v1/nowhere", "/api", "//evil.example", "/static"]:
            for method in METHODS:
                for somebody in (caller, other_caller):
                    refused = await somebody.request(method, path)
                    assert refused.status_code == 401, (method, path)
                    assert refused.headers["content-security-policy"]
                    assert refused.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("role", ROLES)
async def test_the_roles_in_the_openapi_description_are_enforced(role: Role) -> None:
    app = make_app()
    described = json.loads(openapi(ENDPOINTS))["paths"]
    async with app.open(), client(dashboard(app, auth=BasicAuth(PASSWORDS))) as caller:
        caller.headers.update(of(role))
        caller.headers["X-Headgate-Token"] = (await caller.get("/api/v1/session")).json()["token"]
        for path, operations in described.items():
            for method, operation in operations.items():
                if path == "/api/v1/stream":
                    continue
                needed = re.search(r"Needs the role (\w+)\.", operation.get("description", ""))
                needs = ROLES.index(cast(Role, needed[1])) if needed else 0
                answer = await caller.request(method, re.sub(r"{\w+}", "nobody", path))
                is_refused = answer.status_code == 403 and problem(answer) == "not_allowed"
                assert is_refused is (ROLES.index(role) < needs), (method, path, answer.text)


async def test_changes_need_the_token_of_the_session() -> None:
    app = make_app()
    site = dashboard(app, auth=BasicAuth(PASSWORDS))
    async with app.open(), client(site) as caller:
        tokens = {r: (await caller.get("/api/v1/session", headers=of(r))).json()["token"] for r in ROLES}
        assert len(set(tokens.values())) == 3
        for endpoint in CHANGES:
            for token in ("", "wrong", tokens["viewer"], tokens["operator"]):
                headers = of("admin") | {"X-Headgate-Token": token}
                answer = await caller.request(endpoint.method, path_of(endpoint), headers=headers)
                assert (answer.status_code, problem(answer)) == (403, "bad_token")


async def test_a_token_is_valid_in_every_process_with_the_same_passwords() -> None:
    app = make_app()
    async with app.open():
        tokens = []
        for _ in range(2):
            async with client(dashboard(app, auth=BasicAuth(PASSWORDS))) as caller:
                tokens.append((await caller.get("/api/v1/session", headers=of("admin"))).json()["token"])
        assert tokens[0] == tokens[1]
        async with client(dashboard(app, auth=BasicAuth(ada=("admin", "another password")))) as caller:
            other = await caller.get("/api/v1/session", headers=basic("ada", "another password"))
        assert other.json()["token"] != tokens[0]


async def test_a_token_reveals_nothing_about_other_passwords() -> None:
    """If it were signed with them, a user could guess passwords offline with their own token."""
    app = make_app()
    async with app.open():
        tokens = []
        for password in ("admin's password", "another of the admin"):
            auth = BasicAuth(PASSWORDS | {"ada": ("admin", password)})
            async with client(dashboard(app, auth=auth)) as caller:
                tokens.append((await caller.get("/api/v1/session", headers=of("viewer"))).json()["token"])
        assert tokens[0] == tokens[1]
    bearer = [BearerAuth({"v" * 20: User("vera"), admin * 20: User("ada", "admin")}) for admin in "ab"]
    assert bearer[0].secret(User("vera")) == bearer[1].secret(User("vera"))
    assert bearer[0].secret(User("ada", "admin")) != bearer[1].secret(User("ada", "admin"))


@pytest.mark.parametrize(
    ("headers", "is_let_in"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "none"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost:8000"}, False),
        ({"Origin": "http://localhost:8000"}, True),
        ({"Origin": "http://localhost:9000"}, False),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "file://localhost:8000"}, False),
        ({"Origin": "http://["}, False),
        ({}, True),
    ],
)
async def test_a_page_of_another_site_changes_nothing(headers: dict[str, str], is_let_in: bool) -> None:
    app = make_app()
    async with app.open(), client(dashboard(app, auth=EVERYBODY)) as caller:
        token = (await caller.get("/api/v1/session")).json()["token"]
        for endpoint in CHANGES:
            answer = await caller.request(
                endpoint.method, path_of(endpoint), headers=headers | {"X-Headgate-Token": token}
            )
            refused = answer.status_code == 403 and problem(answer) == "other_site"
            assert refused is not is_let_in, (endpoint, answer.text)


@pytest.mark.parametrize(
    ("origin", "host", "is_same"),
    [
        ("http://jobs.example", "jobs.example:80", True),
        ("https://jobs.example", "jobs.example:443", True),
        ("http://jobs.example", "jobs.example:443", False),
        ("http://jobs.example:8080", "jobs.example:80", False),
        ("http://", ":80", False),
    ],
)
def test_a_proxy_may_add_the_port_of_the_scheme_to_the_host(origin: str, host: str, is_same: bool) -> None:
    assert is_same_site({"origin": origin}, host) is is_same


async def test_a_read_only_dashboard_refuses_changes_by_admins() -> None:
    app = make_app()
    async with app.open(), client(dashboard(app, auth=EVERYBODY, read_only=True)) as caller:
        session = (await caller.get("/api/v1/session")).json()
        assert (session["can"], session["read_only"]) == ([], True)
        for endpoint in CHANGES:
            headers = {"X-Headgate-Token": session["token"]}
            answer = await caller.request(endpoint.method, path_of(endpoint), headers=headers)
            assert problem(answer) == "read_only"


async def test_the_host_is_taken_from_a_trusted_proxy() -> None:
    app = make_app()
    site = dashboard(app, auth=BasicAuth(PASSWORDS), trusted_proxies=["10.0.0.1"])
    asked = {"X-Forwarded-Host": "jobs.example", "Origin": "https://jobs.example"} | of("admin")
    async with app.open(), client(site, peer="10.0.0.1") as proxy, client(site, peer="10.0.0.2") as other_caller:
        asked["X-Headgate-Token"] = (await proxy.get("/api/v1/session", headers=of("admin"))).json()["token"]
        assert (await proxy.post("/api/v1/queues/default/pause", headers=asked)).status_code == 200
        # Each of several proxies adds the host that it was asked for.
        chained = asked | {"X-Forwarded-Host": "jobs.example, inner.example"}
        assert (await proxy.post("/api/v1/queues/default/pause", headers=chained)).status_code == 200
        assert (await other_caller.post("/api/v1/queues/default/pause", headers=asked)).status_code == 403


def test_addresses_in_different_notations_are_equal() -> None:
    trusted = frozenset({"10.0.0.1"})
    for forwarded in ("198.51.100.1", "198.51.100.1:4711", "6.6.6.6, 198.51.100.1:4712", "::ffff:198.51.100.1"):
        assert peer_of("10.0.0.1", forwarded, trusted) == "198.51.100.1"
        assert peer_of("::ffff:10.0.0.1", forwarded, trusted) == "198.51.100.1"
    assert peer_of("10.0.0.1", "[2001:db8::1]:4711", trusted) == peer_of("2001:db8::2", None, trusted)


@pytest.mark.parametrize("proxy", ["10.0.0.0/8", "proxy.internal", "*", ""])
def test_a_proxy_that_no_peer_could_be_is_refused_where_it_is_named(proxy: str) -> None:
    with pytest.raises(DeclarationError, match="is not an IP address"):
        dashboard(make_app(), auth=EVERYBODY, trusted_proxies=[proxy])


async def test_a_bearer_token_needs_no_other_and_serves_a_browser_as_a_password() -> None:
    app = make_app()
    bearer = BearerAuth({"0123456789abcdef-deploy": User("deploy", "operator"), "fedcba9876543210": User("eye")})
    async with app.open(), client(dashboard(app, auth=bearer)) as caller:
        headers = {"Authorization": "Bearer 0123456789abcdef-deploy"}
        assert (await caller.post("/api/v1/queues/default/pause", headers=headers)).json() == {"changed": True}
        (entry,) = (await caller.get("/api/v1/audit", headers=headers)).json()["items"]
        assert (entry["actor"], entry["action"], entry["subject"]) == ("deploy", "pause", "default")
        by_browser = basic("whoever", "0123456789abcdef-deploy")
        assert (await caller.get("/api/v1/session", headers=by_browser)).json()["user"] == "deploy"
        assert (await caller.post("/api/v1/queues/default/resume", headers=by_browser)).status_code == 403
        assert (await caller.get("/api/v1/session", headers={"Authorization": "Bearer nope"})).status_code == 401


async def test_the_user_of_an_auth_callback_is_the_actor_of_its_actions() -> None:
    app = make_app()

    async def who(request: Request) -> User | None:
        name = request.headers.get("x-user")
        return None if name is None else User(name, "operator")

    def who_at_once(request: Request) -> User | None:
        return User("sync", "viewer")

    async with app.open():
        async with client(dashboard(app, auth=CallbackAuth(who), secret="shared by all processes")) as caller:
            assert (await caller.get("/api/v1/session")).status_code == 401
            headers = {"X-User": "grace@example.org"}
            headers["X-Headgate-Token"] = (await caller.get("/api/v1/session", headers=headers)).json()["token"]
            assert (await caller.post("/api/v1/queues/default/pause", headers=headers)).status_code == 200
            assert [entry.actor for entry in await app.admin.audit_log()] == ["grace@example.org"]
        async with client(dashboard(app, auth=CallbackAuth(who_at_once))) as caller:
            assert (await caller.get("/api/v1/session")).json()["user"] == "sync"


def test_weak_and_missing_credentials_are_refused_at_declaration() -> None:
    refused: list[Any] = [
        lambda: BasicAuth(),
        lambda: BasicAuth(ada=("admin", "short")),
        lambda: BasicAuth({"a:b": ("admin", "long enough")}),
        lambda: BasicAuth(ada=("root", "long enough")),  # type: ignore[arg-type]
        lambda: BearerAuth({}),
        lambda: BearerAuth({"short": User("ada")}),
        lambda: CallbackAuth(None),  # type: ignore[arg-type]
        lambda: User(""),
        lambda: dashboard(make_app(), auth=EVERYBODY, redact=["*"]),
    ]
    for declare in refused:
        with pytest.raises(DeclarationError):
            declare()
    assert "admin's password" not in repr(vars(BasicAuth(PASSWORDS)))


async def test_every_answer_has_the_security_headers_errors_too() -> None:
    app = make_app()
    async with (
        client(dashboard(app, auth=OneTimeToken())) as other_caller,
        client(dashboard(app, auth=EVERYBODY)) as caller,
    ):
        answers = [
            await caller.get("/"),
            await caller.get("/api/v1/session"),
            await caller.get("/static/app.css"),
            await caller.get("/static/nothing.js"),
            await caller.get("/nowhere"),
            await caller.put("/api/v1/session"),
            await caller.get("/api/v1/jobs/nobody"),
            await other_caller.get("/"),
        ]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 404, 404, 405, 404, 401]
        for answer in answers:
            assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
