"""`headgate demo`: watch the guarantees hold on a real store.

It starts the API and a worker, enqueues, kills and restarts the worker, and checks the result.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import IO

import click
import msgspec

from headgate.admin import Admin
from headgate.app import Headgate
from headgate.cli.demonstration.api import ApiClient, CallTotals, RecordedCall
from headgate.cli.demonstration.display import DemoDisplay, DemoProgress, TenantRow, choose_screen, print_verdict
from headgate.cli.demonstration.jobs_app import NOISY, QUIET, DemoLoad, make_app
from headgate.cli.demonstration.result import DemoRecords, EnqueuedCall, judge
from headgate.cli.output import print_json
from headgate.cli.times import seconds_within
from headgate.clock import SECOND, Clock, SystemClock, sleep
from headgate.errors import HeadgateError
from headgate.jobs.job import JobState
from headgate.plural import counted

SEED = 15
"""The quiet tenants' pauses are the same in every run."""

PATIENCE = 30.0
"""Seconds that a process of the demonstration may take to start or to end."""


class DemonstrationFailed(HeadgateError):
    """The demonstration could not run; the promises are not checked."""


@click.command()
@click.option(
    "--seconds", type=seconds_within(8, 3600), default="40s", show_default=True, metavar="TIME", help="The duration."
)
@click.option("--plain", is_flag=True, help="Print lines instead of a live table.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON; the progress goes to stderr.")
def demo(seconds: float, plain: bool, as_json: bool) -> None:
    """Watch Headgate keep its promises, in under a minute.

    An outside API in another process allows each tenant a number of calls in any time window, and answers 429 above
    that. One tenant enqueues hundreds of jobs, twenty others a few. In the middle the worker process is
    killed with kill -9. At the end the calls that the API recorded are compared with the job store.

    Exit code 1 if any promise was broken.
    """
    try:
        code = asyncio.run(run_demo(seconds, plain=plain, as_json=as_json))
    except asyncio.CancelledError:
        raise click.Abort from None
    raise SystemExit(code)


async def run_demo(seconds: float, *, plain: bool, as_json: bool) -> int:
    """Run the whole demonstration; return exit code 0 if all promises were kept."""
    scene = DemoLoad(seconds=seconds)
    screen = choose_screen(scene, plain=plain, as_json=as_json)
    loop, play = asyncio.get_running_loop(), asyncio.current_task()
    assert play is not None
    # As Ctrl-C does: its processes end and its files are deleted.
    loop.add_signal_handler(signal.SIGTERM, play.cancel)
    try:
        evidence = await _play(scene, screen, SystemClock())
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        screen.close()
    verdict = judge(evidence)
    if as_json:
        terms = {"calls": scene.calls, "window": scene.window, "margin": scene.margin}
        print_json({"kept": verdict.kept, **terms, "promises": verdict.promises})
    else:
        print_verdict(verdict)
    return 0 if verdict.kept else 1


async def _play(scene: DemoLoad, screen: DemoDisplay, clock: Clock) -> DemoRecords:
    with tempfile.TemporaryDirectory(prefix="headgate-demo-") as directory:
        folder = Path(directory)
        async with _api_process(scene) as port:
            scene = replace(scene, port=port, url=f"sqlite:///{folder / 'jobs.db'}", endings=str(folder / "endings"))
            app = make_app(scene)
            with (folder / "worker.log").open("w+b") as log:
                async with app.open():
                    return await _Demonstration(scene, screen, clock, app, log).play()


class _Demonstration:
    def __init__(self, scene: DemoLoad, screen: DemoDisplay, clock: Clock, app: Headgate, log: IO[bytes]) -> None:
        self._scene = scene
        self._screen = screen
        self._clock = clock
        self._admin: Admin = app.admin
        self._task = app.tasks["sync_tenant"]
        self._log = log
        self._api = ApiClient(scene.port)
        self._worker: Process | None = None
        self._worker_state = "starting"
        self._began = clock.monotonic()
        self._alive_since = 0
        self._alive: list[tuple[int, int]] = []
        self._enqueued: dict[str, EnqueuedCall] = {}
        self._endings: list[str] = []
        self._endings_read = 0

    # ---------------------------------------------------------------------------------------------- the run

    async def play(self) -> DemoRecords:
        """Return the records of the run; no process is left behind."""
        try:
            return await self._play()
        finally:
            self._api.close()
            if self._worker is not None and self._worker.returncode is None:
                self._worker.kill()
                await self._worker.wait()

    async def _play(self) -> DemoRecords:
        scene, say = self._scene, self._screen.say
        say(
            f"An outside API allows each tenant {scene.calls} calls in any {scene.window:g} s "
            f"(a minute, scaled down so that several windows fit into {scene.seconds:g} s)."
        )
        say(
            f"The task has StrictRate({scene.calls}, per={scene.window:g}) and not RateLimit, whose burst refills "
            f"while it is spent: up to {2 * scene.calls - 1} calls could fall into one window."
        )
        await self._start_worker()
        self._began = self._clock.monotonic()
        async with asyncio.TaskGroup() as crew:
            await self._enqueue_noisy()
            tricklers = [crew.create_task(self._trickle(tenant)) for tenant in QUIET]
            pictures = crew.create_task(self._keep_drawing())
            await self._until(scene.killed_after)
            await self._kill_worker()
            await sleep(self._clock, scene.outage)
            await self._start_worker()
            say(f"{self._elapsed():5.1f} s  a new worker runs; it takes over the jobs of the dead one")
            await self._until(scene.quiet_until)
            for trickler in tricklers:
                trickler.cancel()
            await self._until(scene.seconds)
            ended = await self._between_bursts()
            pictures.cancel()
        exit_code = await self._stop_worker()
        say(f"{self._elapsed():5.1f} s  the worker was stopped, drained and ended with exit code {exit_code}")
        return await self._evidence(ended, exit_code)

    async def _enqueue_noisy(self) -> None:
        at = self._clock.monotonic()
        jobs = await self._task.enqueue_many([(NOISY, page) for page in range(self._scene.noisy_jobs)])
        for job in jobs:
            self._enqueued[job.id] = EnqueuedCall(NOISY, at)
        self._screen.say(
            f"{self._elapsed():5.1f} s  tenant {NOISY!r} enqueued {counted(len(jobs), 'job')}; {len(QUIET)} quiet ones "
            "enqueue a few, and stay below their limit"
        )

    async def _trickle(self, tenant: str) -> None:
        random = Random(f"{SEED} {tenant}")
        page = 0
        while True:
            await sleep(self._clock, random.uniform(*self._scene.quiet_every))
            at = self._clock.monotonic()
            job = await self._task.enqueue(tenant, page)
            self._enqueued[job.id] = EnqueuedCall(tenant, at)
            page += 1

    async def _kill_worker(self) -> None:
        """Kill the worker with kill -9 during a burst of the noisy tenant, while handlers run."""
        assert self._worker is not None
        give_up_at = self._clock.monotonic() + round((self._scene.window + 2) * SECOND)
        while (await self._totals()).in_flight.get(NOISY, 0) < self._scene.calls // 2:
            if self._clock.monotonic() > give_up_at:
                break
            await sleep(self._clock, 0.005)
        # The rest of the burst follows.
        await sleep(self._clock, 0.03)
        in_flight = sum((await self._totals()).in_flight.values())
        self._alive.append((self._alive_since, self._clock.monotonic()))
        self._worker.kill()
        self._worker_state = "dead"
        await self._worker.wait()
        self._screen.say(
            f"{self._elapsed():5.1f} s  kill -9 ends the worker (pid {self._worker.pid}) during {in_flight} calls "
            "to the API; enqueueing continues"
        )

    async def _between_bursts(self) -> int:
        """Return an instant far from starts of the noisy tenant, so that milliseconds do not change the count."""
        calm = min(0.3, self._scene.window / 8)
        give_up_at = self._clock.monotonic() + round(self._scene.window * SECOND)
        while True:
            slot = await self._next_slot_in(NOISY)
            at = self._clock.monotonic()
            since = (at - (await self._totals()).last_call_at.get(NOISY, 0)) / SECOND
            if (since > calm and slot is not None and slot > calm) or at > give_up_at:
                return at
            await sleep(self._clock, 0.02)

    async def _until(self, seconds: float) -> None:
        await sleep(self._clock, max(0.0, seconds - self._elapsed()))

    def _elapsed(self) -> float:
        return (self._clock.monotonic() - self._began) / SECOND

    # ------------------------------------------------------------------------------------------- the worker

    async def _start_worker(self) -> None:
        """Start `headgate worker`, and return when its node has joined."""
        self._worker_state = "starting"
        target = f"{make_app.__module__}:app"
        # Without the settings of other apps.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headgate", "worker", target, "--log-level", "warning", "--end-with-stdin"),
            env={**environment, **self._scene.environment()},
            stdin=PIPE,
            stdout=DEVNULL,
            stderr=self._log,
            start_new_session=True,
        )
        self._worker = worker
        give_up_at = self._clock.monotonic() + round(PATIENCE * SECOND)
        while not any(node.pid == worker.pid for node in await self._admin.nodes()):
            if worker.returncode is not None or self._clock.monotonic() > give_up_at:
                raise DemonstrationFailed(
                    f"the worker process did not start: {self._worker_log() or 'it logged nothing'}"
                )
            await sleep(self._clock, 0.01)
        self._alive_since = self._clock.monotonic()
        self._worker_state = f"alive (pid {worker.pid})"

    async def _stop_worker(self) -> int:
        assert self._worker is not None
        self._alive.append((self._alive_since, self._clock.monotonic()))
        self._worker.send_signal(signal.SIGTERM)
        waiting = asyncio.ensure_future(self._worker.wait())
        timer = self._clock.call_at(self._clock.monotonic() + round(PATIENCE * SECOND), self._worker.kill)
        try:
            return await waiting
        finally:
            timer.cancel()

    def _worker_log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace").strip()[-2000:]

    # ---------------------------------------------------------------------------------------------- reading

    async def _keep_drawing(self) -> None:
        while True:
            self._screen.draw(await self._picture())
            await sleep(self._clock, self._screen.every)

    async def _picture(self) -> DemoProgress:
        totals = await self._totals()
        buckets = {bucket.key: bucket for bucket in await self._admin.limits.list(count=100)}
        enqueued = Counter(job.tenant for job in self._enqueued.values())
        known = [job.id for job in await self._admin.jobs(state=JobState.RUNNING, count=500)]
        running = Counter(self._enqueued[id].tenant for id in known if id in self._enqueued)
        self._read_endings()
        done = Counter(self._enqueued[id].tenant for id in set(self._endings) if id in self._enqueued)
        rows: list[TenantRow] = []
        for tenant in (NOISY, *QUIET):
            bucket = buckets.get(tenant)
            slot = None if bucket is None or not bucket.waiting or bucket.next_slot_at is None else bucket.next_slot_at
            rows.append(
                TenantRow(
                    tenant,
                    max(0, enqueued[tenant] - running[tenant] - done[tenant]),
                    running[tenant],
                    done[tenant],
                    None if slot is None else max(0.0, (slot - self._admin.now()).total_seconds()),
                )
            )
        return DemoProgress(self._elapsed(), self._worker_state, rows, totals.calls, totals.refused)

    async def _next_slot_in(self, tenant: str) -> float | None:
        for bucket in await self._admin.limits.list(key=tenant):
            if bucket.next_slot_at is not None:
                return (bucket.next_slot_at - self._admin.now()).total_seconds()
        return None

    async def _totals(self) -> CallTotals:
        return msgspec.json.decode((await self._api.get("/totals")).body, type=CallTotals)

    def _read_endings(self) -> None:
        path = Path(self._scene.endings)
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._endings_read)
            lines = file.read()
        self._endings_read += len(lines)
        self._endings += [line.split(" ")[0] for line in lines.decode().splitlines()]

    async def _evidence(self, ended: int, exit_code: int) -> DemoRecords:
        ledger = msgspec.json.decode((await self._api.get("/ledger")).body, type=list[RecordedCall])
        states: dict[str, str] = {}
        before: str | None = None
        while page := await self._admin.jobs(count=500, before=before):
            states.update((job.id, job.state.value) for job in page)
            before = page[-1].id
        calls = Counter(call.job for call in ledger)
        again = [id for id, count in calls.items() if count > 1 and id in states]
        self._read_endings()
        return DemoRecords(
            calls=self._scene.calls,
            window=round(self._scene.window * SECOND),
            margin=round(self._scene.margin * SECOND),
            noisy=NOISY,
            enqueued=self._enqueued,
            ledger=ledger,
            states=states,
            lost={id: (await self._admin.job(id)).record.lost for id in again},
            endings=self._endings,
            alive=self._alive,
            began=self._began,
            ended=ended,
            exit_code=exit_code,
        )


# ---------------------------------------------------------------------------------------------- processes


@contextlib.asynccontextmanager
async def _api_process(scene: DemoLoad) -> AsyncIterator[int]:
    """Start the API in a process of its own; return its port."""
    module = RecordedCall.__module__
    numbers = (str(scene.calls), str(scene.window), str(scene.latency))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *numbers), stdin=PIPE, stdout=PIPE, start_new_session=True
    )
    assert process.stdout is not None
    try:
        line = await process.stdout.readline()
        if not line.strip().isdigit():
            raise DemonstrationFailed("the outside API did not start")
        yield int(line)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
