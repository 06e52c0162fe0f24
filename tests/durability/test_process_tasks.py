"""Process tasks: real child processes that compute, fail, are killed, and end with their node."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import zipapp
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor as Pool
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headgate import Headgate, Job, JobCancelled, JobFailed, JobState, ProcessDied, RetryPolicy, StrictRate
from headgate.engine import attempt
from headgate.engine.child_messages import Answer, AttemptRequest, encode
from headgate.engine.children import CHILD_EXIT_TIMEOUT, Child
from headgate.engine.children import Children as NodeChildren
from headgate.jobs.job import ClaimedJob
from headgate.jobs.report import too_many
from headgate.shielding import in_thread
from headgate.tasks.context import AttemptContext
from headgate.tasks.hooks import HookScope, LifecycleHook, Moment
from tests.durability import process_bodies as bodies
from tests.durability import slow_bodies
from tests.durability.processes import Children
from tests.engine import hooked_bodies
from tests.internals import app_on, busy_slots_of, node_of, registry_of, store_of
from tests.until import patient, result_within, until

pytestmark = pytest.mark.nightly

ONCE = RetryPolicy(retries=0)


def is_there(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not yet waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


async def both_pids(folder: Path) -> list[int]:
    await until((folder / "pids").exists, 15)
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def make_app(concurrency: int = 2) -> Headgate:
    app = Headgate("memory://", retry=ONCE)
    app.queue("computing", concurrency=concurrency)
    return app


async def test_a_process_task_is_counted_once_by_its_node_and_not_by_its_child() -> None:
    app = make_app()
    double = app.task(queue="computing", process=True)(bodies.double)
    async with app:
        await result_within(await double.enqueue(bodies.Picture(4, timedelta(seconds=1))), 15)
    async with app.open():
        points = await app.admin.history.jobs(task="double")
        for what in ("enqueued", "started", "succeeded"):
            assert sum(getattr(point, what) for point in points) == 1


async def test_arguments_and_results_keep_their_types_on_the_way_to_a_child_and_back() -> None:
    app = make_app()
    double = app.task(queue="computing", process=True)(bodies.double)
    pid = app.task(queue="computing", process=True)(bodies.pid)
    async with app:
        made = await result_within(await double.enqueue(bodies.Picture(4, timedelta(seconds=1))), 15)
        assert made == bodies.Picture(8, timedelta(seconds=1))
        assert await (await pid.enqueue()).result() != os.getpid()


async def test_a_killed_child_fails_its_own_attempt_only_and_is_replaced(tmp_path: Path) -> None:
    """The fault: one child of a process pool that is killed makes the whole pool unusable, and all its jobs fail."""
    app = make_app()
    die = app.task(queue="computing", process=True)(bodies.die)
    compute = app.task(queue="computing", process=True)(bodies.compute)
    pid = app.task(queue="computing", process=True)(bodies.pid)
    async with app:
        neighbour = await compute.enqueue(str(tmp_path), 0.5)
        await both_pids(tmp_path)
        dying = await die.enqueue()
        with pytest.raises(JobFailed, match="killed by SIGKILL") as failed:
            await result_within(dying, 15)
        assert failed.value.error_type == "headgate.errors.ProcessDied"
        assert await result_within(neighbour, 15) == "done"
        assert await result_within(await pid.enqueue(), 15) > 0


async def test_an_attempt_whose_child_dies_before_it_has_read_the_request_says_how_it_died(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fault: the error was BrokenPipeError, and no policy that gives up on ProcessDied applied."""
    ask = Child.ask

    def ask_a_dead_child(child: Child, *arguments: Any) -> Answer:
        child.kill()
        child.wait()
        return ask(child, *arguments)

    monkeypatch.setattr(Child, "ask", ask_a_dead_child)
    app = make_app()
    pid = app.task(queue="computing", process=True)(bodies.pid)
    async with app:
        with pytest.raises(JobFailed, match="killed by SIGKILL") as failed:
            await result_within(await pid.enqueue(), 15)
    assert failed.value.error_type == "headgate.errors.ProcessDied"


async def test_an_attempt_whose_child_died_is_retried_unless_the_policy_gives_up_on_that() -> None:
    app = make_app()
    again = app.task(name="again", queue="computing", process=True, retry=RetryPolicy(delays=[0]))(bodies.die)
    never = app.task(
        name="never", queue="computing", process=True, retry=RetryPolicy(retries=5, give_up_on=ProcessDied)
    )(bodies.die)
    async with app:
        saved, lost = await again.enqueue(times=1), await never.enqueue()
        assert await result_within(saved, 15) == "attempt 2"
        with pytest.raises(JobFailed):
            await result_within(lost, 15)
        assert (await lost.status()).attempt == 1


async def test_a_child_that_exits_fails_its_attempt_with_its_exit_code() -> None:
    app = make_app()
    leave = app.task(queue="computing", process=True)(bodies.leave)
    async with app:
        job = await leave.enqueue(7)
        with pytest.raises(JobFailed, match="ended with exit code 7"):
            await result_within(job, 15)


@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_an_attempt_that_must_stop_is_killed_with_its_own_children(how: str, tmp_path: Path) -> None:
    """The fault: what computes cannot be interrupted in a thread, and goes on after its time was up."""
    app = make_app(concurrency=1)
    compute = app.task(queue="computing", process=True)(bodies.compute)
    pid = app.task(queue="computing", process=True)(bodies.pid)
    async with app:
        # The child is ready, so that it has begun long before its time is up.
        await result_within(await pid.enqueue(), 15)
        job: Job[str] = await compute.using(timeout=4 if how == "timeout" else None).enqueue(str(tmp_path), 3600)
        child, helper = await both_pids(tmp_path)
        if how == "cancel":
            assert await job.cancel()
            with pytest.raises(JobCancelled):
                await result_within(job, 5)
        else:
            with pytest.raises(JobFailed, match="longer than its timeout"):
                await result_within(job, 15)
        await until(lambda: not is_there(child) and not is_there(helper), 5)
        # Its slot is free for the next.
        assert await result_within(await pid.enqueue(), 15) != child
        node = node_of(app)
        assert node is not None
        assert busy_slots_of(node) == {"default": 0, "computing": 0}


def has_no_more_threads(pid: int) -> bool:
    """Whether nothing of the process runs any more."""
    tasks = Path(f"/proc/{pid}/task")
    try:
        return not tasks.exists() or len(list(tasks.iterdir())) <= 1
    except OSError:
        return True


async def test_a_child_is_kept_for_the_next_job_and_replaced_when_it_died_meanwhile() -> None:
    app = make_app(concurrency=1)
    pid = app.task(queue="computing", process=True)(bodies.pid)
    async with app:
        first = await result_within(await pid.enqueue(), 15)
        assert await result_within(await pid.enqueue(), 15) == first
        os.kill(first, signal.SIGKILL)
        # Its last thread, too: the end of the process is visible only after that.
        await until(lambda: not is_there(first) and has_no_more_threads(first))
        second = await result_within(await pid.enqueue(), 15)
        assert second != first
        # Signals that end a group of processes, or come from a terminal, are for the worker to answer.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            os.kill(second, number)
        assert await result_within(await pid.enqueue(), 15) == second
    assert not is_there(second), "the children of a node end with it"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
async def test_a_child_ignores_signals_also_while_it_is_starting(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: one that was starting when its service was stopped was killed, and the attempt was spent."""
    start = subprocess.Popen

    def start_and_signal(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = start(*arguments, **options)
        process.send_signal(number)
        return process

    monkeypatch.setattr(subprocess, "Popen", start_and_signal)
    app = make_app()
    pid = app.task(queue="computing", process=True)(bodies.pid)
    async with app:
        assert await result_within(await pid.enqueue(), 15) > 0


async def test_a_child_is_replaced_after_so_many_attempts_and_calls_its_shutdown_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_TEST_FOLDER", str(tmp_path))
    app = Headgate("memory://", retry=ONCE, max_tasks_per_child=2)
    app.queue("computing", concurrency=1)
    app.on_shutdown(scope="child")(hooked_bodies.stop)
    pid = app.task(queue="computing", process=True)(bodies.pid)
    fail = app.task(queue="computing", process=True)(bodies.fail)
    async with app:
        first = await result_within(await pid.enqueue(), 15)
        # One that fails counts as well.
        with pytest.raises(JobFailed):
            await result_within(await fail.enqueue("other"), 15)
        second = await result_within(await pid.enqueue(), 15)
        assert second != first
        assert await result_within(await pid.enqueue(), 15) == second
        await until(lambda: not is_there(first))
        assert (tmp_path / f"stopped-{first}").exists()
        third = await result_within(await pid.enqueue(), 15)
        assert third not in (first, second)
    await until(lambda: not is_there(second) and not is_there(third))
    assert all((tmp_path / f"stopped-{child}").exists() for child in (first, second, third))


async def test_a_child_that_occupies_too_much_memory_after_an_attempt_is_replaced() -> None:
    app = Headgate("memory://", retry=ONCE, max_memory_per_child="300MB")
    app.queue("computing", concurrency=1)
    leak = app.task(queue="computing", process=True)(bodies.leak)
    async with app:
        first = await result_within(await leak.enqueue(1), 15)
        # The attempt itself is not ended.
        assert await result_within(await leak.enqueue(320), 15) == first
        second = await result_within(await leak.enqueue(1), 15)
        assert second != first
        assert await result_within(await leak.enqueue(1), 15) == second
        await until(lambda: not is_there(first))


async def test_a_function_can_terminate_processes_that_it_started() -> None:
    """The fault: what a function started ignored SIGTERM, as its child does; a pool left while busy never ended."""
    app = make_app()
    terminate = app.task(queue="computing", process=True)(bodies.terminate_what_it_started)
    async with app:
        assert await result_within(await terminate.enqueue(), 20) == [-signal.SIGTERM] * 3


async def test_the_death_of_a_child_is_noticed_while_a_fork_of_it_lives() -> None:
    """The fault: the fork held the connection open, and the attempt ended when the fork did."""
    app = make_app()
    crash = app.task(queue="computing", process=True)(bodies.crash_beside_a_fork)
    async with app:
        with pytest.raises(JobFailed, match="killed by SIGSEGV"):
            await result_within(await crash.enqueue())


async def test_a_fork_that_returns_from_the_function_answers_nothing() -> None:
    """The fault: both answered, and each later job of that child was stored with the answer to the one before it."""
    app = make_app(concurrency=1)
    fork = app.task(queue="computing", process=True)(bodies.fork_and_return_in_both)
    pid = app.task(queue="computing", process=True)(bodies.pid)
    async with app:
        child = await result_within(await pid.enqueue(), 15)
        job = await fork.enqueue()
        assert await result_within(job, 15) == "of the child, after 0"
        assert (await job.status()).progress is None
        assert [await result_within(await pid.enqueue(), 15) for _ in range(2)] == [child] * 2


async def test_a_thread_that_outlives_its_function_cannot_report_for_the_next_job() -> None:
    """The fault: a child told only what was said, not of which job, so that it was stored with whatever ran by then."""
    app = make_app(concurrency=1)
    calls = [StrictRate("10/m", name="calls")]
    leaves = app.task(queue="computing", process=True, limits=calls)(bodies.speak_too_late)
    lets = app.task(queue="computing", process=True, limits=calls)(bodies.let_it_speak)
    async with app:
        await result_within(await leaves.enqueue(), 15)
        job = await lets.enqueue()
        assert await result_within(job, 15) == "let it speak"
        assert [line.message for line in await app.admin.logs(job.id)] == ["of the second job"]
        assert (await job.status()).progress is None
        (bucket,) = await app.admin.limits.list()
        assert bucket.used == 2


async def test_a_function_that_closes_its_standard_streams_does_not_end_its_child() -> None:
    """The fault: flushing what it had closed ended the child, after the work, and the job was done again."""
    app = make_app(concurrency=1)
    close = app.task(queue="computing", process=True)(bodies.close_what_it_prints_to)
    pid = app.task(queue="computing", process=True)(bodies.pid)
    async with app:
        child = await result_within(await close.enqueue(), 15)
        assert await result_within(await pid.enqueue(), 15) == child


async def test_a_path_object_in_sys_path_does_not_break_process_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fault: a Path there, which import passes over, made every process task fail before it began."""
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/nowhere")])
    app = make_app()
    pid = app.task(queue="computing", process=True)(bodies.pid)
    async with app:
        assert await result_within(await pid.enqueue(), 15) > 0


async def test_a_default_timeout_for_sockets_does_not_end_process_tasks(tmp_path: Path) -> None:
    """The fault: no child became ready, and the error was about the code of the main program."""
    app = make_app()
    compute = app.task(queue="computing", process=True)(bodies.compute)
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(0.3)
    try:
        async with app:
            assert await result_within(await compute.enqueue(str(tmp_path), 1.0), 15) == "done"
    finally:
        socket.setdefaulttimeout(before)


async def test_a_timeout_that_is_shorter_than_the_start_of_a_child_costs_no_more_than_one_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fault: each attempt's child was killed while it was starting, so that no attempt could ever be in time."""
    monkeypatch.setenv(slow_bodies.SLOW, "0.7")
    app = make_app(concurrency=1)
    pid = app.task(queue="computing", process=True, timeout=0.5, retry=RetryPolicy(delays=[0] * 5))(slow_bodies.pid)
    async with app:
        job = await pid.enqueue()
        assert await result_within(job, 15) > 0
        # On a busy machine the answer of a child that is ready may take longer than the timeout, too.
        assert (await job.status()).attempt in (2, 3)


async def test_errors_of_a_child_are_filtered_by_class_and_stored_with_their_traceback() -> None:
    app = make_app()
    errors: list[BaseException] = []
    policy = RetryPolicy(retries=5, delays=None, base=0, give_up_on=ValueError)
    fail = app.task(queue="computing", process=True, retry=policy)(bodies.fail)

    @fail.on_error
    def received(job: object, error: BaseException) -> None:
        errors.append(error)

    async with app:
        job = await fail.enqueue("broken")
        with pytest.raises(JobFailed) as failed:
            await result_within(job, 15)
        assert (await job.status()).attempt == 1, "a Broken is a ValueError"
        assert failed.value.error_type == "tests.durability.process_bodies.Broken"
        assert failed.value.message == "broken: the machine"
        assert 'raise Broken(7, why="the machine")' in (failed.value.traceback or "")
        await until(lambda: bool(errors))
        assert isinstance(errors[0], bodies.Broken)
        assert str(errors[0]) == "broken: the machine"
        retried = await fail.enqueue("a key")
        with pytest.raises(JobFailed):
            await result_within(retried, 15)
        assert (await retried.status()).attempt == 6, "a KeyError is not"


async def test_an_error_of_a_child_keeps_attributes_of_a_subclass_of_float_or_str() -> None:
    """The fault: they could not be sent, so the child ended, and the error was that it had ended with exit code 1."""
    app = make_app()
    errors: list[BaseException] = []
    policy = RetryPolicy(retries=1, base=0, retry_on=lambda error: error.score < 0.5)
    fail = app.task(queue="computing", process=True, retry=policy)(bodies.fail)
    fail.on_error(lambda job, error: errors.append(error))
    async with app:
        job = await fail.enqueue("low")
        with pytest.raises(JobFailed, match="too low") as failed:
            await result_within(job, 15)
        assert failed.value.error_type == "tests.durability.process_bodies.TooLow"
        assert (await job.status()).attempt == 2
        await until(lambda: bool(errors))
    assert isinstance(errors[0], bodies.TooLow)
    assert (errors[0].score, errors[0].unit) == (0.25, "points")


async def test_no_error_of_a_function_ends_its_child_or_grows_beyond_what_a_row_holds() -> None:
    app = make_app(concurrency=1)
    fail = app.task(queue="computing", process=True)(bodies.fail)
    pid = app.task(queue="computing", process=True)(bodies.pid)
    unstorable = app.task(queue="computing", process=True, retry=RetryPolicy(retries=5))(bodies.give_back_an_object)
    async with app:
        before = await result_within(await pid.enqueue(), 15)
        for kind, name in (("exit", "SystemExit"), ("huge", "ValueError"), ("stop", "StopIteration")):
            job = await fail.enqueue(kind)
            with pytest.raises(JobFailed) as failed:
                await result_within(job, 15)
            assert failed.value.error_type == name
            assert len(failed.value.message) + len(failed.value.traceback or "") < 10_000
        lost = await unstorable.enqueue()
        with pytest.raises(JobFailed, match="cannot be stored as JSON"):
            await result_within(lost, 15)
        assert (await lost.status()).attempt == 1, "its work is done, so it is not done again"
        assert await result_within(await pid.enqueue(), 15) == before


async def test_a_function_in_a_child_can_read_its_job_and_settle_its_cost() -> None:
    app = make_app()
    task = app.task(queue="computing", process=True, limits=[StrictRate("10/m", name="calls")])(
        bodies.tell_about_the_job
    )
    async with app:
        job = await task.using(headers={"tenant": "acme"}).enqueue()
        received = await result_within(job, 15)
        assert 0 <= received.pop("waited_for") < patient(10)
        assert received.pop("enqueued_at").endswith("+00:00")
        assert received == {
            "id": job.id,
            "task": "tell_about_the_job",
            "queue": "computing",
            "attempt": 1,
            "headers": {"tenant": "acme"},
            "cancelled": False,
        }
        (bucket,) = await app.admin.limits.list()
        assert bucket.used == 3


async def test_snooze_and_rate_limited_in_a_child_spend_no_attempt(tmp_path: Path) -> None:
    app = make_app()
    task = app.task(queue="computing", process=True, limits=[StrictRate("100/s")])(bodies.put_off)
    async with app:
        assert await result_within(await task.enqueue(str(tmp_path)), 15) == "attempt 1"
        assert len(os.listdir(tmp_path)) == 3  # noqa: PTH208


async def test_a_result_of_a_child_that_is_not_kept_may_be_of_any_type() -> None:
    app = make_app()
    task = app.task(queue="computing", process=True, keep_result=False)(bodies.give_back_an_object)
    # It uses no result.
    task.on_error(lambda job, error: None)
    pid = app.task(queue="computing", process=True, keep_result=False)(bodies.pid)
    results: list[int] = []
    pid.on_completed(lambda job, result: results.append(result))
    async with app:
        assert await result_within(await task.enqueue(), 15) is None
        assert await result_within(await pid.enqueue(), 15) is None
        await until(lambda: bool(results))
    assert results[0] > 0


async def test_a_function_in_a_child_decides_how_its_job_ends() -> None:
    app = make_app()
    policy = RetryPolicy(retries=2, base=0, retry_on=(RetryPolicy.NETWORK, lambda error: error.errno == 0))
    task = app.task(queue="computing", process=True, retry=policy)(bodies.decide)
    errors: list[BaseException] = []
    task.on_error(lambda job, error: errors.append(error))
    async with app:
        for how, attempts in (("fail", 1), ("retry", 3), ("not connected", 3)):
            job = await task.enqueue(how)
            with pytest.raises(JobFailed) as failed:
                await result_within(job, 15)
            assert (await job.status()).attempt == attempts
            if how == "fail":
                assert failed.value.message == "no such order"
                assert "KeyError: 'fail'" in (failed.value.traceback or "")
        job = await task.enqueue("cancel")
        with pytest.raises(JobCancelled, match="withdrawn"):
            await result_within(job, 15)
        await until(lambda: len(errors) == 3)
        assert [type(error).__name__ for error in errors] == ["Fail", "Retry", "OSError"]


async def test_a_function_in_a_child_enqueues_where_others_can_see_it(database: Path) -> None:
    """The fault: each process has a memory:// of its own, and a job enqueued there would be lost without a word."""
    url = f"sqlite:///{database}"
    app = Headgate(url, retry=ONCE, concurrency=2)
    enqueue_another = app.task(process=True)(bodies.enqueue_another)
    in_a_thread = app.task(process=True)(bodies.enqueue_another_in_a_thread)
    app.task(name="pid")(bodies.pid)
    async with app:
        for task in (enqueue_another, in_a_thread):
            other = await result_within(await task.enqueue(url), 15)
            assert await result_within(app.job(other), 15) == os.getpid()
            with pytest.raises(JobFailed, match="in the memory of another process"):
                await result_within(await task.enqueue("memory://"), 15)


async def test_a_payload_of_an_older_release_is_upgraded_before_a_child_gets_it() -> None:
    app = make_app()

    def rename(stored: dict[str, Any]) -> dict[str, Any]:
        return {"times": stored["attempts"]}

    task = app.task(queue="computing", process=True, upgrade=rename)(bodies.die)

    def older(attempts: int) -> None: ...

    older_app = app_on(store_of(app))
    older_app.queue("computing")
    stored = older_app.task(name="die", queue="computing")(older)
    async with older_app.open():
        job = await stored.enqueue(0)
    async with app:
        assert await result_within(app.job(job.id), 15) == "attempt 1"
        assert task.name == "die"


async def test_the_output_of_a_child_is_written_when_its_job_is_final(capfd: pytest.CaptureFixture[str]) -> None:
    """A child may be killed at any time afterwards, and output that waits in its memory would be lost."""
    app = make_app()
    hello = app.task(queue="computing", process=True)(bodies.say_hello)
    async with app:
        await result_within(await hello.enqueue(), 15)
        assert "hello from the child" in capfd.readouterr().out


async def test_children_end_with_a_worker_that_was_killed(database: Path, tmp_path: Path, children: Children) -> None:
    """The fault: nobody tells the children of a killed worker, and they compute on, beside the second run."""
    worker = await children.start("process_worker.py", url=f"sqlite:///{database}")
    app = Headgate(f"sqlite:///{database}")
    app.queue("computing")
    who = app.task(name="who", queue="computing")(bodies.pid)
    async with app.open():
        await _enqueue_spin(app)
        _word, busy = await worker.wait_for_line("spinning")
        idle = await result_within(await who.enqueue(), 15)
        assert is_there(busy)
        await worker.kill()
        await until(lambda: not is_there(busy) and not is_there(idle), 10)


def test_a_child_that_cannot_read_a_request_ends() -> None:
    """The fault: it waited for its own thread that reads requests, and the job ran until its timeout."""
    child = Child(bodies.__name__, ())
    child.make_ready()
    child._write(b"{}")
    try:
        assert child._process.wait(patient(5)) == 1
    finally:
        child.kill()
        child.end(0)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux limits the memory of another process")
def test_a_child_that_cannot_print_why_it_ends_ends() -> None:
    """The fault: it waited for its own thread that reads requests, and the job ran until its timeout."""
    child = Child(bodies.__name__, ())
    child.make_ready()
    job = ClaimedJob("id", "close_stderr", "default", "{}", 1, 1, 0, 0, 0, 0)
    child.ask(AttemptRequest(bodies.__name__, "close_stderr", job, (), 1000), lambda _: None)
    child._write(b"{}")
    try:
        assert child._process.wait(patient(10)) == 1
    finally:
        child.kill()
        child.end(0)


def test_a_child_without_memory_to_read_a_request_ends() -> None:
    """The fault: only the thread that reads requests ended, and the job ran until its timeout."""
    child = Child(bodies.__name__, ())
    child.make_ready()
    occupied = int(Path(f"/proc/{child._process.pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.prlimit(child._process.pid, resource.RLIMIT_AS, (occupied, occupied))

    def ask() -> None:
        with contextlib.suppress(OSError):
            while True:
                child._socket.sendall(bytes(1_000_000))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    try:
        assert child._process.wait(patient(10)) == 1
    finally:
        child.kill()
        asking.join()
        child.end(0)


def test_a_child_ends_with_a_node_that_had_not_read_all_of_its_messages() -> None:
    """The fault: the thread that notices the end of the node ended with ConnectionResetError, and the child ran on."""
    child = Child(bodies.__name__, ())
    child.make_ready()
    job = ClaimedJob("id", "speaks", "default", "{}", 1, 1, 0, 0, 0, 0)
    child._write(encode(AttemptRequest(bodies.__name__, "speaks_and_computes", job, (), 1000)))
    assert select.select([child._socket], [], [], patient(5))[0]
    child.hang_up()
    try:
        assert child._process.wait(patient(5)) == -signal.SIGKILL
    finally:
        child.kill()
        child.wait()


def test_a_child_ends_with_its_node_while_a_fork_of_the_node_lives() -> None:
    """The fault: a fork that a handler in a thread had made held the connection, and the child ran on."""
    child = Child(bodies.__name__, ())
    child.make_ready()
    fork = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    fork.start()
    child.hang_up()
    try:
        assert child._process.wait(patient(5)) == 0
    finally:
        fork.kill()
        fork.join()
        child.kill()
        child.wait()


async def test_a_worker_that_is_asked_to_stop_kills_its_children_and_returns_their_jobs_without_spending_an_attempt(
    database: Path, children: Children
) -> None:
    worker = await children.start("process_worker.py", url=f"sqlite:///{database}", grace=0.1)
    app = Headgate(f"sqlite:///{database}")
    async with app.open():
        job = await _enqueue_spin(app)
        _word, child = await worker.wait_for_line("spinning")
        worker.signal(signal.SIGTERM)
        assert await worker.end() == 0
        assert not is_there(child)
        status = await job.status()
        assert status.state is JobState.WAITING
        second = await children.start("process_worker.py", url=f"sqlite:///{database}", spin=0)
        assert await result_within(job, 15) == "word"
        assert (await job.status()).attempt == 1
        await second.kill()


async def test_a_node_ends_its_children_while_handlers_use_all_threads_of_the_event_loop() -> None:
    """The fault: the end of the children waited in line for a free thread, and the worker with it."""
    app = Headgate("memory://", retry=ONCE, grace=0.1)
    app.queue("computing")
    pid = app.task(queue="computing", process=True)(bodies.pid)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    began, release, ended = asyncio.Event(), threading.Event(), threading.Event()

    def block() -> None:
        loop.call_soon_threadsafe(began.set)
        release.wait(patient(15))
        ended.set()

    @app.task
    async def blocks() -> None:
        await asyncio.to_thread(block)

    try:
        async with app:
            child = await result_within(await pid.enqueue(), 15)
            await blocks.enqueue()
            await began.wait()
        assert not ended.is_set()
        assert not is_there(child)
    finally:
        release.set()


def test_all_children_together_have_two_seconds_to_end_with_their_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: each had them, one after the other, and a worker with many was killed before it had left.

    Later the next one had them after each that had ended in time.
    """
    waits: list[float] = []
    end = Child.end

    def note_and_end(child: Child, timeout: float) -> None:
        waits.append(timeout)
        if len(waits) == 1:
            time.sleep(1)
            child.kill()
        end(child, timeout)

    monkeypatch.setattr(Child, "end", note_and_end)
    children = NodeChildren([LifecycleHook(Moment.SHUTDOWN, HookScope.CHILD, hooked_bodies.hang)])
    for child in [children.take(bodies.__name__) for _ in range(3)]:
        child.make_ready()
        children.put_back(child, is_usable=True)
    children.close()
    assert waits[1] <= CHILD_EXIT_TIMEOUT - 1
    assert waits[2] <= 0


async def test_a_child_whose_function_no_thread_could_run_runs_the_next_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fault: it stayed until the end of its node, busy with nothing, and the next attempt started another one."""
    app = make_app()
    pid = app.task(queue="computing", process=True)(bodies.pid)
    made = 0

    def refuse_second(pool: Pool | None, call: Callable[[], Any]) -> asyncio.Future[Any]:
        nonlocal made
        made += 1
        if made == 2:
            raise RuntimeError("can't start new thread")
        return in_thread(pool, call)

    async with app:
        child = await result_within(await pid.enqueue(), 15)
        with monkeypatch.context() as patched:
            patched.setattr(attempt, "in_thread", refuse_second)
            with pytest.raises(JobFailed, match="can't start new thread"):
                await result_within(await pid.enqueue(), 15)
        assert await result_within(await pid.enqueue(), 15) == child


async def test_a_program_without_a_guard_fails_its_jobs_and_starts_no_workers_in_children(
    database: Path, children: Children
) -> None:
    worker = await children.start("process_worker.py", url=f"sqlite:///{database}", unguarded=True)
    app = Headgate(f"sqlite:///{database}")
    async with app.open():
        job = await _enqueue_spin(app)
        with pytest.raises(JobFailed, match=r"could not import module '__main__'.* under `if __name__ =="):
            await result_within(job, 15)
    await worker.kill()


@pytest.mark.parametrize("how", ["package", "folder", "zip"])
def test_a_program_that_is_the_main_module_of_a_package_or_a_folder_runs_its_process_tasks(
    how: str, tmp_path: Path
) -> None:
    """The fault: multiprocessing imports no `__main__.py`, so the child said that `__main__` has no such function."""
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "words.py").write_text("WORD = 'word'\n")
    where = ".words" if how == "package" else "words"
    (folder / "__main__.py").write_text(f"from {where} import WORD\n{PROGRAM}")
    if how == "zip":
        zipapp.create_archive(folder, tmp_path / "shop.pyz")
    command = {"package": ["-m", "shop"], "folder": ["shop"], "zip": ["shop.pyz"]}[how]
    ran = run_program(command, tmp_path)
    assert ran.stdout == "word\n", ran.stderr


def test_a_program_whose_path_and_arguments_are_not_utf8_runs_its_process_tasks(tmp_path: Path) -> None:
    """The fault: every attempt failed with an UnicodeEncodeError before its child was ready."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / "shop.py").write_text(f"import os, sys\nWORD = os.fsencode(sys.argv[1]).hex()\n{PROGRAM}")
    ran = run_program([folder / "shop.py", os.fsdecode(b"th\xe9")], tmp_path)
    assert ran.stdout == "7468e9\n", ran.stderr


PROGRAM = """
import asyncio
from headgate import Headgate, RetryPolicy

app = Headgate("memory://", retry=RetryPolicy(retries=0))

@app.task(process=True)
def work() -> str:
    return WORD

async def main() -> None:
    async with app:
        print(await (await work.enqueue()).result(timeout=60))

if __name__ == "__main__":
    asyncio.run(main())
"""


def run_program(command: Sequence[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=patient(30), check=False
    )


async def _enqueue_spin(app: Headgate) -> Job[str]:
    if "computing" not in registry_of(app).queues:
        app.queue("computing")

    def spin(word: str) -> str:
        raise NotImplementedError

    task = app.task(name="spin", queue="computing")(spin)
    return await task.enqueue("word")


async def test_progress_and_logs_of_a_killed_child_are_kept() -> None:
    app = Headgate("memory://", retry=ONCE, log_lines=5)
    app.queue("computing", concurrency=1)
    speaks = app.task(queue="computing", process=True)(bodies.speaks)
    async with app:
        job = await speaks.enqueue(10)
        with pytest.raises(JobFailed, match="SIGKILL"):
            await result_within(job, 15)
        first, *others, last = await app.admin.logs(job.id)
        assert (first.logger, first.message) == ("shop", "from a child")
        assert [line.message for line in others] == [f"line {number}" for number in range(4)]
        assert last.message == too_many(5)
        status = await job.status()
        assert status.progress is not None
        assert (status.progress.fraction, status.progress.message) == (0.75, "nearly")
        assert status.annotations == {"lines": 10, "first-attempt": 1}


async def test_annotations_travel_to_a_child_and_back() -> None:
    app = Headgate("memory://", retry=RetryPolicy(retries=1, base=0.001))
    app.queue("computing", concurrency=1)
    annotates = app.task(queue="computing", process=True)(bodies.annotates)
    finished: list[Mapping[str, object]] = []

    @app.around_attempt
    async def count(job: AttemptContext, run: Callable[[], Awaitable[object]]) -> object:
        if job.attempt == 2:
            job.annotate(**{"of-the-hook": True})
        try:
            return await run()
        finally:
            finished.append(dict(job.annotations))

    async with app:
        job = await annotates.enqueue()
        assert await result_within(job, 15) == {"first": 1, "of-the-hook": True}
        assert (await job.status()).annotations == {"second": 2, "of-the-hook": True}
    assert finished == [{"first": 1}, {"of-the-hook": True, "second": 2}]


async def test_a_child_whose_garbage_collector_logs_continues_and_reports_all_lines() -> None:
    app = make_app()
    leaves_unclosed = app.task(queue="computing", process=True)(bodies.leaves_unclosed)
    async with app:
        job = await leaves_unclosed.enqueue(400)
        assert await result_within(job, 15) == 400
        lines = [line.message for line in await app.admin.logs(job.id, count=1000)]
        assert sorted(lines) == ["line"] * 400 + ["unclosed"] * 400
