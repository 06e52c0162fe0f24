"""Hidden fields are shown nowhere: payloads, results, headers, errors and log lines."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from headgate import AesGcm, JobFailed, JobState, RetryPolicy, current_job
from headgate.admin import JobQuery
from headgate.clock import SystemClock
from headgate.http import BearerAuth, Dashboard, User, dashboard
from headgate.http.endpoint import Endpoint
from headgate.http.redaction import ALWAYS, DEEPEST, HIDDEN, SHORTEST_SECRET, Redaction
from headgate.http.routes import ENDPOINTS
from headgate.jobs.alert import HeldCondition
from headgate.jobs.audit import AuditRecord
from headgate.jobs.job import JobError
from headgate.storage.records import Blocker
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.tasks.codec import Codecs
from tests.faces.http.stage import PASSWORD, Seeds, browser, client, make_app, problem, seed
from tests.internals import store_of
from tests.until import patient, result_within


def hidden(patterns: list[str], value: Any) -> Any:
    shown = Redaction(patterns).json(json.dumps(value))
    assert shown is not None
    return json.loads(bytes(shown))


def test_a_pattern_names_a_field_wherever_it_stands() -> None:
    value = {"password": "p", "user": {"Password": "p", "name": "ada"}, "list": [{"password": ["p"]}]}
    assert hidden(["password"], value) == {
        "password": HIDDEN,
        "user": {"Password": HIDDEN, "name": "ada"},
        "list": [{"password": HIDDEN}],
    }


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("token", {"token", "a.token"}),
        ("*.token", {"token", "a.token"}),
        ("a.token", {"a.token"}),
        ("*_key", {"api_key"}),
        ("a.*", {"a.token", "a.name"}),
        ("nothing", set()),
    ],
)
def test_patterns_are_globs_on_the_path_of_a_field(pattern: str, paths: set[str]) -> None:
    value = {"token": "1", "api_key": "2", "a": {"token": "3", "name": "4"}}
    shown = hidden([pattern], value)
    found = {name for name in ("token", "api_key") if shown[name] == HIDDEN}
    found |= {f"a.{name}" for name in ("token", "name") if shown["a"][name] == HIDDEN}
    assert found == paths


def test_a_field_that_is_hidden_is_hidden_with_all_that_is_below_it() -> None:
    assert hidden(["card"], {"card": {"number": 4111, "name": "ada"}}) == {"card": HIDDEN}


def test_texts_lose_the_hidden_values_and_what_looks_like_a_field_of_that_name() -> None:
    redaction = Redaction(["password", "*_key", "card.number"])
    secrets = redaction.secrets('{"password": "hunter22", "card": {"number": 41111111}, "a": {"some_key": ["abcd"]}}')
    assert secrets == frozenset({"hunter22", "41111111", "abcd"})
    for text in (
        "login with hunter22 failed",
        "card 41111111 was refused",
        "password=secret1, done",
        "{'password': 'secret1 with blanks'}",
        '{"Password": "secret1"}',
        "api_key: secret1",
        "number=secret1",
    ):
        shown = redaction.text(text, secrets)
        assert HIDDEN in shown
        assert not any(each in shown for each in ("hunter22", "41111111", "secret1", "blanks"))
    assert redaction.text("passwords are hidden here", secrets) == "passwords are hidden here"


def test_a_hidden_value_is_found_however_it_was_written_into_a_text() -> None:
    value = 'it\'s "q\\u\n"'
    redaction = Redaction(["pin"])
    secrets = redaction.secrets(json.dumps({"pin": value}))
    for text in (f"got {value}", f"got {value!r}", f"got {json.dumps(value)}", f"KeyError: {(value,)}"):
        assert "q" not in redaction.text(text, secrets)


def test_short_or_empty_values_are_not_redacted_everywhere() -> None:
    redaction = Redaction(["pin"])
    assert redaction.secrets('{"pin": "1"}') == frozenset()
    assert redaction.secrets('{"pin": true}') == frozenset()


def test_without_patterns_everything_is_shown_as_it_is_stored() -> None:
    redaction = Redaction()
    assert redaction.json('{"a":  1.0e3}') is not None
    assert bytes(redaction.json('{"a":  1.0e3}') or b"") == b'{"a":  1.0e3}'
    error = JobError("E", "password=1", data={"password": "x"})
    assert redaction.error(error) is error
    assert not redaction


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abc.def, next", f"Authorization: {HIDDEN}, next"),
        ("token=abc&page=2", f"token={HIDDEN}&page=2"),
        ("GET https://host/x?page=2&access_token=abc#top", f"GET https://host/x?page=2&access_token={HIDDEN}"),
        ("connecting to postgresql://ada:hunter2@db/shop", f"connecting to postgresql://ada:{HIDDEN}@db/shop"),
        ("https://db:5432/users/a@b.example stays", "https://db:5432/users/a@b.example stays"),
        ('body: {\\"password\\": \\"two words\\", \\"a\\": 1}', f'body: {{\\"password\\": {HIDDEN}, \\"a\\": 1}}'),
        ('{"password": "a\\"b c"} and more', f'{{"password": {HIDDEN}}} and more'),
        ('cut: {"password": "two wor', f'cut: {{"password": {HIDDEN}'),
        ('cut: {"password": "two\\', f'cut: {{"password": {HIDDEN}'),
        ("cut: {'password': 'two\\", f"cut: {{'password': {HIDDEN}"),
        ("a=password=abc d", f"a=password={HIDDEN} d"),
        ("db_password='two words', x", f"db_password={HIDDEN}, x"),
        ("passwords: 3, tokens: 4", "passwords: 3, tokens: 4"),
    ],
)
def test_what_looks_like_a_hidden_field_is_hidden_in_a_text(text: str, shown: str) -> None:
    assert Redaction(ALWAYS).text(text) == shown


def test_a_long_text_is_searched_in_linear_time() -> None:
    redaction = Redaction(ALWAYS)
    for text in ("x" * 400_000, "x-" * 200_000, "a=" * 200_000, "'" * 400_000, '\\"' * 200_000, "token " * 60_000):
        assert redaction.text(text) == text


def test_json_inside_a_text_is_read() -> None:
    inner = json.dumps({"user": "ada", "password": "hunter22", "deeper": json.dumps([{"token": "abcdef"}])})
    shown = hidden(["password", "token"], {"body": inner, "plain": "{no json", "list": "[1, 2]"})
    assert json.loads(shown["body"]) == {
        "user": "ada",
        "password": HIDDEN,
        "deeper": json.dumps([{"token": HIDDEN}]).replace(" ", ""),
    }
    assert (shown["plain"], shown["list"]) == ("{no json", "[1, 2]")


def test_many_hidden_values_are_searched_in_many_texts_in_linear_time() -> None:
    redaction, number = Redaction(["recipients"]), 30_000
    recipients, names = ([f"{name}{each:06}@x" for each in range(number)] for name in ("user", "name"))
    secrets = redaction.secrets(json.dumps({"recipients": recipients, "names": names}))
    assert all(redaction.text(name, secrets) == name for name in names)
    assert redaction.text(" ".join(recipients), secrets) == " ".join([HIDDEN] * number)
    assert redaction.text("x" * 400_000, secrets) == "x" * 400_000


def test_of_hidden_values_that_overlap_the_longest_is_hidden_then_the_first() -> None:
    chance, redaction = random.Random(7), Redaction(["pin"])

    def word(length: int) -> str:
        return "".join(chance.choices("xy", k=length))

    for _ in range(2000):
        values = [word(length) for length in range(SHORTEST_SECRET, 12) if chance.random() < 0.6]
        text = shown = word(chance.randrange(40))
        for value in reversed(values):
            shown = shown.replace(value, HIDDEN)
        assert redaction.text(text, redaction.secrets(json.dumps({"pin": values}))) == shown, (text, values)
        # Among many others they are found in another way.
        others = [f"other {number}" for number in range(50)]
        assert redaction.text(text, redaction.secrets(json.dumps({"pin": values + others}))) == shown, (text, values)


@pytest.mark.parametrize("levels", [101, 480, 900, 5000])
def test_a_text_that_is_nested_too_deeply_is_searched_as_text(levels: int) -> None:
    redaction = Redaction(ALWAYS)
    text = f'{"[" * levels}"hunter22", {{"token": "abcdef"}}{"]" * levels}'
    shown = text.replace("hunter22", HIDDEN).replace('"abcdef"', HIDDEN)
    payload = json.dumps({"password": "hunter22", "text": text})
    secrets = redaction.secrets(payload)
    assert secrets == frozenset({"hunter22"})
    assert json.loads(bytes(redaction.json(payload, secrets) or b"")) == {"password": HIDDEN, "text": shown}
    # Only a row that was written by hand is itself so deep.
    assert json.loads(bytes(redaction.json(text, secrets) or b"")) == shown
    assert redaction.preview(text, secrets)
    assert redaction.secrets(text) == frozenset()


def test_json_in_texts_is_read_where_each_is_nested_as_deeply_as_a_payload_may_be() -> None:
    value: Any = "hunter22"
    for _ in range(DEEPEST + 1):
        value = json.dumps({"token": value} if value == "hunter22" else value)
        value = json.loads("[" * 98 + value + "]" * 98)
        value = json.dumps([value])
    redaction = Redaction(ALWAYS)
    assert redaction.secrets(value) == frozenset({"hunter22"})
    assert "hunter22" not in redaction.preview(value)
    assert HIDDEN in bytes(redaction.json(value) or b"").decode()


async def test_a_deeply_nested_text_breaks_no_page_and_a_deeply_nested_body_is_refused() -> None:
    app = make_app()
    async with app.open(), browser(app) as caller:
        for levels in (120, 480, 700, 900):
            job = await app.tasks["answer"].enqueue("[" * levels + "]" * levels)
            for path in ("/api/v1/jobs", f"/api/v1/jobs/{job.id}", f"/api/v1/jobs/{job.id}/explain"):
                assert (await caller.get(path)).status_code == 200, (path, levels)
        stored = await app.admin.count()
        for levels in (101, 480, *range(600, 1000, 7)):
            body = f'{{"payload": {{"question": {"[" * levels}{"]" * levels}}}, "name": "x", "task": "answer"}}'
            enqueue = body.replace(', "name": "x", "task": "answer"', "")
            for path, content in (
                ("tasks/answer/enqueue", enqueue),
                (f"jobs/{job.id}/run-again", enqueue),
                ("schedules", body),
            ):
                headers = {"Content-Type": "application/json", "Idempotency-Key": str(levels)}
                answer = await caller.post(f"/api/v1/{path}", content=content, headers=headers)
                # One that cannot be decoded at all is not JSON.
                if levels < 900 or answer.status_code != 400:
                    assert (answer.status_code, problem(answer)) == (422, "payload_error"), (path, levels)
                    assert "nested too deeply, over 100 levels" in answer.text
        assert await app.admin.count() == stored


def test_a_hidden_value_is_hidden_in_every_other_field_too() -> None:
    redaction = Redaction(ALWAYS)
    payload = {
        "password": "hunter 2?",
        "url": "https://host/?p=hunter%202%3F",
        "note": "ada has hunter 2?",
        "list": ["hunter 2?"],
    }
    secrets = redaction.secrets(json.dumps(payload))
    for stored in (payload, ["x", {"echo": "got hunter 2?"}], "hunter 2?"):
        assert b"hunter" not in bytes(redaction.json(json.dumps(stored), secrets) or b"")
    assert "hunter" not in redaction.preview(json.dumps(payload), secrets)
    assert redaction.mapping({"x-echo": "hunter 2?"}, secrets) == {"x-echo": HIDDEN}


def test_a_stored_text_that_is_no_json_is_shown_as_a_text() -> None:
    for redaction in (Redaction(), Redaction(ALWAYS)):
        shown = redaction.json('{"broken')
        assert shown is not None
        assert json.loads(bytes(shown)) == '{"broken'
        assert redaction.secrets('{"broken') == frozenset()


def path_of(endpoint: Endpoint, seeds: Seeds, job: str) -> str:
    path = endpoint.path.replace("{id}", seeds.batch if "batch" in endpoint.path else job)
    return f"/api/v1{path.replace('{limit}', 'permits').replace('{name}', 'hourly')}"


async def test_no_endpoint_shows_a_hidden_value() -> None:
    app = make_app()
    async with app.open():
        seeds = await seed(app)
        async with browser(app) as caller, browser(app, redact=None) as open_book:
            shown_openly = 0
            for endpoint in (each for each in ENDPOINTS if each.method == "GET"):
                for job in (seeds.failed, seeds.succeeded, seeds.throttled):
                    path = path_of(endpoint, seeds, job)
                    answer = await caller.get(path)
                    assert answer.status_code in (200, 404, 422), answer.text
                    assert PASSWORD not in answer.text, path
                    assert "another one" not in answer.text, path
                    shown_openly += PASSWORD in (await open_book.get(path)).text
            # Had nothing shown it openly, that would have proved nothing.
            assert shown_openly >= 8
            details = (await caller.get(f"/api/v1/jobs/{seeds.failed}")).json()
            assert details["payload"] == {"user": "ada", "password": HIDDEN}
            assert details["headers"] == {"password": HIDDEN, "tenant": "acme"}
            assert HIDDEN in details["error"]["message"]
            assert HIDDEN in details["error"]["traceback"]
            assert HIDDEN in details["timeline"][-1]["detail"]
            result = (await caller.get(f"/api/v1/jobs/{seeds.succeeded}")).json()["result"]
            assert result == {"question": "why?", "password": HIDDEN}


async def test_a_result_and_a_list_hide_the_values_that_the_payload_hides() -> None:
    app = make_app()

    @app.task
    async def echo(api_key: str, note: str) -> list[str]:
        return [f"called with {api_key}", note]

    async with app:
        job = await echo.enqueue("abcd-1234", "https://host/?key=abcd-1234")
        await result_within(job)
    async with app.open(), browser(app) as caller, browser(app, redact=None) as open_book:
        for path in ("/api/v1/jobs", f"/api/v1/jobs/{job.id}"):
            assert "abcd-1234" not in (await caller.get(path)).text
            assert "abcd-1234" in (await open_book.get(path)).text


async def test_a_list_hides_in_errors_what_the_headers_hide() -> None:
    app = make_app()

    @app.task(retry=RetryPolicy(retries=0))
    async def call() -> None:
        raise ValueError("the server refused 'Bearer of-a-header'")

    async with app:
        failed = await call.using(headers={"authorization": "Bearer of-a-header"}).enqueue()
        with suppress(JobFailed):
            await result_within(failed)
    async with app.open(), browser(app, redact=["authorization"]) as caller:
        for path in ("/api/v1/jobs", f"/api/v1/jobs/{failed.id}"):
            answer = await caller.get(path)
            assert "of-a-header" not in answer.text
            assert f"the server refused '{HIDDEN}'" in answer.text


async def test_the_audit_log_does_not_contain_payload_searches() -> None:
    storage = MemoryStorage(SystemClock())
    app = make_app(storage=storage)
    async with app.open():
        await seed(app)
        assert (await app.admin.purge(JobQuery(state=JobState.FAILED, text=PASSWORD), older_than=0)).changed == 1
        await storage.add_audit_record(AuditRecord("ada", "did", "queue", "default", "with password=another1"))
        async with browser(app, redact=["password"]) as caller:
            received = (await caller.get("/api/v1/audit")).text
            assert "a text in the payload" in received
            assert f"with password={HIDDEN}" in received
            assert PASSWORD not in received


async def test_a_search_does_not_reveal_a_hidden_value() -> None:
    app = make_app()
    auth = BearerAuth({f"{role}-0123456789abcdef": User(role, role) for role in ("viewer", "operator", "admin")})
    async with app.open(), client(dashboard(app, auth=auth, redact=["password"])) as caller:
        await app.tasks["login"].enqueue("ada", PASSWORD)
        for role, status in (("viewer", 403), ("operator", 403), ("admin", 200)):
            caller.headers["Authorization"] = f"Bearer {role}-0123456789abcdef"
            for path in ("/api/v1/jobs?text=c", "/api/v1/jobs/count?text=c"):
                answer = await caller.get(path)
                assert answer.status_code == status
                assert status == 200 or problem(answer) == "text_is_redacted"
            if role != "viewer":
                body = {"action": "cancel", "query": {"text": "c"}, "dry_run": True}
                assert (await caller.post("/api/v1/jobs/bulk", json=body)).status_code == status


@pytest.mark.parametrize("codec", [None, AesGcm("2026-11", AesGcm.new_key())])
async def test_the_digest_of_a_request_does_not_reveal_a_hidden_value(codec: AesGcm | None) -> None:
    app = make_app(codec=codec)
    auth = BearerAuth({f"{role}-0123456789abcdef": User(role, role) for role in ("viewer", "operator", "admin")})
    body = {"payload": {"user": "ada", "password": "4711"}}
    async with app.open(), client(dashboard(app, auth=auth)) as caller:
        sent = {"Authorization": "Bearer operator-0123456789abcdef", "Idempotency-Key": "order 17"}
        id = (await caller.post("/api/v1/tasks/login/enqueue", json=body, headers=sent)).json()["id"]
        ((name, stored),) = ((await app.admin.job(id)).record.headers or {}).items()
        plain = Codecs().digest('{"payload":{"password":"4711","user":"ada"}}', "it")
        assert (plain in stored) is (codec is None)
        for role, status in (("viewer", 403), ("operator", 403), ("admin", 200)):
            caller.headers["Authorization"] = f"Bearer {role}-0123456789abcdef"
            assert (await caller.get(f"/api/v1/jobs/{id}")).json()["headers"] == {name: HIDDEN}
            answer = await caller.get("/api/v1/jobs", params={"header": f"{name}={stored}"})
            assert answer.status_code == status
            assert status == 200 or problem(answer) == "header_is_redacted"
    assert Redaction(ALWAYS).text(f"{name}={stored}, done") == f"{name}={HIDDEN}, done"


async def test_annotations_are_hidden_as_headers_are_and_no_filter_reveals_them() -> None:
    app = make_app()

    @app.task(retry=RetryPolicy(retries=0))
    async def call() -> None:
        current_job().annotate(password="of-an-annotation", tenant="acme", note="password=another1")
        current_job().log.info("signed in with of-an-annotation")
        raise ValueError("the server refused of-an-annotation")

    auth = BearerAuth({f"{role}-0123456789abcdef": User(role, role) for role in ("viewer", "operator", "admin")})
    async with app:
        job = await call.using(headers={"password": "of-a-header", "source": "api"}, tags=["vip"]).enqueue()
        with suppress(JobFailed):
            await job.result()
        async with client(dashboard(app, auth=auth, redact=["password"])) as caller:
            for role, status in (("viewer", 403), ("operator", 403), ("admin", 200)):
                caller.headers["Authorization"] = f"Bearer {role}-0123456789abcdef"
                for path in (
                    f"/api/v1/jobs/{job.id}",
                    "/api/v1/jobs",
                    "/api/v1/failures?span=3600",
                    f"/api/v1/jobs/{job.id}/logs",
                ):
                    answer = await caller.get(path)
                    assert answer.status_code == 200
                    assert "of-an-annotation" not in answer.text
                    assert "another1" not in answer.text
                details = (await caller.get(f"/api/v1/jobs/{job.id}")).json()
                assert details["annotations"]["password"] == HIDDEN
                assert details["annotations"]["tenant"] == "acme"
                for name, value in (("header", "of-a-header"), ("annotation", "of-an-annotation")):
                    guesses = {name: f"PassWord={value}"}
                    for path in ("/api/v1/jobs", "/api/v1/jobs/count"):
                        answer = await caller.get(path, params=guesses)
                        assert answer.status_code == status
                        assert status == 200 or problem(answer) == f"{name}_is_redacted"
                    if role != "viewer":
                        body = {"action": "retry", "query": guesses, "dry_run": True}
                        assert (await caller.post("/api/v1/jobs/bulk", json=body)).status_code == status
                # What is shown may be filtered by.
                for shown in ({"header": "source=api"}, {"annotation": "tenant=acme"}, {"tag": "vip"}):
                    assert [
                        each["id"] for each in (await caller.get("/api/v1/jobs", params=shown)).json()["items"]
                    ] == [job.id]
                    assert (await caller.get("/api/v1/jobs/count", params=shown)).json()["count"] == 1
            (listed,) = (await caller.get("/api/v1/jobs")).json()["items"]
            assert listed["tags"] == details["status"]["tags"] == ["vip"]
            assert details["options"] == {}
            for refused in ({"tag": "two words"}, {"header": "source"}, {"annotation": "=1"}):
                answer = await caller.get("/api/v1/jobs", params=refused)
                assert answer.status_code in (400, 422), answer.text
                assert "must be a word" in answer.text or "is not a name with its value" in answer.text


class BlockedStorage(MemoryStorage):
    """A store with a blocker."""

    async def blockers(self) -> Sequence[Blocker]:  # type: ignore[misc]
        what = "reports (bob) keeps 1 waiting, active"
        return [Blocker("blocks", 4711, self.now(), what, "UPDATE account SET iban = 'DE89', password = 'hunter22'")]


async def test_only_operators_see_statements_of_other_sessions() -> None:
    app = make_app(storage=BlockedStorage(SystemClock()))
    auth = BearerAuth({f"{role}-0123456789abcdef": User(role, role) for role in ("viewer", "operator")})
    site = dashboard(app, auth=auth, redact=["password"])
    async with app.open(), client(site) as caller:
        for role, received in (
            ("viewer", None),
            ("operator", f"UPDATE account SET iban = 'DE89', password = {HIDDEN}"),
        ):
            headers = {"Authorization": f"Bearer {role}-0123456789abcdef"}
            (shown,) = (await caller.get("/api/v1/overview", headers=headers)).json()["blockers"]
            assert (shown["what"], shown["statement"]) == ("reports (bob) keeps 1 waiting, active", received)
            streamed = await first_overview(site, headers)
            assert "keeps 1 waiting" in streamed
            assert ("DE89" in streamed) is (role == "operator")


async def test_the_error_of_an_alert_is_redacted() -> None:
    app = make_app()
    auth = BearerAuth({"viewer-0123456789abcdef": User("viewer", "viewer")})
    headers = {"Authorization": "Bearer viewer-0123456789abcdef"}
    async with app.open():
        store = store_of(app)
        await store.note_alerts([HeldCondition("a1", "page", "waiting > 5", "mail", 7)])
        (record,) = await store.due_alerts(["page"])
        assert await store.try_alert(record, store.now())
        (record,) = await store.due_alerts(["page"])
        url = "https://bot:hunter22@pager.example/send?token=of-the-pager"
        assert await store.alert_tried(record, f"HTTPError: 401 for url '{url}'", store.now())
        site = dashboard(app, auth=auth)
        async with client(site) as caller:
            (listed,) = (await caller.get("/api/v1/alerts", headers=headers)).json()["items"]
            (shown,) = (await caller.get("/api/v1/overview", headers=headers)).json()["alerts"]
            text = f"HTTPError: 401 for url 'https://bot:{HIDDEN}@pager.example/send?token={HIDDEN}'"
            assert listed["error"] == shown["error"] == text
            streamed = await first_overview(site, headers)
            assert "HTTPError: 401" in streamed
            assert "hunter22" not in streamed
            assert "of-the-pager" not in streamed


async def first_overview(site: Dashboard, headers: dict[str, str]) -> str:
    """Return what the live stream sends up to the first overview."""
    received = bytearray()

    async def send(message: Any) -> None:
        received.extend(message.get("body", b""))
        if b"event: overview" in received:
            site.stream.end()

    given = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": "/api/v1/stream", "query_string": b"", "headers": given}
    async with asyncio.timeout(patient(5)):
        await site(scope, asyncio.Event().wait, send)  # type: ignore[arg-type]  # nothing more is received
    site.stream.begin()
    return received.decode()


async def test_a_long_payload_is_not_read_for_a_list() -> None:
    app = make_app()
    async with app.open(), browser(app, redact=["password"]) as caller:
        await app.tasks["answer"].enqueue("x" * 100_000)
        await app.tasks["answer"].enqueue("y" * 1000)
        short, long = [each["payload"] for each in (await caller.get("/api/v1/jobs")).json()["items"]]
        assert short.startswith('{"question":"yyy')
        assert len(short) == 200
        assert long == "… 100,015 characters"
