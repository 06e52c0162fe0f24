"""What a benchmark came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Self


@dataclass(frozen=True, slots=True)
class Environment:
    """What was measured on. `syncs` is how often a second the disk syncs a page; None for a server."""

    store: str
    setup: str
    is_durable: bool
    python: str
    event_loop: str
    cores: int
    load: float | None
    syncs: float | None

    @property
    def is_busy(self) -> bool:
        """Whether others were at work on this machine."""
        return self.load is not None and self.load > 0.7 * self.cores


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """So many jobs in so many seconds."""

    jobs: int
    seconds: float
    per_second: float

    @classmethod
    def of(cls, jobs: int, seconds: float) -> Self:
        return cls(jobs, round(seconds, 3), round(jobs / seconds, 1) if seconds else 0.0)


@dataclass(frozen=True, slots=True)
class Latency:
    """From before the enqueue until the handler began, in milliseconds."""

    probes: int
    p50: float
    p99: float

    @classmethod
    def of(cls, microseconds: Sequence[int]) -> Self:
        ordered = sorted(microseconds)

        def percentile(share: float) -> float:
            return round(ordered[ceil(share * len(ordered)) - 1] / 1000, 2)

        return cls(len(ordered), percentile(0.5), percentile(0.99))


@dataclass(frozen=True, slots=True)
class Figures:
    """The whole answer: enqueued one by one, by many at once and in bulk; run; started when idle, and beside `backlog`.

    `backlog` is how many jobs waited for their limits meanwhile.
    """

    ground: Environment
    single: MeasuredRate
    callers: int
    together: MeasuredRate
    bulk_size: int
    bulk: MeasuredRate
    slots: int
    drain: MeasuredRate
    idle: Latency
    backlog: int
    beside_backlog: Latency
