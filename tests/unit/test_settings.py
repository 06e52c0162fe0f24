"""Settings: arguments before the environment before defaults, and a mistake in any of them raises immediately."""

from __future__ import annotations

import os
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headgate import DeclarationError, Headgate, RateLimit, RetryPolicy
from headgate.clock import SystemClock
from headgate.jobs.audit import AuditLevel
from headgate.jobs.retention import retention_of
from headgate.settings import Settings, _warn_of_variable, load_settings
from headgate.storage.sqlite.memory import MemoryStorage
from tests.internals import store_of

SAID: dict[str, tuple[str, Any, Any, Any]] = {
    # The text of the variable and what it means; an argument and what that means.
    "concurrency": ("7", 7, 9, 9),
    "slots": ("7", 7, 9, 9),
    "name": ("mail-1", "mail-1", "web", "web"),
    "labels": ("gpu, eu", frozenset({"gpu", "eu"}), ["cpu"], frozenset({"cpu"})),
    "release": ("3f2c1ab", "3f2c1ab", "v7 of May", "v7 of May"),
    "max_tasks_per_child": ("100", 100, 5, 5),
    "max_memory_per_child": ("200MB", 200_000_000, 2**30, 2**30),
    "retry": ("retries=5,delay=30s", RetryPolicy(retries=5, delay=30), RetryPolicy(retries=1), RetryPolicy(retries=1)),
    "timeout": ("2.5", 2.5, timedelta(minutes=1), 60.0),
    "heartbeat": ("2", 2.0, timedelta(seconds=3), 3.0),
    "lease": ("45", 45.0, 90, 90.0),
    "grace": ("2m", 120.0, timedelta(seconds=1), 1.0),
    "retention": ("3600", retention_of(3600), timedelta(days=1), retention_of(86400)),
    "on_limit": ("Discard", "discard", "cancel", "cancel"),
    "max_wait": ("90s", 90.0, timedelta(minutes=2), 120.0),
    "audit": ("errors", AuditLevel.ERRORS, "none", AuditLevel.NONE),
    "log_lines": ("10", 10, 0, 0),
    "log_level": ("warning", "WARNING", "ERROR", "ERROR"),
    "log_jobs": ("on", True, False, False),
    "history": ("off", False, True, True),
    "throttle_events": ("off", False, True, True),
    "max_payload": ("2048", 2048, 4096, 4096),
    "synchronous": ("normal", "NORMAL", "OFF", "OFF"),
    "migrate": ("off", False, True, True),
    "limits_url": ("redis://one", "redis://one", "redis://two", "redis://two"),
    "schema": ("jobs", "jobs", "work", "work"),
    "connections": ("4", 4, 16, 16),
    "listen_url": ("postgresql://one/x", "postgresql://one/x", "postgresql://two/x", "postgresql://two/x"),
}


@pytest.mark.parametrize("name", SAID)
def test_each_setting_is_read_from_its_variable_and_an_argument_goes_before_it(name: str) -> None:
    text, from_text, argument, from_argument = SAID[name]
    default = getattr(Settings(), name)
    environment = {f"HEADGATE_{name.upper()}": text}
    assert getattr(load_settings({}, {}), name) == default
    assert getattr(load_settings({}, environment), name) == from_text != default
    assert getattr(load_settings({name: argument}, environment), name) == from_argument
    # None is what was not said.
    assert getattr(load_settings({name: None}, environment), name) == from_text


def test_no_setting_lacks_a_variable_that_works_and_is_on_the_page() -> None:
    assert SAID.keys() == {field.name for field in fields(Settings)}
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    assert [name for name in SAID if f"`HEADGATE_{name.upper()}`" not in page] == []


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("5", RetryPolicy(retries=5)),
        ("0", RetryPolicy(retries=0)),
        ("retries=5, base=2s, cap=10m, jitter=off", RetryPolicy(retries=5, base=2, cap=600, jitter=False)),
        ("delay=1.5h", RetryPolicy(delay=5400)),
        ("delays=1s+1m+1h", RetryPolicy(delays=[1, 60, 3600])),
    ],
)
def test_a_retry_policy_is_written_in_words(text: str, policy: RetryPolicy) -> None:
    assert load_settings({}, {"HEADGATE_RETRY": text}).retry == policy


def test_an_unknown_variable_is_logged_once_with_the_likely_name(caplog: pytest.LogCaptureFixture) -> None:
    _warn_of_variable.cache_clear()
    environment = {"HEADGATE_CONCURENCY": "5", "HEADGATE_APP": "shop:app", "PATH": "/bin"}
    load_settings({}, environment)
    load_settings({}, environment)
    (record,) = caplog.records
    assert "HEADGATE_CONCURENCY has no effect" in record.getMessage()
    assert record.getMessage().endswith("did you mean HEADGATE_CONCURRENCY?")


def test_the_variables_that_kubernetes_sets_for_a_service_named_headgate_are_no_mistakes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    load_settings(
        {},
        dict.fromkeys(
            ["HEADGATE_PORT", "HEADGATE_SERVICE_HOST", "HEADGATE_WEB_SERVICE_PORT_HTTP", "HEADGATE_PORT_80_TCP_ADDR"],
            "x",
        ),
    )
    assert not caplog.records


@pytest.mark.parametrize("url", ["db.internal", "redis://db.internal", "postgresql+asyncpg://ada:hunter2@db/shop"])
def test_a_listen_url_of_another_store_is_refused(url: str) -> None:
    """The fault: a worker started and polled for ever, with one warning in its log."""
    with pytest.raises(DeclarationError, match="is no URL of PostgreSQL; write postgresql://user@host/") as caught:
        load_settings({}, {"HEADGATE_LISTEN_URL": url})
    assert "hunter2" not in str(caught.value)


def test_a_listen_url_that_is_no_text_is_refused() -> None:
    """The fault: AttributeError, 'int' object has no attribute 'startswith'."""
    with pytest.raises(DeclarationError, match="listen_url='7' is no URL of PostgreSQL"):
        load_settings({"listen_url": 7}, {})


@pytest.mark.parametrize("empty", ["", "  "])
def test_a_variable_that_is_empty_counts_as_unset(empty: str) -> None:
    assert load_settings({}, {f"HEADGATE_{name.upper()}": empty for name in SAID}) == load_settings({}, {})


@pytest.mark.parametrize("name", SAID)
def test_a_variable_of_a_file_with_line_ends_of_windows_is_read_as_without(name: str) -> None:
    """The fault: some were refused, as `log_level='INFO\\r'`, and others kept the line end."""
    text, from_text, _, _ = SAID[name]
    assert getattr(load_settings({}, {f"HEADGATE_{name.upper()}": f"{text}\r"}), name) == from_text


@pytest.mark.parametrize(("text", "part"), [("often", "often"), ("retries=5, until=9", "until=9"), ("5,6", "5,6")])
def test_a_retry_policy_that_cannot_be_read_is_quoted_as_it_was_written(text: str, part: str) -> None:
    with pytest.raises(DeclarationError, match=f"^HEADGATE_RETRY={text!r}: {part!r} cannot be read"):
        load_settings({}, {"HEADGATE_RETRY": text})


def test_the_defaults_are_as_documented() -> None:
    settings = load_settings({}, {})
    assert (settings.heartbeat, settings.lease, settings.grace) == (5.0, 30.0, 30.0)
    assert (settings.retention, settings.max_payload) == (retention_of(7 * 86400), 262_144)
    assert (settings.concurrency, settings.timeout, settings.audit) == (None, None, AuditLevel.FULL)
    retry = settings.retry
    assert [retry.retries, retry.base, retry.cap, retry.jitter] == [3, 1, 3600, True]


def test_an_app_reads_the_environment_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "HEADGATE_URL", "memory://")
    monkeypatch.setitem(os.environ, "HEADGATE_TIMEOUT", "12")
    monkeypatch.setitem(os.environ, "HEADGATE_MAX_PAYLOAD", "1024")
    monkeypatch.setitem(os.environ, "HEADGATE_RETRY", "7")
    app = Headgate()

    @app.task
    async def plain(text: str) -> None: ...

    @app.task(timeout=3)
    async def own() -> None: ...

    assert type(store_of(app)).__name__ == "MemoryStorage"
    assert [plain.timeout, own.timeout] == [12, 3]
    assert plain.retry == RetryPolicy(retries=7)
    assert Headgate(retry=RetryPolicy(retries=1)).task(name="told")(lambda: None).retry == RetryPolicy(retries=1)
    assert Headgate(timeout=5)._settings.timeout == 5
    with pytest.raises(ValueError, match="more than 1024"):
        plain.payload.encode(("x" * 2000,), {})


@pytest.mark.parametrize("name", SAID)
def test_each_setting_is_an_argument_of_an_app(name: str) -> None:
    _, _, argument, from_argument = SAID[name]
    given: dict[str, Any] = {name: argument}
    assert getattr(Headgate("memory://", **given)._settings, name) == from_argument


@pytest.mark.parametrize("url", [None, "", "  "])
def test_an_app_without_a_store_is_refused(url: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADGATE_URL", raising=False)
    if url is not None:
        monkeypatch.setenv("HEADGATE_URL", url)
    with pytest.raises(DeclarationError) as caught:
        Headgate()
    for part in ('Headgate("sqlite:///jobs.db")', 'Headgate("postgresql://user@host/database")', "HEADGATE_URL"):
        assert part in str(caught.value)


def test_the_url_argument_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_URL", " memory:// ")
    assert type(Headgate()._storage).__name__ == "MemoryStorage"
    assert type(Headgate("sqlite:///jobs.db")._storage).__name__ == "SqliteStorage"


def test_an_app_has_a_url_and_no_store_of_ones_own() -> None:
    make: Any = Headgate
    store: Any = MemoryStorage(SystemClock())
    with pytest.raises(TypeError, match="storage"):
        make(storage=store)
    with pytest.raises(DeclarationError, match="is not text; use sqlite:///path or postgresql://host/database"):
        Headgate(store)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("concurrency", "many"),
        ("concurrency", "0"),
        ("timeout", "-1"),
        ("heartbeat", "0"),
        ("lease", "8"),
        ("grace", "-0.1"),
        ("retention", "a week"),
        ("retry", "often"),
        ("retry", "retries=-1"),
        ("retry", "retries=5,until=9"),
        ("retry", "delays=1s+soon"),
        ("retry", "jitter=maybe"),
        ("history", "maybe"),
        ("max_payload", "10"),
        ("connections", "1"),
        ("synchronous", "fast"),
    ],
)
def test_an_invalid_variable_is_named(name: str, text: str) -> None:
    with pytest.raises(DeclarationError, match=f"(?i){name}"):
        load_settings({}, {f"HEADGATE_{name.upper()}": text})


def test_the_variable_of_a_store_of_limits_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: it said `store="shop" is not known`, and the task names no store."""
    monkeypatch.setenv("HEADGATE_LIMITS_URL", "shop")
    app = Headgate("memory://")
    with pytest.raises(DeclarationError, match=r'"shop" or HEADGATE_LIMITS_URL is not known; use .*redis://…'):
        app.task(name="work", limits=[RateLimit("3/m")])(lambda: None)
