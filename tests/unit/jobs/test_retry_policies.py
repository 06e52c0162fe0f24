"""Retry policies: each kind of wait, what is refused, filters and the errors that they are meant for."""

from __future__ import annotations

import asyncio
import errno
import socket
import sqlite3
import ssl
import sys
from datetime import timedelta
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import asyncpg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from headgate import DeclarationError, Headgate, RetryPolicy
from headgate.clock import SECOND
from headgate.jobs.job import ClaimedJob, JobError, RetryTerms
from headgate.jobs.lifecycle import Failed, Finished, Returned, decide


def test_a_constant_delay_is_the_same_each_time() -> None:
    policy = RetryPolicy(retries=5, delay=timedelta(seconds=30))
    assert [policy.wait_after(failures, Random()) for failures in (1, 2, 50)] == [30 * SECOND] * 3


def attempted(attempt: int) -> ClaimedJob:
    return ClaimedJob("job", "task", "default", "{}", attempt, attempt, 0, 0, 0, 0)


def test_a_backoff_that_says_none_gives_up_with_retries_left() -> None:
    policy = RetryPolicy(retries=10, backoff=lambda failures: 2.0 * failures if failures < 3 else None)
    failed = Failed(JobError("ValueError", "no"))
    endings = [decide(attempted(attempt), failed, policy, 0, Random()) for attempt in (1, 2, 3)]
    assert isinstance(endings[0], Returned)
    assert isinstance(endings[1], Returned)
    assert (endings[0].run_at, endings[1].run_at) == (2 * SECOND, 4 * SECOND)
    assert isinstance(endings[2], Finished)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"retries": True}, "not a whole number"),
        ({"retries": 2.0}, "not a whole number"),
        ({"retries": None}, "not a whole number"),
        ({"retries": -1}, "negative"),
        ({"jitter": 1}, "not True or False"),
        ({"base": float("nan")}, "finite"),
        ({"base": "often"}, "base='often' is not a duration"),
        ({"cap": float("inf")}, "finite"),
        ({"cap": True}, "cap=True is not a duration"),
        ({"base": -1}, "cannot be negative"),
        ({"delay": timedelta(seconds=-1)}, "cannot be negative"),
        ({"delay": float("inf")}, "finite"),
        ({"delays": [1, -1]}, "cannot be negative"),
        ({"delays": [1, None]}, "delays=None is not a duration"),
        ({"cap": timedelta.max}, "cap=.* more than a hundred years"),
        ({"delay": 1e300}, "delay=1e\\+300 is more than a hundred years"),
        ({"retries": 10**13}, "retries=10000000000000 is more than"),
        ({"delays": 5}, "not a list"),
        ({"delays": "12"}, "not a list"),
        ({"retries": 5, "delays": [1, 2]}, "has 2 delays"),
        ({"backoff": 5}, "not callable"),
        ({"delay": 1, "delays": [1]}, "delay or delays, not both"),
        ({"delay": 1, "backoff": float}, "delay or backoff, not both"),
        ({"delay": 5, "cap": 60}, "does not use base, cap or jitter"),
        ({"backoff": float, "jitter": False}, "does not use base, cap or jitter"),
        ({"retry_on": "OSError"}, "filters by exception classes"),
        ({"give_up_on": (OSError, int)}, "filters by exception classes"),
        ({"retry_on": [OSError]}, "filters by exception classes"),
    ],
    ids=str,
)
def test_invalid_values_are_refused_at_declaration(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(DeclarationError, match=reason):
        RetryPolicy(**options)


def test_a_function_that_cannot_be_called_as_it_will_be_is_refused_where_it_is_written() -> None:
    async def give_back_later(_: object) -> Any:
        return True

    functions: list[Any] = [lambda: 1, lambda failures, error, more: 1, give_back_later]
    for function in functions:
        with pytest.raises(DeclarationError, match="write backoff=lambda failures: … or backoff=lambda failures, err"):
            RetryPolicy(backoff=function)
        with pytest.raises(DeclarationError, match="by plain functions of the error"):
            RetryPolicy(retry_on=(OSError, function))
        with pytest.raises(DeclarationError, match="by plain functions of the error"):
            RetryPolicy(give_up_on=function)


def test_a_number_in_the_place_of_a_policy_is_refused_with_what_to_write() -> None:
    app = Headgate("memory://")
    for given, count in ((0, 0), (False, 0), (5, 5), (True, 3), (-1, 3), ("lots", 3)):
        with pytest.raises(DeclarationError, match=rf"write retry=RetryPolicy\(retries={count}\)"):
            Headgate("memory://", retry=given)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="is not a policy"):
        app.task(retry=5)(test_a_constant_delay_is_the_same_each_time)  # type: ignore[call-overload]
    with pytest.raises(DeclarationError, match="queue 'mail'"):
        app.queue("mail", retry=5)  # type: ignore[arg-type]


def test_giving_up_goes_before_retrying_where_both_filters_name_an_error() -> None:
    policy = RetryPolicy(retry_on=(RetryPolicy.NETWORK, KeyError), give_up_on=ConnectionRefusedError)
    assert policy.accepts(ConnectionResetError())
    assert policy.accepts(KeyError())
    assert not policy.accepts(ConnectionRefusedError())
    assert not policy.accepts(ValueError())
    assert not RetryPolicy(give_up_on=RetryPolicy.DATABASE).accepts(ConnectionResetError())


def test_every_error_of_a_group_must_be_retryable() -> None:
    policy = RetryPolicy(retry_on=RetryPolicy.NETWORK)
    assert policy.accepts(ExceptionGroup("", [ConnectionResetError(), ExceptionGroup("", [TimeoutError()])]))
    assert not policy.accepts(ExceptionGroup("", [ConnectionResetError(), ValueError()]))
    assert not RetryPolicy(give_up_on=ValueError).accepts(ExceptionGroup("", [OSError(), ValueError()]))
    assert RetryPolicy().accepts(ExceptionGroup("", [ValueError()]))


# ------------------------------------------------------------------------------------------------------- presets


def closed_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


async def raised_by(call: Any) -> BaseException:
    try:
        await call
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


async def test_real_errors_of_connections_are_of_the_network_and_of_databases() -> None:
    """The fault: the timeouts of a peer's preset were of a class that nothing raises, so they were never retried."""

    async def too_slow() -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    port = closed_port()
    errors = [
        await raised_by(asyncio.open_connection("127.0.0.1", port)),
        # Several addresses, each refused: no ConnectionError at all.
        await raised_by(asyncio.open_connection("localhost", port)),
        await raised_by(asyncio.open_connection("no-such-host.invalid", 80)),
        await raised_by(too_slow()),
        await raised_by(asyncpg.connect(host="127.0.0.1", port=port, user="nobody", timeout=5)),
        OSError(errno.ENETUNREACH, "Network is unreachable"),
        OSError("Multiple exceptions: [Errno 111] Connect call failed, [Errno 111] Connect call failed"),
        TimeoutError(),
        ssl.SSLEOFError(),
        asyncio.IncompleteReadError(b"", 1),
    ]
    for error in errors:
        assert RetryPolicy.NETWORK.matches(error), error
        assert RetryPolicy.DATABASE.matches(error), error


async def test_a_redis_that_is_away_is_of_the_network_and_a_wrong_password_is_not() -> None:
    def ping() -> None:
        redis.Redis(port=closed_port(), retry=Retry(NoBackoff(), 0)).ping()

    assert RetryPolicy.NETWORK.matches(await raised_by(asyncio.to_thread(ping)))
    assert RetryPolicy.NETWORK.matches(redis.exceptions.TimeoutError())
    assert not RetryPolicy.NETWORK.matches(redis.exceptions.AuthenticationError())


def test_a_locked_sqlite_file_is_transient_and_a_missing_table_is_not(tmp_path: Path) -> None:
    first = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    second = sqlite3.connect(tmp_path / "a.db", isolation_level=None, timeout=0)
    first.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError) as locked:
        second.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError) as missing:
        second.execute("SELECT * FROM nothing")
    first.close()
    second.close()
    assert RetryPolicy.DATABASE.matches(locked.value)
    assert not RetryPolicy.DATABASE.matches(missing.value)


def test_of_postgresql_deadlocks_are_transient_and_constraints_are_not() -> None:
    for kind in (
        asyncpg.DeadlockDetectedError,
        asyncpg.SerializationError,
        asyncpg.ConnectionDoesNotExistError,
        asyncpg.TooManyConnectionsError,
        asyncpg.AdminShutdownError,
        asyncpg.LockNotAvailableError,
    ):
        assert RetryPolicy.DATABASE.matches(kind("")), kind
    assert not RetryPolicy.DATABASE.matches(asyncpg.UniqueViolationError(""))
    assert not RetryPolicy.DATABASE.matches(asyncpg.UndefinedTableError(""))


def test_ordinary_mistakes_are_in_no_preset() -> None:
    for error in (ValueError(), KeyError(), FileNotFoundError(errno.ENOENT, "gone"), PermissionError(), OSError("odd")):
        assert not RetryPolicy.NETWORK.matches(error)
        assert not RetryPolicy.DATABASE.matches(error)


def test_a_refused_certificate_is_not_transient_whoever_wraps_it() -> None:
    wrapped = ConnectionError("cannot connect")
    wrapped.__cause__ = ssl.SSLCertVerificationError("self-signed")
    assert not RetryPolicy.NETWORK.matches(ssl.SSLCertVerificationError())
    assert not RetryPolicy.NETWORK.matches(wrapped)


def test_an_error_is_known_by_its_public_name_once_its_library_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    library = ModuleType("httpx")
    timeout = vars(library)["TimeoutException"] = type("TimeoutException", (Exception,), {})
    read_timeout = type("ReadTimeout", (timeout,), {})
    monkeypatch.delitem(sys.modules, "httpx", raising=False)
    assert not RetryPolicy.NETWORK.matches(read_timeout())
    monkeypatch.setitem(sys.modules, "httpx", library)
    assert RetryPolicy.NETWORK.matches(read_timeout())


def test_a_preset_prints_as_it_is_written() -> None:
    assert repr(RetryPolicy.NETWORK) == "RetryPolicy.NETWORK"


# ----------------------------------------------------------------------------------------------- stored with a job


@pytest.mark.parametrize(
    "policy",
    [
        RetryPolicy(),
        RetryPolicy(retries=0),
        RetryPolicy(retries=7, base=timedelta(seconds=2), cap=60, jitter=False),
        RetryPolicy(retries=2, delay=1.5),
        RetryPolicy(delays=[1, timedelta(minutes=1)]),
        RetryPolicy(delays=[]),
    ],
    ids=str,
)
def test_the_stored_policy_of_a_job_waits_like_the_one_it_was_made_of(policy: RetryPolicy) -> None:
    stored = RetryPolicy().with_terms(policy.terms("task 'work'"))
    assert stored.retries == policy.retries
    for failures in range(1, policy.retries + 1):
        assert stored.wait_after(failures, Random(1)) == policy.wait_after(failures, Random(1))


def test_the_filters_of_the_task_hold_for_a_job_with_a_policy_of_its_own() -> None:
    policy = RetryPolicy(give_up_on=KeyError, retry_on=LookupError).with_terms(RetryTerms(retries=9))
    assert policy.retries == 9
    assert policy.accepts(IndexError())
    assert not policy.accepts(KeyError())


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        (RetryPolicy(backoff=float), "backoff"),
        (RetryPolicy(retry_on=OSError, give_up_on=KeyError), "retry_on and give_up_on"),
        (RetryPolicy(retry_on=RetryPolicy.NETWORK), "retry_on"),
    ],
)
def test_a_policy_that_cannot_be_stored_with_a_job_belongs_to_the_task(policy: RetryPolicy, named: str) -> None:
    app = Headgate("memory://")

    @app.task
    async def work() -> None: ...

    with pytest.raises(DeclarationError, match=f"task 'work': {named} of a RetryPolicy cannot be stored"):
        work.using(retry=policy)
    with pytest.raises(DeclarationError, match="is not a policy"):
        work.using(retry=3)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------- defaults


def test_a_task_overrides_its_queue_and_a_queue_overrides_the_app() -> None:
    app = Headgate("memory://", retry=RetryPolicy(retries=1), timeout=10)
    app.queue("mail", retry=RetryPolicy(retries=2), timeout=timedelta(seconds=20))

    @app.task
    async def plain() -> None: ...

    @app.task(queue="mail")
    async def mail() -> None: ...

    @app.task(queue="mail", retry=RetryPolicy(retries=3), timeout=30)
    async def own() -> None: ...

    assert [task.retry.retries for task in (plain, mail, own)] == [1, 2, 3]
    assert [task.timeout for task in (plain, mail, own)] == [10, 20, 30]
    # By the queue that the task is declared for, wherever a job goes.
    assert plain.using(queue="mail").retry.retries == 1
    app.queue("default", retry=RetryPolicy(retries=4))
    assert plain.retry.retries == 4
    with pytest.raises(DeclarationError, match="queue 'slow': timeout=0 must be above 0"):
        app.queue("slow", timeout=0)
