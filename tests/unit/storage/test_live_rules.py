"""The rules in force, as a process has them."""

from __future__ import annotations

import asyncio
from typing import Any

from headgate.jobs.job import BucketRef
from headgate.storage.live_rules import CachedRules, LimitSetting, LiveRules
from tests.executed_lines import lines_of_call

API = BucketRef("api", "acme")


class SlowTransaction:
    """It answers with these settings once it is `answered`."""

    now = 0

    def __init__(self, *settings: LimitSetting) -> None:
        self._settings = settings
        self.answered = asyncio.Event()

    async def fetch(self, decoder: Any, statement: str, /, **_: Any) -> list[Any]:
        await self.answered.wait()
        return list(self._settings) if statement == "settings" else []


async def test_an_answer_that_comes_late_does_not_bring_back_older_rules() -> None:
    live = CachedRules()
    older: Any = SlowTransaction()
    newer: Any = SlowTransaction(LimitSetting("api", "all", is_paused=True))
    newer.answered.set()
    reading = asyncio.create_task(live.refresh(older, 17))
    await asyncio.sleep(0)
    await live.refresh(newer, 18)
    older.answered.set()
    await reading
    assert live.rules.is_paused(API)


async def test_a_lower_revision_is_read_as_after_a_restore_of_the_store() -> None:
    live = CachedRules()
    for revision, is_paused in ((18, True), (17, False)):
        tx: Any = SlowTransaction(LimitSetting("api", "all", is_paused=is_paused))
        tx.answered.set()
        await live.refresh(tx, revision)
        assert live.rules.is_paused(API) == is_paused


def test_the_longest_of_a_thousand_patterns_applies_and_they_are_sorted_once() -> None:
    """The fault: sorted anew with each pattern, they took seconds, in which the node did nothing else."""
    patterns = [f"{number:04}*" for number in range(1_000)]
    settings = [LimitSetting("api", "member", "0*", tier="short"), LimitSetting("api", "tier", "long", is_paused=True)]
    settings += [LimitSetting("api", "member", each, tier="long") for each in patterns]
    settings += [LimitSetting("api", "pattern", each, is_paused=True) for each in patterns]
    assert lines_of_call(lambda: LiveRules(settings)) < 100 * len(settings)
    rules = LiveRules(settings)
    assert rules.pausing(BucketRef("api", "0042 acme")) == settings[1]
    assert rules.pausing(BucketRef("api", "05")) is None
