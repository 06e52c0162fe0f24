"""The incident drill, run as one program on a disk of its own: what goes wrong, and what the operator sees of it.

Its workers are `headgate worker` processes, and it asks the command line about them, as an operator would.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from headgate import Job, JobState
from headgate.errors import StorageUnavailable
from tests.durability.disk import fill
from tests.durability.run_log import damage
from tests.internals import store_of
from tests.until import patient, result_within, until

OPTIONS = json.loads(sys.argv[1])
DISK = Path(OPTIONS["disk"])
ELSEWHERE = Path(OPTIONS["elsewhere"])
os.environ["HEADGATE_URL"] = f"sqlite:///{DISK}/jobs.db"
os.environ["RUN_LOG"] = str(ELSEWHERE / "run_log")
os.chdir(ELSEWHERE)

from tests.durability import incident_app as release_1  # noqa: E402  (it reads the environment)

TARGET = "tests.durability.incident_app:app"
TENANTS = [f"tenant-{n}" for n in range(6)]


class Worker:
    """A worker process of a release, and what it has logged."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def name(self) -> str:
        return str(self.process.pid)

    @property
    def log(self) -> str:
        return self._log.read_text()

    async def says(self, words: str, seconds: float = 15) -> None:
        await until(lambda: words in self.log, seconds, lambda: f"the worker logs {words!r}; {self.log[-3000:]}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ends(self, seconds: float = 15) -> int:
        async with asyncio.timeout(patient(seconds)):
            return await self.process.wait()


WORKERS: list[Worker] = []
"""All that were started."""


async def start_worker(number: int, *, release: int) -> Worker:
    log = ELSEWHERE / f"worker-{number}.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "headgate", "worker", TARGET),
            env={**os.environ, "RELEASE": str(release)},
            stdout=output,
            stderr=output,
        )
    worker = Worker(process, log)
    WORKERS.append(worker)
    await worker.says("works on sqlite")
    return worker


async def headgate(*words: str, release: int = 1) -> str:
    """What a `headgate` command prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "headgate", words[0], *([words[1]] if words[0] != "status" else []), TARGET),
        *words[1 if words[0] == "status" else 2 :],
        env={**os.environ, "RELEASE": str(release), "COLUMNS": "200", "NO_COLOR": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return output.decode()


async def shown(job: Job[Any], release: int = 1) -> dict[str, Any]:
    (details,) = json.loads(await headgate("jobs", "show", job.id, "--json", release=release))
    assert isinstance(details, dict)
    return details


async def until_final(jobs: list[Job[Any]], what: str) -> None:
    """Check that all jobs have ended; if not, print why of each that has not."""
    admin = release_1.app.admin

    async def are_final() -> bool:
        return all([(await job.status()).state.is_final for job in jobs])

    async def left() -> str:
        received = [await admin.explain(job.id) for job in jobs]
        reasons = [f"{each.status.task}: {each.reason}" for each in received if not each.status.state.is_final]
        return f"{what}; {'; '.join(reasons)}"

    await until(are_final, 30, left)


async def is_running(job: Job[Any]) -> bool:
    return (await job.status()).state is JobState.RUNNING


def runs(what: str) -> Counter[str]:
    lines = (ELSEWHERE / "run_log").read_text().splitlines() if (ELSEWHERE / "run_log").exists() else []
    return Counter(job for kind, job, _ in map(str.split, lines) if kind == what)


async def drill() -> None:
    app, charge, report = release_1.app, release_1.charge, release_1.report
    send_mail = app.tasks["send_mail"]
    async with app.open():
        accepted: list[Job[Any]] = []

        async def load(count: int) -> None:
            accepted.extend(await charge.enqueue_many([(TENANTS[n % 6], n) for n in range(count)]))
            accepted.extend(await report.enqueue_many([(n,) for n in range(count // 4)]))

        first, second = await start_worker(1, release=1), await start_worker(2, release=1)
        await load(120)
        status = await headgate("status")
        assert status.count("alive") == 2, status

        # A worker under load is asked to stop: it finishes what it can within its grace, and returns the rest.
        long = await report.enqueue(0, seconds=30)
        await until(lambda: is_running(long), 30, lambda: "the long job runs")
        node = (await shown(long))["node"]
        leaving, staying = (first, second) if node in first.log else (second, first)
        leaving.signal(signal.SIGTERM)
        assert await leaving.ends() == 0
        assert "stopped, 0 jobs returned" not in leaving.log
        await until(lambda: is_running(long), 30, lambda: "the long job runs elsewhere")
        details = await shown(long)
        assert details["node"] != node
        assert details["attempt"] == 1, "a shutdown spent an attempt"
        assert [each["outcome"] for each in details["attempts"]] == ["interrupted"]
        assert [each["what"] for each in details["timeline"]] == [
            "enqueued",
            "started",
            "interrupted",
            "started",
            "is running",
        ]
        status = await headgate("status")
        assert status.count("alive") == 1, status

        # The other is killed: another worker recovers its jobs immediately, and the attempt is recorded as lost.
        third = await start_worker(3, release=1)
        await load(60)
        staying.signal(signal.SIGKILL)
        await staying.ends()
        await third.says("of its jobs wait again")
        await until(lambda: is_running(long), 30, lambda: "the long job runs again")
        details = await shown(long)
        assert details["attempt"] == 2
        assert details["lost_attempts"] == 1
        assert [each["outcome"] for each in details["attempts"]] == ["interrupted", "lost"]
        assert await long.cancel()

        # Handlers that hang cost their own time, and no more.
        hung = await release_1.hang.enqueue(1)
        wedged = await release_1.stuck.enqueue(1)
        await until_final([hung, wedged, long], "the handlers that hang are given up")
        for job, tries in ((hung, 2), (wedged, 1)):
            details = await shown(job)
            assert details["state"] == "failed", details
            assert len(details["attempts"]) == tries
            assert details["error"]["type"] == "TimeoutError"
            assert "longer than its timeout of 0.5 s" in details["error"]["message"]
        assert (await shown(long))["state"] == "cancelled"

        # The disk fills. No job is acknowledged without being stored, and endings are kept in memory meanwhile.
        if OPTIONS["small"]:
            during = await report.enqueue(7, seconds=1.0)
            await until(lambda: is_running(during), 30, lambda: "the job runs as the disk fills")
            filler = fill(DISK)
            refused = 0
            for number in range(100):
                try:
                    accepted.append(await report.enqueue(number))
                except StorageUnavailable as error:
                    if "is full" not in str(error):
                        raise
                    refused += 1
                    if refused > 5:
                        break
            assert refused
            await third.says("is full")
            status = await headgate("status")
            assert third.name in status, status
            filler.unlink()
            assert await result_within(during, 20) == 7
            accepted.append(during)
            assert runs("report")[during.id] == 1, "a job whose end could not be written ran again"

        await until_final(accepted, "all that was accepted ends")

        # A deploy renames a task. Jobs of the old name wait with a reason, and the next release runs them.
        third.signal(signal.SIGTERM)
        assert await third.ends() == 0
        mails = await send_mail.enqueue_many([(n,) for n in range(5)])
        fourth = await start_worker(4, release=2)
        await fourth.says("no such task is declared here")
        reason = await headgate("jobs", "explain", mails[0].id, release=2)
        assert "does not declare task 'send_mail'" in reason, reason
        assert not runs("send")
        fifth = await start_worker(5, release=3)
        await until_final(mails, "the mails are sent by the release that knows the old name")
        accepted += mails
        for worker in (fourth, fifth):
            worker.signal(signal.SIGTERM)
            assert await worker.ends() == 0

        # Nothing was lost, nothing counted twice, no limit was passed.
        for job in accepted:
            assert (await job.status()).state is JobState.SUCCEEDED, await app.admin.explain(job.id)
        assert all(runs("charge")[job.id] <= 2 for job in accepted)
        audited = await app.admin.limits.audit("charge:rate")
        assert len(audited) == len(TENANTS)
        assert all(each.is_within_limit for each in audited), audited
        assert await store_of(app).check() == []
    assert damage(DISK / "jobs.db") == "ok"


async def main() -> None:
    try:
        await drill()
    finally:
        for worker in WORKERS:
            with contextlib.suppress(ProcessLookupError):
                worker.process.kill()


asyncio.run(main())
os.write(1, b"passed []\n")
