"""The findings of a checkup: each problem is reported with advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from headgate.admin import NodeStatus
from headgate.admin.checkup import Checkup
from headgate.admin.findings import Finding, findings_of
from headgate.admin.pauses import Pause
from headgate.cli.doctor import process_findings
from headgate.clock import from_datetime
from headgate.jobs.event import unserved_text
from headgate.storage.facts import (
    Contradiction,
    IndexFacts,
    MemoryFacts,
    PostgresFacts,
    SqliteFacts,
    StoreFacts,
    TableFacts,
)
from headgate.storage.records import Blocker, WaitingCount
from headgate.tasks.status import ScheduleStatus

NOW = datetime(2026, 5, 1, 8, tzinfo=UTC)
GIB = 2**30

SQLITE = SqliteFacts(
    path="/var/lib/jobs.db",
    version=(3, 51, 3),
    synchronous="FULL",
    filesystem="ext4",
    free_bytes=50 * GIB,
    disk_bytes=100 * GIB,
    file_bytes=GIB,
    log_bytes=4096,
    mode=0o600,
    is_folder_shared=False,
    can_write=True,
)

POSTGRES = PostgresFacts(
    version=160004,
    is_pooled=False,
    listens=True,
    is_read_only=False,
    skew=2000,
    connections=8,
    used_connections=20,
    max_connections=100,
    autovacuum=True,
    fsync=True,
    synchronous_commit="on",
    tables=[TableFacts(name="job", live=1000, dead=20, is_vacuumed=True)],
)


def node(
    state: Any = "alive",
    *,
    name: str = "web-1:7",
    version: str = "1.2.0",
    lingering: Sequence[str] = (),
    is_quiet: bool = False,
) -> NodeStatus:
    age = 45.0 if state == "silent" else 1.0
    return NodeStatus("n1", name, 7, state, age, 3, {"default": 4}, version, lingering, NOW, slots=4, is_quiet=is_quiet)


def checkup(store: StoreFacts = SQLITE, **facts: Any) -> Checkup:
    fine: dict[str, Any] = {
        "nodes": [node()],
        "waiting": (),
        "pauses": (),
        "queues": ("default", "mail", "eu:2"),
        "unknown_tasks": {},
        "undeclared": {},
        "unknown_limits": {},
        "overdue": [],
        "blockers": [],
        "alerts": [],
        "contradictions": None,
    }
    return Checkup(now=NOW, store=store, **{**fine, **facts})


def bad(found: list[Finding]) -> list[tuple[str, str]]:
    return [(each.level, each.check) for each in found if each.level != "ok"]


@pytest.mark.parametrize("store", [SQLITE, POSTGRES, MemoryFacts()])
def test_findings_without_problems_have_no_advice(store: StoreFacts) -> None:
    found = findings_of(checkup(store, contradictions=[]))
    assert bad(found) == []
    assert all(each.advice is None for each in found)


def test_a_file_in_a_folder_that_is_shared_on_purpose_may_be_the_groups() -> None:
    shared = msgspec.structs.replace(SQLITE, mode=0o660, is_folder_shared=True)
    assert bad(findings_of(checkup(shared))) == []


@pytest.mark.parametrize(
    ("change", "level", "check", "part"),
    [
        ({"version": (3, 50, 4)}, "warning", "SQLite version", "WAL-reset bug"),
        ({"synchronous": "NORMAL"}, "warning", "synchronous", "power failure"),
        ({"synchronous": "OFF"}, "problem", "synchronous", "corrupt"),
        ({"filesystem": "nfs4"}, "problem", "filesystem", "nfs4"),
        ({"free_bytes": GIB // 2}, "warning", "disk space", "512 MiB"),
        ({"free_bytes": 2**20}, "problem", "disk space", "1 MiB"),
        ({"can_write": False}, "problem", "permissions", "may not write"),
        ({"mode": 0o666}, "warning", "permissions", "0666"),
        ({"mode": 0o644}, "warning", "permissions", "all users may read"),
        ({"mode": 0o660}, "warning", "permissions", "its group"),
        ({"mode": 0o640}, "warning", "permissions", "its group"),
        ({"mode": 0o664, "is_folder_shared": True}, "warning", "permissions", "all users may read"),
        ({"log_bytes": 2 * GIB}, "warning", "write-ahead log", "2048 MiB"),
    ],
)
def test_problems_of_a_file_are_found(change: dict[str, Any], level: str, check: str, part: str) -> None:
    found = findings_of(checkup(msgspec.structs.replace(SQLITE, **change)))
    assert bad(found) == [(level, check)]
    [received] = [each for each in found if each.level != "ok"]
    assert part in received.seen
    assert received.advice


@pytest.mark.parametrize(
    ("change", "level", "check", "part"),
    [
        ({"version": 130014}, "warning", "PostgreSQL version", "13"),
        ({"is_read_only": True}, "problem", "primary", "a replica, or default_transaction_read_only is set"),
        ({"is_pooled": True, "listens": False}, "warning", "pooler", "poll"),
        # The fault: with a wrong HEADGATE_LISTEN_URL and no pooler, doctor found nothing.
        ({"listens": False}, "warning", "pooler", "no pooler, but workers cannot listen: they poll"),
        ({"skew": 30_000_000}, "warning", "clock", "30.0 s behind the server"),
        ({"skew": -30_000_000}, "warning", "clock", "30.0 s ahead of the server"),
        ({"used_connections": 95}, "warning", "connections", "95 of 100"),
        ({"max_connections": 10, "used_connections": 1}, "warning", "connections", "may open 9 each"),
        ({"autovacuum": False}, "problem", "autovacuum", "off"),
        ({"fsync": False}, "problem", "fsync", "off"),
        ({"synchronous_commit": "off"}, "warning", "synchronous_commit", "last commits"),
        (
            {"tables": [TableFacts(name="job", live=10, dead=90_000, is_vacuumed=True)]},
            "warning",
            "dead rows",
            "90,000 dead rows",
        ),
        (
            {"tables": [TableFacts(name="job", live=10, dead=0, is_vacuumed=False)]},
            "problem",
            "autovacuum",
            "table job",
        ),
    ],
)
def test_problems_of_a_server_are_found(change: dict[str, Any], level: str, check: str, part: str) -> None:
    found = findings_of(checkup(msgspec.structs.replace(POSTGRES, **change)))
    assert bad(found) == [(level, check)]
    assert part in next(each.seen for each in found if each.level != "ok")


def test_a_pooler_with_a_direct_url_is_fine() -> None:
    assert bad(findings_of(checkup(msgspec.structs.replace(POSTGRES, is_pooled=True)))) == []


def test_problems_of_nodes_are_found() -> None:
    assert bad(findings_of(checkup(nodes=[]))) == [("warning", "nodes")]
    assert bad(findings_of(checkup(nodes=[], waiting=[WaitingCount("default", "work", "ready", 3)]))) == [
        ("problem", "nodes")
    ]
    found = findings_of(checkup(nodes=[node(), node("silent", name="web-2:9")]))
    assert bad(found) == [("warning", "nodes")]
    assert any("web-2:9 has sent no heartbeat for 45 s" in each.seen for each in found)
    full = node(lingering=["job-1", "job-2", "job-3", "job-4"])
    [received] = [each for each in findings_of(checkup(nodes=[full])) if each.level != "ok"]
    assert received.seen.startswith("web-1:7: attempts that were asked to end still take 4 of 4 slots")
    assert received.seen.endswith(": job job-1, job-2, job-3, …")
    # By number: 1.10 is newer than 1.9.
    deploying = [node(version="1.9.0", name="old:1"), node(version="1.10.0", name="new:2")]
    [received] = [each for each in findings_of(checkup(nodes=deploying)) if each.level != "ok"]
    assert (received.check, received.advice) == ("releases", "end the deploy: restart old:1")
    [received] = [each for each in findings_of(checkup(nodes=[node(is_quiet=True)])) if each.level != "ok"]
    assert received.seen.startswith("web-1:7 is quiet")
    assert received.advice is not None
    assert "headgate nodes resume web-1:7" in received.advice


def test_problems_of_jobs_and_schedules_are_found() -> None:
    since = from_datetime(NOW - timedelta(minutes=10))
    found = findings_of(
        checkup(
            POSTGRES,
            unknown_tasks={"sync": 12},
            blockers=[
                Blocker("long transaction", 71, since, "psql prevents the removal of dead rows"),
                Blocker("long transaction", 72, from_datetime(NOW - timedelta(seconds=9)), "a short one"),
                Blocker("blocks", 73, since, "psql keeps 3 waiting"),
            ],
            contradictions=[Contradiction("job 1 waits in no lane")],
            indexes=IndexFacts(
                contradictions=(Contradiction("row 1 is missing", "REINDEX"),),
                unchecked=Contradiction("no amcheck", "CREATE EXTENSION amcheck"),
            ),
        )
    )
    assert bad(found) == [
        ("warning", "tasks"), ("warning", "blockers"), ("problem", "blockers"), ("problem", "integrity"),
        ("problem", "indexes"), ("warning", "indexes"),
    ]  # fmt: skip
    received = {each.seen: each.advice or "" for each in found}
    assert "pg_terminate_backend(73)" in received["for 600 s: psql keeps 3 waiting"]
    assert received["row 1 is missing"] == "REINDEX"
    assert received["not checked: no amcheck"] == "CREATE EXTENSION amcheck"
    assert (
        "headgate jobs cancel --task sync"
        in received["12 jobs of task 'sync', which neither a worker nor this app declares, are waiting"]
    )
    (spaced,) = [each for each in findings_of(checkup(unknown_tasks={"say hi": 1})) if each.check == "tasks"]
    assert "headgate jobs cancel --task 'say hi' --state waiting" in (spaced.advice or "")
    late = ScheduleStatus(
        "tides", "log", "unreadable", "active", NOW, None, None, 0, 0, None, None, "run_once", "skip", NOW,
        is_overdue=True, problem="cannot be read: rules", unreadable="rules",
    )  # fmt: skip
    (seen,) = [each.seen for each in findings_of(checkup(overdue=[late])) if each.check == "schedules"]
    assert seen == "'tides' cannot be read: rules"
    late = replace(late, problem="overdue: this app does not declare its trigger", unreadable=None)
    (seen,) = [each.seen for each in findings_of(checkup(overdue=[late])) if each.check == "schedules"]
    assert seen == "'tides' is overdue: this app does not declare its trigger"


def test_problems_of_the_process_are_found() -> None:
    assert bad(process_findings(has_uvloop=True, has_zones=True, open_files=None)) == []
    found = process_findings(has_uvloop=False, has_zones=False, open_files=256)
    assert bad(found) == [("problem", "time zones"), ("warning", "open files")]


def test_jobs_that_wait_for_an_operator_or_a_missing_worker_are_a_problem() -> None:
    """The fault: "0 problems" while jobs waited for a queue that no node served, behind a pause, or for quiet nodes."""
    unserved = [WaitingCount("mail", "send", "ready", 1), WaitingCount("mail", "send", "throttled", 2)]
    (found,) = [each for each in findings_of(checkup(waiting=unserved)) if each.level != "ok"]
    assert (found.level, found.seen) == ("problem", "3 jobs of queue 'mail' wait, and no running node serves it")
    assert found.advice == "headgate worker --queue mail"
    # The fault: `eu:2` was two slots of queue `eu`, and `eu:mail` was refused.
    named = [WaitingCount("eu:2", "send", "ready", 1)]
    (found,) = [each for each in findings_of(checkup(waiting=named)) if each.level != "ok"]
    assert found.advice == "headgate worker --queue eu:2:"
    assert "start one: `headgate worker --queue eu:2:`" in unserved_text("eu:2", None, is_any_alive=True)
    # The fault: `headgate worker --queue mail`, which refuses a queue that a deploy has renamed.
    (found,) = [each for each in findings_of(checkup(waiting=unserved, queues=("emails",))) if each.level != "ok"]
    assert found.advice == (
        "this program does not declare it: start a worker of a program that does, or declare app.queue('mail') again "
        "until its jobs have ended"
    )

    ready = [WaitingCount("default", "work", "ready", 1)]
    assert bad(findings_of(checkup(waiting=ready))) == []
    found = next(
        each for each in findings_of(checkup(waiting=ready, nodes=[node(is_quiet=True)])) if each.check == "queues"
    )
    assert (found.level, found.seen) == (
        "problem",
        "1 job of queue 'default' waits, and all nodes that serve it are quiet",
    )
    assert found.advice == "resume one: headgate nodes resume web-1:7"
    # The fault: to resume a node does not help that is stopping, as one does that was quiet before.
    ending = replace(node(is_quiet=True), is_stopping=True)
    assert bad(findings_of(checkup(waiting=ready, nodes=[ending]))) == []
    # The fault: beside one that is stopping, no problem was found, although the other one claims nothing either.
    for stopping in (ending, replace(ending, is_quiet=False)):
        nodes = [stopping, node(is_quiet=True, name="web-2:8")]
        (found,) = [each for each in findings_of(checkup(waiting=ready, nodes=nodes)) if each.level == "problem"]
        assert found.advice == "resume one: headgate nodes resume web-2:8"
    assert bad(findings_of(checkup(waiting=ready, nodes=[node(), node(is_quiet=True)]))) == [("warning", "nodes")]

    undeclared = {("send", "default"): 2, ("send", "mail"): 1}
    (found,) = [each for each in findings_of(checkup(undeclared=undeclared)) if each.level != "ok"]
    assert (found.level, found.check, found.advice) == (
        "problem",
        "tasks",
        "start a worker of this release that imports its module",
    )
    assert found.seen == "no node that serves queue 'default' declares task 'send'; 2 jobs waiting"
    # What a node that is stopping declares does not count, so its queue has no node for a moment of a deploy.
    ending = replace(node(), is_stopping=True)
    assert bad(findings_of(checkup(undeclared=undeclared, nodes=[ending]))) == []

    later = [WaitingCount("mail", "send", "scheduled", 1)]
    assert bad(findings_of(checkup(waiting=later))) == []

    pause = Pause("limit 'api' is paused for key 'acme'", "headgate limits resume api --key acme", "ada", NOW, 7)
    (found,) = [each for each in findings_of(checkup(pauses=[pause])) if each.level != "ok"]
    assert found.level == "problem"
    assert found.seen == "7 jobs wait: limit 'api' is paused for key 'acme' by ada since 2026-05-01 08:00:00 UTC"
    assert found.advice == "end the pause, if it is over: headgate limits resume api --key acme"


def test_jobs_of_a_paused_queue_could_not_start_without_a_worker() -> None:
    """The fault: doctor counted them, and a worker that was started for them started none."""
    waiting = [WaitingCount("mail", "send", "ready", 100), WaitingCount("default", "sync", "ready", 2)]
    pause = Pause("queue 'mail' is paused", "headgate queues resume mail", waiting=100, queue="mail")
    seen = {each.check: each.seen for each in findings_of(checkup(nodes=[], waiting=waiting, pauses=[pause]))}
    assert seen["nodes"] == "none is alive, and 2 jobs could start"
    seen = {each.check: each.seen for each in findings_of(checkup(nodes=[], waiting=waiting[:1], pauses=[pause]))}
    assert seen["nodes"] == "none is alive, so nothing runs"
    assert seen["pauses"].startswith("100 jobs wait: queue 'mail' is paused")
