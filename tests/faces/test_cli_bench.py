"""`headgate bench`: what it measures, on a store beside the user's, of which nothing is left however it ends."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from click.testing import CliRunner

from headgate import DeclarationError, Headgate
from headgate.cli.bench import advice, print_figures
from headgate.cli.benchmark import Environment, Figures, Latency, MeasuredRate, measure, scratch_of
from headgate.cli.main import main
from headgate.clock import SystemClock
from headgate.errors import StorageUnusable
from headgate.storage.facts import SqliteFacts
from tests.until import patient, until_now

GROUND = Environment("/srv/jobs.db", "SQLite 3.51.3, synchronous FULL", True, "3.13.1", "uvloop", 4, 0.5, 812.0)
FIGURES = Figures(
    ground=GROUND,
    single=MeasuredRate.of(1500, 2.0),
    callers=20,
    together=MeasuredRate.of(9000, 2.0),
    bulk_size=500,
    bulk=MeasuredRate.of(20_000, 1.0),
    slots=40,
    drain=MeasuredRate.of(20_000, 2.0),
    idle=Latency(100, 0.9, 4.1),
    backlog=9900,
    beside_backlog=Latency(100, 1.0, 4.4),
)


def begun(*words: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "headgate", "bench", *words],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def database(server: str) -> Iterator[str]:
    """A database of the test's own; its URL."""
    name = f"bench_{uuid.uuid4().hex[:12]}"

    async def ask(query: str) -> None:
        connection = await asyncpg.connect(server)
        try:
            await connection.execute(query)
        finally:
            await connection.close()

    asyncio.run(ask(f"CREATE DATABASE {name}"))
    try:
        yield urlsplit(server)._replace(path=f"/{name}").geturl()
    finally:
        asyncio.run(ask(f"DROP DATABASE {name} WITH (FORCE)"))


def schemas(url: str) -> list[str]:
    async def ask() -> list[str]:
        connection = await asyncpg.connect(url)
        try:
            rows = await connection.fetch("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'headgate%'")
            return [str(row[0]) for row in rows]
        finally:
            await connection.close()

    return asyncio.run(ask())


@pytest.mark.slow
def test_bench_measures_a_new_file_beside_the_store_and_does_not_create_the_store(tmp_path: Path) -> None:
    app, printed = Headgate(f"sqlite:///{tmp_path}/jobs.db"), list[str]()
    figures = asyncio.run(measure(app, SystemClock(), seconds=0.2, slots=7, say=printed.append))
    assert figures.ground.store == str(tmp_path / "jobs.db")
    assert figures.ground.syncs is not None
    assert figures.ground.is_durable
    enqueued = (figures.single, figures.together, figures.bulk)
    assert all(rate.per_second > 0 for rate in (*enqueued, figures.drain))
    assert 0 < figures.drain.jobs <= sum(rate.jobs for rate in enqueued)
    assert figures.backlog > 0
    assert all(0 < latency.p50 <= latency.p99 for latency in (figures.idle, figures.beside_backlog))
    assert "running them in 7 slots" in printed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_bench_measures_in_its_own_schema_and_drops_it(tmp_path: Path, postgres_url: str) -> None:
    with database(postgres_url) as url, begun(url, cwd=tmp_path) as process:
        try:
            until_now(lambda: schemas(url))
            [schema] = schemas(url)
            assert schema.startswith("headgate_scratch_")
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=patient(15))
        finally:
            process.kill()
        assert process.returncode == 143
        assert schemas(url) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signals", "codes"),
    # Of those that come at once the kernel says which is the first.
    [((signal.SIGHUP,), {129}), ((signal.SIGINT, signal.SIGTERM, signal.SIGINT), {130, 143})],
)
def test_bench_leaves_no_files_after_any_signal(
    tmp_path: Path, signals: tuple[signal.Signals, ...], codes: set[int]
) -> None:
    with begun(f"sqlite:///{tmp_path}/jobs.db", "--seconds", "60", cwd=tmp_path) as process:
        try:
            until_now(lambda: list(tmp_path.glob("*/jobs.db")))
            for number in signals:
                process.send_signal(number)
            process.communicate(timeout=patient(15))
        finally:
            process.kill()
        assert process.returncode in codes
    assert list(tmp_path.iterdir()) == []


def test_a_scratch_store_is_deleted_after_any_number_of_cancellations(postgres_url: str) -> None:
    async def work(url: str, made: asyncio.Event) -> None:
        async with scratch_of(Headgate(url)):
            made.set()
            await asyncio.Event().wait()

    async def cancel_it_twice(url: str) -> None:
        working = asyncio.create_task(work(url, made := asyncio.Event()))
        await made.wait()
        working.cancel()
        await asyncio.sleep(0)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

    with database(postgres_url) as url:
        asyncio.run(cancel_it_twice(url))
        assert schemas(url) == []


def test_apps_on_a_scratch_store_share_it_and_have_settings_of_their_own(tmp_path: Path) -> None:
    async def work_on_it() -> None:
        async with scratch_of(Headgate(f"sqlite:///{tmp_path}/jobs.db", synchronous="OFF", history=False)) as make:
            one, other = make(), make(log_lines=3)

            @one.task
            async def work() -> None: ...

            async with one.open(), other.open():
                job = await work.enqueue()
                assert (await other.admin.status(job.id)).task == "work"
                facts = (await other.admin.checkup()).store
                assert isinstance(facts, SqliteFacts)
                assert facts.synchronous == "OFF"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(work_on_it())
    assert list(tmp_path.iterdir()) == []


async def test_bench_reports_that_it_cannot_create_its_store(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="there can be no store beside memory:"):
        async with scratch_of(Headgate("memory://")):
            pass
    with pytest.raises(StorageUnusable, match="no file can be created beside"):
        async with scratch_of(Headgate(f"sqlite:///{tmp_path}/missing/jobs.db")):
            pass


def test_stores_that_cannot_be_measured_are_reported_in_one_line() -> None:
    result = CliRunner().invoke(main, ["bench", "mysql://jobs"])
    assert result.exit_code == 1
    assert "'mysql://jobs' has an unknown scheme" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_percentiles_are_of_what_was_measured() -> None:
    assert Latency.of([1000 * n for n in range(100, 0, -1)]) == Latency(100, 50.0, 99.0)
    assert Latency.of([700]) == Latency(1, 0.7, 0.7)
    assert MeasuredRate.of(1500, 2.0).per_second == 750


def test_bench_explains_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    print_figures(FIGURES)
    printed = capsys.readouterr().out
    assert "beside 9,900 jobs waiting for a limit" in printed
    assert "This disk syncs 812 pages a second" in printed
    assert "jobs of 100 ms in 40 slots reach at most 400 a second" in printed
    assert not any("Others were at work" in line or "power cut" in line for line in advice(FIGURES))


def test_bench_reports_what_makes_figures_doubtful() -> None:
    ground = Environment("postgresql://db/jobs", "PostgreSQL 18.1, fsync off", False, "3.13.1", "uvloop", 2, 6.0, None)
    printed = "\n".join(advice(replace(FIGURES, ground=ground)))
    assert "Other programs were running (load 6 on 2 cores)" in printed
    assert "With these settings a power cut may lose the last acknowledged jobs" in printed
    assert "syncs" not in printed


def test_the_help_of_bench_says_what_happens_to_existing_jobs() -> None:
    assert "Your jobs are not touched" in CliRunner().invoke(main, ["bench", "--help"]).output


@pytest.mark.parametrize("url", [None, ""])
def test_a_bench_without_a_store_is_refused_with_what_to_write(
    url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADGATE_URL", raising=False)
    monkeypatch.delenv("HEADGATE_APP", raising=False)
    if url is not None:
        monkeypatch.setenv("HEADGATE_URL", url)
    result = CliRunner().invoke(main, ["bench"])
    assert result.exit_code == 2
    assert "name what to measure: `headgate bench sqlite:///jobs.db`" in result.output
