"""The rules in force, as a process has them."""

from __future__ import annotations

import asyncio
from typing import Any

from headgate.jobs.job import BucketRef
from headgate.storage.live_rules import CachedRules, LimitSetting

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
