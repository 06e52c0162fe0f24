"""The batcher: what waits together commits together, and each caller gets its own result."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import SystemClock
from headgate.errors import NotOpen, StorageUnavailable
from headgate.storage.batcher import Batcher
from headgate.storage.sqlite.storage import SqliteStorage
from tests.until import patient


class Commits:
    """A commit that the test lets go; it notes the groups that came."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.failing: dict[str, BaseException] = {}
        self.all_failing: BaseException | None = None
        self._limit_sets: list[asyncio.Event] = []
        self._begun = asyncio.Event()

    async def __call__(self, group: Sequence[str]) -> Sequence[Any]:
        limit_set = asyncio.Event()
        self.groups.append(list(group))
        self._limit_sets.append(limit_set)
        self._begun.set()
        await limit_set.wait()
        if self.all_failing is not None:
            raise self.all_failing
        return [self.failing.get(write, f"{write} committed") for write in group]

    async def begun(self, count: int) -> None:
        """Return once so many commits have begun."""
        while len(self.groups) < count:
            self._begun.clear()
            await self._begun.wait()

    def let_go(self) -> None:
        """The commit that is in flight ends."""
        self._limit_sets[-1].set()


@pytest.fixture
def commits() -> Commits:
    return Commits()


@pytest.fixture
def batcher(commits: Commits) -> Batcher[str]:
    return Batcher(commits)


def write(batcher: Batcher[str], *words: str) -> list[asyncio.Future[Any]]:
    return [batcher.write(word) for word in words]


async def test_an_idle_write_goes_at_once_and_alone(batcher: Batcher[str], commits: Commits) -> None:
    (first,) = write(batcher, "a")
    await commits.begun(1)
    assert commits.groups == [["a"]]
    commits.let_go()
    assert await first == "a committed"


async def test_an_idle_write_waits_for_no_timer(batcher: Batcher[str], commits: Commits) -> None:
    (first,) = write(batcher, "a")
    for _ in range(3):
        # Three turns of the loop: its own task, the flight, the commit.
        await asyncio.sleep(0)
    assert commits.groups == [["a"]]
    commits.let_go()
    await first


async def test_writes_that_come_in_one_turn_of_the_loop_share_a_commit(batcher: Batcher[str], commits: Commits) -> None:
    writes = write(batcher, "a", "b", "c")
    await commits.begun(1)
    commits.let_go()
    assert await asyncio.gather(*writes) == ["a committed", "b committed", "c committed"]
    assert commits.groups == [["a", "b", "c"]]


async def test_writes_during_a_commit_are_in_the_next_one_in_their_order(
    batcher: Batcher[str], commits: Commits
) -> None:
    (first,) = write(batcher, "a")
    await commits.begun(1)
    later = write(batcher, "b", "c", "d")
    await asyncio.sleep(0)
    assert commits.groups == [["a"]], "one commit at a time"
    commits.let_go()
    assert await first == "a committed"
    assert not any(each.done() for each in later)
    await commits.begun(2)
    commits.let_go()
    assert await asyncio.gather(*later) == ["b committed", "c committed", "d committed"]
    assert commits.groups == [["a"], ["b", "c", "d"]]


async def test_a_group_has_an_upper_size(commits: Commits) -> None:
    batcher = Batcher(commits, most=2)
    writes = write(batcher, *"abcde")
    for count in (1, 2, 3):
        await commits.begun(count)
        commits.let_go()
    await asyncio.gather(*writes)
    assert commits.groups == [["a", "b"], ["c", "d"], ["e"]]


async def test_a_write_that_fails_fails_its_caller_only(batcher: Batcher[str], commits: Commits) -> None:
    commits.failing["b"] = ValueError("b is bad")
    writes = write(batcher, "a", "b", "c")
    await commits.begun(1)
    commits.let_go()
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert results[0] == "a committed"
    assert isinstance(results[1], ValueError)
    assert results[2] == "c committed"


async def test_a_commit_that_fails_fails_its_group_and_not_the_next(batcher: Batcher[str], commits: Commits) -> None:
    commits.all_failing = OSError("the disk is gone")
    group = write(batcher, "a", "b")
    await commits.begun(1)
    later = write(batcher, "c")
    await asyncio.sleep(0)
    commits.let_go()
    assert [type(result) for result in await asyncio.gather(*group, return_exceptions=True)] == [OSError, OSError]
    commits.all_failing = None
    await commits.begun(2)
    commits.let_go()
    assert await asyncio.gather(*later) == ["c committed"]


async def test_a_cancelled_caller_undoes_nothing_and_affects_no_other(batcher: Batcher[str], commits: Commits) -> None:
    in_flight = write(batcher, "a", "b")
    await commits.begun(1)
    waiting = write(batcher, "c", "d")
    await asyncio.sleep(0)
    in_flight[0].cancel()
    waiting[0].cancel()
    await asyncio.sleep(0)
    commits.let_go()
    await commits.begun(2)
    commits.let_go()
    assert await in_flight[1] == "b committed"
    assert await waiting[1] == "d committed"
    assert in_flight[0].cancelled()
    assert waiting[0].cancelled()
    assert commits.groups == [["a", "b"], ["c", "d"]], "what was handed over is written"


async def test_the_failure_of_a_cancelled_caller_is_dropped(batcher: Batcher[str], commits: Commits) -> None:
    commits.failing["a"] = ValueError("a is bad")
    writes = write(batcher, "a", "b")
    await commits.begun(1)
    writes[0].cancel()
    await asyncio.sleep(0)
    commits.let_go()
    assert await writes[1] == "b committed"


async def test_a_commit_may_return_a_future_and_then_takes_no_task() -> None:
    committing: asyncio.Future[Sequence[Any]] = asyncio.get_running_loop().create_future()
    batcher = Batcher[str](lambda group: committing)
    tasks = asyncio.all_tasks()
    done = batcher.write("a")
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == tasks
    assert not done.done()
    committing.set_result(["a committed"])
    assert await done == "a committed"
    await batcher.drain()


async def test_drain_returns_when_nothing_is_left(batcher: Batcher[str], commits: Commits) -> None:
    await batcher.drain()
    writes = write(batcher, "a")
    await commits.begun(1)
    writes += write(batcher, "b")
    draining = asyncio.get_running_loop().create_task(batcher.drain())
    await asyncio.sleep(0)
    commits.let_go()
    await commits.begun(2)
    assert not draining.done()
    commits.let_go()
    await draining
    assert all(each.done() for each in writes)


async def test_writes_work_after_a_drain(batcher: Batcher[str], commits: Commits) -> None:
    for count, word in enumerate("ab", 1):
        (one,) = write(batcher, word)
        await commits.begun(count)
        commits.let_go()
        assert await one == f"{word} committed"
        await batcher.drain()


async def test_when_a_commit_is_cancelled_no_caller_waits_for_ever(batcher: Batcher[str], commits: Commits) -> None:
    in_flight = write(batcher, "a")
    await commits.begun(1)
    waiting = write(batcher, "b")
    await asyncio.sleep(0)
    (flight,) = [task for task in asyncio.all_tasks() if task.get_name() == "headgate-commits"]
    flight.cancel()
    done, pending = await asyncio.wait([*in_flight, *waiting], timeout=patient(5))
    assert not pending
    assert all(each.cancelled() for each in done)


async def test_when_a_commit_is_cancelled_before_it_begins_no_caller_waits_for_ever(
    batcher: Batcher[str], commits: Commits
) -> None:
    # As at the end of a loop, which cancels all its tasks.
    (early,) = write(batcher, "a")
    await asyncio.sleep(0)
    (flight,) = [task for task in asyncio.all_tasks() if task.get_name() == "headgate-commits"]
    flight.cancel()
    async with asyncio.timeout(patient(5)):
        await batcher.drain()
    await asyncio.wait([early], timeout=patient(5))
    assert early.cancelled()
    assert commits.groups == []
    (later,) = write(batcher, "b")
    await commits.begun(1)
    commits.let_go()
    assert await later == "b committed"


async def test_each_caller_of_a_group_that_fails_gets_an_error_of_its_own(
    batcher: Batcher[str], commits: Commits
) -> None:
    """The fault: all raised one object, which then had the frames and the notes of all of them."""
    first = write(batcher, "first")
    await commits.begun(1)
    others = write(batcher, "second", "third", "fourth")
    commits.let_go()
    await commits.begun(2)
    commits.all_failing = NotOpen()
    commits.all_failing.__cause__ = OSError(28, "no space")
    commits.let_go()
    await asyncio.gather(*first)
    found = await asyncio.gather(*others, return_exceptions=True)
    assert len({id(error) for error in found}) == 3
    for number, error in enumerate(found):
        assert isinstance(error, NotOpen)
        assert str(error) == str(commits.all_failing)
        assert error.__cause__ is commits.all_failing.__cause__
        error.add_note(str(number))
    assert [error.__notes__ for error in found if isinstance(error, NotOpen)] == [["0"], ["1"], ["2"]]


async def test_each_write_that_a_locked_file_refuses_gets_an_error_of_its_own(tmp_path: Path) -> None:
    clock = SystemClock()
    storage = SqliteStorage(tmp_path / "jobs.db", clock, synchronous="OFF", patience=0.01)
    await storage.open()
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        writes = [storage.add([]), *[storage.pause_queue(str(number)) for number in range(5)]]
        found = await asyncio.gather(*writes, return_exceptions=True)
    await storage.close()
    assert {type(error) for error in found} == {StorageUnavailable}
    assert len({id(error) for error in found}) == len(writes)
