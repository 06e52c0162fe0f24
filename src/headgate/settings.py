"""Settings of an app: arguments first, then HEADGATE_* variables, then defaults."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from headgate.arguments import MOST_SLOTS, parse_count, parse_seconds
from headgate.errors import DeclarationError
from headgate.jobs.audit import AuditLevel, audit_level
from headgate.jobs.retention import DEFAULT_RETENTION, Retention, parse_retention, retention_of
from headgate.jobs.retry import DEFAULT_RETRY, RetryPolicy, require_policy
from headgate.jobs.written import parse_switch
from headgate.jobs.written_retry import parse_retry

MOST_LOG_LINES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an app can be told. Each is also read from `HEADGATE_<NAME>`.

    Durations are seconds, a timedelta, or text like "5m"; they are kept as seconds.

    `concurrency`: slots per queue and node, where the queue does not say (default: 100, or max(4, 2 × cores) for a
    queue whose tasks are all plain functions). `retry`: of tasks that have none (default: 3 retries,
    1 s × 2ⁿ with full jitter, up to 1 h); in the environment `5`, `retries=5,base=2s,cap=10m,jitter=off`,
    `retries=5,delay=30s` or `delays=1s+1m+1h`. `timeout`: for each attempt of a task that has none (default: none).
    `heartbeat` (5) renews a node's lease, which others take for lost after `lease` (30). `grace` (30): how long running
    jobs may go on after the node was asked to stop. `retention` (7 days): how long final jobs are kept; also by how
    they ended, as `{"succeeded": 3600, "failed": 30 * 86400}`, in the environment `succeeded=1h,failed=30d`.
    `audit` ("full"): what is kept of a job's life, "none", "errors", "minimal" or "full", where its task does not say.
    `log_lines` (1,000): of what a job logs the first so many lines are kept, 0 for none; of `log_level` ("INFO") and
    above.
    `history` (True): whether this process counts what charts show, and adds it to the store every 10 s.
    `max_payload` (262,144): bytes of JSON that the arguments or the result of one job may take.
    `synchronous` ("FULL"): of SQLite; "NORMAL" may lose the last commits in a power cut. `limits_url` ("redis://…",
    "postgresql://…"): where the limits that count starts are kept, unless they say `store=` (default: with the jobs).
    On PostgreSQL: `schema` ("headgate") is where the tables live; `connections` (8) is how many a process opens at
    most; `listen_url`, where the URL leads through PgBouncer, is a way to the database itself, to be woken at once
    instead of polling.
    """

    concurrency: int | None = None
    retry: RetryPolicy = DEFAULT_RETRY
    timeout: float | None = None
    heartbeat: float = 5.0
    lease: float = 30.0
    grace: float = 30.0
    retention: Retention = DEFAULT_RETENTION
    audit: AuditLevel = AuditLevel.FULL
    log_lines: int = 1000
    log_level: str = "INFO"
    history: bool = True
    max_payload: int = 256 * 1024
    synchronous: str = "FULL"
    limits_url: str | None = field(default=None, repr=False)  # a URL may hold a password
    schema: str = "headgate"
    connections: int = 8
    listen_url: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.concurrency is not None:
            parse_count(self.concurrency, "concurrency", most=MOST_SLOTS)
        for name in ("connections", "max_payload", "log_lines"):
            parse_count(getattr(self, name), name, least=0)
        require_policy(self.retry, "Headgate(…)")
        for name in ("timeout", "heartbeat", "lease"):
            value = getattr(self, name)
            if value is not None:
                parse_seconds(value, name, allow_zero=False)
        parse_seconds(self.grace, "grace")
        if self.lease < 2 * self.heartbeat:
            raise DeclarationError(
                f"lease={self.lease} must be at least twice heartbeat={self.heartbeat}: "
                "one late heartbeat would cost a node its jobs"
            )
        if self.connections < 2:
            raise DeclarationError(
                f"connections={self.connections} must be at least 2: claiming must not wait for finishing"
            )
        if not 0 <= self.log_lines <= MOST_LOG_LINES:
            raise DeclarationError(f"log_lines={self.log_lines} must be from 0 to {MOST_LOG_LINES}")
        if self.log_level not in logging.getLevelNamesMapping():
            raise DeclarationError(f"log_level={self.log_level!r} must be the name of a level of logging, as INFO")
        if not isinstance(self.history, bool):
            raise DeclarationError(f"history={self.history!r} must be True or False")
        if self.max_payload < 1024:
            raise DeclarationError(f"max_payload={self.max_payload} must be at least 1024 bytes")


def storage_url(environment: Mapping[str, str] = os.environ) -> str:
    """Where jobs live by `HEADGATE_URL`. Raises DeclarationError if it is unset or empty: no place is guessed."""
    url = environment.get("HEADGATE_URL", "").strip()
    if not url:
        raise DeclarationError(
            'Headgate() does not say where jobs live: pass a URL, as Headgate("sqlite:///jobs.db") or '
            'Headgate("postgresql://user@host/database"), or set the variable HEADGATE_URL to one; '
            '"memory://" keeps jobs in this process, for tests'
        )
    return url


def load_settings(given: Mapping[str, object], environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings of an app; a variable that is empty says nothing.

    Raises DeclarationError for a name or a value that makes no sense.
    """
    known = {field.name for field in fields(Settings)}
    values: dict[str, object] = {}
    for name in known:
        text = environment.get(f"HEADGATE_{name.upper()}")
        if text is not None and text.strip():
            values[name] = _parse(name, text)
    for name, value in given.items():
        if name not in known:
            raise DeclarationError(f"{name!r} is not a setting; there are: {', '.join(sorted(known))}")
        if value is not None:
            values[name] = _converted(name, value)
    return Settings(**values)  # type: ignore[arg-type]


_DURATIONS = frozenset({"timeout", "heartbeat", "lease", "grace"})


def _converted(name: str, value: Any) -> object:
    if name == "retention":
        return retention_of(value)
    if name == "audit":
        return audit_level(value, "settings")
    return parse_seconds(value, name) if name in _DURATIONS else value


def _parse(name: str, text: str) -> object:
    if name == "retention":
        return parse_retention(text)
    if name == "retry":
        return parse_retry(text)
    if name == "audit":
        return audit_level(text.lower(), "HEADGATE_AUDIT")  # type: ignore[arg-type]  # any other word is refused
    if name in ("synchronous", "log_level"):
        return text.upper()
    if name in ("limits_url", "schema", "listen_url"):
        return text
    if name == "history":
        return parse_switch(text, "HEADGATE_HISTORY")
    variable = f"HEADGATE_{name.upper()}"
    if name in _DURATIONS:
        return parse_seconds(text, variable)
    try:
        return int(text)
    except ValueError:
        raise DeclarationError(f"{variable}={text!r:.80} is not a whole number") from None
