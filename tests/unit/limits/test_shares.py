"""The shares of a limit while its store is away: together they grant no more than the limit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import (
    AdaptiveRate,
    Concurrency,
    DynamicWindow,
    FixedWindow,
    RateLimit,
    SlidingWindow,
    StrictRate,
)
from headgate.clock import SECOND
from headgate.errors import DeclarationError
from headgate.limits.limit import Limit

counts = st.integers(1, 200)


@given(
    kind=st.sampled_from([StrictRate, FixedWindow, SlidingWindow, RateLimit, AdaptiveRate]),
    count=counts,
    part=counts,
    window=st.integers(1, 600 * SECOND),
)
def test_shares_together_are_bounded_by_the_limit(kind: Any, count: int, part: int, window: int) -> None:
    sharers = min(count, part)
    options = {"burst": count} if kind is AdaptiveRate else {}
    rule = kind(count, per=60, **options).rule
    share = rule.divided(sharers)
    # What a rate gains while it grows back to its burst is rounded down once for the limit, and once for each share.
    rounding = sharers if kind in (RateLimit, AdaptiveRate) else 0
    assert sharers * share.bound(window) <= rule.bound(window) + rounding
    assert share.bound(60 * SECOND) >= rule.bound(60 * SECOND) // (2 * sharers)


@pytest.mark.parametrize(
    ("kind", "arguments", "options", "message"),
    [
        (StrictRate, ["3/m"], {"sharers": 4}, "3/m.* divided among 4 leaves less than one start for each"),
        (FixedWindow, ["3/m"], {"sharers": 4}, "leaves less than one start"),
        (SlidingWindow, ["3/m"], {"sharers": 4}, "leaves less than one start"),
        (StrictRate, ["30/m"], {}, 'on_store_error="share" needs sharers='),
        (StrictRate, ["30/m"], {"sharers": 0}, "sharers=0 must be a whole number, at least 1"),
        (StrictRate, ["30/m"], {"sharers": 4, "cost": 8}, "while its store is away, with sharers=4: cost=8"),
        (
            DynamicWindow,
            [],
            {"per": 60, "count": 30, "sharers": 4},
            'among 4; write on_store_error="run"',
        ),
        (Concurrency, [4], {"sharers": 4}, "cannot be divided among 4"),
    ],
)
def test_a_share_that_means_nothing_is_refused(
    kind: type[Limit], arguments: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DeclarationError, match=message):
        kind(*arguments, on_store_error="share", **options)


def test_sharers_without_a_share_are_refused() -> None:
    with pytest.raises(DeclarationError, match='sharers=4 of a limit is for on_store_error="share"'):
        StrictRate("30/m", sharers=4)
