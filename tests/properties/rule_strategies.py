"""Rules of every kind, for properties."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from headgate.clock import FARTHEST, SECOND
from headgate.limits.adaptive_rate import Aimd
from headgate.limits.dynamic_window import SharedCounter
from headgate.limits.fixed_window import WindowCounter
from headgate.limits.rate_limit import Gcra
from headgate.limits.sliding_window import SliceCounter
from headgate.limits.strict_rate import SlidingLog

DAY = 86400 * SECOND

LOWEST = 3
"""Every rule grants at least that much, and nothing costs more: what could never go is another test."""

counts = st.integers(LOWEST, 12) | st.sampled_from([997, 1000])
periods = st.integers(1, 50) | st.integers(1, 100) | st.sampled_from([SECOND, 60 * SECOND, 7_777_777, DAY])

RULES: dict[str, st.SearchStrategy[Any]] = {
    "rate": st.builds(
        Gcra,
        count=counts | st.sampled_from([1_000_000, 7]),
        period=periods,
        burst=st.integers(LOWEST, 20) | st.just(1_000_000),
        start_empty=st.booleans(),
    ).filter(lambda rule: 1_000_000 * rule.period // rule.count < FARTHEST // 10),
    "strict": st.builds(SlidingLog, count=counts, period=periods),
    "fixed": st.integers(0, 20).flatmap(
        lambda margin: st.builds(
            WindowCounter, count=counts, period=periods.map(lambda period: period + margin), margin=st.just(margin)
        )
    ),
    "sliding": st.builds(SliceCounter, count=counts, slice=periods, slices=st.integers(1, 6)),
    "dynamic": st.builds(
        SharedCounter,
        capacity=st.just(0) | st.integers(LOWEST, 12),
        min_count=st.integers(1, LOWEST),
        max_count=st.integers(LOWEST, 12),
        slice=periods,
        slices=st.integers(1, 4),
        max_keys=st.integers(1, 4),
    ).filter(lambda rule: not rule.capacity or rule.max_count <= rule.capacity),
    "adaptive": st.tuples(st.integers(1, 30_000_000), st.integers(1, 30_000_000)).flatmap(
        lambda rates: st.builds(
            Aimd,
            low=st.just(min(rates)),
            high=st.just(max(rates)),
            period=periods,
            start=st.integers(min(rates), max(rates)),
            climb=st.integers(1, 1000) | st.just(1800 * SECOND),
            kept=st.integers(10, 99),
            burst=st.integers(LOWEST, 20),
        )
    ),
}
