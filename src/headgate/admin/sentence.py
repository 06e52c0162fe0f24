"""One sentence of a verdict, in English."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from headgate.plural import counted

SentenceKind = Literal[
    "store_silent",
    "no_worker",
    "alerts",
    "blocked",
    "workers_silent",
    "workers_quiet",
    "undeclared",
    "queue_paused",
    "limit_paused",
    "lag",
    "limit",
    "overdue",
    "retrying",
    "failed",
    "counting",
    "ready",
    "idle",
]

Tone = Literal["bad", "warn", "info", "good"]


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of a verdict: what it says, by `kind`, and the numbers, names and times in it.

    `str()` is the sentence in English, with times in UTC.
    """

    kind: SentenceKind
    tone: Tone
    count: int | None = None
    name: str | None = None
    key: str | None = None
    at: datetime | None = None
    seconds: float | None = None
    more: int = 0

    def __str__(self) -> str:
        count, jobs = self.count or 0, counted(self.count or 0, "job")
        match self.kind:
            case "store_silent":
                return f"The store has not answered since {_clock(self.at)}."
            case "no_worker":
                none = "No worker responds." if self.more else "No worker is running."
                what = "ready" if self.name == "ready" else "waiting"
                return f"{none} {jobs} {_are(count)} {what}." if count else none
            case "alerts":
                return f"{counted(count, 'alert')} {_are(count)} firing: {self.name}."
            case "blocked":
                return f"A database session has delayed the store for {self.seconds or 0:.0f} s."
            case "workers_silent":
                return f"{counted(count, 'worker')} {'does' if count == 1 else 'do'} not respond."
            case "workers_quiet":
                claims = "claims" if count == 1 else "claim"
                return f"{counted(count, 'worker')} {_are(count)} quiet and {claims} no jobs; no other is running."
            case "undeclared":
                wait = f"{jobs} {'waits' if count == 1 else 'wait'}"
                return f"{wait} for a worker that serves the queue and declares the task."
            case "queue_paused":
                return f"Queue {self.name} is paused; {jobs} {'waits' if count == 1 else 'wait'} in it."
            case "limit_paused":
                return f"Limit {self.name} is paused; {jobs} {'waits' if count == 1 else 'wait'} for it."
            case "lag":
                return f"Jobs in queue {self.name} wait {self.seconds or 0:.0f} s for a free slot."
            case "limit":
                wait = f"{counted(count, 'key')} {'waits' if count == 1 else 'wait'} for {self.name}"
                if self.at is None:
                    return f"{wait}; {_key(self.key)} has most jobs."
                return f"{wait}; {_key(self.key)} is clear at {_clock(self.at)}."
            case "overdue":
                return f"{counted(count, 'schedule')} {_are(count)} overdue."
            case "retrying":
                attempts = f"{counted(count, 'attempt')} failed and will be retried"
                return f"In the last 5 minutes {attempts}; {counted(self.more, 'job')} succeeded."
            case "failed":
                return f"{counted(count, 'job')}{' or more' if self.more else ''} failed in the last hour."
            case "counting":
                return "Jobs are being counted."
            case "ready":
                return f"{jobs} {_are(count)} ready for a free slot."
            case "idle":
                waits = [f"{jobs} for {'its' if count == 1 else 'their'} time"] if count else []
                waits += [f"{counted(self.more, 'job')} for another job"] if self.more else []
                return f"Nothing waits but {' and '.join(waits)}." if waits else "Nothing waits."


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _key(key: str | None) -> str:
    return key or "the limit"


def _clock(at: datetime | None) -> str:
    return "an unknown time" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"
