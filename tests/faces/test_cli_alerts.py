"""`headgate alerts`, and where other commands and the API show alerts."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headgate import Headgate
from headgate.cli.main import main
from headgate.jobs.alert import HeldCondition
from tests.faces.http.stage import browser
from tests.faces.one_module import OneModule, go_into
from tests.internals import store_of
from tests.until import patient

APP = """
from headgate import Headgate

app = Headgate("sqlite:///jobs.db", synchronous="OFF")
app.queue("mail")
told = []


def page(message):
    told.append(message)


def refuse(message):
    raise ValueError("no such channel")


app.alert(page, on=("queue_lag(mail) > 60", "node_lost"))
app.alert(refuse, on="waiting > 5")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OneModule:
    go_into(tmp_path, monkeypatch)
    project = OneModule(tmp_path, APP)
    project.do(no_alert)
    return project


async def no_alert(app: Headgate) -> None:
    assert await app.admin.alerts() == []


async def two_alerts(app: Headgate) -> None:
    store = store_of(app)
    await store.note_alerts(
        [
            HeldCondition("a1", "page", "queue_lag(mail) > 60", "mail", 93.2),
            HeldCondition("a2", "refuse", "waiting > 5", "mail", 7),
        ]
    )
    (record,) = await store.due_alerts(["page"])
    assert await store.try_alert(record, store.now())
    (record,) = await store.due_alerts(["page"])
    assert await store.alert_tried(record, None, store.now())
    (record,) = await store.due_alerts(["refuse"])
    assert await store.try_alert(record, store.now())
    (record,) = await store.due_alerts(["refuse"])
    assert await store.alert_tried(record, "ValueError: no such channel", store.now())


def call(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def answer(*words: str) -> Any:
    found = call(*words, "--json")
    assert found.exit_code in (0, 1), found.output
    return json.loads(found.stdout)


def test_alerts_are_listed_and_shown_where_troubles_are(project: OneModule) -> None:
    nothing = call("alerts", "list", project.target)
    assert nothing.stdout == "Alerts: none is firing\n"
    assert nothing.stderr == "no worker is alive, and only workers check the conditions\n"
    assert ("ok", "none is firing") in of_doctor(project)
    assert "Alerts" not in call("status", project.target).output
    project.do(two_alerts)
    listed = answer("alerts", "list", project.target)
    assert [(each["alert"], each["state"], each["sent"], each["error"]) for each in listed] == [
        ("page", "firing", 1, None),
        ("refuse", "firing", 0, "ValueError: no such channel"),
    ]
    assert listed[0]["text"] == "jobs of queue 'mail' wait 93 s for a slot, more than 60 s"
    assert "jobs of queue 'mail' wait 93 s" in " ".join(call("alerts", "list", project.target).output.split())
    assert [each["alert"] for each in answer("status", project.target)["alerts"]] == ["page", "refuse"]
    assert "Alerts" in call("status", project.target).output
    assert of_doctor(project) == [
        ("warning", "page is firing: jobs of queue 'mail' wait 93 s for a slot, more than 60 s"),
        ("warning", "refuse is firing: 7 due jobs wait in queue 'mail', more than 5"),
        ("warning", "a message of refuse was not delivered at try 1: ValueError: no such channel"),
    ]


def of_doctor(project: OneModule) -> list[tuple[str, str]]:
    found = answer("doctor", project.target)
    return [(each["level"], each["seen"]) for each in found if each["check"] == "alerts"]


def test_the_api_returns_alerts_alone_and_in_the_overview(project: OneModule) -> None:
    async def ask(app: Headgate) -> None:
        await two_alerts(app)
        async with browser(app) as client:
            listed = (await client.get("/api/v1/alerts")).json()
            overview = (await client.get("/api/v1/overview")).json()
        assert [each["id"] for each in listed["items"]] == ["a1", "a2"]
        assert listed["items"][1]["value"] == 7
        assert overview["alerts"] == listed["items"]

    project.do(ask)


def test_a_test_message_says_whether_the_target_took_it(project: OneModule) -> None:
    sent = call("alerts", "test", project.target, "page")
    assert (sent.exit_code, sent.output) == (0, "alert page was delivered\n")
    refused = call("alerts", "test", project.target, "refuse")
    assert (refused.exit_code, refused.output) == (
        1,
        "Error: the message was not delivered: ValueError: no such channel\n",
    )
    told = answer("alerts", "test", project.target, "refuse")
    assert (told["is_delivered"], told["error"]) == (False, "ValueError: no such channel")
    unknown = call("alerts", "test", project.target, "pge")
    assert unknown.exit_code == 1
    assert "declares no alert 'pge'; did you mean 'page'? It declares: page, refuse" in unknown.output
    project.do(no_alert)


def test_a_test_message_to_a_function_that_does_not_return_ends(project: OneModule) -> None:
    """The fault: the command waited for the function, without a word."""
    source = APP.replace("raise ValueError", "import time\n    time.sleep(3600)\n    raise ValueError")
    Path(f"{project.name}.py").write_text(source)
    code = (
        "from headgate.engine import alert_sender\n"
        "alert_sender.SEND_TIMEOUT = 1.0\n"
        "from headgate.cli.main import main\n"
        f"main(['alerts', 'test', '{project.target}', 'refuse'])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=patient(10)
    )
    assert (ended.returncode, ended.stderr) == (1, "Error: the message was not delivered: no answer within 1 s\n")


def test_an_app_without_alerts_says_so(project: OneModule) -> None:
    """The fault: "none is firing", of an app that watches nothing."""
    quiet = Path(f"quiet_{uuid.uuid4().hex}.py")
    quiet.write_text(APP[: APP.index("app.alert(page")])
    nothing = call("alerts", "list", f"{quiet.stem}:app")
    assert nothing.stdout == "Alerts: none is firing\n"
    assert nothing.stderr == "this app declares no alert: app.alert(…)\n"
