"""Reports that read much: however many a user requests, the store makes one at a time, beside its other reads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from headgate import SearchTooLong, TooManySearches
from headgate.clock import sleep
from headgate.http import dashboard
from headgate.http.reports import MOST_KEPT, ReportMaker
from headgate.storage.searching import SEARCH_TIMEOUT, TURN_TIMEOUT
from headgate.storage.store import Store, read
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.faces.http.stage import EVERYBODY, LIMIT, client, make_app
from tests.until import patient, until


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], list[str]]]:
    """Replace a report of the store by one that waits for the end of the test; its list has its calls."""
    may_end = threading.Event()

    def hold(name: str) -> list[str]:
        calls: list[str] = []

        async def held(*_: Any, **__: Any) -> list[Any]:
            calls.append(name)
            may_end.wait()
            return []

        monkeypatch.setattr(Store, name, read(held, "search"))
        hold.ends = may_end.set  # type: ignore[attr-defined]
        return calls

    yield hold
    may_end.set()


@pytest.mark.parametrize(
    ("path", "name"),
    [(f"/api/v1/limits/{quote(LIMIT, safe='')}/audit", "bounded_starts"), ("/api/v1/failures", "newest_failed")],
    ids=["audit", "failures"],
)
async def test_a_report_delays_no_list_and_is_made_once_for_all_who_request_it(
    tmp_path: Path, hold: Any, path: str, name: str
) -> None:
    app = make_app(f"sqlite:///{tmp_path}/jobs.db", synchronous="OFF")
    calls = hold(name)
    async with app.open(), client(dashboard(app, auth=EVERYBODY)) as caller:
        requests = [asyncio.ensure_future(caller.get(path)) for _ in range(5)]
        try:
            await until(lambda: len(calls) == 1)
            async with asyncio.timeout(patient(5)):
                for other in ("/api/v1/jobs", "/api/v1/overview", "/api/v1/limits"):
                    assert (await caller.get(other)).status_code == 200
        finally:
            hold.ends()
        assert [each.status_code for each in await asyncio.gather(*requests)] == [200] * 5
        assert len(calls) == 1


def test_reports_take_turns_end_in_time_and_are_reused_for_ten_times_as_long_as_they_took() -> None:
    async def main(clock: VirtualClock) -> None:
        reports = ReportMaker(clock)
        made: list[str] = []

        async def make(name: str, seconds: float) -> str:
            made.append(name)
            await sleep(clock, seconds)
            return name

        def read(name: str, seconds: float) -> asyncio.Task[str]:
            return asyncio.create_task(reports.read(name, lambda: make(name, seconds)))

        first, second = read("a", 3), read("b", 1)
        await sleep(clock, 2)
        assert made == ["a"]
        assert [await first, await second] == ["a", "b"]
        assert await read("a", 3) == "a"
        await sleep(clock, 30)
        assert await read("a", 3) == "a"
        assert made == ["a", "b", "a"]
        # A change shows in the next report.
        reports.changed()
        await read("a", 0)
        assert made.count("a") == 3
        # A report that takes too long is ended, and those that wait for it too long are refused.
        slow = read("slow", SEARCH_TIMEOUT + 1)
        late = read("late", 0)
        found = await asyncio.gather(slow, late, return_exceptions=True)
        assert [type(each) for each in found] == [SearchTooLong, TooManySearches]
        assert TURN_TIMEOUT < SEARCH_TIMEOUT
        assert await read("late", 0) == "late"

    run_virtual(main)


def test_the_memory_for_reports_is_bounded_and_a_client_that_leaves_ends_no_report_of_others() -> None:
    async def main(clock: VirtualClock) -> None:
        reports = ReportMaker(clock)
        made: list[int] = []

        async def make(number: int) -> int:
            made.append(number)
            await sleep(clock, 1)
            return number

        leaving = asyncio.create_task(reports.read(0, lambda: make(0)))
        staying = asyncio.create_task(reports.read(0, lambda: make(0)))
        await asyncio.sleep(0)
        leaving.cancel()
        assert await staying == 0
        for number in range(1, 3 * MOST_KEPT):
            await reports.read(number, lambda number=number: make(number))  # type: ignore[misc]
            assert len(reports) <= MOST_KEPT
        assert made == list(range(3 * MOST_KEPT))
        await reports.close()

    run_virtual(main)
