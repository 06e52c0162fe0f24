"""`headgate failures`: failed jobs by root cause, for people and for programs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from headgate import Headgate, JobFailed
from tests.faces.one_module import OneModule, answer, call, go_into
from tests.until import result_within

APP = """
from headgate import Headgate, RetryPolicy

app = Headgate("sqlite:///jobs.db", synchronous="OFF")


@app.task(retry=RetryPolicy(retries=0))
async def find(user: int) -> None:
    raise LookupError(f"user {user} not found\\x1b[31m")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OneModule:
    go_into(tmp_path, monkeypatch)
    project = OneModule(tmp_path, APP)
    monkeypatch.setenv("HEADGATE_APP", project.target)
    return project


def fail(project: OneModule) -> list[str]:
    """Run three jobs that fail; their ids."""

    async def work(app: Headgate) -> list[str]:
        jobs = [await app.tasks["find"].enqueue(number) for number in range(3)]
        for job in jobs:
            with suppress(JobFailed):
                await result_within(job, 15)
        return [job.id for job in jobs]

    return project.do(work, running=True)


def test_failures_are_grouped_for_programs(project: OneModule) -> None:
    ids = fail(project)
    report = answer("failures", "--since", "1h")
    (group,) = report["groups"]
    assert (group["task"], group["failed"], group["retrying"]) == ("find", 3, 0)
    assert group["cause"]["type"] == "LookupError"
    assert group["cause"]["place"] == {"file": str(project.path / f"{project.name}.py"), "line": 9, "function": "find"}
    assert group["newest"]["status"]["id"] in ids
    assert sum(group["trend"]) == 3
    assert (report["total"], report["read"], report["is_cut"]) == (1, 3, False)
    assert answer("failures", "--all")["groups"][0]["failed"] == 3


def test_failures_are_a_table_for_people_whose_text_controls_no_terminal(project: OneModule) -> None:
    ids = fail(project)
    shown = call("failures").stdout
    assert "LookupError: user # not found" in shown
    assert f"{project.name}.py:9" in shown
    assert any(id in shown for id in ids)
    assert "\x1b" not in shown


def test_no_more_failures_are_reported_than_are_known(project: OneModule, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: "There are more failures" if there were more attempts than are read, though all jobs were."""
    fail(project)
    monkeypatch.setattr("headgate.admin.failures.MOST_READ", 3)
    assert "more failures" not in call("failures").stderr
    monkeypatch.setattr("headgate.admin.failures.MOST_READ", 2)
    assert "There may be more failures; this list covers the newest 2." in call("failures").stderr


def test_no_failures_are_said_to_be_none(project: OneModule) -> None:
    result = call("failures", "--since", "15m")
    assert result.exit_code == 0
    assert result.stdout.strip().endswith("none")
    assert call("failures", "--since", "yesterday").exit_code == 2
    assert "'0.5s' must be at least 1 s\n" in call("failures", "--since", "0.5s").output


def test_failures_of_one_task_or_queue_are_listed_alone(project: OneModule) -> None:
    """The fault: the dashboard copied a command for its page of one task that listed those of all."""
    fail(project)
    for words, groups in (
        (["--task", "find", "--queue", "default"], 1),
        (["--task", "other"], 0),
        (["--queue", "other"], 0),
    ):
        assert len(answer("failures", *words)["groups"]) == groups, words
