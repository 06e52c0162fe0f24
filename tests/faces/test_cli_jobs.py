"""`headgate jobs`, `nodes`, `status` and `audit`: one job's whole story, many jobs at once, who did what."""

from __future__ import annotations

import asyncio
import importlib
import json
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest

from headgate import (
    DeclarationError,
    Every,
    Headgate,
    Job,
    JobCancelled,
    JobFailed,
    JobState,
    RetryPolicy,
    batch,
    chain,
)
from headgate.admin import Admin, JobQuery
from headgate.jobs.identity import job_number, process_name
from headgate.storage.records import Claim, FreeSlots, NodeControls
from tests.faces.one_module import OneModule, answer, call, go_into
from tests.internals import registry_of, store_of
from tests.until import patient, result_within, until

R = TypeVar("R")

APP = """
import logging

from headgate import Concurrency, Headgate, RetryPolicy, StrictRate, current_job

app = Headgate("sqlite:///jobs.db", synchronous="OFF")
app.queue("mail")


@app.task(retry=RetryPolicy(retries=1, base=0.001), queue="mail")
async def bad(number: int) -> None:
    current_job().progress(0.5, "halfway")
    current_job().log.warning("order %d is odd", number)
    raise ValueError("no such page")


@app.task(tags=["import"], retry=RetryPolicy(retries=0))
async def load(number: int) -> None:
    current_job().annotate(invoice=number, note="paid")
    raise ValueError("no")


@app.task
async def good() -> str:
    current_job().log.info("fine")
    return "done"


@app.task
async def speaks() -> None:
    import asyncio

    for number in range(4):
        current_job().log.info("line %d", number)
        await asyncio.sleep(0.3)


@app.task(limits=[StrictRate("1/h", key="{tenant}")])
async def sync(tenant: str) -> None: ...


@app.task(
    retry=RetryPolicy(retries=0), limits=[Concurrency(1, key="{order}", hold="until_success", name="order")]
)
async def keeps(order: str) -> None:
    raise ValueError("no")
"""


class Project(OneModule):
    def run_until_final(self, *calls: tuple[Any, ...]) -> list[str]:
        """Run jobs of (task, arguments…) to their end; their ids."""

        async def work(app: Headgate) -> list[str]:
            jobs = [await app.tasks[task].enqueue(*arguments) for task, *arguments in calls]
            for job in jobs:
                with suppress(JobFailed):
                    await result_within(job, 15)
            return [job.id for job in jobs]

        return self.do(work, running=True)

    def states(self, *ids: str) -> list[JobState]:
        async def work(app: Headgate) -> list[JobState]:
            return [(await app.job(id).status()).state for id in ids]

        return self.do(work)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    go_into(tmp_path, monkeypatch)
    project = Project(tmp_path, APP)
    monkeypatch.setenv("HEADGATE_APP", project.target)
    return project


def ids(*words: str) -> list[str]:
    return [job["id"] for job in answer("jobs", "list", *words)]


# --------------------------------------------------------------------------------------------------- one job


def test_show_prints_all_attempts_and_events_of_a_job(project: Project) -> None:
    (failed,) = project.run_until_final(("bad", 7))
    project.do(lambda app: app.admin.by("ada@desk").retry(failed))
    project.do(lambda app: app.admin.by("bob@desk").cancel(failed))
    (shown,) = answer("jobs", "show", failed)
    assert [(moment["what"], moment["actor"]) for moment in shown["timeline"]] == [
        ("enqueued", None),
        ("started", None),
        ("failed", None),
        ("started", None),
        ("failed", None),
        ("retry", "ada@desk"),
        ("cancel", "bob@desk"),
        ("final: cancelled", None),
    ]
    assert [line["message"] for line in shown["last_lines"]] == ["order 7 is odd", "order 7 is odd"]
    assert [line["attempt"] for line in shown["last_lines"]] == [1, 2]
    assert shown["audit"] == "full"
    text = call("jobs", "show", failed).output
    for printed in (
        "Its life",
        "Where the time went",
        "attempt 2 on ",
        "final, until it was retried",
        "ada@desk",
        "ValueError: no such page",
        "order 7 is odd",
        "it was cancelled",
        "Traceback",
    ):
        assert printed in text


def test_show_prints_why_a_job_waits_and_its_progress(project: Project) -> None:
    first, second = project.enqueue("sync", "acme"), project.enqueue("sync", "acme")
    (failed,) = project.run_until_final(("bad", 1))
    assert project.states(first) == [JobState.SUCCEEDED]
    (waits,) = answer("jobs", "show", second)
    assert "it waits for limit 'sync:rate'" in waits["reason"]
    (said,) = answer("jobs", "show", failed)
    assert (said["progress"]["fraction"], said["progress"]["message"]) == (0.5, "halfway")
    assert "50%, halfway" in call("jobs", "show", failed).output


@pytest.mark.parametrize(
    "stored", ["not json", '{"tenant":' + "[" * 50_000 + "]" * 50_000 + "}"], ids=["no JSON", "deep"]
)
def test_a_payload_that_cannot_be_read_is_shown_as_a_text(project: Project, stored: str) -> None:
    """The fault: `jobs show --json` ended with a traceback, and showed none of its jobs."""
    id, good = project.enqueue("good"), project.enqueue("good")
    with closing(sqlite3.connect(project.path / "jobs.db", isolation_level=None)) as file:
        file.execute("PRAGMA ignore_check_constraints = 1")
        file.execute("UPDATE job SET payload = ? WHERE id = ?", (stored, job_number(id)))
    assert [each["payload"] for each in answer("jobs", "show", project.target, id, good)] == [stored, {}]


def test_jobs_are_found_and_changed_by_tags_headers_and_annotations(project: Project) -> None:
    (failed,) = project.run_until_final(("load", 42))
    word = ("--payload", '{"number": 7}', "--delay", "1h")
    api = call(
        "jobs", "enqueue", "load", *word, "--tag", "vip", "--tag", "acme", "--header", "source=api"
    ).output.strip()
    web = call("jobs", "enqueue", "load", *word, "--header", "source=web").output.strip()
    assert ids("--tag", "import") == [web, api, failed]
    assert ids("--tag", "vip", "--header", "source=api") == [api]
    assert ids("--tag", "vip", "--header", "source=web") == []
    assert ids("--annotation", "invoice=42") == ids("--annotation", "note=paid") == [failed]
    assert answer("jobs", "count", "--tag", "import", "--state", "waiting")["count"] == 2
    (listed,) = answer("jobs", "list", "--tag", "vip")
    assert (listed["tags"], listed["annotations"]) == (["acme", "import", "vip"], {})
    (shown,) = answer("jobs", "show", failed)
    assert (shown["tags"], shown["annotations"]) == (["import"], {"invoice": 42, "note": "paid"})
    assert "acme, import, vip" in call("jobs", "show", api).output
    assert "'invoice': 42" in call("jobs", "show", failed).output
    assert answer("jobs", "cancel", "--tag", "import", "--header", "source=web", "--yes")["changed"] == 1
    assert project.states(api, web) == [JobState.WAITING, JobState.CANCELLED]
    assert answer("jobs", "retry", "--annotation", "invoice=42", "--yes")["changed"] == 1
    for words, error in (
        (("list", "--tag", "two words"), "the filter: tag 'two words' must be a word of letters"),
        (("list", "--header", "source"), "header='source' is not a name with its value"),
        (("enqueue", "load", *word, "--tag", "vip!"), "task 'load': tag 'vip!' must be a word of letters"),
    ):
        refused = call("jobs", *words)
        assert refused.exit_code != 0
        assert error in refused.output


def test_logs_are_printed_and_printable(project: Project) -> None:
    (id,) = project.run_until_final(("bad", 3))
    lines = call("jobs", "logs", id).output.splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("WARNING attempt 1 headgate.job: order 3 is odd")
    assert call("jobs", "logs", id, "--count", "1").output.splitlines() == lines[1:]
    first, _ = answer("jobs", "logs", id)
    assert (first["level"], first["logger"], first["message"]) == ("WARNING", "headgate.job", "order 3 is odd")
    missing = call("jobs", "logs", "0-0")
    assert (missing.exit_code, missing.output.splitlines()[-1][:20]) == (1, "Error: no job 0-0 is")


def test_logs_are_followed_until_the_job_is_final(project: Project) -> None:
    id = project.enqueue("speaks")
    command = [sys.executable, "-m", "headgate", "jobs", "logs", project.target, id, "--follow", "--json"]
    with subprocess.Popen(command, cwd=project.path, stdout=subprocess.PIPE, text=True) as follower:
        try:
            project.do(lambda app: app.job(id).result(timeout=patient(15)), running=True)
            output, _ = follower.communicate(timeout=patient(15))
        finally:
            follower.kill()
    assert follower.returncode == 0
    assert [json.loads(line)["message"] for line in output.splitlines()] == [f"line {number}" for number in range(4)]


def test_a_job_that_waits_for_its_time_is_run_now_and_one_that_waits_for_a_limit_is_not(project: Project) -> None:
    delayed = project.enqueue("good", delay=3600)
    project.enqueue("sync", "acme")
    throttled = project.enqueue("sync", "acme")
    project.run_until_final(("good",))
    ran = call("jobs", "run", delayed)
    assert (ran.exit_code, ran.output.strip()) == (0, f"{delayed}: is ready now; it starts when its limits allow")
    refused = call("jobs", "run", throttled, delayed)
    assert refused.exit_code == 1
    assert "would exceed the limit" in refused.output
    assert "does not wait for its time" in refused.output
    assert project.states(throttled) == [JobState.WAITING]


def test_a_waiting_job_is_given_another_time_and_priority(project: Project) -> None:
    (final,) = project.run_until_final(("good",))
    id = project.enqueue("sync", "acme")
    put_off = call("jobs", "reschedule", id, "--at", "2099-01-01T08:00", "--priority", "7")
    assert (put_off.exit_code, put_off.output.strip()) == (
        0,
        f"{id}: waits until 2099-01-01 08:00:00 UTC, with priority 7",
    )
    (shown,) = answer("jobs", "show", id)
    assert shown["timeline"][-1]["what"] == "reschedule"
    assert shown["timeline"][-1]["detail"] == "to 2099-01-01T08:00:00+00:00, priority 7"
    back = call("jobs", "reschedule", id, "--delay", "0", final)
    assert back.exit_code == 1
    assert f"{id}: waits to run as soon as it can, with priority 7" in back.output
    assert "is succeeded; only the time or priority of a waiting job can be changed" in back.output
    assert "add --delay" in call("jobs", "reschedule", id).stderr
    assert "exclude each other" in call("jobs", "reschedule", id, "--delay", "1", "--at", "2099-01-01").stderr


def test_final_jobs_are_deleted_and_others_are_not(project: Project) -> None:
    good, bad = project.run_until_final(("good",), ("bad", 1))
    waiting = project.enqueue("sync", "acme")
    mixed = call("jobs", "delete", good, waiting)
    assert mixed.exit_code == 1
    assert f"{good}: deleted" in mixed.output
    assert f"{waiting}: job {waiting} is waiting; only final jobs are deleted, so cancel it first" in mixed.output
    assert call("jobs", "show", good).exit_code == 1
    assert answer("jobs", "delete", "--state", "failed", "--dry-run")["changed"] == 1
    assert "Delete 1 job for good?" in call("jobs", "delete", "--state", "failed", input="n\n").output
    assert project.states(bad) == [JobState.FAILED]
    deleted = answer("jobs", "delete", "--state", "failed", "--yes")
    assert deleted == {"matched": 1, "changed": 1, "refused": {}, "is_dry_run": False, "is_cut": False}
    assert [(entry["action"], entry["kind"]) for entry in answer("audit")] == [("purge", "queue"), ("delete", "queue")]
    assert project.states(waiting) == [JobState.WAITING]


# ------------------------------------------------------------------------------------------------- many jobs


def test_many_waiting_jobs_are_given_another_time_and_priority(project: Project) -> None:
    ids = [project.enqueue("good") for _ in range(3)]
    later = ("jobs", "reschedule", "--task", "good", "--at", "2099-01-01", "--priority", "7")
    assert "add --delay" in call("jobs", "reschedule", "--task", "good").stderr
    assert answer(*later, "--dry-run")["changed"] == 3
    assert "Reschedule 3 jobs?" in call(*later, input="n\n").output
    assert answer(*later, "--most", "2", "--yes") == {
        "matched": 2, "changed": 2, "refused": {}, "is_dry_run": False, "is_cut": True,
    }  # fmt: skip
    rest = answer(*later, "--yes")
    assert (rest["changed"], rest["is_cut"]) == (1, False), "a repeat goes on with the others"
    shown = answer("jobs", "show", *ids)
    assert {(each["run_at"][:10], each["priority"]) for each in shown} == {("2099-01-01", 7)}
    assert call(*later, "--yes").exit_code == 1


def test_jobs_are_listed_by_every_filter(project: Project) -> None:
    good, bad = project.run_until_final(("good",), ("bad", 42))
    first, later = project.enqueue("sync", "acme"), project.enqueue("good", delay=3600)
    for words, found in (
        (["--state", "failed"], [bad]),
        (["--view", "scheduled"], [later]),
        (["--view", "ready"], [first]),
        (["--view", "throttled"], []),
        (["--queue", "mail"], [bad]),
        (["--task", "good"], [later, good]),
        (["--limit", "sync:rate", "--key", "acme"], [first]),
        (["--error", "Value"], [bad]),
        (["--text", '"number":42'], [bad]),
        (["--since", "1h", "--state", "succeeded"], [good]),
        (["--until", "1h"], []),
        (["--finished-since", "10m"], [bad, good]),
        (["--finished-until", "2020-01-01"], []),
        (["--since", "2020-01-01T00:00:00Z", "--count", "2"], [later, first]),
        (["--oldest-first", "--count", "2"], [good, bad]),
        (["--oldest-first", "--before", bad], [first, later]),
        (["--unique-key", "x"], []),
        (["--schedule", "x"], []),
        (["--batch", "x"], []),
        (["--node", "x"], []),
    ):
        assert ids(*words) == found, words
    assert answer("jobs", "count") == {"count": 4, "is_cut": False}
    assert answer("jobs", "count", "--most", "3") == {"count": 3, "is_cut": True}
    wrong = call("jobs", "list", "--since", "yesterday")
    assert (wrong.exit_code, "neither an instant" in wrong.output) == (2, True)


def test_options_that_select_nothing_say_which_name_is_not_declared(project: Project) -> None:
    project.enqueue("sync", "acme")
    listed = call("jobs", "list", "--limit", "3")
    assert (listed.exit_code, listed.stdout) == (0, "Jobs: none\n")
    assert listed.stderr == (
        "Note: this app declares no limit '3'. It declares: order, sync:rate; to list at most 3, write --count 3\n"
    )
    assert "no task 'god'; did you mean 'good'?" in call("jobs", "cancel", "--task", "god", "--yes").stderr
    assert call("limits", "list", "--limit", "3").stderr == listed.stderr
    assert call("limits", "list", "--limit", "order").stderr == ""
    assert call("jobs", "list", "--task", "good", "--limit", "order").stderr == ""
    assert call("jobs", "list", "--limit", "sync:rate").stderr == ""


def test_a_job_that_ends_after_it_was_asked_to_is_not_reported_as_cancelled(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    (id,) = project.run_until_final(("good",))

    async def asked(*_: Any) -> bool:
        return True

    monkeypatch.setattr(Admin, "cancel", asked)
    assert call("jobs", "cancel", id).stdout == f"{id}: was asked to end, and then succeeded\n"


def test_a_long_list_spans_pages(project: Project) -> None:
    async def work(app: Headgate) -> list[str]:
        return [job.id for job in await app.tasks["good"].enqueue_many([() for _ in range(1203)])]

    every = project.do(work)
    assert ids("--count", "2000") == every[::-1]
    assert ids("--count", "700") == every[::-1][:700]


def test_many_jobs_are_changed_after_a_dry_run_and_a_confirmation(project: Project) -> None:
    bad = project.run_until_final(("bad", 1), ("bad", 2), ("good",))[:2]
    dry = answer("jobs", "retry", "--state", "failed", "--dry-run")
    assert dry == {"matched": 2, "changed": 2, "refused": {}, "is_dry_run": True, "is_cut": False}
    assert project.states(*bad) == [JobState.FAILED] * 2
    refused = call("jobs", "retry", "--state", "failed", input="n\n")
    assert (refused.exit_code, "Retry 2 jobs?" in refused.output) == (1, True)
    assert project.states(*bad) == [JobState.FAILED] * 2
    done = call("jobs", "retry", "--state", "failed", input="y\n")
    assert (done.exit_code, "2 jobs waiting again" in done.output) == (0, True)
    assert project.states(*bad) == [JobState.WAITING] * 2
    again = call("jobs", "retry", "--state", "failed", "--yes")
    assert (again.exit_code, "0 jobs waiting again" in again.output) == (1, True)

    cancelled = answer("jobs", "cancel", "--all", "--yes")
    assert (cancelled["matched"], cancelled["changed"], cancelled["refused"]) == (2, 2, {})
    assert project.states(*bad) == [JobState.CANCELLED] * 2
    assert call("jobs", "cancel", "--all", "--yes").exit_code == 1
    # Every change is recorded with its actor.
    kept = answer("audit", "--kind", "job")
    assert [entry["action"] for entry in kept] == ["cancel"] * 2 + ["retry"] * 2
    assert len({entry["actor"] for entry in kept}) == 1


@pytest.mark.parametrize("words", [("jobs", "cancel", "--task", "good"), ("queues", "purge", "default")])
def test_no_more_jobs_are_changed_than_were_confirmed(
    project: Project, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """The fault: "Cancel 1 job?", and all that were enqueued before the answer were cancelled, too."""
    counted = project.enqueue("good", delay=3600)
    later: list[str] = []

    def enqueue_and_confirm(*_: Any, **__: Any) -> None:
        later.extend(project.enqueue("good", delay=3600) for _ in range(2))

    monkeypatch.setattr("headgate.cli.bulk.confirm", enqueue_and_confirm)
    done = call(*words)
    assert done.stdout.splitlines() == [
        "1 job cancelled or asked to end", "more jobs match; repeat the command, or raise --most"
    ]  # fmt: skip
    assert project.states(counted, *later) == [JobState.CANCELLED, JobState.WAITING, JobState.WAITING]


def test_a_failed_chain_is_retried_with_its_jobs_in_any_order(project: Project) -> None:
    async def work(app: Headgate) -> list[str]:
        stored = await chain(app.tasks["bad"].call(1), app.tasks["good"].call(), app.tasks["good"].call()).enqueue()
        with suppress(JobCancelled):
            await result_within(stored, 15)
        return [job.id for job in stored.jobs]

    root, second, last = project.do(work, running=True)
    alone = call("jobs", "retry", last)
    assert (alone.exit_code, f"retry {root} first" in alone.output) == (1, True)
    assert project.states(second, last) == [JobState.CANCELLED] * 2
    together = answer("jobs", "retry", last, second, root)
    assert [report["ok"] for report in together] == [True] * 3
    assert project.states(root, second, last) == [JobState.WAITING] * 3


def test_a_job_shows_the_options_that_differ_from_its_task(project: Project) -> None:
    id = project.enqueue(
        "good",
        unique_key="k-1",
        timeout=7,
        retry=RetryPolicy(retries=9, base=2.5),
        retention={"succeeded": 0, "failed": "forever"},
        expires_at=datetime(2100, 1, 1, tzinfo=UTC),
    )
    (shown,) = answer("jobs", "show", id)
    assert (shown["unique_key"], shown["timeout"], shown["retry"]["retries"], shown["batch"]) == ("k-1", 7.0, 9, None)
    assert shown["expires_at"] is not None
    assert shown["retention"] == {"succeeded": 0, "failed": None, "cancelled": 604800, "skipped": 604800}
    assert shown["enqueued_by"] == process_name()
    text = call("jobs", "show", id).output
    kept = "0 s if succeeded, forever if failed, 604800 s if cancelled, 604800 s if skipped"
    for words in ("enqueued by", process_name(), "unique key", "k-1", "timeout", "7 s", '"retries":9', "expires", kept):
        assert words in text, words


def test_batches_show_the_schedule_that_enqueued_them(project: Project) -> None:
    async def work(app: Headgate) -> None:
        good = app.tasks["good"]
        await batch([good.call()]).enqueue()
        await batch([good.call(), good.call()], name="import").schedule("nightly", Every(hours=24)).enqueue()
        await app.admin.schedules.trigger("nightly")

    project.do(work)
    assert [each["schedule"] for each in answer("batches", "list")] == ["nightly", None]
    printed = call("batches", "list").output.split()
    assert (printed.count("schedule"), printed.count("nightly")) == (1, 1)
    assert [each["name"] for each in answer("batches", "list")] == ["import", None]
    assert (printed.count("name"), printed.count("import")) == (1, 1)


def test_jobs_and_batches_of_a_graph_show_what_they_are_tied_to(project: Project) -> None:
    async def work(app: Headgate) -> tuple[str, list[str], list[str]]:
        good = app.tasks["good"]
        a, inner = good.call(), batch([good.call()])
        last = good.call().after(a, inner, on="final")
        stored = await batch([a, inner, last]).enqueue()
        own = [each.id for each in await app.admin.batches() if each.batch == stored.id]
        return stored.id, own, [job.id for job in stored.jobs]

    outer, (inner,), (first, member, last) = project.do(work)
    (shown,) = answer("jobs", "show", last)
    assert shown["batch"] == outer
    assert {each["id"]: (each["task"], each["state"]) for each in shown["leaders"]} == {
        first: ("good", "waiting"), inner: (None, "pending")
    }  # fmt: skip
    (shown,) = answer("jobs", "show", first)
    assert [(each["id"], each["needs"]) for each in shown["followers"]] == [(last, "final")]
    assert last in call("jobs", "show", first).output
    assert answer("jobs", "show", member)[0]["batch"] == inner
    shown = answer("batches", "show", inner)
    assert (shown["batch"], shown["schedule"], shown["total"]) == (outer, None, 1)
    assert answer("batches", "show", outer)["total"] == 3


def test_a_retry_says_that_a_step_is_not_needed_any_more(project: Project) -> None:
    async def work(app: Headgate) -> list[str]:
        good = app.tasks["good"]
        first = good.call()
        stored = await batch([first, good.call().after(first, on="failure")]).enqueue()
        await stored.jobs[1].cancel()
        return [job.id for job in stored.jobs]

    first, other = project.do(work)
    assert call("jobs", "retry", other).output == f"{other}: waits again\n"
    assert call("jobs", "cancel", other).exit_code == 0

    async def run(app: Headgate) -> None:
        await app.job(first).result(timeout=patient(15))

    project.do(run, running=True)
    result = call("jobs", "retry", other)
    assert result.output == f"{other}: is skipped: it is not needed after the end of what it follows\n"
    assert result.exit_code == 0
    assert answer("jobs", "show", other)[0]["state"] == "skipped"


def test_a_long_text_is_one_line_in_a_pipe(project: Project) -> None:
    """The fault: it was folded at 400 columns, so no program could read a long payload, and grep found half of it."""
    id = project.enqueue("good", headers={"note": "long " * 300})
    shown = call("jobs", "show", id).output.splitlines()
    (headers,) = [line for line in shown if "long" in line]
    assert "long " * 300 in headers
    assert shown[:2] == [f"Job {id}", f"{'task':<27}  good"]


def test_a_batch_is_found_by_its_id(project: Project) -> None:
    """It was reported as a job that may have been pruned, and its followers had no progress."""

    async def work(app: Headgate) -> tuple[str, str]:
        good = app.tasks["good"]
        stored = await batch([good.call() for _ in range(3)]).then(good.call()).enqueue()
        await stored.jobs[0].cancel()
        assert isinstance(stored.then[0], Job)
        return stored.id, stored.then[0].id

    id, then = project.do(work)
    for verb in ("show", "explain"):
        assert (
            f"1 of 3 jobs final (0 succeeded, 0 failed, 1 cancelled, 0 skipped); headgate jobs list --batch {id}"
            in call("jobs", verb, id).output
        )
        (printed,) = answer("jobs", verb, id)
        assert (printed["total"], printed["pending"], printed["cancelled"]) == (3, 2, 1)
    (listed,) = answer("batches", "list", "--pending")
    assert (listed["id"], listed["state"], listed["total"], listed["pending"]) == (id, None, 3, 2)
    assert "schedule" not in call("batches", "list").output
    assert answer("batches", "list", "--before", id) == []
    assert answer("batches", "show", id) == listed
    assert listed["tasks"] == ["good"]
    assert {"pending", "good"} <= set(call("batches", "show", id).output.split())
    assert "no batch nope is stored" in call("batches", "show", "nope").output
    assert answer("batches", "cancel", id, "--dry-run")["changed"] == 3, "with the step after it"
    assert "Cancel 3 jobs?" in call("batches", "cancel", id, input="n\n").output
    assert call("batches", "cancel", then, "--yes").exit_code == 1, "it is no batch"
    assert f"it follows batch {id} (1 of 3 final)" in call("jobs", "explain", then).output
    assert answer("jobs", "show", ids("--batch", id)[0])[0]["batch"] == id
    assert answer("batches", "cancel", id, "--yes")["changed"] == 3
    assert answer("batches", "list", "--pending") == []


def test_the_holder_of_a_permit_is_shown_for_a_waiting_job(project: Project) -> None:
    """No command named the failed job that keeps a permit until its success."""

    async def work(app: Headgate) -> tuple[str, str]:
        keeps = app.tasks["keeps"]
        first = await keeps.enqueue("acme")
        with suppress(JobFailed):
            await result_within(first, 15)
        second = await keeps.enqueue("acme")

        async def waits() -> bool:
            return (await second.status()).waits_for is not None

        await until(waits)
        return first.id, second.id

    holder, waiting = project.do(work, running=True)
    assert f"when a permit is returned: held by job {holder} (failed)" in call("jobs", "explain", waiting).output
    listed = call("jobs", "list", "--state", "waiting").output
    assert ("opens None" in listed, "waits for a permit" in listed) == (False, True)
    (bucket,) = answer("limits", "list", "--limit", "order", "--key", "acme")
    assert bucket["holders"] == [{"kind": "job", "id": holder, "state": "failed", "cost": 1}]
    assert f"held by job {holder} (failed)" in call("limits", "list", "--key", "acme").output


async def start_on_node_x(app: Headgate) -> str:
    """Start a job on a node that does nothing, and return its id."""
    job = await app.tasks["good"].enqueue()
    await store_of(app).join("node-x", "x")
    claim = Claim("node-x", {"default": FreeSlots(1)}, {}, frozenset({"good"}), registry_of(app).limit_sets())
    assert [each.id for each in (await store_of(app).claim(claim)).jobs] == [job.id]
    return job.id


def test_a_list_of_running_jobs_says_since_when(project: Project) -> None:
    """The fault: the docs find a handler that hangs in this list, which had only the time of the enqueue."""
    project.do(start_on_node_x)
    connection = sqlite3.connect("jobs.db")
    with connection:
        connection.execute("UPDATE job SET started_at = started_at - 10800000000")
    connection.close()
    assert "runs for 3.0 h" in call("jobs", "list", "--state", "running").output


def test_a_job_of_a_dead_node_is_not_shown_as_running(project: Project) -> None:
    id = project.do(start_on_node_x)
    connection = sqlite3.connect("jobs.db")
    with connection:
        connection.execute("UPDATE node SET beat_at = beat_at - 45000000")
    connection.close()
    printed = call("jobs", "explain", id).output
    assert ("has sent no heartbeat for 45 s" in printed, "another node takes it" in printed) == (True, True)


def test_a_command_that_changes_nothing_says_so_and_is_not_recorded(project: Project) -> None:
    """`limits unset` and `resume` without effect used to be kept as deeds, and scripts took them for done."""
    for words in (
        ["limits", "unset", "sync:rate"],
        ["limits", "resume", "sync:rate"],
        ["queues", "resume", "mail"],
    ):
        result = call(*words)
        assert (result.exit_code, "was" in result.output) == (1, True), words
    assert answer("audit") == []
    assert call("limits", "pause", "sync:rate").exit_code == 0
    assert call("limits", "resume", "sync:rate").exit_code == 0
    assert [call("queues", "pause", "mail").exit_code for _ in range(2)] == [0, 1]
    assert len(answer("audit")) == 3


def test_a_page_before_an_unknown_job_is_an_error(project: Project) -> None:
    project.enqueue("good")
    wrong = call("jobs", "list", "--before", "typo")
    assert (wrong.exit_code, "--before takes the id of a job" in wrong.output) == (2, True)


def test_a_list_goes_on_after_a_job_that_was_deleted_since(project: Project) -> None:
    """The fault: the next page of a list of final jobs was refused once the last one of the page before was pruned."""
    first, deleted, last = project.run_until_final(("good",), ("good",), ("good",))
    project.do(lambda app: app.admin.delete(deleted))
    found = call("jobs", "list", "--before", deleted, "--json")
    assert [job["id"] for job in json.loads(found.stdout)] == [first]
    assert found.stderr.startswith(f"Note: no job {deleted}")
    assert ids("--before", deleted, "--oldest-first") == [last]


def test_the_name_of_a_limit_is_not_parsed_as_an_app(project: Project) -> None:
    """A key without --key made `sync:rate` the module that was looked for."""
    wrong = call("limits", "reset", "sync:rate", "acme")
    assert (wrong.exit_code, f"it takes LIMIT, and the app is {project.target} already" in wrong.output) == (2, True)
    assert call("limits", "reset", "sync:rate", "--key", "acme").exit_code == 0


@pytest.mark.parametrize("words", [["reset", "sync:rate"], ["penalize", "sync:rate", "60"]], ids=lambda words: words[0])
def test_a_limit_with_keys_is_not_closed_or_reset_without_one(project: Project, words: list[str]) -> None:
    """The fault: it succeeded for the key "", which no job uses."""
    refused = call("limits", *words)
    assert (refused.exit_code, "limit 'sync:rate' has a budget for each key" in refused.output) == (1, True)
    assert "pass a key, or --key KEY to the command" in " ".join(refused.output.split())


def test_settings_as_json_name_their_fields(project: Project) -> None:
    assert call("limits", "set", "sync:rate", "7/m", "--key", "acme").exit_code == 0
    (setting,) = answer("limits", "settings")
    assert (setting["limit"], setting["scope"], setting["target"], setting["is_paused"]) == (
        "sync:rate",
        "key",
        "acme",
        False,
    )
    assert isinstance(setting["rule"], dict)


def test_many_jobs_are_run_now_up_to_a_bound(project: Project) -> None:
    later = [project.enqueue("good", delay=3600) for _ in range(5)]
    ready = project.enqueue("good")
    result = answer("jobs", "run", "--task", "good", "--most", "3", "--yes")
    assert (result["matched"], result["changed"], result["is_cut"]) == (3, 3, True)
    result = answer("jobs", "run", "--task", "good", "--yes")
    assert (result["matched"], result["changed"], result["is_cut"]) == (2, 2, False)
    assert ids("--view", "scheduled") == []
    assert set(ids("--view", "ready")) == {*later, ready}


def test_many_jobs_are_rescheduled_by_repeating_an_instant_and_not_a_delay(project: Project) -> None:
    """The fault: "repeat the command", which with --delay moved the same jobs again, and the others never."""
    jobs = [project.enqueue("good", delay=3600) for _ in range(3)]
    command = ("jobs", "reschedule", "--task", "good", "--most", "2", "--yes")
    again = "more jobs match; repeat the command, with --at in place of --delay, or raise --most"
    for time, said in (("--delay=2h", again), ("--at=2100-01-01", again), ("--at=2100-01-01", "1 job rescheduled")):
        assert call(*command, time).stdout.splitlines()[-1] == said
    assert [job["run_at"] for job in answer("jobs", "list")] == ["2100-01-01T00:00:00Z"] * len(jobs)


@pytest.mark.parametrize("verb", ["retry", "cancel", "run"])
def test_ambiguous_selections_are_refused(project: Project, verb: str) -> None:
    for words in ([], ["--yes"], ["1-1", "--state", "failed"], ["1-1", "--all"], ["--all", "--json"]):
        result = call("jobs", verb, *words)
        assert result.exit_code == 2, (words, result.output)


def test_a_bulk_change_works_in_chunks_and_can_be_repeated(project: Project) -> None:
    async def work(app: Headgate) -> None:
        await app.tasks["good"].using(delay=60).enqueue_many([() for _ in range(450)])
        printed: list[int] = []
        admin = app.admin.by("ada")
        query = JobQuery(task="good")
        result = await admin.cancel_many(query, most=430, on_progress=lambda done: printed.append(done.changed))
        assert (result.matched, result.changed, result.is_cut) == (430, 430, True)
        assert printed == [200, 400, 430]
        assert await admin.count(state=JobState.CANCELLED) == 430
        # Final jobs do not block the others.
        result = await admin.cancel_many(query, most=20)
        assert (result.matched, result.changed, result.is_cut) == (20, 20, False)
        retried = await admin.retry_many(JobQuery(state=JobState.CANCELLED))
        assert (retried.matched, retried.changed) == (450, 450)
        assert await admin.count(view="ready") == 450

    project.do(work)


@pytest.mark.parametrize("most", [-1, 1.5, None])
def test_a_maximum_that_is_no_count_is_refused(project: Project, most: Any) -> None:
    """The fault: -1 changed all jobs but one, and then blocked the event loop for ever."""

    async def work(app: Headgate) -> None:
        await app.tasks["good"].using(delay=60).enqueue_many([() for _ in range(3)])
        admin, id = app.admin, (await batch([app.tasks["good"].call()]).enqueue()).id
        refusals = [
            admin.cancel_many(JobQuery(), most=most),
            admin.cancel_batch(id, most=most),
            admin.queues.purge("default", most=most),
            admin.purge(most=most),
        ]
        for refused in refusals:
            with pytest.raises(DeclarationError, match=f"most={most} must be a whole number, at least 0"):
                await asyncio.wait_for(refused, 15)
        assert await admin.count(state=JobState.WAITING) == 4

    project.do(work)


def test_jobs_that_cannot_be_changed_do_not_stop_a_bulk_change(project: Project) -> None:
    """What does not qualify used to count towards the bound, which was then met again and again, for ever."""

    async def work(app: Headgate) -> None:
        good, admin = app.tasks["good"], app.admin
        await good.using(delay=3600).enqueue_many([() for _ in range(8)])
        await admin.cancel_many(JobQuery(task="good"))
        later = [job.id for job in await good.using(delay=3600).enqueue_many([() for _ in range(5)])]
        query = JobQuery(task="good")
        for dry_run in (True, False):
            result = await admin.run_many_now(query, most=5, dry_run=dry_run)
            assert (result.matched, result.changed, result.is_cut) == (5, 5, False)
            result = await admin.cancel_many(query, most=3, dry_run=dry_run)
            assert (result.matched, result.changed, result.is_cut) == (3, 3, True)
        result = await admin.cancel_many(query, most=3)
        assert (result.matched, result.changed, result.is_cut) == (2, 2, False)
        for id in later[:2]:
            await admin.retry(id)
        result = await admin.retry_many(query, most=11)
        assert (result.matched, result.changed, result.is_cut) == (11, 11, False)
        # Jobs that cannot be cancelled are not searched.
        assert (await admin.cancel_many(JobQuery(state=JobState.SUCCEEDED))).matched == 0

    project.do(work)


# --------------------------------------------------------------------------------------------- the whole thing


def test_reading_a_missing_file_does_not_create_it(project: Project) -> None:
    """From another directory every command created an empty file there, and reported no problem."""
    (project.path / "jobs.db").unlink()
    for line in ("status", "jobs list", "jobs count", "limits list", "nodes list", "queues list", "audit"):
        result = call(*line.split())
        assert (result.exit_code, str(project.path / "jobs.db") in result.output) == (1, True), result.output
    assert not (project.path / "jobs.db").exists()


def test_status_says_which_store_it_has_read(project: Project) -> None:
    path = str(project.path / "jobs.db")
    assert answer("status")["store"] == path
    assert f"Store: {path}" in call("status").output


def test_status_prints_what_an_operator_needs(project: Project) -> None:
    project.run_until_final(("bad", 1), ("good",))
    project.enqueue("sync", "acme")
    project.enqueue("good", delay=3600)
    project.do(lambda app: app.admin.queues.pause("mail"))

    async def renamed() -> None:
        other = Headgate("sqlite:///jobs.db", synchronous="OFF")

        @other.task(name="removed")
        async def removed() -> None: ...

        async with other.open():
            await removed.enqueue_many([(), ()])

    asyncio.run(renamed())
    printed = answer("status")
    waiting = {each["queue"]: each for each in printed["waiting"]}
    assert waiting["mail"]["failed_last_hour"] == 1
    assert {
        name: waiting["default"][name] for name in ("scheduled", "throttled", "ready", "blocked", "undeclared")
    } == {
        "scheduled": 1,
        "throttled": 0,
        "ready": 1,
        "blocked": 0,
        "undeclared": 2,
    }
    assert printed["unknown_tasks"] == [{"task": "removed", "queue": "default", "jobs": 2}]
    text = call("status").output
    for word in ("paused", "Waiting for", "failed in the last hour", "removed", "none; start one"):
        assert word in text


def test_nodes_show_their_queues_and_slots(project: Project) -> None:
    async def work(app: Headgate) -> list[Any]:
        await result_within(await app.tasks["good"].enqueue(), 15)
        return list(await app.admin.nodes())

    (node,) = project.do(work, running=True)
    assert (node.queues, node.slots, node.state) == ({"default": 100, "mail": 100}, 200, "alive")
    assert node.version == importlib.import_module("importlib.metadata").version("headgate")
    assert answer("nodes", "list") == []

    async def join(app: Headgate) -> None:
        await store_of(app).join("node-1", "web-1:42", controls=NodeControls({"mail": 4}), version="9.9")

    project.do(join)
    (listed,) = answer("nodes", "list")
    assert (listed["id"], listed["queues"], listed["version"], listed["state"]) == (
        "node-1",
        {"mail": 4},
        "9.9",
        "alive",
    )
    text = call("nodes", "list").output
    for word in ("web-1:42", "mail 4", "9.9", "alive"):
        assert word in text


def test_the_audit_log_shows_actions_with_their_actors(project: Project) -> None:
    async def work(app: Headgate) -> None:
        ada, bob = app.admin.by("ada@desk"), app.admin.by("bob@desk")
        await ada.queues.pause("mail")
        await bob.limits.pause("sync:rate", key="acme")
        await bob.limits.penalize("sync:rate", "acme", 60)
        await bob.limits.reset("sync:rate", "acme")
        await ada.limits.assign("sync:rate", "acme", "gold")
        await ada.queues.resume("mail")

    project.do(work)
    entries = answer("audit")
    assert [(each["actor"], each["action"], each["kind"], each["subject"]) for each in entries[::-1]] == [
        ("ada@desk", "pause", "queue", "mail"),
        ("bob@desk", "pause", "limit", "sync:rate"),
        ("bob@desk", "penalize", "limit", "sync:rate"),
        ("bob@desk", "reset", "limit", "sync:rate"),
        ("ada@desk", "assign", "limit", "sync:rate"),
        ("ada@desk", "resume", "queue", "mail"),
    ]
    assert entries[4]["detail"] == "key 'acme'"
    assert "until" in entries[3]["detail"]
    assert entries[1]["detail"] == "key 'acme': into tier 'gold'"
    assert len(answer("audit", "--actor", "bob@desk")) == 3
    assert len(answer("audit", "--before", str(entries[2]["number"]), "--count", "2")) == 2
    assert len(answer("audit", "--subject", "mail")) == 2
    assert "bob@desk" in call("audit").output


def test_the_default_actor_is_the_user_of_the_process(project: Project) -> None:
    id = project.enqueue("good", delay=60)
    assert call("jobs", "cancel", id).exit_code == 0
    (entry,) = answer("audit", "--subject", id)
    user, _, machine = entry["actor"].partition("@")
    assert user
    assert machine
