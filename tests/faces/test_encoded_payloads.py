"""What users see of encoded payloads: the names of the codecs, and the values only where they ask with a key."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate import AesGcm, Every, Headgate, JobFailed, PayloadFolder, RetryPolicy
from headgate.clock import SystemClock
from headgate.http import CallbackAuth, User
from headgate.http.auth import Role
from headgate.storage.sqlite.memory import MemoryStorage
from tests.faces.http.stage import browser
from tests.faces.one_module import OneModule, answer, call, go_into
from tests.internals import app_on
from tests.until import patient, result_within

SECRET = "hunter2-swordfish"
PASSWORD = "correct horse battery"
CODEC = AesGcm("2026-11", AesGcm.new_key())
HIDDEN = "[encoded: aes-gcm.2026-11]"

APP = f"""
import os

from headgate import AesGcm, Every, Headgate, RetryPolicy

keys = [AesGcm(*pair.split("=", 1)) for pair in os.environ.get("PAYLOAD_KEYS", "").split(",") if pair]
app = Headgate("sqlite:///jobs.db", codec=keys[:1], old_codecs=keys[1:], retry=RetryPolicy(retries=0))


@app.task
async def pay(card: str) -> str:
    return "paid with " + card


@app.task
async def miscount(card: str) -> int:
    return card


@app.schedule(Every(hours=1), args=["{SECRET}"])
@app.task
async def hourly(card: str) -> None: ...
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OneModule:
    go_into(tmp_path, monkeypatch)
    monkeypatch.setenv("PAYLOAD_KEYS", f"2026-11={AesGcm.new_key()}")
    return OneModule(tmp_path, APP)


def run_to_the_end(project: OneModule) -> tuple[str, str]:
    """The ids of a job that has succeeded, and of one that has failed."""

    async def work(app: Headgate) -> tuple[str, str]:
        paid = await app.tasks["pay"].enqueue(SECRET)
        failed = await app.tasks["miscount"].enqueue(SECRET)
        assert await result_within(paid) == f"paid with {SECRET}"
        with suppress(JobFailed):
            await result_within(failed)
        return paid.id, failed.id

    return project.do(work, running=True)


def test_the_command_line_shows_payloads_only_with_decode(project: OneModule) -> None:
    paid, failed = run_to_the_end(project)
    for words in (
        ("jobs", "show", "--app", project.target, paid, failed),
        ("jobs", "show", "--app", project.target, paid, failed, "--json"),
        ("jobs", "list", project.target),
        ("jobs", "list", project.target, "--json"),
        ("jobs", "explain", "--app", project.target, paid, failed),
        ("jobs", "logs", "--app", project.target, failed),
        ("failures", project.target),
        ("schedules", "list", project.target),
        ("status", project.target),
        ("audit", project.target),
        ("doctor", project.target),
    ):
        shown = call(*words)
        assert SECRET not in shown.output
        assert shown.exit_code in (0, 1), shown.output
        assert "encoded:" not in shown.output.replace("[encoded:", "")
    for options in ((), ("--json",)):
        shown = call("jobs", "show", "--app", project.target, paid, *options)
        assert shown.output.count(HIDDEN) == 2
    (decoded,) = answer("jobs", "show", "--app", project.target, paid, "--decode")
    assert (decoded["payload"], decoded["result"]) == ({"card": SECRET}, f"paid with {SECRET}")
    assert SECRET in call("jobs", "show", "--app", project.target, paid, "--decode").output


def test_the_command_line_without_the_key_says_what_it_lacks(
    project: OneModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    paid, _ = run_to_the_end(project)
    monkeypatch.setenv("PAYLOAD_KEYS", "")
    keyless = OneModule(project.path, APP)
    shown = call("jobs", "show", "--app", keyless.target, paid)
    assert shown.output.count(HIDDEN) == 2
    refused = call("jobs", "show", "--app", keyless.target, paid, "--decode")
    assert refused.exit_code == 1
    assert "encoded with 'aes-gcm.2026-11', and this app has no codec" in refused.output
    assert refused.output.count(HIDDEN) == 2


def test_jobs_that_cannot_be_decoded_hide_no_others(project: OneModule, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: one of several ids that could not be decoded was all that was printed."""
    paid, _ = run_to_the_end(project)
    monkeypatch.setenv("PAYLOAD_KEYS", f"2027-05={AesGcm.new_key()}")
    renewed = OneModule(project.path, APP)
    other = renewed.do(_enqueued)
    for options in ((), ("--json",)):
        shown = call("jobs", "show", "--app", renewed.target, paid, other, "--decode", *options)
        assert shown.exit_code == 1
        assert SECRET in shown.output
        assert f"job {paid}: it cannot be decoded: it is encoded with 'aes-gcm.2026-11'" in shown.output
        assert f"job {other}:" not in shown.output


async def _enqueued(app: Headgate) -> str:
    return (await app.tasks["pay"].enqueue(SECRET)).id


def test_text_finds_nothing_in_encoded_payloads(project: OneModule) -> None:
    paid, _ = run_to_the_end(project)
    for text in (SECRET, "aes-gcm", "=", "A", "encoded"):
        assert answer("jobs", "list", project.target, "--text", text) == []
        assert call("jobs", "count", project.target, "--text", text).output.strip() == "0"
    assert answer("jobs", "list", project.target, "--task", "pay")[0]["id"] == paid


def test_schedules_are_encoded_anew_on_command(project: OneModule, monkeypatch: pytest.MonkeyPatch) -> None:
    async def put(app: Headgate) -> None:
        await app.tasks["pay"].schedule("often", Every(hours=1)).enqueue(SECRET)

    project.do(put)
    monkeypatch.setenv("PAYLOAD_KEYS", f"2027-05={AesGcm.new_key()},{os.environ['PAYLOAD_KEYS']}")
    renewed = OneModule(project.path, APP)
    assert answer("schedules", "reencode", renewed.target) == {"changed": 1}
    assert call("schedules", "reencode", renewed.target).output.strip() == "0 schedules encoded anew"
    stored = (project.path / "jobs.db").read_bytes() + b"".join(
        each.read_bytes() for each in project.path.glob("jobs.db-wal")
    )
    assert b"aes-gcm.2027-05" in stored
    assert SECRET.encode() not in stored
    monkeypatch.setenv("PAYLOAD_KEYS", "")
    refused = call("schedules", "reencode", OneModule(project.path, APP).target)
    assert refused.exit_code == 1
    assert "encoded with 'aes-gcm.2027-05'" in refused.output


@pytest.mark.slow
def test_a_worker_writes_no_value_to_its_output(project: OneModule) -> None:
    paid, failed = (project.enqueue(task, SECRET) for task in ("pay", "miscount"))
    worker = subprocess.run(
        [sys.executable, "-m", "headgate", "worker", project.target, "--drain", "--log-level", "debug"],
        cwd=project.path,
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )
    output = worker.stdout + worker.stderr
    assert worker.returncode == 0, output
    assert SECRET not in output
    assert failed in output
    assert "does not survive JSON" in output or "does not fit its annotation" in output
    assert answer("jobs", "show", "--app", project.target, paid, "--decode")[0]["result"] == f"paid with {SECRET}"


# ----------------------------------------------------------------------------------------------------- dashboard


def make_app(store: MemoryStorage, **settings: Any) -> Headgate:
    app = app_on(store, retry=RetryPolicy(retries=0), **settings)

    @app.task
    async def pay(card: str, password: str) -> dict[str, str]:
        return {"card": card, "password": password}

    @app.task
    async def login(card: str, password: str) -> None:
        logging.getLogger("work").warning("trying %s", password)
        raise PermissionError(f"{password} is wrong")

    return app


async def seen(app: Headgate, role: Role, paths: list[str]) -> list[httpx.Response]:
    async with browser(app, auth=CallbackAuth(lambda request: User("ada", role))) as client:
        return [await client.get(path) for path in paths]


async def test_operators_see_decoded_payloads_and_viewers_the_names_of_the_codecs() -> None:
    store = MemoryStorage(SystemClock())
    app = make_app(store, codec=CODEC)
    async with app:
        paid = await app.tasks["pay"].enqueue(SECRET, PASSWORD)
        await result_within(paid)
        failed = await app.tasks["login"].enqueue(SECRET, PASSWORD)
        with pytest.raises(JobFailed):
            await result_within(failed)
    paths = [
        "/api/v1/jobs?count=10",
        f"/api/v1/jobs/{paid.id}",
        f"/api/v1/jobs/{failed.id}",
        f"/api/v1/jobs/{failed.id}/logs",
        f"/api/v1/jobs/{failed.id}/explain",
        "/api/v1/failures",
        f"/api/v1/failures/{failed.id}",
        "/api/v1/overview",
    ]
    async with app.open():
        listed, details, *others = await seen(app, "viewer", paths)
        assert {job["payload"] for job in listed.json()["items"]} == {HIDDEN}
        assert (details.json()["payload"], details.json()["result"]) == (HIDDEN, HIDDEN)
        for response in (listed, details, *others):
            assert response.status_code == 200, response.text
            assert SECRET not in response.text
            # Of an encoded payload, too, the redacted values are hidden in errors and log lines.
            assert PASSWORD not in response.text

        listed, details, *others = await seen(app, "operator", paths)
        assert {job["payload"] for job in listed.json()["items"]} == {f'{{"card":"{SECRET}","password":"[redacted]"}}'}
        shown = {"card": SECRET, "password": "[redacted]"}
        assert (details.json()["payload"], details.json()["result"]) == (shown, shown)
        for response in (listed, details, *others):
            assert PASSWORD not in response.text

    for settings in ({}, {"codec": AesGcm("2026-11", AesGcm.new_key())}):
        unable = make_app(store, **settings)
        async with unable.open():
            listed, details, *_ = await seen(unable, "admin", paths[:2])
            assert {job["payload"] for job in listed.json()["items"]} == {HIDDEN}
            assert (details.json()["payload"], details.json()["result"]) == (HIDDEN, HIDDEN)


def test_what_is_in_a_folder_is_shown_as_such_and_read_only_with_decode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec")
    go_into(tmp_path, monkeypatch)
    folder = f'PayloadFolder("file://{tmp_path / "large"}", above=100)'
    app = APP.replace("codec=", f"large_payloads={folder}, codec=", 1)
    app = app.replace("AesGcm, Every", "AesGcm, Every, PayloadFolder")
    project = OneModule(tmp_path, app)
    card = SECRET * 20

    async def work(app: Headgate) -> str:
        paid = await app.tasks["pay"].enqueue(card)
        assert await result_within(paid) == f"paid with {card}"
        id: str = paid.id
        return id

    paid = project.do(work, running=True)
    shown = call("jobs", "show", "--app", project.target, paid)
    assert shown.output.count("[encoded: folder]") == 2
    assert SECRET not in shown.output
    (decoded,) = answer("jobs", "show", "--app", project.target, paid, "--decode")
    assert (decoded["payload"], decoded["result"]) == ({"card": card}, f"paid with {card}")

    # A folder that is not mounted once hid all jobs that were asked for.
    other = project.do(_enqueued)
    (tmp_path / "large").rename(tmp_path / "away")
    refused = call("jobs", "show", "--app", project.target, paid, other, "--decode")
    assert refused.exit_code == 1
    assert refused.output.count("[encoded: folder]") == 2
    assert SECRET in refused.output
    assert f"job {paid}: reading in the folder of large payloads" in refused.output


async def test_the_dashboard_never_shows_what_is_in_a_folder() -> None:
    pytest.importorskip("fsspec")
    folder = PayloadFolder("memory://dashboard", above=100)
    app = app_on(MemoryStorage(SystemClock()), large_payloads=folder)

    @app.task
    async def pay(card: str) -> str:
        return card

    async with app:
        job = await pay.enqueue(SECRET * 20)
        await result_within(job)
        async with browser(app) as client:
            for path in (f"/api/v1/jobs/{job.id}", "/api/v1/jobs"):
                shown = await client.get(path)
                assert shown.status_code == 200
                assert "[encoded: folder]" in shown.text
                assert SECRET not in shown.text
