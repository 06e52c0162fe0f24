"""Counts the jobs of one queue in each state."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.jobs.job import JobState
from headgate.storage.memory.job import CANCELLED, FAILED, RUNNING, SUCCEEDED, WAITING


class Tally:
    """How many jobs of one queue are in each state; its lanes share it."""

    __slots__ = ("cancelled", "failed", "running", "succeeded", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.running = 0
        self.succeeded = 0
        self.failed = 0
        self.cancelled = 0

    @property
    def has_jobs(self) -> bool:
        return any((self.waiting, self.running, self.succeeded, self.failed, self.cancelled))

    def count(self, state: JobState, change: int) -> None:
        """Count a job that came to a final state or left it."""
        if state is SUCCEEDED:
            self.succeeded += change
        elif state is FAILED:
            self.failed += change
        else:
            self.cancelled += change

    def number(self, state: JobState) -> int:
        numbers: Mapping[JobState, int] = {
            WAITING: self.waiting,
            RUNNING: self.running,
            SUCCEEDED: self.succeeded,
            FAILED: self.failed,
            CANCELLED: self.cancelled,
        }
        return numbers[state]
