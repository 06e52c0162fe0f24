"""What every gate guarantees for every framework: real workers, brokers and results on a real Redis."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum

import pytest

from headgate.limits.redis.message_lines import BucketLine, MessageLines
from tests.faces.contrib.workers import Log, Worker, assert_never_more, assert_none_is_lost
from tests.until import until_now


class Side(ABC):
    """A framework with a gate, as a program that sends sees it. Its tasks are those of `…_app.py`."""

    own: str
    """What its lines are called."""

    popped = 0
    """How many calls its own transport may lose when a worker is killed."""

    @abstractmethod
    def send(self, task: str, *args: object) -> str:
        """Send a call; its id."""

    @abstractmethod
    def send_past_the_gate(self, key: str, count: int) -> None:
        """Send so many of `hourly`, and then `unlimited`, as a program without the gate does."""

    @abstractmethod
    def results(self, task: str, calls: Sequence[tuple[object, ...]]) -> list[object]:
        """Send calls, and wait for what they return."""

    @abstractmethod
    def in_broker(self, log: Log) -> set[str]:
        """The ids of what the broker holds."""

    @abstractmethod
    def line(self, key: str) -> tuple[MessageLines, BucketLine]:
        """Where calls of `sync_tenant` wait."""


class GateSuite:
    """Subclass it in a module that has fixtures `server`, `side` and `worker`."""

    @pytest.mark.nightly
    def test_twenty_thousand_throttled_calls_delay_no_other_and_survive_a_kill(
        self, side: Side, worker: Worker, log: Log, key: str
    ) -> None:
        worker.kill()
        try:
            self._send_and_kill(side, worker, log, key)
        finally:
            # Others need it.
            worker.start()

    def _send_and_kill(self, side: Side, worker: Worker, log: Log, key: str) -> None:
        began = time.monotonic()
        sent = {side.send("sync_tenant", key) for _ in range(50)}
        sent |= set(log.park(*side.line(key), key, 19_950))
        # Only what may start at once is in the broker.
        windows = 1 + (time.monotonic() - began) // 0.5
        assert 20 <= len(side.in_broker(log) & sent) <= 20 * windows

        worker.start()
        log.wait(key, 1, 15, worker)
        for _ in range(90):
            side.send("unlimited", key)
        others = [f"{key}{number}" for number in range(10)]
        for other in others:
            side.send("sync_tenant", other)
        until_now(lambda: len(log.starts(f"unlimited-{key}")) == 90, 5, worker.log)
        until_now(lambda: all(log.starts(other) for other in others), 5, worker.log)
        log.wait(key, 45, 10, worker)
        # In the midst of it.
        worker.kill()

        assert_none_is_lost(log, key, sent, side.in_broker, side.popped)
        started = {told for _, told in log.starts(key)}

        worker.start()
        log.wait(key, len(started) + 21, 15, worker)
        assert_never_more(log.starts(key), 20, 0.5)
        log.client.delete(*log.client.keys(f"*{key}*"))

    def test_what_is_sent_without_the_gate_waits_before_it_takes_a_place_of_the_worker(
        self, side: Side, worker: Worker, log: Log, key: str
    ) -> None:
        side.send_past_the_gate(key, 300)
        log.wait(f"unlimited-{key}", 1, 10, worker)
        until_now(lambda: len(log.ids(key, "line")) == 280, 5, worker.log)
        assert len(log.wait(key, 20, 5, worker)) == 20
        log.client.delete(*log.client.keys(f"*{key}*"))

    def test_a_throttled_call_returns_its_result(self, side: Side, worker: Worker, log: Log, key: str) -> None:
        assert side.results("doubled", [(key, number) for number in range(4)]) == [0, 2, 4, 6]
        assert_never_more(log.starts(key), 2, 0.4)

    def test_a_retry_is_charged_and_waiting_spends_no_attempt(
        self, side: Side, worker: Worker, log: Log, key: str
    ) -> None:
        for _ in range(3):
            side.send("fails_once", key)
        log.wait(key, 6, 15, worker)
        assert_never_more(log.starts(key), 2, 0.4)
        assert sorted(told for _, told in log.starts(key)) == list("000111")

    def test_a_member_of_an_enum_has_the_key_of_its_value(self, side: Side, worker: Worker, log: Log, key: str) -> None:
        """The fault: it had another key where it was sent than in the worker, and waited in both lines."""

        class Plan(str, Enum):  # noqa: UP042  # a StrEnum has the text of its value
            PRO = key

        assert side.results("doubled", [(Plan.PRO, number) for number in range(4)]) == [0, 2, 4, 6]
        assert_never_more(log.starts(key), 2, 0.4)
