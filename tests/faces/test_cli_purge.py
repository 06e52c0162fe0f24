"""`headgate purge` and `headgate queues purge`: what is deleted, what is cancelled, and what is asked before."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TypeVar

import pytest

from headgate import DeclarationError, Headgate, JobState, chain
from headgate.admin import JobQuery
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.faces.one_module import OneModule, answer, call, go_into
from tests.until import patient, result_within

R = TypeVar("R")

APP = """
from headgate import Headgate, RetryPolicy

app = Headgate("sqlite:///jobs.db", synchronous="OFF")
app.queue("mail")


@app.task
async def sync(tenant: str) -> None: ...


@app.task(queue="mail", retry=RetryPolicy(retries=0))
async def bad() -> None:
    raise ValueError("no")
"""


class Project(OneModule):
    def run(self, synced: int, failed: int) -> None:
        """Let so many jobs become final."""

        async def work(app: Headgate) -> None:
            jobs = await app.tasks["sync"].enqueue_many([("acme",)] * synced)
            jobs += await app.tasks["bad"].enqueue_many([()] * failed)
            await asyncio.gather(*(result_within(job, 15) for job in jobs), return_exceptions=True)

        self.do(work, running=True)

    def counts(self) -> dict[str, tuple[int, int, int, int]]:
        found = self.do(lambda app: app.admin.queues.list())
        return {each.queue: (each.waiting, each.succeeded, each.failed, each.cancelled) for each in found}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    go_into(tmp_path, monkeypatch)
    return Project(tmp_path, APP)


def test_final_jobs_are_purged_by_state_queue_and_age_and_the_purge_is_recorded(project: Project) -> None:
    project.run(synced=300, failed=2)
    waiting = project.do(lambda app: app.tasks["sync"].enqueue("acme"))
    assert call("purge", project.target, "--older-than", "1h", "--yes").exit_code == 1
    assert answer("purge", project.target, "--all", "--dry-run")["changed"] == 302
    assert answer("purge", project.target, "--state", "failed", "--yes")["changed"] == 2
    assert project.counts() == {"default": (1, 300, 0, 0), "mail": (0, 0, 0, 0)}
    cut = answer("purge", project.target, "--queue", "default", "--task", "sync", "--yes", "--most", "250")
    assert cut == {"matched": 250, "changed": 250, "refused": {}, "is_dry_run": False, "is_cut": True}
    assert answer("purge", project.target, "--all", "--yes")["changed"] == 50
    assert project.do(lambda app: app.job(waiting.id).status()).state is JobState.WAITING
    entries = answer("audit", project.target)
    assert [(each["action"], each["subject"]) for each in entries] == [
        ("purge", "*"), ("purge", "default"), ("purge", "*")
    ]  # fmt: skip
    assert entries[1]["detail"].startswith("250 jobs, queue default, task sync, final before")
    assert project.do(lambda app: app.admin.count()) == 1


def test_a_purge_asks_first_and_deletes_nothing_if_the_answer_is_no(project: Project) -> None:
    project.run(synced=3, failed=0)
    refused = call("purge", project.target, "--all", input="n\n")
    assert refused.exit_code == 1
    assert "Delete 3 jobs for good?" in refused.output
    assert project.counts()["default"][1] == 3
    done = call("purge", project.target, "--all", input="y\n")
    assert "3 jobs deleted" in done.output
    assert project.counts()["default"][1] == 0


def test_no_more_jobs_are_purged_than_were_confirmed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: "Delete 1 job for good?", and all that ended before the answer were deleted, too."""
    project.run(synced=1, failed=0)
    monkeypatch.setattr("headgate.cli.bulk.confirm", lambda *_, **__: project.run(synced=2, failed=0))
    done = call("purge", project.target, "--all")
    assert done.stdout.splitlines() == ["1 job deleted", "more jobs match; repeat the command, or raise --most"]
    assert project.counts()["default"][1] == 2


def test_a_purge_says_what_it_kept(project: Project) -> None:
    async def run(app: Headgate) -> None:
        sync = app.tasks["sync"]
        stored = await chain(sync.call("acme"), sync.using(delay=3600).call("acme")).enqueue()
        for job in (stored.jobs[0], await sync.enqueue("acme")):
            await result_within(job, 15)

    project.do(run, running=True)
    done = call("purge", project.target, "--all", "--yes")
    assert done.stdout.splitlines() == ["1 job deleted", "1 job not changed: an unfinished job follows it"]


def test_a_purge_without_a_selection_or_a_confirmation_is_refused(project: Project) -> None:
    assert "select final jobs" in call("purge", project.target).output
    assert "--json does not ask" in call("purge", project.target, "--all", "--json").output
    assert call("purge", project.target, "--older-than", "soon").exit_code == 2


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "stopped: at least 1 job deleted"), (signal.SIGTERM, -15, ""), (signal.SIGKILL, -9, "")],
)
def test_a_purge_that_is_stopped_or_killed_has_recorded_what_it_deleted(
    project: Project, number: signal.Signals, code: int, said: str
) -> None:
    """The fault: what a purge had deleted before it was killed was recorded nowhere."""
    project.run(synced=1, failed=0)
    script = (
        "import asyncio, os, sys\n"
        "from headgate.storage.sqlite.storage import SqliteStorage\n"
        "delete = SqliteStorage.delete\n"
        "async def once(self, *words, **named):\n"
        "    done = await delete(self, *words, **named)\n"
        f"    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), {number.value})\n"
        "    return done\n"
        "SqliteStorage.delete = once\n"
        "from headgate.cli.main import main\n"
        f"main(['purge', '{project.target}', '--all', '--yes'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=project.path, capture_output=True, text=True, timeout=patient(15)
    )
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert project.counts()["default"][1] == 0
    [entry] = answer("audit", project.target)
    assert entry["detail"].startswith("1 job,")


def test_a_purge_of_many_commits_is_one_record_and_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: one of 1,000,000 jobs wrote 5,000 records, and who had paused the queue was not found behind them."""
    monkeypatch.setattr("headgate.admin.bulk.CHUNK", 1)
    monkeypatch.setattr("headgate.admin.pauses.MOST_CHANGES", 3)

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def sync() -> None: ...

        async with app:
            for job in await sync.enqueue_many([()] * 5):
                await job.result()
            await app.admin.by("ada").queues.pause("default")
            waiting = await sync.enqueue()
            await asyncio.sleep(1)
            assert (await app.admin.purge(JobQuery(queue="default"))).changed == 5
            assert "is paused by ada" in (await app.admin.explain(waiting.id)).reason
            purge, pause = await app.admin.audit_log(kind="queue")
            assert (pause.action, str(purge.detail)[:6]) == ("pause", "5 jobs")

    run_virtual(main)


def test_jobs_that_are_not_final_are_not_purged() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        async with app.open():
            with pytest.raises(DeclarationError, match="only final jobs can be purged"):
                await app.admin.purge(JobQuery(state=JobState.WAITING))

    run_virtual(main)


@pytest.mark.parametrize("words", [("--yes",), ("--dry-run",), ()])
def test_a_queue_that_is_not_there_is_not_purged(project: Project, words: tuple[str, ...]) -> None:
    """The fault: `0 jobs cancelled`, as for a queue in which no job waits."""
    refused = call("queues", "purge", project.target, "mial", *words)
    assert refused.exit_code == 1
    assert refused.output.startswith("Error: queue 'mial' is not declared by this app, has no jobs and is not paused")
    assert "did you mean 'mail'?" in refused.output


def test_purging_a_queue_cancels_its_waiting_jobs(project: Project) -> None:
    project.do(lambda app: app.tasks["sync"].enqueue_many([("acme",)] * 3))
    project.do(lambda app: app.tasks["bad"].enqueue())
    assert answer("queues", "purge", project.target, "default", "--dry-run")["changed"] == 3
    assert "Cancel 3 jobs?" in call("queues", "purge", project.target, "default", input="n\n").output
    assert answer("queues", "purge", project.target, "default", "--yes")["changed"] == 3
    assert project.counts() == {"default": (0, 0, 0, 3), "mail": (1, 0, 0, 0)}
    assert call("queues", "purge", project.target, "default", "--yes").exit_code == 1
    [entry] = answer("audit", project.target, "--kind", "queue")
    assert (entry["action"], entry["subject"], entry["detail"]) == ("purge", "default", "3 waiting jobs cancelled")
    assert (
        answer("jobs", "retry", project.target, "--queue", "default", "--state", "cancelled", "--yes")["changed"] == 3
    )


def test_every_command_prints_json(project: Project) -> None:
    assert answer("queues", "pause", project.target, "mail") == {"queue": "mail", "is_paused": True, "changed": True}
    again = call("queues", "pause", project.target, "mail", "--json")
    assert (again.exit_code, json.loads(again.stdout)["changed"]) == (1, False)
    assert answer("queues", "resume", project.target, "mail") == {"queue": "mail", "is_paused": False, "changed": True}


@pytest.mark.slow
def test_a_progress_bar_is_used_a_terminal_only(project: Project) -> None:
    project.run(synced=3, failed=0)
    command = [sys.executable, "-m", "headgate", "purge", project.target, "--all", "--yes", "--most", "2"]
    ours, theirs = os.openpty()
    try:
        done = subprocess.run(
            command, cwd=project.path, stdout=subprocess.PIPE, stderr=theirs, check=True, timeout=patient(15)
        )
        used = os.read(ours, 65536)
    finally:
        os.close(ours)
        os.close(theirs)
    assert b"Delete" in used
    assert b"2 jobs deleted" in done.stdout
    piped = subprocess.run(command, cwd=project.path, capture_output=True, check=True, timeout=patient(15))
    assert piped.stderr == b""
