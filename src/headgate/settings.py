"""Settings of an app: arguments first, then HEADGATE_* variables, then defaults."""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from headgate.arguments import MEBIBYTE, MOST_SLOTS, duration_in, parse_bytes, parse_count, parse_seconds
from headgate.clock import SECOND
from headgate.errors import DeclarationError
from headgate.escaping import one_line
from headgate.jobs.audit import AuditLevel, audit_level
from headgate.jobs.identity import require_process_name
from headgate.jobs.retention import DEFAULT_RETENTION, Retention, parse_retention, retention_of
from headgate.jobs.retry import DEFAULT_RETRY, RetryPolicy, require_policy
from headgate.jobs.words import labels_in, parse_labels
from headgate.limits.limit import OnLimit, wait_terms
from headgate.urls import displayed_url

MAX_LOG_LINES = 100_000

MAX_RELEASE = 100

_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}

_OTHER_VARIABLES = frozenset(
    {"HEADGATE_URL", "HEADGATE_APP", "HEADGATE_DASHBOARD_USERS", "HEADGATE_DEMONSTRATION", "HEADGATE_WORKER_NUMBER"}
)
"""Variables that are not settings of an app; the last two are set by Headgate itself."""

_OF_OTHERS = re.compile(r"^HEADGATE_TEST_|_SERVICE_(HOST|PORT(_\w+)?)$|_PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?$")
"""Variables of its tests, and those that Kubernetes sets for a service whose name begins with "headgate"."""

_DATABASE_FILE = re.compile(r"[^:=@?]+\.(?:db|sqlite|sqlite3)")

_logger = logging.getLogger("headgate.settings")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of an app. Each is also read from `HEADGATE_<NAME>`.

    Durations are seconds, a timedelta, or text like "5m"; they are stored as seconds.

    `concurrency`: slots per queue and node, unless the queue sets it (default: 100, or max(4, 2 × cores) for a queue
    whose tasks are all plain functions). `slots`: how many jobs of all queues together run at once on a node (default:
    as many as the queues have slots). `name`: the name of this process's node (default: host:pid).
    `labels`: a node runs the tasks that require none but these (default: none); in the environment `gpu,eu`.
    `release`: which release of your program this is, such as a commit; charts mark when its first node started.
    `max_tasks_per_child`: a child process is replaced after so many process tasks (default: never).
    `max_memory_per_child`: it is replaced if it occupies more bytes than that after one (default: never); also "200MB".
    `retry`: the policy of tasks without one (default: 3 retries, 1 s × 2ⁿ with full jitter, up to 1 h); in the
    environment `5`, `retries=5,base=2s,cap=10m,jitter=off`, `retries=5,delay=30s` or `delays=1s+1m+1h`. `timeout`:
    how long an attempt may take if its task sets no timeout (default: none).
    `heartbeat` (5): the interval at which a node renews its lease; other nodes treat it as lost after `lease` (30).
    `grace` (30): how long running jobs may continue after a stop was requested. `retention` (7 days): how long final
    jobs are kept; also by state, `{"succeeded": 3600, "failed": 30 * 86400}`, in the environment
    `succeeded=1h,failed=30d`.
    `on_limit` ("wait") and `max_wait` (default: no maximum): how jobs wait for limits that set neither, in queues that
    set neither; together they are one setting.
    `audit` ("full"): the audit level of tasks without one: "none", "errors", "minimal" or "full".
    `log_lines` (1,000): how many log lines of a job are stored, 0 for none; of `log_level` ("INFO") and above.
    `log_jobs`: whether each job that ends gets a line in the log of this process (default: in a worker process, yes:
    `headgate worker` and `app.run()`; in a program with other work, no). A failure is always logged.
    `history` (True): whether this process counts jobs for the charts, and adds the counts to the store every 10 s.
    `throttle_events` (True): whether this node publishes, and logs, that jobs wait for limits; metrics count it anyway.
    `max_payload` (262,144): the most bytes of JSON for the arguments or the result of one job.
    `synchronous` ("FULL"): for SQLite; "NORMAL" may lose the last commits in a power cut. `limits_url` ("redis://…",
    "postgresql://…"): the store of the limits that count starts, unless they set `store=` (default: with the jobs).
    `migrate` (True for SQLite and memory, False for PostgreSQL): whether opening the app makes the tables, or brings
    them up to date; `headgate migrate` and `await app.migrate()` do it in any case.
    On PostgreSQL: `schema` ("headgate") is the schema of the tables; a URL names it as `?schema=`, too;
    `connections` (8) is the most connections that a process opens; `listen_url`, for a URL through PgBouncer, is a
    direct URL to the database, which wakes nodes at once instead of polling.
    """

    concurrency: int | None = None
    slots: int | None = None
    name: str | None = None
    labels: frozenset[str] = frozenset()
    release: str | None = None
    max_tasks_per_child: int | None = None
    max_memory_per_child: int | None = None
    retry: RetryPolicy = DEFAULT_RETRY
    timeout: float | None = None
    heartbeat: float = 5.0
    lease: float = 30.0
    grace: float = 30.0
    retention: Retention = DEFAULT_RETENTION
    on_limit: OnLimit | None = None
    max_wait: float | None = None
    audit: AuditLevel = AuditLevel.FULL
    log_lines: int = 1000
    log_level: str = "INFO"
    log_jobs: bool | None = None
    history: bool = True
    throttle_events: bool = True
    max_payload: int = 256 * 1024
    synchronous: str = "FULL"
    limits_url: str | None = field(default=None, repr=False)  # a URL may hold a password
    migrate: bool | None = None
    schema: str = "headgate"
    connections: int = 8
    listen_url: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("concurrency", "slots"):
            if getattr(self, name) is not None:
                parse_count(getattr(self, name), name, most=MOST_SLOTS)
        if self.name is not None:
            require_process_name(self.name)
        release = self.release
        if release is not None and not (
            isinstance(release, str) and 1 <= len(release) <= MAX_RELEASE and release.isprintable()
        ):
            raise DeclarationError(
                f"release={release!r:.80} is not a release: write 1 to {MAX_RELEASE} printable characters, such as the "
                "commit or the version of your program"
            )
        if self.max_tasks_per_child is not None:
            parse_count(self.max_tasks_per_child, "max_tasks_per_child")
        if self.max_memory_per_child is not None:
            parse_bytes(self.max_memory_per_child, "max_memory_per_child", least=MEBIBYTE)
        for name in ("connections", "max_payload"):
            parse_count(getattr(self, name), name, least=0)
        parse_count(self.log_lines, "log_lines", least=0, most=MAX_LOG_LINES)
        require_policy(self.retry, "Headgate(…)")
        wait_terms(self.on_limit, self.max_wait, "the app", "app")
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
                f"connections={self.connections} must be at least 2, so that claims do not wait for endings"
            )
        if self.log_level not in logging.getLevelNamesMapping():
            raise DeclarationError(f"log_level={self.log_level!r} must be a level name of logging, such as INFO")
        if self.synchronous not in ("FULL", "NORMAL", "EXTRA", "OFF"):
            raise DeclarationError(f"synchronous={self.synchronous!r} must be FULL, NORMAL, EXTRA or OFF")
        for name in ("history", "throttle_events", "log_jobs", "migrate"):
            value = getattr(self, name)
            if not isinstance(value, bool) and (name in ("history", "throttle_events") or value is not None):
                raise DeclarationError(f"{name}={value!r} must be True or False")
        if self.listen_url is not None and not str(self.listen_url).startswith(("postgresql://", "postgres://")):
            raise DeclarationError(
                f"listen_url={displayed_url(str(self.listen_url))!r} is no URL of PostgreSQL; write "
                "postgresql://user@host/database"
            )
        if self.max_payload < 1024:
            raise DeclarationError(f"max_payload={self.max_payload} must be at least 1024 bytes")


SETTINGS = tuple(field.name for field in fields(Settings))
"""The names of the settings."""


def storage_url() -> str:
    """Return `HEADGATE_URL`. Raises DeclarationError if it is unset or empty; there is no default store."""
    url = os.environ.get("HEADGATE_URL", "").strip()
    if not url:
        raise DeclarationError(
            'Headgate() has no store for its jobs: pass a URL, such as Headgate("sqlite:///jobs.db") or '
            'Headgate("postgresql://user@host/database"), or set the variable HEADGATE_URL to one; '
            '"memory://" keeps jobs in this process, for tests'
        )
    return url


def require_store_url(url: Any) -> Any:
    """Return the URL of a store. Raises DeclarationError for a path or a URL of SQLAlchemy, with the URL to write."""
    text = str(url)
    kind, _, driver = text.partition("://")[0].partition("+")
    if driver and kind in ("sqlite", "postgresql"):
        wrong, instead = f"{displayed_url(text)!r} names a driver", f"{kind}://… without +{driver}"
    elif text == ":memory:":
        wrong, instead = "':memory:' has no scheme", "memory://"
    elif text == "sqlite:///:memory:":
        wrong, instead = f"{text!r} names a file", "memory://"
    elif isinstance(url, PurePath) or _DATABASE_FILE.fullmatch(text):
        wrong, instead = f"{text!r} is a path", f"sqlite:///{quote(PurePath(text).as_posix(), safe='/:')}"
    else:
        return url
    raise DeclarationError(f"storage URL {wrong}; write {instead}")


def load_settings(given: Mapping[str, object], environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings of an app; empty variables are ignored.

    A variable `HEADGATE_…` that is no setting is logged once. Raises DeclarationError for an invalid value.
    """
    values: dict[str, object] = {}
    variables = {f"HEADGATE_{name.upper()}" for name in SETTINGS} | _OTHER_VARIABLES
    for name in environment:
        if name.startswith("HEADGATE_") and name not in variables and not _OF_OTHERS.search(name):
            _warn_of_variable(name, frozenset(variables))
    for name in SETTINGS:
        if text := environment.get(f"HEADGATE_{name.upper()}", "").strip():
            values[name] = _parse(name, text)
    return Settings(**values | _given(given))  # type: ignore[arg-type]


def overridden(settings: Settings, given: Mapping[str, object]) -> Settings:
    """Return the settings with the given ones that are not None. Raises DeclarationError for an invalid value."""
    return replace(settings, **_given(given))


def _given(given: Mapping[str, object]) -> dict[str, Any]:
    return {name: _converted(name, value, name) for name, value in given.items() if value is not None}


@functools.cache  # Once per process, however many apps it has.
def _warn_of_variable(name: str, variables: frozenset[str]) -> None:
    import difflib  # Only a mistake needs it, and importing Headgate is to stay cheap.

    likely = difflib.get_close_matches(name, sorted(variables), n=1)
    advice = f"did you mean {likely[0]}?" if likely else f"the settings are: {', '.join(sorted(variables))}"
    _logger.warning("the environment variable %s has no effect: it is no setting; %s", one_line(name), advice)


_DURATIONS = frozenset({"timeout", "heartbeat", "lease", "grace", "max_wait"})


def _converted(name: str, value: Any, where: str) -> object:
    if name == "retention":
        return retention_of(value)
    if name == "audit":
        return audit_level(value, "settings")
    if name == "labels":
        return parse_labels(value, where)
    if name == "max_memory_per_child":
        return parse_bytes(value, where, least=MEBIBYTE)
    return parse_seconds(value, where) if name in _DURATIONS else value


def _parse(name: str, text: str) -> object:
    if name == "retention":
        return parse_retention(text)
    if name == "retry":
        return parse_retry(text)
    if name == "audit":
        return audit_level(text.lower(), "HEADGATE_AUDIT")  # type: ignore[arg-type]  # any other word is refused
    if name in ("synchronous", "log_level"):
        return text.upper()
    if name in ("limits_url", "schema", "listen_url", "name", "release"):
        return text
    if name == "on_limit":
        return text.lower()
    variable = f"HEADGATE_{name.upper()}"
    if name == "labels":
        return labels_in(text, variable)
    if name == "max_memory_per_child" or name in _DURATIONS:
        return _converted(name, text, variable)
    if name in ("history", "throttle_events", "log_jobs", "migrate"):
        return parse_switch(text, variable)
    try:
        return int(text)
    except ValueError:
        raise DeclarationError(f"{variable}={text!r:.80} is not a whole number") from None


def parse_switch(text: str, name: str) -> bool:
    """Return True for on and False for off. Raises DeclarationError with the `name` of the variable."""
    try:
        return _SWITCH[text.strip().lower()]
    except KeyError:
        raise DeclarationError(f"{name}={text!r} must be one of {', '.join(_SWITCH)}") from None


def parse_retry(text: str) -> RetryPolicy:
    """Parse the variable: `5`, `retries=5,base=2s,cap=10m,jitter=off`, `retries=5,delay=30s` or `delays=1s+1m+1h`.

    Filters and functions have no text form; use code for them. Raises DeclarationError.
    """
    options: dict[str, Any] = {}
    is_number = "=" not in text
    for part in [text] if is_number else text.split(","):
        word, _, value = (piece.strip() for piece in (f"retries={part}" if is_number else part).partition("="))
        match word:
            case "retries" if re.fullmatch("[0-9]{1,18}", value):
                options[word] = int(value)
            case "base" | "cap" | "delay" if (length := duration_in(value)) is not None:
                options[word] = length / SECOND
            case "delays" if None not in (delays := [duration_in(each) for each in value.split("+")]):
                options[word] = [length / SECOND for length in delays if length is not None]
            case "jitter":
                options[word] = parse_switch(value, "HEADGATE_RETRY: jitter")
            case _:
                raise DeclarationError(
                    f"HEADGATE_RETRY={text!r}: {part.strip()!r} cannot be read; write 5, "
                    "retries=5,base=2s,cap=10m,jitter=off, retries=5,delay=30s, or delays=1s+1m+1h (s, m, h, d, w)"
                )
    return RetryPolicy(**options)
