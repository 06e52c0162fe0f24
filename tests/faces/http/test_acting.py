"""What is done through the API: each action once, on each store, and under whose name it is kept."""

from __future__ import annotations

import asyncio
import json
from datetime import date, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote
from uuid import UUID
from zoneinfo import ZoneInfo

import httpx
import msgspec
import pytest

from headgate import AesGcm, Cron, Every, Headgate, JobState, StrictRate, Zlib, batch
from headgate.clock import SECOND
from headgate.http import CallbackAuth, User
from headgate.storage.records import NodeControls
from headgate.tasks.codec import Codecs
from tests.faces.http.stage import HOSTILE, LIMIT, PASSWORD, browser, make_app, problem, seed
from tests.internals import store_of

NAME = quote(HOSTILE, safe="")
API = quote(LIMIT, safe="")


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Headgate:
    return make_app() if request.param == "memory" else make_app(f"sqlite:///{tmp_path}/jobs.db", synchronous="OFF")


async def act(client: httpx.AsyncClient, path: str, body: Any = None, *, expected: int = 200) -> Any:
    answer = await client.post(f"/api/v1{path}", json=body)
    assert answer.status_code == expected, answer.text
    return answer.json() if expected < 400 else problem(answer)


async def test_jobs_are_retried_cancelled_and_run_now(app: Headgate) -> None:
    async with app.open():
        seeds = await seed(app)
        async with browser(app) as client:
            assert await act(client, f"/jobs/{seeds.failed}/retry") == {"changed": True}
            assert (await app.admin.status(seeds.failed)).state is JobState.WAITING
            assert await act(client, f"/jobs/{seeds.failed}/retry", expected=409) == "illegal_transition"
            assert await act(client, f"/jobs/{seeds.failed}/cancel") == {"changed": True}
            assert await act(client, f"/jobs/{seeds.failed}/cancel") == {"changed": False}
            assert await act(client, f"/jobs/{seeds.scheduled}/run-now") == {"changed": True}
            assert not (await app.admin.status(seeds.scheduled)).is_scheduled
            path = f"/jobs/{seeds.scheduled}/reschedule"
            assert await act(client, path, {"delay": 3600, "priority": 9}) == {"changed": True}
            status = await app.admin.status(seeds.scheduled)
            assert (status.is_scheduled, status.priority) == (True, 9)
            assert await act(client, path, {"at": "2099-01-01T08:00:00Z"}) == {"changed": True}
            assert await act(client, path, {}, expected=422) == "declaration_error"
            assert await act(client, path, {"priority": 10}, expected=400) == "bad_request"
            assert (
                await act(client, f"/jobs/{seeds.failed}/reschedule", {"delay": 1}, expected=409)
                == "illegal_transition"
            )
            assert await act(client, "/jobs/nobody/cancel", expected=404) == "job_not_found"
            entries = await app.admin.audit_log(subject=seeds.failed)
            assert [(entry.actor, entry.action) for entry in entries] == [("local", "cancel"), ("local", "retry")]


async def test_jobs_are_enqueued_and_run_again_with_other_arguments(app: Headgate) -> None:
    async with app.open():
        seeds = await seed(app)
        async with browser(app) as client:
            declared = {each["task"]: each for each in (await client.get("/api/v1/tasks")).json()["items"]}
            assert (declared["sync"]["arguments"], declared["sync"]["required"]) == (["tenant", "secret"], ["tenant"])
            enqueue = "/tasks/answer/enqueue"
            new = await act(
                client, enqueue, {"payload": {"question": "how?"}, "delay": 60, "priority": 4}, expected=201
            )
            status = await app.admin.status(new["id"])
            assert (status.task, status.priority, status.is_scheduled) == ("answer", 4, True)
            text = {"tenant": "a\x00b", "secret": None}
            huge = await act(client, "/tasks/sync/enqueue", {"payload": text}, expected=201)
            assert "a\\u0000b" in (await app.admin.job(huge["id"])).record.payload
            for body, code, expected in (
                ({}, "payload_error", 422),
                ({"payload": {"question": 7}}, "payload_error", 422),
                ({"payload": {"question": "why?"}, "delay": 1, "at": "2099-01-01T00:00:00Z"}, "declaration_error", 422),
                ({"payload": {"question": "why?"}, "queue": "nowhere"}, "unknown_queue", 404),
                ({"payload": ["why?"]}, "bad_request", 400),
                ({"payload": {"question": "[redacted]"}}, "payload_is_redacted", 422),
            ):
                assert await act(client, enqueue, body, expected=expected) == code
            assert await act(client, "/tasks/nobody/enqueue", {}, expected=404) == "unknown_task"

            again = f"/jobs/{seeds.failed}/run-again"
            same, other = (
                await act(client, again, expected=201),
                await act(client, again, {"payload": {"user": "b", "password": "p"}}, expected=201),
            )
            first, second, third = [
                json.loads((await app.admin.job(id)).record.payload) for id in (seeds.failed, same["id"], other["id"])
            ]
            assert (first, third) == (second, {"user": "b", "password": "p"})
            shown = (await client.get(f"/api/v1/jobs/{seeds.failed}")).json()["payload"]
            assert await act(client, again, {"payload": shown}, expected=422) == "payload_is_redacted"
            assert await act(client, again, {"payload": {"user": "b"}}, expected=422) == "payload_error"
            assert await act(client, "/jobs/nobody/run-again", expected=404) == "job_not_found"
            entries = await app.admin.audit_log(subject=seeds.failed)
            assert [(entry.actor, entry.action) for entry in entries] == [("local", "run again")] * 2
            assert PASSWORD not in (await client.get("/api/v1/audit")).text


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


async def test_the_arguments_of_a_task_are_described_for_a_form(app: Headgate) -> None:
    @app.task
    async def everything(
        name: str,
        count: Annotated[int, msgspec.Meta(ge=0)] = 3,
        share: float | None = None,
        is_dry: bool = False,
        mode: Literal["fast", "safe"] = "fast",
        size: Size = Size.LARGE,
        at: datetime | None = None,
        day: date = date(2027, 1, 2),
        id: UUID | None = None,
        rows: list[int] | None = None,
        password: str = "default of the code",
        *,
        untyped: Any,
    ) -> None: ...

    async with app.open(), browser(app) as client:
        found = (await client.get("/api/v1/tasks/everything")).json()["arguments"]
        shown = {
            each["name"]: (each["kind"], each["is_required"], each["is_nullable"], each["default"]) for each in found
        }
        assert shown == {
            "name": ("text", True, False, None),
            "count": ("integer", False, False, 3),
            "share": ("number", False, True, None),
            "is_dry": ("boolean", False, False, False),
            "mode": ("choice", False, False, "fast"),
            "size": ("choice", False, False, "l"),
            "at": ("datetime", False, True, None),
            "day": ("date", False, False, "2027-01-02"),
            "id": ("text", False, True, None),
            "rows": ("json", False, True, None),
            # Its name is one whose values are hidden.
            "password": ("text", False, False, None),
            "untyped": ("json", True, False, None),
        }
        choices = {each["name"]: each["choices"] for each in found if each["choices"]}
        assert choices == {"mode": ["fast", "safe"], "size": ["s", "l"]}
        assert (await client.get("/api/v1/tasks/of-another-app")).json()["arguments"] == []


async def test_an_argument_that_does_not_fit_is_named_by_a_pointer(app: Headgate) -> None:
    async with app.open(), browser(app) as client:
        for payload, pointer in (
            ({"question": 7}, "/payload/question"),
            ({"question": "a", "other": 1}, None),
            ({}, None),
        ):
            answer = await client.post("/api/v1/tasks/answer/enqueue", json={"payload": payload})
            assert problem(answer) == "payload_error"
            errors = answer.json().get("errors", [])
            assert [each["pointer"] for each in errors] == ([] if pointer is None else [pointer])


async def test_a_job_is_enqueued_with_the_options_of_a_program(app: Headgate) -> None:
    enqueue, payload = "/tasks/answer/enqueue", {"question": "why?"}
    id = "0199d3a0-8f2b-7c3d-9e4f-001122334455"
    options = {
        "id": id,
        "unique_key": "why",
        "on_conflict": "raise",
        "unique_for": "2h",
        "tags": ["vip", "api"],
        "headers": {"source": "api"},
        "delay": 3600,
        "expires_in": "10m",
        "timeout": 30,
        "retention": {"succeeded": 0, "failed": "forever"},
        "keep_result": False,
        "audit": "full",
    }
    async with app.open(), browser(app) as client:
        assert await act(client, enqueue, {"payload": payload, **options}, expected=201) == {"id": id, "is_new": True}
        record = (await app.admin.job(id)).record
        assert record.options is not None
        assert (record.unique_key, record.headers, record.options.tags) == ("why", {"source": "api"}, ("api", "vip"))
        assert (record.options.timeout, record.options.keep_result) == (30, False)
        assert record.options.retention is not None
        assert (record.options.retention.succeeded, record.options.retention.failed) == (0, None)
        assert record.expires_at is not None
        assert record.expires_at - record.run_at == 600 * SECOND
        again = {"payload": payload, **options, "id": None}
        assert await act(client, enqueue, again, expected=409) == "duplicate_job"
        assert (await act(client, enqueue, again | {"on_conflict": "keep"}))["id"] == id
        assert await act(client, "/tasks/hold/enqueue", {"payload": {"tenant": "a"}, "id": id}, expected=409)
        for wrong, code, expected in (
            ({"id": "seven"}, "declaration_error", 422),
            ({"unique_key": ""}, "declaration_error", 422),
            ({"on_conflict": "keep"}, "declaration_error", 422),
            ({"on_conflict": "ask", "unique_key": "a"}, "bad_request", 400),
            ({"unique_for": "soon", "unique_key": "a"}, "declaration_error", 422),
            ({"unique_while": ["running"], "unique_key": "a"}, "declaration_error", 422),
            ({"debounce": 5, "delay": 5, "unique_key": "a"}, "declaration_error", 422),
            ({"expires_in": 0}, "declaration_error", 422),
            ({"expires_in": 60, "expires_at": "2099-01-01T00:00:00Z"}, "declaration_error", 422),
            ({"timeout": -1}, "declaration_error", 422),
            ({"tags": ["two words"]}, "declaration_error", 422),
            ({"tags": "vip"}, "bad_request", 400),
            ({"headers": {"a": 1}}, "bad_request", 400),
            ({"headers": {"a\x00": "b"}}, "bad_request", 400),
            ({"headers": {"password": "[redacted]"}}, "payload_is_redacted", 422),
            ({"retention": {"lost": 1}}, "declaration_error", 422),
            ({"retention": "for a while"}, "declaration_error", 422),
            ({"keep_result": "no"}, "bad_request", 400),
            ({"predict": True}, "bad_request", 400),
        ):
            assert await act(client, enqueue, {"payload": payload, **wrong}, expected=expected) == code, wrong
        assert len(await app.admin.jobs()) == 1


async def test_many_jobs_are_counted_first_and_changed_then(app: Headgate) -> None:
    async with app.open():
        await app.tasks["answer"].enqueue_many([(str(number),) for number in range(5)])
        async with browser(app) as client:
            request = {"action": "cancel", "query": {"task": "answer"}, "most": 3}
            dry = await act(client, "/jobs/bulk", request | {"dry_run": True})
            assert dry == {"matched": 3, "changed": 3, "refused": {}, "is_dry_run": True, "is_cut": True}
            assert await app.admin.count(state=JobState.WAITING) == 5
            assert (await act(client, "/jobs/bulk", request))["changed"] == 3
            assert (await act(client, "/jobs/bulk", request))["is_cut"] is False
            assert (await act(client, "/jobs/bulk", request | {"action": "retry"}))["changed"] == 3
            assert await app.admin.count(state=JobState.WAITING) == 3


async def test_the_answer_says_that_a_job_with_the_unique_key_was_there(app: Headgate) -> None:
    @app.task(unique_key="{order}")
    async def pay(order: str) -> None: ...

    async with app.open(), browser(app) as client:
        first = await act(client, "/tasks/pay/enqueue", {"payload": {"order": "1"}}, expected=201)
        assert first["is_new"] is True
        again = {"id": first["id"], "is_new": False}
        assert await act(client, "/tasks/pay/enqueue", {"payload": {"order": "1"}}) == again
        assert await act(client, f"/jobs/{first['id']}/run-again") == again


async def test_an_idempotency_key_stores_one_job_however_often_it_is_sent(app: Headgate) -> None:
    enqueue, why = "/api/v1/tasks/answer/enqueue", {"payload": {"question": "why?"}, "headers": {"tenant": "acme"}}
    key = {"Idempotency-Key": "order 17"}
    async with app.open(), browser(app) as client:
        requests = [client.post(enqueue, json=why, headers=key) for _ in range(3)]
        answers = await asyncio.gather(*requests)
        assert sorted(answer.status_code for answer in answers) == [200, 200, 201]
        (id,) = {answer.json()["id"] for answer in answers}
        assert [job.id for job in await app.admin.jobs()] == [id]
        # What was not set is not in the digest, so a later release may have further options.
        digest = Codecs().digest(json.dumps(dict(sorted(why.items())), separators=(",", ":")), "it")
        assert ((await app.admin.job(id)).record.headers or {})["idempotent_request"] == f"{id}:{digest}"
        # The order of the fields does not matter, their values do.
        turned = dict(reversed(why.items()))
        assert (await client.post(enqueue, json=turned, headers=key)).json() == {"id": id, "is_new": False}
        for other in (why | {"priority": 9}, {"payload": {"question": "when?"}}):
            refused = await client.post(enqueue, json=other, headers=key)
            assert (refused.status_code, problem(refused)) == (422, "idempotency_key_reused")
        other_key = await client.post(enqueue, json=why, headers={"Idempotency-Key": "order 18"})
        other_task = await client.post("/api/v1/tasks/hold/enqueue", json={"payload": {"tenant": "a"}}, headers=key)
        assert (other_key.status_code, other_task.status_code) == (201, 201)
        for body, wrong in ((why, {"Idempotency-Key": "x" * 256}), (why | {"id": str(UUID(int=7))}, key)):
            assert problem(await client.post(enqueue, json=body, headers=wrong)) == "bad_request"
        assert len(await app.admin.jobs()) == 3


async def test_a_repeated_request_is_the_same_while_a_key_is_renewed_and_after_a_codec_was_set(tmp_path: Path) -> None:
    url, old, new = f"sqlite:///{tmp_path}/jobs.db", *(AesGcm(name, AesGcm.new_key()) for name in ("old", "new"))
    enqueue, why = "/api/v1/tasks/answer/enqueue", {"payload": {"question": "why?"}}
    programs: list[dict[str, Any]] = [
        {},
        {"old_codecs": [old]},
        {"codec": old, "old_codecs": [new]},
        {"codec": [Zlib(1), new], "old_codecs": [old]},
    ]
    for number, program in enumerate(programs):
        app = make_app(url, **program)
        async with app.open(), browser(app) as client:
            for known in range(number + 1):
                key = {"Idempotency-Key": f"order {known}"}
                answer = await client.post(enqueue, json=why, headers=key)
                assert answer.status_code == (201 if known == number else 200), (number, known)
                refused = await client.post(enqueue, json={"payload": {"question": "when?"}}, headers=key)
                assert problem(refused) == "idempotency_key_reused"


async def test_an_idempotency_key_finds_its_job_after_another_request_replaced_it(app: Headgate) -> None:
    enqueue = "/api/v1/tasks/answer/enqueue"
    first = {"payload": {"question": "why?"}, "unique_key": "q", "delay": 60}
    second = {"payload": {"question": "when?"}, "unique_key": "q", "on_conflict": "replace"}
    async with app.open(), browser(app) as client:
        stored = await client.post(enqueue, json=first, headers={"Idempotency-Key": "1"})
        replaced = await client.post(enqueue, json=second, headers={"Idempotency-Key": "2"})
        assert replaced.json() == {"id": stored.json()["id"], "is_new": False}
        again = await client.post(enqueue, json=first, headers={"Idempotency-Key": "1"})
        assert (again.status_code, again.json()) == (200, replaced.json())


async def test_a_batch_is_cancelled_with_the_batches_in_it_and_what_follows(app: Headgate) -> None:
    async with app.open():
        call = app.tasks["answer"].call
        inner = batch([call("c")]).then(call("d"), on="final")
        stored = await batch([call("a"), call("b"), inner]).then(call("e"), on="final").enqueue()
        async with browser(app) as client:
            path = f"/batches/{stored.id}/cancel"
            counted = await act(client, path, {"dry_run": True})
            assert counted == {"matched": 5, "changed": 5, "refused": {}, "is_dry_run": True, "is_cut": False}
            assert await act(client, path, {"most": 2}) == counted | {
                "matched": 2, "changed": 2, "is_dry_run": False, "is_cut": True
            }  # fmt: skip
            assert (await act(client, path))["changed"] == 3
            assert (await app.admin.batch(stored.id)).state is JobState.CANCELLED
            assert await act(client, "/batches/gone/cancel", expected=404) == "batch_not_found"


async def test_waiting_jobs_are_rescheduled_by_their_ids_or_a_filter(app: Headgate) -> None:
    async with app.open():
        jobs = await app.tasks["answer"].enqueue_many([(str(number),) for number in range(3)])
        async with browser(app) as client:
            request = {"action": "reschedule", "at": "2099-01-01T00:00:00Z", "priority": 6}
            by_filter = request | {"query": {"task": "answer"}}
            assert (await act(client, "/jobs/bulk", by_filter | {"dry_run": True}))["changed"] == 3
            assert (await act(client, "/jobs/bulk", request | {"ids": [jobs[0].id]}))["changed"] == 1
            assert (await act(client, "/jobs/bulk", by_filter))["changed"] == 2
            assert {(await job.status()).priority for job in jobs} == {6}
            assert await app.admin.count(view="scheduled") == 3
            assert await act(client, "/jobs/bulk", request | {"query": {}, "action": "cancel"}, expected=400)
            assert await act(client, "/jobs/bulk", {"action": "reschedule", "query": {}}, expected=422)


async def test_final_jobs_are_deleted_for_good_by_admins(app: Headgate) -> None:
    async with app.open():
        jobs = await app.tasks["answer"].enqueue_many([(str(number),) for number in range(4)])
        await app.admin.cancel_many([job.id for job in jobs[:3]])
        async with browser(app) as client:
            assert (await client.delete(f"/api/v1/jobs/{jobs[0].id}")).json() == {"changed": True}
            assert (await client.delete(f"/api/v1/jobs/{jobs[0].id}")).status_code == 404
            refused = await client.delete(f"/api/v1/jobs/{jobs[3].id}")
            assert (refused.status_code, problem(refused)) == (409, "illegal_transition")
            named = {"ids": [job.id for job in jobs], "dry_run": True}
            assert (await act(client, "/jobs/purge", named))["changed"] == 2
            assert await app.admin.count() == 3
            done = await act(client, "/jobs/purge", {"query": {"state": "cancelled"}, "most": 1})
            assert done == {"matched": 1, "changed": 1, "refused": {}, "is_dry_run": False, "is_cut": True}
            assert (await act(client, "/jobs/purge", {"ids": [job.id for job in jobs]}))["changed"] == 1
            assert await act(client, "/jobs/purge", {"query": {"state": "waiting"}}, expected=422)
            assert await app.admin.count() == 1
            entries = await app.admin.audit_log(kind="queue")
            assert [entry.action for entry in entries] == ["purge", "purge", "delete"]
        operator = CallbackAuth(lambda request: User("olga", "operator"))
        async with browser(app, auth=operator) as client:
            assert await act(client, "/jobs/purge", {"query": {}}, expected=403) == "not_allowed"
            assert (await client.delete(f"/api/v1/jobs/{jobs[3].id}")).status_code == 403


async def test_a_queue_is_purged_after_its_waiting_jobs_were_counted(app: Headgate) -> None:
    async with app.open():
        await app.tasks["answer"].enqueue_many([(str(number),) for number in range(3)])
        await app.tasks["answer"].using(delay=60).enqueue("later")
        async with browser(app) as client:
            assert (await act(client, "/queues/default/purge", {"dry_run": True}))["changed"] == 4
            assert (await act(client, "/queues/default/purge", {"most": 3}))["is_cut"] is True
            assert (await act(client, "/queues/default/purge"))["changed"] == 1
            entries = await app.admin.audit_log(kind="queue", subject="default")
            assert [entry.detail for entry in entries] == ["1 waiting job cancelled", "3 waiting jobs cancelled"]
            assert (await act(client, "/jobs/bulk", {"action": "retry", "query": {}}))["changed"] == 4


async def test_queues_are_paused_and_resumed(app: Headgate) -> None:
    async with app.open(), browser(app) as client:
        assert await act(client, "/queues/default/pause") == {"changed": True}
        assert await act(client, "/queues/default/pause") == {"changed": False}
        assert await act(client, "/queues/default/resume", {}, expected=200) == {"changed": True}
        assert await act(client, "/queues/nothing/pause", expected=404) == "unknown_queue"


async def test_nodes_are_quieted_resumed_and_stopped_and_get_other_slots(app: Headgate) -> None:
    async with app.open(), browser(app) as client:
        for id, name in (("node-1", "mail-1"), ("node-2", "web"), ("node-3", "web")):
            await store_of(app).join(id, name, controls=NodeControls({"default": 4, "mail": 1}))

        async def node() -> dict[str, Any]:
            items = (await client.get("/api/v1/nodes")).json()["items"]
            return next(dict(item) for item in items if item["id"] == "node-1")

        assert await act(client, "/nodes/mail-1/quiet") == {"changed": True}
        assert await act(client, "/nodes/node-1/quiet") == {"changed": False}
        assert ((await node())["is_quiet"], (await node())["slots"]) == (True, 5)
        assert await act(client, "/nodes/mail-1/resume") == {"changed": True}
        assert await act(client, "/nodes/mail-1/slots", {"slots": 3}) == {"changed": True}
        assert await act(client, "/nodes/mail-1/slots", {"slots": 7, "queue": "mail"}) == {"changed": True}
        assert ((await node())["queues"], (await node())["slots"]) == ({"default": 4, "mail": 7}, 3)
        assert await act(client, "/nodes/mail-1/slots", {"slots": 12}, expected=422) == "declaration_error"
        assert await act(client, "/nodes/mail-1/slots", {"slots": -1}, expected=400) == "bad_request"
        assert await act(client, "/nodes/mail-1/slots", {"slots": 1, "queue": "x"}, expected=404) == "unknown_queue"
        assert await act(client, "/nodes/node-3/rename", {"name": "api"}) == {"changed": True}
        assert await act(client, "/nodes/api/rename", {"name": "api"}) == {"changed": False}
        assert await act(client, "/nodes/api/rename", {"name": "two words"}, expected=422) == "declaration_error"
        assert await act(client, "/nodes/node-3/rename", {"name": "web"}) == {"changed": True}
        assert await act(client, "/nodes/web/stop", expected=409) == "ambiguous_node"
        assert await act(client, "/nodes/nobody/stop", expected=404) == "node_not_found"
        assert await act(client, "/nodes/mail-1/stop") == {"changed": True}
        assert (await node())["is_stopping"]
        entries = [each for each in await app.admin.audit_log(kind="node") if each.action != "rename"]
        assert [entry.action for entry in entries] == ["stop", "set slots", "set slots", "resume", "quiet"]
        assert {(entry.actor, entry.subject) for entry in entries} == {("local", "mail-1")}


async def test_limits_are_changed(app: Headgate) -> None:
    async with app.open(), browser(app) as client:
        path = f"/limits/{API}"
        assert await act(client, f"{path}/set", {"rule": "7/m", "key": HOSTILE}) == {"changed": True}
        (setting,) = await app.admin.limits.settings(LIMIT)
        assert (setting.scope, setting.target) == ("key", HOSTILE)
        assert await act(client, f"{path}/set", {"rule": "9/h", "tier": "gold", "kind": "rate", "burst": 3})
        assert await act(client, f"{path}/assign", {"key": "acme", "tier": "gold"}) == {"changed": True}
        await act(client, f"{path}/penalize", {"key": "acme", "seconds": 60})
        bucket = (await client.get(f"/api/v1{path}/bucket?key=acme")).json()
        assert (bucket["count"], bucket["is_set"], bucket["penalized_until"] is None) == (9, True, False)
        await act(client, f"{path}/penalize", {"key": "acme", "until": "2099-01-01T00:00:00Z"})
        assert await act(client, f"{path}/penalize", {"key": "acme"}, expected=400) == "bad_request"
        assert await act(client, f"{path}/reset", {"key": "acme"}) == {"permits_held": 0}
        assert await act(client, f"{path}/pause") == {"changed": True}
        assert await act(client, f"{path}/resume") == {"changed": True}
        assert await act(client, f"{path}/resume") == {"changed": False}
        assert await act(client, f"{path}/unset", {"tier": "gold"}) == {"changed": True}
        assert await act(client, f"{path}/assign", {"key": "acme", "tier": None}) == {"changed": True}
        assert await act(client, "/limits/permits/set", {"rule": "5"}) == {"changed": True}
        twice = {"rule": "1/m", "key": "a", "tier": "b"}, {"rule": "1/m", "key": "a", "pattern": "a*"}
        for body in ({"rule": "much"}, {"rule": "0/m"}, {"rule": "1/m", "pattern": "plain"}, *twice):
            assert await act(client, f"{path}/set", body, expected=422) == "declaration_error"


async def test_a_key_is_a_pattern_only_if_the_request_says_so(app: Headgate) -> None:
    async with app.open(), browser(app) as client:
        path = f"/limits/{API}"
        longest = "k" * 3000
        for key in ("order[5]", "a*", longest):
            await act(client, f"{path}/pause", {"key": key})
            await act(client, f"{path}/assign", {"key": key, "tier": "gold"})
            await act(client, f"{path}/set", {"tier": "gold", "rule": "9/h"})
            bucket = (await client.get(f"/api/v1{path}/bucket", params={"key": key})).json()
            assert (bucket["is_paused"], bucket["is_set"]) == (True, True)
            assert await act(client, f"{path}/resume", {"key": key}) == {"changed": True}
            await act(client, f"{path}/assign", {"key": key, "tier": None})
        assert [setting.scope for setting in await app.admin.limits.settings(LIMIT)] == ["tier"]
        for key in ("order5", "ab"):
            assert not (await app.admin.limits.bucket(LIMIT, key)).is_paused
        await act(client, f"{path}/pause", {"pattern": "a*"})
        await act(client, f"{path}/assign", {"pattern": "o?", "tier": "gold"})
        assert (await app.admin.limits.bucket(LIMIT, "ab")).is_paused
        assert (await app.admin.limits.bucket(LIMIT, "ox")).is_set
        assert await act(client, f"{path}/resume", {"pattern": "a*"}) == {"changed": True}
        assert await act(client, "/limits/permits/set", {"rule": "5/m"}, expected=422) == "declaration_error"
        assert await act(client, "/limits/nothing/pause", expected=404) == "unknown_limit"
        removed = await client.delete(f"/api/v1{path}")
        assert removed.json() == {"changed": True}
        assert list(await app.admin.limits.settings(LIMIT)) == []


async def test_removing_an_unknown_object_leaves_no_audit_record(app: Headgate) -> None:
    async with app.open(), browser(app) as client:
        for path, code in (("/limits/nope", "unknown_limit"), ("/schedules/nope", "schedule_not_found")):
            answer = await client.delete(f"/api/v1{path}")
            assert (answer.status_code, problem(answer)) == (404, code)
        assert await app.admin.audit_log() == []


async def test_a_delete_that_was_meant_for_an_action_removes_no_limit_of_that_name(app: Headgate) -> None:
    for name in ("x", "x/pause"):
        app.limit(name, StrictRate("1/m"))
    async with app.open(), browser(app) as client:
        for name in ("x", "x/pause"):
            await app.admin.limits.pause(name)
        answer = await client.delete("/api/v1/limits/x/pause")
        assert (answer.status_code, problem(answer)) == (404, "not_found")
        assert len(await app.admin.limits.settings()) == 2
        assert (await client.delete("/api/v1/limits/x%2Fpause")).json() == {"changed": True}
        assert [setting.limit for setting in await app.admin.limits.settings()] == ["x"]


async def test_schedules_are_paused_fired_skipped_and_removed(app: Headgate) -> None:
    async with app.open():
        await seed(app)
        async with browser(app) as client:
            path = f"/schedules/{NAME}"
            first, second = (await client.get(f"/api/v1{path}")).json()["next_runs"][:2]
            assert await act(client, f"{path}/skip") == {"skipped": first}
            assert (await client.get(f"/api/v1{path}")).json()["next_runs"][0] == second
            job = (await act(client, f"{path}/trigger"))["job"]
            assert (await app.admin.status(job)).task == "answer"
            assert await act(client, f"{path}/pause") == {"changed": True}
            assert await act(client, f"{path}/resume") == {"changed": True}
            assert await act(client, "/schedules/nothing/skip", expected=404) == "schedule_not_found"
            assert (await client.delete(f"/api/v1{path}")).json() == {"changed": True}
            assert (await client.get(f"/api/v1{path}")).status_code == 404
            entries = await app.admin.audit_log(kind="schedule", actor="local")
            assert [entry.action for entry in entries] == ["remove", "resume", "pause", "trigger", "skip"]


async def test_the_next_runs_of_a_schedule_are_shown_before_it_is_stored(app: Headgate) -> None:
    async with app.open():
        await app.admin.schedules.create("stored", "answer", Every("6h"), {"question": "how?"})
        async with browser(app) as client:

            async def preview(**query: str) -> Any:
                found = await client.get("/api/v1/schedule-preview", params=query)
                assert found.status_code == 200, found.text
                return found.json()

            windows = {"between": "8:00 - 18:00", "on": "weekday", "exclude": "12-25, 12-31..01-02"}
            found = await preview(cron="0 9,20 * * *", tz="Europe/Rome", **windows)
            runs = [datetime.fromisoformat(each).astimezone(ZoneInfo("Europe/Rome")) for each in found["next_runs"]]
            assert [(run.hour, run.weekday() < 5) for run in runs] == [(9, True)] * 5
            assert runs == sorted(runs)
            assert runs[0] > datetime.fromisoformat(found["now"])
            assert (await preview(every="1m", max_runs="2"))["error"] is None
            assert len((await preview(every="1m", max_runs="2"))["next_runs"]) == 2
            # A stored one keeps its rhythm.
            kept = (await client.get("/api/v1/schedules/stored")).json()["next_runs"]
            assert (await preview(schedule="stored"))["next_runs"] == kept
            assert (await preview(schedule="stored", every="6h"))["next_runs"] == kept
            assert (await preview(schedule="stored", every="1m"))["next_runs"][0] < kept[0]
            for query, said in (
                ({"cron": "0 99 * * *"}, "hour 99 is not in 0-23"),
                ({"every": "1m", "between": "8:00"}, "two times of day"),
                ({}, "needs cron, every or calendar"),
            ):
                found = await preview(**query)
                assert (found["next_runs"], said in found["error"]) == ([], True), found
            assert (await client.get("/api/v1/schedule-preview?schedule=nobody&every=1m")).status_code == 404
            assert [each.name for each in await app.admin.schedules.list()] == ["stored"]


async def test_the_runs_of_a_day_are_listed_for_the_schedules_that_are_due_next(app: Headgate) -> None:
    async with app.open():
        schedules = app.admin.schedules
        periods = {"often": "5m", "hours": "6h", "later": "30d", "off": "1h"}
        for name, trigger in {name: Every(period) for name, period in periods.items()}.items():
            await schedules.create(name, "answer", trigger, {"question": "how?"})
        await schedules.pause("off")
        async with browser(app) as client:
            day = (await client.get("/api/v1/schedule-day")).json()
            found = {each["name"]: each for each in day["items"]}
            assert (list(found), day["total"]) == (["often", "hours"], 2)
            assert [(len(each["runs"]), each["is_cut"]) for each in found.values()] == [(24, True), (4, False)]
            runs = [datetime.fromisoformat(at) for at in found["hours"]["runs"]]
            now, until = (datetime.fromisoformat(day[name]) for name in ("now", "until"))
            assert (until - now, all(now < at < until for at in runs)) == (timedelta(days=1), True)


async def test_a_new_zone_alone_moves_a_schedule_with_its_windows(app: Headgate) -> None:
    """The fault: it was refused, or only the windows were moved."""
    async with app.open(), browser(app) as client:
        new = {"name": "moved", "task": "answer", "payload": {"question": "how?"}, "cron": "0 9 * * *"}
        await act(client, "/schedules", new | {"tz": "Europe/Rome"})
        edited = await act(client, "/schedules/moved/edit", {"tz": "Asia/Tokyo"})
        assert edited["trigger"] == "cron 0 9 * * * (Asia/Tokyo)"
        windows = {"between": ["8:00", "18:00"]}
        edited = await act(client, "/schedules/moved/edit", {"tz": "Europe/Lisbon"} | windows)
        of_lisbon = "cron 0 9 * * * (Europe/Lisbon), between 8:00 and 18:00 (Europe/Lisbon)"
        assert edited["trigger"] == of_lisbon
        # A form sends the zone that it was opened with.
        edited = await act(client, "/schedules/moved/edit", {"tz": "Europe/Lisbon", "max_runs": 9} | windows)
        assert (edited["trigger"], edited["max_runs"]) == (of_lisbon, 9)
        weekly = {"calendar": "every 2 weeks on mon at 9:00 from 2027-01-04", "tz": "Europe/Rome"}
        await act(client, "/schedules/moved/edit", weekly)
        edited = await act(client, "/schedules/moved/edit", {"tz": "Asia/Tokyo"})
        assert edited["trigger"] == "every 2 weeks on mon at 9:00 (Asia/Tokyo)"
        definition = (await client.get("/api/v1/schedules/moved")).json()["definition"]
        assert (definition["calendar"], definition["tz"]) == (weekly["calendar"], "Asia/Tokyo")


async def test_an_edit_with_the_zone_that_a_schedule_has_is_no_error(app: Headgate) -> None:
    """The fault: an edit with a zone was refused when it was sent again, as if it were one for windows only."""
    async with app.open(), browser(app) as client:
        new = {"name": "moved", "task": "answer", "payload": {"question": "how?"}, "cron": "0 9 * * *"}
        await act(client, "/schedules", new | {"tz": "Europe/Rome"})
        for windows in ({}, {}, {"between": ["8:00", "18:00"]}, {}):
            edited = await act(client, "/schedules/moved/edit", {"tz": "Asia/Tokyo", "max_runs": 9} | windows)
            shown = "cron 0 9 * * * (Asia/Tokyo)" + (", between 8:00 and 18:00 (Asia/Tokyo)" if windows else "")
            assert (edited["trigger"], edited["max_runs"]) == (shown, 9)
        # Windows may have a zone of their own; a form sends that.
        await app.admin.schedules.remove("moved")
        arguments, between = {"question": "how?"}, ("8:00", "18:00")
        trigger = Cron("0 9 * * *", tz="Europe/Rome")
        await app.admin.schedules.create("moved", "answer", trigger, arguments, between=between, tz="Europe/Lisbon")
        edited = await act(client, "/schedules/moved/edit", {"tz": "Europe/Lisbon", "between": list(between)})
        assert edited["trigger"] == "cron 0 9 * * * (Europe/Rome), between 8:00 and 18:00 (Europe/Lisbon)"


async def test_schedules_are_created_and_edited(app: Headgate) -> None:
    async with app.open():
        await seed(app)
        async with browser(app) as client:
            new = {"name": HOSTILE + "2", "task": "answer", "payload": {"question": "how?"}, "priority": 4}
            windows = {"between": ["8:00", "18:00"], "on": ["weekday"], "exclude": ["12-25"], "jitter": 30}
            created = await act(client, "/schedules", new | windows | {"every": "10m", "tz": "Europe/Rome"})
            assert (created["state"], created["is_declared"], created["jitter"]) == ("active", False, 30)
            path = f"/schedules/{quote(HOSTILE + '2', safe='')}"
            shown = (await client.get(f"/api/v1{path}")).json()
            assert shown["definition"] == {
                "task": "answer",
                "payload": {"question": "how?"}, "queue": "default", "priority": 4, "cron": None, "every": "10m",
                "calendar": None, "tz": "Europe/Rome", "between": ["8:00", "18:00"], "on": ["weekday"],
                "exclude": ["12-25"],
            }  # fmt: skip
            edited = await act(client, f"{path}/edit", {"cron": "0 6 * * *", "tz": "Asia/Tokyo", "max_runs": 9})
            assert (edited["trigger"], edited["max_runs"], edited["jitter"], edited["tz"]) == (
                "cron 0 6 * * * (Asia/Tokyo)", 9, None, "Asia/Tokyo",
            )  # fmt: skip
            definition = (await client.get(f"/api/v1{path}")).json()["definition"]
            assert (definition["payload"], definition["priority"]) == ({"question": "how?"}, 4)
            await act(client, f"{path}/edit", {"payload": {"question": "when?"}})
            assert (await client.get(f"/api/v1{path}")).json()["definition"]["payload"] == {"question": "when?"}
            assert (await app.admin.schedules.status(HOSTILE + "2")).trigger == "cron 0 6 * * * (Asia/Tokyo)"

            text = "every 2 weeks on mon, wed at 9:00, 17:30 from 2027-01-04"
            edited = await act(client, f"{path}/edit", {"calendar": text, "tz": "Asia/Tokyo"})
            assert edited["trigger"] == "every 2 weeks on mon, wed at 9:00, 17:30 (Asia/Tokyo)"
            definition = (await client.get(f"/api/v1{path}")).json()["definition"]
            assert (definition["calendar"], definition["tz"], definition["cron"]) == (text, "Asia/Tokyo", None)

            for body, code, expected in (
                (new | {"every": "10m"}, "schedule_exists", 409),
                (new | {"name": "x", "calendar": "each monday"}, "declaration_error", 422),
                (new | {"name": "x", "calendar": "every day", "every": "10m"}, "declaration_error", 422),
                (new | {"name": "hourly", "every": "10m"}, "schedule_exists", 409),
                (new | {"name": "x", "task": "nobody", "every": "10m"}, "unknown_task", 404),
                (new | {"name": "x"}, "declaration_error", 422),
                (new | {"name": "x", "cron": "61 * * * *"}, "declaration_error", 422),
                (new | {"name": "x", "every": "10m", "cron": "0 6 * * *"}, "declaration_error", 422),
                (new | {"name": "x", "every": "10m", "tz": "Europe/Rome"}, "declaration_error", 422),
                (new | {"name": "x", "every": "10m", "payload": {"question": 7}}, "payload_error", 422),
                (
                    new | {"name": "x", "every": "10m", "payload": {"question": "[redacted]"}},
                    "payload_is_redacted",
                    422,
                ),
                (new | {"name": "x", "every": "10m", "until": "2099-01-01"}, "bad_request", 400),
            ):
                assert await act(client, "/schedules", body, expected=expected) == code
            # One of the code is the code's, and so is one that the code would store.
            assert await act(client, "/schedules/hourly/edit", {"every": "5m"}, expected=409) == "schedule_declared"
            assert await act(client, "/schedules/nobody/edit", {"every": "5m"}, expected=404) == "schedule_not_found"
            assert (await client.delete(f"/api/v1{path}")).json() == {"changed": True}
            entries = await app.admin.audit_log(kind="schedule", actor="local")
            assert [(entry.action, entry.detail) for entry in entries] == [
                ("remove", None),
                ("edit", "every 2 weeks on mon, wed at 9:00, 17:30 (Asia/Tokyo)"),
                ("edit", "arguments"),
                ("edit", "cron 0 6 * * * (Asia/Tokyo)"),
                ("create", "every 10 minutes, between 8:00 and 18:00, on weekday, except 12-25 (Europe/Rome)"),
            ]


async def test_the_arguments_of_a_schedule_are_redacted(app: Headgate) -> None:
    async with app.open(), browser(app) as client:
        payload = {"user": "ada", "password": PASSWORD}
        await act(client, "/schedules", {"name": "logins", "task": "login", "every": "1h", "payload": payload})
        answer = await client.get("/api/v1/schedules/logins")
        assert PASSWORD not in answer.text
        assert answer.json()["definition"]["payload"] == {"user": "ada", "password": "[redacted]"}


async def test_encoded_arguments_are_run_again_and_those_of_a_schedule_are_shown_to_operators() -> None:
    app = make_app(codec=AesGcm("2026-11", AesGcm.new_key()))
    async with app.open(), browser(app) as client:
        old = await app.tasks["answer"].enqueue("why?")
        for payload, question in ((None, "why?"), ({"question": "how?"}, "how?")):
            new = (await act(client, f"/jobs/{old.id}/run-again", {"payload": payload}, expected=201))["id"]
            stored = (await app.admin.job(new)).record.payload
            assert stored.startswith("encoded:")
            assert json.loads(app.admin.decoded(stored)) == {"question": question}
        body = {"name": "x", "task": "answer", "every": "1h", "payload": {"question": "when?"}}
        await act(client, "/schedules", body)
        assert (await app.admin.schedules.definition("x")).payload.startswith("encoded:")
        assert (await client.get("/api/v1/schedules/x")).json()["definition"]["payload"] == {"question": "when?"}
        viewer = CallbackAuth(lambda request: User("vic", "viewer"))
        async with browser(app, auth=viewer) as other:
            shown = (await other.get("/api/v1/schedules/x")).json()["definition"]["payload"]
            assert shown == "[encoded: aes-gcm.2026-11]"


async def test_a_change_is_visible_to_its_author_immediately(app: Headgate) -> None:
    async with app.open(), browser(app) as client:
        for is_paused, action in ((True, "pause"), (False, "resume"), (True, "pause")):
            (queue,) = (await client.get("/api/v1/queues")).json()["items"]
            assert queue["is_paused"] is not is_paused
            await act(client, f"/queues/default/{action}")
            (queue,) = (await client.get("/api/v1/overview")).json()["queues"]
            assert queue["is_paused"] is is_paused
