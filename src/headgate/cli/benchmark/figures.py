"""The results of a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Self


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of a measurement. `syncs` is the page syncs per second of the disk; None for a server."""

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
        """Whether other programs were running on this machine."""
        return self.load is not None and self.load > 0.7 * self.cores


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """A number of jobs in a number of seconds."""

    jobs: int
    seconds: float
    per_second: float

    @classmethod
    def of(cls, jobs: int, seconds: float) -> Self:
        return cls(jobs, round(seconds, 3), round(jobs / seconds, 1) if seconds else 0.0)


@dataclass(frozen=True, slots=True)
class Latency:
    """The time from the enqueue to the start of the handler, in milliseconds."""

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
    """All results: enqueued one by one, concurrently and in bulk; run; started when idle and beside `backlog`.

    `backlog` is the number of jobs that waited for their limits meanwhile.
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
