"""The services that the parts of a node share with each other and with the app."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from headgate.clock import Clock
from headgate.engine.bus import EventBus, publish_storage_failure
from headgate.engine.callback_runner import CallbackRunner
from headgate.engine.history_writer import HistoryWriter
from headgate.jobs.identity import IdSource
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
