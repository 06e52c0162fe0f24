"""`headgate nodes`, on real worker processes: quiet, resumed, stopped, with more and fewer slots, by their names."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate import Headgate
from headgate.storage.records import NodeControls
from tests.faces.one_module import OneModule, answer, call, go_into
from tests.internals import store_of
from tests.until import patient, until

APP = """
import time
from pathlib import Path

from headgate import Headgate

app = Headgate("sqlite:///jobs.db", synchronous="OFF", history=False)
app.queue("mail", concurrency=1)


@app.task
def hold(number: int) -> None:
    Path(f"began-{number}").touch()
    while not Path("go").exists() and not Path(f"go-{number}").exists():
        time.sleep(0.01)
"""


class Project(OneModule):
    @contextmanager
    def worker(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, "-m", "headgate", "worker", self.target, *options]
        with subprocess.Popen(command, cwd=self.path, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def nodes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = answer("nodes", "list", self.target)
        return found

    async def nodes_are(self, holds: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """Wait for nodes that fit, and return them."""
        seen: list[dict[str, Any]] = []
        async with self.app.open():

            async def fit() -> bool:
                nodes = await self.app.admin.nodes()
                seen[:] = [{"name": node.name, "shown": node.shown_state} for node in nodes]
                return holds(seen)

            await until(fit, missing=lambda: seen)
        return seen

    def began(self) -> set[int]:
        """The jobs that have begun."""
        return {int(path.name.removeprefix("began-")) for path in self.path.glob("began-*")}


def read_until(process: subprocess.Popen[str], text: str) -> None:
    """Read the log of a worker until a line holds the text."""
    assert process.stderr is not None
    assert any(text in line for line in process.stderr), f"the log ended without {text!r}"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    go_into(tmp_path, monkeypatch)
    return Project(tmp_path, APP)


async def join(app: Headgate, id: str, name: str) -> None:
    await store_of(app).join(id, name, controls=NodeControls({"default": 4, "mail": 1}))


def test_nodes_are_quieted_resumed_and_stopped_by_name_and_id(project: Project) -> None:
    project.do(lambda app: join(app, "node-1", "mail-1"))
    assert call("nodes", "quiet", project.target, "mail-1").output == "mail-1 is quiet\n"
    (node,) = project.nodes()
    assert (node["is_quiet"], node["is_stopping"], node["slots"]) == (True, False, 5)
    assert "quiet" in call("nodes", "list", project.target).output
    assert "quiet" in call("status", project.target).output
    again = call("nodes", "quiet", project.target, "mail-1")
    assert (again.exit_code, again.output) == (1, "mail-1 was quiet already\n")
    assert call("nodes", "resume", project.target, "node-1").output == "node-1 is resumed\n"
    assert call("nodes", "resume", project.target, "node-1").output == "node-1 was not quiet\n"
    assert answer("nodes", "stop", project.target, "mail-1", "--yes") == {
        "node": "mail-1",
        "is_stopping": True,
        "changed": True,
    }
    assert "stopping" in call("nodes", "list", project.target).output
    entries = answer("audit", project.target, "--kind", "node")
    assert [(entry["action"], entry["subject"]) for entry in entries] == [
        ("stop", "mail-1"),
        ("resume", "mail-1"),
        ("quiet", "mail-1"),
    ]


def test_labels_are_listed_where_a_node_has_any(project: Project) -> None:
    project.do(lambda app: join(app, "node-1", "mail-1"))
    assert "labels" not in call("nodes", "list", project.target).output
    controls = NodeControls({"default": 4})
    project.do(lambda app: store_of(app).join("node-2", "mail-2", controls=controls, labels=["eu", "gpu"]))
    text = call("nodes", "list", project.target).output
    assert "labels" in text
    assert "eu, gpu" in text


def test_a_node_that_was_declared_dead_is_listed_after_the_live_ones(project: Project) -> None:
    project.do(lambda app: join(app, "node-2", "mail-2"))
    assert "declared dead" not in call("nodes", "list", project.target).output

    async def die(app: Headgate) -> None:
        await join(app, "node-1", "mail-1")
        assert await store_of(app).recover("node-1", 0) is not None
        # What counts or steers nodes has the live ones.
        assert [node.id for node in await app.admin.nodes()] == ["node-2"]
        overview = await app.admin.overview()
        assert (overview.nodes.alive, overview.nodes.gone) == (1, 0)
        assert [node.id for node in (await app.admin.checkup()).nodes] == ["node-2"]

    project.do(die)
    live, dead = project.nodes()
    assert (live["id"], live["state"], live["lost_at"], live["returned"]) == ("node-2", "alive", None, None)
    assert (dead["id"], dead["name"], dead["state"], dead["returned"]) == ("node-1", "mail-1", "gone", 0)
    assert dead["lost_at"] > dead["started_at"]
    assert [node["id"] for node in answer("status", project.target)["nodes"]] == ["node-2", "node-1"]
    text = call("nodes", "list", project.target).output
    assert "declared dead" in text
    assert "jobs returned" in text
    project.do(lambda app: join(app, "node-1", "mail-1"))
    assert {node["id"]: node["state"] for node in project.nodes()} == {"node-1": "alive", "node-2": "alive"}


def test_of_many_nodes_that_were_declared_dead_the_last_20_are_listed(project: Project) -> None:
    async def die(app: Headgate) -> None:
        for number in range(22):
            await join(app, f"node-{number}", "killed")
            assert await store_of(app).recover(f"node-{number}", 0) is not None

    project.do(die)
    assert [node["id"] for node in project.nodes()] == [f"node-{number}" for number in range(21, 1, -1)]


def test_a_node_is_renamed_until_it_ends(project: Project) -> None:
    project.do(lambda app: join(app, "node-1", "mail-1"))
    assert call("nodes", "rename", project.target, "mail-1", "mail-2").output == "mail-1 is renamed to mail-2\n"
    (node,) = project.nodes()
    assert (node["id"], node["name"], node["slots"]) == ("node-1", "mail-2", 5)
    again = call("nodes", "rename", project.target, "node-1", "mail-2")
    assert (again.exit_code, again.output) == (1, "node-1 had the name mail-2 already\n")
    assert (
        "no running node has the id or name 'mail-1'" in call("nodes", "stop", project.target, "mail-1", "--yes").output
    )
    refused = call("nodes", "rename", project.target, "mail-2", "two words")
    assert (refused.exit_code, "is not the name of a worker" in refused.output) == (1, True)
    (entry,) = answer("audit", project.target, "--kind", "node")
    assert (entry["action"], entry["subject"], entry["detail"]) == ("rename", "mail-1", "mail-2 (node-1)")


def test_the_slots_of_a_node_are_set_for_a_queue_and_for_all(project: Project) -> None:
    project.do(lambda app: join(app, "node-1", "mail-1"))
    assert call("nodes", "slots", project.target, "mail-1", "3").output == "mail-1 has 3 slots\n"
    assert "at most 3: default 4, mail 1" in " ".join(call("nodes", "list", project.target).output.split())
    assert call("nodes", "slots", project.target, "mail-1", "mail:9").output == "mail-1 has 9 slots for queue mail\n"
    (node,) = project.nodes()
    assert (node["queues"], node["slots"]) == ({"default": 4, "mail": 9}, 3)
    assert answer("nodes", "slots", project.target, "mail-1", "0")["changed"]
    assert project.nodes()[0]["is_quiet"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("quiet", "mail"), 1, "2 nodes have the name 'mail'; name one by its id: node-1, node-2"),
        (("stop", "nobody", "--yes"), 1, "no running node has the id or name 'nobody'"),
        (("stop", "node-1"), 1, "there is no terminal to ask on; add --yes"),
        (("slots", "node-1", "many"), 2, "SLOTS is a whole number, such as 20, or QUEUE:NUMBER, such as emails:4"),
        (("slots", "node-1", ":4"), 2, "SLOTS is a whole number"),
        (("slots", "node-1", "6"), 1, "its queues have 5 together (default 4, mail 1)"),
        (("slots", "node-1", "mails:6"), 1, "does not serve queue 'mails'; did you mean 'mail'?"),
    ],
)
def test_requests_that_cannot_be_meant_are_refused(
    words: tuple[str, ...], code: int, said: str, project: Project
) -> None:
    project.do(lambda app: join(app, "node-1", "mail"))
    project.do(lambda app: join(app, "node-2", "mail"))
    result = call("nodes", words[0], project.target, *words[1:])
    assert result.exit_code == code, result.output
    assert said in " ".join(result.output.split())
    assert answer("audit", project.target) == []


@pytest.mark.slow
async def test_a_quiet_worker_lets_its_job_run_and_another_slot_number_applies_at_once(project: Project) -> None:
    async with project.app.open():
        await project.app.tasks["hold"].enqueue_many([(number,) for number in range(9)])
    with project.worker("--name", "web", "-q", "default:1") as worker:
        await until(lambda: project.began() == {0})
        async with project.app.open():
            assert await project.app.admin.quiet_node("web")
        await project.nodes_are(lambda nodes: [node["shown"] for node in nodes] == ["quiet"])
        read_until(worker, "is quiet: it claims no more jobs until it is resumed")
        (project.path / "go-0").touch()
        read_until(worker, "(hold) succeeded")
        assert project.began() == {0}
        async with project.app.open():
            assert await project.app.admin.set_node_slots("web", 3)
        await until(lambda: project.began() == {0, 1, 2, 3})
        async with project.app.open():
            assert await project.app.admin.stop_node("web")
        await project.nodes_are(lambda nodes: [node["shown"] for node in nodes] == ["stopping"])
        read_until(worker, "is stopping at the request of an operator: it claims no more jobs")
        (project.path / "go").touch()
        assert worker.wait(patient(15)) == 0
    # What had begun has ended; nothing else has begun.
    assert project.began() == {0, 1, 2, 3}
    async with project.app.open():
        (queue,) = [each for each in await project.app.admin.counts() if each.queue == "default"]
    assert (queue.succeeded, queue.running, queue.waiting) == (4, 0, 5)


@pytest.mark.slow
async def test_a_supervisor_does_not_start_a_worker_again_that_an_operator_has_stopped(project: Project) -> None:
    with project.worker("--name", "web", "--processes", "2") as parent:
        nodes = await project.nodes_are(lambda nodes: len(nodes) == 2)
        assert sorted(node["name"] for node in nodes) == ["web-1", "web-2"]
        async with project.app.open():
            await project.app.admin.stop_node("web-1")
        await project.nodes_are(lambda nodes: [node["name"] for node in nodes] == ["web-2"])
        assert parent.poll() is None
        async with project.app.open():
            await project.app.admin.stop_node("web-2")
        assert parent.wait(patient(15)) == 0
    assert await project.nodes_are(lambda nodes: not nodes) == []
