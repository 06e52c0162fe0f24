"""The demonstration: its API over real HTTP, and a result that is able to say no. tests/cluster has the whole of it."""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from headgate.cli import demo
from headgate.cli.demonstration.api import Api, ApiClient, CallLog, CallTotals, RecordedCall, listen, port_of
from headgate.cli.demonstration.jobs_app import NOISY, DemoLoad
from headgate.cli.demonstration.result import (
    DemoRecords,
    DemoResult,
    EnqueuedCall,
    ideal_starts,
    judge,
    most_in_a_window,
)
from headgate.clock import SECOND
from headgate.testing.manual_clock import ManualClock
from tests.until import patient

# ------------------------------------------------------------------------------------------------ the command


@pytest.mark.slow
def test_a_demo_that_is_stopped_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headgate", "demo", "--plain"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as demo:
        try:
            assert demo.stdout is not None
            line = next(line for line in demo.stdout if "alive (pid " in line)
            worker = os.pidfd_open(int(line.partition("alive (pid ")[2].partition(")")[0]))
            demo.terminate()
            assert demo.wait() == 1
            assert select.select([worker], [], [], patient(15))[0]
            os.close(worker)
        finally:
            demo.kill()
    assert list(tmp_path.iterdir()) == []


async def test_a_broken_promise_is_shown_and_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def play(*_: object) -> DemoRecords:
        return replace(GOOD, endings=[*GOOD.endings, "quiet"])

    monkeypatch.setattr(demo, "_play", play)
    assert await demo.run_demo(12, plain=True, as_json=False) == 1
    assert "BROKEN" in capsys.readouterr().out
    assert await demo.run_demo(12, plain=True, as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["kept"] is False


# ------------------------------------------------------------------------------------------------------ the API


@asynccontextmanager
async def serving(clock: ManualClock, count: int, window: float) -> AsyncIterator[ApiClient]:
    server = await listen(Api(count, window, 0.0, clock))
    client = ApiClient(port_of(server))
    try:
        yield client
    finally:
        client.close()
        server.close()
        await server.wait_closed()


async def test_the_api_returns_429_above_its_limit() -> None:
    clock = ManualClock()
    async with serving(clock, 2, 6.0) as api:
        statuses = [(await api.get("/call", tenant=tenant, job=f"job {tenant}")).status for tenant in "aabaa"]
        assert statuses == [200, 200, 200, 429, 429]
        refused = await api.get("/call", tenant="a", job="late")
        assert float(refused.headers["retry-after"]) == pytest.approx(6.0)
        clock.advance(6.0)
        assert (await api.get("/call", tenant="a", job="in time")).status == 200
        ledger = msgspec.json.decode((await api.get("/ledger")).body, type=list[RecordedCall])
        totals = msgspec.json.decode((await api.get("/totals")).body, type=CallTotals)
    assert [(call.tenant, call.status) for call in ledger][:3] == [("a", 200), ("a", 200), ("b", 200)]
    assert [call.job for call in ledger if call.status == 429] == ["job a", "job a", "late"]
    assert (totals.calls, totals.refused) == (7, 3)


async def test_the_api_serves_many_connections_and_its_pages() -> None:
    async with serving(ManualClock(), 100, 1.0) as api:
        answers = await asyncio.gather(*(api.get("/call", tenant="a", job=str(number)) for number in range(50)))
        assert {answer.status for answer in answers} == {200}
        assert (await api.get("/nowhere")).status == 404
        assert (await api.get("/call", tenant="a")).status == 400


async def test_the_api_ends_without_a_word_if_the_demonstration_is_killed() -> None:
    """The fault: a traceback of asyncio for each open connection, on the terminal of the user."""
    command = (sys.executable, "-m", RecordedCall.__module__, "2", "6.0", "0")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    client = ApiClient(int(await process.stdout.readline()))
    await client.get("/totals")
    process.stdin.close()
    assert await process.communicate() == (b"", b"")
    assert process.returncode == 0
    client.close()


def test_a_window_of_the_api_is_half_open_and_slides() -> None:
    ledger = CallLog(2, 10)
    assert [ledger.enter("a", "job", at) for at in (0, 9, 9, 10, 18, 19)] == [None, None, 1, None, 1, None]


# -------------------------------------------------------------------------------------------------- the verdict

ID = "job-{}"
GOOD = DemoRecords(
    calls=2,
    window=10 * SECOND,
    margin=0,
    noisy=NOISY,
    enqueued={
        **{ID.format(number): EnqueuedCall(NOISY, 0) for number in range(8)},
        "quiet": EnqueuedCall("quiet-01", 5 * SECOND),
    },
    ledger=[
        *(RecordedCall(NOISY, ID.format(number), number // 2 * 10 * SECOND, 200) for number in range(6)),
        RecordedCall("quiet-01", "quiet", 5 * SECOND + 1000, 200),
    ],
    states={
        **dict.fromkeys(map(ID.format, range(6)), "succeeded"),
        "job-6": "waiting",
        "job-7": "running",
        "quiet": "succeeded",
    },
    lost={},
    endings=[*map(ID.format, range(6)), "quiet"],
    alive=[(0, 25 * SECOND)],
    began=0,
    ended=25 * SECOND,
    exit_code=0,
)


def broken(verdict: DemoResult) -> Sequence[str]:
    return [promise.promise.split(",")[0] for promise in verdict.promises if not promise.kept]


def test_a_good_run_keeps_every_promise() -> None:
    verdict = judge(GOOD)
    assert broken(verdict) == []
    assert verdict.kept


@pytest.mark.parametrize("state", [None, "failed", "cancelled"])
def test_a_job_that_is_missing_or_failed_is_lost(state: str | None) -> None:
    states = {id: was for id, was in GOOD.states.items() if id != "job-6"}
    if state is not None:
        states["job-6"] = state
    verdict = judge(replace(GOOD, states=states))
    assert broken(verdict) == ["jobs lost"]
    assert not verdict.kept


def test_a_job_that_succeeded_without_a_call_is_lost() -> None:
    assert broken(judge(replace(GOOD, states={**GOOD.states, "job-6": "succeeded"}))) == ["jobs lost"]


def test_a_call_answered_429_breaks_the_limit() -> None:
    ledger = [*GOOD.ledger, RecordedCall("quiet-01", "more", 24 * SECOND, 429)]
    assert broken(judge(replace(GOOD, ledger=ledger))) == ["calls answered 429"]


def test_the_limit_is_also_checked_by_the_instants_of_the_calls() -> None:
    ledger = [*GOOD.ledger, RecordedCall(NOISY, "job-6", 24 * SECOND, 200)]
    assert broken(judge(replace(GOOD, ledger=ledger))) == ["calls answered 429"]


def test_jobs_of_quiet_tenants_that_wait_too_long_break_the_promise() -> None:
    late = [call if call.job != "quiet" else RecordedCall("quiet-01", "quiet", 7 * SECOND, 200) for call in GOOD.ledger]
    assert broken(judge(replace(GOOD, ledger=late))) == ["quiet tenants' wait"]
    never = [call for call in GOOD.ledger if call.job != "quiet"]
    states = {**GOOD.states, "quiet": "waiting"}
    assert broken(judge(replace(GOOD, ledger=never, states=states))) == ["quiet tenants' wait"]


def test_the_time_without_a_worker_does_not_count_as_wait() -> None:
    late = [call if call.job != "quiet" else RecordedCall("quiet-01", "quiet", 7 * SECOND, 200) for call in GOOD.ledger]
    alive = [(0, 5 * SECOND), (7 * SECOND - 1000, 25 * SECOND)]
    assert broken(judge(replace(GOOD, ledger=late, alive=alive))) == []


def test_budget_left_unused_breaks_the_promise_of_full_use() -> None:
    ledger = [call for call in GOOD.ledger if call.job not in ("job-4", "job-5")]
    states = {**GOOD.states, "job-4": "waiting", "job-5": "waiting"}
    assert broken(judge(replace(GOOD, ledger=ledger, states=states))) == ["share of the noisy tenant's budget used"]


def test_a_job_that_ran_again_is_explained_by_a_lost_attempt_only() -> None:
    ledger = [*GOOD.ledger, RecordedCall("quiet-01", "quiet", 20 * SECOND, 200)]
    assert broken(judge(replace(GOOD, ledger=ledger))) == ["jobs finished twice"]
    assert broken(judge(replace(GOOD, ledger=ledger, lost={"quiet": 1}))) == []


def test_an_ending_recorded_twice_breaks_the_promise() -> None:
    assert broken(judge(replace(GOOD, endings=[*GOOD.endings, "quiet"]))) == ["jobs finished twice"]


def test_a_worker_that_does_not_end_well_breaks_the_promise() -> None:
    assert broken(judge(replace(GOOD, exit_code=-9))) == ["exit code of the worker after SIGTERM"]


# ------------------------------------------------------------------------------------------------- the measures


def test_ideal_starts_are_counted_only_while_a_worker_is_there() -> None:
    # 0 0 | 10 10 | 20 20
    assert ideal_starts(2, 10, [(0, 21)], 0, 21) == 6
    # The third pair waits for the new worker, and the fourth for the third.
    assert ideal_starts(2, 10, [(0, 15), (23, 40)], 0, 34) == 8
    assert ideal_starts(2, 10, [(0, 15), (23, 40)], 0, 33) == 6
    assert ideal_starts(2, 10, [(0, 21)], 5, 21) == 4
    assert ideal_starts(2, 10, [], 0, 21) == 0


def test_the_most_calls_in_a_window_are_found_wherever_it_begins() -> None:
    calls = [RecordedCall("a", "job", at, 200) for at in (0, 6, 9, 15, 16)] + [RecordedCall("b", "job", 8, 200)]
    assert most_in_a_window(calls, 10) == 3
    assert most_in_a_window(calls, 11) == 4
    assert most_in_a_window([], 10) == 0


def test_a_scene_is_passed_to_another_process_unchanged() -> None:
    scene = DemoLoad(seconds=12, url="sqlite:///x", port=7, endings="/tmp/endings")
    assert DemoLoad.from_environment(scene.environment()) == scene
    assert DemoLoad.from_environment({}) == DemoLoad()


@pytest.mark.parametrize("seconds", [8, 12, 40, 600])
def test_quiet_tenants_stay_below_their_limit_in_a_scene_of_any_length(seconds: float) -> None:
    scene = DemoLoad(seconds=seconds)
    assert scene.window / scene.quiet_every[0] < scene.calls
    assert scene.killed_after + scene.outage < scene.quiet_until
    # The noisy tenant's jobs must not run out.
    assert scene.noisy_jobs > scene.calls * (scene.seconds / scene.window + 2)
