"""Leases between processes, on Redis and PostgreSQL: holders that take turns, are stopped, and are killed."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from uuid import uuid4

import pytest

from headgate import Limiter, Mutex
from tests.durability.processes import Children
from tests.until import patient

pytestmark = pytest.mark.nightly


@pytest.fixture(params=["redis", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """A store that no other test uses."""
    if request.param == "redis":
        return f"{request.getfixturevalue('redis_url')}?prefix=leases-{uuid4().hex}"
    schema = request.getfixturevalue("postgres_schema")
    address: str = request.getfixturevalue("postgres_url")
    return f"{address}{'&' if '?' in address else '?'}schema={schema}"


async def test_processes_take_turns_and_the_tokens_of_their_turns_only_grow(
    url: str, children: Children, tmp_path: Path
) -> None:
    file = tmp_path / "turns"
    holders = [
        await children.start("lease_holder.py", url=url, lease=5, file=str(file), times=20, tasks=3) for _ in range(2)
    ]
    for holder in holders:
        await holder.wait_for_line("ready")
    for holder in holders:
        holder.send("go")
    for holder in holders:
        await holder.wait_for_line("ended", seconds=40)
        assert await holder.end() == 0
    lines = file.read_text().split("\n")[:-1]
    tokens = [int(line.split()[0]) for line in lines[::2]]
    # No turn begins before the one before it has ended.
    assert lines == [f"{token} {word}" for token in tokens for word in ("begins", "ends")]
    assert len(tokens) == 2 * 3 * 20
    assert tokens == sorted(set(tokens))


async def test_a_holder_that_is_stopped_loses_its_lease_and_has_the_lower_token(url: str, children: Children) -> None:
    stopped = await children.start("lease_holder.py", url=url, lease=2)
    (first,) = await stopped.wait_for_line("held")
    async with Limiter(Mutex("orders"), url, lease=4) as limiter:
        # It is renewed while its holder runs.
        with pytest.raises(TimeoutError):
            async with limiter.hold("42", timeout=3):
                raise AssertionError
        stopped.signal(signal.SIGSTOP)
        async with limiter.hold("42", timeout=patient(10)) as held:
            assert held.fencing_token > first
            stopped.signal(signal.SIGCONT)
            assert await stopped.wait_for_line("lost") == [first, first]
            await stopped.wait_for_line("ended")
            # Nothing that it did afterwards has taken the lease from its holder, as the next renewal would show.
            await asyncio.sleep(1.5)
            assert not held.is_lost


async def test_the_lease_of_a_killed_holder_ends_and_one_that_is_given_back_is_free(
    url: str, children: Children
) -> None:
    killed = await children.start("lease_holder.py", url=url, lease=1)
    (first,) = await killed.wait_for_line("held")
    await killed.kill()
    # What counts is the lease of the one that was killed.
    second = await children.start("lease_holder.py", url=url, lease=600)
    (token,) = await second.wait_for_line("held")
    assert token > first
    second.send("let go")
    await second.wait_for_line("ended")
    async with Limiter(Mutex("orders"), url) as limiter, limiter.hold("42", timeout=patient(5)) as held:
        assert held.fencing_token > token
