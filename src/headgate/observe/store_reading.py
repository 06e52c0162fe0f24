"""The metrics read from the store, within a deadline: depth, age and lag of queues, throttled keys, nodes."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from headgate.clock import SECOND, microseconds, to_datetime, wait_until_done
from headgate.errors import HeadgateError
from headgate.observe import metric
from headgate.observe.instrument import Labels, Observed
from headgate.storage.background_counts import BackgroundCounts
from headgate.storage.records import KeyBacklog, LimitBacklog, NodeRecord, QueueCounts, QueueRecord, WaitingCount

logger = logging.getLogger("headgate.metrics")

Number = tuple[metric.Metric, tuple[str, ...], float]

COUNTS_FOR = 0.5
"""Seconds that a scrape waits at most for a count of the queues; otherwise it has the count before it."""

STORE_AWAY: tuple[Number, ...] = ((metric.UP, (), 0.0),)


class StoreReading:
    """The last reading of the store; `refresh` renews it when it is older than `max_age` seconds."""

    def __init__(self, observed: Observed, *, top_keys: int, deadline: float, max_age: float) -> None:
        self._observed = observed
        self._labels = Labels(observed.registry)
        # The rest of the deadline is for what the store answers at once.
        patience = min(COUNTS_FOR, deadline / 4)
        self._queues: BackgroundCounts[Sequence[Number]] = BackgroundCounts(
            observed.clock, "queues", patience=patience, first_patience=patience, stale_patience=patience, fresh_for=0
        )
        self._top_keys = top_keys
        self._deadline = deadline
        self._max_age = microseconds(max_age)
        self._read_at: int | None = None
        self._reading: asyncio.Task[None] | None = None
        self.numbers: tuple[Number, ...] = STORE_AWAY

    async def refresh(self) -> None:
        """Read again if it is due, within the deadline; if the store does not answer, only `headgate_up` 0 remains."""
        if self._reading is None:
            now = self._observed.clock.monotonic()
            if self._read_at is not None and now - self._read_at < self._max_age:
                return
            self._reading = asyncio.get_running_loop().create_task(self._read_in_time(), name="headgate-metrics")
            self._reading.add_done_callback(self._on_read)
        # Concurrent callers share one reading.
        await asyncio.wait([self._reading])

    def give_up(self) -> None:
        """Report the store as away: the event loop that would read it does not answer, or there is none."""
        self.numbers = STORE_AWAY

    def _on_read(self, _: asyncio.Future[None]) -> None:
        self._reading = None
        self._read_at = self._observed.clock.monotonic()

    async def _read_in_time(self) -> None:
        reading = asyncio.ensure_future(self._read())
        try:
            in_time = await wait_until_done(self._observed.clock, reading, self._deadline)
        finally:
            # Not awaited: a store that hangs may be slow to cancel, too.
            reading.cancel()
        if not in_time or reading.cancelled():
            self.numbers = STORE_AWAY
        elif (error := reading.exception()) is not None:
            self.numbers = STORE_AWAY
            if not isinstance(error, HeadgateError):
                logger.error("the store could not be read for metrics", exc_info=error)
        else:
            self.numbers = reading.result()

    async def _read(self) -> tuple[Number, ...]:
        """Return the numbers, those of jobs as of their last count; before the first one is done they are missing."""
        storage = self._observed.store()
        self._queues.begin(self._count_queues, lambda: to_datetime(storage.now()))
        nodes, paused = await storage.nodes(), await storage.paused_queues()
        counted = await self._queues.read()
        now = storage.now()
        numbers = [
            (metric.UP, (), 1.0),
            *_pauses(paused, self._labels),
            *_nodes(nodes, now, self._observed.registry.lease),
        ]
        if counted is not None:
            age = max(0.0, (to_datetime(now) - counted.at).total_seconds())
            numbers += [(metric.COUNTED_AGE, (), age), *counted.found]
        return tuple(numbers)

    async def _count_queues(self) -> Sequence[Number]:
        storage, labels = self._observed.store(), self._labels
        counts, waiting = await storage.counts(finals=False), await storage.waiting()
        # Limits are counted with their worst keys, so one of each is asked for at least.
        unfinished = await storage.count_unfinished(worst=max(1, self._top_keys))
        return (
            *_added_up(_depths(counts, labels)),
            *_added_up(_waiting(waiting, labels)),
            *_added_up(_throttled(unfinished.limits, labels)),
            *_top_keys(unfinished.worst, labels, self._top_keys),
            *_added_up(_keys(await storage.keys_by_limit(), labels)),
            *_ages(await storage.queues(), labels, storage.now()),
        )


def _depths(counts: Iterable[QueueCounts], labels: Labels) -> Iterator[Number]:
    # Final jobs are not counted: a store may have to read each of them.
    for state in ("waiting", "running"):
        # A queue without jobs is 0, not missing, so that an alert on it ends.
        for queue in labels.queues:
            yield metric.DEPTH, (queue, state), 0
        for each in counts:
            yield metric.DEPTH, (labels.queue(each.queue), state), getattr(each, state)


def _waiting(waiting: Iterable[WaitingCount], labels: Labels) -> Iterator[Number]:
    for each in waiting:
        yield metric.WAITING, (labels.queue(each.queue), labels.task(each.task), each.view), each.jobs


def _keys(counts: Mapping[str, int], labels: Labels) -> Iterator[Number]:
    for name in labels.limits:
        yield metric.KEYS, (name,), 0
    for name, keys in counts.items():
        yield metric.KEYS, (labels.limit(name),), keys


def _ages(queues: Iterable[QueueRecord], labels: Labels, now: int) -> list[Number]:
    """Return the ages of each queue; for undeclared queues, the worst of them."""
    worst = dict.fromkeys(labels.queues, (0.0, 0.0))
    for each in queues:
        queue = labels.queue(each.queue)
        oldest, lag = worst.get(queue, (0.0, 0.0))
        worst[queue] = max(oldest, _seconds_since(each.oldest_at, now)), max(lag, _seconds_since(each.ready_at, now))
    kinds = (metric.OLDEST, metric.LAG)
    return [(kind, (queue,), age) for queue, ages in worst.items() for kind, age in zip(kinds, ages, strict=True)]


def _pauses(paused: Iterable[str], labels: Labels) -> list[Number]:
    """Return for each queue whether it is paused; those that are not declared here count as one."""
    names = {labels.queue(each) for each in paused}
    return [
        (metric.PAUSED, (queue,), float(queue in names))
        for queue in {**dict.fromkeys(labels.queues), **dict.fromkeys(names)}
    ]


def _seconds_since(instant: int | None, now: int) -> float:
    return 0.0 if instant is None else max(0, now - instant) / SECOND


def _throttled(limits: Iterable[LimitBacklog], labels: Labels) -> Iterator[Number]:
    for name in labels.limits:
        yield metric.JOBS_THROTTLED, (name,), 0
        yield metric.KEYS_THROTTLED, (name,), 0
    for each in limits:
        limit = labels.limit(each.limit)
        yield metric.JOBS_THROTTLED, (limit,), each.jobs
        yield metric.KEYS_THROTTLED, (limit,), each.keys


def _top_keys(worst: Iterable[KeyBacklog], labels: Labels, count: int) -> Iterator[Number]:
    declared = (each.bucket for each in worst if each.bucket.ref.limit in labels.limits)
    for each in islice(declared, count):
        yield metric.TOP_KEYS, (each.ref.limit, each.ref.key), each.waiting


def _nodes(nodes: Iterable[NodeRecord], now: int, lease: float) -> Iterator[Number]:
    before = now - round(lease * SECOND)
    states = Counter("gone" if node.is_gone else "silent" if node.beat_at < before else "alive" for node in nodes)
    for state in ("alive", "silent", "gone"):
        yield metric.NODES, (state,), states[state]


def _added_up(numbers: Iterable[Number]) -> list[Number]:
    """Return one number for each series: undeclared names share one."""
    sums: dict[tuple[metric.Metric, tuple[str, ...]], float] = {}
    for kind, values, number in numbers:
        sums[kind, values] = sums.get((kind, values), 0.0) + number
    return [(kind, values, number) for (kind, values), number in sums.items()]
