"""Connections that break at the commit: what was written is written once, and what was claimed is run once."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest

from headgate import JobState, StorageUnavailable
from headgate.clock import SystemClock
from headgate.jobs.event import StorageFailed
from headgate.jobs.identity import job_number
from headgate.storage.postgres.storage import PostgresStorage
from tests.durability.postgres import Endings, ask, count_endings, sent_id
from tests.durability.stores import NODE, claim_for, new_job
from tests.durability.tcp_proxy import TcpProxy
from tests.durability.work import Page, Work
from tests.internals import node_of, store_of
from tests.postgres_server import PostgresServer
from tests.until import result_within, until

pytestmark = pytest.mark.nightly

MARK = b"a-mark-in-the-payload"


@pytest.mark.parametrize("is_lost", ["answer", "request"])
@pytest.mark.parametrize("count", [1, 3])
async def test_an_enqueue_whose_commit_was_cut_is_there_exactly_once(
    postgres: PostgresServer, is_lost: str, count: int
) -> None:
    async with TcpProxy.to(postgres.port) as proxy:
        work = Work(postgres.url_at(proxy.port))
        async with work.app.open():
            # The statements have been prepared, and the connections made.
            await work.gated.enqueue_many([("before",)] * count)
            cut = (proxy.break_after if is_lost == "answer" else proxy.break_before)(MARK)
            jobs = await work.gated.enqueue_many([(MARK.decode(),)] * count)
            assert cut.happened.is_set()
            rows = "SELECT count(*) FROM headgate.job WHERE payload LIKE '%' || $1 || '%'"
            assert await ask(postgres.url, rows, MARK.decode()) == count
            states = [(await job.status()).state for job in jobs]
            assert states == [JobState.WAITING] * count
        async with work.app:
            await work.has_run(*jobs)
            assert await work.used(MARK.decode()) == count
            assert work.again == []
            assert await store_of(work.app).check() == []


@pytest.mark.parametrize("policy", ["keep", "raise"])
@pytest.mark.parametrize("is_lost", ["answer", "request"])
async def test_an_enqueue_under_a_unique_key_whose_commit_was_cut_finds_no_duplicate_in_itself(
    postgres: PostgresServer, is_lost: str, policy: Any
) -> None:
    async with TcpProxy.to(postgres.port) as proxy:
        work = Work(postgres.url_at(proxy.port))
        async with work.app.open():
            await work.gated.using(unique_key="before").enqueue("before")
            cut = (proxy.break_after if is_lost == "answer" else proxy.break_before)(b"COMMIT", within=MARK)
            job = await work.gated.using(unique_key="k", on_conflict=policy).enqueue(MARK.decode())
            assert cut.happened.is_set()
            rows = "SELECT count(*) FROM headgate.job WHERE unique_key = 'k' AND id = $1"
            assert await ask(postgres.url, rows, job_number(job.id)) == 1
            assert await store_of(work.app).check() == []


@pytest.mark.parametrize("is_lost", ["answer", "request"])
async def test_a_replacement_whose_commit_was_cut_is_reported_and_not_repeated(
    postgres: PostgresServer, is_lost: str
) -> None:
    """If it has happened, and another one has replaced it since, repeating it would undo that."""
    async with TcpProxy.to(postgres.port) as proxy:
        work = Work(postgres.url_at(proxy.port))
        async with work.app.open():
            using = work.gated.using(unique_key="k", on_conflict="replace")
            await using.enqueue("before")
            await using.enqueue("before")
            cut = (proxy.break_after if is_lost == "answer" else proxy.break_before)(b"COMMIT", within=MARK)
            with pytest.raises(StorageUnavailable):
                await using.enqueue(MARK.decode())
            assert cut.happened.is_set()
            rows = "SELECT count(*) FROM headgate.job WHERE payload LIKE '%' || $1 || '%'"
            assert await ask(postgres.url, rows, MARK.decode()) == (1 if is_lost == "answer" else 0)
            assert await ask(postgres.url, "SELECT count(*) FROM headgate.job") == 1


async def test_a_cancellation_is_reported_although_what_is_done_after_its_commit_was_cut(
    postgres: PostgresServer,
) -> None:
    """The fault: the caller got an error, asked again, and was told that the job had been final before."""
    async with TcpProxy.to(postgres.port) as proxy:
        work = Work(postgres.url_at(proxy.port))
        async with work.app.open():
            job = await work.gated.enqueue("acme")
            woken: list[str] = []
            stop = store_of(work.app).watch(lambda: woken.append("now"))
            cut = proxy.break_before(b'DELETE FROM "headgate".arrival')
            assert await job.cancel()
            assert cut.happened.is_set()
            assert woken
            stop()
            assert await ask(postgres.url, "SELECT state FROM headgate.job") == "cancelled"


@pytest.mark.parametrize("is_lost", ["answer", "request"])
async def test_the_note_of_a_folder_that_was_cut_is_written_again(postgres: PostgresServer, is_lost: str) -> None:
    async with TcpProxy.to(postgres.port) as proxy:
        work = Work(postgres.url_at(proxy.port))
        async with work.app.open():
            cut = (proxy.break_after if is_lost == "answer" else proxy.break_before)(
                b'INSERT INTO "headgate".used_folder'
            )
            await store_of(work.app).note_folder_used("file:///payloads")
            assert cut.happened.is_set()
            assert await store_of(work.app).is_folder_used("file:///payloads")


@pytest.mark.parametrize("is_lost", ["answer", "request"])
async def test_a_job_whose_claim_was_cut_at_the_commit_is_run_once(postgres: PostgresServer, is_lost: str) -> None:
    local = Work(postgres.url)
    async with TcpProxy.to(postgres.port) as proxy, local.app.open():
        remote = Work(postgres.url_at(proxy.port))
        await count_endings(postgres.url)
        async with remote.app:
            job = await local.gated.using(delay=0.7).enqueue("acme")
            cut = (proxy.break_after if is_lost == "answer" else proxy.break_before)(b"COMMIT", within=sent_id(job.id))
            await until(cut.happened.is_set, 10)
            # So that it is not claimed again before it is looked at.
            proxy.hold()
            assert await ask(postgres.url, "SELECT state FROM headgate.job") == (
                "running" if is_lost == "answer" else "waiting"
            )
            proxy.release()
            await result_within(job)
            assert remote.runs == [job.id]
            assert await store_of(local.app).check() == []
        assert (await Endings.of(postgres.url)).times == {job.id: 1}


async def test_jobs_that_expire_in_a_claim_which_is_cut_afterwards_are_reported(postgres: PostgresServer) -> None:
    """The fault: nobody was told of them, as the claim that had ended them returned nothing but an error.

    The next claim reports them.
    """
    async with TcpProxy.to(postgres.port) as proxy:
        storage = PostgresStorage(postgres.url_at(proxy.port), SystemClock())
        await storage.open()
        await storage.join(NODE, "a")
        now = storage.now()
        late, ready = new_job(now=now, expires_at=now), new_job(now=now)
        await storage.add([late, ready])
        cut = proxy.break_before(b"SELECT first.id")
        with pytest.raises(StorageUnavailable):
            await storage.claim(claim_for())
        assert cut.happened.is_set()
        claimed = await storage.claim(claim_for())
        assert [job.id for job in claimed.dropped] == [late.id]
        assert [job.id for job in claimed.jobs] == [ready.id]
        assert not (await storage.claim(claim_for())).dropped
        await storage.close()


async def test_a_job_whose_claim_was_not_answered_is_charged_once(postgres: PostgresServer) -> None:
    local = Work(postgres.url)
    async with TcpProxy.to(postgres.port) as proxy, local.app.open():
        remote = Work(postgres.url_at(proxy.port))
        async with remote.app:
            job = await local.gated.using(delay=0.7).enqueue("acme")
            cut = proxy.break_after(b"COMMIT", within=sent_id(job.id))
            await until(cut.happened.is_set, 10)
            await result_within(job)
            assert await local.used("acme") == 1


@pytest.mark.parametrize("is_lost", ["answer", "request"])
async def test_no_call_is_made_without_a_charge_if_its_claim_was_cut(postgres: PostgresServer, is_lost: str) -> None:
    local = Work(postgres.url)
    async with TcpProxy.to(postgres.port) as proxy, local.app.open():
        remote = Work(postgres.url_at(proxy.port))
        await count_endings(postgres.url)
        async with remote.app:
            jobs = await local.called.using(delay=0.7).enqueue_many([(Page("acme"),)] * 3)
            commit = (proxy.break_after if is_lost == "answer" else proxy.break_before)(
                b"COMMIT", within=sent_id(jobs[0].id)
            )
            await until(commit.happened.is_set, 10)
            await asyncio.gather(*(result_within(job) for job in jobs))
            assert sorted(remote.runs) == sorted(job.id for job in jobs)
            # Which jobs shared the lost claim is unknown: its leader is called alone, and another one for the rest,
            # unless both calls become one.
            assert remote.calls["acme"] == await local.used("acme", "calls") <= (2 if is_lost == "answer" else 1)
            assert await store_of(local.app).check() == []
        assert (await Endings.of(postgres.url)).times == dict.fromkeys([job.id for job in jobs], 1)


async def test_a_job_without_limits_whose_claim_was_not_answered_is_run_once(postgres: PostgresServer) -> None:
    local = Work(postgres.url)
    async with TcpProxy.to(postgres.port) as proxy, local.app.open():
        remote = Work(postgres.url_at(proxy.port))
        await count_endings(postgres.url)
        async with remote.app:
            job = await local.plain.using(delay=0.7).enqueue("acme")
            cut = proxy.break_at_answer(sent_id(job.id))
            await until(cut.happened.is_set, 10)
            await result_within(job)
            assert remote.runs == [job.id]
        assert (await Endings.of(postgres.url)).times == {job.id: 1}


@pytest.mark.parametrize("is_lost", ["answer", "request"])
async def test_an_ending_that_was_cut_at_the_commit_is_written_once(postgres: PostgresServer, is_lost: str) -> None:
    local = Work(postgres.url)
    async with TcpProxy.to(postgres.port) as proxy, local.app.open():
        remote = Work(postgres.url_at(proxy.port))
        await count_endings(postgres.url)
        async with remote.app:
            job = await local.patient.enqueue("acme")
            await remote.has_run(job)
            cut = (proxy.break_after if is_lost == "answer" else proxy.break_before)(sent_id(job.id))
            remote.proceed.set()
            assert await result_within(job) == "acme"
            await until(cut.happened.is_set, 5)
            await until(lambda: not node_of(remote.app).recorder.pending, 5)
            assert remote.runs == [job.id]
        endings = await Endings.of(postgres.url)
        assert endings.states == {job.id: "succeeded"}
        assert endings.times == {job.id: 1}
        assert endings.lost == {}


async def test_a_cut_connection_is_reported_and_the_node_continues(postgres: PostgresServer) -> None:
    local = Work(postgres.url)
    async with TcpProxy.to(postgres.port) as proxy, local.app.open():
        remote = Work(postgres.url_at(proxy.port))
        async with remote.app:
            await remote.has_run(await local.gated.enqueue("acme"))
            proxy.put_to(1)
            await until(lambda: remote.has_event(StorageFailed), 15)
            proxy.put_to(postgres.port)
            await remote.has_run(await local.gated.enqueue("acme"), seconds=5)


async def test_a_connection_that_loses_many_replies_loses_no_job_and_leaks_no_permit(
    postgres: PostgresServer,
) -> None:
    random = Random(1)
    local = Work(postgres.url)
    async with TcpProxy.to(postgres.port) as proxy, local.app.open():
        remote = Work(postgres.url_at(proxy.port), heartbeat=0.1)
        await count_endings(postgres.url)

        async def lose() -> None:
            while True:
                await asyncio.sleep(random.uniform(0.02, 0.1))
                proxy.replies_to_lose = 1

        async with remote.app:
            losing = asyncio.ensure_future(lose())
            jobs = []
            for number in range(60):
                key = f"key-{number % 4}"
                jobs += await local.exclusive.enqueue_many([(key,)] * 2)
                jobs += await local.gated.enqueue_many([(key,)] * 2)
                jobs += await local.called.enqueue_many([(Page(key),)] * 3)
                jobs.append(await local.plain.enqueue(key))
                await asyncio.sleep(0.05)
            await until(lambda: len(remote.failures) > 5, 30)
            losing.cancel()
            proxy.replies_to_lose = 0
            await asyncio.gather(*(result_within(job, 15) for job in jobs))
            assert remote.most_together == 1
            assert await store_of(local.app).check() == []
            (bucket, *_) = await local.app.admin.limits.list("mutex")
            assert bucket.used == 0
            for key, calls in remote.calls.items():
                # A claim whose reply was lost may have charged a call that was not made.
                assert calls <= await local.used(key, "calls") <= 45
    endings = await Endings.of(postgres.url)
    assert set(endings.states.values()) == {"succeeded"}
    assert endings.times == dict.fromkeys([job.id for job in jobs], 1)
    runs = Counter(remote.runs)
    assert [id for id in runs if runs[id] > 1 + endings.lost[id]] == []
