"""The services that the parts of a node share with each other and with the app."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from headgate.clock import Clock
from headgate.engine.bus import EventBus, publish_storage_failure
from headgate.engine.callback_runner import CallbackRunner
from headgate.engine.history_writer import HistoryWriter
from headgate.jobs.event import JobFailure, JobFinished
from headgate.jobs.identity import IdSource
from headgate.jobs.job import JobRecord, JobState
from headgate.storage.records import Dropped
from headgate.storage.store import Store
from headgate.tasks.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The services of an app that each part of a node may use. They are there before a node, and outlive it."""

    storage: Store
    registry: Registry
    clock: Clock
    bus: EventBus
    random: Random
    ids: IdSource
    callback_runner: CallbackRunner
    history_writer: HistoryWriter


class WithServices:
    """A node or a part of one: it has the services as attributes of its own."""

    def __init__(self, services: Services) -> None:
        self._storage = services.storage
        self._registry = services.registry
        self._clock = services.clock
        self._bus = services.bus
        self._random = services.random
        self._ids = services.ids
        self._callback_runner = services.callback_runner
        self._history_writer = services.history_writer

    def _publish_failure(self, doing: str, error: Exception) -> None:
        publish_storage_failure(self._bus, self._clock, doing, error)

    def _publish_dropped(self, dropped: Sequence[Dropped | JobRecord]) -> None:
        """Publish jobs that ended without having run again, and schedule `on_error` for the failed ones."""
        self._callback_runner.submit_on_error([job.id for job in dropped if job.state is JobState.FAILED])
        for job in dropped:
            kind = JobFailure if job.state is JobState.FAILED else JobFinished
            self._bus.publish(
                kind(
                    at=self._clock.now(),
                    job_id=job.id,
                    task=job.task,
                    queue=job.queue,
                    attempt=job.attempt,
                    state=job.state,
                    error=job.error,
                )
            )
