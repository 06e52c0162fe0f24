"""What is promised of tags, headers and annotations: jobs are found by them; jobs without any cost nothing for it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from headgate.jobs.job import ClaimedJob, JobOptions, JobState
from headgate.jobs.query import JobFilter
from headgate.jobs.report import AttemptReport
from headgate.storage.postgres.procedure_transaction import PostgresTransaction
from headgate.storage.sqlite.transactions import SqliteTransaction
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.listing import found
from tests.conformance.storage_suite.own_ids import own
from tests.conformance.storage_suite.store_user import Conformance, StoreUser
from tests.conformance.storage_suite.unique_keys import unique


def tagged(*tags: str, **options: Any) -> JobOptions:
    return JobOptions(tags=tags, **options)


async def annotate(store_user: StoreUser, job: ClaimedJob, **annotations: Any) -> bool | None:
    (written,) = await store_user.storage.report(
        store_user.node, [AttemptReport(job.id, job.fence, annotations=annotations)], 10
    )
    return written


@contextlib.contextmanager
def statements() -> Iterator[Counter[str]]:
    """Count the statements that change something, by name."""
    counted: Counter[str] = Counter()

    def watched(execute: Any) -> Any:
        async def count(self: Any, statement: str, /, **parameters: Any) -> int:
            counted[statement] += 1
            changed: int = await execute(self, statement, **parameters)
            return changed

        return count

    with (
        mock.patch.object(SqliteTransaction, "execute", watched(SqliteTransaction.execute)),
        mock.patch.object(PostgresTransaction, "execute", watched(PostgresTransaction.execute)),
    ):
        yield counted


class TagsConformance(Conformance):
    async def test_jobs_are_found_by_a_tag_alone_and_with_other_filters(self, store_user: StoreUser) -> None:
        await store_user.add(3)
        [both] = await store_user.add(options=tagged("import", "vip"))
        [other] = await store_user.add(options=tagged("importer", timeout=5.0), queue="other")
        vip, last = await store_user.add(2, options=tagged("vip"))
        assert await found(store_user, tag="vip") == [last, vip, both]
        assert await found(store_user, tag="import") == [both]
        assert await found(store_user, tag="importer") == [other]
        assert await found(store_user, tag="importer", queue="default") == []
        assert await found(store_user, tag="imp") == []
        assert await found(store_user, tag="tags") == []
        await store_user.take(5)
        assert await found(store_user, tag="vip", state=JobState.RUNNING) == [vip, both]
        assert await found(store_user, tag="vip", state=JobState.WAITING) == [last]
        assert await found(store_user, tag="vip", view="ready") == [last]
        assert await found(store_user, tag="vip", task="absent") == []
        record = await store_user.record(both)
        assert record.options == tagged("import", "vip")

    async def test_a_tag_and_a_text_are_searched_together(self, store_user: StoreUser) -> None:
        [wanted] = await store_user.add(options=tagged("vip"), payload='{"to":"ada"}')
        await store_user.add(options=tagged("vip"), payload='{"to":"otto"}')
        await store_user.add(payload='{"to":"ada"}')
        assert [job.id for job in await store_user.storage.jobs(JobFilter(tag="vip", text="ada"))] == [wanted]

    async def test_jobs_are_found_by_a_header(self, store_user: StoreUser) -> None:
        [api] = await store_user.add(headers={"tenant": "acme", "source": "api"})
        [web] = await store_user.add(headers={"source": "web"}, options=tagged("vip"))
        [odd] = await store_user.add(headers={'x,"source': "api", "quote": 'a"b}', "source": 'api"'})
        await store_user.add(2)
        assert await found(store_user, header="source=api") == [api]
        assert await found(store_user, header="source=web") == [web]
        assert await found(store_user, header="source=web", tag="vip") == [web]
        assert await found(store_user, header='source=api"') == [odd]
        assert await found(store_user, header='quote=a"b}') == [odd]
        assert await found(store_user, header="source=ap") == []
        assert await found(store_user, header="ource=api") == []

    async def test_deleted_jobs_leave_no_tag(self, store_user: StoreUser, clock: ManualClock) -> None:
        await store_user.add(2)
        await store_user.add(2, options=tagged("vip", "import"))
        await store_user.add(options=tagged("vip"))
        await store_user.succeed(*await store_user.take(4))
        clock.advance(1)
        assert await store_user.storage.prune(clock.now()) == 4
        # The rows of the index are compared with the jobs by `check`, after each test.
        assert len(await found(store_user, tag="vip")) == 1
        assert await found(store_user, tag="import") == []

    async def test_a_repeated_addition_stores_each_tag_once(self, store_user: StoreUser) -> None:
        new = store_user.new(options=tagged("vip"))
        for _ in range(2):
            await store_user.storage.add([new])
        assert await found(store_user, tag="vip") == [new.id]

    async def test_a_duplicate_stores_no_tag_and_a_replacement_its_own(self, store_user: StoreUser) -> None:
        first = unique(store_user, options=tagged("first", "both"))
        await store_user.storage.add([first])
        kept = unique(store_user, options=tagged("kept"))
        assert await store_user.storage.add([kept]) == {kept.id: first.id}
        assert await found(store_user, tag="kept") == []
        assert await found(store_user, tag="first") == [first.id]
        await store_user.storage.add([unique(store_user, on_conflict="replace", options=tagged("both", "second"))])
        assert await found(store_user, tag="first") == []
        assert await found(store_user, tag="both") == [first.id]
        assert await found(store_user, tag="second") == [first.id]
        await store_user.storage.add([unique(store_user, on_conflict="replace")])
        assert await found(store_user, tag="both") == []
        await store_user.storage.add([own(store_user, options=tagged("mine"))])
        await store_user.storage.add([own(store_user, process="web:2", options=tagged("other"))])
        assert await found(store_user, tag="other") == []
        assert len(await found(store_user, tag="mine")) == 1

    async def test_annotations_are_kept_over_all_attempts_and_found(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        id = await store_user.add_one()
        await store_user.add(2)
        job = await store_user.take_one()
        assert job.annotations is None
        assert await annotate(store_user, job, invoice=42, share=0.5, note='a"b,"invoice":7}', is_paid=True)
        await store_user.retry_later(job, 10)
        assert await found(store_user, annotation="invoice=42") == [id]
        clock.advance(10)
        (again,) = [each for each in await store_user.take() if each.id == id]
        assert again.annotations == {"invoice": 42, "share": 0.5, "note": 'a"b,"invoice":7}', "is_paid": True}
        assert await annotate(store_user, again, **{**again.annotations, "invoice": "42"})
        assert not await annotate(store_user, job, invoice=0)
        await store_user.fail(again)
        for name, value, is_found in (
            ("invoice", "42", True),
            ("invoice", '"42"', True),
            ("invoice", "4", False),
            ("invoice", "7", False),
            ("share", "0.5", True),
            ("share", "0.50", True),
            ("is_paid", "true", True),
            ("is_paid", "false", False),
            ("note", 'a"b,"invoice":7}', True),
            ("voice", "42", False),
        ):
            assert await found(store_user, annotation=f"{name}={value}") == ([id] if is_found else []), (name, value)
        await store_user.storage.retry(id)
        assert (await store_user.record(id)).annotations == {**again.annotations, "invoice": "42"}

    async def test_a_replaced_job_has_no_annotations(self, store_user: StoreUser) -> None:
        await store_user.storage.add([unique(store_user)])
        job = await store_user.take_one()
        await annotate(store_user, job, invoice=42)
        await store_user.retry_later(job)
        await store_user.storage.add([unique(store_user, on_conflict="replace")])
        assert (await store_user.record(job.id)).annotations is None

    @pytest.mark.parametrize("count", [1, 300])
    async def test_jobs_without_tags_cost_no_statement_and_no_row(
        self, store_user: StoreUser, clock: ManualClock, count: int
    ) -> None:
        async def life(options: JobOptions | None) -> Counter[str]:
            with statements() as counted:
                await store_user.storage.add([replace(store_user.new(), options=options) for _ in range(count)])
                jobs = await store_user.take(count)
                assert len(jobs) == count
                await store_user.succeed(*jobs)
                clock.advance(1)
                while await store_user.storage.prune(clock.now()):
                    pass
            return counted

        # The first one stores the lane.
        await life(None)
        plain, with_options, with_tags = [
            await life(options) for options in (None, JobOptions(timeout=5.0), tagged("vip"))
        ]
        assert plain == with_options
        assert {"add_tags", "remove_tags", "set_annotations"}.isdisjoint(plain)
        assert with_tags - plain == {"add_tags": 1, "remove_tags": with_tags["prune_jobs"]}
